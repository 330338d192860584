//! The contract between a [`Region`](super::Region) and the code that implements its
//! stores, flushes and fences.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use super::cpu::Cpu;
use super::error::PmemError;
use super::kernel_bad::KernelBad;
use super::protect::Protection;
use super::room::{HostSpace, KnownRoom};
use super::source::SourceKind;

/// The unit in which a medium makes stores durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Granularity {
    /// Stores are durable once they reach the cache (eADR).
    Byte,
    /// Cache-line write-back and a store fence make stores durable.
    CacheLine,
    /// Only `msync` makes stores durable (ordinary file, block device).
    Page,
}

impl Granularity {
    /// `byte`, `cache line` or `page`.
    pub fn name(self) -> &'static str {
        match self {
            Granularity::Byte => "byte",
            Granularity::CacheLine => "cache line",
            Granularity::Page => "page",
        }
    }
}

/// The failure that the bytes of a region survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Persistence {
    /// Only as long as a process holds the region (memfd, heap).
    Process,
    /// As long as the machine runs (tmpfs, hugetlbfs).
    Machine,
    /// A reset of the machine, if the firmware leaves the memory alone, and no loss of power
    /// (RAM set aside by the kernel's parameter `memmap=`).
    Reboot,
    /// A power failure.
    Power,
}

impl Persistence {
    /// `process`, `machine`, `reboot` or `power`.
    pub fn name(self) -> &'static str {
        match self {
            Persistence::Process => "process",
            Persistence::Machine => "machine",
            Persistence::Reboot => "reboot",
            Persistence::Power => "power",
        }
    }

    /// Describes the level, as the end of a sentence that begins "The contents".
    pub fn describe(self) -> &'static str {
        match self {
            Persistence::Process => "are lost when the last process that holds them ends",
            Persistence::Machine => {
                "survive every process and are lost at reboot and power failure"
            }
            Persistence::Reboot => {
                "survive a reboot, if the firmware leaves them alone, and are lost at power failure"
            }
            Persistence::Power => "survive reboot and power failure",
        }
    }
}

/// The guarantee of a fence on a medium where only `msync` makes stores durable. On every
/// other medium a fence gives the full durability of the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Each fence is an `msync`: what it covers survives a power failure.
    #[default]
    Power,
    /// A fence only orders; [`PmemBackend::sync_all`] writes the medium. The bytes survive
    /// the death of the process at any moment, but a failure of the machine only up to the
    /// last `sync_all`.
    Process,
}

/// The operations of a medium.
///
/// The trait is sealed: this crate implements it, and with the feature `testing` the tests
/// of other crates.
///
/// A backend owns its mapping: `base()..base()+len()` stays valid and readable until it is
/// dropped. Without a [`protection`](PmemBackend::protection) it is also writable (or privately
/// writable). With one it is not: stores go to the second mapping, of the same length, which the
/// protection owns, and which is writable while it is open. "The mapping" below is then either
/// for loads, and the second one for stores.
///
/// # Safety
/// `base` and `len` must describe one valid mapping that does not move or shrink while the
/// backend lives; [`grow`](PmemBackend::grow) makes it longer. It can be loaded from, and without
/// a protection stored to, up to the next multiple of 8 bytes. Others load from and store to it
/// concurrently, so the backend must not use ordinary
/// stores of the language on it.
pub unsafe trait PmemBackend: sealed::Sealed + Send + Sync + Debug {
    /// Short name: `native`, `libpmem2`, `sim`, `heap`.
    fn name(&self) -> &'static str;
    /// First byte of the mapping, aligned to at least 4096 bytes.
    fn base(&self) -> *mut u8;
    /// Bytes mapped.
    fn len(&self) -> usize;
    /// Whether nothing is mapped.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The unit of durability.
    fn granularity(&self) -> Granularity;
    /// Returns the failure that the bytes survive.
    fn persistence(&self) -> Persistence;

    /// Stores `len` bytes ordinarily. Stores of up to 8 naturally aligned bytes are not
    /// torn.
    ///
    /// # Safety
    /// `dst..dst+len` lies in the mapping; `src..src+len` is readable and does
    /// not overlap it.
    unsafe fn store(&self, dst: *mut u8, src: *const u8, len: usize);
    /// Stores one aligned 8-byte word atomically.
    ///
    /// # Safety
    /// `dst` is 8-byte aligned and lies in the mapping.
    unsafe fn store_u64(&self, dst: *mut u64, value: u64);
    /// Stores one aligned 8-byte word atomically. It is durable after this thread's next
    /// [`fence`](Self::fence), without a flush.
    ///
    /// # Safety
    /// As for [`store_u64`](Self::store_u64).
    unsafe fn nt_store_u64(&self, dst: *mut u64, value: u64) {
        // SAFETY: passed on from the caller.
        unsafe {
            self.store_u64(dst, value);
            self.flush(dst.cast(), 8);
        }
    }
    /// Copies with non-temporal stores. The copy is durable after this thread's next
    /// [`fence`](Self::fence), without a flush; other threads see it in order only after
    /// that fence or a locked operation. Any alignment; partial words may be stored and
    /// flushed ordinarily.
    ///
    /// # Safety
    /// `dst..dst+len` lies in the mapping; `src..src+len` is readable and does not overlap
    /// it. On x86_64 the source may also lie in the mapping, where others store to it.
    unsafe fn nt_copy(&self, dst: *mut u8, src: *const u8, len: usize);
    /// As [`nt_copy`](Self::nt_copy), but stores zeros.
    ///
    /// # Safety
    /// `dst..dst+len` lies in the mapping.
    unsafe fn nt_zero(&self, dst: *mut u8, len: usize);
    /// Starts the write-back of every line that `ptr..ptr+len` touches.
    ///
    /// # Safety
    /// The range lies in the mapping.
    unsafe fn flush(&self, ptr: *const u8, len: usize);
    /// Completes this thread's flushes and non-temporal stores.
    fn fence(&self);

    /// Returns the processor if this backend only forwards to it: ordinary stores, its
    /// streaming stores, its write-back of lines and its fence. The region then calls the
    /// processor directly, which matters for operations this short.
    #[doc(hidden)]
    fn processor(&self) -> Option<Cpu> {
        None
    }

    /// Returns the mapping for stores, if it is not the one at [`base`](Self::base).
    #[doc(hidden)]
    fn protection(&self) -> Option<Arc<Protection>> {
        None
    }
    /// Returns why the region is not protected, though it should be if possible: a clause for
    /// a person.
    fn protect_notice(&self) -> Option<&str> {
        None
    }

    /// Makes everything stored so far reach the medium, whatever the granularity (with
    /// msync if required). For fsync, sync and unmount.
    fn sync_all(&self) -> std::io::Result<()> {
        Ok(())
    }
    /// Makes the mapping as long as `size`, and its file too, or as long as the file or the
    /// device is now. The base does not move. Returns the length, which may be the old one.
    /// Threads may access the mapping meanwhile, up to its old length.
    ///
    /// # Errors
    /// [`PmemError::Unusable`] with EINVAL (shorter, or no multiple of the unit), ENOSPC,
    /// EFBIG, EROFS, EOPNOTSUPP (too few addresses were reserved, or the backend cannot). A
    /// file may have become longer nevertheless.
    fn grow(&self, size: Option<u64>) -> Result<u64, PmemError> {
        if size.is_none_or(|size| size == self.len() as u64) {
            return Ok(self.len() as u64);
        }
        Err(PmemError::Unusable {
            path: format!("a region of the {} backend", self.name()),
            why: "cannot grow: it is memory of this process".into(),
            errno: libc::EOPNOTSUPP,
        })
    }
    /// Locks the source exclusively, or shares it with readers. Does nothing if the source
    /// has no lock.
    ///
    /// # Errors
    /// EBUSY if another process reads it.
    fn lock(&self, _exclusive: bool) -> Result<(), PmemError> {
        Ok(())
    }
    /// Returns why the source is open without its usual lock, if it is: a sentence for a person.
    fn lock_notice(&self) -> Option<&str> {
        None
    }
    /// Takes the usual lock, if the source is open without it and it is free by now. Returns
    /// whether this process has it.
    fn retake_lock(&self) -> bool {
        true
    }
    /// Advises random access: from here on small changes are fenced one by one, and
    /// [`advise_willneed`](Self::advise_willneed) announces long ranges. Without this
    /// advice a medium may read ahead as suits a sequential reader.
    fn advise_random(&self) {}
    /// Advises that a long range of the mapping is about to be read or stored to.
    fn advise_willneed(&self, _ptr: *const u8, _len: usize) {}
    /// Returns the memory of a freed range to the host; the contents become undefined.
    /// Partial units of the host stay.
    ///
    /// # Errors
    /// Errors of the host, which may not support this.
    ///
    /// # Safety
    /// The range lies in the mapping for stores, which is open, and no code reads it any
    /// longer.
    unsafe fn discard(&self, _ptr: *mut u8, _len: usize) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    /// Whether [`discard`](Self::discard) can return anything, as far as the kind of source
    /// shows.
    fn can_discard(&self) -> bool {
        false
    }
    /// Returns the pages known to have room on the host; `None` if no page can lack room.
    /// Called once.
    fn known_room(&self) -> Option<Arc<KnownRoom>> {
        None
    }
    /// Queries the host for the pages of a range that have room.
    fn query_room(&self, _offset: u64, _len: u64) {}
    /// Allocates room on the host for a range; with `around`, also for pages near it that
    /// the host grants at once.
    ///
    /// # Errors
    /// Errors of the host, if it has no room for the first missing page.
    fn take_room(&self, _offset: u64, _len: u64, _around: bool) -> std::io::Result<()> {
        Ok(())
    }
    /// Allocates room on the host for the whole region.
    ///
    /// # Errors
    /// Errors of the host.
    fn take_all_room(&self) -> std::io::Result<()> {
        Ok(())
    }
    /// Returns the space of the host, if the mapping needs any.
    fn host_space(&self) -> Option<HostSpace> {
        None
    }
    /// Returns the number of faults (SIGBUS) of this mapping so far. An operation compares
    /// it before and after.
    fn faults(&self) -> u64 {
        0
    }
    /// Returns the number of fences so far whose stores may not have reached the medium and
    /// so may not be durable. Included in [`faults`](Self::faults), and announced like them
    /// ([`note_fault`](super::fault::note_fault)).
    fn failed_fences(&self) -> u64 {
        0
    }
    /// Whether `ptr..ptr+len` touches a faulted page, whose bytes are not the medium's.
    /// Cheap while [`faults`](Self::faults) is zero. A page faults only once, so later
    /// accesses rely on this and not on the count.
    fn is_faulted(&self, _ptr: *const u8, _len: usize) -> bool {
        false
    }
    /// Returns the guarantee of a fence on this medium.
    fn durability(&self) -> Durability {
        Durability::Power
    }
    /// Returns the kind of the mapped object, if the system provided it.
    fn source_kind(&self) -> Option<SourceKind> {
        None
    }
    /// Whether a second mapping of [`source_fd`](Self::source_fd) must be made
    /// with `MAP_SYNC` for flushes to suffice on it.
    fn map_sync(&self) -> bool {
        false
    }
    /// Returns the unit in bytes of the address, offset and length of a second mapping.
    fn map_unit(&self) -> u64 {
        super::source::REGION_UNIT
    }
    /// As [`flush`](Self::flush), for bytes stored through another mapping of the same
    /// medium. `alias` is their address in that mapping, `home` in this one.
    ///
    /// # Safety
    /// `home..home+len` lies in the mapping, and `alias..alias+len` in another mapping of
    /// the same bytes.
    unsafe fn flush_alias(&self, _alias: *const u8, home: *const u8, len: usize) {
        // SAFETY: passed on from the caller. Caches work by physical address and msync by
        // file, so flushing any mapping of the bytes suffices.
        unsafe { self.flush(home, len) }
    }
    /// Returns the descriptor behind the mapping and the offset of the mapping's first byte
    /// in it, if it can be mapped a second time.
    fn source_fd(&self) -> Option<(std::os::fd::BorrowedFd<'_>, u64)> {
        None
    }
    /// A page that had failed was written anew, through the source.
    fn forget_failed(&self, _ptr: *const u8, _len: usize) {}
    /// Returns the ranges that the kernel names as bad, in bytes from the start of the mapping,
    /// up to `len`.
    ///
    /// # Errors
    /// The kernel's list cannot be read.
    fn kernel_bad(&self, len: u64) -> Result<KernelBad, PmemError> {
        match self.source_fd() {
            Some((fd, first)) => KernelBad::of(fd, first, len, Path::new("/sys")),
            None => Ok(KernelBad::default()),
        }
    }
}

mod sealed {
    /// Implemented for the backends.
    pub trait Sealed {}

    #[cfg(any(test, feature = "testing"))]
    impl<T> Sealed for T {}

    #[cfg(not(any(test, feature = "testing")))]
    mod backends {
        impl super::Sealed for crate::pmem::HeapBackend {}
        #[cfg(feature = "libpmem2")]
        impl super::Sealed for crate::pmem::Libpmem2Backend {}
        impl super::Sealed for crate::pmem::NativeBackend {}
    }
}
