//! The mappings of the region that stand for mappings of files.
//!
//! For the kernel such a mapping is one of the region. If it grew, by mremap(2), it would show
//! the blocks behind those of the file, which belong to other files. Invariant: no mapping of
//! a region grows. The kernel's own list tells which addresses are such mappings, so nothing
//! is kept for this that could be out of date.
//!
//! Which file a mapping shows is noted here, for msync(2) and mprotect(2). A note that is out of
//! date changes the mtime of a file, and nothing else.

use std::ffi::{c_int, c_long};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::real;

/// Numbers of the inodes of regions that were mapped. 0: a free place. If all are taken, any
/// shared mapping counts.
static REGIONS: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Notes a region, before its first mapping.
pub(crate) fn note_region(inode: u64) {
    if is_region(inode) {
        return;
    }
    let at = COUNT.fetch_add(1, Ordering::AcqRel) as usize;
    if let Some(place) = REGIONS.get(at) {
        place.store(inode, Ordering::Release);
    }
}

fn is_region(inode: u64) -> bool {
    REGIONS.iter().any(|r| r.load(Ordering::Acquire) == inode)
}

/// Whether the process has mapped any region.
#[inline]
pub(crate) fn are_any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// A mapping, and the [key](crate::table::Held::key) of the lease of its file.
struct View {
    start: AtomicU64,
    /// 0: a free place. Stored last, and loaded first.
    end: AtomicU64,
    lease: AtomicU64,
}

static VIEWS: [View; 256] = [const {
    View {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        lease: AtomicU64::new(0),
    }
}; 256];

/// Set if a mapping could not be noted: then each may be of any file.
static INCOMPLETE: AtomicBool = AtomicBool::new(false);

impl View {
    fn range(&self) -> Range<u64> {
        let end = self.end.load(Ordering::Acquire);
        self.start.load(Ordering::Relaxed)..end
    }

    fn set(&self, range: Range<u64>, lease: u64) {
        self.end.store(0, Ordering::Release);
        self.start.store(range.start, Ordering::Relaxed);
        self.lease.store(lease, Ordering::Relaxed);
        self.end.store(range.end, Ordering::Release);
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Returns the whole pages of a range.
fn pages(at: u64, len: u64) -> Range<u64> {
    let end = at.saturating_add(len);
    at..end.checked_next_multiple_of(4096).unwrap_or(end)
}

/// Notes a mapping that the thread inside has made.
pub(crate) fn note(at: u64, len: u64, lease: u64) {
    forget(at, len);
    match VIEWS.iter().find(|view| view.range().end == 0) {
        Some(free) => free.set(pages(at, len), lease),
        None => INCOMPLETE.store(true, Ordering::Release),
    }
}

/// Forgets the mappings that are cut away as a whole. Of others, the rest stays.
pub(crate) fn forget(at: u64, len: u64) {
    let gone = pages(at, len);
    for view in &VIEWS {
        let range = view.range();
        if range.end != 0 && gone.start <= range.start && range.end <= gone.end {
            view.end.store(0, Ordering::Release);
        }
    }
}

/// Forgets all, in a forked child, whose leases are gone.
pub(crate) fn forget_all() {
    for view in &VIEWS {
        view.end.store(0, Ordering::Relaxed);
    }
}

/// Notes that mremap(2) has moved or cut memory.
pub(crate) fn moved(old: (u64, u64), new: (u64, u64)) {
    let (from, to) = (pages(old.0, old.1), pages(new.0, new.1));
    for view in &VIEWS {
        let range = view.range();
        if !overlap(&range, &from) {
            continue;
        }
        match range == from {
            true => view.set(to.clone(), view.lease.load(Ordering::Relaxed)),
            // Pieces of it lie in two places.
            false => INCOMPLETE.store(true, Ordering::Release),
        }
    }
}

/// Whether a range may be mapped from the file of a lease.
pub(crate) fn shows(at: u64, len: u64, lease: u64) -> bool {
    let wanted = pages(at, len);
    INCOMPLETE.load(Ordering::Acquire)
        || VIEWS.iter().any(|view| {
            overlap(&view.range(), &wanted) && view.lease.load(Ordering::Relaxed) == lease
        })
}

/// Whether an address lies in a mapping of a region. True where that cannot be found out.
/// Keeps errno.
#[cold]
pub(crate) fn is_view(at: u64) -> bool {
    let errno = real::errno();
    let found = look_up(at).unwrap_or(true);
    real::set_errno(errno);
    found
}

/// Looks an address up in /proc/self/maps. Allocates nothing, and calls no function that the
/// library replaces.
fn look_up(at: u64) -> Option<bool> {
    let path = c"/proc/self/maps";
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as c_long;
    let directory = libc::AT_FDCWD as c_long;
    // SAFETY: opens a file by a path that ends with a zero.
    let fd = unsafe {
        let path = path.as_ptr() as c_long;
        real::syscall(libc::SYS_openat, directory, path, flags, 0, 0, 0)
    };
    if fd < 0 {
        return None;
    }
    let found = read_maps(fd as c_int, at);
    // SAFETY: opened above, and nobody else knows of it.
    unsafe { real::syscall(libc::SYS_close, fd, 0, 0, 0, 0, 0) };
    found
}

fn read_maps(fd: c_int, at: u64) -> Option<bool> {
    let (mut buffer, mut kept) = ([0u8; 4096], 0);
    loop {
        let room = &mut buffer[kept..];
        // SAFETY: writes to the rest of the buffer.
        let n = unsafe {
            let (to, len) = (room.as_mut_ptr() as c_long, room.len() as c_long);
            real::syscall(libc::SYS_read, fd.into(), to, len, 0, 0, 0)
        };
        let end = kept + usize::try_from(n).ok()?;
        let mut start = 0;
        while let Some(len) = buffer[start..end].iter().position(|byte| *byte == b'\n') {
            if let Some(found) = judge(&buffer[start..start + len], at)? {
                return Some(found);
            }
            start += len + 1;
        }
        if n == 0 {
            // Not mapped: the kernel refuses by itself.
            return Some(false);
        }
        if start == 0 && end == buffer.len() {
            // A path that is too long: of a line that is not wanted, or not known.
            return None;
        }
        buffer.copy_within(start..end, 0);
        kept = end - start;
    }
}

/// Judges a line: "start-end perms offset device inode path". `Some(None)`: it is of other
/// addresses.
fn judge(line: &[u8], at: u64) -> Option<Option<bool>> {
    let mut words = line
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty());
    let mut range = words.next()?.split(|byte| *byte == b'-');
    let hexadecimal = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).ok()?;
        u64::from_str_radix(digits, 16).ok()
    };
    let (start, end) = (hexadecimal(range.next()?)?, hexadecimal(range.next()?)?);
    if at < start || at >= end {
        return Some(None);
    }
    let is_shared = words.next()?.get(3) == Some(&b's');
    let inode: u64 = std::str::from_utf8(words.nth(2)?).ok()?.parse().ok()?;
    let too_many = COUNT.load(Ordering::Acquire) as usize > REGIONS.len();
    Some(Some(is_shared && (too_many || is_region(inode))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_region_is_recognized() {
        note_region(4242);
        note_region(4242);
        let region = b"7f0000000000-7f0000002000 rw-s 00100000 00:1f 4242    /dev/shm/a b";
        let other = b"7f0000000000-7f0000002000 rw-s 00100000 00:1f 4243    /dev/shm/a b";
        let private = b"7f0000000000-7f0000002000 rw-p 00100000 00:1f 4242    /dev/shm/a b";
        let anonymous = b"7f0000000000-7f0000002000 rw-p 00000000 00:00 0";
        let at = 0x7f00_0000_1fff;
        assert_eq!(judge(region, at), Some(Some(true)));
        assert_eq!(judge(region, at + 1), Some(None));
        for line in [&other[..], private, anonymous] {
            assert_eq!(judge(line, at), Some(Some(false)));
        }
        assert_eq!(judge(b"strange", at), None);
    }
}
