//! Which files can have leases: regular files of a mount that gives some to this user, which are not
//! open through the page cache.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use pramfs_medium::pmem::lease_ticket;
use pramfs_medium::types::LeaseMode;
use pramfs_preload_core::FileId;

use crate::lease::Wanted;
use crate::{process, real, table};

const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

/// How long a file that was open through the page cache is not asked for again.
const BUSY_MS: u64 = 1000;

/// Files that were busy, for leases to read and to write: a hash of the inode, and when.
static BUSY: [[AtomicU64; 64]; 2] = [const { [const { AtomicU64::new(0) }; 64] }; 2];

fn now_ms() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is written to a variable of this type.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

fn busy(inode: u16, wanted: Wanted) -> &'static AtomicU64 {
    let files = &BUSY[usize::from(wanted.is_to_write())];
    &files[usize::from(inode) % files.len()]
}

pub(crate) fn note_busy(inode: u16, wanted: Wanted) {
    let word = now_ms() << 16 | u64::from(inode);
    busy(inode, wanted).store(word, Ordering::Relaxed);
}

pub(crate) fn was_busy(inode: u16, wanted: Wanted) -> bool {
    let word = busy(inode, wanted).load(Ordering::Relaxed);
    word as u16 == inode && word != 0 && now_ms().saturating_sub(word >> 16) < BUSY_MS
}

/// How long it is believed whether a device gives leases. The kernel uses the number of a file
/// system again after its umount, and a program may become another user.
const DEVICE_MS: u64 = 10_000;
/// The same, if it has failed in a way that may pass.
const FAILED_MS: u64 = 1000;

/// A device, and the time from which on nothing is believed of it.
struct Known {
    /// Changes first and last.
    until: AtomicU64,
    device: AtomicU64,
}

impl Known {
    const fn new() -> Known {
        Known {
            until: AtomicU64::new(0),
            device: AtomicU64::new(0),
        }
    }

    fn is(&self, device: u64, now: u64) -> bool {
        // Again afterwards: another thread may be noting another device.
        let is_true = || now < self.until.load(Ordering::SeqCst);
        is_true() && self.device.load(Ordering::SeqCst) == device && is_true()
    }

    fn set(&self, device: u64, ms: u64) {
        self.until.store(0, Ordering::SeqCst);
        self.device.store(device, Ordering::SeqCst);
        self.until.store(now_ms() + ms, Ordering::SeqCst);
    }
}

/// Devices whose files get no leases.
static NOT_OURS: [Known; 16] = [const { Known::new() }; 16];
static NEXT: AtomicU64 = AtomicU64::new(0);
/// The last device that gave leases.
static OURS: Known = Known::new();

fn is_excluded(device: u64) -> bool {
    let now = now_ms();
    NOT_OURS.iter().any(|known| known.is(device, now))
}

fn exclude(device: u64, ms: u64) {
    let at = NEXT.fetch_add(1, Ordering::Relaxed) as usize % NOT_OURS.len();
    NOT_OURS[at].set(device, ms);
}

pub(crate) fn stat(fd: c_int) -> Option<libc::stat64> {
    // SAFETY: a zeroed stat is a valid value.
    let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: the result is written to a variable of this type.
    match unsafe { libc::fstat64(fd, &raw mut stat) } {
        0 => Some(stat),
        _ => None,
    }
}

/// Returns the hash of the file of a descriptor, if a mount may have it. Keeps errno.
pub(crate) fn inode_of(fd: c_int) -> Option<u16> {
    if process::is_sealed() {
        return None;
    }
    let errno = real::errno();
    let stat = stat(fd);
    real::set_errno(errno);
    let stat = stat.filter(|stat| {
        stat.st_mode & libc::S_IFMT == libc::S_IFREG && libc::major(stat.st_dev) == 0
    })?;
    Some(table::hash(stat.st_dev, stat.st_ino))
}

/// Returns the device and the number of the inode of a descriptor.
pub(crate) fn id(fd: c_int) -> Option<FileId> {
    stat(fd).map(|stat| FileId {
        device: stat.st_dev,
        inode: stat.st_ino,
    })
}

/// Whether a descriptor is a regular file of a mount that gives leases.
pub(crate) fn is_ours(fd: c_int, stat: &libc::stat64) -> bool {
    // File systems without a block device have the major number 0.
    stat.st_mode & libc::S_IFMT == libc::S_IFREG
        && libc::major(stat.st_dev) == 0
        && !is_excluded(stat.st_dev)
        && is_fuse(fd, stat.st_dev)
}

fn is_fuse(fd: c_int, device: u64) -> bool {
    if OURS.is(device, now_ms()) {
        return true;
    }
    // Before the first call that a filter is likely to kill for.
    if !process::look_for_filter() {
        exclude(device, FAILED_MS);
        return false;
    }
    if process::is_sealed() {
        return false;
    }
    // SAFETY: a zeroed statfs is a valid value.
    let mut stat: libc::statfs64 = unsafe { std::mem::zeroed() };
    // SAFETY: the result is written to a variable of this type.
    let done = unsafe { libc::fstatfs64(fd, &raw mut stat) };
    // The first ticket asks for nothing else than whether the mount gives any.
    let gives = match done == 0 && stat.f_type == FUSE_SUPER_MAGIC {
        true => gives_tickets(fd),
        false => Some(false),
    };
    match gives {
        Some(true) => OURS.set(device, DEVICE_MS),
        Some(false) => exclude(device, DEVICE_MS),
        None => exclude(device, FAILED_MS),
    }
    gives == Some(true)
}

/// Whether the mount gives tickets to this user. `None`: not this one, for now.
fn gives_tickets(fd: c_int) -> Option<bool> {
    // SAFETY: the program has just got this descriptor, and waits for this call.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let Err(error) = lease_ticket(fd, LeaseMode::Read) else {
        return Some(true);
    };
    match error.raw_os_error() {
        // Not open for reading: says nothing about the mount.
        Some(libc::EBADF) => Some(true),
        // Another file system, no direct access, not for this user.
        Some(libc::ENOTTY | libc::EOPNOTSUPP | libc::ENOSYS | libc::EACCES) => Some(false),
        _ => None,
    }
}

/// Whether a lease to write could take a right away from the file: it drops suid, sgid and
/// capabilities, as a write does, and the program may not write.
pub(crate) fn is_program(stat: &libc::stat64) -> bool {
    stat.st_mode & 0o6111 != 0
}
