//! open(2) and its relatives.

use std::ffi::{c_char, c_int};

use libc::mode_t;

use crate::{lease, real};

unsafe fn opened_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the arguments are those of the program.
    let fd = unsafe { real::openat64(dir, path, flags, mode) };
    lease::opened(fd, flags);
    fd
}

unsafe fn opened(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the arguments are those of the program.
    let fd = unsafe { real::open64(path, flags, mode) };
    lease::opened(fd, flags);
    fd
}

// A program passes `mode` only with O_CREAT; the kernel ignores it otherwise. Files may be
// large in all cases: this library exists on 64-bit machines only.

macro_rules! open {
    ($($name:ident)*) => {
        $(
            /// open(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
                // SAFETY: the arguments are those of the program.
                unsafe { opened(path, flags, mode) }
            }
        )*
    };
}

open! { open open64 __open __open64 }

macro_rules! open_at {
    ($($name:ident)*) => {
        $(
            /// openat(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                dir: c_int,
                path: *const c_char,
                flags: c_int,
                mode: mode_t,
            ) -> c_int {
                // SAFETY: the arguments are those of the program.
                unsafe { opened_at(dir, path, flags, mode) }
            }
        )*
    };
}

open_at! { openat openat64 }

macro_rules! open_checked {
    ($($name:ident)*) => {
        $(
            /// open(2), of programs built with _FORTIFY_SOURCE.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int) -> c_int {
                // SAFETY: the arguments are those of the program.
                unsafe { opened(path, flags, 0) }
            }
        )*
    };
}

open_checked! { __open_2 __open64_2 }

macro_rules! open_at_checked {
    ($($name:ident)*) => {
        $(
            /// openat(2), of programs built with _FORTIFY_SOURCE.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
                // SAFETY: the arguments are those of the program.
                unsafe { opened_at(dir, path, flags, 0) }
            }
        )*
    };
}

open_at_checked! { __openat_2 __openat64_2 }

macro_rules! create {
    ($($name:ident)*) => {
        $(
            /// creat(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(path: *const c_char, mode: mode_t) -> c_int {
                // SAFETY: the arguments are those of the program.
                unsafe { opened(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
            }
        )*
    };
}

create! { creat creat64 }
