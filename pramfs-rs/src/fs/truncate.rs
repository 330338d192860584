//! Changing the size of a file.
//!
//! A shorter file gets its size in the record that frees the first blocks past
//! it. What does not fit goes on in further records; meanwhile the file has a
//! slot in the orphan table, so that after a crash the next mount goes on.

use super::attr::Change;
use super::inode::{Core, Inode, put_inode, restore_times, store_healed, touch_mtime};
use super::{Need, Shared};
use crate::error::{Error, Result};
use crate::map;
use crate::media::DiskInode;
use crate::types::{FileType, Ino};

/// What else the record of a new size does.
enum Also<'a> {
    Nothing,
    TimesOf(&'a DiskInode),
    Change(&'a Change<'a>),
}

impl Shared {
    /// Sets the size of a locked regular file. New bytes read as zeros.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NoSpace`], [`Error::Corrupt`].
    pub(super) fn set_size(&self, inode: &Inode, core: &mut Core, size: u64) -> Result<()> {
        self.resize(inode, core, size, Also::Nothing)
    }

    /// The same, and in the record of the size another change of the inode: a
    /// crash leaves both or none.
    ///
    /// # Errors
    /// As for [`set_size`](Self::set_size).
    pub(super) fn set_size_and(
        &self,
        inode: &Inode,
        core: &mut Core,
        size: u64,
        change: &Change<'_>,
    ) -> Result<()> {
        self.resize(inode, core, size, Also::Change(change))
    }

    /// Gives a locked regular file the size and the times that it had before
    /// something was begun that could not be finished.
    ///
    /// # Errors
    /// As for [`set_size`](Self::set_size).
    pub(super) fn cut_back(
        &self,
        inode: &Inode,
        core: &mut Core,
        before: &DiskInode,
    ) -> Result<()> {
        self.resize(inode, core, before.size, Also::TimesOf(before))
    }

    fn resize(&self, inode: &Inode, core: &mut Core, size: u64, also: Also<'_>) -> Result<()> {
        let geo = &self.vol.geo;
        if size > geo.max_file_size() {
            return Err(Error::TooLarge(size));
        }
        self.finish_truncate(inode, core)?;
        let mut tx = self.vol.begin_at(&inode.place);
        let mut new = core.d;
        new.size = size;
        touch_mtime(&mut new, self.now());
        match also {
            Also::Nothing => {}
            Also::TimesOf(before) => restore_times(&mut new, before),
            // First, so that what the size frees takes the room that is left.
            Also::Change(change) => self.apply(&mut tx, core, &mut new, change)?,
        }
        let mut m = core.map();
        let mut slot = None;
        let mut done = true;
        if size > core.d.size {
            self.zero_written(&mut tx, &m, core.d.size, size)?;
        } else {
            done =
                map::remove(&mut tx, &mut m, size.div_ceil(geo.block_size), u64::MAX)? == u64::MAX;
            store_healed(&tx, &mut new, &m);
            // A file without a name has a slot already.
            if !done && core.orphan_slot.is_none() {
                slot = Some(self.put_orphan(&mut tx, inode.ino)?);
            }
        }
        put_inode(&mut tx, inode, core, &mut new)?;
        tx.commit()?;
        core.committed(&new);
        if slot.is_some() {
            core.orphan_slot = slot;
        }
        if done {
            Ok(())
        } else {
            self.free_past_end(inode, core)
        }
    }

    /// Finishes the truncation of a file that has a name, if one was cut short
    /// by a crash or an error.
    #[inline]
    pub(super) fn finish_truncate(&self, inode: &Inode, core: &mut Core) -> Result<()> {
        if core.orphan_slot.is_some() && core.d.nlink > 0 {
            self.free_past_end(inode, core)?;
        }
        Ok(())
    }

    /// Takes up what a crash has left in a slot of the orphan table: the inode
    /// knows its slot before anything can change it, and takes no second one.
    /// True for a truncation that was cut short, false for an unlinked inode.
    pub(super) fn claim_orphan(&self, ino: Ino, slot: u32) -> bool {
        let Ok(inode) = self.iget(ino) else {
            return false;
        };
        let mut core = inode.core.write();
        let cut = ino >= Ino::FIRST_FREE && core.d.nlink > 0 && core.kind() == FileType::Regular;
        if cut || core.d.nlink == 0 {
            core.orphan_slot = Some(slot);
        }
        cut
    }

    /// Finishes such a truncation, unless another operation was faster.
    pub(super) fn finish_truncated(&self, ino: Ino) {
        let result = self.op(Need::Write, || match self.iget(ino) {
            Ok(inode) => {
                let mut core = inode.core.write();
                if core.gone {
                    Ok(())
                } else {
                    self.finish_truncate(&inode, &mut core)
                }
            }
            Err(Error::Stale(_)) => Ok(()),
            Err(e) => Err(e),
        });
        if let Err(e) = result {
            tracing::warn!(%ino, error = %e, "the blocks past the end of a file were not freed");
        }
    }

    /// Frees the blocks past the end of a file that has a slot in the orphan
    /// table, record by record; the last one clears the slot of a file that
    /// has a name.
    #[cold]
    fn free_past_end(&self, inode: &Inode, core: &mut Core) -> Result<()> {
        let mut from = core.d.size.div_ceil(self.vol.geo.block_size);
        loop {
            let mut tx = self.vol.begin_at(&inode.place);
            let (mut m, mut new) = (core.map(), core.d);
            from = map::remove(&mut tx, &mut m, from, u64::MAX)?;
            store_healed(&tx, &mut new, &m);
            let done = from == u64::MAX;
            let slot = core.orphan_slot.filter(|_| done && new.nlink > 0);
            if let Some(slot) = slot {
                self.clear_orphan(&mut tx, slot)?;
            }
            put_inode(&mut tx, inode, core, &mut new)?;
            tx.commit()?;
            core.committed(&new);
            if slot.is_some() {
                core.orphan_slot = None;
            }
            if done {
                return Ok(());
            }
        }
    }
}
