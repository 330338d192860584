//! What a repair has done: of each finding in one verb, and of the whole what
//! was lost.

use std::fmt;

use super::issue::{Issue, Part};
use crate::types::Ino;

/// What was done about a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Done {
    /// One wrong byte was told by a checksum, and is as it was.
    Corrected,
    /// A valid copy was put over it.
    Copied,
    /// Made anew of what could be read.
    Rebuilt,
    /// Given back to free space.
    Freed,
    /// The damaged part was emptied or dropped.
    Cleared,
    /// Left as it is, since other parts prove it.
    Kept,
    /// Named in `lost+found`.
    Moved,
    /// Removed with what it held.
    Removed,
    /// A value was set to what was found.
    Set,
    /// Marked as in use.
    Marked,
    /// Each owner has a block of its own.
    Separated,
    /// Records were replayed.
    Replayed,
    /// Records were not replayed.
    Discarded,
    /// Counting begins again.
    Renumbered,
    /// It could not be brought back: reading it is EIO until it is written.
    MarkedLost,
}

impl Done {
    /// The verb.
    pub fn as_str(self) -> &'static str {
        match self {
            Done::Corrected => "corrected",
            Done::Copied => "copied",
            Done::Rebuilt => "rebuilt",
            Done::Freed => "freed",
            Done::Cleared => "cleared",
            Done::Kept => "kept",
            Done::Moved => "moved to lost+found",
            Done::Removed => "removed",
            Done::Set => "set",
            Done::Marked => "marked as in use",
            Done::Separated => "separated",
            Done::Replayed => "replayed",
            Done::Discarded => "discarded",
            Done::Renumbered => "renumbered",
            Done::MarkedLost => "marked as lost",
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Issue {
    /// What is done about it where there is only one thing to do.
    pub(super) fn usually(&self) -> Done {
        use Issue::*;
        match self {
            SuperblockDamaged { .. }
            | SuperblocksDiffer
            | LabelsDiffer
            | CheckpointDamaged { .. }
            | DynamicWordsDiffer
            | InternalInodeDamaged { .. }
            | InternalInodesDiffer { .. }
            | RetiredWordDamaged { .. } => Done::Copied,
            InternalInodeLost { .. } => Done::Corrected,
            LiveRecords { .. } => Done::Replayed,
            RecordsRefused { .. } => Done::Discarded,
            LsnsUsedUp { .. } => Done::Renumbered,
            ErrorsRecorded { .. }
            | RecordTorn { .. }
            | LaneDamaged { .. }
            | BitsPastEnd { .. }
            | InodeReserved { .. }
            | OrphanSlotDamaged { .. }
            | OrphanSlotWrong { .. }
            | OrphanTwice { .. }
            | LeasesLeft => Done::Cleared,
            BlocksLeaked { .. } | InodeMissing { .. } => Done::Freed,
            BlocksFree { .. } | ReservedInodeFree { .. } => Done::Marked,
            BlockUsedTwice { .. } => Done::Separated,
            InodeLeaked { .. } | OrphanNotEmpty { .. } | DirectoryLoop { .. } => Done::Moved,
            DuplicateName { .. }
            | DanglingEntry { .. }
            | EntryReserved { .. }
            | DirectoryNames { .. }
            | AclDamaged { .. } => Done::Removed,
            StateUnknown { .. }
            | NotUnmounted
            | BlockCount { .. }
            | LostFlag { .. }
            | BlocksMissing { .. }
            | EntryCount { .. }
            | LinkCount { .. }
            | EntryType { .. }
            | DirectoryParent { .. }
            | NameOfOrphan { .. }
            | AclMode { .. }
            | InodeField { .. } => Done::Set,
            MapPointer { part, .. } | MapHole { part, .. } | MapEmpty { part, .. }
                if *part != Part::Contents =>
            {
                Done::Removed
            }
            MapPointer { .. } | MapHole { .. } | MapEmpty { .. } => Done::Cleared,
            BadTarget { .. } | TargetChecksum { .. } => Done::Removed,
            XattrItem { .. } | XattrChecksum { .. } => Done::Removed,
            NoSuperblock { .. }
            | UnknownFeatures { .. }
            | Unreadable { .. }
            | DescriptorMissing { .. }
            | BitmapPointer { .. }
            | BitmapSum { .. }
            | InodeDamaged { .. }
            | TreePointer { .. }
            | TreeEmpty { .. }
            | TreeLeaf { .. }
            | EntriesMissing { .. } => Done::Rebuilt,
        }
    }
}

/// What of a file was lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lost {
    /// All of it: its inode was past repair, and its names went with it.
    File,
    /// A symbolic link: its target was.
    Link,
    /// Bytes of its contents, from an offset on.
    Bytes {
        /// Offset in the file.
        at: u64,
        /// How many.
        len: u64,
    },
    /// Blocks that it counted: of contents, pointers or attributes. Nobody knows
    /// where in the file they belong.
    Blocks {
        /// How many.
        count: u64,
    },
    /// Names of a directory. Inodes that they named are in `lost+found`.
    Names {
        /// How many.
        count: u64,
    },
    /// One name, whose inode is gone.
    Name,
    /// An extended attribute.
    Attribute {
        /// Its name.
        name: Vec<u8>,
    },
    /// Extended attributes, of which not even the names are known.
    Attributes,
    /// Owner, rights, times and flags that could not be believed.
    Rights,
    /// Blocks of data of which nobody knows whose they were: they are kept as a
    /// file, which is the path.
    Kept {
        /// How many.
        count: u64,
    },
    /// Blocks that were in use, that nothing led to, and that hold no data.
    Freed {
        /// How many.
        count: u64,
    },
}

impl Lost {
    /// A short name that stays the same between versions, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Lost::File => "file",
            Lost::Link => "link",
            Lost::Bytes { .. } => "bytes",
            Lost::Blocks { .. } => "blocks",
            Lost::Names { .. } => "names",
            Lost::Name => "name",
            Lost::Attribute { .. } => "attribute",
            Lost::Attributes => "attributes",
            Lost::Rights => "rights",
            Lost::Kept { .. } => "kept",
            Lost::Freed { .. } => "freed",
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::File => f.write_str("the file is lost"),
            Lost::Link => f.write_str("the symbolic link is lost"),
            Lost::Bytes { at, len } => {
                write!(f, "{len} bytes from offset {at} on are lost")
            }
            Lost::Blocks { count } => write!(
                f,
                "{count} of the blocks that it counted are lost: of contents, pointers or attributes"
            ),
            Lost::Names { count } => {
                write!(
                    f,
                    "{count} names are lost; what they named is in lost+found"
                )
            }
            Lost::Name => f.write_str("the name was removed: what it named is lost"),
            Lost::Attribute { name } => {
                write!(f, "the attribute {} is lost", name.escape_ascii())
            }
            Lost::Attributes => f.write_str("extended attributes may be lost"),
            Lost::Rights => f.write_str(
                "its owner, rights and times may be wrong; setuid and setgid are cleared",
            ),
            Lost::Kept { count } => {
                write!(f, "{count} blocks of data without an owner are kept there")
            }
            Lost::Freed { count } => {
                write!(
                    f,
                    "{count} blocks without an owner and without data were freed"
                )
            }
        }
    }
}

/// One loss.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Loss {
    /// The inode that it is about, if it is one.
    pub ino: Option<Ino>,
    /// Its path before the repair, where one is known; of what was kept, where
    /// it is now.
    pub path: Option<Vec<u8>>,
    /// What was lost.
    pub what: Lost,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, self.ino) {
            (Some(path), _) => write!(f, "{}: {}", path.escape_ascii(), self.what),
            (None, Some(ino)) => write!(f, "{ino} (no path is known): {}", self.what),
            (None, None) => write!(f, "{}", self.what),
        }
    }
}
