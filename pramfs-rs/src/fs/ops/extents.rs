//! The extents of a file: its places in the region.
//!
//! Invariant: a list of extents is a snapshot; `api::mapped` pins the blocks of a mapping.

use crate::fs::inode::state::check_file;
use crate::fs::{Engine, Need};
use pramfs_medium::error::Result;
use pramfs_medium::types::{FileExtent, Ino};

impl Engine {
    /// Returns the extents of a range of a file, up to its end, including holes. They are
    /// valid until the next change of the file's blocks; a direct mapping pins its blocks.
    ///
    /// # Errors
    /// [`crate::Error::IsDirectory`], [`crate::Error::Invalid`] if it is not a regular
    /// file, [`crate::Error::Corrupt`].
    pub fn file_extents(&self, ino: Ino, offset: u64, len: u64) -> Result<Vec<FileExtent>> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            check_file(inode.ino, &state)?;
            self.extents_between(
                &state,
                offset,
                offset.saturating_add(len).min(state.disk.size),
            )
        })
    }

    /// As [`file_extents`](Self::file_extents) to the end of the file, but with one extent more than
    /// `most` at most, and that one may be incomplete.
    ///
    /// # Errors
    /// As there.
    pub fn first_extents(&self, ino: Ino, offset: u64, most: usize) -> Result<Vec<FileExtent>> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            check_file(inode.ino, &state)?;
            self.extents_up_to(&state, offset, state.disk.size, most)
        })
    }

    /// Notes a change of the contents that a mapping made: sets the times, lazily, and
    /// increments the change counter.
    pub(crate) fn touched_by_map(&self, ino: Ino) -> Result<()> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            let mut state = inode.state.write();
            state.alive(ino)?;
            self.touch_lazily(&inode, &mut state);
            Ok(())
        })
    }
}
