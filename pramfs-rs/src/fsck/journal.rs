//! The journal of an unmounted file system: nothing in it is alive.

use super::{Checker, Issue};
use crate::error::Result;
use crate::journal::records::{read_slot, retired_words};
use crate::media::checksum::SEALED_BITS;
use crate::media::record::SlotState;

/// From here on the record numbers (LSNs) of a journal count as used up, and a
/// repair begins anew: half of all that there are, which at a million changes a second takes seventy years. What is above them is a
/// damaged word whose check fits by chance, or forged.
pub const LSNS_USED_UP: u64 = 1 << (SEALED_BITS - 1);

impl Checker<'_> {
    /// Looks at the dynamic words and every slot; true where records are alive.
    pub(super) fn check_journal(&mut self) -> Result<bool> {
        let checkpoint = self.check_dynamic()?;
        let mut live = 0;
        let mut newest = checkpoint;
        for lane in 0..self.geo.lanes {
            let words = retired_words(self.region, &self.geo, lane)?;
            for (copy, word) in (0..).zip(words) {
                if word.is_none() {
                    self.add(Issue::RetiredWordDamaged { lane, copy });
                }
            }
            let retired = words.into_iter().flatten().min().unwrap_or(0);
            newest = words.into_iter().flatten().fold(newest, u64::max);
            let mut bad = Vec::new();
            for slot in 0..2 {
                match read_slot(self.region, &self.geo, lane, slot)?.0 {
                    SlotState::Empty => {}
                    SlotState::Bad => bad.push(slot),
                    SlotState::Valid(lsn) => {
                        newest = newest.max(lsn.0);
                        live += u64::from(lsn.0 > retired && lsn.0 > checkpoint);
                    }
                }
            }
            match bad[..] {
                [] => {}
                [slot] => self.add(Issue::RecordTorn { lane, slot }),
                _ => self.add(Issue::LaneDamaged { lane }),
            }
        }
        if newest >= LSNS_USED_UP {
            self.add(Issue::LsnsUsedUp { newest });
        }
        if live > 0 {
            self.add(Issue::LiveRecords { records: live });
        }
        Ok(live > 0)
    }
}
