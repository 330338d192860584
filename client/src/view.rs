//! [`View`]: a range of a file, mapped as memory.

use std::ops::Range;
use std::sync::Arc;

use pramfs_medium::pmem::{Atom, RegionAccess as _, StitchSource, StitchedMap, Stitcher};

use crate::error::{Error, Result};
use crate::leased::Leased;

/// A contiguous view of a range of a file, on the medium itself, for reading.
///
/// Loads need no call and no copy. The bytes can change at any time, because others write
/// the file; so the view offers a raw pointer, atomic loads and copies, but no slices. Its
/// blocks belong to no other file while it lives, whatever happens to the file, to the
/// mount and to its server.
///
/// ```no_run
/// let file = pramfs_client::File::open("/mnt/data/table")?;
/// let view = file.map(0..file.len()?)?;
/// let counter: u64 = view.load(64)?;
/// # Ok::<(), pramfs_client::Error>(())
/// ```
#[derive(Debug)]
pub struct View {
    // Dropped before the lease.
    map: StitchedMap,
    /// Offset of the range in the map. The map consists of whole pages.
    head: u64,
    len: u64,
    layout: u64,
    leased: Arc<Leased>,
}

impl View {
    pub(crate) fn new(leased: &Arc<Leased>, range: Range<u64>) -> Result<View> {
        if range.start >= range.end {
            return Err(Error::Range);
        }
        let source = StitchSource::of_region(leased.region())?;
        let unit = source.unit();
        let start = range.start / unit * unit;
        let known = leased.known(range.end)?;
        let stop = range
            .end
            .checked_next_multiple_of(unit)
            .ok_or(Error::Range)?;
        let pieces: Vec<_> = known.pieces(start, stop.min(known.end)).collect();
        let first = pieces.iter().find_map(|(place, _)| *place).unwrap_or(0);
        let mut stitcher = Stitcher::new(stop - start, first)?;
        let mut at = 0;
        for (place, len) in pieces {
            if let Some(place) = place {
                stitcher.stitch(&source, at, place, len, false)?;
            }
            at += len;
        }
        Ok(View {
            map: stitcher.finish()?,
            head: range.start - start,
            len: range.end - range.start,
            layout: known.layout,
            leased: Arc::clone(leased),
        })
    }

    fn place(&self, offset: u64, len: u64) -> Result<u64> {
        self.leased.region().check_owner()?;
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.head + offset),
            _ => Err(Error::Range),
        }
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a view is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the address of the first byte. It is valid for [`len`](Self::len) bytes while
    /// the view lives. Others may store to these bytes at any time, so loads through it must
    /// be atomic or volatile.
    pub fn as_ptr(&self) -> *const u8 {
        self.map.as_ptr().wrapping_add(self.head as usize)
    }

    /// Copies bytes out. The copy is atomic by aligned words of 8 bytes.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Medium`] if a page has failed.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let at = self.place(offset, into.len() as u64)?;
        Ok(self.map.read(at, into)?)
    }

    /// Loads a value of up to 8 bytes atomically. Its address must be aligned.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Medium`] if it is not aligned or its page has failed.
    pub fn load<T: Atom>(&self, offset: u64) -> Result<T> {
        let at = self.place(offset, size_of::<T>() as u64)?;
        Ok(self.map.load(at)?)
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
