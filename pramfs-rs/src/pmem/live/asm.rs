//! The copies of [`live`](super) on x86_64. Long ones are the C library's, which
//! knows the processor; called from here they are instructions like the others,
//! of which the compiler knows only what they may change.

use std::arch::asm;

/// # Safety
/// As for [`live::copy`](super::copy); either side may be ordinary memory.
#[inline]
unsafe fn memcpy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the ranges are valid and do not overlap, by contract. The stack is
    // aligned for a call, and all that a call may change is declared.
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
    // SAFETY: each arm copies `len` bytes; one store of an aligned 1, 2, 4 or 8
    // bytes is not torn.
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
            // A line, which is what most records and homes are made of.
            64 => asm!(
                "movups {a}, xmmword ptr [{src}]",
                "movups {b}, xmmword ptr [{src} + 16]",
                "movups {c}, xmmword ptr [{src} + 32]",
                "movups {d}, xmmword ptr [{src} + 48]",
                "movups xmmword ptr [{dst}], {a}",
                "movups xmmword ptr [{dst} + 16], {b}",
                "movups xmmword ptr [{dst} + 32], {c}",
                "movups xmmword ptr [{dst} + 48], {d}",
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                src = in(reg) src, dst = in(reg) dst,
                options(nostack, preserves_flags)
            ),
            _ => memcpy(dst, src, len),
        }
    }
}

/// # Safety
/// As for [`live::fill`](super::fill).
#[inline]
pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    // SAFETY: the range is writable, by contract; the call as in `memcpy`.
    unsafe {
        asm!(
            "call qword ptr [rip + {memset}@GOTPCREL]",
            memset = sym libc::memset,
            inlateout("rdi") dst => _,
            inlateout("rsi") u64::from(byte) => _,
            inlateout("rdx") len => _,
            clobber_abi("C"),
        );
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
