//! [`Region`]: bounds-checked access to a mapping.
//!
//! A store becomes durable in two steps, and the types say so: what is stored
//! and flushed is an [`Unfenced`] value of the storing thread; only
//! [`WriteWindow::fence`] turns it into [`Fenced`], the witness that a
//! publishing store asks for.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::backend::{Durability, Granularity, Persistence, PmemBackend};
use super::cpu::{self, Cpu};
use super::error::PmemError;
use super::fault;
use super::mapping;
use super::mutants::{self, Kind, has_bug};
use super::source::SourceKind;

/// Bytes of a cache line: the unit of flushing and of ordering.
pub const LINE: u64 = 64;

/// Bytes from which on an access is announced to the medium.
const LONG: usize = 16 << 10;

/// What a region is, for messages.
#[derive(Debug, Clone)]
pub struct RegionInfo {
    /// Where it came from, usually a path.
    pub name: String,
    /// Backend in force.
    pub backend: &'static str,
    /// Unit of durability.
    pub granularity: Granularity,
    /// What it survives.
    pub persistence: Persistence,
    /// What a fence promises.
    pub durability: Durability,
    /// What kind of object it is; `None` for memory of this process.
    pub kind: Option<SourceKind>,
    /// Whether the mapping is private: stores never reach the medium.
    pub read_only: bool,
}

/// A mapped region.
///
/// ```
/// use pramfs::pmem::{HeapBackend, Region};
/// let region = Region::new("example", HeapBackend::boxed(1 << 20)).read_only(false);
/// let w = region.window();
/// let pending = w.store(4096, &7u64.to_le_bytes())?;
/// let _durable = w.fence(pending);
/// assert_eq!(region.load_u64(4096)?, 7);
/// # Ok::<(), pramfs::pmem::PmemError>(())
/// ```
#[derive(Debug)]
pub struct Region {
    backend: Box<dyn PmemBackend>,
    base: *mut u8,
    len: u64,
    /// See [`PmemBackend::processor`].
    cpu: Option<Cpu>,
    name: String,
    read_only: bool,
}

// SAFETY: the raw base pointer is the mapping owned by `backend`, which is
// Send + Sync itself; all access through it is by copies and atomics, and who
// may store where is decided by the locks of the layers above.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

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
    region: &'a Region,
}

impl Region {
    /// Wraps a mapping; `name` is for messages.
    pub fn new(name: impl Into<String>, backend: Box<dyn PmemBackend>) -> Region {
        let base = backend.base();
        let len = backend.len() as u64;
        Region {
            base,
            len,
            cpu: backend.processor(),
            backend,
            name: name.into(),
            read_only: false,
        }
    }

    /// Marks the mapping as private: stores stay in this process.
    pub fn read_only(mut self, yes: bool) -> Region {
        self.read_only = yes;
        self
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the region has no byte at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets others open the region for reading, while this process has it open
    /// for writing and stores nothing. [`keep_readers_out`](Self::keep_readers_out)
    /// comes before the next store.
    ///
    /// ```
    /// # use pramfs::pmem::RegionOptions;
    /// # let path = std::env::temp_dir().join(format!("readers-{}", std::process::id()));
    /// let region = RegionOptions::new().create(&path, 1 << 20)?;
    /// let reader = RegionOptions::new().read_only(true);
    /// assert!(reader.open(&path).is_err());
    /// region.let_readers_in()?;
    /// let second = reader.open(&path)?;
    /// assert!(region.keep_readers_out().is_err());
    /// drop(second);
    /// region.keep_readers_out()?;
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), pramfs::pmem::PmemError>(())
    /// ```
    ///
    /// # Errors
    /// [`PmemError::Os`] for what the system says.
    pub fn let_readers_in(&self) -> Result<(), PmemError> {
        self.backend.lock(false)
    }

    /// Takes the region for this process alone.
    ///
    /// # Errors
    /// [`PmemError::Unusable`] with EBUSY if somebody else has it open;
    /// [`PmemError::Os`].
    pub fn keep_readers_out(&self) -> Result<(), PmemError> {
        self.backend.lock(true)
    }

    /// What this region is.
    pub fn info(&self) -> RegionInfo {
        RegionInfo {
            name: self.name.clone(),
            backend: self.backend.name(),
            granularity: self.backend.granularity(),
            persistence: self.backend.persistence(),
            durability: self.backend.durability(),
            kind: self.backend.source_kind(),
            read_only: self.read_only,
        }
    }

    /// The backend, for its own calls.
    pub fn backend(&self) -> &dyn PmemBackend {
        &*self.backend
    }

    /// See [`PmemBackend::faults`].
    #[inline]
    pub fn faults(&self) -> u64 {
        self.backend.faults()
    }

    /// As [`faults`](Self::faults), without asking the backend while no region
    /// of this process has faulted.
    #[inline]
    pub(crate) fn faults_seen(&self) -> u64 {
        if fault::happened() { self.faults() } else { 0 }
    }

    /// See [`PmemBackend::failed_fences`].
    #[inline]
    pub(crate) fn failed_fences(&self) -> u64 {
        if fault::happened() {
            self.backend.failed_fences()
        } else {
            0
        }
    }

    /// Whether a range touches a page that has faulted: what is read there
    /// are not the bytes of the medium. Outside the region: true. As cheap as
    /// [`faults`](Self::faults) while there are none.
    #[inline]
    pub fn is_faulted(&self, offset: u64, len: u64) -> bool {
        self.at(offset, len)
            .map_or(true, |p| self.backend.is_faulted(p, len as usize))
    }

    /// See [`PmemBackend::sync_all`].
    ///
    /// # Errors
    /// The write-out failed: what was stored since the last one may be lost.
    pub fn sync_all(&self) -> std::io::Result<()> {
        self.backend.sync_all()
    }

    /// The address of a range that is about to be accessed.
    #[inline]
    fn at(&self, offset: u64, len: u64) -> Result<*mut u8, PmemError> {
        let p = self.bounded(offset, len)?;
        self.sound(p, offset, len)?;
        Ok(p)
    }

    /// The address of a range that is loaded from: whether it is
    /// [`sound`](Self::sound) is asked after that, once.
    #[inline]
    fn bounded(&self, offset: u64, len: u64) -> Result<*mut u8, PmemError> {
        match offset.checked_add(len) {
            // SAFETY: offset + len <= self.len, the size of the mapping at base,
            // so the result points into it or one past its end.
            Some(end) if end <= self.len => Ok(unsafe { self.base.add(offset as usize) }),
            _ => Err(PmemError::OutOfBounds {
                offset,
                len,
                region_len: self.len,
            }),
        }
    }

    /// Refuses a range that touches a page that has faulted. Such a page reads
    /// as zeros, without another fault, so this is asked before every store, and
    /// after every load, which may be the one that faulted.
    #[inline]
    fn sound(&self, p: *const u8, offset: u64, len: u64) -> Result<(), PmemError> {
        if fault::happened() && self.backend.is_faulted(p, len as usize) {
            return Err(PmemError::Faulted { offset, len });
        }
        Ok(())
    }

    /// Whether a page of any region of this process has faulted so far.
    pub fn any_faults() -> bool {
        fault::happened()
    }

    /// A range can be accessed: it lies in the region, and no page of it has
    /// faulted.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`], [`PmemError::Faulted`].
    pub fn check(&self, offset: u64, len: u64) -> Result<(), PmemError> {
        self.at(offset, len).map(|_| ())
    }

    #[inline]
    fn word(&self, offset: u64) -> Result<*mut u64, PmemError> {
        if !offset.is_multiple_of(8) {
            return Err(PmemError::Misaligned { offset, align: 8 });
        }
        Ok(self.at(offset, 8)?.cast())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PmemError> {
        let src = self.bounded(offset, into.len() as u64)?;
        if into.len() >= LONG {
            self.backend.will_access(src, into.len());
        }
        // SAFETY: `src` has into.len() readable bytes in the mapping; `into` is
        // an exclusive Rust buffer and so does not overlap the mapping, to
        // which no Rust reference exists.
        unsafe { std::ptr::copy_nonoverlapping(src, into.as_mut_ptr(), into.len()) };
        self.sound(src, offset, into.len() as u64)
    }

    /// Copies a structure out.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[inline]
    pub fn read_pod<T: FromBytes + IntoBytes + Immutable>(
        &self,
        offset: u64,
    ) -> Result<T, PmemError> {
        let src = self.bounded(offset, size_of::<T>() as u64)?;
        // SAFETY: `src` has size_of::<T>() readable bytes; T: FromBytes is
        // valid for any bit pattern; read_unaligned asks for no alignment.
        let value = unsafe { std::ptr::read_unaligned(src.cast::<T>()) };
        self.sound(src, offset, size_of::<T>() as u64)?;
        Ok(value)
    }

    /// Loads one word, atomically.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`], [`PmemError::Misaligned`].
    #[inline]
    pub fn load_u64(&self, offset: u64) -> Result<u64, PmemError> {
        if !offset.is_multiple_of(8) {
            return Err(PmemError::Misaligned { offset, align: 8 });
        }
        let p: *mut u64 = self.bounded(offset, 8)?.cast();
        // SAFETY: p is aligned and in the mapping for the life of &self; every
        // concurrent access to a word that is loaded so is an 8-byte store.
        let word = unsafe { AtomicU64::from_ptr(p) }.load(Ordering::Acquire);
        self.sound(p.cast(), offset, 8)?;
        Ok(word)
    }

    /// Loads a byte of each page of a range, so that one that cannot be had is
    /// known before its bytes are used for anything.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`], [`PmemError::Faulted`].
    pub fn touch(&self, offset: u64, len: u64) -> Result<(), PmemError> {
        let page = rustix::param::page_size() as u64;
        let p = self.at(offset, len)?;
        let mut at = 0;
        while at < len {
            // SAFETY: the byte lies in the range, which lies in the mapping.
            unsafe { std::ptr::read_volatile(p.add(at as usize)) };
            at = (offset + at + 1).next_multiple_of(page) - offset;
        }
        self.sound(p, offset, len)
    }

    /// Hints that a line will be read soon.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        #[cfg(target_arch = "x86_64")]
        if let Ok(p) = self.at(offset, 1) {
            // SAFETY: a prefetch has no effect on memory and does not fault.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast())
            };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// Has the kernel set up the pages of a range now (for stores too, unless
    /// the region is read-only), so that no later access waits for a fault.
    /// Takes the memory of holes in a sparse region.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`]; [`PmemError::Os`] with EFAULT or ENOMEM
    /// where there is not enough memory or space for all.
    pub fn populate(&self, offset: u64, len: u64) -> Result<(), PmemError> {
        let page = rustix::param::page_size() as u64;
        let start = offset / page * page;
        let p = self.at(start, (offset - start).saturating_add(len))?;
        mapping::populate(p, (offset - start + len) as usize, !self.read_only).map_err(|e| {
            PmemError::Os {
                what: "cannot populate",
                path: self.name.clone(),
                source: e.into(),
            }
        })
    }

    /// Address of a range, for mapping and for lending to a system call.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    pub fn raw_range(&self, offset: u64, len: u64) -> Result<*mut [u8], PmemError> {
        Ok(std::ptr::slice_from_raw_parts_mut(
            self.at(offset, len)?,
            len as usize,
        ))
    }

    /// Lends a range to `f` as a plain slice, for a system call that copies it
    /// out of this process: the reply to a read request of the kernel. This is
    /// the one place that lends the medium so.
    ///
    /// `f` must hand the bytes to the kernel and nothing else: a direct mapping
    /// may change them under it.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    pub(crate) fn lend(
        &self,
        offset: u64,
        len: u64,
        f: &mut dyn FnMut(&[u8]),
    ) -> Result<(), PmemError> {
        let at = self.at(offset, len)?;
        if len as usize >= LONG {
            self.backend.will_access(at, len as usize);
        }
        // SAFETY: `at` has len initialised bytes in the mapping, which outlives
        // this call and so the slice. Another thread may store to them through
        // a direct mapping meanwhile; `f` only passes the address on to the
        // kernel, which copies the bytes as it would from any shared memory, so
        // no compiled code depends on their staying the same.
        f(unsafe { std::slice::from_raw_parts(at, len as usize) });
        Ok(())
    }

    /// Opens the region for stores.
    #[inline]
    pub fn window(&self) -> WriteWindow<'_> {
        WriteWindow { region: self }
    }
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
    #[inline]
    pub fn store_unflushed(&self, offset: u64, bytes: &[u8]) -> Result<(), PmemError> {
        let dst = self.region.at(offset, bytes.len() as u64)?;
        // SAFETY: dst has bytes.len() bytes in the mapping; `bytes` is a Rust
        // slice and cannot overlap it.
        unsafe {
            match self.region.cpu {
                Some(_) => cpu::store(dst, bytes.as_ptr(), bytes.len()),
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
        // SAFETY: dst is aligned and in the mapping; every concurrent access to
        // a word that is stored so is atomic.
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
        if bytes.len() >= LONG {
            self.region.backend.will_access(dst, bytes.len());
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
        if mutants::hit(Kind::Stream) || from.abs_diff(offset) < len {
            // Over itself: by way of other memory.
            let mut bytes = vec![0; len as usize];
            self.region.read(from, &mut bytes)?;
            return self.nt_store(offset, &bytes);
        }
        // SAFETY: both have len bytes in the mapping, and do not overlap.
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
        if len as usize >= LONG {
            self.region.backend.will_access(dst, len as usize);
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
    pub(crate) fn flush_lines(&self, lines: &[u64]) -> bool {
        let Some(cpu) = self.region.cpu.filter(|_| !cfg!(feature = "mutants")) else {
            return false;
        };
        let whole = self.region.len / LINE;
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
