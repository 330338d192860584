//! fallocate, and the filling of holes for direct mappings.
//!
//! Blocks are allocated in a chain of records; the last one sets the size. If
//! the region fills up on the way, what the call had allocated is freed again.

use crate::credentials::Credentials;
use crate::fs::engine::change::Edit;
use crate::fs::engine::completeness::Hole;
use crate::fs::engine::room;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::{restore_times, store_healed, touch_ctime, touch_mtime};
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::policy::chattr;
use crate::fs::policy::suid::sgid;
use crate::fs::steps::attributes::lock_and_check_group;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::DiskInode;
use pramfs_medium::types::{Bno, Fallocate, FileBlock, Ino};
use pramfs_medium::volume::Plan;

/// What allocated blocks are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Flagged: they read as zeros.
    Unwritten,
    /// The same, for a range that is being made to read as zeros: what was lost
    /// in it does so, too.
    Cleared,
    /// Zeroed on the medium: a mapping can store to them.
    Zeroed,
}

impl Engine {
    /// Allocates, frees or zeroes a range of a file. Allocated blocks read as
    /// zeros and cost no time to write.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range of no bytes, [`Error::TooLarge`];
    /// [`Error::NoSpace`], and then nothing has been allocated.
    pub fn fallocate(
        &self,
        caller: &Credentials<'_>,
        ino: Ino,
        what: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.op(Need::Write, || {
            let end = self.check_range(offset, len)?;
            let inode = self.iget_user(ino)?;
            let (mut state, keeps_sgid) =
                lock_and_check_group(&inode, caller, |state| sgid(&state.disk));
            check_file(inode.ino, &state)?;
            match what {
                Fallocate::Allocate { .. } => chattr::check_append(&state.disk)?,
                _ => chattr::check_write(&state.disk)?,
            }
            if !keeps_sgid {
                self.drop_sgid(&inode, &mut state)?;
            }
            self.finish_truncate(&inode, &mut state)?;
            match what {
                Fallocate::Allocate { keep_size } => {
                    let records = state.records;
                    self.allocate(
                        &inode,
                        &mut state,
                        offset,
                        end,
                        State::Unwritten,
                        !keep_size,
                    )?;
                    // There was nothing to allocate, but it was asked for.
                    if state.records == records {
                        self.overwritten(&inode, &mut state);
                        self.write_times(&inode, &mut state)?;
                    }
                    Ok(())
                }
                Fallocate::PunchHole => self.punch(&inode, &mut state, offset, end),
                Fallocate::ZeroRange { keep_size } => {
                    self.zero_range(&inode, &mut state, offset, end, keep_size)
                }
            }
        })
    }

    /// Makes a range of a locked file read as zeros, in blocks of its own.
    pub(crate) fn zero_range(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        end: u64,
        keep_size: bool,
    ) -> Result<()> {
        // What may fail for want of space comes first.
        let old = state.disk.size;
        self.edges(state, offset, end)?;
        self.allocate(inode, state, offset, end, State::Cleared, !keep_size)?;
        let mut tx = self.vol.begin_at(&inode.last_record);
        self.zero_written(&mut tx, &state.map(), offset, end.min(old.max(offset)))?;
        tx.settle();
        drop(tx);
        self.overwritten(inode, state);
        Ok(())
    }

    /// Makes every block of a range allocated and written, so that a mapping
    /// can store to it; what was a hole is zeros. The size stays.
    ///
    /// # Errors
    /// As for [`fallocate`](Self::fallocate).
    pub fn fill(&self, ino: Ino, offset: u64, len: u64) -> Result<()> {
        self.op(Need::Write, || {
            let end = self.check_range(offset, len)?;
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            chattr::check_write(&state.disk)?;
            self.finish_truncate(&inode, &mut state)?;
            self.allocate(&inode, &mut state, offset, end, State::Zeroed, false)
        })
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<u64> {
        if len == 0 {
            return Err(Error::Invalid("a range of no bytes"));
        }
        let end = offset.checked_add(len).ok_or(Error::TooLarge(u64::MAX))?;
        if end > self.vol.geo.max_file_size() {
            return Err(Error::TooLarge(end));
        }
        Ok(end)
    }

    fn allocate(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        end: u64,
        wanted: State,
        extend: bool,
    ) -> Result<()> {
        let geo = &self.vol.geo;
        let before = state.disk;
        let (mut index, last) = (geo.file_block(offset), geo.file_block(end - 1));
        // Holes that this call has filled, to be given back.
        let mut filled: Vec<(FileBlock, FileBlock)> = Vec::new();
        loop {
            let mut new = Edit::new(inode, state);
            let mut tx = self.begin(inode);
            let mut step = Step {
                engine: self,
                state: new.before(),
                map: new.before().map(),
                index,
                last,
                wanted,
                filled: Vec::new(),
            };
            let stepped = step.run(&mut tx);
            let done = match stepped {
                Ok(done) => done,
                Err(e) => {
                    drop(tx);
                    for &(first, end) in &filled {
                        self.undo(|| self.remove_blocks(inode, state, first, end, Some(&before)))?;
                    }
                    return Err(e);
                }
            };
            index = step.index;
            let Step {
                map,
                filled: now_filled,
                ..
            } = step;
            if done && extend && end > new.size {
                self.zero_written(&mut tx, &map, new.size, end)?;
                new.size = end;
            }
            let before = new.before();
            if new.size == before.disk.size && tx.has_no_record() && map == before.map() {
                tx.settle();
                return if done {
                    Ok(())
                } else {
                    Err(Error::NotSupported(
                        "an allocation that does not fit a journal record",
                    ))
                };
            }
            store_healed(&tx, &mut new, &map);
            match wanted {
                State::Unwritten | State::Cleared => touch_mtime(&mut new, self.now()),
                State::Zeroed => touch_ctime(&mut new, self.now()),
            }
            let new = new.stage(&mut tx)?;
            self.commit(tx, [new])?;
            filled.extend(now_filled);
            if done {
                return Ok(());
            }
        }
    }

    /// Makes a hole of whole blocks, record by record. `before`: the inode
    /// whose times it gets, because nothing else has happened to it.
    fn remove_blocks(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        first: FileBlock,
        end: FileBlock,
        before: Option<&DiskInode>,
    ) -> Result<()> {
        let mut at = first;
        while at < end {
            let mut new = Edit::new(inode, state);
            at = self.remove_step(self.begin(inode), &mut new, (at, end), before)?;
        }
        Ok(())
    }

    fn remove_step<'v>(
        &self,
        mut tx: Plan<'v>,
        new: &mut Edit<'v>,
        (at, end): (FileBlock, FileBlock),
        before: Option<&DiskInode>,
    ) -> Result<FileBlock> {
        let mut map = new.before().map();
        let next = map::remove(&mut tx, &mut map, at, end)?;
        store_healed(&tx, new, &map);
        match before {
            Some(before) => restore_times(new, before),
            None => touch_mtime(new, self.now()),
        }
        let new = new.stage(&mut tx)?;
        self.commit(tx, [new])?;
        Ok(next)
    }

    fn punch(&self, inode: &Inode, state: &mut InodeState, offset: u64, end: u64) -> Result<()> {
        let geo = &self.vol.geo;
        let (first, last) = (geo.file_block_from(offset), geo.file_block(end));
        self.edges(state, offset, end)?;
        let map = state.map();
        // Among new holes those that are none would never be found.
        let mut index = first;
        while index < last {
            let extent = map::run(&self.vol, &map, index, last - index)?;
            if extent.block.is_none() {
                self.check_hole(state, Hole::Contents)?;
                break;
            }
            index += extent.count;
        }
        let mut new = Edit::new(inode, state);
        let mut tx = self.begin(inode);
        if first > last {
            self.zero_written(&mut tx, &map, offset, end)?;
        } else {
            self.zero_written(&mut tx, &map, offset, geo.file_offset(first))?;
            self.zero_written(&mut tx, &map, geo.file_offset(last), end)?;
        }
        let next = self.remove_step(tx, &mut new, (first, last.max(first)), None)?;
        self.remove_blocks(inode, state, next, last, None)
    }
}

impl Engine {
    /// A range that is to read as zeros has no part of a block that was lost:
    /// what would be left of it must not read as zeros, too.
    fn edges(&self, state: &InodeState, offset: u64, end: u64) -> Result<()> {
        let (geo, size) = (&self.vol.geo, state.disk.size);
        for index in [geo.file_block(offset), geo.file_block(end - 1)] {
            let (first, last) = (geo.file_offset(index), geo.file_offset(index + 1).min(size));
            let part = offset > first || end < last;
            if part && first < size && map::look(&self.vol, &state.map(), index)?.lost {
                return Err(self.lost(Ino(state.disk.ino), first.max(offset)));
            }
        }
        Ok(())
    }
}

/// One record's part of an allocation.
struct Step<'a> {
    engine: &'a Engine,
    /// The inode before.
    state: &'a InodeState,
    map: MapRef,
    /// Next block to look at.
    index: FileBlock,
    /// Last block of the range.
    last: FileBlock,
    wanted: State,
    /// Holes that this record fills.
    filled: Vec<(FileBlock, FileBlock)>,
}

impl Step<'_> {
    /// Goes on until the end of the range (true) or of the record's room.
    fn run(&mut self, tx: &mut Plan<'_>) -> Result<bool> {
        let geo = &self.engine.vol.geo;
        let span = geo.fan();
        while self.index <= self.last {
            let extent = map::run(
                &self.engine.vol,
                &self.map,
                self.index,
                self.last - self.index + 1,
            )?;
            match extent.block {
                Some(block) if extent.unwritten && self.wanted == State::Zeroed => {
                    if !self.convert(tx, block, extent.count)? {
                        return Ok(false);
                    }
                }
                Some(block) => {
                    if self.wanted == State::Zeroed {
                        // A mapping stores to what is written already.
                        let geo = &self.engine.vol.geo;
                        let len = geo.bytes(extent.count);
                        self.engine.vol.region.need_room(geo.offset(block), len)?;
                    }
                    self.index += extent.count;
                }
                // Room that is promised is no reason to forget what was there.
                None if extent.lost && self.wanted != State::Cleared => {
                    let at = self.engine.vol.geo.file_offset(self.index);
                    return Err(self.engine.lost(self.map.ino, at));
                }
                None => {
                    self.engine.may_fill(self.state, &extent)?;
                    // An aligned part is left for a 2 MiB leaf.
                    let to_aligned = span - geo.slot_of(self.index);
                    let count = match self.engine.vol.geo.huge_leaves {
                        true if to_aligned < span && extent.count >= to_aligned + span => {
                            to_aligned
                        }
                        _ => extent.count,
                    };
                    if !self.allocate(tx, count, extent.lost)? {
                        return Ok(false);
                    }
                    self.map.healed |= extent.lost;
                }
            }
        }
        Ok(true)
    }

    fn convert(&mut self, tx: &mut Plan<'_>, block: Bno, count: u64) -> Result<bool> {
        let vol = &self.engine.vol;
        let geo = &vol.geo;
        let leaf = map::find(vol, &self.map, self.index)?;
        let (first, at, want) = match leaf.block {
            Some(whole) if leaf.count > 1 => (leaf.first, whole, leaf.count),
            _ => (self.index, block, count),
        };
        let n = map::set_written(tx, &mut self.map, first, want)?;
        tx.zero_new(geo.offset(at), geo.bytes(n))?;
        self.index = self.index.max(first + n);
        Ok(n > 0)
    }

    fn allocate(&mut self, tx: &mut Plan<'_>, count: u64, lost: bool) -> Result<bool> {
        let vol = &self.engine.vol;
        let geo = &vol.geo;
        let span = geo.fan();
        let goal = self.engine.goal(&self.map, self.index)?;
        let unwritten = self.wanted != State::Zeroed;
        let left = geo.bytes(self.last - self.index + 1);
        let aligned = geo.huge_leaves && geo.slot_of(self.index) == 0;
        // Marks of loss may stand in a pointer block.
        let huge = aligned && count >= span && !lost;
        if huge && !map::plan_huge(tx, &self.map, self.index)? {
            return Ok(false);
        }
        let aligned = if huge {
            tx.alloc_aligned(goal.unwrap_or(Bno(0)), span as u32)
                .map_err(room::request_all_room(left))?
        } else {
            None
        };
        let run = match aligned {
            Some(run) => {
                map::insert_huge(tx, &mut self.map, self.index, run, unwritten)?;
                run
            }
            None => {
                let n = map::plan(tx, &self.map, self.index, count.min(u64::from(u32::MAX)))?;
                if n == 0 {
                    return Ok(false);
                }
                let run = tx
                    .alloc_blocks(goal, n as u32, false)
                    .map_err(room::request_all_room(left))?;
                map::insert(tx, &mut self.map, self.index, run, unwritten)?;
                run
            }
        };
        if !unwritten {
            tx.zero_new(geo.offset(run.start), geo.bytes(run.len))?;
        }
        match self.filled.last_mut() {
            Some((_, end)) if *end == self.index => *end += run.len,
            _ => self.filled.push((self.index, self.index + run.len)),
        }
        self.index += run.len;
        Ok(true)
    }
}
