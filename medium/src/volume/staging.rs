//! Staging blocks: where bytes wait that a record copies to their places.
//!
//! The bytes are stored to blocks that are free on the medium, and stay free there: after a
//! crash nobody has to free them. In memory the blocks are taken until the record is dead.
//! So no other owner stores to them while a replay could still copy from them.
//!
//! A record that is too large for a slot continues in such blocks as well.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;
use zerocopy::IntoBytes;

use super::Plan;
use super::record::Record;
use crate::alloc::Freed;
use crate::error::{Error, Result};
use crate::journal::{RecordBuf, records};
use crate::media::bitmap::BitmapKind;
use crate::media::checksum::crc;
use crate::media::record::{DataCopy, EntryKind};
use crate::pmem::{LINE, Region, Unfenced};
use crate::types::{BlockRun, Bno, RegionOffset};

/// Bytes of a record for entries that follow [`Plan::end_staging`]: pointers of a last run of
/// blocks, and an inode.
const LATER_ENTRIES: usize = 768;

/// For each lane, where it looks for staging blocks. A lane takes the same few blocks again and
/// again: they stay in the caches, and the host gives no room for more of them.
#[derive(Debug)]
pub(super) struct Staging(Box<[CachePadded<AtomicU64>]>);

impl Staging {
    pub(super) fn new(lanes: u32) -> Staging {
        let unknown = || CachePadded::new(AtomicU64::new(u64::MAX));
        Staging((0..lanes).map(|_| unknown()).collect())
    }

    fn goal(&self, lane: u32) -> Option<u64> {
        let at = self.0.get(lane as usize)?.load(Ordering::Relaxed);
        (at != u64::MAX).then_some(at)
    }

    fn note(&self, lane: u32, at: u64) {
        if let Some(goal) = self.0.get(lane as usize) {
            goal.store(at, Ordering::Relaxed);
        }
    }
}

/// Blocks between the goal of a lane and the blocks that it was given, from which on the goal
/// moves.
const FAR: u64 = 1024;

/// The part of staging blocks that a transaction has not used yet.
#[derive(Debug)]
pub(super) struct Unused {
    at: RegionOffset,
    len: u64,
}

impl Default for Unused {
    fn default() -> Self {
        let at = RegionOffset::START;
        Unused { at, len: 0 }
    }
}

/// Stores the staged bytes once more, in their places. The caller still has them, which is
/// faster than a copy on the medium.
pub type Restore<'a> = &'a dyn Fn(&Region) -> Result<Unfenced>;

impl Plan<'_> {
    /// Lets the record become larger than a slot. [`end_staging`](Self::end_staging) follows.
    pub fn allow_large(&mut self) {
        self.record().is_large = true;
        self.record().rec.set_limit(usize::MAX);
    }

    /// As [`end_staging`](Self::end_staging), if the record was allowed to become large.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn end_staging_if_large(&mut self) -> Result<()> {
        match self.record().is_large {
            true => self.end_staging(),
            false => Ok(()),
        }
    }

    /// Takes up to `want` consecutive blocks that the record does not set in the bitmap.
    fn alloc_staging(&mut self, want: u64) -> Result<BlockRun> {
        let (vol, lane) = (self.volume(), self.lane());
        let want = want.clamp(1, vol.geo.bits_per_group() / 2) as u32;
        if vol.reserve.missing() > 0 {
            self.keep_reserve()?;
        }
        let goal = vol.staging.goal(lane);
        let find = |full: bool| {
            vol.reserve_bits(BitmapKind::Blocks, full, |set, roomy| {
                set.reserve(vol.medium(), lane, goal, want, full, roomy)
            })
        };
        let whole = match self.record().scattered {
            true => None,
            false => find(true)?,
        };
        let found = match whole {
            Some(found) => found,
            // Several shorter runs serve as well.
            None => find(false)?.ok_or(Error::NoSpace(
                "no free block for the new bytes of an atomic write",
            ))?,
        };
        self.record().scattered |= u64::from(want) > found.run.len;
        let run = BlockRun {
            start: Bno(found.run.start),
            len: found.run.len,
        };
        if goal.is_none_or(|goal| !(goal..goal.saturating_add(FAR)).contains(&run.start.0)) {
            vol.staging.note(lane, run.start.0);
        }
        // No bitmap tells them. They are free again when the record is dead, or if the
        // transaction is dropped.
        self.record().taken.push(Freed::Staging(run));
        self.record().freed.push(Freed::Staging(run));
        Ok(run)
    }

    /// Returns a place where bytes for `to` can wait, and how many of `len`.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn stage(&mut self, to: RegionOffset, len: u64) -> Result<(RegionOffset, u64)> {
        let geo = &self.volume().geo;
        // At the same offset within a line, so that a copy moves whole lines.
        let skip = |at: RegionOffset| (to.0.wrapping_sub(at.0)) % LINE;
        let mut unused = std::mem::take(&mut self.record().unused);
        if unused.len <= skip(unused.at) {
            let run = self.alloc_staging(geo.blocks_for(len + to.0 % LINE))?;
            unused = Unused {
                at: geo.offset(run.start),
                len: geo.bytes(run.len),
            };
        }
        let skip = skip(unused.at);
        let (at, n) = (unused.at + skip, len.min(unused.len - skip));
        self.record().unused = Unused {
            at: at + n,
            len: unused.len - skip - n,
        };
        Ok((at, n))
    }

    /// Ends the staging: takes the blocks in which a record continues that does not fit a slot.
    /// Few more entries may follow.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn end_staging(&mut self) -> Result<()> {
        let geo = &self.volume().geo;
        let slot = geo.slot_size as usize;
        self.record().is_large = false;
        let size = self.record().rec.size();
        if size + LATER_ENTRIES <= slot {
            self.record().rec.set_limit(slot);
            return Ok(());
        }
        let mut left = (size + LATER_ENTRIES) as u64;
        while left > 0 {
            let run = self.alloc_staging(geo.blocks_for(left))?;
            left = left.saturating_sub(geo.bytes(run.len));
            self.record().more.push(run);
        }
        self.record().rec.set_limit(size + LATER_ENTRIES);
        Ok(())
    }
}

impl Record<'_> {
    /// Changes bytes of a file, or zeroes them. The source is [staged](Plan::stage).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn put_copy(&mut self, copy: DataCopy) -> Result<()> {
        self.volume().check_range(copy.to, copy.len)?;
        // A page that has failed must be found now: nothing has read a block that is replaced
        // as a whole, and a copy that fails after the commit would fail the whole volume.
        self.volume().region.touch(copy.to.0, copy.len)?;
        let (place, payload) = copy.entry();
        self.push(EntryKind::Copy, place, payload.as_bytes())?;
        self.copies += 1;
        Ok(())
    }

    /// Whether the record copies data.
    pub fn has_copies(&self) -> bool {
        self.copies > 0
    }

    /// Whether the record copies data, with its sums, and changes nothing else.
    pub fn has_only_copies(&self) -> bool {
        self.has_no_bits() && self.rec.count() == self.copies + self.sums
    }

    /// Stores all entries to the blocks that were taken for them. Returns the record that names
    /// these blocks; `None` if the record fits a slot as it is.
    pub(super) fn continue_in_blocks(&mut self) -> Result<Option<RecordBuf>> {
        let vol = self.volume();
        let slot = vol.geo.slot_size as usize;
        if self.rec.size() <= slot {
            return Ok(None);
        }
        let mut short = RecordBuf::new(slot);
        let mut pending = Unfenced::none();
        let mut rest = self.rec.body();
        for run in &self.more {
            let n = rest.len().min(vol.geo.bytes(run.len) as usize);
            let (now, later) = rest.split_at(n);
            rest = later;
            if now.is_empty() {
                break;
            }
            let at = vol.geo.offset(run.start);
            vol.region.need_room(at.0, n as u64)?;
            pending = pending.join(vol.region.window().nt_store(at.0, now)?);
            let sum = u64::from(crc(vol.geo.seed, now));
            if !short.push_words(EntryKind::More, at.0, &[n as u64, sum]) {
                return Err(Error::NoSpace("the free blocks are too scattered"));
            }
        }
        if !rest.is_empty() {
            return Err(super::record::TOO_LARGE);
        }
        self.stored_new(pending);
        Ok(Some(short))
    }
}

/// Copies file data home, durably: later stores to the data may be of other threads, whose
/// fences do not complete these.
pub(super) fn copy_data(
    region: &Region,
    rec: &RecordBuf,
    restore: Option<Restore<'_>>,
) -> Result<()> {
    let mut pending = match restore {
        Some(restore) => restore(region)?,
        None => Unfenced::none(),
    };
    for e in rec.entries().filter(|e| e.kind == EntryKind::Copy) {
        let Some(copy) = DataCopy::read(e.offset, e.payload) else {
            continue;
        };
        if copy.from.is_none() || restore.is_none() {
            pending = pending.join(records::copy_data(region, &copy)?);
        }
    }
    let _ = region.window().fence(pending);
    Ok(())
}
