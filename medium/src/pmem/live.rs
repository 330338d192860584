//! Bytes of the medium that others may be storing to: the one way in and out.
//!
//! A view of a file, a read without a lock and the kernel see the medium while
//! somebody stores to it. An ordinary load or store of the language beside such
//! a store is undefined behaviour, so there is none: every access to the medium
//! is an aligned 8-byte atomic, or one of the copies of this module.
//!
//! What a copy does is what `atomic_copy` does, in terms of the language: each byte
//! is taken from a relaxed load of the aligned word that it lies in, and put by
//! a relaxed store of that word, or, where others of its bytes are to stay, by a
//! relaxed exchange. All atomics on the medium are thus of one size. Which loads
//! a word is put together from is not promised; that an aligned word is not torn
//! is, for a store of just that word.
//!
//! [`asm`] does the same with the processor's own instructions, whose loads and
//! stores the compiler neither sees nor may assume anything about. Each of them
//! is a relaxed atomic, and stores whole aligned words: a process may be killed, or
//! the power fail, between any two, and `docs/format.md` promises that no word is
//! torn then. So nothing is stored by the C library's copies, which begin and end
//! where the bytes do, and may stop behind any of them. Miri and ThreadSanitizer do not see into it; under them, and on
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
/// So many bytes are copied by words, in line: a cache line.
const SHORT: usize = 64;

/// Copies out of the medium.
///
/// # Safety
/// The words that `src..src+len` touches are mapped; `dst..dst+len` is writable
/// memory that nobody else has, outside the medium.
#[inline(always)]
pub(super) unsafe fn load(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller. In line, whole words from an aligned
    // start, and then the first half of the next: `len` bytes together.
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
    // SAFETY: `value` is our own and as long as T, of which any bytes are one;
    // the rest is passed on from the caller.
    unsafe {
        load(value.as_mut_ptr().cast(), src, size_of::<T>());
        value.assume_init()
    }
}

/// Copies into the medium. One aligned word is stored whole, and so are 1, 2 or
/// 4 aligned bytes.
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

/// Whether [`copy`] takes from the medium, too. `atomic_copy` cannot: it would have to
/// know which of both it is, as no byte beside those of a slice may be loaded.
pub(super) const DIRECT: bool = cfg!(all(target_arch = "x86_64", not(miri), not(pramfs_sanitize)));

/// As [`store`]; with [`DIRECT`], the source may be medium.
///
/// # Safety
/// As for [`store`], but for the source: it does not overlap the destination.
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { way::store(dst, src, len) }
}

/// Puts `len` bytes of `new`, those from `within` on, in place of those of a word,
/// all at once, and leaves the others: others may be storing to them.
///
/// # Safety
/// The address is a multiple of 8, and its word mapped and writable.
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

/// A range of the medium as part of a word, whole words, and part of a word: the
/// bytes of each.
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

/// Loads from a byte of the medium, for the page that it lies in.
///
/// # Safety
/// The word that it lies in is mapped.
#[inline]
pub(super) unsafe fn touch(at: *const u8) {
    // SAFETY: passed on from the caller.
    unsafe { way::touch(at) }
}

/// The word at an aligned address.
///
/// # Safety
/// The address is a multiple of 8, and the word mapped for as long as the
/// reference lives; every access to it is an atomic of 8 bytes or as the module
/// says. The pointer was not made of a reference to bytes that do not change.
#[inline(always)]
unsafe fn word_at<'a>(at: *const u8) -> &'a AtomicU64 {
    // SAFETY: aligned and mapped, by contract. Through a mapping for loads only
    // nobody stores; a load of this size needs no right to.
    unsafe { &*at.cast() }
}

#[cfg(test)]
mod tests;
