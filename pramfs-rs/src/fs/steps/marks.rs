//! Marked blocks of files (flag `FL_UNSUMMED`): their sums need not hold, since somebody stores
//! to them without a record, by a view for writing or a lease to write.
//!
//! Invariant: a record marks a block before the first such store is possible. The mark goes with
//! the record that holds the new sum, after the last view and lease of the file. So a crash
//! leaves a block that is marked, or whose sum is right.
//!
//! The mark of a file is one range of its blocks. Another view makes it longer, a lease makes it
//! the whole file. Blocks outside it are read and written with sums as ever. It is summed from
//! its beginning, in steps, by the timer and at unmount. Each step takes the blocks that it has
//! summed out of the range. A mark that a crash leaves is found when the inode is next loaded,
//! or by the timer, which looks for such marks after a mount ([`Engine::find_marked`]).

use std::ops::Range;

use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::inode::marks::bytes_of;
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::policy::chattr;
use crate::fs::steps::sums::has_failed;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
use pramfs_medium::media::inode::{ALL_BLOCKS, NO_BLOCKS};
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::types::{FileBlock, Ino};

/// Bytes of a file that one record sums.
const STEP: u64 = 8 << 20;

/// Bytes that growth sums at once. The sums of more might not fit its record.
const GROWTH: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// Bytes that one tick of the timer sums, so that its other work goes on.
const TICK: u64 = 512 << 20;

/// Bytes that are copied for a snapshot by one operation.
const ASIDE: u64 = 1 << 20;

/// A step takes the time of so many bytes at least.
const LEAST: u64 = 64 << 10;

/// Inodes that take as long as the look at a group.
const OF_GROUP: u64 = 64;

/// Inodes that one tick of the timer looks at, in its search for marked ones.
pub(crate) const LOOKED_AT: u64 = 1 << 16;

impl Engine {
    /// Notes a view for writing of a file, and marks a byte range of it durably.
    /// [`end_stores`](Self::end_stores) follows, unless this fails.
    ///
    /// # Errors
    /// Those of a change of the inode.
    pub(crate) fn begin_stores(&self, ino: Ino, range: Range<u64>) -> Result<()> {
        // First, so that the mark stays once it is there.
        self.marks.begin_view(ino);
        let marked = self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            check_file(inode.ino, &state)?;
            chattr::check_write(&state.disk)?;
            self.mark_range(&inode, &mut state, range.clone())
        });
        // A snapshot that began before has the inode without the mark.
        let saved = marked.and_then(|()| self.set_blocks_aside(ino, range));
        if saved.is_err() {
            self.end_stores(ino);
        }
        saved
    }

    /// Copies the blocks of a byte range for a snapshot that is under way, if there is one. Waits
    /// as a writer of the range does.
    fn set_blocks_aside(&self, ino: Ino, range: Range<u64>) -> Result<()> {
        let (vol, geo) = (&self.vol, &self.vol.geo);
        let mut next = Some(geo.file_block(range.start));
        while let Some(at) = next.filter(|_| vol.region.copies_aside()) {
            next = self.op(Need::Write, || {
                let inode = self.iget_user(ino)?;
                let state = inode.state.read();
                check_file(inode.ino, &state)?;
                let end = geo.file_block_from(range.end.min(state.disk.size));
                if at >= end {
                    return Ok(None);
                }
                let run = map::run(vol, &state.map(), at, end - at)?;
                let Some(block) = run.block else {
                    return Ok(Some(at.saturating_add(run.count.max(1))));
                };
                let count = run.count.clamp(1, geo.whole_blocks(ASIDE));
                vol.region.set_aside(geo.offset(block).0, geo.bytes(count));
                Ok(Some(at.saturating_add(count)))
            })?;
        }
        Ok(())
    }

    /// Ends what [`begin_stores`](Self::begin_stores) began.
    pub(crate) fn end_stores(&self, ino: Ino) {
        if !self.vol.journal.rules.marks {
            self.mark_late(ino);
        }
        self.marks.end_view(ino);
    }

    /// Marks the blocks that hold a byte range of a locked file, up to its end, durably, before
    /// somebody may store to them without a record.
    pub(crate) fn mark_range(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        range: Range<u64>,
    ) -> Result<()> {
        let (geo, size) = (&self.vol.geo, state.disk.size);
        let blocks = geo.file_block(range.start)..geo.file_block_from(range.end.min(size));
        self.mark_blocks(inode, state, blocks)
    }

    /// Breaks the rule that the mark comes before the stores of a view, for tests.
    #[cold]
    fn mark_late(&self, ino: Ino) {
        let marked = self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            self.change_mark(&inode, &mut state, ALL_BLOCKS)
        });
        debug_assert!(marked.is_ok(), "{marked:?}");
    }

    /// As [`mark_range`](Self::mark_range), for the whole file, which may grow meanwhile.
    pub(crate) fn mark_all(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        self.mark_blocks(inode, state, ALL_BLOCKS)
    }

    /// Marks a file before it grows over more written blocks than the record of the growth can sum:
    /// leases kept them when it became shorter. The timer sums them.
    ///
    /// The whole file: a range in an inode must end with the file, and after a crash, or an error,
    /// the file is as short as before.
    pub(crate) fn mark_long_growth(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        range: Range<u64>,
    ) -> Result<()> {
        let geo = &self.vol.geo;
        if !geo.data_sums || range.is_empty() {
            return Ok(());
        }
        let blocks = geo.file_block(range.start)..geo.file_block_from(range.end);
        let (mut at, mut written) = (blocks.start, 0);
        while at < blocks.end {
            let extent = map::run(&self.vol, &state.map(), at, blocks.end - at)?;
            if extent.block.is_some_and(|_| !extent.unwritten) {
                written += extent.count;
            }
            at = at.saturating_add(extent.count.max(1));
        }
        match geo.bytes(written) > GROWTH {
            true => self.mark_all(inode, state),
            false => Ok(()),
        }
    }

    fn mark_blocks(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        blocks: Range<FileBlock>,
    ) -> Result<()> {
        if !self.vol.geo.data_sums || blocks.is_empty() || !self.vol.journal.rules.marks {
            return Ok(());
        }
        self.change_mark(inode, state, blocks)
    }

    /// Adds blocks to the mark of a file.
    fn change_mark(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        blocks: Range<FileBlock>,
    ) -> Result<()> {
        self.marks.note(inode.ino);
        let marked = state.disk.unsummed();
        let both = match marked.is_empty() {
            true => blocks,
            false => marked.start.min(blocks.start)..marked.end.max(blocks.end),
        };
        if both == marked {
            return Ok(());
        }
        if both != ALL_BLOCKS {
            self.use_ranged_marks()?;
        }
        self.change(inode, state, |_, new| {
            new.set_unsummed(both);
            Ok(())
        })?;
        // Readers without the lock see it before any store.
        inode.show_unsummed(&state.disk);
        Ok(())
    }

    /// Goes on to search the files that the last mount has left marked, so that they are summed
    /// though nobody uses them. Looks at so many inodes at most, and until `stop` returns true.
    pub(crate) fn find_marked(&self, mut most: u64, stop: impl Fn() -> bool) {
        let vol = &self.vol;
        let per_group = vol.geo.bits_per_group();
        while let Some(from) = self.marks.search() {
            if most == 0 || stop() {
                return;
            }
            // A group takes the time of some inodes, though it may have none.
            most = most.saturating_sub(OF_GROUP);
            let group = from.0 / per_group;
            let words = match vol.inodes.check_group(vol.medium(), group) {
                Ok(Some(words)) => words,
                Ok(None) => return self.marks.searched(None),
                // That it is damaged is found elsewhere.
                Err(_) => {
                    self.marks.miss();
                    Vec::new()
                }
            };
            for (i, word) in (0..).zip(words) {
                for bit in (0..64).filter(|bit| word >> bit & 1 != 0) {
                    let ino = Ino(group * per_group + i * 64 + bit);
                    if ino < from {
                        continue;
                    }
                    if most == 0 {
                        return self.marks.searched(Some(ino));
                    }
                    most = most.saturating_sub(1);
                    if self.look_at_mark(ino).is_err() {
                        self.marks.miss();
                    }
                }
            }
            self.marks.searched(Some(Ino((group + 1) * per_group)));
        }
    }

    /// Notes a file if it is marked. The file system may be in use: what this mount marks is known.
    fn look_at_mark(&self, ino: Ino) -> Result<()> {
        let Some(home) = self.table.find_now(&self.vol, ino)? else {
            return Ok(());
        };
        let disk = match Inode::load(&self.vol, ino, home) {
            Ok(disk) => disk,
            // Somebody may have stored it meanwhile, or removed it. If it is damaged, whoever uses
            // it says so.
            Err(Error::Corrupt { .. }) => {
                let _gate = self.enter()?;
                return match self.iget(ino) {
                    // Loading it has noted it.
                    Ok(_) | Err(Error::Stale(_)) => Ok(()),
                    Err(e) => Err(e),
                };
            }
            Err(e) => return Err(e),
        };
        if !disk.unsummed().is_empty() {
            self.marks.note(ino);
        }
        Ok(())
    }

    /// Adapts the mark of a file to a smaller size. Blocks past the new end leave the file, or
    /// are `kept` for a file that grows again, with somebody who stores to them.
    pub(crate) fn cut_mark(&self, new: &mut Edit<'_>, kept: bool) {
        let marked = new.unsummed();
        if !self.vol.geo.data_sums || marked.is_empty() || marked == ALL_BLOCKS {
            return;
        }
        let end = self.vol.geo.file_block_from(new.size);
        if marked.end > end {
            let left = match kept {
                true => ALL_BLOCKS,
                false => marked.start.min(end)..end,
            };
            new.set_unsummed(left);
        }
    }

    /// Sums the files that nobody stores to any more, as the timer does, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn sum_marked_files(&self) -> bool {
        self.sum_marked(|| false) == Summed::All
    }

    /// As [`sum_marked_files`](Self::sum_marked_files), by one record.
    #[cfg(any(test, feature = "testing"))]
    pub fn sum_marked_part(&self) -> bool {
        let taken = std::cell::Cell::new(false);
        self.sum_marked(|| taken.replace(true)) == Summed::All
    }

    /// Sums marked files that nobody stores to any more, until `stop` returns true.
    pub(crate) fn sum_marked(&self, stop: impl Fn() -> bool) -> Summed {
        let (mut all, mut has_room) = (true, true);
        let mut left = TICK;
        'files: for ino in self.marks.waiting() {
            loop {
                if stop() || left == 0 {
                    all = false;
                    break 'files;
                }
                let step = self.op(Need::Write, || self.sum_step(ino));
                let bytes = match &step {
                    Ok(Step::Done(bytes) | Step::More(bytes)) => *bytes,
                    // Of which nothing was read.
                    Ok(Step::Later) | Err(Error::Stale(_)) => 0,
                    Err(_) => STEP,
                };
                left = left.saturating_sub(bytes.max(LEAST));
                match step {
                    Ok(Step::More(_)) => {}
                    Ok(Step::Done(_)) => break,
                    Ok(Step::Later) => {
                        all = false;
                        break;
                    }
                    Err(Error::Stale(_)) => {
                        self.marks.remove(ino);
                        break;
                    }
                    // Space may become free.
                    Err(Error::NoSpace(_)) => {
                        has_room = false;
                        break;
                    }
                    Err(e) => {
                        tracing::warn!(%ino, error = %e, "could not sum a file that was mapped for writing; it stays marked");
                        // The next load of the inode tries again.
                        self.marks.leave(ino);
                        all = false;
                        break;
                    }
                }
            }
        }
        match (has_room, all && self.marks.is_empty()) {
            (false, _) => Summed::NoRoom,
            (true, true) => Summed::All,
            (true, false) => Summed::Part,
        }
    }

    /// Makes durable what was stored to blocks, but for those that have failed.
    fn flush_blocks(
        &self,
        inode: &Inode,
        state: &InodeState,
        blocks: Range<FileBlock>,
    ) -> Result<()> {
        let flush = |blocks| self.flush_range(inode, state, bytes_of(&self.vol.geo, &blocks));
        match flush(blocks.clone()) {
            Err(e) if has_failed(&e) => {}
            flushed => return flushed.map(drop),
        }
        let mut at = blocks.start;
        while at < blocks.end {
            match flush(at..at + 1) {
                Err(e) if !has_failed(&e) => return Err(e),
                _ => at += 1,
            }
        }
        Ok(())
    }

    /// Sums the next marked blocks of a file, by one record.
    fn sum_step(&self, ino: Ino) -> Result<Step> {
        let geo = &self.vol.geo;
        let inode = self.iget(ino)?;
        let mut state = inode.state.write();
        state.alive(ino)?;
        if self.marks.has_view(ino) || state.leases.may_store() {
            return Ok(Step::Later);
        }
        let marked = state.disk.unsummed();
        if marked.is_empty() {
            self.marks.remove(ino);
            return Ok(Step::Done(0));
        }
        let (map, size) = (state.map(), state.disk.size);
        let end = marked.end.min(geo.file_block_from(size));
        let mut start = marked.start.min(end);
        // A hole needs no record of its own.
        while start < end {
            let extent = map::run(&self.vol, &map, start, end - start)?;
            if extent.block.is_some_and(|_| !extent.unwritten) {
                break;
            }
            start = start.saturating_add(extent.count.max(1));
        }
        let start = start.min(end);
        let stop = start.saturating_add(geo.whole_blocks(STEP)).min(end);
        let left = match stop < end {
            true => stop..end,
            false => NO_BLOCKS,
        };
        self.use_copies()?;
        if !left.is_empty() {
            self.use_ranged_marks()?;
        }
        // What was stored without a record may be in caches only: a loss of power would take the
        // bytes and leave their sums.
        let bytes = bytes_of(geo, &(start..stop));
        let summed = bytes.end - bytes.start;
        self.flush_blocks(&inode, &state, start..stop)?;
        let mut new = Edit::new(&inode, &mut state);
        let mut tx = self.begin(&inode);
        tx.allow_large();
        self.put_marked_sums(&mut tx, &map, size, bytes)?;
        new.set_unsummed(left.clone());
        let staged = new.stage(&mut tx)?;
        tx.end_staging()?;
        self.commit(tx, [staged])?;
        inode.show_unsummed(&state.disk);
        if left.is_empty() {
            self.marks.remove(ino);
            return Ok(Step::Done(summed));
        }
        Ok(Step::More(summed))
    }
}

/// How far the marked files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Summed {
    /// None is left.
    All,
    /// Some are left: somebody stores to them, or there was no time.
    Part,
    /// There is no room for the record that sums one of them.
    NoRoom,
}

/// How far a marked file is.
enum Step {
    /// Another step follows this one, of so many bytes.
    More(u64),
    /// It is summed, and the last step was of so many bytes.
    Done(u64),
    /// Somebody stores to it.
    Later,
}
