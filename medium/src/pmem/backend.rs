//! The contract between a [`Region`](super::Region) and what implements its
//! stores, flushes and fences.

use std::fmt::Debug;
use std::sync::Arc;

use super::cpu::Cpu;
use super::error::PmemError;
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

/// What the bytes of a region survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Persistence {
    /// Only as long as a process holds the region (memfd, heap).
    Process,
    /// As long as the machine runs (tmpfs, hugetlbfs).
    Machine,
    /// A power failure.
    Power,
}

impl Persistence {
    /// `process`, `machine` or `power`.
    pub fn name(self) -> &'static str {
        match self {
            Persistence::Process => "process",
            Persistence::Machine => "machine",
            Persistence::Power => "power",
        }
    }

    /// What that means, as the end of a sentence that begins "The contents".
    pub fn describe(self) -> &'static str {
        match self {
            Persistence::Process => "are lost when the last process that holds them ends",
            Persistence::Machine => {
                "survive every process and are lost at reboot and power failure"
            }
            Persistence::Power => "survive reboot and power failure",
        }
    }
}

/// What a fence promises on a medium where only `msync` makes stores durable.
/// On every other medium a fence is always as good as the medium is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Each fence is an `msync`: what it covers survives a power failure.
    #[default]
    Power,
    /// A fence only orders; the medium is written by
    /// [`PmemBackend::sync_all`]. Survives the death of the process at any
    /// moment, and of the machine only up to the last `sync_all`.
    Process,
}

/// The instructions of a medium.
///
/// A backend owns its mapping: `base()..base()+len()` stays valid, readable
/// and writable (or privately writable) until it is dropped.
///
/// # Safety
/// An implementation must return from `base`/`len` one valid mapping that does
/// not move or shrink in its lifetime, and that can be loaded from and stored to
/// up to the next multiple of 8 bytes. Others load from and store to it meanwhile:
/// what it stores by itself is no ordinary store of the language.
pub unsafe trait PmemBackend: Send + Sync + Debug {
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
    /// What the bytes survive.
    fn persistence(&self) -> Persistence;

    /// Ordinary store of `len` bytes. Stores of up to 8 naturally aligned bytes
    /// are not torn.
    ///
    /// # Safety
    /// `dst..dst+len` lies in the mapping; `src..src+len` is readable and does
    /// not overlap it.
    unsafe fn store(&self, dst: *mut u8, src: *const u8, len: usize);
    /// Store of one aligned 8-byte word, atomic.
    ///
    /// # Safety
    /// `dst` is 8-byte aligned and lies in the mapping.
    unsafe fn store_u64(&self, dst: *mut u64, value: u64);
    /// Store of one aligned 8-byte word, atomic, that is durable after the
    /// next [`fence`](Self::fence) of this thread, with no flush.
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
    /// Non-temporal copy: durable after the next [`fence`](Self::fence) of this
    /// thread, with no flush, and seen by other threads in order only after
    /// that or after a locked operation. Any alignment; what is not whole
    /// words may be stored and flushed ordinarily.
    ///
    /// # Safety
    /// `dst..dst+len` lies in the mapping; `src..src+len` is readable and does not
    /// overlap it. On x86_64 it may lie in the mapping, too, where others store to it.
    unsafe fn nt_copy(&self, dst: *mut u8, src: *const u8, len: usize);
    /// As [`nt_copy`](Self::nt_copy), of zeros.
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

    /// The processor, where this backend does with the mapping what that does
    /// and no more: ordinary stores, its streaming stores, its write-back of
    /// lines and its fence. Then the region asks the processor and not the
    /// backend for these, at once, which matters for what is so short.
    #[doc(hidden)]
    fn processor(&self) -> Option<Cpu> {
        None
    }

    /// Everything stored so far reaches the medium, whatever the granularity
    /// (msync where that is what it takes). For fsync, sync and unmount.
    fn sync_all(&self) -> std::io::Result<()> {
        Ok(())
    }
    /// Keeps everybody else out of the source, or lets those in who only read;
    /// nothing where there is no lock.
    ///
    /// # Errors
    /// EBUSY if somebody else reads it.
    fn lock(&self, _exclusive: bool) -> Result<(), PmemError> {
        Ok(())
    }
    /// Hints that from here on small changes are fenced one by one, and long
    /// ranges announced by [`advise_willneed`](Self::advise_willneed). Without it a medium
    /// may read ahead as suits whoever reads all of it.
    fn advise_random(&self) {}
    /// Hints that a long range of the mapping is about to be read or stored to.
    fn advise_willneed(&self, _ptr: *const u8, _len: usize) {}
    /// Gives the memory of a freed range back to the host, contents become
    /// undefined. Parts of a unit of the host stay.
    ///
    /// # Errors
    /// Those of the host: one may take nothing back.
    ///
    /// # Safety
    /// The range lies in the mapping and no one reads it any more.
    unsafe fn discard(&self, _ptr: *mut u8, _len: usize) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    /// Whether [`discard`](Self::discard) can give anything back, as far as the
    /// kind of the source tells.
    fn can_discard(&self) -> bool {
        false
    }
    /// The pages that are known to have room on the host; `None` where none can
    /// be without. Asked once.
    fn known_room(&self) -> Option<Arc<KnownRoom>> {
        None
    }
    /// Asks the host which pages of a range have room.
    fn learn_room(&self, _offset: u64, _len: u64) {}
    /// Takes room of the host for a range, and `around` it what it gives at once.
    ///
    /// # Errors
    /// Those of the host, where it has none for the first page that is missing.
    fn take_room(&self, _offset: u64, _len: u64, _around: bool) -> std::io::Result<()> {
        Ok(())
    }
    /// Takes room of the host for everything.
    ///
    /// # Errors
    /// Those of the host.
    fn take_all_room(&self) -> std::io::Result<()> {
        Ok(())
    }
    /// What the host has, where the mapping needs any of it.
    fn host_space(&self) -> Option<HostSpace> {
        None
    }
    /// Number of faults (SIGBUS) that this mapping has taken so far. An
    /// operation compares it before and after.
    fn faults(&self) -> u64 {
        0
    }
    /// Number of fences so far whose stores may not have reached the medium:
    /// what they were to make durable cannot be counted on. Part of
    /// [`faults`](Self::faults), and announced like them
    /// ([`note_fault`](super::note_fault)).
    fn failed_fences(&self) -> u64 {
        0
    }
    /// Whether `ptr..ptr+len` touches a page that has faulted: its bytes are
    /// not the medium's. Cheap as long as [`faults`](Self::faults) is zero. A
    /// page faults once, so this, and not the count, answers for the accesses
    /// that come after it.
    fn is_faulted(&self, _ptr: *const u8, _len: usize) -> bool {
        false
    }
    /// What a fence promises on this medium.
    fn durability(&self) -> Durability {
        Durability::Power
    }
    /// What kind of object is mapped, if it came from the system.
    fn source_kind(&self) -> Option<SourceKind> {
        None
    }
    /// Whether a second mapping of [`source_fd`](Self::source_fd) must be made
    /// with `MAP_SYNC` for flushes to suffice on it.
    fn map_sync(&self) -> bool {
        false
    }
    /// Bytes that the address, the offset and the length of a second mapping
    /// must be multiples of.
    fn map_unit(&self) -> u64 {
        super::source::REGION_UNIT
    }
    /// As [`flush`](Self::flush), of bytes that were stored through another
    /// mapping of the same medium: `alias` is their address there, `home` that
    /// in this mapping.
    ///
    /// # Safety
    /// `home..home+len` lies in the mapping, and `alias..alias+len` in another
    /// one of the same bytes.
    unsafe fn flush_alias(&self, _alias: *const u8, home: *const u8, len: usize) {
        // SAFETY: passed on from the caller. Caches go by physical address and
        // msync by file, so flushing any mapping of the bytes will do.
        unsafe { self.flush(home, len) }
    }
    /// The descriptor behind the mapping and the offset of its first byte in
    /// it, if it can be mapped a second time.
    fn source_fd(&self) -> Option<(std::os::fd::BorrowedFd<'_>, u64)> {
        None
    }
}
