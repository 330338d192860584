//! mmap(2) of leased files, and what changes memory: munmap(2), mremap(2), mprotect(2), msync(2).
//!
//! A shared mapping of a file with a lease to write is a mapping of the region, made of
//! pieces, at addresses that the kernel chooses. For the kernel it is a mapping like any
//! other, which must not grow (`regions`). Each mapping keeps the lease on the medium, so its
//! blocks stay with the file. Calls that change memory are followed (`views`): an fsync must find
//! what the program has stored to.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use libc::{off64_t, size_t};
use pramfs_client::{Access, Places};

use crate::process::{Inside, is_inside, pause};
use crate::slots::Held;
use crate::stats::note;
use crate::table::{self, Entry};
use crate::views::Change;
use crate::{devices, durable, growing, lease, real, regions, views};

const PAGE: u64 = 4096;

/// Shorter mappings for reading are left to the page cache.
const LONG: usize = 1 << 20;

/// Waits between attempts to map a file through the page cache, half a second in all.
const WAITS: [Duration; 10] = {
    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }
    [
        ms(0),
        ms(1),
        ms(2),
        ms(4),
        ms(8),
        ms(16),
        ms(32),
        ms(64),
        ms(128),
        ms(256),
    ]
};

/// Flags of a mapping that can be served. Without a flag for it, an address is a wish.
const SERVED: c_int =
    libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE | libc::MAP_POPULATE | libc::MAP_NORESERVE;

/// A mapping, or the number of an error that it has for the program: it has no room.
type Made = Result<*mut c_void, c_int>;

/// Makes the mapping. `None` if it cannot be served.
fn view(held: &Held, wish: &Wish) -> Option<Made> {
    let Wish {
        at: place,
        protection,
        flags,
        ..
    } = *wish;
    let (len, at) = (wish.len as u64, wish.offset as u64);
    let end = at.checked_add(len)?.checked_next_multiple_of(PAGE)?;
    let size = held.file().size_known()?;
    // A reader cannot have the rest of the last page zeroed: on the medium it may have older
    // bytes.
    if end > size && !held.is_writable() && !size.is_multiple_of(PAGE) {
        return None;
    }
    let inside = Inside::enter()?;
    // Holes are filled, so that the view goes on showing the file. A reader cannot: then
    // holes are refused.
    let access = match held.is_writable() {
        true => Access::Write,
        false => Access::Read,
    };
    let places = match end > size {
        // Pages past the end must be there when the file grows.
        true => held.file().places_ahead(at..end),
        false => held.file().places(at..end, access),
    };
    let places = places.ok()?;
    let whole = (end - at) as usize;
    let mapped: u64 = places.pieces.iter().map(|(_, len)| len).sum();
    if mapped.checked_next_multiple_of(PAGE)? != whole as u64 {
        return None;
    }
    // Only now: what cannot be served must not keep the page cache from others.
    if !held.may_be_mapped(&inside) {
        return None;
    }
    // SAFETY: reserves addresses that the kernel chooses. The wish is no more than that.
    let base = unsafe {
        real::mmap64(
            place,
            whole,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Some(Err(real::errno()));
    }
    let mapped = map_pieces(held, base, &places, protection, flags);
    if mapped != Some(Ok(())) {
        // SAFETY: reserved above, and the program does not know of it.
        unsafe { real::munmap(base, whole) };
        return match mapped {
            Some(Err(libc::ENOMEM)) => Some(Err(libc::ENOMEM)),
            _ => None,
        };
    }
    let stores = protection & libc::PROT_WRITE != 0;
    if !views::note(base as u64, whole as u64, held.id(), stores) {
        // SAFETY: as above.
        unsafe { real::munmap(base, whole) };
        return Some(Err(libc::ENOMEM));
    }
    // After the note: see `Held::forget_stores`.
    held.note_view(end, stores);
    Some(Ok(base))
}

/// Maps the pieces over a reserved range, which has room for all.
fn map_pieces(
    held: &Held,
    base: *mut c_void,
    places: &Places,
    protection: c_int,
    flags: c_int,
) -> Option<Result<(), c_int>> {
    let shared = match places.sync {
        true => libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
        false => libc::MAP_SHARED,
    };
    let how = shared | libc::MAP_FIXED | flags & libc::MAP_POPULATE;
    held.file().with_region(|region| {
        // Before the first one.
        let id = devices::id(region.as_raw_fd())?;
        regions::note(id);
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
                return Some(Err(real::errno()));
            }
            if done == 0 {
                regions::learn(id, to as u64);
            }
            done += len;
        }
        Some(Ok(()))
    })?
}

/// What a program asks of mmap(2).
#[derive(Clone, Copy)]
struct Wish {
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
}

impl Wish {
    fn is_shared(&self) -> bool {
        let kind = self.flags & libc::MAP_TYPE;
        kind == libc::MAP_SHARED || kind == libc::MAP_SHARED_VALIDATE
    }

    /// Whether a mapping for reading is worth a lease, which costs as much as some hundred
    /// page faults.
    fn is_long_and_readable(&self) -> bool {
        self.protection == libc::PROT_READ && self.len >= LONG
    }

    /// Whether it can be served with the right lease.
    fn is_simple(&self) -> bool {
        self.flags & !SERVED == 0
            && self.is_shared()
            && self.len > 0
            && self.len <= isize::MAX as usize
            && self.protection & !(libc::PROT_READ | libc::PROT_WRITE) == 0
            && u64::try_from(self.offset).is_ok_and(|place| place.is_multiple_of(PAGE))
    }

    /// Serves it. `None`: only the kernel can.
    fn serve(&self, held: &Held) -> Option<Made> {
        let is_allowed = held.is_writable() || self.protection & libc::PROT_WRITE == 0;
        if !self.is_simple() || !is_allowed {
            return None;
        }
        catch_unwind(AssertUnwindSafe(|| view(held, self))).unwrap_or(None)
    }

    /// Has the kernel map the descriptor.
    unsafe fn pass(&self) -> *mut c_void {
        let Wish {
            at,
            len,
            protection,
            flags,
            fd,
            offset,
        } = *self;
        // SAFETY: the arguments are those of the program.
        let map = || unsafe { real::mmap64(at, len, protection, flags, fd, offset) };
        match flags & libc::MAP_FIXED {
            0 => map(),
            // What was there is gone.
            _ => views::changing((at as u64, len as u64), Change::Gone, map, place_of)
                .unwrap_or(libc::MAP_FAILED),
        }
    }

    /// Makes a shared mapping that the kernel has refused with ENODEV: the file has a lease
    /// to write, here or in another process.
    #[cold]
    fn insist(&self) -> Made {
        let refused = || libc::ENODEV;
        for wait in WAITS {
            let entry = table::entry(self.fd);
            let held = table::hold(entry).or_else(|| lease::adopt(self.fd));
            let held = held.ok_or_else(refused)?;
            if let Some(made) = self.serve(&held) {
                return made;
            }
            drop(held);
            // At an address of the program's, for example. Another process that wants the same
            // gives its lease up as well.
            if !lease::give_up(self.fd) {
                return Err(refused());
            }
            // SAFETY: the arguments are those of the program.
            let made = unsafe { self.pass() };
            if made != libc::MAP_FAILED {
                return Ok(made);
            }
            let error = real::errno();
            if error != libc::ENODEV {
                return Err(error);
            }
            pause(wait);
        }
        Err(refused())
    }
}

/// Maps a descriptor. `None`: nothing of this library is needed.
fn mapped(wish: Wish) -> Option<*mut c_void> {
    let Wish { fd, .. } = wish;
    if !wish.is_shared() || is_inside() {
        return None;
    }
    let errno = real::errno();
    let early = match wish.is_simple() {
        true => growing::take_growing(fd),
        false => None,
    };
    table::settle(fd);
    let entry = table::entry(fd);
    let held = match entry {
        _ if early.is_some() => early,
        Entry::Leased { reads: true, .. } => table::hold(entry),
        Entry::Candidate { .. } if wish.is_long_and_readable() => lease::adopt(fd),
        _ => None,
    };
    let served = held.and_then(|held| wish.serve(&held));
    real::set_errno(errno);
    if let Some(made) = served {
        note(true);
        return Some(given(made, errno));
    }
    if entry != Entry::Unknown {
        note(false);
    }
    // SAFETY: the arguments are those of the program.
    let made = unsafe { wish.pass() };
    if made != libc::MAP_FAILED || real::errno() != libc::ENODEV {
        return Some(made);
    }
    Some(given(wish.insist(), errno))
}

/// Gives the program a mapping, with the errno that it had, or an error.
fn given(made: Made, errno: c_int) -> *mut c_void {
    real::set_errno(made.err().unwrap_or(errno));
    made.unwrap_or(libc::MAP_FAILED)
}

macro_rules! map {
    ($($name:ident)*) => {
        $(
            /// mmap(2).
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                at: *mut c_void,
                len: size_t,
                protection: c_int,
                flags: c_int,
                fd: c_int,
                offset: off64_t,
            ) -> *mut c_void {
                let wish = Wish {
                    at,
                    len,
                    protection,
                    flags,
                    fd,
                    offset,
                };
                if fd >= 0
                    && flags & libc::MAP_ANONYMOUS == 0
                    && let Some(at) = mapped(wish)
                {
                    return at;
                }
                // SAFETY: the arguments are those of the program.
                unsafe { wish.pass() }
            }
        )*
    };
}

map! { mmap mmap64 }

/// mremap(2). A mapping of a file that needs this library does not grow: the C library and
/// programs map anew after ENOMEM.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn mremap(
    at: *mut c_void,
    old: size_t,
    new: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let pages = |len: size_t| len.div_ceil(PAGE as usize);
    // A length of zero makes a second mapping, which may be longer.
    let grows = old == 0 || pages(new) > pages(old);
    if grows && regions::are_any() && regions::shows(at as u64) {
        real::set_errno(libc::ENOMEM);
        return libc::MAP_FAILED;
    }
    let change = Change::Moved {
        len: new as u64,
        stays: flags & libc::MREMAP_DONTUNMAP != 0,
        to: (flags & libc::MREMAP_FIXED != 0).then_some(to as u64),
    };
    // SAFETY: the arguments are those of the program.
    let remap = || unsafe { real::mremap(at, old, new, flags, to) };
    views::changing((at as u64, old as u64), change, remap, place_of).unwrap_or(libc::MAP_FAILED)
}

/// Returns the address of a mapping, if it was made.
fn place_of(made: *mut c_void) -> Option<u64> {
    (made != libc::MAP_FAILED).then_some(made as u64)
}

/// munmap(2). What lies there next is another file.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn munmap(at: *mut c_void, len: size_t) -> c_int {
    // SAFETY: the arguments are those of the program.
    let unmap = || unsafe { real::munmap(at, len) };
    let done = |done| (done == 0).then_some(0);
    views::changing((at as u64, len as u64), Change::Gone, unmap, done).unwrap_or(-1)
}

/// Makes a call that protects memory: a mapping of a file for reading may become one for stores.
fn protecting(at: *mut c_void, len: size_t, writes: bool, call: impl FnOnce() -> c_int) -> c_int {
    if !writes {
        return call();
    }
    // After other errors than EINVAL, a part of it may be writable.
    let done = |done| (done == 0 || real::errno() != libc::EINVAL).then_some(0);
    views::changing((at as u64, len as u64), Change::Writable, call, done).unwrap_or(-1)
}

/// mprotect(2).
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn mprotect(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
) -> c_int {
    protecting(at, len, protection & libc::PROT_WRITE != 0, || {
        // SAFETY: the arguments are those of the program.
        unsafe { real::mprotect(at, len, protection) }
    })
}

/// pkey_mprotect(2).
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn pkey_mprotect(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    key: c_int,
) -> c_int {
    protecting(at, len, protection & libc::PROT_WRITE != 0, || {
        // SAFETY: the arguments are those of the program.
        unsafe { real::pkey_mprotect(at, len, protection, key) }
    })
}

/// msync(2). The kernel makes the pages durable; the files learn of the change.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn msync(at: *mut c_void, len: size_t, flags: c_int) -> c_int {
    // SAFETY: the arguments are those of the program.
    let done = unsafe { real::msync(at, len, flags) };
    if done == 0 {
        durable::note_stores(at as u64, len as u64);
    }
    done
}

/// remap_file_pages(2). For the kernel the file is the region, so the pages could be those of any
/// file.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn remap_file_pages(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    page: size_t,
    flags: c_int,
) -> c_int {
    if regions::are_any() && regions::are_in(&range(at, len)) {
        real::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the arguments are those of the program.
    unsafe { real::remap_file_pages(at, len, protection, page, flags) }
}

/// madvise(2). MADV_REMOVE would punch a hole into the region.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn madvise(
    at: *mut c_void,
    len: size_t,
    advice: c_int,
) -> c_int {
    if advice == libc::MADV_REMOVE && regions::are_any() && regions::are_in(&range(at, len)) {
        real::set_errno(libc::EOPNOTSUPP);
        return -1;
    }
    // SAFETY: the arguments are those of the program.
    unsafe { real::madvise(at, len, advice) }
}

fn range(at: *mut c_void, len: size_t) -> Range<u64> {
    let at = at as u64;
    // Also of an empty range: the kernel rounds.
    at..at.saturating_add(len.max(1) as u64)
}
