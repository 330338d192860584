//! The locks of leases: each keeps a promise about blocks alive as long as a process maps
//! them.
//!
//! A lease is a read lock of one byte of the source, held by an open file description that
//! only the lease uses. The kernel keeps that description while a descriptor or a mapping
//! of it exists, in any process, and drops the lock with the last of them. So the lock
//! tells whether blocks can still be mapped, even after the server has died.
//!
//! Invariant: the description behind the region itself never holds such a lock, so a test
//! through it sees those of all others.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::mapping::{Mapping, Share};
use super::region::Region;
use super::source::SourceKind;
use crate::types::LeaseMode;

/// Number of slots that can have locks.
pub const LEASE_LOCKS: u32 = 4096;

/// The byte of slot 0. Far past the end of any region; the offsets of locks are signed.
const FIRST_BYTE: i64 = 1 << 62;

impl Region {
    /// Whether leases work on this kind of source. They do not work on devices: their locks
    /// belong to the node, and a second node of the same device has other locks.
    fn can_be_leased(&self) -> bool {
        self.backend.source_fd().is_some()
            && matches!(
                self.backend.source_kind(),
                Some(
                    SourceKind::Tmpfs
                        | SourceKind::Memfd
                        | SourceKind::Hugetlbfs
                        | SourceKind::File
                        | SourceKind::FsDax
                )
            )
    }

    /// Why this kind of source has no leases.
    fn not_leased(&self) -> io::Error {
        unsupported(match self.backend.source_kind() {
            Some(kind) if kind.is_device() => {
                "those of a device belong to its node, and a second node of it has others"
            }
            _ => "memory of a process has none",
        })
    }

    /// Opens the source anew, for reading or also for writing, and locks the byte of a slot
    /// through that description. The lock lasts until the descriptor, its copies and the
    /// mappings of it are gone.
    ///
    /// # Errors
    /// `Unsupported` for memory of this process and for devices; those of opening the source
    /// through `/proc/self/fd`; those of the lock.
    pub(crate) fn lease_descriptor(&self, slot: u32, mode: LeaseMode) -> io::Result<OwnedFd> {
        let (fd, _) = self
            .backend
            .source_fd()
            .filter(|_| self.can_be_leased())
            .ok_or_else(|| self.not_leased())?;
        let way = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let write = mode == LeaseMode::Write;
        let anew = File::options().read(true).write(write).open(way)?;
        let mut lock = byte_of(slot, libc::F_RDLCK as _);
        fcntl(anew.as_fd(), libc::F_OFD_SETLK, &mut lock)?;
        Ok(anew.into())
    }

    /// Returns a copy of the descriptor of the source, for a process that keeps the lock of the
    /// region when this one dies, and for one that opens the region again by
    /// [`RegionOptions::from_fd`](super::RegionOptions::from_fd). `None` for memory without a
    /// source, and if a substitute was taken instead of the lock.
    ///
    /// # Errors
    /// The limit of descriptors.
    pub(crate) fn locked_descriptor(&self) -> io::Result<Option<OwnedFd>> {
        if self.info().lock_notice.is_some() {
            return Ok(None);
        }
        let source = self.backend.source_fd();
        source.map(|(fd, _)| fd.try_clone_to_owned()).transpose()
    }

    /// Tries, with a byte that no slot uses, that a mapping keeps the lock after its
    /// descriptor is closed, and that its end releases the lock. Network file systems and
    /// stacked ones may differ.
    ///
    /// # Errors
    /// `Unsupported` if they do; those of [`lease_descriptor`](Self::lease_descriptor).
    pub(crate) fn try_lease_lock(&self) -> io::Result<()> {
        let spare = LEASE_LOCKS;
        let fd = self.lease_descriptor(spare, LeaseMode::Read)?;
        let unit = usize::try_from(self.backend.map_unit()).map_err(io::Error::other)?;
        let map = Mapping::new(fd.as_fd(), unit, Share::SharedReadOnly)?;
        drop(fd);
        let kept = self.is_lease_held(spare)?;
        drop(map);
        // Another server's trial may hold it for a moment; that is no reason to refuse.
        match kept {
            true => Ok(()),
            false => Err(unsupported("a mapping of the region does not keep them")),
        }
    }

    /// Whether any process still holds the lock of a slot.
    ///
    /// # Errors
    /// Those of the test. Memory of this process has no locks.
    pub(crate) fn is_lease_held(&self, slot: u32) -> io::Result<bool> {
        #[cfg(any(test, feature = "testing"))]
        if self.held_leases.lock().contains(&slot) {
            return Ok(true);
        }
        let Some((fd, _)) = self.backend.source_fd() else {
            return Ok(false);
        };
        // Conflicts with every lock of another description.
        let mut lock = byte_of(slot, libc::F_WRLCK as _);
        fcntl(fd, libc::F_OFD_GETLK, &mut lock)?;
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }

    /// Whether any process holds the lock of any slot.
    ///
    /// # Errors
    /// Those of the test. Memory of this process has no locks.
    pub(crate) fn is_any_lease_held(&self) -> io::Result<bool> {
        #[cfg(any(test, feature = "testing"))]
        if !self.held_leases.lock().is_empty() {
            return Ok(true);
        }
        let Some((fd, _)) = self.backend.source_fd() else {
            return Ok(false);
        };
        let mut lock = byte_of(0, libc::F_WRLCK as _);
        lock.l_len = i64::from(LEASE_LOCKS);
        fcntl(fd, libc::F_OFD_GETLK, &mut lock)?;
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }

    /// Pretends that a process holds the lock of a slot, or none does. For regions without
    /// descriptors, whose crashes are simulated.
    #[cfg(any(test, feature = "testing"))]
    pub fn pretend_lease(&self, slot: u32, held: bool) {
        let mut all = self.held_leases.lock();
        match held {
            true => all.insert(slot),
            false => all.remove(&slot),
        };
    }
}

/// Bytes that [`LEASE_TICKET`] returns.
pub const TICKET_LEN: usize = 80;

/// The ioctl of a mount that returns a ticket for an open file:
/// `_IOR(0xf2, 1, [u8; TICKET_LEN])`.
pub const LEASE_TICKET: u32 = ticket_ioctl(1);

/// The same for a lease to read and write: `_IOR(0xf2, 2, [u8; TICKET_LEN])`.
pub const WRITE_LEASE_TICKET: u32 = ticket_ioctl(2);

const fn ticket_ioctl(number: u32) -> u32 {
    2 << 30 | (TICKET_LEN as u32) << 16 | 0xf2 << 8 | number
}

/// Asks the mount of an open file for a ticket.
///
/// # Errors
/// ENOTTY if the file is not on a pramfs mount; EOPNOTSUPP if the mount has no direct
/// access; EACCES if its policy forbids it; EBADF if the file is not open for that; EPERM
/// to write, if it is immutable or append-only.
pub fn lease_ticket(file: BorrowedFd<'_>, mode: LeaseMode) -> io::Result<[u8; TICKET_LEN]> {
    let mut ticket = [0u8; TICKET_LEN];
    let number = match mode {
        LeaseMode::Read => LEASE_TICKET,
        LeaseMode::Write => WRITE_LEASE_TICKET,
    };
    // SAFETY: both numbers declare that TICKET_LEN bytes are written and none is read. The
    // buffer has that many, and no pointer is kept.
    let done = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::c_ulong::from(number) as _,
            ticket.as_mut_ptr(),
        )
    };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(ticket),
    }
}

fn unsupported(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

fn byte_of(slot: u32, kind: libc::c_short) -> libc::flock {
    libc::flock {
        l_type: kind,
        l_whence: libc::SEEK_SET as _,
        l_start: FIRST_BYTE + i64::from(slot),
        l_len: 1,
        // Required to be zero.
        l_pid: 0,
    }
}

/// Locks a range of bytes of a file for its description, without waiting. Replaces a lock that
/// the description has there, or keeps that one on an error.
///
/// # Errors
/// EAGAIN if the lock is refused, EBADF if the descriptor is not open for it.
pub(super) fn lock_range(
    fd: BorrowedFd<'_>,
    start: u64,
    len: u64,
    exclusive: bool,
) -> io::Result<()> {
    let too_far = |_| io::Error::from_raw_os_error(libc::EOVERFLOW);
    let mut lock = libc::flock {
        l_type: match exclusive {
            true => libc::F_WRLCK as _,
            false => libc::F_RDLCK as _,
        },
        l_start: i64::try_from(start).map_err(too_far)?,
        l_len: i64::try_from(len).map_err(too_far)?,
        ..byte_of(0, 0)
    };
    fcntl(fd, libc::F_OFD_SETLK, &mut lock)
}

/// Takes a write lock of the first byte of a file, for its description, without waiting.
///
/// # Errors
/// EAGAIN if the lock is refused, EBADF if the descriptor is not open for writing.
pub(super) fn lock_first_byte(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(fd, libc::F_OFD_SETLK, &mut first_byte(libc::F_WRLCK as _))
}

/// As [`lock_first_byte`], for a read lock.
#[cfg(test)]
pub(super) fn try_read_lock(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(fd, libc::F_OFD_SETLK, &mut first_byte(libc::F_RDLCK as _))
}

/// Whether a lock of this kind of the first byte of a file would be refused.
///
/// # Errors
/// Those of the test.
pub(super) fn is_refused(fd: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<bool> {
    let mut lock = first_byte(kind as _);
    fcntl(fd, libc::F_OFD_GETLK, &mut lock)?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn first_byte(kind: libc::c_short) -> libc::flock {
    libc::flock {
        l_start: 0,
        ..byte_of(0, kind)
    }
}

fn fcntl(fd: BorrowedFd<'_>, op: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: both operations read the structure, F_OFD_GETLK writes it, and neither keeps
    // the pointer. The descriptor is open while it is borrowed.
    match unsafe { libc::fcntl(fd.as_raw_fd(), op, std::ptr::from_mut(lock)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::RegionOptions;
    use super::super::tests::in_time;
    use super::*;

    fn region() -> Region {
        RegionOptions::new().memfd("leases", 1 << 20).unwrap()
    }

    #[test]
    fn lease_is_held_until_its_descriptor_is_closed() {
        let region = region();
        assert!(!region.is_lease_held(7).unwrap());
        let (first, second) = (
            region.lease_descriptor(7, LeaseMode::Read),
            region.lease_descriptor(7, LeaseMode::Write),
        );
        assert!(region.is_lease_held(7).unwrap() && !region.is_lease_held(6).unwrap());
        assert!(region.is_any_lease_held().unwrap());
        drop(first);
        assert!(region.is_lease_held(7).unwrap());
        drop(second);
        assert!(in_time(|| !region.is_lease_held(7).unwrap()));
        assert!(!region.is_any_lease_held().unwrap());
    }

    #[test]
    fn mapping_keeps_lease_after_descriptor_is_closed() {
        let region = region();
        let fd = region.lease_descriptor(0, LeaseMode::Write).unwrap();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::SHARED,
                &fd,
                0,
            )
        }
        .unwrap();
        drop(fd);
        assert!(region.is_lease_held(0).unwrap());
        // SAFETY: mapped above, and nothing refers to it.
        unsafe { rustix::mm::munmap(at, 4096) }.unwrap();
        assert!(in_time(|| !region.is_lease_held(0).unwrap()));
    }

    #[test]
    fn descriptor_of_read_lease_cannot_be_mapped_for_writing() {
        let fd = region().lease_descriptor(1, LeaseMode::Read).unwrap();
        // SAFETY: a new mapping at an address that the kernel chooses, if it succeeds.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &fd,
                0,
            )
        };
        assert_eq!(mapped, Err(rustix::io::Errno::ACCESS));
    }

    #[test]
    fn memory_of_process_has_no_leases() {
        let region = Region::new("heap", super::super::heap::HeapBackend::boxed(1 << 20));
        let refused = region.lease_descriptor(0, LeaseMode::Read).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        assert!(!region.is_lease_held(0).unwrap());
    }
}
