//! Changing the size of a file.
//!
//! The record that shortens a file also frees the first blocks past the new end. If
//! not all fit, further records free the rest.
//!
//! Invariant: while a file has blocks to be freed past its end, it has a slot in the orphan
//! table, so that after a crash the next mount continues. Any other change of the size
//! first finishes such a truncation.
//!
//! Writes and appends past the end do not come here; they set the size in their own records
//! (`ops`).

use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::{restore_times, store_healed, touch_mtime};
use crate::fs::inode::state::InodeState;
use crate::fs::steps::attributes::AttrChange;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map;
use pramfs_medium::media::DiskInode;
use pramfs_medium::types::{FileBlock, FileType, Ino};

/// The other changes in the record of a new size.
enum Also<'a> {
    Nothing,
    TimesOf(&'a DiskInode),
    Change(&'a AttrChange<'a>),
}

impl Engine {
    /// Sets the size of a locked regular file. New bytes read as zeros.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NoSpace`], [`Error::Corrupt`].
    pub(crate) fn set_size(&self, inode: &Inode, state: &mut InodeState, size: u64) -> Result<()> {
        self.resize(inode, state, size, Also::Nothing)
    }

    /// As [`set_size`](Self::set_size), with another change of the inode in the same
    /// record: a crash leaves both or none.
    ///
    /// # Errors
    /// As for [`set_size`](Self::set_size).
    pub(crate) fn set_size_and(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        size: u64,
        change: &AttrChange<'_>,
    ) -> Result<()> {
        self.resize(inode, state, size, Also::Change(change))
    }

    /// Restores the size and the times of a locked regular file, to undo an operation
    /// that failed.
    ///
    /// # Errors
    /// As for [`set_size`](Self::set_size).
    pub(crate) fn restore_size(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        before: &DiskInode,
    ) -> Result<()> {
        self.resize(inode, state, before.size, Also::TimesOf(before))
    }

    fn resize(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        size: u64,
        also: Also<'_>,
    ) -> Result<()> {
        let geo = &self.vol.geo;
        if size > geo.max_file_size() {
            return Err(Error::TooLarge(size));
        }
        self.finish_truncate(inode, state)?;
        let mut new = Edit::new(inode, state);
        let mut tx = self.begin(inode);
        new.size = size;
        touch_mtime(&mut new, self.now());
        match also {
            Also::Nothing => {}
            Also::TimesOf(before) => restore_times(&mut new, before),
            // First, so that freeing blocks uses the rest of the record.
            Also::Change(change) => self.apply(&mut tx, &mut new, change)?,
        }
        let old_size = new.before().disk.size;
        let mut map = new.before().map();
        let mut slot = None;
        let mut done = true;
        if size > old_size {
            self.zero_written(&mut tx, &map, old_size, size)?;
        } else {
            done = map::remove(&mut tx, &mut map, geo.file_block_from(size), FileBlock::END)?
                == FileBlock::END;
            store_healed(&tx, &mut new, &map);
            // A file without a name has a slot already.
            if !done && new.before().orphan_slot.is_none() {
                slot = Some(self.put_orphan(&mut tx, inode.ino)?);
            }
        }
        let new = new.stage(&mut tx)?;
        self.commit(tx, [new])?;
        if slot.is_some() {
            state.orphan_slot = slot;
        }
        if done {
            Ok(())
        } else {
            self.free_past_end(inode, state)
        }
    }

    /// Finishes the truncation of a file that has a name, if a crash or an error
    /// interrupted one.
    #[inline]
    pub(crate) fn finish_truncate(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        if state.orphan_slot.is_some() && state.disk.nlink > 0 {
            self.free_past_end(inode, state)?;
        }
        Ok(())
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
        }
        cut
    }

    /// Finishes an unfinished truncation, unless another operation already has.
    pub(crate) fn finish_truncated(&self, ino: Ino) {
        let result = self.op(Need::Write, || match self.iget(ino) {
            Ok(inode) => {
                let mut state = inode.state.write();
                if state.gone {
                    Ok(())
                } else {
                    self.finish_truncate(&inode, &mut state)
                }
            }
            Err(Error::Stale(_)) => Ok(()),
            Err(e) => Err(e),
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
            let mut map = state.map();
            let mut new = Edit::new(inode, state);
            let mut tx = self.begin(inode);
            from = map::remove(&mut tx, &mut map, from, FileBlock::END)?;
            store_healed(&tx, &mut new, &map);
            let done = from == FileBlock::END;
            let slot = (new.before().orphan_slot).filter(|_| done && new.nlink > 0);
            if let Some(slot) = slot {
                self.clear_orphan(&mut tx, slot)?;
            }
            let new = new.stage(&mut tx)?;
            self.commit(tx, [new])?;
            if slot.is_some() {
                state.orphan_slot = None;
            }
            if done {
                return Ok(());
            }
        }
    }
}
