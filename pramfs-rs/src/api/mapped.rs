//! [`MappedFile`]: a range of a file, mapped as memory.

use std::ops::Range;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::pinned::{Pinned, is_shown, is_written};
use crate::fs::Engine;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::pmem::{
    Advice, Atom, Region, RegionAccess, RegionOwner, StitchSource, StitchedMap, Unfenced,
};
use pramfs_medium::types::{Access, FileExtent, Ino};

/// A contiguous view of a range of a file, on the medium itself.
///
/// Loads and stores through it need no call and no copy. A store is durable
/// after [`persist`](Self::persist); aligned stores of up to 8 bytes are
/// atomic. Other handles of the file can change the bytes at any time: so the
/// view offers a raw pointer and copies, but no slices. Unlink, truncate and
/// punch do not free its blocks while the view lives. After the file system is
/// closed, and in a forked child, every call fails with EIO.
///
/// # Threads
/// `MappedFile` is [`Send`] and [`Sync`], and has no lifetime: it keeps the blocks, and what it
/// needs of the [`FileSystem`](crate::FileSystem), alive. All methods but
/// [`extend`](Self::extend) take `&self`, so threads share one by reference or in an [`Arc`].
/// The atomic methods order the threads as those of [`std::sync::atomic`]; copies of more than
/// 8 aligned bytes can be torn by a concurrent store. [`flush`](Self::flush) and
/// [`drain`](Self::drain) belong together on one thread.
///
/// ```
/// use pramfs::format::{FormatOptions, format};
/// use pramfs::pmem::RegionOptions;
/// use pramfs::{Access, FileSystem, MountOptions};
///
/// let region = RegionOptions::new().memfd("example", 4 << 20)?;
/// format(&region, &FormatOptions::default())?;
/// let fs = FileSystem::mount(region, MountOptions::default())?;
/// let file = fs.create("/table")?;
/// file.set_len(8192)?;
/// let view = file.map(0..8192, Access::Write)?;
/// view.store(4096, 42u64)?;
/// view.persist(4096..4104)?;
/// let mut back = [0; 8];
/// file.read_at(&mut back, 4096)?;
/// assert_eq!(u64::from_le_bytes(back), 42);
/// # Ok::<(), pramfs::Error>(())
/// ```
#[derive(Debug)]
pub struct MappedFile {
    // Dropped before the pins: nothing is mapped when they end.
    pub(super) view: StitchedMap,
    /// Offset of the range in the view, which consists of whole blocks.
    head: u64,
    len: u64,
    access: Access,
    extents: Vec<FileExtent>,
    pinned: Pinned,
    /// Pins of the ranges that [`extend`](Self::extend) added.
    grown: Vec<Pinned>,
}

impl MappedFile {
    pub(super) fn new(
        engine: &Arc<Engine>,
        ino: Ino,
        range: Range<u64>,
        reserve: u64,
        access: Access,
    ) -> Result<MappedFile> {
        if range.start >= range.end {
            return Err(Error::Invalid("an empty range cannot be mapped"));
        }
        // Check before waiting for a lock.
        if !engine.open.is_open() {
            return Err(engine.ended());
        }
        let block = engine.vol.geo.block_size;
        if block < rustix::param::page_size() as u64 {
            return Err(Error::NotSupported(
                "mapping needs blocks of 4096 bytes (mkfs.pramfs -b 4096)",
            ));
        }
        let unit = StitchSource::of_region(&engine.vol.region)?.unit();
        // A view that can grow consists of whole pieces from the start.
        let smallest = if reserve > 0 { unit.max(block) } else { block };
        let mut pinned = Pinned::written(engine, ino, &range, access, smallest)?;
        let (to_store, protected) = (access == Access::Write, engine.vol.region.is_protected());
        let view = match pinned.extents[..] {
            // Any block can be mapped in place, unless the region's mapping is for loads only.
            [e] if unit > smallest && is_written(&e) && !(to_store && protected) => {
                StitchedMap::in_region(
                    Arc::new(Owner(Arc::clone(engine))),
                    e.region_offset.unwrap_or(0),
                    e.len,
                    to_store,
                )?
            }
            _ => {
                if unit > smallest {
                    pinned = Pinned::written(engine, ino, &range, access, unit)?;
                }
                let reserve = match reserve {
                    0 => 0,
                    some => some.saturating_add(range.start - pinned.start),
                };
                pinned.stitch(access, reserve)?
            }
        };
        Ok(MappedFile {
            view,
            head: range.start - pinned.start,
            len: range.end - range.start,
            access,
            extents: pinned.extents.clone(),
            pinned,
            grown: Vec::new(),
        })
    }

    /// Grows the view to `len` bytes, at the addresses that follow the current ones: existing
    /// addresses and pointers into the view stay valid. The file must reach that far
    /// ([`File::set_len`](crate::File::set_len)), and the addresses must be
    /// [reserved](Self::reserved). The view never shrinks: a smaller `len` changes
    /// nothing. After an error, the view is unchanged.
    ///
    /// ```
    /// use pramfs::format::{FormatOptions, format};
    /// use pramfs::pmem::RegionOptions;
    /// use pramfs::{Access, FileSystem, MountOptions};
    ///
    /// let region = RegionOptions::new().memfd("example", 8 << 20)?;
    /// format(&region, &FormatOptions::default())?;
    /// let fs = FileSystem::mount(region, MountOptions::default())?;
    /// let file = fs.create("/log")?;
    /// file.set_len(4096)?;
    /// let mut view = file.map_reserved(0..4096, 1 << 30, Access::Write)?;
    /// let address = view.as_ptr();
    /// file.set_len(1 << 20)?;
    /// view.extend(1 << 20)?;
    /// assert_eq!(view.as_ptr(), address);
    /// view.store(65536, 7u64)?;
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] past the end of the file, or past the reserved addresses; the
    /// errors of [`File::map`](crate::File::map).
    pub fn extend(&mut self, len: u64) -> Result<()> {
        let engine = &self.pinned.engine;
        if !engine.open.is_open() {
            return Err(engine.ended());
        }
        if len <= self.len {
            return Ok(());
        }
        if len > self.reserved() {
            return Err(Error::Invalid("the view has too few reserved addresses"));
        }
        let first = self.pinned.start;
        let end = first + self.head + len;
        let mapped = self.grown.last().map_or(self.pinned.end, |last| last.end);
        let source = StitchSource::of_region(&engine.vol.region)?;
        let unit = source.unit().max(engine.vol.geo.block_size);
        if first + self.head + self.len < mapped {
            // The rest of the last block is already mapped. It must still belong to the file.
            let rest = (mapped - unit)..end.min(mapped);
            let now = Pinned::written(engine.arc(), self.pinned.ino, &rest, self.access, unit)?;
            if !now.extents.iter().all(|e| is_shown(&self.extents, e)) {
                return Err(Error::Invalid(
                    "the last block of the view no longer belongs to the file: map the file again",
                ));
            }
            if end <= mapped {
                self.len = len;
                return Ok(());
            }
        }
        let range = mapped..end;
        let pinned = Pinned::written(engine.arc(), self.pinned.ino, &range, self.access, unit)?;
        let pieces = pinned.extents.iter().filter(|e| is_written(e)).map(|e| {
            let at = e.file_offset - first;
            (at, e.region_offset.unwrap_or(0), e.len)
        });
        let writable = self.access == Access::Write;
        self.view
            .extend(&source, pinned.end - first, pieces, writable)?;
        self.extents.extend_from_slice(&pinned.extents);
        self.grown.push(pinned);
        self.len = len;
        Ok(())
    }

    /// Returns the maximum size of the view in bytes: the reserved addresses.
    pub fn reserved(&self) -> u64 {
        self.view.reserved() - self.head
    }

    /// Advises the kernel how a range, widened to whole pages, will be used.
    ///
    /// # Errors
    /// [`Error::Invalid`] past the end; errors of madvise(2).
    pub fn advise(&self, range: Range<u64>, advice: Advice) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        let at = self.at(range.start, len)?;
        Ok(self.view.advise(at, len, advice)?)
    }

    /// Returns the size of the view in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: an empty range cannot be mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first byte of the view. `len()` bytes from here are valid, and writable
    /// in a view for writing, as long as the view lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.view.as_ptr().wrapping_add(self.head as usize)
    }

    /// Returns the extents of the view: whole blocks, including holes.
    pub fn extents(&self) -> &[FileExtent] {
        &self.extents
    }

    /// Returns where an access lies in the view, if the file system is open.
    #[inline]
    pub(super) fn at(&self, offset: u64, len: u64) -> Result<u64> {
        if !self.pinned.engine.open.is_open() {
            return Err(self.pinned.engine.ended());
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.head + offset),
            _ => Err(Error::Invalid("the access is outside the view")),
        }
    }

    #[inline]
    fn atom_at<T: Atom>(&self, offset: u64) -> Result<u64> {
        let at = self.at(offset, size_of::<T>() as u64)?;
        // A view starts with a whole block.
        match at.is_multiple_of(size_of::<T>() as u64) {
            true => Ok(at),
            false => Err(Error::Invalid("the number is not aligned in the file")),
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
        Error::io(format!("the medium under {} failed", self.pinned.ino))
    }

    /// Loads a number of 1, 2, 4 or 8 bytes atomically, with acquire ordering.
    ///
    /// # Errors
    /// [`Error::Invalid`] past the end, and if the number is not aligned in the file;
    /// [`Error::Io`] if the medium failed.
    #[inline]
    pub fn load<T: Atom>(&self, offset: u64) -> Result<T> {
        let at = self.atom_at::<T>(offset)?;
        let value = self.view.load(at)?;
        self.check_fault(at, size_of::<T>() as u64)?;
        Ok(value)
    }

    /// Stores a number atomically, with release ordering. It is durable after
    /// [`persist`](Self::persist).
    ///
    /// # Errors
    /// As for [`load`](Self::load); EACCES for a view for reading.
    #[inline]
    pub fn store<T: Atom>(&self, offset: u64, value: T) -> Result<()> {
        let at = self.atom_at::<T>(offset)?;
        Ok(self.view.store(at, value)?)
    }

    /// Stores a number atomically, and returns the old one.
    ///
    /// # Errors
    /// As for [`store`](Self::store).
    #[inline]
    pub fn swap<T: Atom>(&self, offset: u64, value: T) -> Result<T> {
        let at = self.atom_at::<T>(offset)?;
        Ok(self.view.swap(at, value)?)
    }

    /// Adds to a number atomically, and returns the old one. Overflow wraps around.
    ///
    /// # Errors
    /// As for [`store`](Self::store).
    #[inline]
    pub fn fetch_add<T: Atom>(&self, offset: u64, value: T) -> Result<T> {
        let at = self.atom_at::<T>(offset)?;
        Ok(self.view.fetch_add(at, value)?)
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
        let at = self.atom_at::<T>(offset)?;
        Ok(self.view.compare_exchange(at, current, new)?)
    }

    /// Copies a value out, of a type for which all bytes are valid. The copy is
    /// not atomic: with a concurrent store it can mix old and new aligned
    /// words.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_value<T: FromBytes + IntoBytes>(&self, offset: u64) -> Result<T> {
        let mut value = T::new_zeroed();
        self.read(offset, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Copies a value in. It is durable after [`persist`](Self::persist).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn write_value<T: IntoBytes + Immutable>(&self, offset: u64, value: &T) -> Result<()> {
        self.write(offset, value.as_bytes())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let at = self.at(offset, into.len() as u64)?;
        self.view.read(at, into)?;
        self.check_fault(at, into.len() as u64)
    }

    /// Copies bytes in. They are durable after [`persist`](Self::persist).
    ///
    /// # Errors
    /// As for [`store`](Self::store).
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        Ok(self.view.write(self.at(offset, from.len() as u64)?, from)?)
    }

    /// Makes the stores to a range durable, and records the change of the file's
    /// mtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] past the end, [`Error::Io`] if the medium failed.
    pub fn persist(&self, range: Range<u64>) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        let at = self.at(range.start, len)?;
        self.view.persist(&self.pinned.engine.vol.region, at, len)?;
        self.check_fault(at, len)?;
        self.pinned.engine.touched_by_map(self.pinned.ino)
    }

    /// Starts to make the stores to a range durable, without waiting: they are durable after
    /// [`drain`](Self::drain) on this thread. For several ranges, several calls and one
    /// `drain` are faster than `persist` for each.
    ///
    /// # Errors
    /// As for [`persist`](Self::persist).
    pub fn flush(&self, range: Range<u64>) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        let at = self.at(range.start, len)?;
        // `drain` fences it.
        let _pending = self.view.flush(&self.pinned.engine.vol.region, at, len)?;
        self.check_fault(at, len)
    }

    /// Waits until the ranges that this thread [flushed](Self::flush) are durable, and records
    /// the change of the file's mtime.
    ///
    /// # Errors
    /// [`Error::Io`] if the medium failed.
    pub fn drain(&self) -> Result<()> {
        let at = self.at(0, self.len)?;
        let region = &self.pinned.engine.vol.region;
        region.write_back().fence(Unfenced::none());
        self.check_fault(at, self.len)?;
        self.pinned.engine.touched_by_map(self.pinned.ino)
    }

    pub(super) fn is_for_writing(&self) -> bool {
        self.access == Access::Write
    }

    /// Returns the offset of the view in the file.
    pub(super) fn file_offset(&self) -> u64 {
        self.pinned.start + self.head
    }

    /// Overwrites ranges of the file, all of them or none.
    pub(super) fn overwrite_file(&self, ranges: &[(u64, &[u8])]) -> Result<()> {
        self.pinned.engine.overwrite_ranges(self.pinned.ino, ranges)
    }

    /// Faults in the pages of the view now, instead of at their first use.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn populate(&self) -> Result<()> {
        Ok(self.view.populate()?)
    }
}

/// Keeps the region of a view mapped. The trait is public in `pramfs-medium` and gives the
/// region out, so `Engine`, which programs can name, does not implement it.
#[derive(Debug)]
struct Owner(Arc<Engine>);

impl RegionOwner for Owner {
    fn region(&self) -> &Region {
        &self.0.vol.region
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::OpenOptions;
    use crate::{MountOptions, inode::Fs};
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::pmem::RegionOptions;
    use pramfs_medium::pmem::huge_pool::HugePool;
    use pramfs_medium::types::Fallocate;

    const MIB: u64 = 1 << 20;

    /// For systems that map only whole huge pages, as devdax does.
    #[test]
    fn huge_page_region_maps_contiguous_or_aligned() {
        let Some(pool) = HugePool::borrow(16) else {
            return;
        };
        let region = RegionOptions::new()
            .create(pool.dir().join("r"), 32 * MIB)
            .unwrap();
        format(&region, &FormatOptions::default()).unwrap();
        let fs = Fs::open(region, MountOptions::default()).unwrap();
        let file = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            options.create(true).open(&fs, name).unwrap()
        };
        let check = |file: &crate::api::File, range: Range<u64>| {
            let view = file.map(range.clone(), Access::Write).unwrap();
            let at = view.len() - 8;
            view.store::<u64>(at, 0x1122).unwrap();
            view.persist(at..at + 8).unwrap();
            let mut back = [0; 8];
            file.read_at(&mut back, range.start + at).unwrap();
            assert_eq!(u64::from_le_bytes(back), 0x1122);
            let look = file.map(range, Access::Read).unwrap();
            assert_eq!(look.load::<u64>(at).unwrap(), 0x1122);
            assert_eq!(look.store::<u64>(at, 1).unwrap_err().errno(), libc::EACCES);
        };
        let small = file("/small");
        small.set_len(20_000).unwrap();
        check(&small, 0..20_000);
        check(&small, 5000..5104);
        // 2 MiB leaves, adjacent or not.
        let (one, two) = (file("/one"), file("/two"));
        for at in [0, 2 * MIB, 4 * MIB] {
            for f in [&one, &two] {
                f.fallocate(Fallocate::Allocate { keep_size: false }, at, 2 * MIB)
                    .unwrap();
            }
        }
        check(&one, 0..6 * MIB);
        check(&two, MIB..3 * MIB);
        // Pages of two files, alternating.
        let (a, b) = (file("/a"), file("/b"));
        for at in (0..16).map(|i| i * 4096) {
            a.write_at(&[1; 4096], at).unwrap();
            b.write_at(&[2; 4096], at).unwrap();
        }
        let e = a.map(0..65536, Access::Read).unwrap_err();
        assert_eq!(e.errno(), libc::EOPNOTSUPP, "{e}");
        check(&a, 4096..8192);
        let mut bytes = [0; 8192];
        a.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes[..4096], [1; 4096]);
    }
}
