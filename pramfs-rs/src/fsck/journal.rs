//! The journal of an unmounted file system: nothing in it is alive.

use super::{Checker, Issue};
use crate::error::Result;
use crate::journal::records::{read_slot, retired_words};
use crate::media::record::SlotState;

impl Checker<'_> {
    /// Looks at the dynamic words and every slot; true where records are alive.
    pub(super) fn check_journal(&mut self) -> Result<bool> {
        let checkpoint = self.check_dynamic()?;
        let mut live = 0;
        for lane in 0..self.geo.lanes {
            let words = retired_words(self.region, &self.geo, lane)?;
            for (copy, word) in (0..).zip(words) {
                if word.is_none() {
                    self.add(Issue::RetiredWordDamaged { lane, copy });
                }
            }
            let retired = words.into_iter().flatten().min().unwrap_or(0);
            let mut bad = Vec::new();
            for slot in 0..2 {
                match read_slot(self.region, &self.geo, lane, slot)?.0 {
                    SlotState::Empty => {}
                    SlotState::Bad => bad.push(slot),
                    SlotState::Valid(lsn) => {
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
        if live > 0 {
            self.add(Issue::LiveRecords { records: live });
        }
        Ok(live > 0)
    }
}
