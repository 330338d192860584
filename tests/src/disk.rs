//! A disk that does not do what it should: memory whose write-outs go through a
//! [`Drive`], which may keep its own mind about what reaches it and what it says.
//!
//! As with `msync`, a fence that fails says so by [`note_fault`], and is counted
//! by [`PmemBackend::failed_fences`].

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pramfs_medium::pmem::{Granularity, HeapBackend, Persistence, PmemBackend, Region, note_fault};

/// What a disk makes of what is asked of it. Ranges are of bytes, from the
/// start of the region.
pub trait Drive: Debug + Send + Sync {
    /// Bytes were stored: the page cache has them.
    fn stored(&self, _range: Range<usize>) {}

    /// Bytes are to be written out by the next fence.
    fn flushed(&self, _range: Range<usize>) {}

    /// The fence: false if it failed. `read` copies out what the page cache has
    /// from a place on.
    fn fence(&self, _read: &dyn Fn(usize, &mut [u8])) -> bool {
        true
    }

    /// Whether it can be asked to take memory back.
    fn can_discard(&self) -> bool {
        false
    }

    /// Memory is given back.
    fn discard(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether a range of `len` bytes that is about to be used cannot be had.
    fn is_faulted(&self, _len: usize) -> bool {
        false
    }
}

/// The backend of a region on a [`Drive`].
#[derive(Debug)]
struct Disk<D> {
    memory: Box<dyn PmemBackend>,
    drive: Arc<D>,
    failed: AtomicU64,
}

/// A region of `len` bytes, zeros, on a drive.
pub fn region_on<D: Drive + 'static>(drive: Arc<D>, len: usize) -> Region {
    let disk = Disk {
        memory: HeapBackend::boxed(len),
        drive,
        failed: AtomicU64::new(0),
    };
    Region::new("a disk", Box::new(disk))
}

impl<D: Drive> Disk<D> {
    fn range(&self, at: *const u8, len: usize) -> Range<usize> {
        let at = at.addr() - self.base().addr();
        at..at + len
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= self.len());
        // SAFETY: within the mapping, as just seen. Stores of other threads
        // would be torn, as they are where a page is written out.
        unsafe { std::ptr::copy_nonoverlapping(self.base().add(at), out.as_mut_ptr(), out.len()) }
    }
}

// SAFETY: the mapping is that of `memory`, which lives as long.
unsafe impl<D: Drive> PmemBackend for Disk<D> {
    fn name(&self) -> &'static str {
        "disk"
    }
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn granularity(&self) -> Granularity {
        self.memory.granularity()
    }
    fn persistence(&self) -> Persistence {
        self.memory.persistence()
    }
    unsafe fn store(&self, dst: *mut u8, src: *const u8, len: usize) {
        self.drive.stored(self.range(dst, len));
        // SAFETY: passed on from the caller.
        unsafe { self.memory.store(dst, src, len) }
    }
    unsafe fn store_u64(&self, dst: *mut u64, value: u64) {
        self.drive.stored(self.range(dst.cast(), 8));
        // SAFETY: passed on from the caller.
        unsafe { self.memory.store_u64(dst, value) }
    }
    unsafe fn nt_copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        self.drive.stored(self.range(dst, len));
        // SAFETY: passed on from the caller.
        unsafe { self.memory.nt_copy(dst, src, len) }
        self.drive.flushed(self.range(dst, len));
    }
    unsafe fn nt_zero(&self, dst: *mut u8, len: usize) {
        self.drive.stored(self.range(dst, len));
        // SAFETY: passed on from the caller.
        unsafe { self.memory.nt_zero(dst, len) }
        self.drive.flushed(self.range(dst, len));
    }
    unsafe fn flush(&self, ptr: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { self.memory.flush(ptr, len) }
        self.drive.flushed(self.range(ptr, len));
    }
    fn fence(&self) {
        if !self.drive.fence(&|at, out| self.read(at, out)) {
            self.failed.fetch_add(1, Ordering::Release);
            note_fault();
        }
    }
    fn can_discard(&self) -> bool {
        self.drive.can_discard()
    }
    unsafe fn discard(&self, _ptr: *mut u8, _len: usize) -> io::Result<()> {
        self.drive.discard()
    }
    fn faults(&self) -> u64 {
        self.failed.load(Ordering::Acquire)
    }
    fn failed_fences(&self) -> u64 {
        self.faults()
    }
    fn is_faulted(&self, _ptr: *const u8, len: usize) -> bool {
        self.drive.is_faulted(len)
    }
}
