//! What a check can find: one variant for each kind of damage, with the
//! numbers that a repair or a person needs. Severities and sentences are in
//! `messages.rs`, remedies in `remedy.rs`.

use std::fmt;

use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::types::Ino;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Minor: space or a second copy is lost; no file is at risk.
    Warning,
    /// Something is wrong: a file, a name or a count.
    Error,
    /// The check could not continue: nothing after this was checked.
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

/// One of the two superblock pages.
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

/// One of the trees of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The file map of its contents.
    Contents,
    /// The hash tree of a directory's entries.
    Entries,
    /// The hash tree of its extended attributes.
    Xattrs,
    /// The file map of one large attribute value.
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
        /// What is wrong with the first page.
        why: String,
    },
    /// One page cannot be used; the other serves.
    SuperblockDamaged {
        /// The damaged page.
        page: Page,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Both static parts are valid and differ.
    SuperblocksDiffer,
    /// Both static parts are valid and differ in the label only: a crash while
    /// the label was changed.
    LabelsDiffer,
    /// The file system uses features that this version does not support.
    UnknownFeatures {
        /// Their names.
        names: Vec<String>,
    },
    /// Checksum mismatch of a checkpoint word.
    CheckpointDamaged {
        /// The page that holds it.
        page: Page,
    },
    /// The dynamic words of the two pages differ.
    DynamicWordsDiffer,
    /// The state word is neither clean nor mounted.
    StateUnknown {
        /// The state word.
        state: u64,
    },
    /// The last mount did not end with an unmount.
    NotUnmounted,
    /// The engine recorded errors since mkfs or the last repair.
    ErrorsRecorded {
        /// Number of errors.
        count: u32,
        /// The errno of the first.
        errno: u32,
    },
    /// An internal inode is damaged in one page.
    InternalInodeDamaged {
        /// The page that holds it.
        page: Page,
        /// The inode.
        ino: Ino,
    },
    /// An internal inode is damaged in both pages.
    InternalInodeLost {
        /// The inode.
        ino: Ino,
    },
    /// An internal inode is valid in both pages, and they differ.
    InternalInodesDiffer {
        /// The inode.
        ino: Ino,
    },

    // ---- journal
    /// The journal holds records that a mount would replay.
    LiveRecords {
        /// Number of records.
        records: u64,
    },
    /// The journal holds records to replay, and at least one targets a place
    /// that no record may change: a mount refuses them.
    RecordsRefused {
        /// Number of all records to replay.
        records: u64,
    },
    /// Checksum mismatch of a lane's `retired` word or of its copy.
    RetiredWordDamaged {
        /// Lane.
        lane: u32,
        /// 0: the word, 1: its copy.
        copy: u64,
    },
    /// A slot holds no valid record.
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

    /// At least half of the journal's record numbers are used up. Once all are,
    /// every change fails.
    LsnsUsedUp {
        /// The largest number in use.
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
    /// A descriptor's pointer to its bitmap is invalid.
    BitmapPointer {
        /// Bitmap.
        kind: BitmapKind,
        /// Group.
        group: u64,
    },
    /// Checksum mismatch of a bitmap: its sum is not the one in its descriptor.
    BitmapSum {
        /// Bitmap.
        kind: BitmapKind,
        /// Group.
        group: u64,
    },
    /// Bits past the end of a bitmap are set.
    BitsPastEnd {
        /// Bitmap.
        kind: BitmapKind,
        /// Group.
        group: u64,
    },
    /// Blocks are allocated but unused: the bitmap marks them as in use, and
    /// they have no owner.
    BlocksLeaked {
        /// First block.
        start: u64,
        /// Number of blocks.
        len: u64,
    },
    /// Blocks have an owner, and the bitmap marks them as free.
    BlocksFree {
        /// First block.
        start: u64,
        /// Number of blocks.
        len: u64,
    },
    /// Multiply-claimed block: two owners name it.
    BlockUsedTwice {
        /// The block.
        block: u64,
        /// The owner that the check found second.
        ino: Ino,
    },

    // ---- inodes
    /// The inode bitmap marks a reserved inode as free.
    ReservedInodeFree {
        /// The inode number.
        ino: Ino,
    },
    /// An inode is in use, and the inode table has no block for it.
    InodeMissing {
        /// The inode.
        ino: Ino,
    },
    /// Checksum or number mismatch of an inode.
    InodeDamaged {
        /// The inode.
        ino: Ino,
    },
    /// A field holds an invalid value.
    InodeField {
        /// The inode.
        ino: Ino,
        /// The field, and what is wrong with it.
        what: &'static str,
    },
    /// Reserved fields are not zero.
    InodeReserved {
        /// The inode.
        ino: Ino,
    },
    /// An inode counts fewer blocks than it owns.
    BlockCount {
        /// The inode.
        ino: Ino,
        /// The value in the inode.
        recorded: u64,
        /// The value found by the check.
        found: u64,
    },
    /// A pointer of a file map is invalid.
    MapPointer {
        /// The inode.
        ino: Ino,
        /// Contents, or a large attribute.
        part: Part,
        /// Level of the pointer; 0 if it names a data block.
        level: u32,
        /// First file block that it covers.
        first: u64,
    },
    /// A pointer block of a file map holds no pointers. The format frees such a
    /// block, so its pointers were lost.
    MapEmpty {
        /// The inode.
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
        /// The inode.
        ino: Ino,
        /// The value in the inode.
        recorded: u64,
        /// The value found by the check.
        found: u64,
    },
    /// A file's flag for lost ranges does not match its map.
    LostFlag {
        /// The inode.
        ino: Ino,
        /// Whether the map marks any range as lost.
        marked: bool,
    },
    /// Part of a file that must be whole is a hole, or not written.
    MapHole {
        /// The inode.
        ino: Ino,
        /// Contents, or a large attribute.
        part: Part,
        /// First file block that is missing.
        first: u64,
    },
    /// A symbolic link has an invalid target.
    BadTarget {
        /// The inode.
        ino: Ino,
    },
    /// Checksum mismatch of the target of a long symbolic link.
    TargetChecksum {
        /// The inode.
        ino: Ino,
    },
    /// Unattached inode: neither an entry nor the orphan table names it, or the
    /// orphan table does and its link count is not 0.
    InodeLeaked {
        /// The inode.
        ino: Ino,
    },

    // ---- hash trees
    /// A pointer of a hash tree is invalid.
    TreePointer {
        /// Owner.
        ino: Ino,
        /// Entries or attributes.
        part: Part,
        /// Level; 0 for the root.
        level: u32,
        /// Number of the pointer in its level.
        index: u64,
    },
    /// An index block of a hash tree holds no pointers.
    TreeEmpty {
        /// Owner.
        ino: Ino,
        /// Entries or attributes.
        part: Part,
        /// Level of the pointer to it; 0 for the root.
        level: u32,
        /// Number of the pointer in its level.
        index: u64,
    },
    /// A leaf of a hash tree is invalid.
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
        /// The inode that it names.
        ino: Ino,
    },
    /// An entry names a reserved inode, which can have no name.
    EntryReserved {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Vec<u8>,
        /// The inode that it names.
        ino: Ino,
    },
    /// The type in an entry is not that of its inode.
    EntryType {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Vec<u8>,
        /// The inode that it names.
        ino: Ino,
    },
    /// A directory counts fewer entries than it holds.
    EntryCount {
        /// Directory.
        ino: Ino,
        /// The value in its inode.
        recorded: u64,
        /// The value found by the check.
        found: u64,
    },
    /// A directory holds fewer entries than it counts: names were lost.
    EntriesMissing {
        /// Directory.
        ino: Ino,
        /// The value in its inode.
        recorded: u64,
        /// The value found by the check.
        found: u64,
    },
    /// The link count is not the number of names.
    LinkCount {
        /// The inode.
        ino: Ino,
        /// The value in the inode.
        recorded: u32,
        /// The value found by the check.
        found: u32,
    },
    /// A directory has more than one name.
    DirectoryNames {
        /// The directory.
        ino: Ino,
        /// Number of names.
        names: u32,
    },
    /// The parent of a directory is not the directory that names it.
    DirectoryParent {
        /// The directory.
        ino: Ino,
        /// The value in its inode.
        recorded: Ino,
        /// The value found by the check.
        found: Ino,
    },
    /// Directories name each other, and the root does not reach them.
    DirectoryLoop {
        /// One of them.
        ino: Ino,
    },
    /// An inode with a link count of 0 still has a name.
    NameOfOrphan {
        /// The inode.
        ino: Ino,
    },

    // ---- extended attributes
    /// The item of an attribute is invalid.
    XattrItem {
        /// Owner.
        ino: Ino,
        /// Name.
        name: Vec<u8>,
    },
    /// Checksum mismatch of a large attribute.
    XattrChecksum {
        /// Owner.
        ino: Ino,
        /// Name.
        name: Vec<u8>,
    },

    /// An ACL is malformed, or on an inode that cannot have one.
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
        /// The value in the inode.
        recorded: u32,
        /// The permissions in the ACL, which take precedence.
        found: u32,
    },

    // ---- tables
    /// Checksum mismatch of a slot of the orphan table.
    OrphanSlotDamaged {
        /// Slot.
        slot: u64,
    },
    /// A slot of the orphan table names an inode that cannot be an orphan.
    OrphanSlotWrong {
        /// Slot.
        slot: u64,
        /// The inode that it names.
        ino: Ino,
    },
    /// Two slots of the orphan table name one inode.
    OrphanTwice {
        /// The second slot.
        slot: u64,
        /// The inode that it names.
        ino: Ino,
    },
    /// An orphan directory, removed and about to be freed, still has entries.
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
