//! Where a scrub is.
//!
//! Invariant: every position that the medium may hold is one that a scrub can go on from. What
//! was there may be gone or be something else by then.

use pramfs_medium::media::scrub::ScrubRecord;

/// The parts of a file system, in the order of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The superblock pages.
    Pages,
    /// The journal: the object is a lane.
    Journal,
    /// Descriptors and bitmaps of the block groups: the object is a group.
    BlockGroups,
    /// The same of the inode groups.
    InodeGroups,
    /// Inode table and group tables: the object is one of three.
    Tables,
    /// The object is an inode.
    Inodes,
    /// All was read.
    End,
}

impl Phase {
    const ALL: [Phase; 7] = [
        Phase::Pages,
        Phase::Journal,
        Phase::BlockGroups,
        Phase::InodeGroups,
        Phase::Tables,
        Phase::Inodes,
        Phase::End,
    ];

    /// Returns the phase that follows.
    pub(crate) fn next(self) -> Phase {
        let at = Phase::ALL.iter().position(|phase| *phase == self);
        at.and_then(|at| Phase::ALL.get(at + 1))
            .copied()
            .unwrap_or(Phase::End)
    }

    /// The number on the medium.
    pub(crate) fn code(self) -> u32 {
        let at = Phase::ALL.iter().position(|phase| *phase == self);
        at.map_or(0, |at| at as u32)
    }
}

/// The parts of an inode, in the order of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The 256 bytes.
    Inode,
    /// Its contents: the offset is a file block, or a hash in a directory.
    Contents,
    /// Its attributes: the offset is a hash.
    Xattrs,
    /// Whether it owns as many blocks as it counts.
    Counts,
}

impl Part {
    const ALL: [Part; 4] = [Part::Inode, Part::Contents, Part::Xattrs, Part::Counts];

    fn code(self) -> u32 {
        let at = Part::ALL.iter().position(|part| *part == self);
        at.map_or(0, |at| at as u32)
    }
}

/// A position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub phase: Phase,
    pub object: u64,
    pub part: Part,
    pub offset: u64,
}

impl Position {
    /// The start of everything.
    pub(crate) const START: Position = Position::of(Phase::Pages);

    /// The start of a phase.
    pub(crate) const fn of(phase: Phase) -> Position {
        Position {
            phase,
            object: 0,
            part: Part::Inode,
            offset: 0,
        }
    }

    /// The start of another object of the phase.
    pub(crate) fn object(self, object: u64) -> Position {
        Position {
            object,
            ..Position::of(self.phase)
        }
    }

    /// The start of a part of the object.
    pub(crate) fn part(self, part: Part) -> Position {
        Position {
            part,
            offset: 0,
            ..self
        }
    }

    /// Another place in the part.
    pub(crate) fn offset(self, offset: u64) -> Position {
        Position { offset, ..self }
    }

    /// The position that a record holds. A number that no version wrote starts the phase, or
    /// everything, again.
    pub(crate) fn from_record(record: &ScrubRecord) -> Position {
        let Some(&phase) = Phase::ALL.get(record.phase as usize) else {
            return Position::START;
        };
        match Part::ALL.get(record.part as usize) {
            Some(&part) => Position {
                phase,
                object: record.object,
                part,
                offset: record.offset,
            },
            None => Position::of(phase),
        }
    }

    /// Enters the position in a record.
    pub(crate) fn to_record(self, record: &mut ScrubRecord) {
        record.phase = self.phase.code();
        record.part = self.part.code();
        (record.object, record.offset) = (self.object, self.offset);
    }
}
