//! fallocate, and the filling of holes for direct mappings.
//!
//! Invariant: blocks are allocated in a chain of records, and the last record sets the size.
//! If the region fills up before that, the call frees the blocks that it allocated.
//!
//! Finding free blocks is left to `pramfs_medium::alloc`, the pointer tree to
//! `pramfs_medium::map`.

use std::ops::Range;

use crate::credentials::Credentials;
use crate::fs::Engine;
use crate::fs::engine::change::Edit;
use crate::fs::engine::completeness::Hole;
use crate::fs::engine::room;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::{restore_times, touch_ctime, touch_mtime};
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::policy::chattr;
use crate::fs::steps::copies::{ATOMIC_BYTES, By, Fill};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::DiskInode;
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::types::{Bno, Fallocate, FileBlock, Ino};
use pramfs_medium::volume::Plan;

/// The wanted state of a block in the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Allocated and, if new, unwritten: reads as zeros. A lost block is an error.
    Unwritten,
    /// As `Unwritten`, for a range that the caller makes read as zeros. A lost block is
    /// replaced.
    Cleared,
    /// Written: holes and unwritten blocks are zeroed on the medium, so that a mapping can
    /// store to them.
    Zeroed,
    /// As `Zeroed`, for an append window: the times of the file stay.
    ZeroedAhead,
    /// Written, but not zeroed: blocks past the end of the file, for an append window. New
    /// ones are freed like those of an interrupted truncation, if nothing uses them.
    Ahead,
    /// As `Ahead`, but zeroed.
    AheadCleared,
}

impl State {
    /// Whether the caller can store to the blocks without a record.
    fn is_written(self) -> bool {
        matches!(
            self,
            State::Zeroed | State::ZeroedAhead | State::Ahead | State::AheadCleared
        )
    }
}

impl Engine {
    /// Allocates, frees or zeroes a range of a file. Allocated blocks are unwritten: they
    /// read as zeros and take no time to write.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty range, [`Error::TooLarge`]. After
    /// [`Error::NoSpace`] nothing is allocated.
    pub fn fallocate(
        &self,
        caller: &Credentials<'_>,
        ino: Ino,
        what: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        // Zeros replace what a range holds. An allocation replaces nothing.
        let replaced = match what {
            Fallocate::Allocate { .. } => 0,
            Fallocate::PunchHole | Fallocate::ZeroRange { .. } => len,
        };
        let targets = || [(offset, replaced)];
        self.op_past_bad_blocks_of(ino, targets, || {
            let end = self.check_range(offset, len)?;
            let inode = self.iget_user(ino)?;
            let check = match what {
                Fallocate::Allocate { .. } => chattr::check_append,
                _ => chattr::check_write,
            };
            let mut state = self.lock_for_write(&inode, caller, check)?;
            self.settle_size(&inode, &mut state)?;
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
                    // Nothing was missing, but the call sets the times.
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

    /// Makes a range of a locked file read as zeros, and allocates its blocks.
    pub(crate) fn zero_range(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        end: u64,
        keep_size: bool,
    ) -> Result<()> {
        // First the steps that may fail for lack of space.
        let old = state.disk.size;
        self.edges(state, offset, end)?;
        if self.is_atomic(state) {
            self.check_host_holds(&state.map(), offset, end)?;
            if end - offset > ATOMIC_BYTES {
                // All parts get their blocks first: a lack of space is undone.
                self.allocate(inode, state, offset, end, State::Cleared, false)?;
            }
            let fill: Fill<'_> = &|tx, new, part| self.fill_part(tx, new, part);
            return self.clear_in_parts(inode, state, offset..end, keep_size, fill);
        }
        self.settle_copies(state)?;
        self.allocate(inode, state, offset, end, State::Cleared, !keep_size)?;
        let mut tx = self.vol.begin_at(&inode.last_record);
        self.zero_written(&mut tx, &state.map(), offset, end.min(old.max(offset)))?;
        tx.settle();
        drop(tx);
        self.overwritten(inode, state);
        Ok(())
    }

    /// Fills the holes of a part of a file with unwritten blocks, in the record of `new`.
    fn fill_part(&self, tx: &mut Plan<'_>, new: &mut Edit<'_>, part: Range<u64>) -> Result<()> {
        let geo = &self.vol.geo;
        let first = geo.file_block(part.start);
        let mut step = Step {
            engine: self,
            state: new.before(),
            map: new.before().map(),
            first,
            index: first,
            last: geo.file_block(part.end - 1),
            wanted: State::Cleared,
            filled: Vec::new(),
        };
        if !step.run(tx)? {
            return Err(Error::NotSupported(
                "an allocation that does not fit a journal record",
            ));
        }
        let map = step.map;
        new.store_map(tx, &map, FileBlock::END);
        Ok(())
    }

    /// Allocates and zeroes the holes and unwritten blocks of a range, so that a mapping
    /// can store to every block up to the end of the file. The size does not change.
    ///
    /// # Errors
    /// As for [`fallocate`](Self::fallocate).
    pub fn fill(&self, ino: Ino, offset: u64, len: u64) -> Result<()> {
        // It replaces nothing that the file has.
        self.op_past_bad_blocks(ino, offset, 0, || {
            let end = self.check_range(offset, len)?;
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            chattr::check_write(&state.disk)?;
            let end = end.min(state.disk.size);
            if offset >= end {
                return Ok(());
            }
            self.finish_truncate(&inode, &mut state)?;
            self.allocate(&inode, &mut state, offset, end, State::Zeroed, false)
        })
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<u64> {
        if len == 0 {
            return Err(Error::Invalid("an empty range"));
        }
        let end = offset.checked_add(len).ok_or(Error::TooLarge(u64::MAX))?;
        if end > self.vol.geo.max_file_size() {
            return Err(Error::TooLarge(end));
        }
        Ok(end)
    }

    /// Brings the blocks of a range into the wanted state, by a chain of records. If
    /// `extend`, the last record also sets the size to at least `end`. After an error it
    /// frees the blocks that it allocated.
    pub(super) fn allocate(
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
        self.check_host_holds(&state.map(), offset, end)?;
        if extend && end > state.disk.size {
            self.settle_copies(state)?;
            self.check_edges(state, state.disk.size..state.disk.size)?;
            self.mark_long_growth(inode, state, state.disk.size..end)?;
        }
        if wanted == State::Ahead {
            // Before the first of them is in the map.
            state.leases.note_undefined_ahead(offset);
        }
        // Holes that this call has filled; an error frees them again.
        let mut filled: Vec<(FileBlock, FileBlock)> = Vec::new();
        // With more room on the host, the call runs again. It must find the blocks that have got
        // room, and not go on behind them: each turn would need room for others then.
        let positions = self.vol.blocks.positions();
        loop {
            let mut new = Edit::new(inode, state);
            let mut tx = self.begin(inode);
            // First, so that the allocation uses the rest of the record.
            let claim = match wanted {
                State::Ahead | State::AheadCleared => {
                    self.claim_ahead(&mut tx, new.before(), index, last)?
                }
                _ => None,
            };
            let mut step = Step {
                engine: self,
                state: new.before(),
                map: new.before().map(),
                first: index,
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
                    self.vol.blocks.go_back(&positions);
                    return Err(e);
                }
            };
            let done_from = step.first.min(index);
            index = step.index;
            let Step {
                map,
                first,
                filled: now_filled,
                ..
            } = step;
            if done && extend && end > new.size {
                let zeroed = self.end_of_zeros(new.before(), end);
                self.zero_written(&mut tx, &map, new.size, zeroed)?;
                new.size = end;
            }
            let old = new.before();
            if new.size == old.disk.size && tx.has_no_record() && map == old.map() {
                tx.settle();
                return if done {
                    Ok(())
                } else {
                    Err(Error::NotSupported(
                        "an allocation that does not fit a journal record",
                    ))
                };
            }
            // New unwritten blocks read as zeros, like the holes that they fill.
            let first = match wanted {
                State::Zeroed | State::ZeroedAhead | State::Ahead | State::AheadCleared => first,
                State::Unwritten | State::Cleared => FileBlock::END,
            };
            new.store_map(&tx, &map, first);
            match wanted {
                State::Unwritten | State::Cleared => touch_mtime(&mut new, self.now()),
                State::Zeroed => touch_ctime(&mut new, self.now()),
                State::ZeroedAhead | State::Ahead | State::AheadCleared => {}
            }
            let written = match wanted.is_written() {
                true => done_from..index,
                false => index..index,
            };
            if let Err(e) = self.sum_filled(&mut tx, &new, &map, written) {
                drop(tx);
                for &(first, end) in &filled {
                    self.undo(|| self.remove_blocks(inode, state, first, end, Some(&before)))?;
                }
                self.vol.blocks.go_back(&positions);
                return Err(e);
            }
            let new = new.stage(&mut tx)?;
            self.commit(tx, [new])?;
            if claim.is_some() {
                (state.orphan_slot, state.past_end) = (claim, true);
            }
            filled.extend(now_filled);
            if done {
                return Ok(());
            }
        }
    }

    /// Frees a range of blocks, record by record. To undo an allocation, `before` is the
    /// inode whose times are restored; else it is `None`.
    pub(super) fn remove_blocks(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        first: FileBlock,
        end: FileBlock,
        before: Option<&DiskInode>,
    ) -> Result<()> {
        let mut at = first;
        while at < end {
            let blocks = at..end;
            at = self.change(inode, state, |tx, new| {
                self.remove_step(tx, new, blocks, before)
            })?;
        }
        Ok(())
    }

    /// Frees as many blocks of a range as fit one record. Returns the next block to free.
    /// `before` is as for [`remove_blocks`](Self::remove_blocks).
    fn remove_step(
        &self,
        tx: &mut Plan<'_>,
        new: &mut Edit<'_>,
        blocks: std::ops::Range<FileBlock>,
        before: Option<&DiskInode>,
    ) -> Result<FileBlock> {
        let mut map = new.before().map();
        let next = map::remove(tx, &mut map, blocks.start, blocks.end)?;
        new.store_map(tx, &map, blocks.start);
        match before {
            Some(before) => restore_times(new, before),
            None => touch_mtime(new, self.now()),
        }
        Ok(next)
    }

    /// Zeroes the partial blocks of a range and frees the whole blocks in between.
    fn punch(&self, inode: &Inode, state: &mut InodeState, offset: u64, end: u64) -> Result<()> {
        let geo = &self.vol.geo;
        let (first, last) = (geo.file_block_from(offset), geo.file_block(end));
        self.edges(state, offset, end)?;
        if self.keeps_blocks(state) {
            return self.punch_in_place(inode, state, offset, end);
        }
        let map = state.map();
        // Check the holes first: after new holes are punched, lost pointers among them
        // could not be found any more.
        let mut index = first;
        while index < last {
            let extent = map::run(&self.vol, &map, index, last - index)?;
            if extent.block.is_none() {
                self.check_hole(state, Hole::Contents)?;
                break;
            }
            index += extent.count;
        }
        let by = match self.is_atomic(state) {
            true if end - offset <= ATOMIC_BYTES => By::LargeRecord,
            true => By::Record,
            false => By::Stores,
        };
        self.check_edges(state, offset..end)?;
        let next = self.change_data(inode, state, by, |tx, new| {
            if first > last {
                self.clear_written(tx, by, &map, offset, end)?;
            } else {
                self.clear_written(tx, by, &map, offset, geo.file_offset(first))?;
                self.clear_written(tx, by, &map, geo.file_offset(last), end)?;
            }
            // First, so that freeing blocks uses the rest of the record.
            let (first_at, last_at, size) = match first > last {
                true => (end, end, new.size),
                false => (geo.file_offset(first), geo.file_offset(last), new.size),
            };
            if offset < first_at {
                self.put_sums(tx, new.before(), &map, size, offset..first_at)?;
            }
            if last_at < end {
                self.put_sums(tx, new.before(), &map, size, last_at..end)?;
            }
            self.remove_step(tx, new, first..last.max(first), None)
        })?;
        self.remove_blocks(inode, state, next, last, None)
    }

    /// Makes a range of a leased file read as zeros, and keeps its blocks.
    fn punch_in_place(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let geo = &self.vol.geo;
        let (mut index, last) = (geo.file_block_from(offset), geo.file_block(end));
        // Lost blocks have no block to keep.
        while index < last {
            let extent = map::run(&self.vol, &state.map(), index, last - index)?;
            let next = index + extent.count;
            if extent.lost {
                self.remove_blocks(inode, state, index, next, None)?;
            }
            index = next;
        }
        if self.is_atomic(state) {
            let range = offset..end.min(state.disk.size);
            return self.clear_in_parts(inode, state, range, true, &|_, _, _| Ok(()));
        }
        self.settle_copies(state)?;
        let mut tx = self.vol.begin_at(&inode.last_record);
        let end = end.min(state.disk.size);
        self.zero_written(&mut tx, &state.map(), offset, end)?;
        tx.settle();
        drop(tx);
        // Durable, as they are after a punch that frees blocks.
        self.overwritten(inode, state);
        self.write_times(inode, state)
    }

    /// Checks that a range to be zeroed does not cover only a part of a lost block. The
    /// rest of that block must not read as zeros.
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
    /// The inode before the record.
    state: &'a InodeState,
    map: MapRef,
    /// The first block whose pointer the record changes.
    first: FileBlock,
    /// Next block to process.
    index: FileBlock,
    /// Last block of the range.
    last: FileBlock,
    wanted: State,
    /// Holes that this record fills.
    filled: Vec<(FileBlock, FileBlock)>,
}

impl Step<'_> {
    /// Processes blocks until the range ends (true) or the record is full (false).
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
                Some(block) if extent.unwritten && self.wanted.is_written() => {
                    if !self.convert(tx, block, extent.count)? {
                        return Ok(false);
                    }
                }
                Some(block) => {
                    if self.wanted.is_written() {
                        // A mapping can store to a written block, if it has room.
                        let geo = &self.engine.vol.geo;
                        let len = geo.bytes(extent.count);
                        self.engine.vol.region.need_room(geo.offset(block).0, len)?;
                    }
                    self.index += extent.count;
                }
                // A new block would hide the loss, so only zeroing replaces a lost one.
                None if extent.lost && self.wanted != State::Cleared => {
                    let at = self.engine.vol.geo.file_offset(self.index);
                    return Err(self.engine.lost(self.map.ino, at));
                }
                None => {
                    self.engine.may_fill(self.state, &extent)?;
                    // Stop at the next aligned part, which can become a huge leaf.
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

    /// Zeroes unwritten blocks, those ahead only below the end of the file, and marks them as
    /// written. False if the record is full.
    fn convert(&mut self, tx: &mut Plan<'_>, block: Bno, count: u64) -> Result<bool> {
        let vol = &self.engine.vol;
        let geo = &vol.geo;
        let leaf = map::find(vol, &self.map, self.index)?;
        let (first, at, want) = match leaf.block {
            Some(whole) if leaf.count > 1 => (leaf.first, whole, leaf.count),
            _ => (self.index, block, count),
        };
        self.first = self.first.min(first);
        let n = map::set_written(tx, &mut self.map, first, want)?;
        let seen = match self.wanted {
            State::Ahead => {
                vol.region.need_room(geo.offset(at).0, geo.bytes(n))?;
                vol.region.set_aside(geo.offset(at).0, geo.bytes(n));
                // A whole leaf may begin before the end.
                let end = geo.file_block_from(self.state.disk.size);
                n.min(end.0.saturating_sub(first.0))
            }
            _ => n,
        };
        if seen > 0 {
            tx.zero_new(geo.offset(at), geo.bytes(seen))?;
        }
        self.index = self.index.max(first + n);
        Ok(n > 0)
    }

    /// Fills a part of a hole of `count` blocks. False if the record is full. `lost`: the
    /// hole has marks of lost pointers.
    fn allocate(&mut self, tx: &mut Plan<'_>, count: u64, lost: bool) -> Result<bool> {
        let vol = &self.engine.vol;
        let geo = &vol.geo;
        let span = geo.fan();
        let goal = self.engine.goal(&self.map, self.index)?;
        let unwritten = !self.wanted.is_written();
        let left = geo.bytes(self.last - self.index + 1);
        let aligned = geo.huge_leaves && geo.slot_of(self.index) == 0;
        // The marks of lost pointers may be in a pointer block, where a huge leaf cannot go.
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
        if matches!(
            self.wanted,
            State::Zeroed | State::ZeroedAhead | State::AheadCleared
        ) {
            tx.zero_new(geo.offset(run.start), geo.bytes(run.len))?;
        }
        if self.wanted == State::Ahead {
            // Nothing is stored here before the holder does so without a window: a save that goes
            // on copies what was in use at its moment before the block is in the map.
            vol.region
                .set_aside(geo.offset(run.start).0, geo.bytes(run.len));
        }
        match self.filled.last_mut() {
            Some((_, end)) if *end == self.index => *end += run.len,
            _ => self.filled.push((self.index, self.index + run.len)),
        }
        self.index += run.len;
        Ok(true)
    }
}
