//! Reading and writing from memory.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{off64_t, size_t, ssize_t};
use pramfs_preload_core::words::splits_word;

use crate::process::{Copying, is_inside, is_sealed, notice_fork};
use crate::real;
use crate::slots::Held;
use crate::stats::note;
use crate::table::{self, Entry};
use crate::{growing, lease};

/// Most bytes that the kernel transfers in one call.
const MOST: usize = 0x7fff_f000;

/// How a call uses a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

/// Returns the lease of a descriptor, for a call by offset that ends there. `None`: to the
/// mount.
#[inline]
fn held(fd: c_int, way: Way, end: u64) -> Option<Held> {
    let entry = table::entry(fd);
    match entry {
        Entry::Unknown => None,
        Entry::Leased { write, reads, .. } => match way {
            Way::Read if reads => table::hold(entry),
            Way::Write if write => table::hold(entry).filter(|held| !lease::appends(fd, held)),
            _ => None,
        },
        Entry::Candidate { inode, calls } if way == Way::Read => {
            lease::count_read(fd, inode, calls)
        }
        Entry::Growing { .. } => growing::count_growing(fd, entry, end, way == Way::Write),
        _ => None,
    }
}

/// Whether a descriptor is a file of a mount.
#[inline]
pub(super) fn is_ours(fd: c_int) -> bool {
    if table::entry(fd) == Entry::Unknown {
        return false;
    }
    notice_fork();
    table::entry(fd) != Entry::Unknown && !is_inside()
}

fn copy_out(held: &Held, buf: *mut c_void, n: usize, at: u64) -> Option<usize> {
    // SAFETY: the program gives a buffer of n bytes for this call.
    let buf = unsafe { std::slice::from_raw_parts_mut(buf.cast::<u8>(), n) };
    let _copying = Copying::begin();
    let copy = AssertUnwindSafe(|| held.file().read_known(buf, at));
    catch_unwind(copy).unwrap_or(None)
}

fn copy_in(held: &Held, buf: *const c_void, n: usize, at: u64) -> Option<usize> {
    // SAFETY: the program gives a buffer of n bytes for this call.
    let buf = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), n) };
    let _copying = Copying::begin();
    let copy = AssertUnwindSafe(|| held.file().write_known(buf, at));
    catch_unwind(copy).unwrap_or(None)
}

/// Returns the offset and length of a call as numbers that memory can serve.
#[inline]
fn range(buf: *const c_void, n: size_t, at: off64_t) -> Option<u64> {
    let fits = !buf.is_null() && n > 0 && n <= MOST;
    u64::try_from(at)
        .ok()
        .filter(|at| fits && at.checked_add(n as u64).is_some())
}

fn read_held(held: &Held, buf: *mut c_void, n: usize, at: u64) -> Option<usize> {
    copy_out(held, buf, n, at).or_else(|| {
        let known = lease::learn(held, at + n as u64);
        known.then(|| copy_out(held, buf, n, at)).flatten()
    })
}

fn write_held(held: &Held, buf: *const c_void, n: usize, at: u64) -> Option<usize> {
    // A fence by msync(2), which a filter may forbid.
    if is_sealed() && !held.file().fences_are_durable() {
        return None;
    }
    copy_in(held, buf, n, at).or_else(|| {
        let (size, end) = (held.file().size_known()?, at + n as u64);
        if at == size {
            return append(held, buf, n, at);
        }
        let known = size >= end && lease::learn(held, end);
        known.then(|| copy_in(held, buf, n, at)).flatten()
    })
}

/// Writes at the end of the file. `None` also if the outcome is not known: the mount then writes
/// the same bytes at the same offset.
fn append(held: &Held, buf: *const c_void, n: usize, at: u64) -> Option<usize> {
    // A filter may forbid the question.
    if is_sealed() || !may_grow(at + n as u64) {
        return None;
    }
    append_in(held, buf, n, at).or_else(|| {
        let ready = lease::prepare_append(held, n as u64);
        ready.then(|| append_in(held, buf, n, at)).flatten()
    })
}

fn append_in(held: &Held, buf: *const c_void, n: usize, at: u64) -> Option<usize> {
    // SAFETY: the program gives a buffer of n bytes for this call.
    let buf = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), n) };
    let _copying = Copying::begin();
    let copy = AssertUnwindSafe(|| held.file().append_known(buf, Some(at)).ok().flatten());
    catch_unwind(copy).unwrap_or(None).map(|_| n)
}

/// Whether RLIMIT_FSIZE allows a file of this size. Another process may change the limit, so it
/// is asked each time; the mount sends the signal.
fn may_grow(size: u64) -> bool {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let errno = real::errno();
    // SAFETY: the limit is written to a variable of this type.
    let got = unsafe { libc::getrlimit64(libc::RLIMIT_FSIZE, &raw mut limit) };
    real::set_errno(errno);
    got == 0 && size <= limit.rlim_cur
}

/// Serves a read by offset.
#[inline]
pub(super) fn read_at(fd: c_int, buf: *mut c_void, n: size_t, at: off64_t) -> Option<ssize_t> {
    if !is_ours(fd) {
        return None;
    }
    let served = range(buf, n, at)
        .and_then(|at| read_held(&held(fd, Way::Read, at + n as u64)?, buf, n, at));
    note(served.is_some());
    Some(served? as ssize_t)
}

/// Serves a write by offset.
#[inline]
pub(super) fn write_at(fd: c_int, buf: *const c_void, n: size_t, at: off64_t) -> Option<ssize_t> {
    if !is_ours(fd) {
        return None;
    }
    let served = range(buf, n, at)
        .and_then(|at| write_held(&held(fd, Way::Write, at + n as u64)?, buf, n, at));
    note(served.is_some());
    Some(served? as ssize_t)
}

/// Moves the position of a descriptor, and returns where it was before. The kernel does this
/// at once for all processes and threads that share it.
fn take(fd: c_int, n: usize) -> Option<u64> {
    // SAFETY: takes no memory.
    let new = unsafe { real::lseek64(fd, n as off64_t, libc::SEEK_CUR) };
    u64::try_from(new).ok()?.checked_sub(n as u64)
}

fn give_back(fd: c_int, n: usize) {
    // SAFETY: takes no memory.
    unsafe { real::lseek64(fd, -(n as off64_t), libc::SEEK_CUR) };
}

/// What becomes of a call at the position of a descriptor.
enum Place {
    /// Served: this many bytes.
    Served(usize),
    /// The position has been moved by the whole length. The mount does the rest at this
    /// offset.
    At(off64_t),
}

/// Serves a call at the position of a descriptor that is leased to write: such a one has no
/// page cache. `copy` moves bytes from or to the offset. A call that passes the end of the
/// file goes to the mount, except for a write that begins there.
fn at_position(
    fd: c_int,
    way: Way,
    n: usize,
    copy: impl FnOnce(&Held, u64) -> Option<usize>,
) -> Option<Place> {
    let entry = table::entry(fd);
    if !matches!(entry, Entry::Leased { write: true, .. }) || n == 0 || n > MOST || is_sealed() {
        return None;
    }
    let held = held(fd, way, 0)?;
    let errno = real::errno();
    let fits = |at: u64| {
        let (end, size) = (at.checked_add(n as u64)?, held.file().size_known()?);
        (end <= size || way == Way::Write && at == size).then_some(at)
    };
    // First without a move: one that is taken back could be seen by others.
    let place = take(fd, 0).and_then(fits).and_then(|_| take(fd, n));
    real::set_errno(errno);
    let at = place?;
    // From here on the range belongs to this call, also if others have moved the position
    // meanwhile, or the file is shorter now.
    match fits(at).and_then(|at| copy(&held, at)) {
        Some(done) if done == n => Some(Place::Served(done)),
        _ => Some(Place::At(at as off64_t)),
    }
}

/// Ends a call that the mount has done at an offset: it may be short.
fn settle_position(fd: c_int, n: usize, done: ssize_t) {
    if done < n as ssize_t {
        let errno = real::errno();
        give_back(fd, n - done.max(0) as usize);
        real::set_errno(errno);
    }
}

/// Serves read(2).
pub(super) fn read(fd: c_int, buf: *mut c_void, n: size_t) -> Option<ssize_t> {
    if !is_ours(fd) {
        return None;
    }
    table::settle(fd);
    let place = at_position(fd, Way::Read, n, |held, at| read_held(held, buf, n, at));
    note(matches!(place, Some(Place::Served(_))));
    match place? {
        Place::Served(done) => Some(done as ssize_t),
        Place::At(at) => {
            // SAFETY: the program gives a buffer of n bytes for this call.
            let done = unsafe { real::pread64(fd, buf, n, at) };
            settle_position(fd, n, done);
            Some(done)
        }
    }
}

/// Serves write(2).
pub(super) fn write(fd: c_int, buf: *const c_void, n: size_t) -> Option<ssize_t> {
    if !is_ours(fd) {
        return None;
    }
    table::settle(fd);
    let place = at_position(fd, Way::Write, n, |held, at| write_held(held, buf, n, at));
    note(matches!(place, Some(Place::Served(_))));
    match place? {
        Place::Served(done) => Some(done as ssize_t),
        Place::At(at) => {
            // SAFETY: the program gives a buffer of n bytes for this call.
            let done = unsafe { real::pwrite64(fd, buf, n, at) };
            settle_position(fd, n, done);
            Some(done)
        }
    }
}

/// Calls `one` for each part, until one is short. `None` if any part cannot be served: then
/// the mount does all of it, from the start.
fn parts(
    parts: &[libc::iovec],
    at: off64_t,
    one: impl Fn(&libc::iovec, u64) -> Option<usize>,
) -> Option<ssize_t> {
    let mut done = 0;
    for part in parts.iter().filter(|part| part.iov_len > 0) {
        let place = at.checked_add(done as off64_t)?;
        let n = range(part.iov_base, part.iov_len, place).and_then(|at| one(part, at))?;
        done += n;
        if n < part.iov_len || done > MOST {
            break;
        }
    }
    (done <= MOST).then_some(done as ssize_t)
}

/// Whether the kernel takes an offset and the lengths of parts. Where it does not, it stores nothing.
fn are_whole(iov: &[libc::iovec], at: off64_t) -> bool {
    let mut lens = iov.iter().map(|part| part.iov_len);
    let sum = lens.try_fold(0usize, usize::checked_add);
    at >= 0 && sum.is_some_and(|sum| sum <= MOST)
}

/// As [`read_at`], into several buffers.
pub(super) fn read_parts_at(fd: c_int, iov: &[libc::iovec], at: off64_t) -> Option<ssize_t> {
    let held = are_whole(iov, at).then(|| held(fd, Way::Read, at as u64));
    let done = held
        .flatten()
        .and_then(|held| parts(iov, at, |p, at| read_held(&held, p.iov_base, p.iov_len, at)));
    note(done.is_some());
    done
}

fn end_of(iov: &[libc::iovec], at: off64_t) -> u64 {
    let lens = iov.iter().map(|part| part.iov_len as u64);
    lens.fold(at.max(0) as u64, u64::saturating_add)
}

/// As [`write_at`], from several buffers. They are stored one after the other, so the mount does it
/// where a crash in between would tear a word.
pub(super) fn write_parts_at(fd: c_int, iov: &[libc::iovec], at: off64_t) -> Option<ssize_t> {
    let lens = iov.iter().map(|part| part.iov_len as u64);
    let held = are_whole(iov, at).then(|| held(fd, Way::Write, end_of(iov, at)));
    let whole = held
        .flatten()
        .filter(|_| !splits_word(at.max(0) as u64, lens));
    let done = whole.and_then(|held| {
        parts(iov, at, |p, at| {
            write_held(&held, p.iov_base, p.iov_len, at)
        })
    });
    note(done.is_some());
    done
}
