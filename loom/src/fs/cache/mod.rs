//! Caches that are read without a lock.

/// The attributes in two words, so that the models stay small.
pub mod attr_words {
    use crate::types::{Attr, Ino};

    pub const ATTR_WORDS: usize = 2;

    pub fn to_words(a: &Attr) -> [u64; ATTR_WORDS] {
        [a.size, a.change]
    }

    pub fn attr_of_words(ino: Ino, word: impl Fn(usize) -> u64) -> Attr {
        let (size, change) = (word(0), word(1));
        Attr { ino, size, change }
    }
}

#[path = "../../../../pramfs-rs/src/fs/cache/attr_cache.rs"]
pub mod attr_cache;
#[path = "../../../../pramfs-rs/src/fs/cache/dcache.rs"]
pub mod dcache;
#[path = "../../../../pramfs-rs/src/fs/cache/extent_cache.rs"]
pub mod extent_cache;
#[path = "../../../../pramfs-rs/src/fs/cache/probe.rs"]
pub mod probe;
