//! The extents of a file: its places in the region.
//!
//! Invariant: a hole is reported only after a check that it is not a lost pointer. A list of
//! extents is a snapshot; `api::mapped` pins the blocks of a mapping.

use crate::fs::engine::completeness::Hole;
use crate::fs::inode::state::{InodeState, check_file};
use crate::fs::{Engine, Need};
use pramfs_medium::error::Result;
use pramfs_medium::map;
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

    /// Returns the extents from `offset` to `end` of a locked file. For a mapping, the
    /// range consists of whole blocks, and may exceed the end of the file within its last
    /// block.
    pub(crate) fn extents_between(
        &self,
        state: &InodeState,
        offset: u64,
        end: u64,
    ) -> Result<Vec<FileExtent>> {
        let geo = &self.vol.geo;
        let mut list: Vec<FileExtent> = Vec::new();
        let mut at = offset;
        while at < end {
            let index = geo.file_block(at);
            let extent = map::run(&self.vol, &state.map(), index, geo.blocks_of(at, end))?;
            if extent.is_hole() {
                self.check_hole(state, Hole::Contents)?;
            }
            let stop = end.min(geo.file_offset(index + extent.count));
            let next = FileExtent {
                file_offset: at,
                region_offset: extent
                    .block
                    .map(|b| geo.offset(b).0 + (at - geo.file_offset(index))),
                len: stop - at,
                unwritten: extent.unwritten,
                lost: extent.lost,
            };
            match list.last_mut() {
                Some(last)
                    if (last.unwritten, last.lost) == (next.unwritten, next.lost)
                        && last.region_offset.map(|r| r + last.len) == next.region_offset =>
                {
                    last.len += next.len;
                }
                _ => list.push(next),
            }
            at = stop;
        }
        Ok(list)
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
