//! Instructions of the processor: line write-back, streaming stores, fences.
//!
//! Invariant: a flush covers every line that its range touches, including the last one, for
//! any alignment of its start.

// Miri and ThreadSanitizer do not see into assembly.
#[cfg(all(target_arch = "x86_64", not(miri), not(pramfs_sanitize)))]
mod x86_64;
#[cfg(all(target_arch = "x86_64", not(miri), not(pramfs_sanitize)))]
pub(super) use x86_64::{Cpu, WIDE, copy_wide};

#[cfg(any(not(target_arch = "x86_64"), miri, pramfs_sanitize))]
mod portable;
#[cfg(any(not(target_arch = "x86_64"), miri, pramfs_sanitize))]
pub(super) use portable::{Cpu, WIDE, copy_wide};

/// Bytes of a cache line.
#[cfg_attr(
    not(any(target_arch = "x86_64", feature = "testing", test)),
    allow(dead_code, reason = "the portable write-back covers whole ranges")
)]
pub(super) const LINE_BYTES: usize = super::region::LINE as usize;

/// Returns the start of the first line and the end of the last one that a range touches, or
/// the same address twice if the range is empty. The start moves down and the end stays, so
/// the span is longer than the range by the rounding.
#[cfg_attr(
    not(any(target_arch = "x86_64", feature = "testing", test)),
    allow(dead_code, reason = "the portable write-back covers whole ranges")
)]
#[inline]
pub(super) fn line_span(start: usize, len: usize) -> (usize, usize) {
    let first = start & !(LINE_BYTES - 1);
    if len == 0 {
        return (first, first);
    }
    (first, (start + len).next_multiple_of(LINE_BYTES))
}

#[cfg(test)]
mod tests;
