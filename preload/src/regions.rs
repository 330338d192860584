//! The regions that the process has mapped, for the question whether an address shows one.
//!
//! For the kernel a mapping of a file is one of the region. If it grew, by mremap(2), it would
//! show the blocks behind those of the file, which belong to other files. Invariant: no mapping
//! of a region grows, is made to show another part of it (remap_file_pages(2)), or takes blocks from
//! it (MADV_REMOVE). The kernel's own list tells which addresses are such mappings: here a
//! change that nobody has seen must not count. Under a seccomp filter it cannot be asked, and the list
//! of views stands in.

use std::ffi::{c_int, c_long};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use pramfs_preload_core::FileId;
use pramfs_preload_core::maps::Line;

use crate::process::is_sealed;
use crate::{real, views};

/// A region that was mapped.
struct Region {
    /// As fstat(2) tells them. 0: a free place.
    inode: AtomicU64,
    device: AtomicU64,
    /// Its device in the kernel's list, which on some file systems is another one.
    listed: AtomicU64,
}

/// If all places are taken, any shared mapping counts.
static REGIONS: [Region; 16] = [const {
    Region {
        inode: AtomicU64::new(0),
        device: AtomicU64::new(0),
        listed: AtomicU64::new(ANY),
    }
}; 16];
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Not learnt yet: any device.
const ANY: u64 = 0;

fn place(id: FileId) -> Option<&'static Region> {
    REGIONS.iter().find(|region| {
        region.inode.load(Ordering::Acquire) == id.inode
            && region.device.load(Ordering::Acquire) == id.device
    })
}

/// Notes a region, before its first mapping. Until [`learn`], a file of any device with the number of
/// its inode counts. One thread at a time.
pub(crate) fn note(id: FileId) {
    if place(id).is_some() {
        return;
    }
    let at = COUNT.fetch_add(1, Ordering::AcqRel) as usize;
    if let Some(place) = REGIONS.get(at) {
        place.device.store(id.device, Ordering::Release);
        place.inode.store(id.inode, Ordering::Release);
    }
}

/// Learns the device of a region from a mapping of it, which the program does not know of yet. Keeps
/// errno.
pub(crate) fn learn(id: FileId, at: u64) {
    let Some(place) = place(id) else {
        return;
    };
    if place.listed.load(Ordering::Acquire) != ANY {
        return;
    }
    let errno = real::errno();
    read(&mut |line| {
        let has = line.has(at);
        if has && line.inode == id.inode {
            place.listed.store(number(line.device), Ordering::Release);
        }
        !has
    });
    real::set_errno(errno);
}

/// Returns the number of a device, which is not [`ANY`].
fn number((major, minor): (u32, u32)) -> u64 {
    (u64::from(major) << 32 | u64::from(minor)) + 1
}

fn is_noted(line: &Line) -> bool {
    REGIONS.iter().any(|region| {
        let listed = region.listed.load(Ordering::Acquire);
        region.inode.load(Ordering::Acquire) == line.inode
            && (listed == ANY || listed == number(line.device))
    })
}

/// Whether the process has ever mapped a file by a region.
#[inline]
pub(crate) fn are_any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Whether an address lies in a mapping of a region. True where that cannot be found out.
/// Keeps errno.
#[cold]
pub(crate) fn shows(at: u64) -> bool {
    if is_sealed() {
        return views::are_in(&(at..at.saturating_add(1)));
    }
    let errno = real::errno();
    let found = look_up(at).unwrap_or(true);
    real::set_errno(errno);
    found
}

/// Whether a range has a part of a mapping of a region. True where that cannot be found out.
/// Keeps errno.
#[cold]
pub(crate) fn are_in(range: &Range<u64>) -> bool {
    if is_sealed() {
        return views::are_in(range);
    }
    let mut found = false;
    let overlaps = |line: &Line| line.start < range.end && line.end > range.start;
    let is_whole = each(|line| found |= overlaps(line));
    found || !is_whole
}

/// Calls a function for each mapping of a region. False if not all could be found. Keeps errno.
pub(crate) fn each(mut f: impl FnMut(&Line)) -> bool {
    let errno = real::errno();
    let found = read(&mut |line| {
        if is_region(line) {
            f(line);
        }
        true
    });
    real::set_errno(errno);
    found.is_some()
}

/// Whether a mapping of a region has an address.
fn look_up(at: u64) -> Option<bool> {
    // Not mapped: the kernel refuses by itself.
    let mut found = false;
    read(&mut |line| {
        let has = line.has(at);
        found |= has && is_region(line);
        !has
    })?;
    Some(found)
}

/// Gives a function the lines of /proc/self/maps, while it wants more. Allocates nothing, and
/// calls no function that the library replaces.
fn read(f: &mut dyn FnMut(&Line) -> bool) -> Option<()> {
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
    let found = read_lines(fd as c_int, f);
    // SAFETY: opened above, and nobody else knows of it.
    unsafe { real::syscall(libc::SYS_close, fd, 0, 0, 0, 0, 0) };
    found
}

fn read_lines(fd: c_int, f: &mut dyn FnMut(&Line) -> bool) -> Option<()> {
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
            let line = Line::parse(&buffer[start..start + len])?;
            if !f(&line) {
                return Some(());
            }
            start += len + 1;
        }
        if n == 0 {
            return Some(());
        }
        if start == 0 && end == buffer.len() {
            // A path that is too long: of a line that is not wanted, or not known.
            return None;
        }
        buffer.copy_within(start..end, 0);
        kept = end - start;
    }
}

fn is_region(line: &Line) -> bool {
    let too_many = COUNT.load(Ordering::Acquire) as usize > REGIONS.len();
    line.is_shared && (too_many || is_noted(line))
}
