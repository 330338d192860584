//! Checks a lane on the medium while the file system is in use.

use super::lane::Journal;
use super::records::{read_slot, retired_words};
use crate::error::{Damage, Error, Result};
use crate::media::Medium;
use crate::media::record::SlotState;

impl Journal {
    /// Reads the line of a lane, its copy and both slots, and checks them. No record is stored meanwhile,
    /// and recovery has removed what a crash tore, so each slot is empty or holds a record.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; errors of the region.
    pub fn check_lane(&self, medium: Medium<'_>, lane: u32) -> Result<()> {
        let geo = medium.geo;
        let bad = |kind, what: String| {
            Err(Error::corrupt(
                kind,
                format!("lane {lane} of the journal"),
                what,
            ))
        };
        self.with_lane_at_rest(lane, || {
            let mut retired = u64::MAX;
            for (copy, word) in (0..).zip(retired_words(medium.region, geo, lane)?) {
                let Some(word) = word else {
                    let what = format!("copy {copy} of its `retired` word is damaged");
                    return bad(Damage::RetiredWordDamaged, what);
                };
                retired = retired.min(word);
            }
            if !self.copies.fits(medium, lane, retired)? {
                let what = "the copy of its `retired` word in the superblock page is damaged; the next mount stores it anew";
                return bad(Damage::RetiredWordDamaged, what.into());
            }
            for slot in 0..2 {
                if matches!(read_slot(medium.region, geo, lane, slot)?.0, SlotState::Bad) {
                    let what = format!("the record in slot {slot} is damaged");
                    return bad(Damage::LaneDamaged, what);
                }
            }
            Ok(())
        })
    }
}
