//! A name in a directory, in the form that the caches compare.

use pramfs_medium::types::Ino;

/// Words of a name. The model checker uses short names.
pub(crate) const NAME_WORDS: usize = if cfg!(loom) { 1 } else { 6 };
/// Length of the longest name that the caches keep, bytes. The last byte holds the
/// length.
pub(crate) const MAX_NAME: usize = NAME_WORDS * 8 - 1;

/// A directory and a name, hashed and packed for a lookup in the caches.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) hash: u64,
    pub(crate) dir: Ino,
    pub(crate) name: [u64; NAME_WORDS],
}

impl Probe {
    /// Hashes and packs a name. `None` if the name is empty or too long for the caches.
    /// `key` is the key of the [`Dcache`](crate::fs::cache::dcache::Dcache).
    #[inline]
    pub(crate) fn new(key: u64, dir: Ino, name: &[u8]) -> Option<Probe> {
        if name.is_empty() || name.len() > MAX_NAME {
            return None;
        }
        const K: u64 = 0xf135_7aea_2e62_a9c5;
        // One multiplication per word, as in FxHash. An attacker who guesses the key
        // can create colliding names; these are then looked up on the medium.
        let mut hash = (dir.0 ^ key ^ name.len() as u64).wrapping_mul(K);
        let mut words = [0; NAME_WORDS];
        let (parts, rest) = name.as_chunks::<8>();
        let mut put = |at: usize, w: u64| {
            hash = (hash.rotate_left(23) ^ w).wrapping_mul(K);
            words[at] = w;
        };
        for (i, p) in parts.iter().enumerate() {
            put(i, u64::from_le_bytes(*p));
        }
        if !rest.is_empty() {
            let last = match name.last_chunk::<8>() {
                Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
                None => rest.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b)),
            };
            put(parts.len(), last);
        }
        words[NAME_WORDS - 1] |= (name.len() as u64) << 56;
        hash = (hash ^ hash >> 32).wrapping_mul(K);
        Some(Probe {
            hash: hash ^ hash >> 32,
            dir,
            name: words,
        })
    }
}
