//! Checksums of file data (feature `data_checksums`): one word for each block of the region.
//!
//! The words of a block group are in the [`SUM_BLOCKS`] blocks before its bitmap block, so the
//! place of a word follows from the number of its block. The word of a block that holds no file
//! data has no meaning.
//!
//! A word, and not four bytes: neighbours belong to files with different locks, and a record
//! replaces whole words. Its upper half tells a damaged word from damaged data, and the word of
//! another block or of another file system from the right one.

use super::checksum::{crc, mix64};
use super::features::DATA_CHECKSUMS;
use crate::types::Bno;

/// Blocks of a group that hold the sums of its blocks, whatever the block size.
pub const SUM_BLOCKS: u64 = 64;

/// Returns how many of so many blocks a file system uses: a last group without room for its
/// bitmap, its sums and a block more is left out.
pub fn usable_blocks(ro_compat: u64, blocks: u64, per_group: u64) -> u64 {
    let rest = blocks % per_group.max(1);
    let too_short = ro_compat & DATA_CHECKSUMS != 0 && (1..=SUM_BLOCKS + 1).contains(&rest);
    match too_short && blocks > per_group {
        true => blocks - rest,
        false => blocks,
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What the word of a block says about bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SumState {
    /// They are those that were summed.
    Right,
    /// They are not.
    Wrong,
    /// The word itself is damaged, so nothing is known about the bytes.
    Damaged,
}

/// Returns the sum of the bytes of a block, up to the end of its file: the plain CRC32C. Its crate
/// was chosen by measurement (`docs/benchmarks.md`).
#[inline]
pub fn data_crc(bytes: &[u8]) -> u32 {
    // Miri has no model of the instructions.
    match cfg!(miri) {
        true => crc(0, bytes),
        false => crc_fast::crc32_iscsi(bytes),
    }
}

/// Returns the word of a block whose bytes have a sum.
#[inline]
pub fn sum_word(fs_seed: u64, block: Bno, sum: u32) -> u64 {
    let place = fs_seed.wrapping_add(block.0.wrapping_add(1).wrapping_mul(GOLDEN));
    let check = mix64(u64::from(sum) ^ place) >> 32;
    check << 32 | u64::from(sum)
}

/// Compares the word of a block with a sum.
#[inline]
pub fn check_word(fs_seed: u64, block: Bno, word: u64, sum: u32) -> SumState {
    if word == sum_word(fs_seed, block, sum) {
        return SumState::Right;
    }
    judge(fs_seed, block, word)
}

#[cold]
fn judge(fs_seed: u64, block: Bno, word: u64) -> SumState {
    match sum_word(fs_seed, block, word as u32) == word {
        true => SumState::Wrong,
        false => SumState::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_is_plain_crc32c_for_all_lengths() {
        let bytes: Vec<u8> = (0..4200u64).map(|i| mix64(i) as u8).collect();
        assert_eq!(data_crc(b"123456789"), 0xe306_9283);
        for len in (0..600).chain([1024, 2048, 3072, 4095, 4096]) {
            for at in [0, 1, 8] {
                let part = &bytes[at..at + len];
                assert_eq!(data_crc(part), crc(0, part), "{len} bytes");
            }
        }
    }

    #[test]
    fn word_of_other_block_or_with_flipped_bit_is_damaged() {
        let word = sum_word(7, Bno(99), 0x1234_5678);
        assert_eq!(check_word(7, Bno(99), word, 0x1234_5678), SumState::Right);
        assert_eq!(check_word(7, Bno(99), word, 0x1234_5679), SumState::Wrong);
        assert_eq!(check_word(7, Bno(98), word, 0x1234_5678), SumState::Damaged);
        assert_eq!(check_word(8, Bno(99), word, 0x1234_5678), SumState::Damaged);
        for bit in 0..64 {
            let state = check_word(7, Bno(99), word ^ 1 << bit, 0x1234_5678);
            assert_eq!(state, SumState::Damaged, "bit {bit}");
        }
        assert_eq!(check_word(7, Bno(99), 0, 0), SumState::Damaged);
    }
}
