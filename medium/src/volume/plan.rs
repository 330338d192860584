//! [`Plan`] and [`Recording`]: the two phases of a transaction.

use std::ops::{Deref, DerefMut};

use super::Volume;
use super::record::Record;
use super::staging::Restore;
use crate::alloc::{BitRun, Freed, Reserved};
use crate::error::{Error, Result};
use crate::journal::{LastRecord, RecordId};
use crate::media::bitmap::BitmapKind;
use crate::pmem::PmemError;
use crate::types::{BlockRun, Bno, Ino};

const NONE_LEFT: Error = Error::NoSpace("no free block, and the reserve is used up");

/// The first phase of a transaction. It allocates blocks, inode numbers and orphan slots,
/// and does all that a [`Record`] does.
///
/// A plan never holds a lane: an allocation may retire the records of all lanes to make
/// room, and would wait for its own. [`lock_lane`](Self::lock_lane) therefore borrows the
/// plan. Dropping a plan changes nothing and frees what it allocated.
///
/// ```
/// # use pramfs_medium::error::Result;
/// # use pramfs_medium::journal::LastRecord;
/// use pramfs_medium::volume::Plan;
/// fn store_block(mut plan: Plan<'_>, owner: &LastRecord, bytes: &[u8; 4096]) -> Result<()> {
///     let run = plan.alloc_blocks(None, 1, true)?;
///     let mut record = plan.lock_lane(&[owner]);
///     let at = record.volume().geo.offset(run.start);
///     record.write_new(at, bytes)?;
///     // A pointer to the block follows here, by `record.put(...)`.
///     record.commit()?;
///     Ok(())
/// }
/// ```
///
/// Nothing is allocated while the lane is held:
///
/// ```compile_fail,E0499
/// fn too_late(mut plan: pramfs_medium::volume::Plan<'_>) {
///     let record = plan.end();
///     let _ = plan.alloc_blocks(None, 1, true);
///     let _ = record.commit();
/// }
/// ```
#[derive(Debug)]
pub struct Plan<'v>(Record<'v>);

impl<'v> Plan<'v> {
    #[inline(always)]
    pub(super) fn new(vol: &'v Volume, lane: u32) -> Plan<'v> {
        Plan(Record::new(vol, lane))
    }

    pub(super) fn record(&mut self) -> &mut Record<'v> {
        &mut self.0
    }

    /// Lets this transaction use the reserve, because it frees more than it takes.
    pub fn allow_reserve(&mut self) {
        self.0.use_reserve = true;
    }

    // ---- the next phase

    /// Begins the second phase. The commit locks the lane.
    #[inline]
    pub fn end(&mut self) -> Recording<'_, 'v> {
        Recording {
            record: &mut self.0,
        }
    }

    /// Begins the second phase, and locks the lane before the commit. A locked instruction
    /// waits for the stores before it. With the lane locked early, the stores of new data,
    /// and the write-back of the last homes of the lane, overlap with the rest of the work.
    ///
    /// `homes` guard all that the record will change. If the record of another lane has to
    /// be retired for one of them, or the lane cannot be locked, the commit does both.
    ///
    /// The caller has taken all inode locks, and until the commit takes only locks of
    /// bitmap groups: the holder of another lock may be waiting for the lane.
    #[inline]
    pub fn lock_lane(&mut self, homes: &[&LastRecord]) -> Recording<'_, 'v> {
        self.0.lock_lane(homes);
        self.end()
    }

    /// Commits a change that needs no second phase. See [`Recording::commit`].
    ///
    /// # Errors
    /// As for [`Recording::commit`].
    #[inline]
    pub fn commit(&mut self) -> Result<RecordId> {
        self.end().commit()
    }

    // ---- allocation

    pub(super) fn keep_reserve(&self) -> Result<()> {
        let vol = self.volume();
        for _ in 0..vol.reserve.missing() {
            let found = vol.reserve_bits(BitmapKind::Blocks, true, |set, roomy| {
                set.reserve(vol.medium(), self.lane(), None, 1, true, roomy)
            })?;
            match found {
                Some(found) if vol.reserve.refill(blocks(found.run)) => {}
                Some(found) => vol.blocks.free_run(vol.medium(), found.run),
                None => break,
            }
        }
        Ok(())
    }

    /// Takes up to `want` consecutive blocks, near `goal` if given. With `full`, takes
    /// exactly `want`.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn alloc_blocks(&mut self, goal: Option<Bno>, want: u32, full: bool) -> Result<BlockRun> {
        let (vol, lane) = (self.volume(), self.lane());
        if vol.reserve.missing() > 0 && !self.0.use_reserve {
            self.keep_reserve()?;
        }
        let spare = self.0.use_reserve && (want == 1 || !full);
        let found = vol.reserve_bits(BitmapKind::Blocks, spare, |set, roomy| {
            set.reserve(
                vol.medium(),
                lane,
                goal.map(|b| b.0),
                want.max(1),
                full,
                roomy,
            )
        });
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) if spare && vol.end_hold() => {
                return self.alloc_blocks(goal, want, full);
            }
            Ok(None) if spare => self.take_reserved(NONE_LEFT)?,
            // If a block with room is in reserve, do not wait for the host: the operation can
            // then finish, or undo, without releasing its locks.
            Err(e @ Error::Pmem(PmemError::NoRoom { .. })) if spare => self.take_reserved(e)?,
            Ok(None) => return Err(Error::NoSpace("no free block")),
            Err(e) => return Err(e),
        };
        Ok(blocks(self.0.note_reserved(BitmapKind::Blocks, found)?))
    }

    /// Takes a block from the reserve; returns `otherwise` if it is empty.
    #[cold]
    fn take_reserved(&self, otherwise: Error) -> Result<Reserved> {
        let vol = self.volume();
        let mut start = vol.reserve.take();
        while let Some(failed) = start.filter(|b| !vol.is_sound(BitmapKind::Blocks, one(*b))) {
            vol.keep_failed(one(failed));
            start = vol.reserve.take();
        }
        let start = start.ok_or(otherwise)?;
        let found = vol.blocks.at(vol.medium(), start.0);
        if found.is_err() {
            vol.reserve.refill(BlockRun::one(start));
        }
        found
    }

    /// Takes `len` consecutive blocks aligned to `len`; `None` if no such run is free.
    ///
    /// # Errors
    /// Errors of the region and of the bitmap.
    pub fn alloc_aligned(&mut self, near: Bno, len: u32) -> Result<Option<BlockRun>> {
        let vol = self.volume();
        if vol.reserve.missing() > 0 {
            self.keep_reserve()?;
        }
        let found = vol.reserve_bits(BitmapKind::Blocks, true, |set, roomy| {
            set.reserve_aligned(vol.medium(), near.0, len, roomy)
        })?;
        found
            .map(|found| Ok(blocks(self.0.note_reserved(BitmapKind::Blocks, found)?)))
            .transpose()
    }

    /// Takes an inode number, from `near` upwards or from the lane's last position.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn alloc_inode(&mut self, near: Option<Ino>) -> Result<Ino> {
        let (vol, lane) = (self.volume(), self.lane());
        let found = vol.reserve_bits(BitmapKind::Inodes, false, |set, roomy| {
            set.reserve(vol.medium(), lane, near.map(|ino| ino.0), 1, true, roomy)
        })?;
        match found {
            Some(found) => Ok(Ino(self.0.note_reserved(BitmapKind::Inodes, found)?.start)),
            None => Err(Error::NoSpace("no free inode")),
        }
    }

    /// Takes an orphan slot, which is freed again if this transaction is dropped.
    pub fn take_orphan_slot(&mut self) -> Option<u32> {
        let slot = self.volume().take_orphan_slot()?;
        self.0.note_taken(Freed::OrphanSlot(slot));
        Some(slot)
    }

    /// Takes a slot of the lease table, which is freed again if this transaction is dropped.
    pub fn take_lease_slot(&mut self) -> Option<u32> {
        let slot = self.volume().take_lease_slot()?;
        self.0.note_taken(Freed::LeaseSlot(slot));
        Some(slot)
    }
}

fn one(block: Bno) -> BitRun {
    BlockRun::one(block).into()
}

/// Returns the blocks that bits of their bitmap stand for.
fn blocks(bits: BitRun) -> BlockRun {
    BlockRun {
        start: Bno(bits.start),
        len: bits.len,
    }
}

impl<'v> Deref for Plan<'v> {
    type Target = Record<'v>;
    #[inline]
    fn deref(&self) -> &Record<'v> {
        &self.0
    }
}

impl<'v> DerefMut for Plan<'v> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Record<'v> {
        &mut self.0
    }
}

/// The second phase of a transaction: nothing more is allocated. Dropping it without a
/// commit releases the lane.
#[derive(Debug)]
pub struct Recording<'p, 'v> {
    record: &'p mut Record<'v>,
}

impl Recording<'_, '_> {
    /// Commits the change: atomic, and durable at return.
    ///
    /// # Errors
    /// [`Error::Io`] if the volume has failed before, or the transaction is committed;
    /// errors of the region.
    #[inline]
    pub fn commit(self) -> Result<RecordId> {
        self.record.commit(None)
    }

    /// As [`commit`](Self::commit), with the bytes that the record copies.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    pub fn commit_copies(self, restore: Restore<'_>) -> Result<RecordId> {
        self.record.commit(Some(restore))
    }
}

impl<'v> Deref for Recording<'_, 'v> {
    type Target = Record<'v>;
    #[inline]
    fn deref(&self) -> &Record<'v> {
        self.record
    }
}

impl<'v> DerefMut for Recording<'_, 'v> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Record<'v> {
        self.record
    }
}

impl Drop for Recording<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        self.record.release_lane();
    }
}
