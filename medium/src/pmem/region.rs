//! [`Region`]: bounds-checked access to a mapping. Stores are in
//! [`window`](super::window).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::aside::AsideSlot;
use super::backend::{Durability, Granularity, Persistence, PmemBackend};
use super::cpu::{self, Cpu};
use super::error::PmemError;
use super::fault;
use super::fork::OpenState;
use super::kernel_bad::KnownBad;
use super::lent::Lent;
use super::live;
use super::mapping;
use super::protect::{Protect, Protection, WriteScope};
use super::room::KnownRoom;
use super::source::{Ownership, SourceKind};
use super::window::{WriteBack, WriteWindow};
use crate::grows::Grows;
use crate::sync::order::acquire;

/// Bytes of a cache line: the unit of flushing and of ordering.
pub const LINE: u64 = 64;

/// Accesses of at least this many bytes are announced to the medium.
pub(super) const FLUSH_ALL_MIN: usize = 16 << 10;

/// Bytes of a protected region that are populated in one window.
const POPULATED_AT_ONCE: u64 = 64 << 20;

/// Properties of a region, for messages.
#[derive(Debug, Clone)]
pub struct RegionInfo {
    /// Name of the source, usually a path.
    pub name: String,
    /// Backend in use.
    pub backend: &'static str,
    /// Unit of durability.
    pub granularity: Granularity,
    /// The failure that stored bytes survive.
    pub persistence: Persistence,
    /// The guarantee of a fence.
    pub durability: Durability,
    /// Kind of the source; `None` for memory of this process.
    pub kind: Option<SourceKind>,
    /// Whether the mapping is private: stores never reach the medium.
    pub read_only: bool,
    /// Why it is open without its usual lock, if it is: a process that may only read it has
    /// that lock.
    pub lock_notice: Option<String>,
    /// What keeps stray stores of this process from it. Never [`Protect::Auto`].
    pub protect: Protect,
    /// Why [`Protect::Auto`] protects nothing, if so: a clause.
    pub protect_notice: Option<String>,
}

/// A mapped region.
///
/// ```
/// # use pramfs_medium as pramfs;
/// use pramfs::pmem::{HeapBackend, Region};
/// let region = Region::new("example", HeapBackend::boxed(1 << 20));
/// assert_eq!((region.len(), region.info().backend), (1 << 20, "heap"));
/// ```
///
/// A program reads and stores through the file system in the region:
///
/// ```compile_fail
/// # use pramfs_medium as pramfs;
/// use pramfs::pmem::{HeapBackend, Region};
/// let region = Region::new("example", HeapBackend::boxed(1 << 20));
/// region.window();
/// ```
#[derive(Debug)]
pub struct Region {
    pub(super) backend: Box<dyn PmemBackend>,
    pub(super) base: *mut u8,
    /// The address of the first byte for stores: `base`, unless the region is protected.
    pub(super) stores: *mut u8,
    /// Raised by [`grow`](Region::grow), once the new part is mapped.
    len: Grows,
    /// See [`PmemBackend::processor`].
    pub(super) cpu: Option<Cpu>,
    /// See [`cpu::copy_wide`].
    wide: bool,
    name: String,
    pub(super) read_only: bool,
    ownership: Option<Ownership>,
    /// See [`PmemBackend::known_room`].
    pub(super) room: Option<Arc<KnownRoom>>,
    /// The owner of `stores`, if it is another mapping. Dropped after the backend, whose
    /// guards and registrations end first.
    protection: Option<Arc<Protection>>,
    /// Ranges that the kernel has named as bad, or a test.
    pub(super) known_bad: KnownBad,
    /// What a save of the live file system needs before stores.
    pub(super) aside: AsideSlot,
    /// Closed in a forked child.
    open: OpenState,
    /// See [`Region::pretend_lease`].
    #[cfg(any(test, feature = "testing"))]
    pub(super) held_leases:
        crate::sync::Mutex<std::collections::BTreeSet<u32>, crate::sync::rank::Leaf>,
}

// SAFETY: the raw pointers are the mappings owned by `backend` and `protection`, which are
// Send + Sync themselves and live as long as this value.
unsafe impl Send for Region {}
// SAFETY: any thread may load from any byte while another stores to it. The layers above
// read without locks, and a view of a file is a second mapping of the same bytes. No access
// is an ordinary access of the language. All are atomics of 8 aligned bytes, the copies of
// `live`, or streaming stores of `cpu`; the latter two count as relaxed atomics, as argued
// there. So no data race exists. The locks of the layers above decide which bytes a load
// finds.
unsafe impl Sync for Region {}

impl Region {
    /// Wraps the memory of a backend, such as [`HeapBackend`](super::HeapBackend). `name` is
    /// for messages.
    pub fn new(name: impl Into<String>, backend: Box<dyn PmemBackend>) -> Region {
        let base = backend.base();
        let len = Grows::new(backend.len() as u64);
        let protection = backend.protection();
        Region {
            base,
            stores: protection.as_ref().map_or(base, |p| p.base()),
            protection,
            len,
            cpu: backend.processor(),
            // Loads need nothing of the backend.
            wide: Cpu::get().is_wide(),
            room: backend.known_room(),
            backend,
            name: name.into(),
            read_only: false,
            ownership: None,
            known_bad: KnownBad::default(),
            aside: AsideSlot::default(),
            open: OpenState::new(),
            #[cfg(any(test, feature = "testing"))]
            held_leases: Default::default(),
        }
    }

    /// Fails in a forked child. A child has zeros in place of its parent's region and must
    /// not use them as a region. Callers check before they begin an operation, not at each
    /// access.
    ///
    /// # Errors
    /// [`PmemError::Unusable`] with EIO in a forked child.
    #[inline]
    pub(crate) fn check_owner(&self) -> Result<(), PmemError> {
        match self.open.is_inherited() {
            false => Ok(()),
            true => Err(self.inherited()),
        }
    }

    #[cold]
    fn inherited(&self) -> PmemError {
        PmemError::Unusable {
            path: self.name.clone(),
            why: "it was opened before this process was forked, and is its parent's; open it again"
                .into(),
            errno: libc::EIO,
        }
    }

    /// Marks the mapping as private: stores stay in this process.
    pub(crate) fn read_only(mut self, yes: bool) -> Region {
        self.read_only = yes;
        self
    }

    /// Records the ownership of the source when it was opened.
    pub(super) fn owned(mut self, ownership: Ownership) -> Region {
        self.ownership = Some(ownership);
        self
    }

    /// Returns who owned the source when it was opened, and who could write it; `None` for
    /// memory of this process.
    pub(crate) fn ownership(&self) -> Option<Ownership> {
        self.ownership
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> u64 {
        self.len.get()
    }
    /// Makes the region as long as `size`, and its file too; without a size, as long as the
    /// file or the device is now. Its base does not move, and views of it stay valid. Returns
    /// the new length. The file system in it does not change.
    ///
    /// # Errors
    /// [`PmemError::Unusable`] with EINVAL for a smaller size, EOPNOTSUPP if the addresses
    /// that were reserved when it was opened do not suffice, ENOSPC, EFBIG, EROFS. The file
    /// may have become longer nevertheless.
    pub(crate) fn grow(&self, size: Option<u64>) -> Result<u64, PmemError> {
        self.check_owner()?;
        let len = self.backend.grow(size)?;
        self.len.raise(len);
        Ok(len)
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets others open the region for reading, while this process has it open for writing
    /// and stores nothing. Call [`lock_exclusive`](Self::lock_exclusive) before the next
    /// store.
    ///
    /// ```
    /// # use pramfs_medium::pmem::{RegionAccess, RegionOptions};
    /// # let path = std::env::temp_dir().join(format!("readers-{}", std::process::id()));
    /// let region = RegionOptions::new().create(&path, 1 << 20)?;
    /// let reader = RegionOptions::new().read_only(true);
    /// assert!(reader.open(&path).is_err());
    /// region.lock_shared()?;
    /// let second = reader.open(&path)?;
    /// assert!(region.lock_exclusive().is_err());
    /// drop(second);
    /// region.lock_exclusive()?;
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), pramfs_medium::pmem::PmemError>(())
    /// ```
    ///
    /// # Errors
    /// [`PmemError::Os`] with the error of the system.
    pub(crate) fn lock_shared(&self) -> Result<(), PmemError> {
        self.check_owner()?;
        self.backend.lock(false)
    }

    /// Locks the region for this process alone.
    ///
    /// # Errors
    /// [`PmemError::Unusable`] with EBUSY if another process has it open;
    /// [`PmemError::Os`].
    pub(crate) fn lock_exclusive(&self) -> Result<(), PmemError> {
        self.check_owner()?;
        self.backend.lock(true)
    }

    /// Returns the properties of this region.
    pub fn info(&self) -> RegionInfo {
        RegionInfo {
            name: self.name.clone(),
            backend: self.backend.name(),
            granularity: self.backend.granularity(),
            persistence: self.backend.persistence(),
            durability: self.backend.durability(),
            kind: self.backend.source_kind(),
            read_only: self.read_only,
            lock_notice: self.backend.lock_notice().map(str::to_owned),
            protect: self.protection.as_ref().map_or(Protect::Off, |p| p.kind()),
            protect_notice: self.backend.protect_notice().map(str::to_owned),
        }
    }

    /// Returns the backend, for calls that only it offers.
    pub(crate) fn backend(&self) -> &dyn PmemBackend {
        &*self.backend
    }

    /// See [`PmemBackend::faults`].
    #[inline]
    pub(crate) fn faults(&self) -> u64 {
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

    /// Whether a range touches a page that has faulted, so that bytes read there are not
    /// the medium's. True outside the region. As cheap as [`faults`](Self::faults) while no
    /// page has faulted.
    #[inline]
    pub(crate) fn is_faulted(&self, offset: u64, len: u64) -> bool {
        self.at(offset, len).map_or(true, |p| {
            self.backend.is_faulted(p, len as usize) || self.known_bad.touches(offset, len)
        })
    }

    /// See [`PmemBackend::sync_all`].
    ///
    /// # Errors
    /// The write-back failed: stores since the last one may be lost.
    pub(crate) fn sync_all(&self) -> std::io::Result<()> {
        self.backend.sync_all()
    }

    /// Returns the address of a range that is about to be accessed.
    #[inline]
    pub(super) fn at(&self, offset: u64, len: u64) -> Result<*mut u8, PmemError> {
        let p = self.bounded(offset, len)?;
        self.sound(p, offset, len)?;
        Ok(p)
    }

    /// Returns the address of a range to load from. The caller checks
    /// [`sound`](Self::sound) once, after the load.
    #[inline]
    pub(super) fn bounded(&self, offset: u64, len: u64) -> Result<*mut u8, PmemError> {
        match self.within(offset, len) {
            Some(p) => Ok(p),
            // Built only here: built earlier, it would be dropped again on each call.
            None => Err(self.out_of_bounds(offset, len)),
        }
    }

    #[cold]
    fn out_of_bounds(&self, offset: u64, len: u64) -> PmemError {
        PmemError::OutOfBounds {
            offset,
            len,
            region_len: self.len(),
        }
    }

    #[inline]
    fn within(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: offset + len <= self.len, which never exceeds the size of the mapping at
        // base, so the result points into it or one past its end.
        (end <= self.len.get()).then(|| unsafe { self.base.add(offset as usize) })
    }

    /// Whether a range lies in the region.
    #[inline]
    pub(crate) fn is_within(&self, offset: u64, len: u64) -> bool {
        self.within(offset, len).is_some()
    }

    /// Refuses a range that touches a faulted page. Such a page reads as zeros without
    /// another fault. Callers therefore check before every store, and after every load,
    /// since that load may be the one that faulted.
    #[inline]
    pub(super) fn sound(&self, p: *const u8, offset: u64, len: u64) -> Result<(), PmemError> {
        if fault::happened()
            && (self.backend.is_faulted(p, len as usize) || self.known_bad.touches(offset, len))
        {
            return Err(PmemError::Faulted { offset, len });
        }
        Ok(())
    }

    /// Whether a page of any region of this process has faulted so far.
    pub(crate) fn any_faults() -> bool {
        fault::happened()
    }

    /// Checks that a range can be accessed: it lies in the region, and none of its pages
    /// has faulted.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`], [`PmemError::Faulted`].
    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<(), PmemError> {
        self.at(offset, len).map(|_| ())
    }

    #[inline]
    pub(super) fn word(&self, offset: u64) -> Result<*mut u64, PmemError> {
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
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PmemError> {
        let src = self.bounded(offset, into.len() as u64)?;
        if into.len() >= FLUSH_ALL_MIN {
            self.backend.advise_willneed(src, into.len());
        }
        // SAFETY: `src` has into.len() bytes in the mapping, which consists of whole words;
        // `into` is an exclusive Rust buffer and so does not overlap it.
        unsafe { live::load(into.as_mut_ptr(), src, into.len()) };
        self.sound(src, offset, into.len() as u64)
    }

    /// As [`read`](Self::read), for a few pages at most, if the processor can copy whole
    /// lines. Returns false, with `into` undefined, if the processor cannot, or if `read`
    /// would return an error.
    ///
    /// The function is as short as possible and calls nothing. While a processor waits for
    /// the lines of this copy, it already fetches those of the next, but only if no more
    /// instructions lie between them than it looks ahead.
    #[inline]
    #[must_use]
    pub(crate) fn read_wide(&self, offset: u64, into: &mut [u8]) -> bool {
        let len = into.len();
        if !self.wide || !(cpu::WIDE..FLUSH_ALL_MIN).contains(&len) {
            return false;
        }
        let Some(src) = self.within(offset, len as u64) else {
            return false;
        };
        // SAFETY: as in `read`, by the argument of `live`. The processor has the
        // instructions, and `len` is long enough.
        unsafe { cpu::copy_wide(into.as_mut_ptr(), src, len) };
        !fault::happened()
    }

    /// Copies a structure out.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    #[inline]
    pub(crate) fn read_pod<T: FromBytes + IntoBytes + Immutable>(
        &self,
        offset: u64,
    ) -> Result<T, PmemError> {
        let src = self.bounded(offset, size_of::<T>() as u64)?;
        // SAFETY: `src` has size_of::<T>() bytes in the mapping.
        let value = unsafe { live::load_pod::<T>(src) };
        self.sound(src, offset, size_of::<T>() as u64)?;
        Ok(value)
    }

    /// Loads one word, atomically.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`], [`PmemError::Misaligned`].
    #[inline]
    pub(crate) fn load_u64(&self, offset: u64) -> Result<u64, PmemError> {
        if !offset.is_multiple_of(8) {
            return Err(PmemError::Misaligned { offset, align: 8 });
        }
        let p: *mut u64 = self.bounded(offset, 8)?.cast();
        // SAFETY: p is aligned and in the mapping for the life of &self; every other access
        // to it follows the rules of `live`.
        let word = unsafe { AtomicU64::from_ptr(p) }.load(acquire("region-load"));
        self.sound(p.cast(), offset, 8)?;
        Ok(word)
    }

    /// Loads a byte of each page of a range, so that a bad page is detected before its
    /// bytes are used.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`], [`PmemError::Faulted`].
    pub(crate) fn touch(&self, offset: u64, len: u64) -> Result<(), PmemError> {
        let page = rustix::param::page_size() as u64;
        let p = self.at(offset, len)?;
        let mut at = 0;
        while at < len {
            // SAFETY: the byte lies in the range, which lies in the mapping.
            unsafe { live::touch(p.add(at as usize)) };
            at = (offset + at + 1).next_multiple_of(page) - offset;
        }
        self.sound(p, offset, len)
    }

    /// Prefetches a line that will be read soon.
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64) {
        super::prefetch_address::<u8>(self.base.addr().wrapping_add(offset as usize));
    }

    /// Has the kernel set up the pages of a range now (also for stores, unless the region
    /// is read-only), so that no later access waits for a fault. Allocates the holes of a
    /// sparse region.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`]; [`PmemError::Os`] with EFAULT or ENOMEM if memory or
    /// space does not suffice.
    pub fn populate(&self, offset: u64, len: u64) -> Result<(), PmemError> {
        let page = rustix::param::page_size() as u64;
        let start = offset / page * page;
        let p = self.at(start, (offset - start).saturating_add(len))?;
        let len = (offset - start + len) as usize;
        let populate = || {
            if self.protection.is_none() {
                return mapping::populate(p, len, !self.read_only);
            }
            mapping::populate(p, len, false)
        };
        if self.protection.is_some() {
            self.populate_stores(start, len as u64)?;
        }
        populate().map_err(|e| self.unpopulated(e))
    }

    /// Populates the mapping for stores, in pieces: the region is closed between them.
    fn populate_stores(&self, start: u64, len: u64) -> Result<(), PmemError> {
        let mut done = 0;
        while done < len {
            let piece = POPULATED_AT_ONCE.min(len - done);
            let window = self.window();
            let p = window.to_populate(start + done, piece)?;
            mapping::populate(p, piece as usize, true).map_err(|e| self.unpopulated(e))?;
            done += piece;
        }
        Ok(())
    }

    fn unpopulated(&self, e: rustix::io::Errno) -> PmemError {
        PmemError::Os {
            what: "cannot populate",
            path: self.name.clone(),
            source: e.into(),
        }
    }

    /// The error of a store through a window that could not be opened.
    #[cold]
    pub(super) fn refused(&self) -> PmemError {
        PmemError::Unusable {
            path: self.name.clone(),
            why: "mprotect(2) has refused to open it for stores; the log says why".into(),
            errno: libc::EIO,
        }
    }

    /// Returns the address of a range, for mapping or for lending to a system call.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    pub(crate) fn raw_range(&self, offset: u64, len: u64) -> Result<*mut [u8], PmemError> {
        Ok(std::ptr::slice_from_raw_parts_mut(
            self.at(offset, len)?,
            len as usize,
        ))
    }

    /// Whether system calls can read the mapping. The kernel has no pages to give them for
    /// physical memory.
    pub(crate) fn is_lendable(&self) -> bool {
        self.backend.source_kind() != Some(SourceKind::Physical)
    }

    /// Lends a range, for a system call that copies it out of this process.
    ///
    /// # Errors
    /// [`PmemError::OutOfBounds`].
    pub(crate) fn lend(&self, offset: u64, len: u64) -> Result<Lent<'_>, PmemError> {
        let at = self.at(offset, len)?;
        if len as usize >= FLUSH_ALL_MIN {
            self.backend.advise_willneed(at, len as usize);
        }
        // SAFETY: the range lies in the mapping, which lives as long as `self`.
        Ok(unsafe { Lent::new(at, len as usize) })
    }

    /// Opens the region for stores of this thread.
    #[inline]
    pub(crate) fn window(&self) -> WriteWindow<'_> {
        let opened = self.protection.as_ref().map(|protection| protection.open());
        WriteWindow::new(self, opened)
    }

    /// Begins an operation of this thread that may store: its windows are joined. `None` if
    /// the region is not protected.
    #[inline]
    pub(crate) fn write_scope(&self) -> Option<WriteScope<'_>> {
        self.protection
            .as_ref()
            .map(|protection| protection.scope())
    }

    /// Closes a protected region until the next window of this thread's operation, which is about
    /// to wait for another thread or process. No window may be open.
    pub(crate) fn close_for_wait(&self) {
        if let Some(protection) = &self.protection {
            protection.close_for_wait();
        }
    }

    /// Whether the region is mapped for loads alone outside of windows.
    pub(crate) fn is_protected(&self) -> bool {
        self.protection.is_some()
    }

    /// Returns what makes stores durable.
    #[inline]
    pub(crate) fn write_back(&self) -> WriteBack<'_> {
        WriteBack { region: self }
    }
}
