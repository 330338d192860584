//! The state of a scrub, and what a step of it returns.

use crate::fs::Engine;
use crate::fs::scrub::finding::ScrubFinding;
use crate::fs::scrub::position::Position;
use crate::fs::scrub::verify::VerifyData;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::htree;
use pramfs_medium::map;
use pramfs_medium::types::Ino;

/// What was counted of the inode that the scrub is in.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    /// The version of the inode that all of the count belongs to; `None`: it changed
    /// meanwhile, something is damaged, or the scrub began within it.
    pub version: Option<Version>,
    /// Blocks.
    pub blocks: u64,
    /// Entries of a directory.
    pub items: u64,
    pub tables: map::Tables,
    pub path: htree::Path,
}

/// An inode, its generation and its change counter.
pub(super) type Version = (Ino, u64, u64);

impl Counted {
    /// Begins to count an inode.
    pub(super) fn begin(&mut self, version: Version) {
        *self = Counted {
            version: Some(version),
            ..Counted::default()
        };
    }

    /// Gives the count up if the inode is not the one that was counted so far.
    pub(super) fn go_on(&mut self, version: Version) {
        self.version = self.version.filter(|counted| *counted == version);
    }
}

/// What a step has done.
#[derive(Debug)]
pub(super) struct Unit {
    /// Where the scrub goes on.
    pub next: Position,
    /// Bytes read.
    pub bytes: u64,
    pub found: Vec<ScrubFinding>,
}

impl Unit {
    /// A step without findings.
    pub(super) fn done(next: Position, bytes: u64) -> Unit {
        Unit {
            next,
            bytes,
            found: Vec::new(),
        }
    }

    /// Adds an error, if it is damage; another one ends the scrub.
    pub(super) fn add(&mut self, e: Error, ino: Option<Ino>, offset: Option<u64>) -> Result<()> {
        match ScrubFinding::of(&e, ino, offset) {
            Some(finding) => {
                self.found.push(finding);
                Ok(())
            }
            None => Err(e),
        }
    }
}

/// How closely a step looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Data are read without the lock of their file.
    First,
    /// Under all locks that a change would take.
    Again,
}

/// A scrub under way.
pub(crate) struct Scrubber<'e> {
    pub(super) engine: &'e Engine,
    /// What checks the contents of data.
    pub(super) verify: &'e dyn VerifyData,
    /// Where it is.
    pub(crate) at: Position,
    pub(super) counted: Counted,
    /// The bits of the inode group that the scrub is in, as read when it came there.
    pub(super) bits: Option<(u64, Vec<u64>)>,
    pub(super) buffer: Vec<u8>,
}

impl<'e> Scrubber<'e> {
    /// A scrub that goes on from a position.
    pub(crate) fn new(engine: &'e Engine, verify: &'e dyn VerifyData, at: Position) -> Self {
        Scrubber {
            engine,
            verify,
            at,
            counted: Counted::default(),
            bits: None,
            buffer: Vec::new(),
        }
    }

    /// The start of the next phase.
    pub(super) fn next_phase(&self) -> Position {
        Position::of(self.at.phase.next())
    }
}
