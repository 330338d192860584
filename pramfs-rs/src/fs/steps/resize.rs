//! Changing the size of a file.
//!
//! The record that shortens a file also frees the first blocks past the new end. If
//! not all fit, further records free the rest.
//!
//! Invariant: while a file has blocks to be freed past its end, it has a slot in the orphan
//! table, so that after a crash the next mount continues. Any other change of the size
//! first finishes such a truncation. Leases delay that until the last of them has ended.
//!
//! Writes and appends past the end do not come here; they set the size in their own records
//! (`ops`).

use std::ops::Range;

use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::touch_mtime;
use crate::fs::inode::state::InodeState;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
use pramfs_medium::pmem::PmemError;
use pramfs_medium::types::{FileBlock, FileType, Ino};
use pramfs_medium::volume::Plan;

/// The blocks past the new end that a truncation has not freed by its first record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// It is as it was: the file has not become shorter.
    Unchanged,
    /// There are none.
    Gone,
    /// Further records free them.
    Due,
    /// Leases keep them.
    Kept,
}

/// What a slot of the orphan table is for, at mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// An inode without a name, to be freed.
    Orphan,
    /// An inode without a name that the kernel still has.
    Held,
    /// An unfinished truncation.
    Cut,
}

impl Engine {
    /// Sets the size and the times of a locked regular file. New bytes read as zeros. `also`
    /// makes further changes in the same record: a crash leaves all or none.
    pub(crate) fn resize(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        size: u64,
        also: &dyn Fn(&mut Plan<'_>, &mut Edit<'_>) -> Result<()>,
    ) -> Result<()> {
        let geo = &self.vol.geo;
        if size > geo.max_file_size() {
            return Err(Error::TooLarge(size));
        }
        self.merge_locked(inode, state)?;
        // With the size that the file has, an append window can stay open: databases set it
        // again and again.
        match size == state.disk.size {
            true => self.finish_truncate(inode, state)?,
            false => self.settle_size(inode, state)?,
        }
        let old_size = state.disk.size;
        if size > old_size {
            self.settle_copies(state)?;
            self.check_edges(state, old_size..old_size)?;
            self.mark_long_growth(inode, state, old_size..size)?;
        }
        // A block that is not what was written keeps its sum, which then fits no prefix of it.
        let sums_end = match size < old_size {
            true => match self.check_edges(state, size..size) {
                Err(Error::WrongSum { .. } | Error::Pmem(PmemError::Faulted { .. })) => false,
                checked => checked.map(|()| true)?,
            },
            false => false,
        };
        let (rest, slot) = self.change(inode, state, |tx, new| {
            new.size = size;
            let has_view = self.marks.has_view(inode.ino);
            if self.keeps_blocks(new.before()) {
                self.cut_mark(new, has_view);
            }
            touch_mtime(new, self.now());
            // First, so that freeing blocks uses the rest of the record.
            also(tx, new)?;
            let mut map = new.before().map();
            if size > old_size {
                let end = self.end_of_zeros(new.before(), size);
                self.zero_written(tx, &map, old_size, end)?;
                if geo.data_sums {
                    tx.allow_large();
                    self.put_sums(tx, new.before(), &map, size, old_size..size)?;
                }
                return Ok((Rest::Unchanged, None));
            }
            if sums_end && geo.within_block(size) != 0 {
                self.put_sums(tx, new.before(), &map, size, size - 1..size)?;
            }
            if self.keeps_blocks(new.before()) {
                if size == old_size {
                    return Ok((Rest::Unchanged, None));
                }
                // The blocks past the new end stay until the last lease has ended.
                let slot = match new.before().orphan_slot {
                    None => Some(self.put_orphan(tx, inode.ino)?),
                    Some(_) => None,
                };
                return Ok((Rest::Kept, slot));
            }
            let next = map::remove(tx, &mut map, geo.file_block_from(size), FileBlock::END)?;
            new.store_map(tx, &map, geo.file_block(size));
            // If damage ends the truncation early, the file may grow over blocks of a view.
            self.cut_mark(new, next != FileBlock::END && has_view);
            if next == FileBlock::END {
                return Ok((Rest::Gone, None));
            }
            // A file without a name has a slot already.
            let slot = match new.before().orphan_slot {
                None => Some(self.put_orphan(tx, inode.ino)?),
                Some(_) => None,
            };
            Ok((Rest::Due, slot))
        })?;
        if geo.data_sums {
            inode.show_unsummed(&state.disk);
        }
        state.orphan_slot = state.orphan_slot.or(slot);
        match rest {
            Rest::Unchanged => {}
            Rest::Gone => state.past_end = false,
            Rest::Due | Rest::Kept => state.past_end = true,
        }
        if rest == Rest::Due {
            self.free_past_end(inode, state)?;
        }
        match size < old_size && state.leases.are_mapped_ahead() {
            true => self.zero_rest_of_block(inode, state),
            false => Ok(()),
        }
    }

    /// Notes, before the first new block past the end of a file is in its map, that the blocks
    /// there are to be freed. Returns the slot that says so, if none did. `None` too if none of
    /// the range is new.
    pub(crate) fn claim_ahead(
        &self,
        tx: &mut Plan<'_>,
        state: &InodeState,
        first: FileBlock,
        last: FileBlock,
    ) -> Result<Option<u32>> {
        let mut at = first;
        while !state.past_end && at <= last {
            let extent = map::run(&self.vol, &state.map(), at, last - at + 1)?;
            if extent.block.is_none() {
                // A file without a name has a slot.
                return match state.orphan_slot {
                    Some(slot) => Ok(Some(slot)),
                    None => self.put_orphan(tx, Ino(state.disk.ino)).map(Some),
                };
            }
            at += extent.count;
        }
        Ok(None)
    }

    /// Zeroes the rest of the block that holds the end of a file that is mapped past its end, and
    /// that has no append window: the holder of one stores there.
    pub(crate) fn zero_rest_of_block(&self, inode: &Inode, state: &InodeState) -> Result<()> {
        let (geo, size) = (&self.vol.geo, state.disk.size);
        let end = geo.file_offset(geo.file_block_from(size));
        self.zero_past_end(inode, state, size..end)
    }

    /// Zeroes the written blocks of a byte range past the end of a file that has no append window.
    pub(crate) fn zero_past_end(
        &self,
        inode: &Inode,
        state: &InodeState,
        range: Range<u64>,
    ) -> Result<()> {
        debug_assert!(state.leases.window().is_none());
        self.settle_copies(state)?;
        let mut tx = self.vol.begin_at(&inode.last_record);
        self.zero_written(&mut tx, &state.map(), range.start, range.end)?;
        tx.settle();
        Ok(())
    }

    /// Before any change of the size but a merge: closes the window, and finishes an unfinished
    /// truncation.
    #[inline]
    pub(crate) fn settle_size(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        self.close_window(inode, state)?;
        self.finish_truncate(inode, state)
    }

    /// Finishes the truncation of a file that has a name or may get one, if a crash, an error
    /// or a lease interrupted one. Does nothing while there is a lease.
    #[inline]
    pub(crate) fn finish_truncate(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        let lives_on = state.disk.nlink > 0 || state.linkable;
        if state.past_end && lives_on && !self.keeps_blocks(state) {
            self.free_past_end(inode, state)?;
        }
        Ok(())
    }

    /// Rule 6: whether no block may leave the map of an inode, because other processes may
    /// map it.
    #[inline]
    pub(crate) fn keeps_blocks(&self, state: &InodeState) -> bool {
        !state.leases.is_empty() && self.vol.journal.rules.leased_blocks
    }

    /// Assigns a slot of the orphan table to its inode at mount, before any operation
    /// can change the inode, so that it does not take a second slot.
    pub(crate) fn claim_orphan(&self, ino: Ino, slot: u32) -> Claimed {
        let Ok(inode) = self.iget(ino) else {
            return Claimed::Orphan;
        };
        let mut state = inode.state.write();
        let cut =
            ino >= Ino::FIRST_FREE && state.disk.nlink > 0 && state.kind() == FileType::Regular;
        if cut || state.disk.nlink == 0 {
            state.orphan_slot = Some(slot);
            state.past_end = cut;
        }
        if cut {
            return Claimed::Cut;
        }
        // The last server was killed, and the kernel still has the inode.
        if state.disk.nlink == 0 && ino >= Ino::FIRST_FREE && self.refs.has(ino) {
            // The kernel knows whether it was made without a name and may get one. It asks
            // for no other.
            state.linkable = true;
            self.orphans.lock().insert(ino.0);
            return Claimed::Held;
        }
        Claimed::Orphan
    }

    /// Finishes an unfinished truncation, unless another operation already has.
    pub(crate) fn finish_truncated(&self, ino: Ino) {
        let result = self.op(Need::Write, || {
            let inode = match self.iget(ino) {
                Err(Error::Stale(_)) => return Ok(()),
                found => found?,
            };
            let mut state = inode.state.write();
            if state.gone {
                return Ok(());
            }
            self.finish_truncate(&inode, &mut state)
        });
        if let Err(e) = result {
            tracing::warn!(%ino, error = %e, "could not free the blocks past the end of a file");
        }
    }

    /// Frees the blocks past the end of a file that has a slot in the orphan table, by
    /// a chain of records. The last one clears the slot if the file has a name.
    #[cold]
    fn free_past_end(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        let mut from = self.vol.geo.file_block_from(state.disk.size);
        loop {
            let (next, slot) = self.change(inode, state, |tx, new| {
                let mut map = new.before().map();
                let next = map::remove(tx, &mut map, from, FileBlock::END)?;
                new.store_map(tx, &map, from);
                let is_last = next == FileBlock::END && new.nlink > 0;
                let slot = new.before().orphan_slot.filter(|_| is_last);
                if let Some(slot) = slot {
                    self.clear_orphan(tx, slot)?;
                }
                Ok((next, slot))
            })?;
            if slot.is_some() {
                state.orphan_slot = None;
            }
            if next == FileBlock::END {
                state.past_end = false;
                return Ok(());
            }
            from = next;
        }
    }
}
