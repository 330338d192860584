//! Checksums of the medium.
//!
//! * CRC32C over structures that are rewritten as a whole (superblock, inode, record).
//! * A *sum* over structures that change in small parts (bitmap groups by words,
//!   htree leaves by 64-byte lines): the wrapping sum of a keyed hash of each part
//!   with its index. The cost of an update depends only on the changed part. The
//!   hash of a line is multilinear with odd keys. It detects every change within
//!   one word and misses any other change with probability 2^-64.
//! * A *check* of 16 or 12 bits inside a word that must change by one store.

use crate::types::Ino;

/// Computes the CRC32C of `bytes`, seeded.
#[inline]
pub fn crc(seed: u64, bytes: &[u8]) -> u32 {
    let before = (seed ^ (seed >> 32)) as u32;
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq") {
        // SAFETY: the processor has both SSE4.2 and PCLMULQDQ, the only target
        // features that `short::crc` requires.
        return unsafe { short::crc(before, bytes) };
    }
    crc32c::crc32c_append(before, bytes)
}

/// CRC32C of inputs that are too short for the crate to divide: inodes and records.
/// The instruction has a latency of three cycles and a throughput of one word per
/// cycle, so three interleaved parts take the time of one.
#[cfg(target_arch = "x86_64")]
mod short {
    use std::arch::x86_64::{
        _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64, _mm_cvtsi64_si128,
        _mm_cvtsi128_si64, _mm_xor_si128,
    };

    /// The polynomial in reflected bit order.
    const POLY: u32 = 0x82f6_3b78;
    /// Maximum number of words in a part.
    const MAX_PART_WORDS: usize = 64;
    /// Minimum number of words in a part for which three parts are faster.
    const MIN_PART_WORDS: usize = 4;

    /// Factors, indexed by the number of words in a part, that carry a CRC over
    /// one part and over two. The product of two such numbers is one power too
    /// high, and the instruction that reduces it adds 32 powers.
    const CARRY: [[u32; 2]; MAX_PART_WORDS + 1] = {
        let mut all = [[0; 2]; MAX_PART_WORDS + 1];
        let (mut power, mut x) = (0, 1u32 << 31);
        while power + 33 <= MAX_PART_WORDS * 128 {
            let words = (power + 33) / 64;
            if (power + 33).is_multiple_of(64) {
                if words <= MAX_PART_WORDS {
                    all[words][0] = x;
                }
                if words.is_multiple_of(2) {
                    all[words / 2][1] = x;
                }
            }
            x = (x >> 1) ^ (if x & 1 == 1 { POLY } else { 0 });
            power += 1;
        }
        all
    };

    #[inline]
    #[target_feature(enable = "sse4.2")]
    fn add(crc: u64, word: &[u8; 8]) -> u64 {
        _mm_crc32_u64(crc, u64::from_le_bytes(*word))
    }

    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub(super) fn crc(before: u32, bytes: &[u8]) -> u32 {
        let mut crc = u64::from(!before);
        // Align the loads to the words of recent stores: such a load can be
        // forwarded from the store buffer.
        let (mut words, rest) = match bytes.split_first_chunk::<4>() {
            Some((half, rest)) if bytes.as_ptr().addr() % 8 == 4 => {
                crc = u64::from(_mm_crc32_u32(crc as u32, u32::from_le_bytes(*half)));
                rest.as_chunks::<8>()
            }
            _ => bytes.as_chunks::<8>(),
        };
        while words.len() >= MIN_PART_WORDS * 3 {
            let n = (words.len() / 3).min(MAX_PART_WORDS);
            let (first, more) = words.split_at(n);
            let (second, more) = more.split_at(n);
            let (third, more) = more.split_at(n);
            let (mut b, mut c) = (0, 0);
            for ((x, y), z) in first.iter().zip(second).zip(third) {
                crc = add(crc, x);
                b = add(b, y);
                c = add(c, z);
            }
            let carried = |crc: u64, by: u32| {
                let (crc, by) = (crc as i64, i64::from(by));
                _mm_clmulepi64_si128(_mm_cvtsi64_si128(crc), _mm_cvtsi64_si128(by), 0)
            };
            let [over_one, over_two] = CARRY[n];
            let both = _mm_xor_si128(carried(crc, over_two), carried(b, over_one));
            crc = c ^ _mm_crc32_u64(0, _mm_cvtsi128_si64(both) as u64);
            words = more;
        }
        for word in words {
            crc = add(crc, word);
        }
        let mut crc = crc as u32;
        for byte in rest {
            crc = _mm_crc32_u8(crc, *byte);
        }
        !crc
    }
}

/// Applies the finaliser of SplitMix64 (Steele, Lea, Flood, 2014), a bijection on
/// 64 bits.
#[inline]
pub const fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Applies the inverse of [`mix64`].
#[inline]
pub const fn unmix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 31) ^ (z >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
    z = (z ^ (z >> 27) ^ (z >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    z ^ (z >> 30) ^ (z >> 60)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the contribution of word `index` of a bitmap to the sum of its group. A
/// zero word contributes 0, so an all-free bitmap has the sum 0.
#[inline]
pub fn word_sum(seed: u64, index: u64, word: u64) -> u64 {
    if word == 0 {
        0
    } else {
        mix64(word ^ word_base(seed, index))
    }
}

/// Returns the value that a word is combined with before mixing.
#[inline]
pub const fn word_base(seed: u64, index: u64) -> u64 {
    seed.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN))
}

/// Factors of the words of a line. They are odd, so a change of one word always
/// changes the hash.
pub const LINE_KEYS: [u64; 8] = {
    let mut k = [0; 8];
    let mut i = 0;
    while i < 8 {
        k[i] = mix64(GOLDEN.wrapping_mul(i as u64 + 1)) | 1;
        i += 1;
    }
    k
};

/// Returns the contribution of the 64-byte line `index` to a sum.
#[inline]
pub fn line_sum(seed: u64, index: u64, line: &[u8; 64]) -> u64 {
    mix64(line_base(seed, index, line))
}

/// As [`line_sum`], for a line given as words.
#[inline]
pub fn line_sum_of(seed: u64, index: u64, line: [u64; 8]) -> u64 {
    mix64(line_base_of(seed, index, line))
}

/// Returns the hash of a line before mixing.
#[inline]
pub fn line_base(seed: u64, index: u64, line: &[u8; 64]) -> u64 {
    let (words, _) = line.as_chunks::<8>();
    line_base_of(
        seed,
        index,
        std::array::from_fn(|i| u64::from_le_bytes(words[i])),
    )
}

/// As [`line_base`], for a line given as words.
#[inline]
pub fn line_base_of(seed: u64, index: u64, line: [u64; 8]) -> u64 {
    let mut h = word_base(seed, index);
    for (w, k) in line.iter().zip(LINE_KEYS) {
        h = h.wrapping_add(w.wrapping_mul(k));
    }
    h
}

/// Returns the difference in [`line_base`] that a change of word `i` makes.
#[inline]
pub fn line_base_change(i: usize, old: u64, new: u64) -> u64 {
    new.wrapping_sub(old).wrapping_mul(LINE_KEYS[i])
}

/// Bits of an LSN in a sealed word.
pub const SEALED_BITS: u32 = 52;

/// Seals a value of 52 bits with a check of 12 bits, in one word.
#[inline]
pub fn seal(seed: u64, value: u64) -> u64 {
    let v = value & ((1 << SEALED_BITS) - 1);
    v | (mix64(v ^ seed.rotate_left(17)) & 0xfff) << SEALED_BITS
}

/// Returns the value of a sealed word, or `None` if its check does not fit.
#[inline]
pub fn unseal(seed: u64, word: u64) -> Option<u64> {
    let v = word & ((1 << SEALED_BITS) - 1);
    (seal(seed, v) == word).then_some(v)
}

/// Returns the word of a slot of the orphan table that names an inode.
pub fn orphan_word(fs_seed: u64, slot: u64, ino: Ino) -> u64 {
    seal(fs_seed ^ slot << 32, ino.0)
}

/// Returns the inode that the word of a slot of the orphan table names, or `None` if the
/// word is damaged.
pub fn orphan_of(fs_seed: u64, slot: u64, word: u64) -> Option<Ino> {
    unseal(fs_seed ^ slot << 32, word).map(Ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_matches_crate_for_all_lengths() {
        let bytes: Vec<u8> = (0..5000u64).map(|i| mix64(i) as u8).collect();
        for len in (0..1600).chain([3072, 4000, 4096, 4900]) {
            for at in [0, 1, 4, 8] {
                let part = &bytes[at..at + len];
                for seed in [0, 7, u64::MAX, 0x1234_5678_9abc_def0] {
                    let before = (seed ^ (seed >> 32)) as u32;
                    let want = crc32c::crc32c_append(before, part);
                    assert_eq!(crc(seed, part), want, "{len} bytes");
                }
            }
        }
    }

    #[test]
    fn flipped_bit_changes_line_sum() {
        let mut line = [0x5a; 64];
        let good = line_sum(7, 3, &line);
        for bit in 0..512 {
            line[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(line_sum(7, 3, &line), good, "bit {bit}");
            line[bit / 8] ^= 1 << (bit % 8);
        }
        assert_ne!(
            line_sum(7, 4, &line),
            good,
            "the same line at another index"
        );
    }

    #[test]
    fn unseal_rejects_flipped_bits() {
        let w = seal(99, 123_456_789);
        assert_eq!(unseal(99, w), Some(123_456_789));
        let opened = (0..64)
            .filter(|b| unseal(99, w ^ (1 << b)).is_some())
            .count();
        assert_eq!(opened, 0);
    }
}
