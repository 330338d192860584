//! [`Lent`]: a range of the medium for a system call that takes a slice.

use std::marker::PhantomData;

use super::live;
use super::region::Region;

/// Bytes of the medium, lent for the duration of a call. The bytes may change meanwhile.
/// They can be copied, and their address may be taken.
#[derive(Debug, Clone, Copy)]
pub struct Lent<'a> {
    at: *const u8,
    len: usize,
    region: PhantomData<&'a Region>,
}

impl<'a> Lent<'a> {
    /// Returns an empty range.
    pub fn empty() -> Lent<'a> {
        Lent {
            at: std::ptr::NonNull::dangling().as_ptr(),
            len: 0,
            region: PhantomData,
        }
    }

    /// Wraps a range of a mapping.
    ///
    /// # Safety
    /// The words that the range touches stay mapped for `'a`.
    pub(super) unsafe fn new(at: *const u8, len: usize) -> Lent<'a> {
        Lent {
            at,
            len,
            region: PhantomData,
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.at
    }

    /// Copies as many bytes from `from` on as exist and fit. Returns the number of bytes
    /// copied.
    pub fn copy_to(&self, from: usize, into: &mut [u8]) -> usize {
        let n = self.len.saturating_sub(from).min(into.len());
        if n != 0 {
            // SAFETY: `n` bytes from `from` on lie in the range; `into` is an
            // exclusive buffer.
            unsafe { live::load(into.as_mut_ptr(), self.at.wrapping_add(from), n) };
        }
        n
    }

    /// Returns the bytes as a slice, for calls that accept nothing else.
    ///
    /// # Safety
    /// No thread or process stores to the bytes while the slice lives. For ranges that
    /// `Engine::with_contiguous` lends, the engine guarantees this against its own calls
    /// and against every view of a file, while the closure runs. The program guarantees the
    /// rest: it stores to the region by none of these:
    ///
    /// * a [`WriteWindow`](super::WriteWindow), or a stitched map, that it made before the
    ///   mount;
    /// * the same region, opened again without its lock;
    /// * a pointer derived from an address of the region.
    pub unsafe fn as_slice(&self) -> &'a [u8] {
        // SAFETY: the range is mapped, with initialised bytes, for as long as 'a, and no
        // one stores to it, by contract.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}
