//! The part of a write that goes into one record.
//!
//! Bytes for holes and unwritten blocks go to blocks that no written pointer names yet. The
//! record makes them visible; its commit fences them first. Bytes for written blocks are
//! overwritten in place, or staged, if the write is to be atomic.

use std::ops::Range;

use crate::fs::Engine;
use crate::fs::engine::room;
use crate::fs::inode::state::InodeState;
use crate::fs::ops::write_source::{Copies, WriteSource, stage};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::{self, Extent, MapRef};
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::types::{BlockRun, Bno, FileBlock};
use pramfs_medium::volume::{Plan, Record};

/// Minimum append, in bytes, that gets a 2 MiB leaf at an aligned end of file even
/// if it does not fill the leaf.
const HUGE_APPEND: u64 = 1 << 20;

/// The part of a write that goes into one record.
pub(super) struct Writer<'a, 'c, S> {
    pub(super) engine: &'a Engine,
    /// The inode before.
    pub(super) state: &'c InodeState,
    pub(super) map: MapRef,
    /// Size of the file before.
    pub(super) size: u64,
    /// Where `from` is written.
    pub(super) offset: u64,
    pub(super) from: S,
    /// The first block whose pointer the write changes.
    pub(super) first: FileBlock,
    /// Leaves of 2 MiB that have become written as a whole: their first block, and the end of the
    /// last.
    pub(super) whole_leaves: Range<FileBlock>,
    /// Everything before this is written.
    pub(super) pos: u64,
    /// The block after the last that was written.
    pub(super) last: Option<Bno>,
    /// Number of blocks allocated last, before their pointers were.
    pub(super) tried: u64,
    /// If the write is to be atomic, what is staged.
    pub(super) copies: Option<Copies<S>>,
    /// Bytes past the end of the file, which nobody sees before the record, need not be staged.
    pub(super) past_end_in_place: bool,
}

/// The last blocks of a write, which are taken but not stored: few blocks with a known
/// pointer block.
pub(super) struct LastRun {
    table: Bno,
    /// File block of the first.
    first: FileBlock,
    run: BlockRun,
}

/// How far one step of a write went.
enum Step {
    /// The blocks are stored.
    Stored,
    /// The blocks are taken, and the rest of the write allocates nothing.
    Last(LastRun),
    /// The record is full, or the region is full and some bytes have been written.
    Full,
}

impl<'a, 'c, S: WriteSource> Writer<'a, 'c, S> {
    pub(super) fn new(
        engine: &'a Engine,
        state: &'c InodeState,
        offset: u64,
        from: S,
    ) -> Writer<'a, 'c, S> {
        Writer {
            engine,
            state,
            map: state.map(),
            size: state.disk.size,
            offset,
            from,
            first: engine.vol.geo.file_block(offset),
            whole_leaves: FileBlock::END..FileBlock(0),
            pos: offset,
            last: None,
            tried: 0,
            copies: None,
            past_end_in_place: true,
        }
    }

    fn end(&self) -> u64 {
        self.offset + self.from.len() as u64
    }

    /// Stores the bytes for the file blocks `first..end` at `block` and following.
    fn store(
        &mut self,
        tx: &mut Record<'_>,
        block: Bno,
        first: FileBlock,
        end: FileBlock,
    ) -> Result<()> {
        let geo = &self.engine.vol.geo;
        let (start, stop) = (geo.file_offset(first), geo.file_offset(end).min(self.end()));
        let bytes = self
            .from
            .part((self.pos - self.offset) as usize..(stop - self.offset) as usize);
        let at = geo.offset(block) + (self.pos - start);
        let pending = bytes.store(&self.engine.vol.region, at)?;
        tx.stored_new(pending);
        self.last = Some(block.after(end - first));
        self.pos = stop;
        Ok(())
    }

    /// Stores the bytes for the written file blocks `first..end` at `block` and following: in
    /// place, or in staging blocks.
    fn overwrite(
        &mut self,
        tx: &mut Plan<'_>,
        block: Bno,
        first: FileBlock,
        end: FileBlock,
    ) -> Result<()> {
        let Some(copies) = &mut self.copies else {
            return self.store(tx, block, first, end);
        };
        let geo = &self.engine.vol.geo;
        let write_end = self.offset + self.from.len() as u64;
        let (start, stop) = (geo.file_offset(first), geo.file_offset(end).min(write_end));
        let staged = match self.past_end_in_place {
            true => stop.min(self.size),
            false => stop,
        };
        if self.pos < staged {
            let range = (self.pos - self.offset) as usize..(staged - self.offset) as usize;
            let to = geo.offset(block) + (self.pos - start);
            stage(tx, to, self.from.part(range), copies)?;
            self.pos = staged;
        }
        self.last = Some(block.after(end - first));
        match self.pos < stop {
            true => self.store(tx, block, first, end),
            false => Ok(()),
        }
    }

    /// Zeroes the rest of the last block of a write that makes the file longer, if other
    /// processes may have mapped it: past its end they see zeros, up to the next page.
    fn zero_rest(&mut self, tx: &mut Record<'_>, extent: &Extent, block: Bno) -> Result<()> {
        let geo = &self.engine.vol.geo;
        let (first, end) = (geo.file_offset(extent.index), self.end());
        let last = self.engine.end_of_zeros(self.state, end);
        let is_here = (first..geo.file_offset(extent.index + extent.count)).contains(&end);
        if end > self.size && last > end && is_here {
            tx.zero_new(geo.offset(block) + (end - first), last - end)?;
        }
        Ok(())
    }

    /// As [`store`](Self::store), and zeroes the rest of the blocks.
    fn store_whole(
        &mut self,
        tx: &mut Record<'_>,
        block: Bno,
        first: FileBlock,
        end: FileBlock,
    ) -> Result<()> {
        let geo = &self.engine.vol.geo;
        let base = geo.offset(block);
        let (from, to) = (geo.file_offset(first), geo.file_offset(end));
        let stop = to.min(self.end());
        if self.pos > from {
            tx.zero_new(base, self.pos - from)?;
        }
        if stop < to {
            tx.zero_new(base + (stop - from), to - stop)?;
        }
        self.store(tx, block, first, end)
    }

    /// Takes and stores blocks until the end of the range or until the record is full.
    pub(super) fn fill(&mut self, tx: &mut Plan<'_>) -> Result<Option<LastRun>> {
        let geo = &self.engine.vol.geo;
        while self.pos < self.end() {
            let index = geo.file_block(self.pos);
            let mut blocks = geo.blocks_of(self.pos, self.end());
            let aligned = geo.huge_leaves && geo.slot_of(index) == 0;
            if aligned && self.end() - self.pos >= HUGE_APPEND {
                // Look at the whole 2 MiB range: a huge leaf needs all of it a hole.
                blocks = blocks.max(geo.fan());
            }
            let mut extent = map::run(&self.engine.vol, &self.map, index, blocks)?;
            if extent.lost {
                extent.count = self.rewritable_lost_blocks(&extent);
                if extent.count == 0 && self.pos > self.offset {
                    break;
                }
                if extent.count == 0 {
                    return Err(self.engine.lost(self.map.ino, self.pos));
                }
            }
            let step = match extent.block {
                Some(block) if !extent.unwritten => {
                    self.zero_rest(tx, &extent, block)?;
                    self.overwrite(tx, block, index, index + extent.count)?;
                    Step::Stored
                }
                Some(_) => self.convert(tx, &extent)?,
                None => {
                    self.engine.may_fill(self.state, &extent)?;
                    self.allocate(tx, &extent, aligned)?
                }
            };
            match step {
                Step::Stored => {}
                Step::Last(last) => return Ok(Some(last)),
                Step::Full if self.pos == self.offset => {
                    return Err(Error::NotSupported(
                        "a write that does not fit a journal record",
                    ));
                }
                Step::Full => break,
            }
        }
        Ok(None)
    }

    /// Stores the last blocks, and their pointers.
    pub(super) fn store_last(&mut self, tx: &mut Record<'_>, last: &LastRun) -> Result<()> {
        let &LastRun { table, first, run } = last;
        // The bytes first: the rest overlaps their write-back.
        self.store_whole(tx, run.start, first, first + run.len)?;
        map::insert_into(tx, &mut self.map, table, first, run)
    }

    /// Returns how many of the lost blocks this write covers completely, up to the
    /// end of the file. The unwritten rest of a lost block must not read as if it
    /// had been written.
    #[cold]
    fn rewritable_lost_blocks(&self, extent: &Extent) -> u64 {
        let geo = &self.engine.vol.geo;
        let start = geo.file_offset(extent.index);
        if self.offset > start && start < self.size {
            return 0;
        }
        let end = match self.end() {
            end if end >= self.size => geo.file_block_from(end),
            end => geo.file_block(end),
        };
        // Blocks past the end of the file held no data.
        let past = geo.file_block_from(self.size);
        let end = if past <= extent.index {
            FileBlock::END
        } else {
            end
        };
        extent.count.min(end.0.saturating_sub(extent.index.0))
    }

    /// Writes to unwritten blocks.
    fn convert(&mut self, tx: &mut Plan<'_>, extent: &Extent) -> Result<Step> {
        let geo = &self.engine.vol.geo;
        let leaf = map::find(&self.engine.vol, &self.map, extent.index)?;
        let Some(block) = leaf.block else {
            return Ok(Step::Full);
        };
        if leaf.count > 1 {
            // A 2 MiB leaf becomes written as a whole.
            let end = leaf.first + leaf.count;
            self.first = self.first.min(leaf.first);
            self.whole_leaves =
                self.whole_leaves.start.min(leaf.first)..self.whole_leaves.end.max(end);
            if map::set_written(tx, &mut self.map, leaf.first, leaf.count)? == 0 {
                return Ok(Step::Full);
            }
            self.store_whole(tx, block, leaf.first, end)?;
            return Ok(Step::Stored);
        }
        let blocks = geo.file_block(self.end() - 1) - extent.index + 1;
        let n = map::set_written(tx, &mut self.map, extent.index, extent.count.min(blocks))?;
        if n == 0 {
            return Ok(Step::Full);
        }
        self.store_whole(tx, block, extent.index, extent.index + n)?;
        Ok(Step::Stored)
    }

    /// Returns the preferred block for a hole: the one after the preceding block.
    #[inline]
    fn goal(&self, extent: &Extent) -> Result<Option<Bno>> {
        let Engine { vol, .. } = self.engine;
        // Its pointer is usually in the same pointer block.
        if let Some(table) = extent.table
            && vol.geo.slot_of(extent.index) != 0
            && let Some(block) =
                map::in_table(vol, &self.map, table, FileBlock(extent.index.0 - 1))?
        {
            return Ok(Some(block.after(1)));
        }
        self.engine.goal(&self.map, extent.index)
    }

    /// Writes to a hole.
    fn allocate(&mut self, tx: &mut Plan<'_>, extent: &Extent, aligned: bool) -> Result<Step> {
        let geo = &self.engine.vol.geo;
        let span = geo.fan();
        let goal = match self.last {
            Some(next) => Some(next),
            None => self.goal(extent)?,
        };
        let left = self.end() - self.pos;
        let huge = aligned
            && !extent.lost
            && extent.count >= span
            && (left >= geo.bytes(span) || left >= HUGE_APPEND && self.pos >= self.size)
            && map::plan_huge(tx, &self.map, extent.index)?;
        let huge = match huge {
            true => (tx.alloc_aligned(goal.unwrap_or(Bno(0)), span as u32))
                .map_err(room::request_room_or_less(&self.engine.vol.region, left))?,
            false => None,
        };
        if let Some(run) = huge {
            self.tried = span;
            map::insert_huge(tx, &mut self.map, extent.index, run, false)?;
            // Blocks of the leaf past the last block written stay undefined, but not in a file with
            // leases: a holder may learn of them that may not see what they held.
            let end = match self.state.leases.is_empty() {
                true => geo.file_block_from(self.end()).min(extent.index + span),
                false => extent.index + span,
            };
            // A later holder of a lease stores to the others without a window, so a save that goes
            // on copies them before they are in the map.
            let stored = end - extent.index;
            let others = geo.offset(run.start.after(stored));
            let region = &self.engine.vol.region;
            region.set_aside(others.0, geo.bytes(span - stored));
            self.store_whole(tx, run.start, extent.index, end)?;
            return Ok(Step::Stored);
        }
        let blocks = geo.file_block(self.end() - 1) - extent.index + 1;
        let n = map::plan(
            tx,
            &self.map,
            extent.index,
            extent.count.min(blocks).min(u64::from(u32::MAX)),
        )?;
        if n == 0 {
            return Ok(Step::Full);
        }
        let run = match tx.alloc_blocks(goal, n as u32, false) {
            Ok(run) => run,
            Err(e) if self.pos > self.offset && room::is_out_of_space(&e) => return Ok(Step::Full),
            Err(e) => return Err(room::request_room_or_less(&self.engine.vol.region, left)(e)),
        };
        self.tried = run.len;
        self.map.healed |= extent.lost;
        let left = span - geo.slot_of(extent.index);
        let BlockRun { start, len } = run;
        let (first, end) = (extent.index, extent.index + len);
        match extent.table {
            Some(table) if len <= left => {
                // The caller locks the lane while it stores them, so only for few.
                if geo.file_offset(end) >= self.end()
                    && len <= crate::fs::cache::append_cursor::MAX_APPEND_BLOCKS
                {
                    return Ok(Step::Last(LastRun { table, first, run }));
                }
                // The bytes first: the rest overlaps their write-back.
                self.store_whole(tx, start, first, end)?;
                map::insert_into(tx, &mut self.map, table, first, run)?;
            }
            _ => {
                map::insert(tx, &mut self.map, first, run, false)?;
                self.store_whole(tx, start, first, end)?;
            }
        }
        Ok(Step::Stored)
    }
}
