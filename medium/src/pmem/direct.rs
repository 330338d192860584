//! What a file in this process and a file of a mount by a lease have in common, for programs
//! that choose at run time.
//!
//! `pramfs::File` and `pramfs_client::File` implement [`DirectFile`], their views
//! [`DirectView`]. Both have the same methods besides, with errors of their own and with values
//! of all sizes; use those where the kind of the file is known.

use std::fmt::Debug;
use std::io;
use std::ops::Range;

use crate::types::Access;

/// A file whose bytes are read and stored without a system call.
///
/// ```
/// use pramfs_medium::pmem::direct::DirectFile;
/// use pramfs_medium::types::Access;
///
/// /// Counts a visit in the first 8 bytes of a file, wherever it is.
/// fn count(file: &dyn DirectFile) -> std::io::Result<u64> {
///     let view = file.view(0..8, Access::Write)?;
///     let before = view.fetch_add_u64(0, 1)?;
///     view.persist(0..8)?;
///     Ok(before + 1)
/// }
/// ```
pub trait DirectFile: Debug + Send + Sync {
    /// Reads bytes from an offset. Returns fewer than asked at the end of the file only.
    ///
    /// # Errors
    /// Those of the file; kind and source are kept.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes bytes at an offset; they are durable when it returns. Returns fewer if there is
    /// no room for more.
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at).
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;

    /// Appends bytes; they are durable when it returns. Returns where they begin.
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at).
    fn append(&self, buf: &[u8]) -> io::Result<u64>;

    /// Returns the size, bytes.
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at).
    fn size(&self) -> io::Result<u64>;

    /// Maps a range as memory. For stores, holes are filled.
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at).
    fn view(&self, range: Range<u64>, access: Access) -> io::Result<Box<dyn DirectView>>;
}

/// A range of a file as memory: the medium itself. Offsets are relative to its start.
pub trait DirectView: Debug + Send + Sync {
    /// Returns the length, bytes.
    fn size(&self) -> u64;

    /// Copies bytes out.
    ///
    /// # Errors
    /// The range is past the end; a page has failed.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Copies bytes in. [`persist`](Self::persist) makes them durable.
    ///
    /// # Errors
    /// As for [`read`](Self::read); the view is for reading.
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Loads an aligned word, atomically.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    fn load_u64(&self, offset: u64) -> io::Result<u64>;

    /// Stores an aligned word, atomically.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    fn store_u64(&self, offset: u64, value: u64) -> io::Result<()>;

    /// Adds to an aligned word, atomically. Returns what it was before.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    fn fetch_add_u64(&self, offset: u64, value: u64) -> io::Result<u64>;

    /// Stores `new` in an aligned word if it is `current`, atomically. The inner result is what
    /// it was before, `Err` if it was not `current`.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    fn compare_exchange_u64(
        &self,
        offset: u64,
        current: u64,
        new: u64,
    ) -> io::Result<Result<u64, u64>>;

    /// Makes the stores to a range durable.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    fn persist(&self, range: Range<u64>) -> io::Result<()>;
}

/// Implements the traits for a file and its view, whose methods have the same names and errors
/// that convert to an [`io::Error`].
#[macro_export]
macro_rules! impl_direct {
    ($file:ty, $view:ty, $size:expr) => {
        impl $crate::pmem::direct::DirectFile for $file {
            fn read_at(&self, buf: &mut [u8], offset: u64) -> ::std::io::Result<usize> {
                Ok(<$file>::read_at(self, buf, offset)?)
            }

            fn write_at(&self, buf: &[u8], offset: u64) -> ::std::io::Result<usize> {
                Ok(<$file>::write_at(self, buf, offset)?)
            }

            fn append(&self, buf: &[u8]) -> ::std::io::Result<u64> {
                Ok(<$file>::append(self, buf)?)
            }

            fn size(&self) -> ::std::io::Result<u64> {
                Ok($size(self)?)
            }

            fn view(
                &self,
                range: ::std::ops::Range<u64>,
                access: $crate::types::Access,
            ) -> ::std::io::Result<Box<dyn $crate::pmem::direct::DirectView>> {
                Ok(Box::new(<$file>::map(self, range, access)?))
            }
        }

        impl $crate::pmem::direct::DirectView for $view {
            fn size(&self) -> u64 {
                <$view>::len(self)
            }

            fn read(&self, offset: u64, into: &mut [u8]) -> ::std::io::Result<()> {
                Ok(<$view>::read(self, offset, into)?)
            }

            fn write(&self, offset: u64, from: &[u8]) -> ::std::io::Result<()> {
                Ok(<$view>::write(self, offset, from)?)
            }

            fn load_u64(&self, offset: u64) -> ::std::io::Result<u64> {
                Ok(<$view>::load(self, offset)?)
            }

            fn store_u64(&self, offset: u64, value: u64) -> ::std::io::Result<()> {
                Ok(<$view>::store(self, offset, value)?)
            }

            fn fetch_add_u64(&self, offset: u64, value: u64) -> ::std::io::Result<u64> {
                Ok(<$view>::fetch_add(self, offset, value)?)
            }

            fn compare_exchange_u64(
                &self,
                offset: u64,
                current: u64,
                new: u64,
            ) -> ::std::io::Result<::std::result::Result<u64, u64>> {
                Ok(<$view>::compare_exchange(self, offset, current, new)?)
            }

            fn persist(&self, range: ::std::ops::Range<u64>) -> ::std::io::Result<()> {
                Ok(<$view>::persist(self, range)?)
            }
        }
    };
}
