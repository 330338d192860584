//! Writing and appending.
//!
//! Bytes of blocks that are in use and written are overwritten in place: one
//! fence, no record. Everything else is a chain of records, each of which makes
//! the bytes before some point of the range durable and visible, size
//! included: a crash leaves a prefix.
//!
//! What lies past the end of a file in its written blocks is undefined: what
//! extends the file zeroes it first, in [`Engine::zero_written`].

use super::ExtentCache;
use super::attr::{InGroup, any_group, lock_and_check_group, sgid};
use super::completeness::Hole;
use super::inode::{Inode, InodeState, put_inode, store_healed, touch_mtime};
use super::read::check_file;
use super::write_source::WriteSource;
use super::{Engine, Need, chattr, room};
use crate::alloc::Run;
use crate::error::{Error, Result};
use crate::journal::LastRecord;
use crate::map::{self, Extent, MapRef};
use crate::media::inode::{FL_APPEND, FL_IMMUTABLE, FL_SYNC};
use crate::pmem::PmemError;
use crate::types::{Bno, Ino};
use crate::volume::Tx;

/// An append of so many bytes at an aligned end of file gets a 2 MiB leaf
/// though it does not fill it.
const HUGE_APPEND: u64 = 1 << 20;

/// Flags that a write has to look at.
pub(super) const WRITE_FLAGS: u32 = FL_SYNC | FL_IMMUTABLE | FL_APPEND;

impl Engine {
    /// Writes to a file; durable when it returns. Fewer bytes than asked for
    /// are written where the region is full, the largest offset is reached, or a
    /// block follows that was lost and would be written in part.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`] and [`Error::Lost`] where no byte
    /// was written;
    /// [`Error::IsDirectory`], [`Error::Invalid`], [`Error::Corrupt`];
    /// [`Error::NotPermitted`] where it is immutable or append-only.
    pub fn write(&self, ino: Ino, offset: u64, from: &[u8]) -> Result<usize> {
        self.write_by(ino, offset, from, &any_group)
    }

    /// As [`write`](Self::write), by somebody of whom `in_group` tells whether a
    /// group is theirs: any_group else's write leaves no sgid.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn write_by(
        &self,
        ino: Ino,
        offset: u64,
        from: &[u8],
        in_group: InGroup<'_>,
    ) -> Result<usize> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            let (mut state, keeps_sgid) =
                lock_and_check_group(&inode, in_group, |state| sgid(&state.disk));
            check_file(&inode, &state)?;
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

    /// As [`write`](Self::write), for what a mapping of somebody else's has
    /// changed: of a file that has become immutable since, that was allowed when
    /// the mapping was made. One that can only grow never lets be mapped for it;
    /// as the kernel does not know, it is refused here.
    ///
    /// All of it is written, or there is an error: that of the first part that
    /// could not be. What was written before stays; where space was missing,
    /// what lies behind and needs none is written as well, and what lies behind
    /// a block that was lost.
    ///
    /// # Errors
    /// As for [`write`](Self::write), where any byte was not written.
    pub fn write_back(&self, ino: Ino, offset: u64, from: &[u8]) -> Result<()> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            check_file(&inode, &state)?;
            if state.disk.flags & FL_APPEND != 0 {
                chattr::check_write(&state.disk)?;
            }
            let block = self.vol.geo.block_size;
            let (mut done, mut all) = (0, Ok(()));
            while done < from.len() {
                let at = offset + done as u64;
                // Where this is short it does not say why: the rest does.
                let refused = match self.write_locked(&inode, &mut state, at, &from[done..]) {
                    Ok(n) if n > 0 => {
                        done += n;
                        continue;
                    }
                    Ok(_) => Error::NoSpace("nothing of a page could be written"),
                    Err(refused) => refused,
                };
                let no_room = matches!(refused, Error::Pmem(PmemError::NoRoom { .. }));
                let goes_on = no_room || matches!(refused, Error::NoSpace(_) | Error::Lost { .. });
                // What is run again with more room is not to be missed.
                all = match all {
                    Err(Error::NoSpace(_)) if no_room => Err(refused),
                    all => all.and(Err(refused)),
                };
                if !goes_on {
                    break;
                }
                // What has its blocks already needs no space, and the next block
                // may be whole.
                done += (block - at % block) as usize;
            }
            all
        })
    }

    /// As [`write`](Self::write), for who holds the inode.
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
            check_file(inode, &state)?;
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
            // What makes records makes what is known worthless each time.
            if state.records == records {
                self.fill_extent(extents, records, &state.map(), range, || true);
            }
            Ok(n)
        })
    }

    /// `chattr +S`: where a fence only orders stores, what has been written
    /// goes out now.
    #[inline]
    pub(super) fn sync_if_flagged(&self, state: &InodeState) -> Result<()> {
        if state.disk.flags & FL_SYNC != 0 {
            self.sync_medium()?;
        }
        Ok(())
    }

    /// Writes at the end of the file, wherever that is; returns where that
    /// was. All of it is written, or nothing.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn append(&self, ino: Ino, from: &[u8]) -> Result<u64> {
        self.op(Need::Write, || {
            self.append_inode(&*self.iget_user(ino)?, None, from, &any_group)
        })
    }

    /// One part of an append whose caller has laid it out: it keeps other
    /// writers away from the file, and knows its end. Parts may come in any
    /// order; one that comes early leaves zeros for those before it. All of
    /// the part is written, or the file does not grow by it.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn append_part(&self, ino: Ino, offset: u64, from: &[u8]) -> Result<()> {
        self.append_part_by(ino, offset, from, &any_group)
    }

    /// As [`append_part`](Self::append_part), as for
    /// [`write_by`](Self::write_by).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn append_part_by(
        &self,
        ino: Ino,
        offset: u64,
        from: &[u8],
        in_group: InGroup<'_>,
    ) -> Result<()> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            self.append_inode(&inode, Some(offset), from, in_group)
                .map(drop)
        })
    }

    /// At `offset`, or at the end of the file.
    pub(super) fn append_inode(
        &self,
        inode: &Inode,
        offset: Option<u64>,
        from: &[u8],
        in_group: InGroup<'_>,
    ) -> Result<u64> {
        let (mut state, keeps_sgid) =
            lock_and_check_group(inode, in_group, |state| sgid(&state.disk));
        check_file(inode, &state)?;
        chattr::check_append(&state.disk)?;
        if !keeps_sgid {
            self.drop_sgid(inode, &mut state)?;
        }
        let size = state.disk.size;
        let offset = offset.unwrap_or(size);
        if offset < size {
            // Who says where may not say anywhere.
            chattr::check_write(&state.disk)?;
        }
        let end = offset.saturating_add(from.len() as u64);
        if end > self.vol.geo.max_file_size() {
            return Err(Error::TooLarge(end));
        }
        let before = state.disk;
        let n = self.write_locked(inode, &mut state, offset, from);
        let done = state.disk.size.saturating_sub(offset);
        if !matches!(n, Ok(n) if n == from.len()) && state.disk.size != size {
            self.undo(|| match offset >= size {
                true => self.restore_size(inode, &mut state, &before),
                false => self.set_size(inode, &mut state, size),
            })?;
        }
        // The rest, or nothing.
        let n = n.map_err(room::request_all_room(
            (from.len() as u64).saturating_sub(done),
        ))?;
        self.sync_if_flagged(&state)?;
        match n {
            n if n == from.len() => Ok(offset),
            _ => Err(Error::NoSpace("too few free blocks for all of the append")),
        }
    }

    pub(super) fn write_locked<S: WriteSource>(
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

    /// The short way: the range lies in one run of written blocks.
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
        let extent = map::run(&self.vol, &state.map(), offset >> geo.block_log2, blocks)?;
        let Some(block) = extent
            .block
            .filter(|_| !extent.unwritten && extent.count == blocks)
        else {
            return Ok(false);
        };
        self.overwrite_at(inode, state, geo.offset(block) + within, from)?;
        Ok(true)
    }

    /// Overwrites written bytes of a file where they stand in the region.
    #[inline]
    fn overwrite_at<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        at: u64,
        from: S,
    ) -> Result<usize> {
        let pending = from.store(&self.vol.region, at)?;
        // In memory, while the bytes are on their way.
        self.overwritten(inode, state);
        let _ = self.vol.region.window().fence(pending);
        Ok(from.len())
    }

    /// Times of a write without a record: on the medium within a second.
    #[inline]
    pub(super) fn overwritten(&self, inode: &Inode, state: &mut InodeState) {
        touch_mtime(&mut state.disk, self.now());
        state.disk.change = state.disk.change.wrapping_add(1);
        state.lazy.mtime = true;
        self.note_lazy(inode);
    }

    /// Writes as much as one record takes, at least one byte.
    fn write_some<S: WriteSource>(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        offset: u64,
        from: S,
    ) -> Result<usize> {
        let mut w = Writer {
            engine: self,
            state,
            last_record: &inode.last_record,
            tx: self.vol.begin_at(&inode.last_record),
            map: state.map(),
            size: state.disk.size,
            offset,
            from,
            pos: offset,
            last: None,
            tried: 0,
        };
        if offset > state.disk.size {
            self.zero_written(&mut w.tx, &w.map, state.disk.size, offset)?;
        }
        match w.fill() {
            Ok(()) => {}
            // A pointer block was missing: the record is given up, and what
            // was before is written again without it; or less of it.
            Err(e) if (w.pos > offset || w.tried > 1) && room::is_out_of_space(&e) => {
                let half = (w.tried / 2) << self.vol.geo.block_log2;
                let less = if w.pos > offset {
                    w.pos - offset
                } else {
                    half.min(from.len() as u64 / 2)
                };
                drop(w);
                return self.write_some(inode, state, offset, from.part(0..less.max(1) as usize));
            }
            Err(e) => return Err(e),
        }
        let pos = w.pos;
        if pos <= state.disk.size && w.map == state.map() && w.tx.has_no_record() {
            w.tx.settle();
            drop(w);
            self.overwritten(inode, state);
        } else {
            let mut new = state.disk;
            store_healed(&w.tx, &mut new, &w.map);
            new.size = new.size.max(pos);
            touch_mtime(&mut new, self.now());
            put_inode(&mut w.tx, inode, state, &mut new)?;
            w.tx.commit()?;
            state.committed(&new);
        }
        Ok((pos - offset) as usize)
    }

    /// Zeroes what of a range, in bytes, lies in written blocks. The caller
    /// makes it visible, or it is being made to read as zeros.
    pub(super) fn zero_written(
        &self,
        tx: &mut Tx<'_>,
        map: &MapRef,
        from: u64,
        to: u64,
    ) -> Result<()> {
        let geo = &self.vol.geo;
        let mut at = from;
        while at < to {
            let index = at >> geo.block_log2;
            let extent = map::run(
                &self.vol,
                map,
                index,
                ((to - 1) >> geo.block_log2) - index + 1,
            )?;
            let end = to.min((index + extent.count) << geo.block_log2);
            if let Some(block) = extent.block.filter(|_| !extent.unwritten) {
                tx.zero_new(
                    geo.offset(block) + (at - (index << geo.block_log2)),
                    end - at,
                )?;
            }
            at = end;
        }
        Ok(())
    }

    /// A hole that is to be filled is one. Who only puts blocks behind the end of
    /// a file need not know: there is nothing to be lost, and its blocks stay as
    /// many too few as they were.
    #[inline]
    pub(super) fn may_fill(&self, state: &InodeState, extent: &Extent) -> Result<()> {
        if extent.lost {
            return Ok(());
        }
        let end = state.disk.size.div_ceil(self.vol.geo.block_size);
        if extent.under >= end && state.disk.root != 0 {
            return Ok(());
        }
        self.check_hole(state, Hole::Contents)
    }

    /// Where the block before `index` lies, so that the next can follow it.
    pub(super) fn goal(&self, map: &MapRef, index: u64) -> Result<Option<u64>> {
        let Some(before) = index.checked_sub(1) else {
            return Ok(None);
        };
        let leaf = map::look(&self.vol, map, before)?;
        Ok(leaf.block.map(|b| b.0 + (before - leaf.first) + 1))
    }
}

/// One record's part of a write.
struct Writer<'a, 'c, S> {
    engine: &'a Engine,
    /// The inode before.
    state: &'c InodeState,
    /// Of the inode.
    last_record: &'a LastRecord,
    tx: Tx<'a>,
    map: MapRef,
    /// Size of the file before.
    size: u64,
    /// What is to be written, and where.
    offset: u64,
    from: S,
    /// Everything before this is written.
    pos: u64,
    /// The block after the last that was written.
    last: Option<u64>,
    /// Blocks that were taken last, before their pointers were.
    tried: u64,
}

impl<S: WriteSource> Writer<'_, '_, S> {
    fn end(&self) -> u64 {
        self.offset + self.from.len() as u64
    }

    /// Goes on until the end of the range or of the record's room.
    fn fill(&mut self) -> Result<()> {
        let geo = &self.engine.vol.geo;
        while self.pos < self.end() {
            let index = self.pos >> geo.block_log2;
            let mut blocks = ((self.end() - 1) >> geo.block_log2) - index + 1;
            let aligned = geo.huge_leaves && index.is_multiple_of(1 << geo.fan_log2);
            if aligned && self.end() - self.pos >= HUGE_APPEND {
                // It matters whether all of a 2 MiB range is a hole.
                blocks = blocks.max(1 << geo.fan_log2);
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
            let more = match extent.block {
                Some(block) if !extent.unwritten => {
                    self.store(block, index, index + extent.count)?;
                    true
                }
                Some(_) => self.convert(&extent)?,
                None => {
                    self.engine.may_fill(self.state, &extent)?;
                    self.allocate(&extent, aligned)?
                }
            };
            if !more {
                if self.pos == self.offset {
                    return Err(Error::NotSupported(
                        "a write that does not fit a journal record",
                    ));
                }
                break;
            }
        }
        Ok(())
    }

    /// Of blocks that were lost, how many are written whole, as far as the file
    /// reaches: what would be left of one must not read as if it had been
    /// written.
    #[cold]
    fn rewritable_lost_blocks(&self, extent: &Extent) -> u64 {
        let log2 = self.engine.vol.geo.block_log2;
        let start = extent.index << log2;
        if self.offset > start && start < self.size {
            return 0;
        }
        let end = match self.end() {
            end if end >= self.size => end.div_ceil(1 << log2),
            end => end >> log2,
        };
        // Blocks past the end of the file had nothing to lose.
        let past = self.size.div_ceil(1 << log2);
        let end = if past <= extent.index { u64::MAX } else { end };
        extent.count.min(end.saturating_sub(extent.index))
    }

    /// Stores the bytes for the blocks `first..end`, which lie from `block` on.
    fn store(&mut self, block: Bno, first: u64, end: u64) -> Result<()> {
        let geo = &self.engine.vol.geo;
        let (start, stop) = (
            first << geo.block_log2,
            (end << geo.block_log2).min(self.end()),
        );
        let bytes = self
            .from
            .part((self.pos - self.offset) as usize..(stop - self.offset) as usize);
        let at = geo.offset(block) + (self.pos - start);
        let pending = bytes.store(&self.engine.vol.region, at)?;
        self.tx.stored_new(pending);
        self.last = Some(block.0 + (end - first));
        self.pos = stop;
        Ok(())
    }

    /// As [`store`](Self::store), for blocks that must read as zeros where
    /// nothing is written to them.
    fn store_whole(&mut self, block: Bno, first: u64, end: u64) -> Result<()> {
        let geo = &self.engine.vol.geo;
        let base = geo.offset(block);
        let (from, to) = (first << geo.block_log2, end << geo.block_log2);
        let stop = to.min(self.end());
        if self.pos > from {
            self.tx.zero_new(base, self.pos - from)?;
        }
        if stop < to {
            self.tx.zero_new(base + (stop - from), to - stop)?;
        }
        self.store(block, first, end)
    }

    /// Writes to unwritten blocks; false where the record has no room.
    fn convert(&mut self, extent: &Extent) -> Result<bool> {
        let geo = &self.engine.vol.geo;
        let leaf = map::find(&self.engine.vol, &self.map, extent.index)?;
        let Some(block) = leaf.block else {
            return Ok(false);
        };
        if leaf.count > 1 {
            // A 2 MiB leaf becomes written whole.
            if map::set_written(&mut self.tx, &mut self.map, leaf.first, leaf.count)? == 0 {
                return Ok(false);
            }
            self.store_whole(block, leaf.first, leaf.first + leaf.count)?;
            return Ok(true);
        }
        let blocks = ((self.end() - 1) >> geo.block_log2) - extent.index + 1;
        let n = map::set_written(
            &mut self.tx,
            &mut self.map,
            extent.index,
            extent.count.min(blocks),
        )?;
        if n == 0 {
            return Ok(false);
        }
        self.store_whole(block, extent.index, extent.index + n)?;
        Ok(true)
    }

    /// Where a hole is best filled from: behind the block before it.
    #[inline]
    fn goal(&self, extent: &Extent) -> Result<Option<u64>> {
        let Engine { vol, .. } = self.engine;
        // Mostly that stands in the same pointer block.
        if let Some(table) = extent.table
            && extent.index & ((1 << vol.geo.fan_log2) - 1) != 0
            && let Some(block) = map::in_table(vol, &self.map, table, extent.index - 1)?
        {
            return Ok(Some(block.0 + 1));
        }
        self.engine.goal(&self.map, extent.index)
    }

    /// Writes to a hole; false where the record has no room, or the region has
    /// none and something has been written.
    fn allocate(&mut self, extent: &Extent, aligned: bool) -> Result<bool> {
        let geo = &self.engine.vol.geo;
        let span = 1u64 << geo.fan_log2;
        let goal = match self.last {
            Some(next) => Some(next),
            None => self.goal(extent)?,
        };
        let left = self.end() - self.pos;
        let huge = aligned
            && !extent.lost
            && extent.count >= span
            && (left >= span << geo.block_log2 || left >= HUGE_APPEND && self.pos >= self.size)
            && map::plan_huge(&self.tx, &self.map, extent.index)?;
        let huge = match huge {
            true => (self.tx.alloc_aligned(goal.unwrap_or(0), span as u32))
                .map_err(room::request_room_or_less(&self.engine.vol.region, left))?,
            false => None,
        };
        if let Some(run) = huge {
            self.tried = span;
            map::insert_huge(&mut self.tx, &mut self.map, extent.index, run, false)?;
            // What lies past the end of the file's last block is left as it is.
            let end = (self.end().div_ceil(geo.block_size)).min(extent.index + span);
            self.store_whole(Bno(run.start), extent.index, end)?;
            return Ok(true);
        }
        let blocks = ((self.end() - 1) >> geo.block_log2) - extent.index + 1;
        let n = map::plan(
            &self.tx,
            &self.map,
            extent.index,
            extent.count.min(blocks).min(u64::from(u32::MAX)),
        )?;
        if n == 0 {
            return Ok(false);
        }
        let run = match self.tx.alloc_blocks(goal, n as u32, false) {
            Ok(run) => run,
            Err(e) if self.pos > self.offset && room::is_out_of_space(&e) => return Ok(false),
            Err(e) => return Err(room::request_room_or_less(&self.engine.vol.region, left)(e)),
        };
        self.tried = run.len;
        self.map.healed |= extent.lost;
        let left = span - (extent.index & (span - 1));
        let Run { start, len } = run;
        let (first, end) = (extent.index, extent.index + len);
        match extent.table {
            Some(table) if len <= left => {
                // Others wait for the lane as long as the bytes take.
                if end << geo.block_log2 >= self.end() && len <= super::append::MAX_APPEND_BLOCKS {
                    self.tx.enter(self.last_record);
                }
                // First: the rest is done while the bytes are on their way.
                self.store_whole(Bno(start), first, end)?;
                map::insert_into(&mut self.tx, &mut self.map, table, first, run)?;
            }
            _ => {
                map::insert(&mut self.tx, &mut self.map, first, run, false)?;
                self.store_whole(Bno(start), first, end)?;
            }
        }
        Ok(true)
    }
}
