//! Stands in for the parts of the engine that the included sources use.

/// `medium/src/types.rs`.
pub mod types {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LeaseMode {
        Read = 1,
        Write = 2,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Ino(pub u64);

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Bno(pub u64);

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RegionOffset(pub u64);

    impl RegionOffset {
        pub fn word(self, n: u64) -> RegionOffset {
            RegionOffset(self.0 + 8 * n)
        }
    }

    impl std::ops::Add<u64> for RegionOffset {
        type Output = RegionOffset;
        fn add(self, bytes: u64) -> RegionOffset {
            RegionOffset(self.0 + bytes)
        }
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct BlockRun {
        pub start: Bno,
        pub len: u64,
    }

    impl BlockRun {
        pub fn end(self) -> Bno {
            Bno(self.start.0 + self.len)
        }
    }

    /// Two words that belong together.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Attr {
        pub ino: Ino,
        pub size: u64,
        pub change: u64,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum FileType {
        Regular,
    }
}

/// `medium/src/map`.
pub mod map {
    #[derive(Debug, Clone, Copy)]
    pub struct MapRef {
        pub ino: super::types::Ino,
        pub root: super::media::pointer::Ptr,
        pub height: u32,
        pub blocks: u64,
        pub healed: bool,
    }

    impl From<super::media::walk::MapRoot> for MapRef {
        fn from(map: super::media::walk::MapRoot) -> MapRef {
            MapRef {
                ino: map.ino,
                root: map.root,
                height: map.height,
                blocks: 0,
                healed: false,
            }
        }
    }
}

/// `medium/src/error.rs`.
pub mod error {
    pub type Result<T> = std::result::Result<T, std::convert::Infallible>;
}

/// `medium/src/volume`.
pub mod volume {
    pub struct Volume {
        pub region: super::pmem::Region,
    }

    impl Volume {
        pub fn medium(&self) -> &super::pmem::Region {
            &self.region
        }
    }
}

/// `medium/src/media`.
pub mod media {
    pub mod lease {
        // The words of a slot that the models use, without gaps.
        pub const VIEW_OFFSET: u64 = 0;
        pub const OPEN_WORD: u64 = 2;
        pub const CLOSED_WORD: u64 = 3;
        pub const ALL_CLOSED: u64 = u64::MAX;
        pub const APPENDING_OFFSET: u64 = 32;
        pub const END_OFFSET: u64 = 40;
        pub const STORED_OFFSET: u64 = 128;

        /// An append window. An end is its own word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct AppendWindow {
            pub number: u64,
            pub start: u64,
            pub limit: u64,
        }

        impl AppendWindow {
            pub fn end_of(&self, word: u64) -> Option<u64> {
                match word {
                    0 => Some(self.start),
                    end => (self.start..=self.limit).contains(&end).then_some(end),
                }
            }
        }

        pub struct Lease {
            pub ino: crate::stand_in::types::Ino,
            pub id: u64,
            pub mode: crate::stand_in::types::LeaseMode,
            pub pid: u32,
            pub uid: u32,
            pub granted_sec: i64,
        }
    }

    pub mod pointer {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Ptr(pub u64);
    }

    pub mod walk {
        pub struct MapRoot {
            pub ino: crate::stand_in::types::Ino,
            pub root: super::pointer::Ptr,
            pub height: u32,
        }
    }
}

/// `medium/src/pmem`.
pub mod pmem {
    use std::ops::Deref;

    use super::error::Result;
    use super::types::RegionOffset;
    use crate::sync::atomic::{AtomicU64, Ordering};
    use crate::sync::order::{acquire, release};

    /// A region of a few words. The named orderings are those of `Region::load_u64` and of
    /// `WriteWindow::store_u64_unflushed`.
    #[derive(Debug)]
    pub struct Region(Vec<AtomicU64>);

    impl Region {
        pub fn new(words: &[u64]) -> Region {
            Region(words.iter().map(|word| AtomicU64::new(*word)).collect())
        }

        fn word(&self, at: RegionOffset) -> &AtomicU64 {
            &self.0[(at.0 / 8) as usize]
        }

        pub fn load_u64(&self, at: RegionOffset) -> Result<u64> {
            Ok(self.word(at).load(acquire("region-load")))
        }

        /// As a copy of bytes loads them.
        pub fn copy(&self, at: RegionOffset) -> u64 {
            self.word(at).load(Ordering::Relaxed)
        }

        /// As bytes are stored.
        pub fn store(&self, at: RegionOffset, value: u64) {
            self.word(at).store(value, Ordering::Relaxed);
        }
    }

    pub trait RegionAccess {
        fn window(&self) -> Window<'_>;
    }

    impl RegionAccess for Region {
        fn window(&self) -> Window<'_> {
            Window(self)
        }
    }

    pub struct Window<'a>(&'a Region);

    impl Window<'_> {
        pub fn store_u64_unflushed(&self, at: u64, value: u64) -> Result<()> {
            let word = self.0.word(RegionOffset(at));
            word.store(value, release("region-store"));
            Ok(())
        }
    }

    pub fn prefetch_object<T: ?Sized>(_: &T) {}

    /// Words that start as zero.
    #[derive(Debug)]
    pub struct AtomicTable(Box<[AtomicU64]>);

    impl AtomicTable {
        pub fn new(len: usize, _what: &str) -> AtomicTable {
            AtomicTable((0..len).map(|_| AtomicU64::new(0)).collect())
        }

        pub fn advise_huge(&self) {}
    }

    impl Deref for AtomicTable {
        type Target = [AtomicU64];
        fn deref(&self) -> &[AtomicU64] {
            &self.0
        }
    }
}
