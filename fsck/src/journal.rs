//! Checks the journal: in an unmounted file system no record is live.

use super::{Checker, Issue};
use pramfs_medium::error::Result;
use pramfs_medium::journal::records::{read_slot, retired_words};
use pramfs_medium::journal::retired_copy;
use pramfs_medium::media::checksum::SEALED_BITS;
use pramfs_medium::media::record::SlotState;

/// From this record number (LSN) on, the numbers of a journal count as used up,
/// and a repair restarts them. It is half of all numbers, which takes seventy
/// years at a million changes a second. A larger number comes from a damaged word
/// whose check matches by chance, or from a forged one.
pub const LSNS_USED_UP: u64 = 1 << (SEALED_BITS - 1);

impl Checker<'_> {
    /// Checks the dynamic words and every slot. Returns whether any record is live.
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
            let retired = words.into_iter().flatten().min();
            let retired = retired
                .or_else(|| retired_copy(self.region, &self.geo, lane, checkpoint))
                .unwrap_or(0);
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
