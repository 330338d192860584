//! The caches of the engine, from its own sources.

pub mod attr {
    pub const DAY: i64 = 86_400;
}

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

pub mod inode {
    use crate::types::FileType;

    #[derive(Debug, Default)]
    pub struct Disk {
        pub size: u64,
        pub root: u64,
        pub height: u32,
        pub atime_sec: i64,
        pub atime_nsec: u32,
        pub mtime_sec: i64,
        pub mtime_nsec: u32,
        pub ctime_sec: i64,
        pub ctime_nsec: u32,
    }

    #[derive(Debug, Default)]
    pub struct InodeState {
        pub disk: Disk,
        pub records: u64,
        pub gone: bool,
    }

    impl InodeState {
        pub fn kind(&self) -> FileType {
            FileType::Regular
        }
    }
}

#[path = "../../pramfs-rs/src/fs/attr_cache.rs"]
pub mod attr_cache;
#[path = "../../pramfs-rs/src/fs/dcache.rs"]
pub mod dcache;
#[path = "../../pramfs-rs/src/fs/extent_cache.rs"]
pub mod extent_cache;
#[path = "../../pramfs-rs/src/fs/inode_lock.rs"]
pub mod inode_lock;
#[path = "../../pramfs-rs/src/fs/refs.rs"]
pub mod refs;
