//! The findings of a check: [`Issue`], made from the one table in `table.rs`.
//!
//! A row of the table is a variant of [`Issue`] and of [`Damage`], with its severity,
//! the phase of its repair, its sentence and its remedy. `docs/fsck.md` prints the
//! table (`document.rs`).

#[cfg(test)]
mod document;

use std::fmt;

use crate::outcome::Done;
use pramfs_medium::error::Damage;
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::types::Ino;

/// The severity of a finding.
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

impl Part {
    /// Returns the first value for the contents of an inode, the second for the rest.
    fn pick<T>(self, contents: T, rest: T) -> T {
        match self {
            Part::Contents => contents,
            Part::Entries | Part::Xattrs | Part::XattrValue => rest,
        }
    }
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

/// A name, escaped so that it is readable on one line.
struct Name<'a>(&'a [u8]);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

fn plural(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// The end of the sentence about a slot that no longer tells its file.
fn appended_to_unknown(appended: bool) -> &'static str {
    match appended {
        true => {
            "; bytes that were appended by this lease are in blocks past the end of a file, \
             which it does not name"
        }
        false => "",
    }
}

/// The end of the sentence about an append window whose end is unknown.
fn appended_past_end(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        n => format!("; up to {n} bytes in blocks past the end of the file may have been appended"),
    }
}

fn bitmap(kind: BitmapKind) -> &'static str {
    match kind {
        BitmapKind::Blocks => "block bitmap",
        BitmapKind::Inodes => "inode bitmap",
    }
}

/// An inode: its number, and a name if it is reserved or internal.
struct Who(Ino);

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ino::INODE_TABLE => f.write_str("inode table"),
            Ino::INODE_GROUPS => f.write_str("inode-group descriptors"),
            Ino::BLOCK_GROUPS => f.write_str("block-group descriptors"),
            Ino::ROOT => f.write_str("root directory (inode 2)"),
            Ino::ORPHANS => f.write_str("orphan table (inode 3)"),
            Ino::LEASES => f.write_str("lease table (inode 4)"),
            ino => write!(f, "{ino}"),
        }
    }
}

/// The phase of findings that no round repairs.
pub(crate) const NEVER: u8 = u8::MAX;

fn is_internal(ino: Ino) -> bool {
    ino >= Ino::INODE_TABLE
}

/// Returns `first` for block bitmaps. The same step for inode bitmaps is two phases
/// later, because its repair takes free blocks.
fn group_phase(kind: BitmapKind, first: u8) -> u8 {
    match kind {
        BitmapKind::Blocks => first,
        BitmapKind::Inodes => first + 2,
    }
}

/// Returns the phase of damage to an internal inode, which leads to the bitmaps or
/// to the inode table; `rest` for other inodes.
fn inode_phase(ino: Ino, rest: u8) -> u8 {
    match ino {
        Ino::BLOCK_GROUPS => 1,
        ino if is_internal(ino) => 3,
        _ => rest,
    }
}

/// Returns the phase of damage to a file map. The orphan table is one, and so is the lease
/// table, whose append windows tell sizes of files.
fn map_phase(ino: Ino, rest: u8) -> u8 {
    match ino {
        Ino::ORPHANS | Ino::LEASES => 5,
        ino => inode_phase(ino, rest),
    }
}

/// The table entry of an issue.
struct Cells {
    kind: Damage,
    severity: Severity,
    /// The phase that repairs it.
    phase: u8,
    /// Whether its repair loses no byte and no name, and guesses nothing.
    safe: bool,
    /// The action, if the repair recorded no other.
    done: Done,
    /// The damaged inode.
    inode: Option<Ino>,
    /// The first damaged block.
    block: Option<u64>,
    /// A verb phrase without a subject.
    remedy: &'static str,
}

/// A row of the document.
#[cfg(test)]
struct Row {
    kind: Damage,
    severity: Severity,
    phase: &'static str,
    safe: &'static str,
    meaning: &'static str,
    remedy: &'static str,
}

/// The words of a cell in the document.
#[cfg(test)]
macro_rules! words {
    ($cell:expr) => {
        stringify!($cell)
    };
    ($cell:expr, $words:literal) => {
        $words
    };
}

/// The words of a remedy in the document.
#[cfg(test)]
macro_rules! remedy {
    ($remedy:expr) => {
        $remedy
    };
    ($remedy:expr, $words:literal) => {
        $words
    };
}

/// Makes [`Issue`], its cells, its sentences and the rows of the document.
macro_rules! findings {
    ($(
        $(#[doc = $meaning:literal])+
        $name:ident $({ $($field:ident: $type:ty = $about:literal),+ $(,)? })?
        $severity:ident,
        phase: $phase:expr $(=> $phases:literal)?,
        safe: $safe:expr $(=> $safes:literal)?,
        done: $done:expr
        $(, inode: $inode:expr)?
        $(, block: $block:expr)?;
        says: $sentence:literal $(, $arg:expr)*;
        remedy: $remedy:expr $(=> $remedies:literal)?;
    )+) => {
        /// A kind of damage and where it is.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Issue {
            $($(#[doc = $meaning])+ $name $({ $(#[doc = $about] $field: $type,)+ })?,)+
        }

        impl Issue {
            #[allow(unused_variables)]
            pub(super) fn cells(&self) -> Cells {
                match self {
                    $(Issue::$name $({ $($field),+ })? => Cells {
                        kind: Damage::$name,
                        severity: $severity,
                        phase: $phase,
                        safe: $safe,
                        done: $done,
                        inode: None$(.or(Some($inode)))?,
                        block: None$(.or(Some($block)))?,
                        remedy: $remedy,
                    },)+
                }
            }
        }

        /// The sentence. A repair tells findings apart by it, so no two findings of one
        /// check have the same.
        impl fmt::Display for Issue {
            #[allow(unused_variables)]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Issue::$name $({ $($field),+ })? => write!(f, $sentence $(, $arg)*),)+
                }
            }
        }

        #[cfg(test)]
        pub(super) const ROWS: &[Row] = &[$(Row {
            kind: Damage::$name,
            severity: $severity,
            phase: words!($phase $(, $phases)?),
            safe: words!($safe $(, $safes)?),
            meaning: concat!($($meaning),+),
            remedy: remedy!($remedy $(, $remedies)?),
        },)+];
    };
}

mod table;

pub use table::Issue;

impl Issue {
    /// Returns how bad it is.
    pub fn severity(&self) -> Severity {
        self.cells().severity
    }

    /// Returns the kind of damage. The engine's errors use the same kinds.
    pub fn kind(&self) -> Damage {
        self.cells().kind
    }

    /// Returns a short name for programs. It stays the same between versions.
    pub fn code(&self) -> &'static str {
        self.kind().code()
    }

    /// Returns the damaged inode, if the issue concerns one.
    pub fn ino(&self) -> Option<Ino> {
        self.cells().inode
    }

    /// Returns the first damaged block, if the issue concerns one.
    pub fn block(&self) -> Option<u64> {
        self.cells().block
    }

    /// Whether its repair loses no byte and no name, and guesses nothing.
    /// `fsck.pramfs -p` repairs these.
    pub fn is_safe(&self) -> bool {
        self.cells().safe
    }

    /// Returns the action of a repair on it, as a verb phrase without a subject.
    pub fn remedy(&self) -> &'static str {
        self.cells().remedy
    }

    /// Returns the phase that repairs it, or [`NEVER`]. No repair relies on a
    /// structure that a later phase repairs.
    pub(crate) fn phase(&self) -> u8 {
        self.cells().phase
    }

    /// Returns the default action, used if the repair recorded no other.
    pub(crate) fn usually(&self) -> Done {
        self.cells().done
    }
}
