//! Copies of the lanes' `retired` words, in the copy of the superblock page.
//!
//! The words of all lanes share few pages with each other and with nothing else, so one failed
//! page of the journal would hide which records are dead.
//!
//! A copy belongs to one [`Session`]. A version that does not know the copies begins sessions of
//! its own, and so makes the copies of earlier ones invalid. A copy that could not be stored would
//! stay behind with an LSN that is too low: then a mark in the first page makes all copies of the
//! session void.

use super::checksum::mix64;
use super::geometry::Geometry;
use crate::types::RegionOffset;

/// Offset of the copy of lane 0 in the copy of the superblock page, and of the mark in the first
/// page.
pub const RETIRED_COPIES_OFFSET: u64 = 0x900;
/// Number of copies: those of the first lanes.
pub const RETIRED_COPIES: u32 = 112;

layout! {
    /// The copy of a lane's `retired` word.
    pub struct RetiredCopy: 16 {
        0x00 retired: u64 = "LSN up to which the records of the lane are dead",
        0x08 check: u64 = "`mix64(retired + mix64(session + lane))`",
    }
}

/// The time from a read-write mount, or remount, to the next, with its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// The checkpoint that it began with.
    pub checkpoint: u64,
    /// The word `mounts`, which each version raises.
    pub mounts: u64,
}

impl Session {
    fn sum(self, geo: &Geometry) -> u64 {
        let mounts = mix64(geo.seed.wrapping_add(self.mounts));
        mix64(self.checkpoint.wrapping_add(mounts))
    }

    /// Returns where the mark is, and the word that makes all copies of this session void.
    pub fn void_mark(self, geo: &Geometry) -> (RegionOffset, u64) {
        let [first, _] = geo.pages();
        (first + RETIRED_COPIES_OFFSET, self.sum(geo))
    }
}

impl RetiredCopy {
    /// Returns the copy for a lane.
    pub fn new(geo: &Geometry, lane: u32, session: Session, retired: u64) -> RetiredCopy {
        let place = mix64(session.sum(geo).wrapping_add(u64::from(lane)));
        RetiredCopy {
            retired,
            check: mix64(retired.wrapping_add(place)),
        }
    }

    /// Returns where the copy of a lane is. Lanes from [`RETIRED_COPIES`] on have none.
    pub fn place(geo: &Geometry, lane: u32) -> Option<RegionOffset> {
        let at = RETIRED_COPIES_OFFSET + u64::from(lane) * RetiredCopy::SIZE as u64;
        (lane < RETIRED_COPIES).then(|| geo.copy_offset + at)
    }

    /// Returns the LSN, if this is the copy for a lane in this session.
    pub fn lsn(&self, geo: &Geometry, lane: u32, session: Session) -> Option<u64> {
        let right = RetiredCopy::new(geo, lane, session, self.retired);
        (*self == right).then_some(self.retired)
    }
}
