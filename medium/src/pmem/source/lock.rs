//! One process at a time: the lock on a region source.
//!
//! Uses `flock` on the open file description that the region keeps. The kernel releases it
//! when the last copy of the descriptor is closed, however the process ends. Writers hold
//! it exclusively, read-only openings share it. On a block device it complements the
//! kernel's own exclusive claim (`O_EXCL`), because udev and the partitioning tools respect
//! it.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::holders::{self, Holder};
use super::substitute::{self, Found, Substitute};
use super::{SourceKind, detect};
use crate::pmem::error::PmemError;

/// Makes programs started by this process inherit the three standard streams and no other
/// descriptor. A copied descriptor would keep the region open, and locked, until the
/// program ends too. For the parent of a process that continues independently.
///
/// ```
/// pramfs_medium::pmem::inherit_standard_streams_only()?;
/// assert!(std::process::Command::new("true").status()?.success());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// ENOSYS or EINVAL before Linux 5.11.
pub fn inherit_standard_streams_only() -> io::Result<()> {
    // SAFETY: changes a flag of descriptors; closes nothing and passes no memory.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// udev briefly holds a shared lock while it inspects a device.
const UDEV_TIMEOUT: Duration = Duration::from_secs(1);
const UDEV_PAUSE: Duration = Duration::from_millis(20);

/// Takes the lock of a region that is being opened, or names the process that uses it. If a
/// mere reader has the lock, takes the substitute instead.
pub(super) fn acquire(
    fd: BorrowedFd<'_>,
    path: &Path,
    kind: SourceKind,
    exclusive: bool,
) -> Result<Option<Substitute>, PmemError> {
    match take(fd, path, kind, exclusive) {
        Ok(()) => {}
        Err(refused) if refused.errno() != libc::EBUSY => return Err(refused),
        Err(refused) => match substitute::look(fd, operation(exclusive)) {
            None => return Err(refused),
            Some(Found::InUse(None)) => return Err(refused),
            Some(Found::InUse(Some(holder))) => return Err(used_by(path, Some(&holder))),
            Some(Found::Substitute(lock)) => return Ok(Some(lock)),
            Some(Found::Flock) => {}
        },
    }
    // Only now: see `substitute`.
    match substitute::holder(fd) {
        Ok(None) => Ok(None),
        Ok(Some(holder)) => Err(used_by(path, Some(&holder))),
        Err(source) => Err(PmemError::Os {
            what: "cannot test the locks of",
            path: path.display().to_string(),
            source,
        }),
    }
}

fn operation(exclusive: bool) -> FlockOperation {
    match exclusive {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    }
}

/// Takes the `flock`, or names its holder.
pub(super) fn take(
    fd: BorrowedFd<'_>,
    path: &Path,
    kind: SourceKind,
    exclusive: bool,
) -> Result<(), PmemError> {
    let op = operation(exclusive);
    let wait_limit = if kind == SourceKind::BlockDevice {
        UDEV_TIMEOUT
    } else {
        Duration::ZERO
    };
    let start = Instant::now();
    loop {
        match rustix::fs::flock(fd, op) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if start.elapsed() < wait_limit => {
                std::thread::sleep(UDEV_PAUSE)
            }
            Err(Errno::WOULDBLOCK) => return Err(in_use(fd, path)),
            Err(e) => {
                return Err(PmemError::Os {
                    what: "cannot lock",
                    path: path.display().to_string(),
                    source: e.into(),
                });
            }
        }
    }
}

fn in_use(fd: BorrowedFd<'_>, path: &Path) -> PmemError {
    let holder = rustix::fs::fstat(fd)
        .ok()
        .and_then(|st| holder_of(st.st_dev, st.st_ino));
    let holder = holder.map(|(pid, name)| Holder { pid, name });
    let holder = holder.or_else(|| heir_of(fd));
    used_by(path, holder.as_ref())
}

fn used_by(path: &Path, holder: Option<&Holder>) -> PmemError {
    let whom = holder.map_or_else(|| "another process".into(), Holder::to_string);
    PmemError::Unusable {
        path: path.display().to_string(),
        why: format!("the region is in use by {whom}; unmount it or end that process first"),
        errno: libc::EBUSY,
    }
}

/// Returns the error for a block device that the kernel did not let us claim.
pub(super) fn block_in_use(path: &Path, rdev: u64) -> PmemError {
    let why = detect::is_block_exclusive_holder(rdev).unwrap_or_else(|| {
        "the device is in use: mounted, swap, part of another device, or open as a region; see lsblk(8) and fuser(1)"
            .into()
    });
    PmemError::Unusable {
        path: path.display().to_string(),
        why,
        errno: libc::EBUSY,
    }
}

/// Finds the holder of a flock in the kernel's list. The list shows only locks of this pid
/// namespace, by the device number of the file system. On a few file systems that number
/// differs from the one of stat; the result is then `None`.
pub(in crate::pmem) fn holder_of(dev: u64, ino: u64) -> Option<(u32, String)> {
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let wanted = format!(
        "{:02x}:{:02x}:{ino}",
        rustix::fs::major(dev),
        rustix::fs::minor(dev)
    );
    let pid = locks.lines().find_map(|line| flock_pid(line, &wanted))?;
    let holder = holders::named(pid);
    Some((pid, holder.name))
}

/// Finds a process with a descriptor through which a lock on this file is held. The process
/// that took the lock may have ended, and left it to another one by such a descriptor.
fn heir_of(fd: BorrowedFd<'_>) -> Option<Holder> {
    let own = rustix::fs::fstat(fd).ok()?;
    let is_it = |link: &Path| {
        let quietly = rustix::fs::AtFlags::STATX_DONT_SYNC;
        let wanted = rustix::fs::StatxFlags::INO;
        let stat = rustix::fs::statx(rustix::fs::CWD, link, quietly, wanted);
        stat.is_ok_and(|stat| {
            let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
            (device, stat.stx_ino) == (own.st_dev, own.st_ino)
        })
    };
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let path = process.path();
        for descriptor in std::fs::read_dir(path.join("fd")).into_iter().flatten() {
            let Ok(descriptor) = descriptor else { break };
            let info = path.join("fdinfo").join(descriptor.file_name());
            let is_locked = || {
                let info = std::fs::read_to_string(info).unwrap_or_default();
                info.lines().any(|line| line.contains(" FLOCK "))
            };
            if is_it(&descriptor.path()) && is_locked() {
                return Some(holders::named(pid));
            }
        }
    }
    None
}

/// Returns the pid of a line `7: FLOCK  ADVISORY  WRITE 1234 00:1a:567 0 EOF` if it
/// describes a lock held on the wanted file.
fn flock_pid(line: &str, wanted: &str) -> Option<u32> {
    let mut fields = line.split_ascii_whitespace();
    fields.next()?;
    // For a waiter, this field is an arrow.
    if fields.next()? != "FLOCK" {
        return None;
    }
    let pid = fields.nth(2)?.parse::<u32>().ok().filter(|p| *p != 0)?;
    (fields.next()? == wanted).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::flock_pid;

    #[test]
    fn proc_locks_lines_are_parsed() {
        let line = "7: FLOCK  ADVISORY  WRITE 1234 00:1a:567 0 EOF";
        assert_eq!(flock_pid(line, "00:1a:567"), Some(1234));
        assert_eq!(flock_pid(line, "00:1a:56"), None);
        assert_eq!(
            flock_pid(
                "7: -> FLOCK  ADVISORY  WRITE 1234 00:1a:567 0 EOF",
                "00:1a:567"
            ),
            None
        );
        assert_eq!(
            flock_pid("1: POSIX  ADVISORY  WRITE 1 00:1a:567 0 EOF", "00:1a:567"),
            None
        );
        assert_eq!(
            flock_pid("1: FLOCK  ADVISORY  WRITE 0 00:1a:567 0 EOF", "00:1a:567"),
            None
        );
        assert_eq!(flock_pid("", "00:1a:567"), None);
    }
}
