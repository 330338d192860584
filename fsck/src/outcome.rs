//! The result of a repair: one verb for each finding, and a list of losses.

use std::fmt;

use pramfs_medium::types::Ino;

/// The action taken on a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Done {
    /// A checksum located one wrong byte, which was restored.
    Corrected,
    /// A valid copy replaced it.
    Copied,
    /// Rebuilt from the readable parts.
    Rebuilt,
    /// Returned to free space.
    Freed,
    /// The damaged part was emptied or dropped.
    Cleared,
    /// Left unchanged, because other parts prove it.
    Kept,
    /// Connected to `lost+found`.
    Moved,
    /// Removed with its contents.
    Removed,
    /// A value was set to the value found.
    Set,
    /// Marked as in use.
    Marked,
    /// Each owner now has a block of its own.
    Separated,
    /// Records were replayed.
    Replayed,
    /// Records were not replayed.
    Discarded,
    /// Record numbers restart.
    Renumbered,
    /// Not recoverable: reading it is EIO until it is written.
    MarkedLost,
}

impl Done {
    /// Returns the verb.
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

/// A loss, or data kept without an owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lost {
    /// The whole file: its inode was past repair, and its names were removed.
    File,
    /// A symbolic link whose target was past repair.
    Link,
    /// A range of its contents.
    Bytes {
        /// Offset in the file.
        at: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Bytes that were appended by a lease, and that the size of the file does not count.
    Appended {
        /// How many there may be, in blocks past the end of the file. They stay there until
        /// the file is truncated or extended. `None` if the file is unknown.
        most: Option<u64>,
    },
    /// Blocks in its block count: contents, pointers or attributes. Their place
    /// in the file is unknown.
    Blocks {
        /// Number of blocks.
        count: u64,
    },
    /// Names of a directory. Their inodes are in `lost+found`.
    Names {
        /// Number of names.
        count: u64,
    },
    /// One name, whose inode no longer exists.
    Name,
    /// An extended attribute.
    Attribute {
        /// Its name.
        name: Vec<u8>,
    },
    /// Extended attributes whose names are unknown.
    Attributes,
    /// Owner, permissions, times and flags that could not be verified.
    Rights,
    /// Data blocks of an unknown owner. They are kept as the file at the path.
    Kept {
        /// Number of blocks.
        count: u64,
    },
    /// Blocks that were in use, had no owner and held no data.
    Freed {
        /// Number of blocks.
        count: u64,
    },
}

impl Lost {
    /// Returns a short name for programs. It stays the same between versions.
    pub fn code(&self) -> &'static str {
        match self {
            Lost::File => "file",
            Lost::Link => "link",
            Lost::Bytes { .. } => "bytes",
            Lost::Appended { .. } => "appended",
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
                write!(f, "{len} bytes at offset {at} are lost")
            }
            Lost::Appended { most: Some(most) } => write!(
                f,
                "bytes appended by a lease may be lost; up to {most} are in blocks past its end"
            ),
            Lost::Appended { most: None } => f.write_str(
                "bytes appended by a lease may be lost; the lease table no longer tells the file",
            ),
            Lost::Blocks { count } => write!(
                f,
                "{count} of its blocks are lost: contents, pointers or attributes"
            ),
            Lost::Names { count } => {
                write!(f, "{count} names are lost; their inodes are in lost+found")
            }
            Lost::Name => f.write_str("the name was removed, because its inode is lost"),
            Lost::Attribute { name } => {
                write!(f, "the attribute {} is lost", name.escape_ascii())
            }
            Lost::Attributes => f.write_str("extended attributes may be lost"),
            Lost::Rights => f.write_str(
                "its owner, permissions and times may be wrong; setuid and setgid are cleared",
            ),
            Lost::Kept { count } => {
                write!(
                    f,
                    "{count} data blocks without an owner are kept in this file"
                )
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
    /// The inode, if the loss concerns one.
    pub ino: Option<Ino>,
    /// Its path before the repair, if known. For data that was kept: the path
    /// of the file that holds it now.
    pub path: Option<Vec<u8>>,
    /// The loss.
    pub what: Lost,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, self.ino) {
            (Some(path), _) => write!(f, "{}: {}", path.escape_ascii(), self.what),
            (None, Some(ino)) => write!(f, "{ino} (path unknown): {}", self.what),
            (None, None) => write!(f, "{}", self.what),
        }
    }
}
