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

use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::touch_mtime;
use crate::fs::inode::state::InodeState;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
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
        let (rest, slot) = self.change(inode, state, |tx, new| {
            new.size = size;
            touch_mtime(new, self.now());
            // First, so that freeing blocks uses the rest of the record.
            also(tx, new)?;
            let mut map = new.before().map();
            if size > old_size {
                let end = self.end_of_zeros(new.before(), size);
                self.zero_written(tx, &map, old_size, end)?;
                return Ok((Rest::Unchanged, None));
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

    /// Zeroes the rest of the block that holds the end of a file that is mapped past its end, and
    /// that has no append window: the holder of one stores there.
    pub(crate) fn zero_rest_of_block(&self, inode: &Inode, state: &InodeState) -> Result<()> {
        debug_assert!(state.leases.window().is_none());
        let (geo, size) = (&self.vol.geo, state.disk.size);
        let mut tx = self.vol.begin_at(&inode.last_record);
        let end = geo.file_offset(geo.file_block_from(size));
        self.zero_written(&mut tx, &state.map(), size, end)?;
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

    /// Returns the offset up to which growth to a size zeroes what it passes over: if other
    /// processes may have mapped the file past its end, they see zeros there, up to the next
    /// page.
    #[inline]
    pub(crate) fn end_of_zeros(&self, state: &InodeState, size: u64) -> u64 {
        let geo = &self.vol.geo;
        match state.leases.are_mapped_ahead() {
            true => geo.file_offset(geo.file_block_from(size)),
            false => size,
        }
    }

    /// Rule 6: whether no block may leave the map of an inode, because other processes may
    /// map it.
    #[inline]
    pub(crate) fn keeps_blocks(&self, state: &InodeState) -> bool {
        !state.leases.is_empty() && self.vol.journal.rules.leased_blocks
    }

    /// Assigns a slot of the orphan table to its inode at mount, before any operation
    /// can change the inode, so that it does not take a second slot. True for an
    /// unfinished truncation, false for an unlinked inode.
    pub(crate) fn claim_orphan(&self, ino: Ino, slot: u32) -> bool {
        let Ok(inode) = self.iget(ino) else {
            return false;
        };
        let mut state = inode.state.write();
        let cut =
            ino >= Ino::FIRST_FREE && state.disk.nlink > 0 && state.kind() == FileType::Regular;
        if cut || state.disk.nlink == 0 {
            state.orphan_slot = Some(slot);
            state.past_end = cut;
        }
        cut
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
