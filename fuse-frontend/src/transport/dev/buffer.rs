//! The buffer that requests are read into.

use std::io;

use pramfs_fuse_protocol::wire::{InHeader, WriteIn};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Bytes before the data of a WRITE.
const BEFORE_DATA: usize = InHeader::SIZE + WriteIn::SIZE;

const PAGE: usize = 4096;

/// Where a request begins, so that the data of a WRITE begins at a page.
const START: usize = PAGE - BEFORE_DATA;

#[derive(Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Room for one request, in which the data of a WRITE begins at a page: the medium is written
/// in whole lines then, and read in whole lines from here.
///
/// Memory is touched by the requests that need it.
#[derive(Debug)]
pub(crate) struct Buffer {
    pages: Vec<Page>,
    len: usize,
}

/// There is no memory for a buffer.
#[derive(Debug)]
pub(crate) struct NoMemory;

impl Buffer {
    /// Allocates a buffer for requests of `len` bytes.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn new(len: usize) -> Result<Buffer, NoMemory> {
        let pages = len.saturating_add(START).div_ceil(PAGE);
        // Zeroed by the allocator, so that no page is touched here.
        let pages = Page::new_vec_zeroed(pages).map_err(|_| NoMemory)?;
        Ok(Buffer { pages, len })
    }

    /// Keeps its pages in memory. A page that is not there while the kernel copies a request, and
    /// the server is being killed, fails the request.
    ///
    /// # Errors
    /// ENOMEM beyond RLIMIT_MEMLOCK.
    pub(super) fn lock(&self) -> io::Result<()> {
        pramfs_kernel_sys::memory::lock(self.pages.as_slice().as_bytes())
    }

    /// The room.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        let all = self.pages.as_mut_slice().as_mut_bytes();
        &mut all[START..START + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_a_write_begins_at_a_page() {
        for len in [8192, (1 << 20) + 4096] {
            let mut buffer = Buffer::new(len).unwrap();
            let room = buffer.room();
            assert_eq!(room.len(), len);
            let data = std::ptr::from_mut(&mut room[BEFORE_DATA..]);
            assert_eq!(data.addr() % PAGE, 0);
        }
        assert!(Buffer::new(isize::MAX as usize).is_err());
    }
}
