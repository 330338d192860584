//! [`MappedFile`]: a range of a file as memory.

use std::ops::Range;
use std::sync::Arc;

use crate::alloc::Run;
use crate::error::{Error, Result};
use crate::fs::Shared;
use crate::pmem::{StitchSource, StitchedMap, Stitcher};
use crate::types::{FileExtent, Ino};

/// What a view is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads.
    Read,
    /// Loads and stores.
    Write,
}

/// A contiguous view of a range of a file, on the medium itself.
///
/// Loads and stores through it need no call and no copy. A store is durable
/// after [`persist`](Self::persist); aligned stores of up to 8 bytes are
/// atomic. Bytes may change under the reader, by other handles of the file:
/// the view hands out a raw pointer and copies, no slices. Unlink, truncate and
/// punch do not take the blocks away while the view lives.
///
/// ```
/// use pramfs::direct::{Access, OpenOptions};
/// use pramfs::format::{FormatOptions, format};
/// use pramfs::pmem::RegionOptions;
/// use pramfs::{Fs, MountOptions};
///
/// let region = RegionOptions::new().memfd("example", 4 << 20)?;
/// format(&region, &FormatOptions::default())?;
/// let fs = Fs::open(region, MountOptions::default())?;
/// let file = OpenOptions::new().create(true).open(&fs, "/table")?;
/// file.set_size(8192)?;
/// let view = file.map(0..8192, Access::Write)?;
/// view.store_u64(4096, 42)?;
/// view.persist(4096..4104)?;
/// let mut back = [0; 8];
/// file.read_at(4096, &mut back)?;
/// assert_eq!(u64::from_le_bytes(back), 42);
/// # Ok::<(), pramfs::Error>(())
/// ```
#[derive(Debug)]
pub struct MappedFile {
    shared: Arc<Shared>,
    pub(super) view: StitchedMap,
    /// Offset of the range in the view, whose pieces are whole blocks.
    head: u64,
    len: u64,
    ino: Ino,
    pin: u64,
    extents: Vec<FileExtent>,
}

impl MappedFile {
    pub(super) fn new(
        shared: Arc<Shared>,
        ino: Ino,
        range: Range<u64>,
        access: Access,
    ) -> Result<MappedFile> {
        if range.start >= range.end {
            return Err(Error::Invalid("an empty range cannot be mapped"));
        }
        let block = shared.vol.geo.block_size;
        if block < rustix::param::page_size() as u64 {
            return Err(Error::NotSupported(
                "mapping needs blocks of 4096 bytes (mkfs.pramfs -b 4096)",
            ));
        }
        let start = range.start / block * block;
        let end = range
            .end
            .checked_next_multiple_of(block)
            .ok_or(Error::TooLarge(range.end))?;
        if access == Access::Write {
            // Before a block is taken for it.
            if range.end > shared.getattr(ino)?.size {
                return Err(past_end());
            }
            shared.fill(ino, start, range.end - start)?;
        }
        // The reference outlives the extents, and the pin is taken under the
        // lock that the extents were read under.
        shared.pin(ino, 1);
        let pinned = shared.pinned_extents(ino, start, end, range.end);
        let (pin, extents) = match pinned {
            Ok(found) => found,
            Err(e) => {
                shared.unpin(ino, 1);
                return Err(e);
            }
        };
        let made = Self::stitch(&shared, &extents, start, end, access);
        let view = match made {
            Ok(view) => view,
            Err(e) => {
                shared.vol.unpin(pin);
                shared.unpin(ino, 1);
                return Err(e);
            }
        };
        Ok(MappedFile {
            shared,
            view,
            head: range.start - start,
            len: range.end - range.start,
            ino,
            pin,
            extents,
        })
    }

    fn stitch(
        shared: &Shared,
        extents: &[FileExtent],
        start: u64,
        end: u64,
        access: Access,
    ) -> Result<StitchedMap> {
        let source = StitchSource::of_region(&shared.vol.region)?;
        let first = extents.iter().find_map(|e| {
            e.region_offset
                .map(|r| r.wrapping_sub(e.file_offset - start))
        });
        let mut stitcher = Stitcher::new(end - start, first.unwrap_or(0))?;
        for e in extents {
            if let Some(at) = e.region_offset.filter(|_| !e.unwritten) {
                stitcher.stitch(
                    &source,
                    e.file_offset - start,
                    at,
                    e.len,
                    access == Access::Write,
                )?;
            }
        }
        Ok(stitcher.finish()?)
    }

    /// Bytes of the view.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: an empty range cannot be mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte of the view; `len()` bytes from here are valid, and writable
    /// on a view for writing, as long as the view lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.view.as_ptr().wrapping_add(self.head as usize)
    }

    /// The extents of the view: whole blocks, holes included.
    pub fn extents(&self) -> &[FileExtent] {
        &self.extents
    }

    pub(super) fn at(&self, offset: u64, len: u64) -> Result<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.head + offset),
            _ => Err(Error::Invalid("the access leaves the view")),
        }
    }

    pub(super) fn check_fault(&self, at: u64, len: u64) -> Result<()> {
        if self.view.is_faulted(at, len) {
            Err(self.failed())
        } else {
            Ok(())
        }
    }

    pub(super) fn failed(&self) -> Error {
        Error::Io(format!("the medium under {} failed", self.ino))
    }

    /// Loads an aligned word, atomically.
    ///
    /// # Errors
    /// [`Error::Invalid`] past the end, [`Error::Io`] where the medium failed.
    #[inline]
    pub fn load_u64(&self, offset: u64) -> Result<u64> {
        let at = self.at(offset, 8)?;
        let value = self.view.load_u64(at)?;
        self.check_fault(at, 8)?;
        Ok(value)
    }

    /// Stores an aligned word, atomically; durable after
    /// [`persist`](Self::persist).
    ///
    /// # Errors
    /// As for [`load_u64`](Self::load_u64); EROFS on a read-only view.
    #[inline]
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<()> {
        Ok(self.view.store_u64(self.at(offset, 8)?, value)?)
    }

    /// Adds to an aligned word, atomically, and gives what it was.
    ///
    /// # Errors
    /// As for [`store_u64`](Self::store_u64).
    #[inline]
    pub fn fetch_add_u64(&self, offset: u64, value: u64) -> Result<u64> {
        Ok(self.view.fetch_add_u64(self.at(offset, 8)?, value)?)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// As for [`load_u64`](Self::load_u64).
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let at = self.at(offset, into.len() as u64)?;
        self.view.read(at, into)?;
        self.check_fault(at, into.len() as u64)
    }

    /// Copies bytes in; durable after [`persist`](Self::persist).
    ///
    /// # Errors
    /// As for [`store_u64`](Self::store_u64).
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        Ok(self.view.write(self.at(offset, from.len() as u64)?, from)?)
    }

    /// Makes the stores to a range durable, and notes the change of the file's
    /// mtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] past the end, [`Error::Io`] where the medium failed.
    pub fn persist(&self, range: Range<u64>) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        let at = self.at(range.start, len)?;
        self.view.persist(&self.shared.vol.region, at, len)?;
        self.check_fault(at, len)?;
        self.shared.touched_by_map(self.ino)
    }

    /// Sets up the pages of the view now instead of at their first use.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn populate(&self) -> Result<()> {
        Ok(self.view.populate()?)
    }
}

fn past_end() -> Error {
    Error::Invalid("the range to be mapped goes past the end of the file")
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // The addresses are unmapped after this; nothing is reused before the
        // last record that freed it is dead, and the view is ours alone.
        self.shared.vol.unpin(self.pin);
        self.shared.unpin(self.ino, 1);
    }
}

impl Shared {
    /// Extents of whole blocks, pinned.
    fn pinned_extents(
        &self,
        ino: Ino,
        start: u64,
        end: u64,
        needed: u64,
    ) -> Result<(u64, Vec<FileExtent>)> {
        self.op(crate::fs::Need::Read, || {
            let inode = self.iget_user(ino)?;
            let core = inode.core.read();
            crate::fs::check_file(&inode, &core)?;
            if needed > core.d.size {
                return Err(past_end());
            }
            let extents = self.extents_between(&core, start, end)?;
            let log2 = self.vol.geo.block_log2;
            let runs: Vec<Run> = extents
                .iter()
                .filter_map(|e| {
                    e.region_offset.map(|at| Run {
                        start: at >> log2,
                        len: e.len >> log2,
                    })
                })
                .collect();
            Ok((self.vol.pins.pin(&runs), extents))
        })
    }
}
