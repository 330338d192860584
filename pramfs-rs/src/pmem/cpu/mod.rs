//! The processor's own means: line write-back, streaming stores, fences.
//!
//! Invariant: a flush covers every line that its range touches, the last one
//! too, whatever the alignment of its start.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{Cpu, WIDE, copy_wide};

#[cfg(not(target_arch = "x86_64"))]
mod portable;
#[cfg(not(target_arch = "x86_64"))]
pub use portable::{Cpu, WIDE, copy_wide};

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = super::region::LINE as usize;

/// Start of the first line and end of the last one that a range touches; both
/// the same if it is empty. The start moves down while the end stays, so the
/// span is longer than the range by what was rounded off.
#[inline]
pub(super) fn line_span(start: usize, len: usize) -> (usize, usize) {
    let first = start & !(LINE_BYTES - 1);
    if len == 0 {
        return (first, first);
    }
    (first, (start + len).next_multiple_of(LINE_BYTES))
}

/// Stores that are not torn where they are 1, 2, 4 or 8 naturally aligned
/// bytes; a plain copy otherwise.
///
/// # Safety
/// `dst..dst+len` is writable memory, `src..src+len` is readable, and they do
/// not overlap.
#[inline]
pub(super) unsafe fn store(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: each arm stores `len` bytes at `dst`, whose alignment the guard
    // has checked, from `src`, which is read unaligned.
    unsafe {
        match len {
            9.. => std::ptr::copy_nonoverlapping(src, dst, len),
            8 if (dst as usize).is_multiple_of(8) => dst
                .cast::<u64>()
                .write_volatile(src.cast::<u64>().read_unaligned()),
            4 if (dst as usize).is_multiple_of(4) => dst
                .cast::<u32>()
                .write_volatile(src.cast::<u32>().read_unaligned()),
            2 if (dst as usize).is_multiple_of(2) => dst
                .cast::<u16>()
                .write_volatile(src.cast::<u16>().read_unaligned()),
            1 => dst.write_volatile(src.read()),
            _ => std::ptr::copy_nonoverlapping(src, dst, len),
        }
    }
}

#[cfg(test)]
mod tests;
