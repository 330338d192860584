//! Processors whose write-back instructions this library does not use. Memory in the page
//! cache works in full, because the caches there are coherent with all readers. `native`
//! maps media that need a line write-back as page-granular, or refuses them. Miri and
//! ThreadSanitizer also run this code, because they can see all of it.

use crate::pmem::live;

/// The processor.
#[derive(Debug, Clone, Copy)]
pub struct Cpu;

impl Cpu {
    /// Whether flushing lines makes stores durable on persistent memory.
    pub const WRITES_BACK: bool = false;

    pub fn get() -> Cpu {
        Cpu
    }
    /// Returns the only choice, for tests.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Cpu> {
        vec![Cpu]
    }
    pub fn flush_name(self) -> &'static str {
        "none"
    }
    pub fn stream_name(self) -> &'static str {
        "none"
    }
    pub unsafe fn flush(self, _ptr: *const u8, _len: usize) {}
    pub unsafe fn flush_lines(self, _base: *const u8, _lines: &[u64]) {}
    pub unsafe fn store(self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { live::store(dst, src, len) }
    }
    pub unsafe fn nt_store_u64(self, dst: *mut u64, value: u64) {
        // SAFETY: aligned and writable, by contract.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(dst) }
            .store(value, std::sync::atomic::Ordering::Release);
    }
    pub unsafe fn nt_copy(self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { live::copy(dst, src, len) }
    }
    pub unsafe fn nt_zero(self, dst: *mut u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { live::fill(dst, 0, len) }
    }
    pub fn is_wide(self) -> bool {
        false
    }
    pub fn fence(self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

/// No processor here is [wide](Cpu::is_wide).
pub(crate) const WIDE: usize = usize::MAX;

pub(crate) unsafe fn copy_wide(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { live::load(dst, src, len) }
}
