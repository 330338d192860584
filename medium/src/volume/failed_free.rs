//! Free blocks whose pages have failed.
//!
//! The bitmap does not tell them from others. When a search takes such a block, the block stays
//! reserved in memory until the unmount, and the search goes on: each of them is met once. So one
//! failed page costs an error to one operation at most, the one that found it. At the next mount
//! the blocks are free again, unless the kernel names their pages as bad by then.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Volume;
use crate::alloc::BitRun;
use crate::media::bitmap::BitmapKind;
use crate::pmem::Region;
use crate::types::{BlockRun, Bno};

/// Number of the blocks that are kept.
#[derive(Debug, Default)]
pub(super) struct FailedFree(AtomicU64);

impl Volume {
    /// Whether a page under a block, or under the sum of its data, has failed.
    pub fn has_failed_page(&self, block: Bno) -> bool {
        let (geo, region) = (&self.geo, &self.region);
        let sum_failed = || {
            let place = self.blocks.sum_at(self.medium(), block);
            place.is_ok_and(|at| region.is_faulted(at.0, 8))
        };
        region.is_faulted(geo.offset(block).0, geo.block_size) || geo.data_sums && sum_failed()
    }

    /// Whether all bits that a search has taken can be used.
    #[inline(always)]
    pub(super) fn is_sound(&self, kind: BitmapKind, taken: BitRun) -> bool {
        !Region::any_faults() || kind == BitmapKind::Inodes || self.is_sound_run(taken)
    }

    #[cold]
    fn is_sound_run(&self, taken: BitRun) -> bool {
        let mut blocks = taken.start..taken.start + taken.len;
        !blocks.any(|block| self.has_failed_page(Bno(block)))
    }

    /// Keeps those blocks of a run that have failed, and frees the others.
    #[cold]
    pub(super) fn keep_failed(&self, taken: BitRun) {
        let mut kept = 0;
        let mut sound = BlockRun {
            start: Bno(taken.start),
            len: 0,
        };
        for block in (taken.start..taken.start + taken.len).map(Bno) {
            if !self.has_failed_page(block) {
                sound.len += 1;
                continue;
            }
            kept += 1;
            if sound.len > 0 {
                self.free_run(sound, false);
            }
            sound = BlockRun {
                start: block.after(1),
                len: 0,
            };
        }
        if sound.len > 0 {
            self.free_run(sound, false);
        }
        let before = self.failed_free.0.fetch_add(kept, Ordering::Relaxed);
        let all = before + kept;
        // Not one message for each: a region whose file was cut has as many as free blocks.
        if before.checked_ilog2() != all.checked_ilog2() {
            tracing::warn!(
                "{}: {all} free blocks lie on pages that have failed, the last near block {}; they are not used before the next mount",
                self.region.info().name,
                taken.start
            );
        }
    }
}
