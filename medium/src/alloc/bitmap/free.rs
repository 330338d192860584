//! Free bits: their count, and temporary reservation of free runs for trimming.

use crate::media::Medium;
use crate::media::bitmap::BitmapKind;
use crate::media::sums::SUM_BLOCKS;
use std::sync::atomic::Ordering;

use super::super::{BitRun, RunLen};
use super::BitmapSet;
use crate::error::Result;
use crate::pmem::Region;
use crate::sync::MutexGuard;

impl BitmapSet {
    /// Counts the free bits. The first call after a mount reads the bitmaps in use. Damaged
    /// groups count as full.
    pub fn count_free(&self, medium: Medium<'_>) -> u64 {
        (0..self.groups())
            .filter_map(|group| Some((group, self.cells.get(group)?)))
            .map(|(group, cell)| match cell.free.load(Ordering::Relaxed) {
                u32::MAX => match self.lock(medium, group) {
                    Ok(guard) => guard.as_deref().map_or(0, |g| {
                        self.note_free(group, g);
                        u64::from(g.free())
                    }),
                    Err(_) => 0,
                },
                n => u64::from(n),
            })
            .sum::<u64>()
            .saturating_sub(self.sums_to_come(medium))
    }

    /// Blocks that will hold the sums of groups that are not made yet.
    fn sums_to_come(&self, medium: Medium<'_>) -> u64 {
        if self.kind != BitmapKind::Blocks || !medium.geo.data_sums {
            return 0;
        }
        let unmade = |group: &u64| {
            let cell = self.cells.get(*group);
            cell.is_some_and(|cell| {
                cell.bitmap_offset.load(Ordering::Relaxed) == 0
                    && !cell.damaged.load(Ordering::Relaxed)
            })
        };
        (0..self.groups()).filter(unmade).count() as u64 * SUM_BLOCKS
    }

    /// Calls `f` with each free run of a range that is long enough, in pieces of at most the
    /// larger length. In a group with a bitmap block, a piece is reserved during the call
    /// and the group is not locked, so `f` may take its time. Skips damaged groups. Returns
    /// the number of bits passed to `f`.
    ///
    /// # Errors
    /// The first error of `f`, which ends the iteration.
    pub fn each_free(
        &self,
        medium: Medium<'_>,
        range: std::ops::Range<u64>,
        lengths: RunLen,
        f: &mut dyn FnMut(BitRun) -> Result<()>,
    ) -> Result<u64> {
        let mut bits = 0;
        let mut result = Ok(());
        let run = BitRun {
            start: range.start,
            len: range.end.saturating_sub(range.start),
        };
        self.for_groups(run, |group, start, len| {
            let (mut at, end) = (start, start + len);
            // Rest of the run that contained the last piece.
            let mut rest = 0;
            while result.is_ok() {
                let _lent = self.lending.lock();
                let Ok(mut guard) = self.lock(medium, group) else {
                    return;
                };
                let Some(g) = guard.as_deref_mut() else {
                    return;
                };
                if !g.is_initialised() && Region::any_faults() {
                    // Any block may be becoming its bitmap block: the last that has not failed.
                    return;
                }
                // If a group has no bitmap block, its last block may be becoming that block at
                // this moment. This lock does not protect against that.
                let end = if g.is_initialised() {
                    end
                } else {
                    end.min(self.len_of(group) - 1)
                };
                let Some((from, n)) = g.next_free(at, end) else {
                    return;
                };
                if n < lengths.least && !(from == at && rest > 0) {
                    at = from + n;
                    continue;
                }
                let piece = n.min(lengths.most);
                (at, rest) = (from + piece, n - piece);
                let run = BitRun {
                    start: group * self.per_group + u64::from(from),
                    len: u64::from(piece),
                };
                if g.is_initialised() {
                    g.take(from, piece);
                    self.note_free(group, g);
                    drop(guard);
                    result = f(run);
                    self.free_run(medium, run);
                } else {
                    // Bits of this group cannot be reserved. The group stays locked, so that no
                    // bitmap block is made meanwhile.
                    result = f(run);
                }
                if result.is_ok() {
                    bits += u64::from(piece);
                }
            }
        });
        result.map(|()| bits)
    }

    /// Waits until [`each_free`](Self::each_free) holds no free bit, and prevents it from
    /// taking more. An allocation that finds no free bit searches again under this lock
    /// before it fails.
    pub fn trim_lock(&self) -> MutexGuard<'_, ()> {
        self.lending.lock()
    }
}
