//! What a crash may leave of an operation, and how an image is looked at for it.

use std::ops::Range;

use pramfs::{
    Fallocate, FileType,
    inode::{Credentials, Fs, Ino, SetAttr, Time},
};
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE};

use super::workload::Action;
use crate::model::Call;
use crate::snapshot::{Cut, Lag, Snapshot, Source, Tolerance, Trait, Trouble};

/// Files are looked at up to here for what is allocated past their end.
const STRETCH: u64 = 64 << 10;

/// Reads a mounted file system, but for what is free, which the check compares
/// with what is used.
///
/// # Errors
/// Those of the reading, and contradictions within what is read.
pub fn look(fs: &Fs) -> Result<Snapshot, Trouble> {
    Ok(Snapshot::of(fs)?.without(&[Trait::Free]))
}

/// Looks at what is allocated past the end of files, which takes making them
/// longer. Files that cannot be, in a full region, stay as they are.
///
/// # Errors
/// As for [`look`].
pub fn stretch(state: &mut Snapshot, fs: &Fs) -> Result<(), Trouble> {
    for n in state.nodes.values_mut() {
        // What forbids to change it, or to remove it later, goes first.
        let forbids = n.flags & (FL_IMMUTABLE | FL_APPEND);
        if forbids != 0 {
            let set = SetAttr {
                flags: Some(n.flags ^ forbids),
                ..SetAttr::default()
            };
            fs.setattr(&Credentials::ROOT, n.id.0, &set)?;
        }
        if n.kind == FileType::Regular && n.size < STRETCH {
            let set = SetAttr {
                size: Some(STRETCH),
                ..SetAttr::default()
            };
            match fs.setattr(&Credentials::ROOT, n.id.0, &set) {
                Err(pramfs::Error::NoSpace(_)) => {}
                other => drop(other?),
            }
            let size = fs.getattr(n.id.0)?.size;
            n.allocated = fs.allocated(&n.id.0, size)?;
        }
    }
    Ok(())
}

/// A state that a crash may leave.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The state.
    pub state: Snapshot,
    /// Times that may lag.
    pub lag: Lag,
}

impl Expected {
    /// Whether a state is this one.
    pub fn is(&self, found: &Snapshot) -> bool {
        self.state.allows(found, &Tolerance::Lag(&self.lag))
    }

    /// The same with inodes numbered by their first path: for runs whose
    /// threads took numbers in no order.
    #[must_use]
    pub fn anonymous(self) -> Expected {
        Expected {
            state: self.state.without(&[Trait::Ids]),
            lag: Lag::new(),
        }
    }

    /// What differs, in words.
    pub fn differences(&self, found: &Snapshot) -> String {
        self.state.differences(found)
    }
}

/// What the documents promise of an operation that a crash has cut short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Promise {
    /// The state before it or after it.
    Atomic,
    /// A part of a change of bytes: see [`Cut`].
    Data {
        /// The file.
        ino: Ino,
        /// Bytes that the call names.
        range: Range<u64>,
    },
}

impl Promise {
    /// The state that an operation would have led to if there had been space,
    /// as far as [`allows`](Self::allows) asks: a crash in it may leave a part of
    /// that, though without a crash nothing of it stays.
    pub fn aim(&self, before: &Expected, action: &Action, now: Time) -> Expected {
        let mut aim = before.clone();
        let Promise::Data { ino, range } = self else {
            return aim;
        };
        for n in aim.state.nodes.values_mut() {
            if n.id.0 != *ino {
                continue;
            }
            let grows = match action.as_call() {
                Some(Call::Write { bytes, .. }) => {
                    n.data.write(range.start, &bytes);
                    true
                }
                Some(Call::Fallocate { what, .. }) => !matches!(
                    what,
                    Fallocate::PunchHole
                        | Fallocate::Allocate { keep_size: true }
                        | Fallocate::ZeroRange { keep_size: true }
                ),
                _ => false,
            };
            if grows {
                n.size = n.size.max(range.end);
            }
            n.blocks = u64::MAX;
            n.times = (now, now);
        }
        aim
    }

    /// Whether it allows a state between two others.
    pub fn allows(&self, before: &Expected, found: &Snapshot, after: &Expected) -> bool {
        let Promise::Data { ino, range } = self else {
            return false;
        };
        let cut = Cut {
            after: &after.state,
            ino: *ino,
            range: range.clone(),
            lag: [&before.lag, &after.lag],
        };
        before.state.allows(found, &Tolerance::Cut(&cut))
    }
}
