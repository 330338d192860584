//! read(2), write(2), pread(2), pwrite(2) and their other names; fsync(2).

use std::ffi::{c_int, c_void};

use libc::{off64_t, size_t, ssize_t};

use super::serve;
use crate::table::Entry;
use crate::{lease, process, real, slots, table};

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

/// Whether a call of fdatasync(2) has nothing to do.
fn is_durable(fd: c_int) -> bool {
    let entry = match serve::is_ours(fd) {
        true => table::entry(fd),
        false => return false,
    };
    matches!(entry, Entry::Leased { write: true, .. })
        && table::hold(entry).is_some_and(|held| lease::is_durable(&held))
}

/// Makes the stores through mappings durable. Writes are durable when they return.
fn flush(fd: c_int, sync: unsafe fn(c_int) -> c_int) -> bool {
    let held = match serve::is_ours(fd) {
        true => table::hold(table::entry(fd)),
        false => None,
    };
    match held {
        Some(held) => lease::persist(&held, sync),
        // Under a filter, copies are not noted, and a child of vfork may have closed its own.
        None if process::is_sealed() => {
            let failed = slots::stored_to().filter(|held| !lease::persist(held, sync));
            failed.count() == 0
        }
        None => true,
    }
}

macro_rules! sync {
    ($($name:ident $served:expr;)*) => {
        $(
            /// fsync(2), fdatasync(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(fd: c_int) -> c_int {
                if $served(fd) {
                    return 0;
                }
                if !flush(fd, real::$name) {
                    real::set_errno(libc::EIO);
                    return -1;
                }
                // SAFETY: the arguments are those of the program.
                unsafe { real::$name(fd) }
            }
        )*
    };
}

// fsync also makes the times durable, which the server has.
sync! {
    fsync |_: c_int| false;
    fdatasync is_durable;
}
