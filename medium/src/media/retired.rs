//! Copies of the lanes' `retired` words, in the copy of the superblock page.
//!
//! The words of all lanes share few pages with each other and with nothing else, so one failed
//! page of the journal would hide which records are dead. A copy names the checkpoint of its
//! mount, and is valid with that checkpoint alone: a version that does not know the copies, and
//! so leaves them behind, leaves them invalid.

use super::checksum::mix64;
use super::geometry::Geometry;
use crate::types::RegionOffset;

/// Offset of the copy of lane 0 in the copy of the superblock page.
pub const RETIRED_COPIES_OFFSET: u64 = 0x900;
/// Number of copies: those of the first lanes.
pub const RETIRED_COPIES: u32 = 112;

layout! {
    /// The copy of a lane's `retired` word.
    pub struct RetiredCopy: 16 {
        0x00 retired: u64 = "LSN up to which the records of the lane are dead",
        0x08 check: u64 = "`mix64(retired + mix64(checkpoint + mix64(S + lane)))`",
    }
}

impl RetiredCopy {
    /// Returns the copy for a lane of a mount with this checkpoint.
    pub fn new(geo: &Geometry, lane: u32, checkpoint: u64, retired: u64) -> RetiredCopy {
        let place = mix64(geo.seed.wrapping_add(u64::from(lane)));
        let mount = mix64(checkpoint.wrapping_add(place));
        RetiredCopy {
            retired,
            check: mix64(retired.wrapping_add(mount)),
        }
    }

    /// Returns where the copy of a lane is. Lanes from [`RETIRED_COPIES`] on have none.
    pub fn place(geo: &Geometry, lane: u32) -> Option<RegionOffset> {
        let at = RETIRED_COPIES_OFFSET + u64::from(lane) * RetiredCopy::SIZE as u64;
        (lane < RETIRED_COPIES).then(|| geo.copy_offset + at)
    }

    /// Returns the LSN, if this is the copy for a lane of a mount with this checkpoint.
    pub fn lsn(&self, geo: &Geometry, lane: u32, checkpoint: u64) -> Option<u64> {
        let right = RetiredCopy::new(geo, lane, checkpoint, self.retired);
        (*self == right).then_some(self.retired)
    }
}
