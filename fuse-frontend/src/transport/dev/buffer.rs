//! The buffer that requests are read into.

use pramfs_fuse_protocol::wire::{InHeader, WriteIn};

/// Bytes before the data of a WRITE.
const BEFORE_DATA: usize = InHeader::SIZE + WriteIn::SIZE;

/// The data of a WRITE begins at a multiple of this.
const ALIGN: usize = 4096;

/// Room for one request, in which the data of a WRITE begins at a page: the medium is written
/// in whole lines then, and read in whole lines from here.
///
/// Memory is touched by the requests that need it.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// Allocates a buffer for requests of `len` bytes. [`memory`](crate::memory) has checked
    /// that there is enough.
    pub(super) fn new(len: usize) -> Buffer {
        // Zeroed by the allocator, so that no page is touched here.
        let bytes = vec![0; len + ALIGN];
        let data = bytes.as_ptr().addr() + BEFORE_DATA;
        let start = data.wrapping_neg() % ALIGN;
        Buffer { bytes, start, len }
    }

    /// The room.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_a_write_begins_at_a_page() {
        for len in [8192, (1 << 20) + 4096] {
            let mut buffer = Buffer::new(len);
            let room = buffer.room();
            assert_eq!(room.len(), len);
            assert_eq!((room.as_ptr().addr() + 80) % ALIGN, 0);
        }
    }
}
