//! [`Lent`]: a range of the medium for a system call that takes a slice.

use std::marker::PhantomData;

use super::live;
use super::region::Region;

/// Bytes of the medium, lent for the length of a call. What they are may change
/// meanwhile: they can be copied, and their address is no secret.
#[derive(Debug, Clone, Copy)]
pub struct Lent<'a> {
    at: *const u8,
    len: usize,
    region: PhantomData<&'a Region>,
}

impl<'a> Lent<'a> {
    /// No bytes.
    pub fn empty() -> Lent<'a> {
        Lent {
            at: std::ptr::NonNull::dangling().as_ptr(),
            len: 0,
            region: PhantomData,
        }
    }

    /// A range of a mapping.
    ///
    /// # Safety
    /// The words that the range touches are mapped for as long as `'a`.
    pub(super) unsafe fn new(at: *const u8, len: usize) -> Lent<'a> {
        Lent {
            at,
            len,
            region: PhantomData,
        }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first of them.
    pub fn as_ptr(&self) -> *const u8 {
        self.at
    }

    /// Copies the bytes from `from` on, as many as there are and fit; returns how
    /// many that was.
    pub fn copy_to(&self, from: usize, into: &mut [u8]) -> usize {
        let n = self.len.saturating_sub(from).min(into.len());
        if n != 0 {
            // SAFETY: `n` bytes from `from` on lie in the range; `into` is an
            // exclusive buffer.
            unsafe { live::load(into.as_mut_ptr(), self.at.wrapping_add(from), n) };
        }
        n
    }

    /// The bytes as a slice, for what takes nothing else.
    ///
    /// # Safety
    /// Nobody stores to the bytes while the slice lives. Those that
    /// `Engine::with_contiguous` lends are kept
    /// so against every call of the engine and every view of a file, as long as
    /// its closure runs. What remains is to be kept by the program: it stores to
    /// the region by no [`WriteWindow`](super::WriteWindow) of its own, and to
    /// nothing that it made of an address of the region.
    pub unsafe fn as_slice(&self) -> &'a [u8] {
        // SAFETY: the range is mapped, with initialised bytes, for as long as 'a,
        // and nobody stores to it, by contract.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}
