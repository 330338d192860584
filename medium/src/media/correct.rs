//! Corrects a single damaged byte with the help of a checksum.
//!
//! The sums over bitmaps and hash-tree leaves have 64 bits; the CRC of an inode
//! has 32 bits over 252 bytes. If exactly one byte is wrong, each of them
//! identifies that byte and its old value. The probability that another value fits
//! by chance is below 2^-49 for the sums and below 2^-15 for the CRC.
//!
//! The caller checks whether the corrected contents are plausible.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::checksum::{LINE_KEYS, crc, line_base, line_sum, mix64, unmix64, word_base, word_sum};
use super::inode::{DiskInode, INODE_SIZE};
use crate::types::Ino;

/// Tells whether two words differ in exactly one byte.
fn one_byte(a: u64, b: u64) -> bool {
    let x = a ^ b;
    x != 0 && (x.trailing_zeros() / 8 == 7 - x.leading_zeros() / 8)
}

/// Returns the inverse of an odd number modulo 2^64.
const fn inverse(k: u64) -> u64 {
    let mut x = k;
    let mut i = 0;
    while i < 6 {
        x = x.wrapping_mul(2u64.wrapping_sub(k.wrapping_mul(x)));
        i += 1;
    }
    x
}

/// Returns the candidates, as offset and value of a word, that correct a hash-tree
/// leaf in which one byte is wrong. Each of them alone makes the sum fit. The sum
/// is at `sum_at` in the first line. If the last byte of a word is wrong, the sum
/// identifies only the line. There may then be one candidate for each of its
/// words, and the caller must decide by the contents.
pub fn leaf(bytes: &[u8], sum_at: usize, seed: u64) -> Vec<(usize, u64)> {
    let word = |b: &[u8], at: usize| {
        b[at..at + 8]
            .iter()
            .rev()
            .fold(0, |w, x| w << 8 | u64::from(*x))
    };
    let stored = word(bytes, sum_at);
    let mut plain = bytes.to_vec();
    plain[sum_at..sum_at + 8].fill(0);
    let (lines, _) = plain.as_chunks::<64>();
    let sums: Vec<u64> = lines
        .iter()
        .zip(0..)
        .map(|(line, i)| line_sum(seed, i, line))
        .collect();
    let total = sums.iter().fold(0u64, |a, b| a.wrapping_add(*b));
    let mut found = Vec::new();
    if one_byte(total, stored) {
        found.push((sum_at, total));
    }
    for (i, old) in sums.iter().enumerate() {
        // The contribution this line must have if all other lines are right.
        let wanted = unmix64(stored.wrapping_sub(total).wrapping_add(*old));
        let off = wanted.wrapping_sub(line_base(seed, i as u64, &lines[i]));
        for (k, key) in LINE_KEYS.iter().enumerate() {
            let at = i * 64 + k * 8;
            let was = word(&plain, at);
            let is = was.wrapping_add(off.wrapping_mul(inverse(*key)));
            if one_byte(was, is) && at != sum_at {
                found.push((at, is));
            }
        }
    }
    found
}

/// Corrects one byte of a bitmap whose sum does not fit. Returns true without a
/// change if the sum itself has the wrong byte, and false if more than one byte is
/// wrong.
pub fn bitmap(words: &mut [u64], sum: u64, seed: u64) -> bool {
    let total = words
        .iter()
        .zip(0..)
        .fold(0u64, |a, (w, i)| a.wrapping_add(word_sum(seed, i, *w)));
    if one_byte(total, sum) {
        return true;
    }
    for (i, word) in words.iter_mut().enumerate() {
        let i = i as u64;
        let wanted = sum
            .wrapping_sub(total)
            .wrapping_add(word_sum(seed, i, *word));
        let is = match wanted {
            0 => 0,
            w => unmix64(w) ^ word_base(seed, i),
        };
        if one_byte(is, *word) && word_sum(seed, i, is) == wanted {
            *word = is;
            return true;
        }
    }
    false
}

/// Maps each change of the CRC to the single wrong byte and its bits.
fn inode_errors() -> &'static HashMap<u32, (u8, u8)> {
    static ALL: OnceLock<HashMap<u32, (u8, u8)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut bytes = [0; INODE_SIZE as usize - 4];
        let none = crc(0, &bytes);
        let mut all = HashMap::with_capacity(bytes.len() * 255);
        for at in 0..bytes.len() {
            for bits in 1..=255 {
                bytes[at] = bits;
                all.insert(crc(0, &bytes) ^ none, (at as u8, bits));
            }
            bytes[at] = 0;
        }
        all
    })
}

/// Returns the inode with one byte corrected, if that makes its CRC fit.
pub fn inode(d: &DiskInode, fs_seed: u64, ino: Ino) -> Option<DiskInode> {
    use zerocopy::IntoBytes;
    let mut d = *d;
    let differ = d.crc ^ d.expected_crc(fs_seed, ino);
    if differ != 0 && (differ.trailing_zeros() / 8 == 3 - differ.leading_zeros() / 8) {
        d.seal(fs_seed, ino);
    } else if let Some(&(at, bits)) = inode_errors().get(&differ) {
        d.as_mut_bytes()[4 + usize::from(at)] ^= bits;
    }
    (d.crc == d.expected_crc(fs_seed, ino)).then_some(d)
}

// `leaf` and `bitmap` rely on `unmix64` being the inverse of `mix64`.
const _: () = assert!(unmix64(mix64(0x1234_5678_9abc_def0)) == 0x1234_5678_9abc_def0);

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    fn noise(n: usize) -> Vec<u8> {
        (0..n as u64).map(|i| mix64(i) as u8).collect()
    }

    #[test]
    fn correct_restores_any_leaf_byte() {
        let mut good = noise(512);
        good[8..16].fill(0);
        let sum = good
            .as_chunks::<64>()
            .0
            .iter()
            .zip(0..)
            .fold(0u64, |a, (l, i)| a.wrapping_add(line_sum(99, i, l)));
        good[8..16].copy_from_slice(&sum.to_le_bytes());
        for at in 0..512 {
            for bits in [1, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] ^= bits;
                let fixes = leaf(&bad, 8, 99);
                let right = |(at, word): &(usize, u64)| good[*at..at + 8] == word.to_le_bytes();
                assert!(fixes.iter().any(right), "byte {at}");
                assert!(fixes.len() == 1 || at % 8 == 7 && fixes.len() <= 8);
            }
        }
        let mut bad = good.clone();
        bad[100] ^= 1;
        bad[300] ^= 1;
        assert_eq!(leaf(&bad, 8, 99), []);
    }

    #[test]
    fn correct_restores_any_bitmap_byte() {
        let mut good: Vec<u64> = (0..64).map(mix64).collect();
        good[5] = 0;
        good[9] = 0x100;
        let sum = good
            .iter()
            .zip(0..)
            .fold(0u64, |a, (w, i)| a.wrapping_add(word_sum(7, i, *w)));
        for at in 0..512 {
            let mut bad = good.clone();
            bad[at / 8] ^= 0xff << (at % 8 * 8);
            assert!(bitmap(&mut bad, sum, 7) && bad == good, "byte {at}");
        }
        let mut bad = good.clone();
        bad[9] = 0;
        assert!(bitmap(&mut bad, sum, 7) && bad == good);
        assert!(bitmap(&mut bad, sum ^ 0x4400, 7) && bad == good);
        bad[0] ^= 1;
        bad[1] ^= 1;
        assert!(!bitmap(&mut bad, sum, 7));
    }

    #[test]
    fn correct_restores_any_inode_byte() {
        let mut good = DiskInode::new_zeroed();
        good.as_mut_bytes().copy_from_slice(&noise(256));
        good.seal(3, Ino(77));
        for at in 0..256 {
            for bits in [1, 0x40, 0xff] {
                let mut bad = good;
                bad.as_mut_bytes()[at] ^= bits;
                assert_eq!(inode(&bad, 3, Ino(77)), Some(good), "byte {at}");
            }
        }
        assert_eq!(inode(&good, 3, Ino(78)), None);
    }
}
