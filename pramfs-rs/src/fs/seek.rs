//! SEEK_DATA and SEEK_HOLE.
//!
//! A large leaf has no pointer for each of its blocks, so it cannot say which
//! of them were written since it was allocated. There, blocks that hold nothing
//! but zeros are holes. What was lost counts as data: it does not read as zeros.

use super::read::check_file;
use super::{Engine, Need};
use crate::error::{Error, Result};
use crate::map::{self, Extent};
use crate::types::Bno;
use crate::types::{Ino, SeekWhence};

impl Engine {
    /// The first byte from `offset` on that is data, or that is not: a hole,
    /// an unwritten block, or the end of the file.
    ///
    /// # Errors
    /// [`Error::NoSuchAddress`] at and past the end of the file, and where no
    /// data follows.
    pub fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let state = inode.state.read();
            check_file(&inode, &state)?;
            let (size, log2) = (state.disk.size, self.vol.geo.block_log2);
            let mut at = offset;
            while at < size {
                let index = at >> log2;
                let extent = map::run(
                    &self.vol,
                    &state.map(),
                    index,
                    ((size - 1) >> log2) - index + 1,
                )?;
                if extent.is_hole() {
                    self.check_hole_of(&inode, &state)?;
                }
                let wanted = whence == SeekWhence::Data;
                let data = !extent.is_hole() && !extent.unwritten;
                if data && !extent.lost && map::find(&self.vol, &state.map(), index)?.count > 1 {
                    if let Some(found) = self.first_block(&extent, wanted)? {
                        return Ok(at.max(found << log2));
                    }
                } else if data == wanted {
                    return Ok(at);
                }
                at = (index + extent.count) << log2;
            }
            match whence {
                SeekWhence::Hole if offset < size => Ok(size),
                _ => Err(Error::NoSuchAddress(offset)),
            }
        })
    }

    /// The first file block of a written extent that has bytes other than zero
    /// (`data`), or that has none. No more is read than a large leaf.
    fn first_block(&self, extent: &Extent, data: bool) -> Result<Option<u64>> {
        let Some(first) = extent.block else {
            return Ok(None);
        };
        let mut bytes = vec![0; self.vol.geo.block_size as usize];
        for nth in 0..extent.count {
            let at = self.vol.geo.offset(Bno(first.0 + nth));
            self.vol.region.read(at, &mut bytes)?;
            if bytes.iter().any(|byte| *byte != 0) == data {
                return Ok(Some(extent.index + nth));
            }
        }
        Ok(None)
    }
}
