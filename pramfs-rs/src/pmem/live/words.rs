//! The copies of [`live`](super) in terms of the language.

use std::sync::atomic::Ordering::Relaxed;

use super::{WORD, word_at};

/// The pieces of `len` bytes at `address` that lie in one word each: how far
/// behind the first byte, how far into the word, and how many bytes.
fn pieces(address: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let within = (address + done) % WORD;
        let n = (WORD - within).min(len - done);
        let piece = (done, within, n);
        done += n;
        (n != 0).then_some(piece)
    })
}

/// Changes some bytes of a word and leaves the others.
///
/// # Safety
/// The word `within` bytes before `at` is mapped, writable and aligned, and
/// `within + new.len()` no more than its size.
unsafe fn put(at: *mut u8, within: usize, new: &[u8]) {
    // SAFETY: passed on from the caller.
    let word = unsafe { word_at(at.wrapping_sub(within)) };
    if let Ok(whole) = new.try_into() {
        return word.store(u64::from_ne_bytes(whole), Relaxed);
    }
    let mut old = word.load(Relaxed);
    loop {
        let mut bytes = old.to_ne_bytes();
        bytes[within..within + new.len()].copy_from_slice(new);
        match word.compare_exchange_weak(old, u64::from_ne_bytes(bytes), Relaxed, Relaxed) {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}

/// # Safety
/// As for [`live::load`](super::load).
pub(super) unsafe fn load(dst: *mut u8, src: *const u8, len: usize) {
    for (done, within, n) in pieces(src.addr(), len) {
        // SAFETY: the word has a byte of the range, so it is mapped; the piece is
        // `n` of its bytes, and as many of `dst`.
        unsafe {
            let word = word_at(src.wrapping_add(done).wrapping_sub(within));
            let bytes = word.load(Relaxed).to_ne_bytes();
            std::ptr::copy_nonoverlapping(bytes.as_ptr().add(within), dst.add(done), n);
        }
    }
}

/// # Safety
/// As for [`live::store`](super::store).
pub(super) unsafe fn store(dst: *mut u8, src: *const u8, len: usize) {
    for (done, within, n) in pieces(dst.addr(), len) {
        let mut new = [0; WORD];
        // SAFETY: `n` is at most a word; the piece lies in both ranges.
        unsafe {
            std::ptr::copy_nonoverlapping(src.add(done), new.as_mut_ptr(), n);
            put(dst.wrapping_add(done), within, &new[..n]);
        }
    }
}

/// # Safety
/// As for [`live::copy`](super::copy).
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    for (done, within, n) in pieces(dst.addr(), len) {
        let mut new = [0; WORD];
        // SAFETY: as in `store`; the source is the medium here, too.
        unsafe {
            load(new.as_mut_ptr(), src.wrapping_add(done), n);
            put(dst.wrapping_add(done), within, &new[..n]);
        }
    }
}

/// # Safety
/// As for [`live::fill`](super::fill).
pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    for (done, within, n) in pieces(dst.addr(), len) {
        // SAFETY: as in `store`.
        unsafe { put(dst.wrapping_add(done), within, &[byte; WORD][..n]) };
    }
}

/// # Safety
/// As for [`live::touch`](super::touch).
pub(super) unsafe fn touch(at: *const u8) {
    // SAFETY: passed on from the caller.
    let word = unsafe { word_at(at.wrapping_sub(at.addr() % WORD)) };
    std::hint::black_box(word.load(Relaxed));
}
