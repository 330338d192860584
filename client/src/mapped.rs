//! [`MappedFile`]: a range of a file, mapped as memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pramfs_medium::pmem::{
    Atom, PmemError, RegionAccess as _, StitchSource, StitchedMap, Stitcher, Unfenced,
};
use pramfs_medium::types::Access;

use crate::error::{Error, Result};
use crate::leased::Leased;

/// A contiguous view of a range of a file, on the medium itself.
///
/// Loads and stores need no call and no copy. The bytes can change at any time, because
/// others write the file; so the view offers a raw pointer, atomic accesses and copies, but
/// no slices. Its blocks belong to no other file while it lives, whatever happens to the
/// file, to the mount and to its server.
///
/// A store is durable after [`persist`](Self::persist). Aligned stores of up to 8 bytes are
/// atomic, in a crash too.
///
/// ```no_run
/// # use pramfs_client::Access;
/// # let file = pramfs_client::File::open("/mnt/data/table")?;
/// let view = file.map(0..file.len()?, Access::Read)?;
/// let counter: u64 = view.load(64)?;
/// # Ok::<(), pramfs_client::Error>(())
/// ```
#[derive(Debug)]
pub struct MappedFile {
    // Dropped before the lease.
    map: StitchedMap,
    /// Offset of the range in the map. The map consists of whole pages.
    head: u64,
    len: u64,
    layout: u64,
    /// Faults and failed fences of the region that this view has told of.
    faults: AtomicU64,
    leased: Arc<Leased>,
}

impl MappedFile {
    pub(crate) fn new(
        leased: &Arc<Leased>,
        range: Range<u64>,
        access: Access,
    ) -> Result<MappedFile> {
        if range.start >= range.end {
            return Err(Error::Range);
        }
        let writable = access == Access::Write;
        let faults = leased.region().faults_seen();
        // A region mapped for reading has no private pages: a client stores nothing to it.
        let source = StitchSource::of_region(leased.region())?.without_private_pages();
        let unit = source.unit();
        let start = range.start / unit * unit;
        let stop = range
            .end
            .checked_next_multiple_of(unit)
            .ok_or(Error::Range)?;
        let known = match access {
            Access::Read => leased.known(range.end)?,
            Access::Write => leased.written(start..range.end)?,
        };
        let pieces: Vec<_> = known.pieces(start, stop.min(known.end)).collect();
        let first = pieces.iter().find_map(|(place, _)| *place).unwrap_or(0);
        let mut stitcher = Stitcher::new(stop - start, first)?;
        let mut at = 0;
        for (place, len) in pieces {
            if let Some(place) = place {
                let stitched = stitcher.stitch(&source, at, place, len, writable);
                stitched.map_err(|error| match error {
                    PmemError::Misaligned { align, .. } => Error::NotWholePages { unit: align },
                    other => other.into(),
                })?;
            }
            at += len;
        }
        Ok(MappedFile {
            map: stitcher.finish()?,
            head: range.start - start,
            len: range.end - range.start,
            layout: known.layout,
            faults: AtomicU64::new(faults),
            leased: Arc::clone(leased),
        })
    }

    #[inline]
    fn place(&self, offset: u64, len: u64) -> Result<u64> {
        self.leased.region().check_owner()?;
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.head + offset),
            _ => Err(Error::Range),
        }
    }

    #[inline]
    fn place_of<T: Atom>(&self, offset: u64) -> Result<u64> {
        self.place(offset, size_of::<T>() as u64)
    }

    fn place_in(&self, range: &Range<u64>) -> Result<(u64, u64)> {
        let len = range.end.checked_sub(range.start).ok_or(Error::Range)?;
        Ok((self.place(range.start, len)?, len))
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a view is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the address of the first byte. It is valid for [`len`](Self::len) bytes while
    /// the view lives, and writable in a view for writing. Others may store to these bytes at
    /// any time, so loads through it must be atomic or volatile.
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr().wrapping_add(self.head as usize)
    }

    /// Copies bytes out. The copy is atomic by aligned words of 8 bytes.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Medium`] if a page has failed.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let at = self.place(offset, into.len() as u64)?;
        self.map.read(at, into)?;
        self.check_fault(at, into.len() as u64)
    }

    /// Copies bytes in. They are durable after [`persist`](Self::persist).
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Medium`] in a view for reading.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        let at = self.place(offset, from.len() as u64)?;
        Ok(self.map.write(at, from)?)
    }

    /// Loads a number of 1, 2, 4 or 8 bytes atomically, with acquire ordering. It must be
    /// aligned.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Medium`] if it is not aligned or its page has failed.
    #[inline]
    pub fn load<T: Atom>(&self, offset: u64) -> Result<T> {
        let at = self.place_of::<T>(offset)?;
        let value = self.map.load(at)?;
        self.check_fault(at, size_of::<T>() as u64)?;
        Ok(value)
    }

    /// Stores a number atomically, with release ordering. It is durable after
    /// [`persist`](Self::persist).
    ///
    /// # Errors
    /// As for [`load`](Self::load); [`Error::Medium`] in a view for reading.
    #[inline]
    pub fn store<T: Atom>(&self, offset: u64, value: T) -> Result<()> {
        Ok(self.map.store(self.place_of::<T>(offset)?, value)?)
    }

    /// Stores a number atomically, and returns the old one.
    ///
    /// # Errors
    /// As for [`store`](Self::store).
    #[inline]
    pub fn swap<T: Atom>(&self, offset: u64, value: T) -> Result<T> {
        Ok(self.map.swap(self.place_of::<T>(offset)?, value)?)
    }

    /// Adds to a number atomically, and returns the old one. Overflow wraps around.
    ///
    /// # Errors
    /// As for [`store`](Self::store).
    #[inline]
    pub fn fetch_add<T: Atom>(&self, offset: u64, value: T) -> Result<T> {
        Ok(self.map.fetch_add(self.place_of::<T>(offset)?, value)?)
    }

    /// Stores `new` atomically if the number equals `current`. Returns the old number: as `Ok`
    /// if it was `current`, else as `Err`.
    ///
    /// # Errors
    /// As for [`store`](Self::store).
    #[inline]
    pub fn compare_exchange<T: Atom>(
        &self,
        offset: u64,
        current: T,
        new: T,
    ) -> Result<Result<T, T>> {
        let at = self.place_of::<T>(offset)?;
        Ok(self.map.compare_exchange(at, current, new)?)
    }

    /// Makes the stores to a range durable, and notes the change for the file's mtime.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Medium`] if a page has failed.
    pub fn persist(&self, range: Range<u64>) -> Result<()> {
        self.flush(range)?;
        self.drain()
    }

    /// Starts to make the stores to a range durable, without waiting: they are durable after
    /// [`drain`](Self::drain) on this thread. For several ranges, several calls and one
    /// `drain` are faster than `persist` for each.
    ///
    /// # Errors
    /// As for [`persist`](Self::persist).
    pub fn flush(&self, range: Range<u64>) -> Result<()> {
        let (at, len) = self.place_in(&range)?;
        // `drain` fences it.
        let _pending = self.map.flush(self.leased.region(), at, len)?;
        self.check_fault(at, len)
    }

    /// Waits until the ranges that this thread [flushed](Self::flush) are durable, and notes
    /// the change for the file's mtime.
    ///
    /// # Errors
    /// [`Error::Faulted`], once, if a page of the region, or the write-back of one, has failed
    /// since the view was made.
    pub fn drain(&self) -> Result<()> {
        let region = self.leased.region();
        region.write_back().fence(Unfenced::none());
        self.leased.note_store()?;
        let faults = region.faults_seen();
        match self.faults.swap(faults, Ordering::Relaxed) == faults {
            true => Ok(()),
            false => Err(Error::Faulted),
        }
    }

    /// Faults in the pages of the view now, instead of at their first use.
    ///
    /// # Errors
    /// [`Error::Medium`]: ENOMEM, or EIO in a forked child.
    pub fn populate(&self) -> Result<()> {
        self.leased.region().check_owner()?;
        Ok(self.map.populate()?)
    }

    #[inline]
    fn check_fault(&self, at: u64, len: u64) -> Result<()> {
        match self.map.is_faulted(at, len) {
            true => Err(Error::Faulted),
            false => Ok(()),
        }
    }

    /// Whether the view still shows the file: since it was made, the file has not become
    /// shorter and no hole of it was filled. A file that has only grown counts as the same.
    /// True means that this holds for all loads through the view before this call.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub fn is_current(&self) -> Result<bool> {
        self.leased.is_current(self.layout)
    }
}
