//! The copies of [`live`](super) in pure Rust.

use std::sync::atomic::Ordering::Relaxed;

use super::{WORD, merge, parts, word_at};

/// Loads some bytes of one word.
///
/// # Safety
/// The word that contains them is mapped; `dst` has room for them.
unsafe fn load_part(dst: *mut u8, src: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    let within = src.addr() % WORD;
    // SAFETY: the word is mapped, and the bytes lie in it, by contract.
    unsafe {
        let bytes = word_at(src.wrapping_sub(within))
            .load(Relaxed)
            .to_ne_bytes();
        std::ptr::copy_nonoverlapping(bytes.as_ptr().add(within), dst, len);
    }
}

/// Stores some bytes of one word and keeps the others.
///
/// # Safety
/// The word that contains them is mapped and writable.
unsafe fn store_part(dst: *mut u8, new: &[u8]) {
    if new.is_empty() {
        return;
    }
    let (within, mut bytes) = (dst.addr() % WORD, [0; WORD]);
    bytes[within..within + new.len()].copy_from_slice(new);
    // SAFETY: the word is mapped, by contract.
    unsafe { merge(dst.wrapping_sub(within), bytes, within, new.len()) }
}

/// # Safety
/// As for [`live::load`](super::load).
pub(super) unsafe fn load(dst: *mut u8, src: *const u8, len: usize) {
    let (head, body, tail) = parts(src, len);
    // SAFETY: each word contains a byte of the range, so it is mapped; the parts together
    // are the range, and as many bytes of `dst`.
    unsafe {
        load_part(dst, src, head);
        for i in (head..head + body).step_by(WORD) {
            let word = word_at(src.add(i)).load(Relaxed);
            dst.add(i).cast::<u64>().write_unaligned(word);
        }
        load_part(dst.add(head + body), src.add(head + body), tail);
    }
}

/// # Safety
/// As for [`live::store`](super::store).
pub(super) unsafe fn store(dst: *mut u8, src: *const u8, len: usize) {
    let (head, body, tail) = parts(dst, len);
    let part = |at: usize, n: usize| {
        let mut bytes = [0; WORD];
        // SAFETY: less than a word, within the source.
        unsafe { std::ptr::copy_nonoverlapping(src.add(at), bytes.as_mut_ptr(), n) };
        bytes
    };
    // SAFETY: as in `load`, with source and destination exchanged.
    unsafe {
        store_part(dst, &part(0, head)[..head]);
        store_words(dst.add(head), src.add(head), body);
        store_part(dst.add(head + body), &part(head + body, tail)[..tail]);
    }
}

/// Stores whole words.
///
/// # Safety
/// As for [`live::store`](super::store); `dst` and `len` are multiples of 8.
pub(super) unsafe fn store_words(dst: *mut u8, src: *const u8, len: usize) {
    for i in (0..len).step_by(WORD) {
        // SAFETY: both ranges are valid, by contract.
        unsafe {
            let word = src.add(i).cast::<u64>().read_unaligned();
            word_at(dst.add(i)).store(word, Relaxed);
        }
    }
}

/// # Safety
/// As for [`live::fill`](super::fill).
pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    let (head, body, tail) = parts(dst, len);
    // SAFETY: as in `store`.
    unsafe {
        store_part(dst, &[byte; WORD][..head]);
        for i in (head..head + body).step_by(WORD) {
            word_at(dst.add(i)).store(u64::from_ne_bytes([byte; WORD]), Relaxed);
        }
        store_part(dst.add(head + body), &[byte; WORD][..tail]);
    }
}

/// # Safety
/// As for [`live::touch`](super::touch).
pub(super) unsafe fn touch(at: *const u8) {
    // SAFETY: passed on from the caller.
    let word = unsafe { word_at(at.wrapping_sub(at.addr() % WORD)) };
    std::hint::black_box(word.load(Relaxed));
}
