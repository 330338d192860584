//! Repairs superblock pages and the words of the journal from their copies.

use zerocopy::{FromZeros, IntoBytes};

use super::Repairer;
use crate::findings::{Issue, Page};
use pramfs_medium::error::Result;
use pramfs_medium::media::checksum::{seal, unseal};
use pramfs_medium::media::probe_superblock;
use pramfs_medium::media::scrub::{SCRUB_OFFSET, SCRUB_SLOTS, ScrubRecord};
use pramfs_medium::media::superblock::*;
use pramfs_medium::media::{DiskInode, SuperDynamic, SuperStatic};
use pramfs_medium::types::{Ino, RegionOffset};

impl Repairer<'_, '_> {
    fn at(&self, page: Page) -> RegionOffset {
        match page {
            Page::First => RegionOffset::START,
            Page::Copy => self.geo.copy_offset,
        }
    }

    fn other(&self, page: Page) -> RegionOffset {
        match page {
            Page::First => self.geo.copy_offset,
            Page::Copy => RegionOffset::START,
        }
    }

    pub(super) fn repair_page(&mut self, issue: &Issue) -> Result<bool> {
        match issue {
            Issue::SuperblockDamaged { page, .. } => {
                self.copy_static(self.other(*page), self.at(*page))
            }
            // Copy the page that mounts use.
            Issue::SuperblocksDiffer | Issue::LabelsDiffer | Issue::GrowInterrupted => {
                let from_copy = probe_superblock(self.view.region())?.from_copy;
                let (good, bad) = if from_copy {
                    (self.geo.copy_offset, RegionOffset::START)
                } else {
                    (RegionOffset::START, self.geo.copy_offset)
                };
                self.copy_static(good, bad)
            }
            Issue::CheckpointDamaged { page } => {
                let at = self.at(*page) + DYNAMIC_OFFSET;
                let mut d: SuperDynamic = self.view.read_pod(at)?;
                let other: SuperDynamic = self.view.read_pod(self.other(*page) + DYNAMIC_OFFSET)?;
                // If both were damaged, the replay has already stored a word.
                d.checkpoint = other.checkpoint;
                self.view.store(at, d.as_bytes())?;
                Ok(unseal(self.geo.seed, d.checkpoint).is_some())
            }
            Issue::InternalInodeDamaged { page, ino } => {
                let (from, to) = (self.other(*page), self.at(*page));
                self.copy_internal(*ino, from, to)
            }
            Issue::InternalInodesDiffer { ino } => self.repair_differing(*ino),
            Issue::RetiredWordDamaged { lane, copy } => {
                let at = self.geo.retired_offset(*lane);
                let other = 1 - copy;
                let word = self.view.load_u64(at + other * 8)?;
                // If both are damaged, the checkpoint makes all records dead.
                let lsn = unseal(self.geo.retired_seed(other), word).unwrap_or(0);
                let word = match lsn {
                    0 => 0,
                    lsn => seal(self.geo.retired_seed(*copy), lsn),
                };
                self.view.store_u64(at + copy * 8, word)?;
                Ok(true)
            }
            Issue::RecordTorn { lane, slot } => self.empty_slot(*lane, *slot),
            Issue::LaneDamaged { lane } => {
                Ok(self.empty_slot(*lane, 0)? && self.empty_slot(*lane, 1)?)
            }
            Issue::StateUnknown { .. } | Issue::NotUnmounted => {
                self.dynamic(|d| d.state = STATE_CLEAN)
            }
            Issue::ErrorsRecorded { .. } => self.dynamic(|d| {
                d.first_error = ErrorMark::new_zeroed();
                d.last_error = ErrorMark::new_zeroed();
            }),
            Issue::ScrubFindings { .. } | Issue::ScrubRecordDamaged => {
                let slots = [0; SCRUB_SLOTS as usize * ScrubRecord::SIZE];
                for page in self.geo.pages() {
                    self.view.store(page + SCRUB_OFFSET, &slots)?;
                }
                Ok(true)
            }
            Issue::DynamicWordsDiffer => {
                let [a, b] = self.dynamics()?;
                let sane = |d: &SuperDynamic| matches!(d.state, STATE_CLEAN | STATE_ACTIVE);
                // If both states are valid, mounts use the first page.
                let (good, to) = if sane(&a) || !sane(&b) {
                    (a, self.geo.copy_offset)
                } else {
                    (b, RegionOffset::START)
                };
                self.view.store(to + DYNAMIC_OFFSET, good.as_bytes())?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn copy_static(&mut self, from: RegionOffset, to: RegionOffset) -> Result<bool> {
        let fixed: SuperStatic = self.view.read_pod(from)?;
        self.view.store(to, fixed.as_bytes())?;
        Ok(true)
    }

    fn copy_internal(&mut self, ino: Ino, from: RegionOffset, to: RegionOffset) -> Result<bool> {
        let at = Self::internal_at(ino);
        let d: DiskInode = self.view.read_pod(from + at)?;
        if !self.internal_fits(ino, &d) {
            return Ok(false);
        }
        self.view.store(to + at, d.as_bytes())?;
        Ok(true)
    }

    /// Repairs internal inodes that differ. One record changes both, so the one
    /// with more changes is right. If they are equal, it is the first, which
    /// mounts use.
    fn repair_differing(&mut self, ino: Ino) -> Result<bool> {
        let at = Self::internal_at(ino);
        let [first, copy] = self.geo.pages();
        let a: DiskInode = self.view.read_pod(first + at)?;
        let b: DiskInode = self.view.read_pod(copy + at)?;
        if b.change > a.change {
            self.copy_internal(ino, copy, first)
        } else {
            self.copy_internal(ino, first, copy)
        }
    }

    fn empty_slot(&mut self, lane: u32, slot: u32) -> Result<bool> {
        self.view
            .store(self.geo.slot_offset(lane, slot), &[0; 64])?;
        Ok(true)
    }

    /// Empties the journal and sets the checkpoint.
    pub(super) fn empty_journal(&mut self, checkpoint: u64) -> Result<bool> {
        for lane in 0..self.geo.lanes {
            self.view.store(self.geo.retired_offset(lane), &[0; 16])?;
            for slot in 0..2 {
                self.empty_slot(lane, slot)?;
            }
        }
        let word = seal(self.geo.seed, checkpoint);
        self.dynamic(|d| d.checkpoint = word)
    }

    fn dynamics(&self) -> Result<[SuperDynamic; 2]> {
        let at = |page: RegionOffset| self.view.read_pod(page + DYNAMIC_OFFSET);
        let [first, copy] = self.geo.pages();
        Ok([at(first)?, at(copy)?])
    }

    fn dynamic(&mut self, f: impl Fn(&mut SuperDynamic)) -> Result<bool> {
        for page in self.geo.pages() {
            let mut d: SuperDynamic = self.view.read_pod(page + DYNAMIC_OFFSET)?;
            f(&mut d);
            self.view.store(page + DYNAMIC_OFFSET, d.as_bytes())?;
        }
        Ok(true)
    }
}
