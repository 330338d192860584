//! Bad blocks: what memory knows of the list on the medium, and the records that add to it.
//!
//! Invariants:
//! * The bit of a listed block is set on the medium. The record that lists a free block also
//!   sets its bit, so a crash leaves both or neither.
//! * A block that is in use when it is listed keeps its owner until the owner frees it, or a
//!   record replaces the pointer to it. Its bit stays set: [`Record::free_blocks`] leaves the
//!   bits of listed blocks alone. So it is never allocated again.
//! * The root of the list is durable before the record that sets the bit of its first block.
//!   [`Volume::load_bad_blocks`] sets that bit if a crash came between.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Plan, Record, Volume};
use crate::alloc::BitRun;
use crate::error::{Damage, Error, Result};
use crate::journal::LastRecord;
use crate::media::bad_blocks::{
    BadListHeader, ListBlock, extents_in_block, is_possible, list_at, read_list_of,
};
use crate::media::bitmap::BitmapKind;
use crate::media::pointer::Ptr;
use crate::media::record::EntryKind;
use crate::sync::{Mutex, MutexGuard, rank};
use crate::types::{BlockRun, Bno};

/// Blocks that one record lists at most: 16 words of a bitmap, and the two at the ends.
const AT_ONCE: u64 = 1024;

/// The bad blocks of a volume.
#[derive(Debug, Default)]
pub struct BadBlocks {
    /// Some block is listed, or the list is damaged. Loaded by every free.
    any: AtomicBool,
    /// The list on the medium could not be read. Nothing is added to it: that would put a new
    /// list in its place.
    is_broken: AtomicBool,
    /// Disjoint runs, by their first block.
    known: Mutex<BTreeMap<u64, u64>, rank::Leaf>,
    list: Mutex<Vec<ListBlock>, rank::BadBlocks>,
    last: LastRecord,
}

/// The locked list.
pub type LockedList<'a> = MutexGuard<'a, Vec<ListBlock>>;

impl BadBlocks {
    /// Whether no block is listed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Number of listed blocks.
    pub fn count(&self) -> u64 {
        self.known.lock().values().sum()
    }

    /// Whether a block is listed.
    pub fn contains(&self, block: Bno) -> bool {
        !self.is_empty() && self.end_of(block).1
    }

    /// Returns the listed blocks, in ascending order.
    pub fn runs(&self) -> Vec<BlockRun> {
        let known = self.known.lock();
        let runs = known.iter().map(|(start, len)| BlockRun {
            start: Bno(*start),
            len: *len,
        });
        runs.collect()
    }

    /// Divides a run into parts that are listed or not, in order.
    pub fn parts(&self, run: BlockRun) -> Vec<(BlockRun, bool)> {
        let mut parts = Vec::new();
        let mut at = run.start;
        while at < run.end() {
            let (end, listed) = self.end_of(at);
            let end = end.min(run.end());
            parts.push((
                BlockRun {
                    start: at,
                    len: end.0 - at.0,
                },
                listed,
            ));
            at = end;
        }
        parts
    }

    /// Up to where blocks are as `block` is, and whether it is listed.
    fn end_of(&self, block: Bno) -> (Bno, bool) {
        let known = self.known.lock();
        if let Some((start, len)) = known.range(..=block.0).next_back()
            && block.0 < start + len
        {
            return (Bno(start + len), true);
        }
        let next = known.range(block.0..).next();
        (next.map_or(Bno(u64::MAX), |(start, _)| Bno(*start)), false)
    }

    fn learn(&self, run: BlockRun) {
        for (part, listed) in self.parts(run) {
            if !listed {
                self.known.lock().insert(part.start.0, part.len);
            }
        }
        self.any.store(true, Ordering::Relaxed);
    }
}

impl Volume {
    /// Reads the list of bad blocks. `root` is the word in the superblock. Nothing has been
    /// allocated yet.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; errors of the region.
    pub fn load_bad_blocks(&self, root: u64, writable: bool) -> Result<()> {
        if root == 0 {
            return Ok(());
        }
        let list = read_list_of(self.medium(), root).inspect_err(|_| {
            self.bad.is_broken.store(true, Ordering::Relaxed);
            self.bad.any.store(true, Ordering::Relaxed);
        })?;
        for run in list.iter().flat_map(|block| &block.extents) {
            self.bad.learn(*run);
        }
        let first = list.first().map(|block| block.block);
        *self.bad.list.lock() = list;
        if let Some(first) = first.filter(|_| writable) {
            // A crash came between the root and the record.
            let mut plan = self.begin();
            if plan.take_free(BlockRun::one(first))? {
                plan.commit()?;
            }
        }
        Ok(())
    }

    /// Reads the list on the medium again, and compares it with what is known of it. Returns the
    /// number of blocks read. `root` is called with the list locked, and returns the word in the
    /// superblock.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; errors of the region.
    pub fn check_bad_list(&self, root: impl FnOnce() -> u64) -> Result<u64> {
        let known = self.lock_bad_blocks();
        let list = read_list_of(self.medium(), root())?;
        if list != *known && !self.bad.is_broken.load(Ordering::Relaxed) {
            return Err(Error::corrupt(
                Damage::BadBlockListDamaged,
                "the list of bad blocks",
                "it is not the one that was read or stored",
            ));
        }
        Ok(list.len() as u64)
    }

    /// Locks the list, for records that add to it.
    pub fn lock_bad_blocks(&self) -> LockedList<'_> {
        self.bad.list.lock()
    }

    /// Makes the first block of the list, empty, and durable. `publish` makes the root durable
    /// with this value. Only then does a record set the bit of the block.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; errors of the region and of `publish`.
    pub fn make_bad_list(
        &self,
        list: &mut LockedList<'_>,
        publish: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        if self.bad.is_broken.load(Ordering::Relaxed) {
            return Err(Error::corrupt(
                Damage::BadBlockListDamaged,
                "the list of bad blocks",
                "it could not be read when the file system was mounted, so nothing is added to it",
            ));
        }
        if !list.is_empty() {
            return Ok(());
        }
        let mut plan = self.begin();
        plan.allow_reserve();
        let block = plan.alloc_blocks(None, 1, true)?.start;
        let first = ListBlock::new(block);
        plan.write_new(self.geo.offset(block), &first.bytes(&self.geo))?;
        plan.settle();
        publish(Ptr::new(block, 0, list_at(&self.geo, 0)).0)?;
        plan.touch(&self.bad.last);
        plan.commit()?;
        list.push(first);
        Ok(())
    }

    /// Lists blocks as bad, and sets the bits of those that are free, by as many records as it
    /// takes. Blocks that cannot be listed (of the format itself, or past the end) are left
    /// out. The list has a first block.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::Corrupt`] of a bitmap; errors of the region.
    pub fn list_bad_blocks(&self, list: &mut LockedList<'_>, run: BlockRun) -> Result<u64> {
        let mut added = 0;
        for (part, listed) in self.bad.parts(run) {
            let (mut at, end) = (part.start.0, part.end().0.min(self.geo.blocks()));
            while at < end && !listed {
                let run = BlockRun {
                    start: Bno(at),
                    len: (end - at).min(AT_ONCE - at % AT_ONCE),
                };
                at += run.len;
                if !is_possible(&self.geo, &run) {
                    added += self.list_possible(list, run)?;
                    continue;
                }
                let mut plan = self.begin();
                let new = plan.list_bad(list, run)?;
                plan.commit()?;
                self.publish_bad(list, new, run);
                added += run.len;
            }
        }
        Ok(added)
    }

    /// As [`list_bad_blocks`](Self::list_bad_blocks), of a run that touches blocks of the
    /// format.
    fn list_possible(&self, list: &mut LockedList<'_>, run: BlockRun) -> Result<u64> {
        let mut added = 0;
        for block in run.blocks().map(BlockRun::one) {
            if is_possible(&self.geo, &block) {
                let mut plan = self.begin();
                let new = plan.list_bad(list, block)?;
                plan.commit()?;
                self.publish_bad(list, new, block);
                added += 1;
            }
        }
        Ok(added)
    }

    /// Takes over what a committed record has listed.
    pub fn publish_bad(&self, list: &mut LockedList<'_>, new: Vec<ListBlock>, run: BlockRun) {
        for block in new {
            match list.iter_mut().find(|old| old.block == block.block) {
                Some(old) => *old = block,
                None => list.push(block),
            }
        }
        self.bad.learn(run);
    }
}

impl Plan<'_> {
    /// Takes those blocks of a run that are free; true if there are any. The run lies in one
    /// group's words of 64.
    pub(super) fn take_free(&mut self, run: BlockRun) -> Result<bool> {
        let vol = self.volume();
        // Held blocks count as free.
        vol.end_hold();
        let mut any = false;
        let mut at = run.start.0;
        while at < run.end().0 {
            let len = (run.end().0 - at).min(64 - at % 64);
            vol.ensure_group_of(Bno(at))?;
            let whole = BitRun { start: at, len };
            let pieces: Vec<BitRun> = match vol.blocks.reserve_exactly(vol.medium(), whole)? {
                Some(found) => {
                    self.note_reserved(BitmapKind::Blocks, found)?;
                    any = true;
                    Vec::new()
                }
                None => (at..at + len)
                    .map(|start| BitRun { start, len: 1 })
                    .collect(),
            };
            for piece in pieces {
                if let Some(found) = vol.blocks.reserve_exactly(vol.medium(), piece)? {
                    self.note_reserved(BitmapKind::Blocks, found)?;
                    any = true;
                }
            }
            at += len;
        }
        Ok(any)
    }

    /// Adds blocks to the list in this record, and sets the bits of those that are free. The
    /// list is locked until [`Volume::publish_bad`], after the commit. Returns the blocks of the
    /// list that change.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::Corrupt`] of a bitmap; errors of the region.
    pub fn list_bad(&mut self, list: &LockedList<'_>, run: BlockRun) -> Result<Vec<ListBlock>> {
        let vol = self.volume();
        let geo = &vol.geo;
        self.touch(&vol.bad.last);
        self.take_free(run)?;
        let Some(last) = list.last() else {
            return Err(Error::Invalid("the list of bad blocks has no block"));
        };
        let mut last = last.clone();
        let adjacent = last
            .extents
            .last()
            .is_some_and(|old| old.end() == run.start);
        if !adjacent && last.extents.len() == extents_in_block(geo) {
            self.allow_reserve();
            let block = self.alloc_blocks(None, 1, true)?.start;
            let mut new = ListBlock::new(block);
            new.extents.push(run);
            self.write_new(geo.offset(block), &new.bytes(geo))?;
            last.next = Ptr::new(block, 0, list_at(geo, list.len() as u64));
            let header = &last.bytes(geo)[..BadListHeader::SIZE];
            self.put(EntryKind::Slot, geo.offset(last.block), header)?;
            return Ok(vec![last, new]);
        }
        match last.extents.last_mut().filter(|_| adjacent) {
            Some(old) => old.len += run.len,
            None => last.extents.push(run),
        }
        let nth = last.extents.len() - 1;
        let bytes = last.bytes(geo);
        let at = last.extent_offset(geo, nth);
        let extent = &bytes[(at - geo.offset(last.block)) as usize..];
        self.put(
            EntryKind::Slot,
            geo.offset(last.block),
            &bytes[..BadListHeader::SIZE],
        )?;
        self.put(EntryKind::Slot, at, extent)?;
        Ok(vec![last])
    }
}

impl Record<'_> {
    /// Frees blocks. They become reusable when this record, and every earlier record that
    /// wrote into them, is dead. The caller has touched the place that guards them.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the blocks cannot be in use.
    pub fn free_blocks(&mut self, run: BlockRun) -> Result<()> {
        match self.volume().bad.is_empty() {
            true => self.free_listed_by_none(run),
            false => self.free_all_but_bad(run),
        }
    }

    /// As [`free_blocks`](Self::free_blocks). The list of bad blocks becomes the owner of those
    /// that it names: their bits stay set.
    #[cold]
    pub(super) fn free_all_but_bad(&mut self, run: BlockRun) -> Result<()> {
        let vol = self.volume();
        if vol.bad.is_broken.load(Ordering::Relaxed) {
            // The list may name any of them. What fails stays in use until fsck has a new list.
            let fails = |block: Bno| {
                let at = vol.geo.offset(block);
                vol.region.is_faulted(at.0, vol.geo.block_size)
            };
            for block in run.blocks().filter(|block| !fails(*block)) {
                self.free_listed_by_none(BlockRun::one(block))?;
            }
            return Ok(());
        }
        for (part, is_bad) in self.volume().bad.parts(run) {
            if !is_bad {
                self.free_listed_by_none(part)?;
            }
        }
        Ok(())
    }
}
