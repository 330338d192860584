//! A region in ordinary memory of this process, for tests and examples.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicU64, Ordering};

use super::backend::{Granularity, Persistence, PmemBackend};
use super::live;

/// Zeroed memory that is lost with the process. Flush and fence only order stores.
#[derive(Debug)]
pub struct HeapBackend {
    base: *mut u8,
    len: usize,
    layout: Layout,
}

// SAFETY: only this value owns the allocation, and all accesses are copies and atomics
// under the rules of `Region`.
unsafe impl Send for HeapBackend {}
// SAFETY: as above.
unsafe impl Sync for HeapBackend {}

impl HeapBackend {
    /// Allocates a region of `len` zeroed bytes.
    ///
    /// # Panics
    /// If `len` is zero or the allocation fails.
    pub fn boxed(len: usize) -> Box<HeapBackend> {
        assert!(len > 0, "a region has at least one byte");
        // Whole words, as a mapping consists of whole pages.
        let layout = len
            .checked_next_multiple_of(8)
            .map(|size| Layout::from_size_align(size, if cfg!(miri) { 4096 } else { 2 << 20 }));
        let layout = layout
            .and_then(Result::ok)
            .expect("size fits an allocation");
        // SAFETY: the layout has a non-zero size.
        let base = unsafe { alloc_zeroed(layout) };
        assert!(!base.is_null(), "out of memory for a region of {len} bytes");
        Box::new(HeapBackend { base, len, layout })
    }
}

impl Drop for HeapBackend {
    fn drop(&mut self) {
        // SAFETY: allocated in `boxed` with this very layout, freed once.
        unsafe { dealloc(self.base, self.layout) };
    }
}

// SAFETY: base and len describe one allocation that lives as long as self.
unsafe impl PmemBackend for HeapBackend {
    fn name(&self) -> &'static str {
        "heap"
    }
    fn base(&self) -> *mut u8 {
        self.base
    }
    fn len(&self) -> usize {
        self.len
    }
    fn granularity(&self) -> Granularity {
        Granularity::CacheLine
    }
    fn persistence(&self) -> Persistence {
        Persistence::Process
    }
    unsafe fn store(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { live::store(dst, src, len) }
    }
    unsafe fn store_u64(&self, dst: *mut u64, value: u64) {
        // SAFETY: aligned and in the mapping, by contract.
        unsafe { AtomicU64::from_ptr(dst) }.store(value, Ordering::Release);
    }
    unsafe fn nt_copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { live::copy(dst, src, len) }
    }
    unsafe fn nt_zero(&self, dst: *mut u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { live::fill(dst, 0, len) }
    }
    unsafe fn flush(&self, _ptr: *const u8, _len: usize) {}
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}
