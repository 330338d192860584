//! [`WriteWindow`]: stores to a region, flushes and fences.
//!
//! A store becomes durable in two steps, and the types say so: what is stored
//! and flushed is an [`Unfenced`] value of the storing thread; only
//! [`WriteWindow::fence`] turns it into [`Fenced`], the witness that a
//! publishing store asks for.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::PmemError;
use super::fault;
use super::live;
use super::mutants::{self, Kind, has_bug};
use super::region::{FLUSH_ALL_MIN, LINE, Region};

/// Stored and flushed by this thread, and not yet known to be durable.
#[must_use = "a store is durable only after a fence"]
#[derive(Debug, Default)]
pub struct Unfenced {
    not_send: PhantomData<*const ()>,
}

impl Unfenced {
    /// Nothing stored yet; something to join others to.
    pub fn none() -> Self {
        Self::default()
    }
    /// One value for two sets of stores.
    pub fn join(self, _other: Unfenced) -> Unfenced {
        self
    }
}

/// Witness of a fence: what was handed to it is durable.
#[derive(Debug, Clone, Copy)]
pub struct Fenced {
    _private: (),
}

/// The right to store to a region. Protection against stray writes will be
/// opened for the length of its life; today it costs nothing.
#[derive(Debug, Clone, Copy)]
pub struct WriteWindow<'a> {
    pub(super) region: &'a Region,
}

impl WriteWindow<'_> {
    /// Ordinary store, then write-back of the lines touched.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[inline]
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn store(&self, offset: u64, bytes: &[u8]) -> Result<Unfenced, PmemError> {
        self.store_unflushed(offset, bytes)?;
        self.flush(offset, bytes.len() as u64)
    }

    /// Ordinary store whose lines the caller flushes itself, once for all.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[inline(always)]
    pub fn store_unflushed(&self, offset: u64, bytes: &[u8]) -> Result<(), PmemError> {
        let dst = self.region.at(offset, bytes.len() as u64)?;
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

    /// Atomic store of a word whose line the caller flushes itself.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`], [`PmemError::Misaligned`].
    #[inline]
    pub fn store_u64_unflushed(&self, offset: u64, value: u64) -> Result<(), PmemError> {
        let dst = self.region.word(offset)?;
        // SAFETY: dst is aligned and in the mapping; every other access to it is
        // as `live` says.
        unsafe {
            match self.region.cpu {
                Some(_) => AtomicU64::from_ptr(dst).store(value, Ordering::Release),
                None => self.region.backend.store_u64(dst, value),
            }
        };
        Ok(())
    }

    /// Atomic store of a word that publishes what `_after` witnesses, and its
    /// way to the medium. Other threads see it after this thread's next fence
    /// or locked operation (an unlock is one).
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
        let dst = self.region.word(offset)?;
        // SAFETY: dst is aligned and in the mapping.
        unsafe { self.region.backend.nt_store_u64(dst, value) };
        mutants::stored(&*self.region.backend);
        Ok(Unfenced::none())
    }

    /// Non-temporal copy.
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
        let dst = self.region.at(offset, bytes.len() as u64)?;
        if bytes.len() >= FLUSH_ALL_MIN {
            self.region.backend.advise_willneed(dst, bytes.len());
        }
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

    /// Non-temporal copy of `len` bytes from another place of the region.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`]; [`PmemError::Faulted`] where a page of either
    /// is known to be bad, see [`Region::touch`].
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn nt_copy(&self, offset: u64, from: u64, len: u64) -> Result<Unfenced, PmemError> {
        let (src, dst) = (self.region.at(from, len)?, self.region.at(offset, len)?);
        if mutants::hit(Kind::Stream) || from.abs_diff(offset) < len || !live::DIRECT {
            // Over itself, or by what takes from other memory alone: by way of that.
            let mut bytes = vec![0; len as usize];
            self.region.read(from, &mut bytes)?;
            return self.nt_store(offset, &bytes);
        }
        // SAFETY: both have len bytes in the mapping, and do not overlap; backends
        // take from the medium, too, where that is DIRECT.
        unsafe { self.region.backend.nt_copy(dst, src, len as usize) };
        mutants::stored(&*self.region.backend);
        Ok(Unfenced::none())
    }

    /// Non-temporal zeros.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn nt_zero(&self, offset: u64, len: u64) -> Result<Unfenced, PmemError> {
        let dst = self.region.at(offset, len)?;
        if mutants::hit(Kind::Stream) {
            self.store_unflushed(offset, &vec![0; len as usize])?;
            return Ok(Unfenced::none());
        }
        if len as usize >= FLUSH_ALL_MIN {
            self.region.backend.advise_willneed(dst, len as usize);
        }
        // SAFETY: dst has len bytes in the mapping.
        unsafe { self.region.backend.nt_zero(dst, len as usize) };
        mutants::stored(&*self.region.backend);
        Ok(Unfenced::none())
    }

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
        // SAFETY: the range lies in the mapping.
        unsafe {
            match self.region.cpu {
                Some(cpu) => cpu.flush(p, len as usize),
                None => self.region.backend.flush(p, len as usize),
            }
        };
        Ok(Unfenced::none())
    }

    /// Starts the write-back of lines, by their numbers in the region, where that
    /// is a matter of the processor alone and no page has faulted. False, and
    /// nothing is done, where it is not: then [`flush`](Self::flush) is to be
    /// asked for each.
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
        // SAFETY: a mapping begins with a page, so with a line; each line lies
        // in it.
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
        match self.region.cpu {
            Some(cpu) => cpu.fence(),
            None => self.region.backend.fence(),
        }
        fenced
    }

    /// Gives a freed range back to the host; its contents become undefined.
    ///
    /// # Errors
    /// Those of the host, [`std::io::ErrorKind::Unsupported`] among them; a range
    /// outside the region, or with a page that has failed.
    pub fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        let p = self.region.at(offset, len).map_err(std::io::Error::other)?;
        // SAFETY: the range lies in the mapping; the allocator calls this only for
        // blocks that nothing names any more.
        unsafe { self.region.backend.discard(p, len as usize) }
    }
}
