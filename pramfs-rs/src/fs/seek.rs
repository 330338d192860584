//! SEEK_DATA and SEEK_HOLE.

use super::read::check_file;
use super::{Need, Shared};
use crate::error::{Error, Result};
use crate::map;
use crate::types::{Ino, SeekWhence};

impl Shared {
    /// The first byte from `offset` on that is data, or that is not: a hole,
    /// an unwritten block, or the end of the file.
    ///
    /// # Errors
    /// [`Error::NoSuchAddress`] at and past the end of the file, and where no
    /// data follows.
    pub fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
        self.op(Need::Read, || {
            let inode = self.iget_user(ino)?;
            let core = inode.core.read();
            check_file(&inode, &core)?;
            let (size, log2) = (core.d.size, self.vol.geo.block_log2);
            let mut at = offset;
            while at < size {
                let index = at >> log2;
                let e = map::run(
                    &self.vol,
                    &core.map(),
                    index,
                    ((size - 1) >> log2) - index + 1,
                )?;
                let data = e.block.is_some() && !e.unwritten;
                if data == (whence == SeekWhence::Data) {
                    return Ok(at);
                }
                at = (index + e.count) << log2;
            }
            match whence {
                SeekWhence::Hole if offset < size => Ok(size),
                _ => Err(Error::NoSuchAddress(offset)),
            }
        })
    }
}
