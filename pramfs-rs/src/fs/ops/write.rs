//! Writing and appending.
//!
//! Bytes in written blocks are overwritten in place, with one fence and no record.
//! Every other write is a chain of records. Each record makes the bytes up to some
//! point of the range durable and visible, together with the size: a crash leaves
//! a prefix.
//!
//! Bytes past the end of a file in its written blocks are undefined. An operation
//! that extends the file zeroes them first, by [`Engine::zero_written`].

use crate::credentials::Credentials;
use crate::fs::cache::extent_cache::ExtentCache;
use crate::fs::engine::change::Edit;
use crate::fs::engine::room;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::{store_healed, touch_mtime};
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::ops::write_source::WriteSource;
use crate::fs::policy::chattr;
use crate::fs::policy::chattr::WRITE_FLAGS;
use crate::fs::policy::suid::sgid;
use crate::fs::steps::attributes::lock_and_check_group;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::{self, Extent, MapRef};
use pramfs_medium::media::inode::{FL_APPEND, FL_SYNC};
use pramfs_medium::pmem::PmemError;
use pramfs_medium::types::{BlockRun, Bno, FileBlock, Ino};
use pramfs_medium::volume::{Plan, Record};

/// Minimum append, in bytes, that gets a 2 MiB leaf at an aligned end of file even
/// if it does not fill the leaf.
const HUGE_APPEND: u64 = 1 << 20;

impl Engine {
    /// Writes to a file. The bytes are durable when it returns. The write is short if
    ///
    /// - the region is full,
    /// - the maximum offset is reached, or
    /// - the next block was lost and would be written only in part.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`] and [`Error::Lost`] if no byte was
    /// written;
    /// [`Error::IsDirectory`], [`Error::Invalid`], [`Error::Corrupt`];
    /// [`Error::NotPermitted`] if the file is immutable or append-only.
    pub fn write(
        &self,
        caller: &Credentials<'_>,
        ino: Ino,
        offset: u64,
        from: &[u8],
    ) -> Result<usize> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            let (mut state, keeps_sgid) =
                lock_and_check_group(&inode, caller, |state| sgid(&state.disk));
            check_file(inode.ino, &state)?;
            if state.disk.flags & WRITE_FLAGS == 0 && keeps_sgid {
                return self.write_locked(&inode, &mut state, offset, from);
            }
            chattr::check_write(&state.disk)?;
            if !keeps_sgid {
                self.drop_sgid(&inode, &mut state)?;
            }
            let n = self.write_locked(&inode, &mut state, offset, from)?;
            self.sync_if_flagged(&state)?;
            Ok(n)
        })
    }

    /// As [`write`](Self::write), for dirty pages of a mapping.
    ///
    /// - A file that has become immutable is written: the mapping was permitted when
    ///   it was created.
    /// - An append-only file must not be mapped for writing. The kernel does not know
    ///   the flag, so the write-back is refused here.
    ///
    /// Either all bytes are written, or the call returns the error of the first part
    /// that failed. Earlier parts stay written. If space is missing or a block was
    /// lost, later parts that need no space are still written.
    ///
    /// # Errors
    /// As for [`write`](Self::write), if any byte was not written.
    pub fn write_back(&self, ino: Ino, offset: u64, from: &[u8]) -> Result<()> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            if state.disk.flags & FL_APPEND != 0 {
                chattr::check_write(&state.disk)?;
            }
            let block = self.vol.geo.block_size;
            let (mut done, mut all) = (0, Ok(()));
            while done < from.len() {
                let at = offset + done as u64;
                // A short write does not tell the reason; writing the rest does.
                let refused = match self.write_locked(&inode, &mut state, at, &from[done..]) {
                    Ok(n) if n > 0 => {
                        done += n;
                        continue;
                    }
                    Ok(_) => Error::NoSpace("no byte of a page could be written"),
                    Err(refused) => refused,
                };
                let no_room = matches!(refused, Error::Pmem(PmemError::NoRoom { .. }));
                let goes_on = no_room || matches!(refused, Error::NoSpace(_) | Error::Lost { .. });
                // Keep the error that makes the operation run again with more room.
                all = match all {
                    Err(Error::NoSpace(_)) if no_room => Err(refused),
                    all => all.and(Err(refused)),
                };
                if !goes_on {
                    break;
                }
                // Allocated blocks need no space, and the next block may not be lost.
                done += (block - at % block) as usize;
            }
            all
        })
    }

    /// As [`write`](Self::write), for a caller that holds the inode.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    #[inline]
    pub(crate) fn write_held(
        &self,
        inode: &Inode,
        extents: &ExtentCache,
        offset: u64,
        from: &[u8],
    ) -> Result<usize> {
        self.op(Need::Write, || {
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            if state.disk.flags & WRITE_FLAGS != 0 {
                chattr::check_write(&state.disk)?;
                let n = self.write_locked(inode, &mut state, offset, from)?;
                self.sync_if_flagged(&state)?;
                return Ok(n);
            }
            let (range, records) = ((offset, from.len()), state.records);
            let end = offset.checked_add(from.len() as u64);
            if end.is_some_and(|end| end <= state.disk.size)
                && let Some(at) = self.lookup_extent(extents, records, range)
            {
                return self.overwrite_at(inode, &mut state, at, from);
            }
            let n = self.write_locked(inode, &mut state, offset, from)?;
            // A write that commits records would invalidate the cached extent.
            if state.records == records {
                self.fill_extent(extents, records, &state.map(), range, || true);
            }
            Ok(n)
        })
    }

    /// Syncs the medium after a write to a file with `chattr +S`, for media where a
    /// fence only orders stores.
    #[inline]
    pub(crate) fn sync_if_flagged(&self, state: &InodeState) -> Result<()> {
        if state.disk.flags & FL_SYNC != 0 {
            self.sync_medium()?;
        }
        Ok(())
    }

    pub(crate) fn write_locked<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        from: S,
    ) -> Result<usize> {
        if from.len() == 0 {
            return Ok(0);
        }
        let max = self.vol.geo.max_file_size();
        if offset >= max {
            return Err(Error::TooLarge(offset));
        }
        let from =
            from.part(0..usize::try_from(max - offset).map_or(from.len(), |n| n.min(from.len())));
        if offset + from.len() as u64 <= state.disk.size
            && self.overwrite(inode, state, offset, from)?
        {
            return Ok(from.len());
        }
        self.finish_truncate(inode, state)?;
        let mut done = 0;
        while done < from.len() {
            match self.write_some(
                inode,
                state,
                offset + done as u64,
                from.part(done..from.len()),
            ) {
                Ok(n) => done += n,
                Err(e) if done > 0 && room::ends_short(&e) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// The fast path: the range lies in one run of written blocks. False if it does
    /// not.
    #[inline]
    fn overwrite<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        from: S,
    ) -> Result<bool> {
        let geo = &self.vol.geo;
        let within = offset & (geo.block_size - 1);
        let blocks = (within + from.len() as u64).div_ceil(geo.block_size);
        let extent = map::run(&self.vol, &state.map(), geo.file_block(offset), blocks)?;
        let Some(block) = extent
            .block
            .filter(|_| !extent.unwritten && extent.count == blocks)
        else {
            return Ok(false);
        };
        self.overwrite_at(inode, state, geo.offset(block) + within, from)?;
        Ok(true)
    }

    /// Overwrites written bytes of a file in place; `at` is the offset in the region.
    #[inline]
    fn overwrite_at<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        at: u64,
        from: S,
    ) -> Result<usize> {
        let pending = from.store(&self.vol.region, at)?;
        // Before the fence: overlaps this work in memory with the write-back.
        self.overwritten(inode, state);
        let _ = self.vol.region.window().fence(pending);
        Ok(from.len())
    }

    /// Sets the times of a write without a record. The timer writes them to the
    /// medium within a second.
    #[inline]
    pub(crate) fn overwritten(&self, inode: &Inode, state: &mut InodeState) {
        touch_mtime(&mut state.disk, self.now());
        state.disk.change = state.disk.change.wrapping_add(1);
        state.lazy.mtime = true;
        self.note_lazy(inode);
    }

    /// Writes as many bytes as fit one record, at least one.
    fn write_some<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        from: S,
    ) -> Result<usize> {
        let mut len = from.len();
        loop {
            match self.try_write_some(inode, state, offset, from.part(0..len))? {
                Attempt::Written(n) => return Ok(n),
                Attempt::WrittenInPlace(n) => {
                    self.overwritten(inode, state);
                    return Ok(n);
                }
                Attempt::TooMuch { less } => len = less,
            }
        }
    }

    fn try_write_some<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        from: S,
    ) -> Result<Attempt> {
        let mut new = Edit::new(inode, state);
        let mut tx = self.begin(inode);
        let mut w = Writer {
            engine: self,
            state: new.before(),
            map: new.before().map(),
            size: new.before().disk.size,
            offset,
            from,
            pos: offset,
            last: None,
            tried: 0,
        };
        if offset > w.size {
            self.zero_written(&mut tx, &w.map, w.size, offset)?;
        }
        let filled = w.fill(&mut tx);
        let (done, tried) = (w.pos - offset, w.tried);
        let filled = filled.and_then(|last| match last {
            None => Ok(tx.end()),
            Some(last) => {
                // The lane stays locked while the bytes are stored, so only for few.
                let mut record = tx.lock_lane(&[&inode.last_record]);
                w.store_last(&mut record, &last)?;
                Ok(record)
            }
        });
        let mut record = match filled {
            Ok(record) => record,
            // No space for a pointer block. The record is dropped. The next attempt ends
            // at the failed block, or has half of the blocks.
            Err(e) if (done > 0 || tried > 1) && room::is_out_of_space(&e) => {
                let half = self.vol.geo.bytes(tried / 2);
                let less = if done > 0 {
                    done
                } else {
                    half.min(from.len() as u64 / 2)
                };
                return Ok(Attempt::TooMuch {
                    less: less.max(1) as usize,
                });
            }
            Err(e) => return Err(e),
        };
        let Writer { pos, map, size, .. } = w;
        if pos <= size && map == new.before().map() && record.has_no_record() {
            record.settle();
            return Ok(Attempt::WrittenInPlace((pos - offset) as usize));
        }
        store_healed(&record, &mut new, &map);
        new.size = new.size.max(pos);
        touch_mtime(&mut new, self.now());
        let new = new.stage(&mut record)?;
        self.commit(record, [new])?;
        Ok(Attempt::Written((pos - offset) as usize))
    }
}

/// The outcome of an attempt to write with one record.
enum Attempt {
    /// So many bytes are written.
    Written(usize),
    /// So many bytes are written, all in written blocks: no record was needed.
    WrittenInPlace(usize),
    /// Nothing is written. So many bytes may fit.
    TooMuch { less: usize },
}

/// The part of a write that goes into one record.
struct Writer<'a, 'c, S> {
    engine: &'a Engine,
    /// The inode before.
    state: &'c InodeState,
    map: MapRef,
    /// Size of the file before.
    size: u64,
    /// Where `from` is written.
    offset: u64,
    from: S,
    /// Everything before this is written.
    pos: u64,
    /// The block after the last that was written.
    last: Option<Bno>,
    /// Number of blocks allocated last, before their pointers were.
    tried: u64,
}

/// The last blocks of a write, which are taken but not stored: few blocks with a known
/// pointer block.
struct LastRun {
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

impl<S: WriteSource> Writer<'_, '_, S> {
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
    fn fill(&mut self, tx: &mut Plan<'_>) -> Result<Option<LastRun>> {
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
                    self.store(tx, block, index, index + extent.count)?;
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
    fn store_last(&mut self, tx: &mut Record<'_>, last: &LastRun) -> Result<()> {
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
            if map::set_written(tx, &mut self.map, leaf.first, leaf.count)? == 0 {
                return Ok(Step::Full);
            }
            self.store_whole(tx, block, leaf.first, leaf.first + leaf.count)?;
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
            // Blocks of the leaf past the last block written stay undefined.
            let end = geo.file_block_from(self.end()).min(extent.index + span);
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
