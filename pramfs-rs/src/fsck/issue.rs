//! What a check can find: one variant for each kind of damage, with the
//! numbers that a repair or a person needs. Severities and sentences are in
//! `words.rs`.

use std::fmt;

use crate::media::bitmap::BitmapKind;
use crate::types::Ino;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Untidy: space or a second copy is lost, no file is at risk.
    Warning,
    /// Something is wrong: a file, a name or a count.
    Error,
    /// The check could not go on: what comes after was not looked at.
    Fatal,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
            Severity::Fatal => "fatal",
        })
    }
}

/// Which of the two superblock pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Page {
    /// At offset 0.
    First,
    /// The copy.
    Copy,
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Page::First => "first superblock page",
            Page::Copy => "superblock copy",
        })
    }
}

/// Which tree of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// File map of its contents.
    Contents,
    /// Hash tree of a directory's entries.
    Entries,
    /// Hash tree of its extended attributes.
    Xattrs,
    /// File map of one large attribute value.
    XattrValue,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Contents => "contents",
            Part::Entries => "entries",
            Part::Xattrs => "attributes",
            Part::XattrValue => "large attribute",
        })
    }
}

/// A kind of damage and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Issue {
    // ---- superblock pages
    /// Neither page can be used.
    NoSuperblock {
        /// What is wrong with the first one.
        why: String,
    },
    /// One page cannot be used; the other serves.
    SuperblockDamaged {
        /// Which.
        page: Page,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Both static parts are valid and differ.
    SuperblocksDiffer,
    /// Both static parts are valid and differ in the label only: a crash while
    /// it was changed.
    LabelsDiffer,
    /// The file system uses what this version does not know.
    UnknownFeatures {
        /// Their names.
        names: Vec<String>,
    },
    /// A checkpoint word whose check does not fit.
    CheckpointDamaged {
        /// Where.
        page: Page,
    },
    /// The dynamic words of the two pages differ.
    DynamicWordsDiffer,
    /// The state word is neither clean nor mounted.
    StateUnknown {
        /// What it is.
        state: u64,
    },
    /// The last mount did not end with an unmount.
    NotUnmounted,
    /// The engine met errors since mkfs or the last repair.
    ErrorsRecorded {
        /// How many.
        count: u32,
        /// The first one's errno.
        errno: u32,
    },
    /// An internal inode is damaged in one page.
    InternalInodeDamaged {
        /// In which page.
        page: Page,
        /// Which one.
        ino: Ino,
    },
    /// An internal inode is damaged in both pages.
    InternalInodeLost {
        /// Which one.
        ino: Ino,
    },
    /// An internal inode is valid in both pages, and not the same.
    InternalInodesDiffer {
        /// Which one.
        ino: Ino,
    },

    // ---- journal
    /// Records that a mount would replay.
    LiveRecords {
        /// How many.
        records: u64,
    },
    /// Records that a mount would replay, and that name what no record may:
    /// it refuses.
    RecordsRefused {
        /// How many, those with them included.
        records: u64,
    },
    /// A lane's `retired` word, or its copy, whose check does not fit.
    RetiredWordDamaged {
        /// Lane.
        lane: u32,
        /// 0: the word, 1: its copy.
        copy: u64,
    },
    /// A slot that holds no valid record.
    RecordTorn {
        /// Lane.
        lane: u32,
        /// Slot, 0 or 1.
        slot: u32,
    },
    /// Both slots of a lane hold no valid record: no crash leaves that.
    LaneDamaged {
        /// Lane.
        lane: u32,
    },

    /// More than half of the numbers of the journal's records are used up; when
    /// all are, every change fails.
    LsnsUsedUp {
        /// The largest one.
        newest: u64,
    },

    // ---- bitmaps
    /// The file of group descriptors does not reach a group.
    DescriptorMissing {
        /// Bitmap.
        kind: BitmapKind,
        /// Group.
        group: u64,
    },
    /// A descriptor's pointer to its bitmap cannot be right.
    BitmapPointer {
        /// Bitmap.
        kind: BitmapKind,
        /// Group.
        group: u64,
    },
    /// A bitmap does not have the sum that its descriptor names.
    BitmapSum {
        /// Bitmap.
        kind: BitmapKind,
        /// Group.
        group: u64,
    },
    /// Bits are set that stand for nothing.
    BitsPastEnd {
        /// Bitmap.
        kind: BitmapKind,
        /// Group.
        group: u64,
    },
    /// Blocks that are in use by the bitmap and belong to nothing.
    BlocksLeaked {
        /// First block.
        start: u64,
        /// Blocks.
        len: u64,
    },
    /// Blocks that something owns and the bitmap calls free.
    BlocksFree {
        /// First block.
        start: u64,
        /// Blocks.
        len: u64,
    },
    /// A block with two owners.
    BlockUsedTwice {
        /// The block.
        block: u64,
        /// The owner that was found second.
        ino: Ino,
    },

    // ---- inodes
    /// A bit of the inode bitmap that must be set is clear.
    ReservedInodeFree {
        /// Which number.
        ino: Ino,
    },
    /// An inode is in use and the inode table has no block for it.
    InodeMissing {
        /// Which.
        ino: Ino,
    },
    /// An inode's checksum or number does not fit.
    InodeDamaged {
        /// Which.
        ino: Ino,
    },
    /// A field holds what it cannot hold.
    InodeField {
        /// Which inode.
        ino: Ino,
        /// Field, and what is wrong.
        what: &'static str,
    },
    /// Fields that are reserved are not zero.
    InodeReserved {
        /// Which inode.
        ino: Ino,
    },
    /// The number of blocks is not what the inode owns.
    BlockCount {
        /// Which inode.
        ino: Ino,
        /// By the inode.
        recorded: u64,
        /// Found.
        found: u64,
    },
    /// A pointer of a file map that cannot be right.
    MapPointer {
        /// Which inode.
        ino: Ino,
        /// Contents, or a large attribute.
        part: Part,
        /// Level of the pointer, 0 for one that names a data block.
        level: u32,
        /// First file block that it covers.
        first: u64,
    },
    /// A block of pointers of a file map that holds none: the format frees
    /// such a block, so its pointers were lost.
    MapEmpty {
        /// Which inode.
        ino: Ino,
        /// Contents, or a large attribute.
        part: Part,
        /// Level of the pointer to it.
        level: u32,
        /// First file block that it covers.
        first: u64,
    },
    /// An inode owns fewer blocks than it counts: pointers were lost.
    BlocksMissing {
        /// Which inode.
        ino: Ino,
        /// By the inode.
        recorded: u64,
        /// Found.
        found: u64,
    },
    /// The flag that tells of parts that were lost does not say what is marked.
    LostFlag {
        /// Which inode.
        ino: Ino,
        /// Whether any part is.
        marked: bool,
    },
    /// Part of a file that must be whole is a hole, or not written.
    MapHole {
        /// Which inode.
        ino: Ino,
        /// Contents, or a large attribute.
        part: Part,
        /// First file block that is missing.
        first: u64,
    },
    /// A symbolic link without a target that could be one.
    BadTarget {
        /// Which inode.
        ino: Ino,
    },
    /// The target of a long symbolic link does not have its checksum.
    TargetChecksum {
        /// Which inode.
        ino: Ino,
    },
    /// An inode that nothing names: neither an entry nor the orphan table.
    InodeLeaked {
        /// Which.
        ino: Ino,
    },

    // ---- hash trees
    /// A pointer of a hash tree that cannot be right.
    TreePointer {
        /// Owner.
        ino: Ino,
        /// Entries or attributes.
        part: Part,
        /// Level, 0 for the root.
        level: u32,
        /// Number of the pointer in its level.
        index: u64,
    },
    /// An index block of a hash tree that holds no pointer.
    TreeEmpty {
        /// Owner.
        ino: Ino,
        /// Entries or attributes.
        part: Part,
        /// Level of the pointer to it, 0 for the root.
        level: u32,
        /// Number of the pointer in its level.
        index: u64,
    },
    /// A leaf of a hash tree that cannot be right.
    TreeLeaf {
        /// Owner.
        ino: Ino,
        /// Entries or attributes.
        part: Part,
        /// Block.
        block: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A name occurs twice in one tree.
    DuplicateName {
        /// Owner.
        ino: Ino,
        /// Entries or attributes.
        part: Part,
        /// The name.
        name: Vec<u8>,
    },

    // ---- directories
    /// An entry names an inode that does not exist.
    DanglingEntry {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Vec<u8>,
        /// What it names.
        ino: Ino,
    },
    /// An entry names an inode that can have no name.
    EntryReserved {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Vec<u8>,
        /// What it names.
        ino: Ino,
    },
    /// The type in an entry is not that of its inode.
    EntryType {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Vec<u8>,
        /// What it names.
        ino: Ino,
    },
    /// The number of entries is not what the directory says.
    EntryCount {
        /// Directory.
        ino: Ino,
        /// By its inode.
        recorded: u64,
        /// Found.
        found: u64,
    },
    /// A directory holds fewer entries than it counts: names were lost.
    EntriesMissing {
        /// Directory.
        ino: Ino,
        /// By its inode.
        recorded: u64,
        /// Found.
        found: u64,
    },
    /// The number of links is not the number of names.
    LinkCount {
        /// Which inode.
        ino: Ino,
        /// By the inode.
        recorded: u32,
        /// Found.
        found: u32,
    },
    /// A directory with more than one name.
    DirectoryNames {
        /// Which.
        ino: Ino,
        /// How many names.
        names: u32,
    },
    /// A directory whose parent is not the directory that names it.
    DirectoryParent {
        /// Which.
        ino: Ino,
        /// By its inode.
        recorded: Ino,
        /// Found.
        found: Ino,
    },
    /// Directories that name each other and that the root does not reach.
    DirectoryLoop {
        /// One of them.
        ino: Ino,
    },
    /// An inode without links that still has a name.
    NameOfOrphan {
        /// Which.
        ino: Ino,
    },

    // ---- extended attributes
    /// An attribute whose item cannot be right.
    XattrItem {
        /// Owner.
        ino: Ino,
        /// Name.
        name: Vec<u8>,
    },
    /// A large attribute whose checksum does not fit.
    XattrChecksum {
        /// Owner.
        ino: Ino,
        /// Name.
        name: Vec<u8>,
    },

    /// An ACL that is none, or where there can be none.
    AclDamaged {
        /// Owner.
        ino: Ino,
        /// Name.
        name: Vec<u8>,
    },
    /// The permission bits are not those of the access ACL.
    AclMode {
        /// Owner.
        ino: Ino,
        /// By the inode.
        recorded: u32,
        /// By the ACL, which is what counts.
        found: u32,
    },

    // ---- tables
    /// A slot of the orphan table whose check does not fit.
    OrphanSlotDamaged {
        /// Slot.
        slot: u64,
    },
    /// A slot of the orphan table names what can be no orphan.
    OrphanSlotWrong {
        /// Slot.
        slot: u64,
        /// What it names.
        ino: Ino,
    },
    /// Two slots of the orphan table name one inode.
    OrphanTwice {
        /// The second slot.
        slot: u64,
        /// What it names.
        ino: Ino,
    },
    /// A removed directory that waits to be freed still has entries.
    OrphanNotEmpty {
        /// The directory.
        ino: Ino,
    },
    /// The lease table is not empty.
    LeasesLeft,

    // ---- the medium
    /// Reading failed.
    Unreadable {
        /// What failed.
        why: String,
    },
}
