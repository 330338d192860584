//! What a scrub has found.

use zerocopy::FromZeros;

use pramfs_medium::error::{Damage, Error};
use pramfs_medium::media::scrub::ScrubMark;
use pramfs_medium::pmem::PmemError;
use pramfs_medium::types::Ino;

/// Something that a scrub has found wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubFinding {
    /// What it is, by the names of fsck. [`Damage::Unreadable`] for a part of the medium that
    /// failed.
    pub kind: Damage,
    /// The inode concerned.
    pub ino: Option<Ino>,
    /// For contents of a file: the byte in the file.
    pub offset: Option<u64>,
    /// Where it is, what is wrong, and what to do.
    pub text: String,
}

impl ScrubFinding {
    /// Makes a finding of an error; `None` for an error that is no damage. `ino` and `offset`
    /// tell the place, where the error does not.
    pub(crate) fn of(error: &Error, ino: Option<Ino>, offset: Option<u64>) -> Option<ScrubFinding> {
        let (kind, found, what) = match error {
            Error::Corrupt {
                kind,
                ino,
                object,
                what,
            } => (*kind, *ino, format!("{object}: {what}")),
            Error::Pmem(
                e @ (PmemError::Faulted { .. }
                | PmemError::OutOfBounds { .. }
                | PmemError::Misaligned { .. }),
            ) => (Damage::Unreadable, None, e.to_string()),
            Error::WrongSum { block, .. } => {
                let what = format!("the checksum of block {block} does not match");
                (Damage::DataSum, None, what)
            }
            _ => return None,
        };
        let ino = found.or(ino);
        let place = match (ino, offset) {
            (Some(ino), Some(offset)) => format!("{ino}, byte {offset}: "),
            (Some(ino), None) if found.is_none() => format!("{ino}: "),
            _ => String::new(),
        };
        let advice = match offset {
            Some(_) => "write these bytes anew, or restore the file from a backup",
            None => "unmount it and run `fsck.pramfs` on its region",
        };
        Some(ScrubFinding {
            kind,
            ino,
            offset,
            text: format!("{place}{what}; {advice}"),
        })
    }

    /// What the medium keeps of it.
    pub(crate) fn mark(&self, now: i64) -> ScrubMark {
        let mut mark = ScrubMark {
            time_sec: now.max(1),
            ino: self.ino.map_or(0, |ino| ino.0),
            place: self.offset.unwrap_or(0),
            ..ScrubMark::new_zeroed()
        };
        for (to, from) in mark.kind.iter_mut().zip(self.kind.code().bytes()) {
            *to = from;
        }
        mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_damage_fits_the_record() {
        for kind in Damage::ALL {
            let finding = ScrubFinding {
                kind: *kind,
                ino: Some(Ino(7)),
                offset: None,
                text: String::new(),
            };
            let mark = finding.mark(0);
            let name = mark.kind.split(|b| *b == 0).next();
            assert_eq!(name, Some(kind.code().as_bytes()));
            assert_eq!((mark.time_sec, mark.ino), (1, 7));
        }
    }

    #[test]
    fn errors_that_are_no_damage_are_no_findings() {
        for e in [Error::Stale(Ino(9)), Error::io("ended")] {
            assert_eq!(ScrubFinding::of(&e, None, None), None);
        }
    }
}
