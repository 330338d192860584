//! Stands in for the parts of the engine that the included sources use.

/// `medium/src/types.rs`.
pub mod types {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Ino(pub u64);

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Bno(pub u64);

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

/// `medium/src/media`.
pub mod media {
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

    use crate::sync::atomic::AtomicU64;

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
