//! Ordinary memory for cache tables: words that start as zero. Memory is allocated page by
//! page as words are written. Words can be read while another thread writes them.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Miri supports no other mappings; the tables of its small regions are small.
#[cfg(miri)]
const FLAGS: MapFlags = MapFlags::PRIVATE;
#[cfg(not(miri))]
const FLAGS: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// A fixed number of atomic words in a separate private mapping.
#[derive(Debug)]
pub struct AtomicTable {
    base: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: this value alone owns the mapping, and everything in it is atomic.
unsafe impl Send for AtomicTable {}
// SAFETY: as above.
unsafe impl Sync for AtomicTable {}

impl AtomicTable {
    /// Allocates `len` words, page-aligned. If memory is short, the table has no words,
    /// which a cache can tolerate. `what` names the table in the warning and suggests how
    /// to need less memory.
    pub fn new(len: usize, what: &str) -> AtomicTable {
        let none = AtomicTable {
            base: NonNull::dangling(),
            len: 0,
        };
        let fits = |bytes: &usize| (1..=isize::MAX as usize).contains(bytes);
        let Some(bytes) = len.checked_mul(size_of::<AtomicU64>()).filter(fits) else {
            return none;
        };
        // SAFETY: a new anonymous mapping at an address that the kernel chooses; it
        // replaces nothing.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                FLAGS,
            )
        };
        match mapped.map(|at| NonNull::new(at.cast())) {
            Ok(Some(base)) => AtomicTable { base, len },
            Ok(None) => none,
            Err(e) => {
                tracing::warn!(
                    "no memory for {what}, {} KiB: look-ups will be slower ({e})",
                    bytes >> 10
                );
                none
            }
        }
    }

    /// Requests huge pages for the untouched part. Random reads of a large table otherwise
    /// spend as long on its page tables as on the table.
    pub fn advise_huge(&self) {
        if self.len == 0 {
            return;
        }
        // SAFETY: the range is the mapping of this value, and the advice changes no byte in
        // it.
        let advised = unsafe {
            rustix::mm::madvise(
                self.base.as_ptr().cast(),
                size_of_val::<[AtomicU64]>(self),
                Advice::LinuxHugepage,
            )
        };
        if let Err(e) = advised {
            tracing::debug!("no huge pages for a cache: {e}");
        }
    }
}

impl Deref for AtomicTable {
    type Target = [AtomicU64];
    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `len` words, page-aligned and zeroed, for which any value
        // is valid; it lives as long as this value. Without a mapping the pointer is
        // dangling but aligned, and `len` is 0.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for AtomicTable {
    fn drop(&mut self) {
        if self.len != 0 {
            let bytes = size_of_val::<[AtomicU64]>(self);
            // SAFETY: mapped in `new` with this length, and no reference into it outlives this
            // value.
            let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), bytes) };
            debug_assert!(unmapped.is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_start_zero_and_keep_values() {
        let words = AtomicTable::new(1 << 20, "a table");
        assert_eq!(words.len(), 1 << 20);
        assert_eq!(words.as_ptr().addr() % 4096, 0);
        let last = words.len() - 1;
        words[last].store(7, Ordering::Relaxed);
        words.advise_huge();
        words[last / 2].store(8, Ordering::Relaxed);
        assert_eq!(words[last].load(Ordering::Relaxed), 7);
        assert_eq!(words[last / 2].load(Ordering::Relaxed), 8);
        assert_eq!(words[0].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn failed_allocation_yields_empty_table() {
        for len in [0, usize::MAX, usize::MAX / 8 - 4096] {
            let words = AtomicTable::new(len, "a table");
            assert!(words.is_empty());
            words.advise_huge();
        }
    }
}
