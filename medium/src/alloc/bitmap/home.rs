//! The bits on the medium: the words of a run, and how a committed record changes them.
//!
//! Invariant: a word and the sum of its group are stored together. The caller that collects
//! the lines flushes them.

use crate::media::Medium;
use std::sync::atomic::Ordering;

use super::super::BitRun;
use super::super::group::{Group, for_words};
use super::{BitmapSet, Bits};
use crate::error::Damage;
use crate::error::Result;
use crate::journal::Lines;
use crate::media::bitmap::GroupDesc;
use crate::media::checksum::word_sum;
use crate::media::sums::SUM_BLOCKS;
use crate::types::{Bno, RegionOffset};

impl BitmapSet {
    /// Checks that the homes of a change of bits can be stored to, see `Region::check`.
    ///
    /// # Errors
    /// Errors of the region, or damage of the group.
    pub fn check_homes(&self, medium: Medium<'_>, b: &Bits) -> Result<()> {
        let region = medium.region;
        region.check(b.word.0, 8)?;
        let desc = self.lock(medium, b.group)?.as_ref().map(|g| g.desc_offset);
        Ok(desc.map_or(Ok(()), |at| region.check(at.0, GroupDesc::SIZE as u64))?)
    }

    /// Calls `f` with the region offset, mask and group of each word that a run touches.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::error::Error::Corrupt) if the run or its group is impossible.
    #[inline]
    pub fn words_of(
        &self,
        medium: Medium<'_>,
        run: BitRun,
        mut f: impl FnMut(RegionOffset, u64, u64),
    ) -> Result<()> {
        if run
            .start
            .checked_add(run.len)
            .is_none_or(|e| e > self.bits())
        {
            return Err(self.damaged(
                Damage::BitsPastEnd,
                run.start / self.per_group,
                "a run leaves the bitmap",
            ));
        }
        let mut result = Ok(());
        self.for_groups(run, |group, start, len| {
            let known = self.cells.get(group);
            let known = known.map_or(0, |c| c.bitmap_offset.load(Ordering::Relaxed));
            let found = match known {
                0 => self
                    .lock(medium, group)
                    .map(|g| g.as_deref().map_or(0, |g| g.bitmap_offset.0)),
                known => Ok(known),
            };
            match found {
                Ok(0) => {
                    result = Err(self.damaged(
                        Damage::BitmapPointer,
                        group,
                        "bits in use in a group without a bitmap block",
                    ))
                }
                Ok(bitmap) => for_words(start, len, |word, mask| {
                    f(RegionOffset(bitmap).word(word as u64), mask, group)
                }),
                Err(e) => result = Err(e),
            }
        });
        result
    }

    /// Applies a mask to its home and updates the sum of the group. The caller has
    /// committed a record that names the same word.
    ///
    /// # Errors
    /// Only if the group itself can no longer be read.
    pub fn apply_bits(&self, medium: Medium<'_>, bits: &Bits, lines: &mut Lines) -> Result<()> {
        let Medium { region, geo } = medium;
        let &Bits {
            group,
            word,
            mask,
            set,
            ..
        } = bits;
        let guard = self.lock(medium, group)?;
        let Some(g) = guard.as_deref() else {
            return Ok(());
        };
        let index = (word - g.bitmap_offset) / 8;
        let old = medium.load_u64(word)?;
        let new = if set { old | mask } else { old & !mask };
        let sum_at = g.desc_offset.word(1);
        let sum = medium
            .load_u64(sum_at)?
            .wrapping_sub(word_sum(geo.seed, index, old))
            .wrapping_add(word_sum(geo.seed, index, new));
        let w = region.window();
        w.store_u64_unflushed(word.0, new)?;
        w.store_u64_unflushed(sum_at.0, sum)?;
        lines.add(word, 8);
        lines.add(sum_at, 8);
        Ok(())
    }

    /// Returns where the word of a block's sum is ([`sums`](crate::media::sums)). That of the
    /// next block of its group follows.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::error::Error::Corrupt) if its group is damaged or not in use.
    #[inline]
    pub fn sum_at(&self, medium: Medium<'_>, block: Bno) -> Result<RegionOffset> {
        let group = block.0 >> self.group_log2;
        let known = self.cells.get(group);
        let bitmap = match known.map_or(0, |c| c.bitmap_offset.load(Ordering::Relaxed)) {
            0 => self.find_bitmap(medium, group)?,
            known => known,
        };
        let first = medium.geo.bytes(SUM_BLOCKS);
        Ok(RegionOffset(bitmap.saturating_sub(first)).word(block.0 & (self.per_group - 1)))
    }

    /// Returns the end of the blocks of a block's group.
    #[inline]
    pub fn group_end(&self, block: Bno) -> Bno {
        Bno((block.0 | (self.per_group - 1)) + 1)
    }

    #[cold]
    fn find_bitmap(&self, medium: Medium<'_>, group: u64) -> Result<u64> {
        // A damaged bitmap leaves the sums where they are.
        match self.bitmap_offset(medium, group)? {
            Some((bitmap, _)) => Ok(bitmap.0),
            None => Err(self.damaged(
                Damage::BitmapPointer,
                group,
                "file data in a group without a bitmap block",
            )),
        }
    }

    /// Notes that a group now has a bitmap block, and that the bits `used` of it are set (in a
    /// block group, those of the bitmap block itself and of the sums).
    pub fn group_made(
        &self,
        medium: Medium<'_>,
        group: u64,
        bitmap_offset: RegionOffset,
        used: std::ops::Range<u32>,
    ) -> Result<()> {
        let mut guard = self.lock(medium, group)?;
        if let Some(g) = guard.as_deref_mut()
            && !g.is_initialised()
        {
            g.initialise((self.per_group / 64) as usize, bitmap_offset);
            if let Some(cell) = self.cells.get(group) {
                let known = &cell.bitmap_offset;
                known.store(bitmap_offset.0, Ordering::Relaxed);
            }
            g.take(used.start, used.end - used.start);
            self.note_free(group, g);
        }
        Ok(())
    }

    /// Whether a group has its bitmap block.
    pub fn is_made(&self, medium: Medium<'_>, group: u64) -> Result<bool> {
        Ok(self
            .lock(medium, group)?
            .as_deref()
            .is_some_and(Group::is_initialised))
    }

    /// Whether a committed record has set the bit on the medium.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::error::Error::Corrupt) if its group is damaged.
    pub fn is_set_at_home(&self, medium: Medium<'_>, bit: u64) -> Result<bool> {
        if bit >= self.bits() {
            return Ok(false);
        }
        let guard = self.lock(medium, bit / self.per_group)?;
        let Some(g) = guard.as_deref().filter(|g| g.is_initialised()) else {
            return Ok(false);
        };
        let word = medium.load_u64(g.bitmap_offset.word(bit % self.per_group / 64))?;
        Ok(word >> (bit % 64) & 1 != 0)
    }
}
