//! The sum of a group after a crash.

use crate::media::Medium;
use std::collections::BTreeMap;

use super::BitmapSet;
use crate::error::Damage;
use crate::error::Result;
use crate::journal::Lines;
use crate::journal::recovery::{Step, Touched};
use crate::media::checksum::word_sum;
use crate::types::RegionOffset;

/// Limit of step combinations that recovery tries for one group.
const MAX_WAYS: u32 = 1 << 16;

impl BitmapSet {
    /// Updates the sum of a group whose bits live records have set and cleared, for
    /// recovery. First checks the old sum. It must match the bits as they are now, or as
    /// they were before some of the last steps of each lane. If it matches none of these,
    /// the group is damaged and the sum must not be replaced: a used block could then pass
    /// for a free one.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::error::Error::Corrupt); the sum stays unchanged.
    pub fn renew_sum(
        &self,
        medium: Medium<'_>,
        group: u64,
        touched: &Touched,
        lines: &mut Lines,
    ) -> Result<()> {
        let Medium { region, geo } = medium;
        if group >= self.groups() {
            return Err(self.damaged(Damage::BitmapPointer, group, "there is no such group"));
        }
        let Some((bitmap, desc)) = self.bitmap_offset(medium, group)? else {
            return Ok(());
        };
        let mut sum = 0u64;
        for i in 0..self.per_group / 64 {
            sum = sum.wrapping_add(word_sum(geo.seed, i, medium.load_u64(bitmap.word(i))?));
        }
        let old = medium.load_u64(desc.word(1))?;
        if old == sum {
            return Ok(());
        }
        if !touched.made && !self.matches_partial_replay(medium, bitmap, sum, old, touched)? {
            return Err(self.damaged(
                Damage::BitmapSum,
                group,
                "the checksum of its bitmap does not match",
            ));
        }
        region.window().store_u64_unflushed(desc.word(1).0, sum)?;
        lines.add(desc.word(1), 8);
        Ok(())
    }

    /// Whether `old` is the sum before some of the last steps of each lane. `sum` includes
    /// all steps.
    fn matches_partial_replay(
        &self,
        medium: Medium<'_>,
        bitmap: RegionOffset,
        sum: u64,
        old: u64,
        touched: &Touched,
    ) -> Result<bool> {
        let geo = medium.geo;
        let lanes: Vec<&[Step]> = touched.lanes.values().map(Vec::as_slice).collect();
        let ways = lanes
            .iter()
            .try_fold(1u32, |n, l| n.checked_mul(l.len() as u32 + 1));
        if ways.is_none_or(|n| n > MAX_WAYS) {
            // Too many operations were in progress to tell.
            return Ok(true);
        }
        let mut now = BTreeMap::new();
        for step in lanes.iter().flat_map(|l| l.iter()) {
            now.insert(step.word, medium.load_u64(step.word)?);
        }
        let word_sum =
            |word: RegionOffset, bits| word_sum(geo.seed, word.0.wrapping_sub(bitmap.0) / 8, bits);
        // Number of steps taken in each lane, counted down from all.
        let mut taken: Vec<usize> = lanes.iter().map(|l| l.len()).collect();
        loop {
            let mut then = now.clone();
            for (steps, &n) in lanes.iter().zip(&taken) {
                for step in steps[n..].iter().rev() {
                    then.entry(step.word).and_modify(|bits| {
                        *bits = if step.set {
                            *bits & !step.mask
                        } else {
                            *bits | step.mask
                        }
                    });
                }
            }
            let differs = now.iter().zip(then.values());
            let other = differs.fold(sum, |s, ((&word, &a), &b)| {
                s.wrapping_sub(word_sum(word, a))
                    .wrapping_add(word_sum(word, b))
            });
            if other == old {
                return Ok(true);
            }
            let Some(lane) = taken.iter().position(|&n| n > 0) else {
                return Ok(false);
            };
            taken[lane] -= 1;
            for (n, steps) in taken[..lane].iter_mut().zip(&lanes) {
                *n = steps.len();
            }
        }
    }
}
