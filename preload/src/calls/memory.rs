//! mmap(2) of leased files, and msync(2).
//!
//! A shared mapping of a file with a lease to write is a mapping of the region, made of
//! pieces, at addresses that the kernel chooses. For the kernel it is a mapping like any
//! other: munmap, mprotect, madvise and fork need nothing from this library. Each mapping
//! keeps the lease on the medium, so its blocks stay with the file.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{off64_t, size_t};
use pramfs_client::{Access, Places};

use super::serve;
use crate::process::Inside;
use crate::stats::note;
use crate::table::{self, Entry, Held};
use crate::{lease, real};

const PAGE: u64 = 4096;

/// Flags of a mapping that can be served.
const SERVED: c_int = libc::MAP_SHARED | libc::MAP_POPULATE | libc::MAP_NORESERVE;

/// Makes the mapping. `None` if it cannot be served.
fn view(held: &Held, len: u64, protection: c_int, flags: c_int, at: u64) -> Option<*mut c_void> {
    let end = at.checked_add(len)?.checked_next_multiple_of(PAGE)?;
    let size = held.file().size_known()?;
    // Pages past the end of the file would have to appear when it grows.
    if end > size.checked_next_multiple_of(PAGE)? {
        return None;
    }
    let _inside = Inside::enter()?;
    // Holes are filled, so that the view goes on showing the file.
    let places = held.file().places(at..end, Access::Write).ok()?;
    let whole = (end - at) as usize;
    let mapped: u64 = places.pieces.iter().map(|(_, len)| len).sum();
    if mapped.checked_next_multiple_of(PAGE)? != whole as u64 {
        return None;
    }
    // SAFETY: reserves addresses that the kernel chooses.
    let base = unsafe {
        real::mmap64(
            std::ptr::null_mut(),
            whole,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return None;
    }
    if map_pieces(held, base, &places, protection, flags).is_none() {
        // SAFETY: reserved above, and the program does not know of it.
        unsafe { libc::munmap(base, whole) };
        return None;
    }
    if protection & libc::PROT_WRITE != 0 {
        held.note_view(end);
    }
    Some(base)
}

/// Maps the pieces over a reserved range, which has room for all.
fn map_pieces(
    held: &Held,
    base: *mut c_void,
    places: &Places,
    protection: c_int,
    flags: c_int,
) -> Option<()> {
    let shared = match places.sync {
        true => libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
        false => libc::MAP_SHARED,
    };
    let how = shared | libc::MAP_FIXED | flags & libc::MAP_POPULATE;
    held.file().with_region(|region| {
        let mut done = 0;
        for (place, len) in &places.pieces {
            let to = base.wrapping_byte_add(done as usize);
            // SAFETY: `to` and the pages of this piece lie in the reserved range: the caller
            // has compared the sum of the lengths.
            let at = unsafe {
                real::mmap64(
                    to,
                    *len as usize,
                    protection,
                    how,
                    region.as_raw_fd(),
                    *place as off64_t,
                )
            };
            if at == libc::MAP_FAILED {
                return None;
            }
            done += len;
        }
        Some(())
    })?
}

/// Serves a shared mapping. `None`: the kernel maps the descriptor.
fn mapped(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
) -> Option<*mut c_void> {
    if !serve::is_ours(fd) {
        return None;
    }
    let entry = table::entry(fd);
    let Entry::Leased { write: true, .. } = entry else {
        note(false);
        return None;
    };
    let is_shared = flags & libc::MAP_TYPE == libc::MAP_SHARED;
    if !is_shared {
        note(false);
        return None;
    }
    let is_simple = flags & !SERVED == 0
        && at.is_null()
        && len > 0
        && len <= isize::MAX as usize
        && protection & !(libc::PROT_READ | libc::PROT_WRITE) == 0;
    let place = u64::try_from(offset)
        .ok()
        .filter(|at| at.is_multiple_of(PAGE));
    let errno = real::errno();
    let made = place.filter(|_| is_simple).and_then(|place| {
        let held = table::hold(entry)?;
        let make = AssertUnwindSafe(|| view(&held, len as u64, protection, flags, place));
        catch_unwind(make).unwrap_or(None)
    });
    note(made.is_some());
    if made.is_none() {
        // The descriptor cannot be mapped by the kernel while the lease lives.
        lease::give_up(fd);
    }
    real::set_errno(errno);
    made
}

macro_rules! map {
    ($($name:ident)*) => {
        $(
            /// mmap(2).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(
                at: *mut c_void,
                len: size_t,
                protection: c_int,
                flags: c_int,
                fd: c_int,
                offset: off64_t,
            ) -> *mut c_void {
                if fd >= 0
                    && let Some(at) = mapped(at, len, protection, flags, fd, offset)
                {
                    return at;
                }
                unsafe { real::mmap64(at, len, protection, flags, fd, offset) }
            }
        )*
    };
}

map! { mmap mmap64 }

/// msync(2). The kernel makes the pages durable; the files learn of the change.
#[unsafe(no_mangle)]
unsafe extern "C" fn msync(at: *mut c_void, len: size_t, flags: c_int) -> c_int {
    let done = unsafe { real::msync(at, len, flags) };
    if done == 0 {
        lease::note_stores();
    }
    done
}
