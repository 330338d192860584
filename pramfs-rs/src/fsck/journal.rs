//! The journal of an unmounted file system: nothing in it is alive.

use super::{Checker, Issue};
use crate::error::Result;
use crate::media::checksum::unseal;
use crate::media::record::SlotState;

impl Checker<'_> {
    /// Looks at the dynamic words and every slot; true where records are alive.
    pub(super) fn check_journal(&mut self) -> Result<bool> {
        let checkpoint = self.check_dynamic()?;
        let mut live = 0;
        for lane in 0..self.geo.lanes {
            let mut retired = u64::MAX;
            for copy in 0..2 {
                let at = self.geo.retired_offset(lane) + copy * 8;
                let word = self.region.load_u64(at)?;
                match unseal(self.geo.retired_seed(copy), word) {
                    Some(lsn) => retired = retired.min(lsn),
                    None if word == 0 => retired = 0,
                    None => self.add(Issue::RetiredWordDamaged { lane, copy }),
                }
            }
            if retired == u64::MAX {
                retired = 0;
            }
            let mut bad = Vec::new();
            for slot in 0..2 {
                match self.region.slot(&self.geo, lane, slot)?.0 {
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
