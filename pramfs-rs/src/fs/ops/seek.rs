//! SEEK_DATA and SEEK_HOLE.
//!
//! A huge leaf has no pointer per block, so it cannot tell which blocks were written
//! since its allocation. Blocks of a huge leaf that hold only zeros count as holes.
//! Lost blocks count as data, because they do not read as zeros.

use crate::fs::inode::state::check_file;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::{self, Extent};
use pramfs_medium::types::{FileBlock, Ino, SeekWhence};

impl Engine {
    /// Returns the offset of the first data byte at or after `offset`, or of the
    /// first byte in a hole: an unallocated or unwritten block, or the end of the file.
    ///
    /// # Errors
    /// [`Error::NoSuchAddress`] at and past the end of the file, and if no data
    /// follows.
    pub fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            check_file(inode.ino, &state)?;
            let (size, geo) = (state.disk.size, &self.vol.geo);
            let mut at = offset;
            while at < size {
                let index = geo.file_block(at);
                let extent = map::run(&self.vol, &state.map(), index, geo.blocks_of(at, size))?;
                if extent.is_hole() {
                    self.check_hole_of(&inode, &state)?;
                }
                let wanted = whence == SeekWhence::Data;
                let data = !extent.is_hole() && !extent.unwritten;
                if data && !extent.lost && map::find(&self.vol, &state.map(), index)?.count > 1 {
                    if let Some(found) = self.first_block(&extent, wanted)? {
                        return Ok(at.max(geo.file_offset(found)));
                    }
                } else if data == wanted {
                    return Ok(at);
                }
                at = geo.file_offset(index + extent.count);
            }
            match whence {
                SeekWhence::Hole if offset < size => Ok(size),
                _ => Err(Error::NoSuchAddress(offset)),
            }
        })
    }

    /// Returns the first file block of a written extent that has nonzero bytes (if
    /// `data`) or only zeros. Reads at most one huge leaf.
    fn first_block(&self, extent: &Extent, data: bool) -> Result<Option<FileBlock>> {
        let Some(first) = extent.block else {
            return Ok(None);
        };
        let mut bytes = vec![0; self.vol.geo.block_size as usize];
        for nth in 0..extent.count {
            let at = self.vol.geo.offset(first.after(nth));
            self.vol.medium().read(at, &mut bytes)?;
            if bytes.iter().any(|byte| *byte != 0) == data {
                return Ok(Some(extent.index + nth));
            }
        }
        Ok(None)
    }
}
