//! [`WriteWindow`]: stores to a region, flushes and fences.
//!
//! A store becomes durable in two steps, which the types express. Stored and flushed data
//! is an [`Unfenced`] value of the storing thread. Only [`WriteWindow::fence`] turns it
//! into [`Fenced`], the witness that a publishing store requires.

use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;

use super::error::PmemError;
use super::fault;
use super::live;
use super::mutants::{self, Kind, has_bug};
use super::protect::Opened;
use super::region::{FLUSH_ALL_MIN, LINE, Region};
use super::tally;
use crate::sync::order::release;

/// Stored and flushed by this thread, but not yet known to be durable.
#[must_use = "a store is durable only after a fence"]
#[derive(Debug, Default)]
pub struct Unfenced {
    not_send: PhantomData<*const ()>,
}

impl Unfenced {
    /// Returns the empty set of stores, to join others to.
    pub fn none() -> Self {
        Self::default()
    }
    /// Joins two sets of stores.
    pub fn join(self, _other: Unfenced) -> Unfenced {
        self
    }
}

/// Witness of a fence: the stores passed to it are durable.
#[derive(Debug, Clone, Copy)]
pub struct Fenced {
    _private: (),
}

/// The right to store to a region. A [protected](super::Protect) region is open to this
/// thread while the window lives; a window of any other region costs nothing, and neither does
/// a window inside another. Windows are dropped in the reverse order. If the system refuses to
/// open the region, the stores of the window fail with EIO.
///
/// Keep it as short as the stores, and across no wait and no code of others: what they store
/// by mistake is not stopped. [`write_scope`](super::RegionAccess::write_scope) joins the
/// windows of an operation.
#[derive(Debug)]
pub struct WriteWindow<'a> {
    pub(super) region: &'a Region,
    /// Closes the region when dropped.
    opened: Option<Opened<'a>>,
}

impl<'a> WriteWindow<'a> {
    #[inline]
    pub(super) fn new(region: &'a Region, opened: Option<Opened<'a>>) -> WriteWindow<'a> {
        WriteWindow { region, opened }
    }

    /// Returns the address of a byte for stores, if the region has that byte.
    #[inline]
    fn place(&self, offset: u64) -> *mut u8 {
        self.region.stores.wrapping_add(offset as usize)
    }

    /// Fails if the system has refused to open the region. While this window is open, no later one is
    /// refused.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), PmemError> {
        match &self.opened {
            Some(opened) if opened.is_refused() => Err(self.region.refused()),
            _ => Ok(()),
        }
    }

    /// Checks a range, and returns its address for stores.
    #[inline]
    pub(super) fn to(&self, offset: u64, len: u64) -> Result<*mut u8, PmemError> {
        let dst = self.to_populate(offset, len)?;
        if self.region.aside.is_active() {
            self.region.copy_aside(offset, len);
        }
        Ok(dst)
    }

    /// As [`to`](Self::to), for a caller that changes no byte.
    #[inline]
    pub(super) fn to_populate(&self, offset: u64, len: u64) -> Result<*mut u8, PmemError> {
        self.region.at(offset, len)?;
        self.check_open()?;
        Ok(self.place(offset))
    }

    /// Checks a word, and returns its address for stores.
    #[inline]
    fn to_word(&self, offset: u64) -> Result<*mut u64, PmemError> {
        self.region.word(offset)?;
        self.check_open()?;
        if self.region.aside.is_active() {
            self.region.copy_aside(offset, 8);
        }
        Ok(self.place(offset).cast())
    }

    /// Stores bytes, then starts the write-back of the lines touched.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[inline]
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn store(&self, offset: u64, bytes: &[u8]) -> Result<Unfenced, PmemError> {
        self.store_unflushed(offset, bytes)?;
        self.flush(offset, bytes.len() as u64)
    }

    /// Stores bytes. The caller flushes the lines, once for several stores.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[inline(always)]
    pub fn store_unflushed(&self, offset: u64, bytes: &[u8]) -> Result<(), PmemError> {
        let dst = self.to(offset, bytes.len() as u64)?;
        // SAFETY: dst has bytes.len() bytes in the mapping; `bytes` is a Rust
        // slice and cannot overlap it.
        unsafe {
            match self.region.cpu {
                Some(cpu) => cpu.store(dst, bytes.as_ptr(), bytes.len()),
                None => self.region.backend.store(dst, bytes.as_ptr(), bytes.len()),
            }
        };
        Ok(())
    }

    /// Stores a word atomically. The caller flushes its line.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`], [`PmemError::Misaligned`].
    #[inline(always)]
    pub fn store_u64_unflushed(&self, offset: u64, value: u64) -> Result<(), PmemError> {
        let dst = self.to_word(offset)?;
        // SAFETY: dst is aligned and in the mapping; every other access to it follows the
        // rules of `live`.
        unsafe {
            match self.region.cpu {
                Some(_) => AtomicU64::from_ptr(dst).store(value, release("region-store")),
                None => self.region.backend.store_u64(dst, value),
            }
        };
        Ok(())
    }

    /// Stores a word atomically, starts its write-back, and so publishes the stores that
    /// `_after` witnesses. Other threads see the word after this thread's next fence or
    /// locked operation (an unlock is one).
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`], [`PmemError::Misaligned`].
    #[inline]
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn publish_u64(
        &self,
        offset: u64,
        value: u64,
        _after: Fenced,
    ) -> Result<Unfenced, PmemError> {
        if mutants::hit(Kind::Stream) {
            self.store_u64_unflushed(offset, value)?;
            return Ok(Unfenced::none());
        }
        let dst = self.to_word(offset)?;
        tally::stream(8);
        // SAFETY: dst is aligned and in the mapping.
        unsafe { self.region.backend.nt_store_u64(dst, value) };
        mutants::stored(&*self.region.backend);
        Ok(Unfenced::none())
    }

    /// Copies bytes with non-temporal stores.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[inline]
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn nt_store(&self, offset: u64, bytes: &[u8]) -> Result<Unfenced, PmemError> {
        if mutants::hit(Kind::Stream) {
            self.store_unflushed(offset, bytes)?;
            return Ok(Unfenced::none());
        }
        let odd = (offset as usize + bytes.len()) % 8;
        if has_bug!(EdgeNotFlushed) && odd != 0 && bytes.len() > 8 {
            let (even, edge) = bytes.split_at(bytes.len() - odd);
            self.store_unflushed(offset + even.len() as u64, edge)?;
            return self.nt_store(offset, even);
        }
        let dst = self.to(offset, bytes.len() as u64)?;
        if bytes.len() >= FLUSH_ALL_MIN {
            self.region.backend.advise_willneed(dst, bytes.len());
        }
        tally::stream(bytes.len() as u64);
        // SAFETY: as in store_unflushed.
        unsafe {
            let (src, len) = (bytes.as_ptr(), bytes.len());
            match self.region.cpu {
                Some(cpu) => cpu.nt_copy(dst, src, len),
                None => self.region.backend.nt_copy(dst, src, len),
            }
        };
        mutants::stored(&*self.region.backend);
        Ok(Unfenced::none())
    }

    /// Copies `len` bytes from another place of the region with non-temporal stores.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`]; [`PmemError::Faulted`] if a page of either range is
    /// known to be bad, see [`Region::touch`].
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn nt_copy(&self, offset: u64, from: u64, len: u64) -> Result<Unfenced, PmemError> {
        let (src, dst) = (self.region.at(from, len)?, self.to(offset, len)?);
        if mutants::hit(Kind::Stream) || from.abs_diff(offset) < len || !live::DIRECT {
            // The ranges overlap, or the copy accepts only other memory as its source: use a
            // buffer.
            let mut bytes = vec![0; len as usize];
            self.region.read(from, &mut bytes)?;
            return self.nt_store(offset, &bytes);
        }
        tally::stream(len);
        // SAFETY: both have len bytes in the mapping, and do not overlap. If DIRECT is set,
        // backends also accept the medium as the source.
        unsafe { self.region.backend.nt_copy(dst, src, len as usize) };
        mutants::stored(&*self.region.backend);
        Ok(Unfenced::none())
    }

    /// Zeroes a range with non-temporal stores.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn nt_zero(&self, offset: u64, len: u64) -> Result<Unfenced, PmemError> {
        let dst = self.to(offset, len)?;
        if mutants::hit(Kind::Stream) {
            self.store_unflushed(offset, &vec![0; len as usize])?;
            return Ok(Unfenced::none());
        }
        if len as usize >= FLUSH_ALL_MIN {
            self.region.backend.advise_willneed(dst, len as usize);
        }
        tally::stream(len);
        // SAFETY: dst has len bytes in the mapping.
        unsafe { self.region.backend.nt_zero(dst, len as usize) };
        mutants::stored(&*self.region.backend);
        Ok(Unfenced::none())
    }

    /// See [`WriteBack::flush`].
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[inline]
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn flush(&self, offset: u64, len: u64) -> Result<Unfenced, PmemError> {
        self.region.write_back().flush(offset, len)
    }

    /// See [`WriteBack::fence`].
    #[inline]
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn fence(&self, pending: Unfenced) -> Fenced {
        self.region.write_back().fence(pending)
    }

    /// Returns a freed range to the host. Its contents become undefined.
    ///
    /// # Errors
    /// Errors of the host, including [`std::io::ErrorKind::Unsupported`]; a range outside
    /// the region, or with a faulted page.
    pub fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        let p = self.to(offset, len).map_err(std::io::Error::other)?;
        // SAFETY: the range lies in the mapping, which is open; the allocator calls this only for blocks
        // that nothing refers to.
        unsafe { self.region.backend.discard(p, len as usize) }
    }
}

/// What makes stores durable: write-back and fences. It needs no [`WriteWindow`].
#[derive(Debug, Clone, Copy)]
pub struct WriteBack<'a> {
    pub(super) region: &'a Region,
}

impl WriteBack<'_> {
    /// Starts the write-back of every line of a range.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[inline]
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn flush(&self, offset: u64, len: u64) -> Result<Unfenced, PmemError> {
        let p = self.region.at(offset, len)?;
        mutants::stored(&*self.region.backend);
        if mutants::hit(Kind::Flush) {
            return Ok(Unfenced::none());
        }
        tally::flush(offset, len);
        // SAFETY: the range lies in the mapping.
        unsafe {
            match self.region.cpu {
                Some(cpu) => cpu.flush(p, len as usize),
                None => self.region.backend.flush(p, len as usize),
            }
        };
        Ok(Unfenced::none())
    }

    /// Starts the write-back of lines, given by their numbers in the region, if the
    /// processor alone can do that and no page has faulted. Otherwise does nothing and
    /// returns false; the caller then calls [`flush`](Self::flush) for each line.
    #[inline]
    #[must_use]
    pub fn flush_lines(&self, lines: &[u64]) -> bool {
        let Some(cpu) = self.region.cpu.filter(|_| !cfg!(feature = "mutants")) else {
            return false;
        };
        let whole = self.region.len() / LINE;
        if fault::happened() || lines.iter().any(|line| *line >= whole) {
            return false;
        }
        tally::lines(lines.len() as u64);
        // SAFETY: a mapping begins at a page boundary, so at a line boundary; each line
        // lies in it.
        unsafe { cpu.flush_lines(self.region.base, lines) };
        true
    }

    /// Completes this thread's flushes and non-temporal stores.
    #[inline]
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn fence(&self, _pending: Unfenced) -> Fenced {
        let fenced = Fenced { _private: () };
        if mutants::hit(Kind::Fence) {
            return fenced;
        }
        if mutants::hit(Kind::Late) {
            mutants::later(&*self.region.backend);
            return fenced;
        }
        tally::fence();
        match self.region.cpu {
            Some(cpu) => cpu.fence(),
            None => self.region.backend.fence(),
        }
        fenced
    }
}
