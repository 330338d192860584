//! read(2), write(2), pread(2), pwrite(2) and their other names; fsync(2) and its relatives.

use std::ffi::{c_int, c_uint, c_void};

use libc::{off64_t, size_t, ssize_t};

use super::serve;
use crate::{durable, process, real};

macro_rules! read_at {
    ($($name:ident)*) => {
        $(
            /// pread(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                fd: c_int,
                buf: *mut c_void,
                n: size_t,
                at: off64_t,
            ) -> ssize_t {
                match serve::read_at(fd, buf, n, at) {
                    Some(done) => done,
                    // SAFETY: the arguments are those of the program.
                    None => unsafe { real::pread64(fd, buf, n, at) },
                }
            }
        )*
    };
}

read_at! { pread pread64 __pread64 }

macro_rules! read_at_checked {
    ($($name:ident)*) => {
        $(
            /// pread(2), of programs built with _FORTIFY_SOURCE.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                fd: c_int,
                buf: *mut c_void,
                n: size_t,
                at: off64_t,
                room: size_t,
            ) -> ssize_t {
                match n > room {
                    // It ends the program.
                    // SAFETY: the arguments are those of the program.
                    true => unsafe { real::$name(fd, buf, n, at, room) },
                    // SAFETY: the arguments are those of the program.
                    false => unsafe { pread64(fd, buf, n, at) },
                }
            }
        )*
    };
}

read_at_checked! { __pread_chk __pread64_chk }

macro_rules! write_at {
    ($($name:ident)*) => {
        $(
            /// pwrite(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                fd: c_int,
                buf: *const c_void,
                n: size_t,
                at: off64_t,
            ) -> ssize_t {
                match serve::write_at(fd, buf, n, at) {
                    Some(done) => done,
                    // SAFETY: the arguments are those of the program.
                    None => unsafe { real::pwrite64(fd, buf, n, at) },
                }
            }
        )*
    };
}

write_at! { pwrite pwrite64 __pwrite64 }

macro_rules! read {
    ($($name:ident)*) => {
        $(
            /// read(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
                match serve::read(fd, buf, n) {
                    Some(done) => done,
                    // SAFETY: the arguments are those of the program.
                    None => unsafe { real::read(fd, buf, n) },
                }
            }
        )*
    };
}

read! { read __read }

/// read(2), of programs built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    room: size_t,
) -> ssize_t {
    match n > room {
        // It ends the program.
        // SAFETY: the arguments are those of the program.
        true => unsafe { real::__read_chk(fd, buf, n, room) },
        // SAFETY: the arguments are those of the program.
        false => unsafe { read(fd, buf, n) },
    }
}

macro_rules! write {
    ($($name:ident)*) => {
        $(
            /// write(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
                match serve::write(fd, buf, n) {
                    Some(done) => done,
                    // SAFETY: the arguments are those of the program.
                    None => unsafe { real::write(fd, buf, n) },
                }
            }
        )*
    };
}

write! { write __write }

/// Ends a call of fsync(2) or one like it, if the stores through mappings were made durable first.
unsafe fn synced(is_flushed: bool, call: impl FnOnce() -> c_int) -> c_int {
    if !is_flushed {
        real::set_errno(libc::EIO);
        return -1;
    }
    call()
}

/// fsync(2). It also makes the times durable, which the server has.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fsync(fd: c_int) -> c_int {
    // SAFETY: the arguments are those of the program.
    unsafe { synced(durable::flush(fd, real::fsync), || real::fsync(fd)) }
}

/// fdatasync(2).
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fdatasync(fd: c_int) -> c_int {
    if durable::is_durable(fd) {
        return 0;
    }
    // SAFETY: the arguments are those of the program.
    unsafe { synced(durable::flush(fd, real::fdatasync), || real::fdatasync(fd)) }
}

/// sync_file_range(2). It syncs the whole file.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sync_file_range(
    fd: c_int,
    at: off64_t,
    len: off64_t,
    flags: c_uint,
) -> c_int {
    // A filter that allows it may forbid the others.
    let is_flushed = process::is_sealed() || durable::flush(fd, real::fdatasync);
    // SAFETY: the arguments are those of the program.
    unsafe { synced(is_flushed, || real::sync_file_range(fd, at, len, flags)) }
}

/// syncfs(2).
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn syncfs(fd: c_int) -> c_int {
    let is_flushed = process::is_sealed() || durable::flush_all(Some(fd));
    // SAFETY: the arguments are those of the program.
    unsafe { synced(is_flushed, || real::syncfs(fd)) }
}

/// sync(2). It tells of no errors.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sync() {
    if !process::is_sealed() {
        durable::flush_all(None);
    }
    // SAFETY: takes no arguments.
    unsafe { real::sync() };
}
