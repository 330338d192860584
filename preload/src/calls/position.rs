//! Calls that use the position of a descriptor, and that the kernel or the C library carries out:
//! lseek(2), splice(2) and their relatives. A descriptor that is being replaced is waited for, and
//! is not replaced from then on: its position would be lost.

use std::ffi::{c_char, c_int, c_uint};

use libc::{FILE, off64_t, size_t, ssize_t};

use crate::process::is_inside;
use crate::{real, table};

/// Called before a use of the position of a descriptor.
fn settle(fd: c_int) {
    if !is_inside() {
        table::settle(fd);
    }
}

macro_rules! seek {
    ($($name:ident)*) => {
        $(
            /// lseek(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(fd: c_int, at: off64_t, whence: c_int) -> off64_t {
                if !is_inside() {
                    // The beginning is where the position is after a replacement, too.
                    match at == 0 && matches!(whence, libc::SEEK_SET | libc::SEEK_CUR) {
                        true => table::await_change(fd),
                        false => table::settle(fd),
                    }
                }
                // SAFETY: the arguments are those of the program.
                unsafe { real::lseek64(fd, at, whence) }
            }
        )*
    };
}

seek! { lseek lseek64 __lseek }

macro_rules! send {
    ($($name:ident)*) => {
        $(
            /// sendfile(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                to: c_int,
                from: c_int,
                at: *mut off64_t,
                len: size_t,
            ) -> ssize_t {
                settle(to);
                settle(from);
                // SAFETY: the arguments are those of the program.
                unsafe { real::sendfile64(to, from, at, len) }
            }
        )*
    };
}

send! { sendfile sendfile64 }

/// splice(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    at: *mut off64_t,
    to: c_int,
    to_at: *mut off64_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    settle(from);
    settle(to);
    // SAFETY: the arguments are those of the program.
    unsafe { real::splice(from, at, to, to_at, len, flags) }
}

/// copy_file_range(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn copy_file_range(
    from: c_int,
    at: *mut off64_t,
    to: c_int,
    to_at: *mut off64_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    settle(from);
    settle(to);
    // SAFETY: the arguments are those of the program.
    unsafe { real::copy_file_range(from, at, to, to_at, len, flags) }
}

/// fdopen(3): the C library reads and writes at the position by itself.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    settle(fd);
    // SAFETY: the arguments are those of the program.
    unsafe { real::fdopen(fd, mode) }
}
