//! readv(2), preadv(2) and their relatives. Served if all parts are.

use std::ffi::c_int;

use libc::{iovec, off64_t, ssize_t};

use super::serve;
use crate::{real, table};

/// Returns the parts of a vector that has at most one part that is not empty, which is what
/// most programs pass. The kernel takes the others, all parts at once.
unsafe fn only(iov: *const iovec, count: c_int) -> Option<iovec> {
    if iov.is_null() || !(1..=8).contains(&count) {
        return None;
    }
    // SAFETY: the program gives `count` parts for this call.
    let parts = unsafe { std::slice::from_raw_parts(iov, count as usize) };
    let mut full = parts.iter().filter(|part| part.iov_len > 0);
    let only = full.next()?;
    full.next().is_none().then_some(*only)
}

unsafe fn read_at(fd: c_int, iov: *const iovec, count: c_int, at: off64_t) -> Option<ssize_t> {
    if !serve::is_ours(fd) {
        return None;
    }
    // SAFETY: the arguments are those of the program.
    match unsafe { only(iov, count) } {
        Some(part) => serve::read_at(fd, part.iov_base, part.iov_len, at),
        // SAFETY: the arguments are those of the program.
        None => serve::read_parts_at(fd, unsafe { parts(iov, count) }?, at),
    }
}

unsafe fn write_at(fd: c_int, iov: *const iovec, count: c_int, at: off64_t) -> Option<ssize_t> {
    if !serve::is_ours(fd) {
        return None;
    }
    // SAFETY: the arguments are those of the program.
    match unsafe { only(iov, count) } {
        Some(part) => serve::write_at(fd, part.iov_base, part.iov_len, at),
        // SAFETY: the arguments are those of the program.
        None => serve::write_parts_at(fd, unsafe { parts(iov, count) }?, at),
    }
}

unsafe fn parts<'a>(iov: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    match iov.is_null() || !(1..=1024).contains(&count) {
        true => None,
        // SAFETY: the program gives `count` parts for this call.
        false => Some(unsafe { std::slice::from_raw_parts(iov, count as usize) }),
    }
}

macro_rules! at_offset {
    ($($name:ident: $serve:ident $real:ident),*) => {
        $(
            /// preadv(2), pwritev(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                fd: c_int,
                iov: *const iovec,
                count: c_int,
                at: off64_t,
            ) -> ssize_t {
                // SAFETY: the arguments are those of the program.
                match unsafe { $serve(fd, iov, count, at) } {
                    Some(done) => done,
                    // SAFETY: the arguments are those of the program.
                    None => unsafe { real::$real(fd, iov, count, at) },
                }
            }
        )*
    };
}

at_offset! {
    preadv: read_at preadv64,
    preadv64: read_at preadv64,
    pwritev: write_at pwritev64,
    pwritev64: write_at pwritev64
}

macro_rules! with_flags {
    ($($name:ident: $serve:ident $real:ident),*) => {
        $(
            /// preadv2(2), pwritev2(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                fd: c_int,
                iov: *const iovec,
                count: c_int,
                at: off64_t,
                flags: c_int,
            ) -> ssize_t {
                // RWF_HIPRI, RWF_DSYNC, RWF_SYNC: memory serves all of them. An offset of -1
                // means the position.
                let served = match flags & !7 == 0 && at >= 0 {
                    // SAFETY: the arguments are those of the program.
                    true => unsafe { $serve(fd, iov, count, at) },
                    false => None,
                };
                match served {
                    Some(done) => done,
                    // SAFETY: the arguments are those of the program.
                    None => unsafe { real::$real(fd, iov, count, at, flags) },
                }
            }
        )*
    };
}

with_flags! {
    preadv2: read_at preadv64v2,
    preadv64v2: read_at preadv64v2,
    pwritev2: write_at pwritev64v2,
    pwritev64v2: write_at pwritev64v2
}

/// readv(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    table::settle(fd);
    if serve::is_ours(fd)
        // SAFETY: the arguments are those of the program.
        && let Some(part) = unsafe { only(iov, count) }
        && let Some(done) = serve::read(fd, part.iov_base, part.iov_len)
    {
        return done;
    }
    // SAFETY: the arguments are those of the program.
    unsafe { real::readv(fd, iov, count) }
}

/// writev(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    table::settle(fd);
    if serve::is_ours(fd)
        // SAFETY: the arguments are those of the program.
        && let Some(part) = unsafe { only(iov, count) }
        && let Some(done) = serve::write(fd, part.iov_base, part.iov_len)
    {
        return done;
    }
    // SAFETY: the arguments are those of the program.
    unsafe { real::writev(fd, iov, count) }
}
