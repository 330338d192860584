//! The only way to copy bytes into and out of a medium that others may be storing to.
//!
//! A view of a file, a read without a lock, and the kernel all access the medium while
//! another thread stores to it. An ordinary load or store of the language concurrent with
//! such a store is undefined behaviour, so none is used. Every access to the medium is an
//! aligned 8-byte atomic or one of the copies of this module.
//!
//! In terms of the language, a copy does what `atomic_copy` does:
//! * It takes each byte from a relaxed load of the aligned word that contains it.
//! * It puts each byte by a relaxed store of the aligned word, or by a relaxed exchange if
//!   other bytes of the word must stay.
//!
//! All atomics on the medium therefore have one size. Which loads a copied word comes from
//! is not specified. An aligned word is not torn with respect to a store of exactly that
//! word.
//!
//! [`asm`] does the same with the processor's instructions. The compiler does not see their
//! loads and stores and may assume nothing about them. Each of them is a relaxed atomic and
//! stores whole aligned words. A process may be killed, or the power fail, between any two
//! of them, and `docs/format.md` promises that no word is torn then. The C library's copies
//! are therefore not used for stores: they begin and end where the bytes do, and may stop
//! after any byte. Miri and ThreadSanitizer do not see into `asm`; under them, and on
//! processors without it, `atomic_copy` runs instead.

#[cfg(all(target_arch = "x86_64", not(miri), not(pramfs_sanitize)))]
mod asm;
#[cfg(any(not(target_arch = "x86_64"), miri, pramfs_sanitize, test))]
mod atomic_copy;

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::FromBytes;

#[cfg(all(target_arch = "x86_64", not(miri), not(pramfs_sanitize)))]
use asm as way;
#[cfg(any(not(target_arch = "x86_64"), miri, pramfs_sanitize))]
use atomic_copy as way;

/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Copies up to this length (a cache line) run inline, word by word.
const SHORT: usize = 64;

/// Copies out of the medium.
///
/// # Safety
/// The words that `src..src+len` touches are mapped; `dst..dst+len` is writable memory
/// outside the medium that nothing else accesses.
#[inline(always)]
pub(super) unsafe fn load(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller. The inline path copies whole words from an aligned
    // start, then the first part of the next word: `len` bytes in total.
    unsafe {
        if len > SHORT || !len.is_multiple_of(4) || !src.addr().is_multiple_of(WORD) {
            return way::load(dst, src, len);
        }
        let (whole, mut i) = (len & !(WORD - 1), 0);
        while i < whole {
            let word = word_at(src.wrapping_add(i)).load(Ordering::Relaxed);
            dst.add(i).cast::<u64>().write_unaligned(word);
            i += WORD;
        }
        if len != whole {
            let word = word_at(src.wrapping_add(whole)).load(Ordering::Relaxed);
            dst.add(whole).cast::<u32>().write_unaligned(word as u32);
        }
    }
}

/// Copies a structure out of the medium.
///
/// # Safety
/// The words that `size_of::<T>()` bytes at `src` touch are mapped.
#[inline(always)]
pub(super) unsafe fn load_pod<T: FromBytes>(src: *const u8) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `value` is our own and as long as T, for which any bytes are valid; the rest
    // is passed on from the caller.
    unsafe {
        load(value.as_mut_ptr().cast(), src, size_of::<T>());
        value.assume_init()
    }
}

/// Copies into the medium. One aligned word is stored in one piece, and so are 1, 2 or 4
/// aligned bytes.
///
/// # Safety
/// The words that `dst..dst+len` touches are mapped, and writable;
/// `src..src+len` is readable memory outside the medium.
#[inline(always)]
pub(super) unsafe fn store(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller; whole words to an aligned place.
    unsafe {
        if (dst.addr() | len).is_multiple_of(WORD) {
            way::store_words(dst, src, len);
        } else {
            way::store(dst, src, len);
        }
    }
}

/// Whether [`copy`] also accepts the medium as its source. `atomic_copy` cannot: it would
/// need to know which kind the source is, because bytes next to those of a slice must not
/// be loaded.
pub(super) const DIRECT: bool = cfg!(all(target_arch = "x86_64", not(miri), not(pramfs_sanitize)));

/// As [`store`]; with [`DIRECT`], the source may lie in the medium.
///
/// # Safety
/// As for [`store`], except for the source: it does not overlap the destination.
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { way::store(dst, src, len) }
}

/// Replaces `len` bytes of a word, from byte `within` on, by those of `new`, in one atomic
/// step. The other bytes stay, because others may be storing to them.
///
/// # Safety
/// The address is a multiple of 8, and its word is mapped and writable.
unsafe fn merge(at: *mut u8, new: [u8; WORD], within: usize, len: usize) {
    // SAFETY: passed on from the caller.
    let word = unsafe { word_at(at) };
    let mut old = word.load(Ordering::Relaxed);
    loop {
        let mut bytes = old.to_ne_bytes();
        bytes[within..within + len].copy_from_slice(&new[within..within + len]);
        let merged = u64::from_ne_bytes(bytes);
        match word.compare_exchange_weak(old, merged, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}

/// Splits a range of the medium into the bytes of a partial word, of whole words, and of a
/// partial word.
fn parts(at: *const u8, len: usize) -> (usize, usize, usize) {
    let head = at.addr().wrapping_neg() % WORD;
    if head >= len {
        return (len, 0, 0);
    }
    let tail = (len - head) % WORD;
    (head, len - head - tail, tail)
}

/// Fills the medium with one byte.
///
/// # Safety
/// The words that `dst..dst+len` touches are mapped, and writable.
#[inline]
pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { way::fill(dst, byte, len) }
}

/// Loads a byte of the medium, to touch its page.
///
/// # Safety
/// The word that contains the byte is mapped.
#[inline]
pub(super) unsafe fn touch(at: *const u8) {
    // SAFETY: passed on from the caller.
    unsafe { way::touch(at) }
}

/// Returns the word at an aligned address.
///
/// # Safety
/// The address is a multiple of 8, and the word is mapped for as long as the reference
/// lives. Every access to it is an 8-byte atomic or follows the rules of this module. The
/// pointer was not derived from a reference to immutable bytes.
#[inline(always)]
unsafe fn word_at<'a>(at: *const u8) -> &'a AtomicU64 {
    // SAFETY: aligned and mapped, by contract. No one stores through a mapping for loads
    // only, and a load of this size needs no write permission.
    unsafe { &*at.cast() }
}

#[cfg(test)]
mod tests;
