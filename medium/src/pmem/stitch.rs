//! Contiguous address ranges made of many pieces of the medium.
//!
//! Purpose: shows a file's extents, wherever they lie, as one contiguous view of the medium
//! itself, with huge pages if the extents allow.
//!
//! Invariants:
//! * A piece never leaves the reserved range. Until [`StitchedMap`] is dropped, nothing
//!   else is mapped in the range.
//! * Addresses without a piece read as zeros and cannot be stored to.
//!
//! Not handled here: keeping the blocks behind a piece allocated to the file while the map
//! lives (`api` pins them), and filling holes before mapping for writing.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::Advice as Madvise;

use super::error::PmemError;
use super::fault::Guard;
use super::mapping::{self, Reservation};
use super::region::Region;
use super::source::{REGION_UNIT, SourceKind};
use super::window::Unfenced;

mod atoms;
mod memory;
mod piece;
mod send;

pub use atoms::Atom;
pub use memory::RegionOwner;
pub use send::Sent;

use memory::Memory;
use piece::{Piece, fill_holes, note, read_only};

/// The source that pieces are mapped from.
#[derive(Debug, Clone, Copy)]
pub struct StitchSource<'a> {
    fd: BorrowedFd<'a>,
    /// Offset in `fd` of the region's first byte.
    first: u64,
    /// Size of the region.
    len: u64,
    unit: u64,
    sync: bool,
    advise_huge: bool,
    read_only: bool,
    /// Address of a private mapping whose modified pages take precedence over those of
    /// `fd`.
    private: Option<usize>,
}

impl<'a> StitchSource<'a> {
    /// Returns the descriptor behind a region. Offsets are those of the region.
    ///
    /// # Errors
    /// [`PmemError::Unusable`] with EOPNOTSUPP if the region has no descriptor.
    pub fn of_region(region: &'a Region) -> Result<StitchSource<'a>, PmemError> {
        let backend = region.backend();
        let info = region.info();
        let Some((fd, first)) = backend.source_fd() else {
            return Err(PmemError::Unusable {
                path: info.name,
                why: format!(
                    "a region of the {} backend has no descriptor to map again",
                    info.backend
                ),
                errno: libc::EOPNOTSUPP,
            });
        };
        Ok(StitchSource {
            fd,
            first,
            len: region.len(),
            unit: backend.map_unit(),
            sync: backend.map_sync(),
            advise_huge: matches!(info.kind, Some(SourceKind::Tmpfs | SourceKind::Memfd)),
            read_only: info.read_only,
            private: info.read_only.then(|| backend.base() as usize),
        })
    }

    /// For a read-only region to which this process has stored nothing. A search for private
    /// pages reads a word for each page of a piece.
    #[must_use]
    pub fn without_private_pages(self) -> StitchSource<'a> {
        StitchSource {
            private: None,
            ..self
        }
    }

    /// Returns the unit in bytes of the address, offset and length of each piece.
    pub fn unit(&self) -> u64 {
        self.unit
    }
}

/// A reserved range that is being filled.
///
/// ```
/// use pramfs_medium::pmem::{RegionAccess, RegionOptions, StitchSource, Stitcher};
/// let region = RegionOptions::new().memfd("example", 1 << 20)?;
/// let source = StitchSource::of_region(&region)?;
/// let mut stitcher = Stitcher::new(3 * 4096, 0)?;
/// stitcher.stitch(&source, 0, 8 * 4096, 4096, true)?;
/// stitcher.stitch(&source, 8192, 5 * 4096, 4096, true)?;
/// let map = stitcher.finish()?;
/// map.store::<u64>(8192, 7)?;
/// map.persist(&region, 8192, 8)?;
/// assert_eq!(region.load_u64(5 * 4096)?, 7);
/// assert_eq!(map.load::<u64>(4096)?, 0, "a hole");
/// # Ok::<(), pramfs_medium::pmem::PmemError>(())
/// ```
#[derive(Debug)]
pub struct Stitcher {
    range: Reservation,
    len: u64,
    unit: u64,
    /// In ascending order of address, the order in which they must be added.
    pieces: Vec<Piece>,
    end: u64,
}

impl Stitcher {
    /// Reserves `len` bytes of address space. `congruent` is an offset in the region,
    /// usually that of the first extent. The address of the range equals it modulo 2 MiB,
    /// or modulo 1 GiB for ranges that long, so that extents aligned on the medium are
    /// aligned in the view.
    ///
    /// # Errors
    /// [`PmemError::Os`] with ENOMEM; EINVAL for a length of zero.
    pub fn new(len: u64, congruent: u64) -> Result<Stitcher, PmemError> {
        Stitcher::reserving(len, len, congruent, REGION_UNIT)
    }

    /// As [`new`](Self::new), and reserves `reserve` bytes of address space in all, rounded
    /// up to multiples of `unit`, into which [`StitchedMap::extend`] grows the view. `unit`
    /// is the largest [unit](StitchSource::unit) of the sources.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn reserving(
        len: u64,
        reserve: u64,
        congruent: u64,
        unit: u64,
    ) -> Result<Stitcher, PmemError> {
        let all = len.max(reserve);
        let make = || {
            if len == 0 {
                return Err(Errno::INVAL);
            }
            let whole = all.checked_next_multiple_of(unit).ok_or(Errno::NOMEM)?;
            Reservation::new(usize::try_from(whole).map_err(|_| Errno::NOMEM)?, congruent)
        };
        let range = make().map_err(|e| os("cannot reserve addresses for", all, e))?;
        let len = len.next_multiple_of(rustix::param::page_size() as u64);
        Ok(Stitcher {
            range,
            len,
            unit,
            pieces: Vec::new(),
            end: 0,
        })
    }

    /// Maps `len` bytes of the region at `region_offset` to `at` in the range. Pieces come
    /// in ascending order of `at`, without overlap. Pieces that are adjacent in the region
    /// too are better passed as one.
    ///
    /// # Errors
    /// * [`PmemError::Misaligned`] with the alignment that the source needs;
    /// * [`PmemError::OutOfBounds`];
    /// * [`PmemError::Unusable`] with EROFS for a writable piece of a read-only region;
    /// * [`PmemError::Os`], with ENOMEM if the process has too many mappings
    ///   (`vm.max_map_count`).
    pub fn stitch(
        &mut self,
        source: &StitchSource<'_>,
        at: u64,
        region_offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<(), PmemError> {
        let piece = Piece {
            at,
            len,
            region_offset,
            writable,
        };
        piece.map(&self.range, self.end..self.len, source)?;
        self.unit = self.unit.max(source.unit);
        self.end = at + len;
        note(&mut self.pieces, piece);
        Ok(())
    }

    /// Fills the rest with zeros and returns the view.
    ///
    /// # Errors
    /// [`PmemError::Os`] with ENOMEM.
    pub fn finish(self) -> Result<StitchedMap, PmemError> {
        let writable = fill_holes(&self.range, &self.pieces, 0..self.len)?;
        // Guards the whole reserved range, because the view may grow.
        let guard = Guard::new(self.range.base(), self.range.len(), self.unit as usize);
        let memory = Memory::Own {
            guard,
            range: self.range,
        };
        Ok(StitchedMap {
            memory,
            len: self.len,
            unit: self.unit,
            pieces: self.pieces,
            writable,
        })
    }
}

fn os(what: &'static str, len: u64, e: Errno) -> PmemError {
    PmemError::Os {
        what,
        path: format!("a map of {len} bytes"),
        source: e.into(),
    }
}

/// The expected use of a range of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// No special pattern.
    Normal,
    /// In random order (MADV_RANDOM).
    Random,
    /// From the start to the end (MADV_SEQUENTIAL).
    Sequential,
    /// Soon: the kernel sets up its pages now (MADV_POPULATE_READ or _WRITE).
    WillNeed,
}

/// A contiguous view of scattered pieces of a region. The addresses are valid until it is
/// dropped. The bytes may change at any time, because they are the medium and others may
/// store to it.
#[derive(Debug)]
pub struct StitchedMap {
    memory: Memory,
    len: u64,
    /// The piece that the guard replaces on a fault: no mapping in the view is larger.
    unit: u64,
    pieces: Vec<Piece>,
    writable: bool,
}

impl StitchedMap {
    /// Creates a view of one piece of a region, as a part of the region's own mapping. If
    /// the system maps nothing smaller than a huge page, any block can still be viewed this
    /// way. Page protection does not keep stores out of a read-only view.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`]; [`PmemError::Unusable`] with EROFS for a
    /// writable view of a read-only region, with EOPNOTSUPP for one of a
    /// [protected](super::Protect) region.
    pub fn in_region(
        owner: std::sync::Arc<dyn RegionOwner>,
        region_offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<StitchedMap, PmemError> {
        if writable && owner.region().info().read_only {
            return Err(read_only(region_offset, len));
        }
        if writable && owner.region().is_protected() {
            return Err(PmemError::Unusable {
                path: format!("{len} bytes at offset {region_offset:#x}"),
                why: "the region is protected, and a smaller piece than its pages cannot be opened for stores; use protect=off, or files in whole huge pages".into(),
                errno: libc::EOPNOTSUPP,
            });
        }
        Ok(StitchedMap {
            memory: Memory::of_region(owner, region_offset, len)?,
            len,
            unit: REGION_UNIT,
            pieces: vec![Piece {
                at: 0,
                len,
                region_offset,
                writable,
            }],
            writable,
        })
    }

    /// Bytes of address space that belong to the view, from its first byte.
    pub fn reserved(&self) -> u64 {
        match &self.memory {
            Memory::Own { range, .. } => range.len() as u64,
            Memory::Region { .. } => self.len,
        }
    }

    /// Grows the view to `len` bytes, at the addresses that follow those in use. The
    /// pieces are as for [`Stitcher::stitch`]: offset in the view, offset in the region,
    /// length. Addresses without a piece read as zeros. On failure the view is unchanged.
    ///
    /// # Errors
    /// As for [`Stitcher::stitch`]; [`PmemError::OutOfBounds`] past the
    /// [reserved range](Self::reserved); [`PmemError::Unusable`] with EOPNOTSUPP for a view in
    /// the mapping of the region.
    pub fn extend(
        &mut self,
        source: &StitchSource<'_>,
        len: u64,
        pieces: impl IntoIterator<Item = (u64, u64, u64)>,
        writable: bool,
    ) -> Result<(), PmemError> {
        let Memory::Own { range, .. } = &self.memory else {
            return Err(PmemError::Unusable {
                path: format!("a map of {} bytes", self.len),
                why: "is a part of the region's own mapping and cannot grow".into(),
                errno: libc::EOPNOTSUPP,
            });
        };
        if source.unit > self.unit {
            return Err(PmemError::Misaligned {
                offset: self.unit,
                align: source.unit,
            });
        }
        let whole = len.checked_next_multiple_of(rustix::param::page_size() as u64);
        let Some(new) = whole.filter(|new| *new <= range.len() as u64) else {
            return Err(PmemError::OutOfBounds {
                offset: 0,
                len,
                region_len: range.len() as u64,
            });
        };
        if new <= self.len {
            return Ok(());
        }
        let mut added = Vec::new();
        let map = || {
            let mut end = self.len;
            for (at, region_offset, len) in pieces {
                let piece = Piece {
                    at,
                    len,
                    region_offset,
                    writable,
                };
                piece.map(range, end..new, source)?;
                end = at + len;
                note(&mut added, piece);
            }
            fill_holes(range, &added, self.len..new)
        };
        match map() {
            Ok(all_writable) => {
                self.writable &= all_writable;
                added.into_iter().for_each(|p| note(&mut self.pieces, p));
                self.len = new;
                Ok(())
            }
            Err(e) => {
                let (at, len) = (self.len as usize, (new - self.len) as usize);
                // SAFETY: the view ends at `at`, and no code was given an address past it.
                // A failure leaves pieces that no access of the view reaches.
                let _ = unsafe { range.clear(at, len) };
                Err(e)
            }
        }
    }

    /// Advises the kernel about the use of a range, which is widened to whole pages, to
    /// huge pages where the source maps these only. A view in the mapping of the region
    /// shares that mapping with others, so it takes [`Advice::WillNeed`] only.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`]; errors of madvise(2).
    pub fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<(), PmemError> {
        self.at(offset, len)?;
        if matches!(self.memory, Memory::Region { .. }) && advice != Advice::WillNeed {
            return Ok(());
        }
        let page = self.unit.max(rustix::param::page_size() as u64);
        let start = offset / page * page;
        let end = (offset + len).next_multiple_of(page).min(self.len);
        let len = end - start;
        let advice = match advice {
            Advice::Normal => Madvise::Normal,
            Advice::Random => Madvise::Random,
            Advice::Sequential => Madvise::Sequential,
            Advice::WillNeed if self.writable => Madvise::LinuxPopulateWrite,
            Advice::WillNeed => Madvise::LinuxPopulateRead,
        };
        let from = self.as_ptr().wrapping_add(start as usize);
        mapping::advise(from, len as usize, advice).map_err(|e| os("cannot advise about", len, e))
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.base()
    }
    /// Returns the length in bytes, a multiple of the page size.
    pub fn len(&self) -> u64 {
        self.len
    }
    /// Always false: a view has at least one page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Whether every byte may be stored to.
    pub fn is_writable(&self) -> bool {
        self.writable
    }
    /// Returns the number of faults (SIGBUS) in this view so far. They are counted only
    /// with the guard of [`install_fault_guard`](super::install_fault_guard).
    pub fn faults(&self) -> u64 {
        self.memory.faults()
    }
    /// Whether a range touches a page that has faulted.
    #[inline]
    pub fn is_faulted(&self, offset: u64, len: u64) -> bool {
        self.at(offset, len).is_err() || self.memory.is_faulted(offset, len)
    }

    #[inline]
    fn at(&self, offset: u64, len: u64) -> Result<*mut u8, PmemError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.memory.base().wrapping_add(offset as usize)),
            _ => Err(PmemError::OutOfBounds {
                offset,
                len,
                region_len: self.len,
            }),
        }
    }

    #[inline]
    fn at_writable(&self, offset: u64, len: u64) -> Result<*mut u8, PmemError> {
        let p = self.at(offset, len)?;
        if !self.writable {
            let mut reached = offset;
            for piece in self.overlapping(offset, len) {
                if !piece.writable || piece.at > reached {
                    break;
                }
                reached = piece.at + piece.len;
            }
            if reached < offset + len {
                return Err(PmemError::Unusable {
                    path: format!("{len} bytes at offset {offset:#x} of a map"),
                    why: "are a hole, or mapped for reading only; map them for writing".into(),
                    errno: libc::EACCES,
                });
            }
        }
        Ok(p)
    }

    fn overlapping(&self, offset: u64, len: u64) -> impl Iterator<Item = &Piece> {
        let first = self.pieces.partition_point(|p| p.at + p.len <= offset);
        self.pieces[first..]
            .iter()
            .take_while(move |p| p.at < offset + len)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PmemError> {
        let src = self.at(offset, into.len() as u64)?;
        // SAFETY: `src` has into.len() bytes in the view, which consists of whole pages;
        // `into` is an exclusive Rust buffer and does not overlap it.
        unsafe { super::live::load(into.as_mut_ptr(), src, into.len()) };
        Ok(())
    }

    /// Copies bytes in. Durable after [`persist`](Self::persist).
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`], [`PmemError::Unusable`] with EACCES.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), PmemError> {
        let dst = self.at_writable(offset, bytes.len() as u64)?;
        // SAFETY: `dst` has bytes.len() writable bytes; a Rust slice does not
        // overlap the view.
        unsafe { super::live::store(dst, bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Starts the write-back of a range, which is durable once `region` has fenced.
    /// `region` is the source of the pieces. Skips holes.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    pub fn flush(&self, region: &Region, offset: u64, len: u64) -> Result<Unfenced, PmemError> {
        self.at(offset, len)?;
        if super::mutants::hit(super::mutants::Kind::Flush) {
            return Ok(Unfenced::none());
        }
        for piece in self.overlapping(offset, len) {
            let from = offset.max(piece.at);
            let to = (offset + len).min(piece.at + piece.len);
            let alias = self.at(from, to - from)?;
            let home = region.raw_range(piece.region_offset + (from - piece.at), to - from)?;
            // SAFETY: the alias lies in this view and the home in the region;
            // both map the same bytes of the medium.
            unsafe {
                region
                    .backend()
                    .flush_alias(alias, home.cast(), (to - from) as usize)
            };
        }
        Ok(Unfenced::none())
    }

    /// Makes a range durable: flush and fence.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    pub fn persist(&self, region: &Region, offset: u64, len: u64) -> Result<(), PmemError> {
        let pending = self.flush(region, offset, len)?;
        region.write_back().fence(pending);
        Ok(())
    }

    /// Has the kernel set up the pages of the view now, so that no later access waits for a
    /// page fault.
    ///
    /// # Errors
    /// Errors of `madvise(MADV_POPULATE_READ)` or `_WRITE`.
    pub fn populate(&self) -> Result<(), PmemError> {
        mapping::populate(self.as_ptr(), self.len as usize, self.writable)
            .map_err(|e| os("cannot populate", self.len, e))
    }
}

#[cfg(test)]
mod tests;
