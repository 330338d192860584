//! The lock order: the one place that defines it.
//!
//! Every lock has a [`Rank`] by its type, and each rank has a type of the same name here:
//! `Mutex<(), rank::Rename>`. A thread that holds a lock waits only for locks of later
//! ranks. `docs/architecture.md` has the same table, and says what the locks guard.

/// The number of the inode of the orphan table, [`Rank::OrphanTable`].
pub const ORPHAN_TABLE: u64 = 3;

/// The number of the inode of the lease table, [`Rank::LeaseTable`].
pub const LEASE_TABLE: u64 = 4;

/// A type that stands for a rank.
pub trait Ranked {
    /// The rank.
    const RANK: Rank;
}

macro_rules! ranks {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Ranks of locks, first to last.
        ///
        /// Exceptions:
        /// * A thread may wait for several inodes, in ascending order of their numbers.
        /// * A thread may try any lock, and take the lock of an inode that no other thread has
        ///   yet, since neither waits. While it holds the lock, it waits for no lock of an
        ///   earlier rank.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rank {
            $($(#[$doc])+ $name,)+
        }

        impl Rank {
            /// All ranks, in their order.
            pub const ALL: &[Rank] = &[$(Rank::$name),+];
        }

        $($(#[$doc])+ #[derive(Debug)] pub enum $name {}

        impl Ranked for $name {
            const RANK: Rank = Rank::$name;
        })+
    };
}

ranks! {
    /// Huge pages of the system, lent to one test at a time.
    HugePool,
    /// Becoming writable, and the end of a mount.
    Mount,
    /// The position of an open file.
    Position,
    /// A grow of the file system, one at a time.
    Growing,
    /// Every operation shared, the end of a mount exclusively.
    Gate,
    /// The directory that a lane changed last. It is only ever tried.
    LastDirectory,
    /// A directory moves to another parent.
    Rename,
    /// A batch of forgotten orphans is freed.
    Freeing,
    /// An inode. Several are taken in ascending order of their numbers.
    Inode,
    /// The inode of the orphan table, under inodes of any number.
    OrphanTable,
    /// The inode of the lease table, under inodes of any number.
    LeaseTable,
    /// A shard of the inode cache. A miss loads the inode under it.
    CacheShard,
    /// The inode of the inode table.
    InodeTable,
    /// The list of bad blocks, while a record changes it.
    BadBlocks,
    /// An inode group gets its bitmap block, which may take making a block group.
    MakeInodeGroup,
    /// A block group gets its bitmap block.
    MakeBlockGroup,
    /// Trimming holds free bits of a bitmap, or an allocation that found none searches again.
    Lending,
    /// A lane. A thread holds one at a time.
    Lane,
    /// A group of a bitmap. A thread holds one at a time.
    Group,
    /// The words of the superblock that change during a mount, or its label.
    Superblock,
    /// A region becomes longer.
    RegionSize,
    /// The host is asked for pages, gives some, or gets some back.
    HostRoom,
    /// A fence that is an msync.
    PageSync,
    /// A shard of copies aside, for a save of a live mount. The region is read under it.
    Aside,
    /// A few instructions, or a step of a backend. No lock is taken under it.
    Leaf,
}
