//! The copies of [`live`](super) on x86_64. Long loads use the C library, which is tuned to
//! the processor. The call is in inline assembly, so the compiler knows only what it may
//! change.

use std::arch::asm;

use super::{WORD, merge, parts};

/// # Safety
/// As for [`live::copy`](super::copy); either side may be ordinary memory.
#[inline]
unsafe fn memcpy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the ranges are valid and do not overlap, by contract. The stack is aligned
    // for a call, and everything that a call may change is declared.
    unsafe {
        asm!(
            "call qword ptr [rip + {memcpy}@GOTPCREL]",
            memcpy = sym libc::memcpy,
            inlateout("rdi") dst => _,
            inlateout("rsi") src => _,
            inlateout("rdx") len => _,
            clobber_abi("C"),
        );
    }
}

/// # Safety
/// As for [`live::load`](super::load).
#[inline]
pub(super) unsafe fn load(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { memcpy(dst, src, len) }
}

/// # Safety
/// As for [`live::copy`](super::copy).
#[inline]
pub(super) unsafe fn store(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: each arm copies `len` bytes; one store of an aligned 1, 2, 4 or 8 bytes is
    // not torn.
    unsafe {
        match len {
            8 if dst.addr().is_multiple_of(8) => asm!(
                "mov {t}, qword ptr [{src}]",
                "mov qword ptr [{dst}], {t}",
                t = out(reg) _, src = in(reg) src, dst = in(reg) dst,
                options(nostack, preserves_flags)
            ),
            4 if dst.addr().is_multiple_of(4) => asm!(
                "mov {t:e}, dword ptr [{src}]",
                "mov dword ptr [{dst}], {t:e}",
                t = out(reg) _, src = in(reg) src, dst = in(reg) dst,
                options(nostack, preserves_flags)
            ),
            2 if dst.addr().is_multiple_of(2) => asm!(
                "movzx {t:e}, word ptr [{src}]",
                "mov word ptr [{dst}], {t:x}",
                t = out(reg) _, src = in(reg) src, dst = in(reg) dst,
                options(nostack, preserves_flags)
            ),
            1 => asm!(
                "mov {t}, byte ptr [{src}]",
                "mov byte ptr [{dst}], {t}",
                t = out(reg_byte) _, src = in(reg) src, dst = in(reg) dst,
                options(nostack, preserves_flags)
            ),
            _ => store_any(dst, src, len),
        }
    }
}

/// # Safety
/// As for [`live::copy`](super::copy).
unsafe fn store_any(dst: *mut u8, src: *const u8, len: usize) {
    let (head, body, tail) = parts(dst, len);
    // SAFETY: the parts together are the range; each word contains a byte of the range, so
    // it is mapped.
    unsafe {
        store_part(dst, src, head);
        store_words(dst.add(head), src.add(head), body);
        store_part(dst.add(head + body), src.add(head + body), tail);
    }
}

/// Stores some bytes of one word in one atomic step.
///
/// # Safety
/// As for [`live::copy`](super::copy), for less than a word, within one word.
unsafe fn store_part(dst: *mut u8, src: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    let (within, mut bytes) = (dst.addr() % WORD, [0; WORD]);
    // SAFETY: the bytes fit into the word, by contract.
    unsafe {
        memcpy(bytes.as_mut_ptr().add(within), src, len);
        merge(dst.wrapping_sub(within), bytes, within, len);
    }
}

/// Stores whole words: 64 bytes at a time, and then 32, 16 and 8.
///
/// # Safety
/// As for [`live::copy`](super::copy); `dst` and `len` are multiples of 8.
#[inline]
pub(super) unsafe fn store_words(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: both ranges are valid, by contract. A store of 16 bytes at a multiple of 8
    // covers two words and tears neither.
    unsafe {
        asm!(
            "cmp {len}, 64",
            "jb 3f",
            "2:",
            "movups {a}, xmmword ptr [{src}]",
            "movups {b}, xmmword ptr [{src} + 16]",
            "movups {c}, xmmword ptr [{src} + 32]",
            "movups {d}, xmmword ptr [{src} + 48]",
            "movups xmmword ptr [{dst}], {a}",
            "movups xmmword ptr [{dst} + 16], {b}",
            "movups xmmword ptr [{dst} + 32], {c}",
            "movups xmmword ptr [{dst} + 48], {d}",
            "add {src}, 64",
            "add {dst}, 64",
            "sub {len}, 64",
            "cmp {len}, 64",
            "jae 2b",
            "3:",
            "test {len:l}, 32",
            "jz 4f",
            "movups {a}, xmmword ptr [{src}]",
            "movups {b}, xmmword ptr [{src} + 16]",
            "movups xmmword ptr [{dst}], {a}",
            "movups xmmword ptr [{dst} + 16], {b}",
            "add {src}, 32",
            "add {dst}, 32",
            "4:",
            "test {len:l}, 16",
            "jz 5f",
            "movups {a}, xmmword ptr [{src}]",
            "movups xmmword ptr [{dst}], {a}",
            "add {src}, 16",
            "add {dst}, 16",
            "5:",
            "test {len:l}, 8",
            "jz 6f",
            "mov {t}, qword ptr [{src}]",
            "mov qword ptr [{dst}], {t}",
            "6:",
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            t = out(reg) _,
            src = inout(reg) src => _, dst = inout(reg) dst => _, len = inout(reg) len => _,
            options(nostack)
        );
    }
}

/// # Safety
/// As for [`live::fill`](super::fill).
#[inline]
pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    let (head, body, tail) = parts(dst, len);
    let word = [byte; WORD];
    // SAFETY: as in `store_any`; `rep stosq` stores whole words.
    unsafe {
        store_part(dst, word.as_ptr(), head);
        asm!(
            "rep stosq",
            inout("rcx") body / WORD => _,
            inout("rdi") dst.add(head) => _,
            in("rax") u64::from_ne_bytes(word),
            options(nostack, preserves_flags)
        );
        store_part(dst.add(head + body), word.as_ptr(), tail);
    }
}

/// # Safety
/// As for [`live::touch`](super::touch).
#[inline]
pub(super) unsafe fn touch(at: *const u8) {
    // SAFETY: the byte is mapped, by contract.
    unsafe {
        asm!("mov {}, byte ptr [{}]", out(reg_byte) _, in(reg) at, options(nostack, preserves_flags, readonly));
    }
}
