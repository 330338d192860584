//! Free bits: their count, and temporary reservation of free runs for trimming.

use crate::media::Medium;
use std::sync::atomic::Ordering;

use super::super::{BitRun, RunLen};
use super::BitmapSet;
use crate::error::Result;
use crate::sync::MutexGuard;

impl BitmapSet {
    /// Counts the free bits. The first call after a mount reads the bitmaps in use. Damaged
    /// groups count as full.
    pub fn count_free(&self, medium: Medium<'_>) -> u64 {
        (0..self.groups())
            .map(|group| {
                let cell = &self.cells[group as usize];
                match cell.free.load(Ordering::Relaxed) {
                    u32::MAX => match self.lock(medium, group) {
                        Ok(guard) => guard.as_deref().map_or(0, |g| {
                            self.note_free(group, g);
                            u64::from(g.free())
                        }),
                        Err(_) => 0,
                    },
                    n => u64::from(n),
                }
            })
            .sum()
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
