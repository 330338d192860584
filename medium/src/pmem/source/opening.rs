//! Opens an existing path for a region.
//!
//! Invariant: an object that cannot hold a region is refused before opening it could block or
//! have an effect. The errors say what to do.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{Access, Ownership, detect, lock};
use crate::pmem::error::PmemError;

/// Refuses to create a region in an object that another user owns or may write: that user
/// could write every byte of the file system in it.
pub(super) fn refuse_others(fd: BorrowedFd<'_>, path: &Path) -> Result<(), PmemError> {
    let ownership = Ownership::of(fd).map_err(|e| PmemError::Os {
        what: "cannot stat",
        path: path.display().to_string(),
        source: e,
    })?;
    match ownership.objection(rustix::process::geteuid().as_raw()) {
        None => Ok(()),
        Some(why) => Err(PmemError::Unusable {
            path: path.display().to_string(),
            why: format!(
                "exists and {why}: a user with write access to a region can change all files in it; choose a name in a directory where no other user can create files, or remove it first"
            ),
            errno: libc::EPERM,
        }),
    }
}

/// Opens an existing path. Refuses an object that cannot be a region, with the reason,
/// before opening it could block or have an effect.
pub(super) fn open_checked(path: &Path, access: Access) -> Result<OwnedFd, PmemError> {
    let st = rustix::fs::stat(path).map_err(|e| open_error(path, e, access.read_only))?;
    let file_type = FileType::from_raw_mode(st.st_mode);
    detect::refuse_type(file_type, path)?;
    let block = file_type == FileType::BlockDevice;
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    flags |= if access.read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    if block && access.lock {
        // The kernel's own claim on a device fails while the device is mounted, used as
        // swap, or part of another device.
        flags |= OFlags::EXCL;
    }
    // For root, the kernel opens a write-protected device and then refuses each store to
    // it.
    if block && !access.read_only && detect::block_is_read_only(st.st_rdev) {
        return Err(write_protected(path));
    }
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
        Errno::BUSY if block => lock::block_in_use(path, st.st_rdev),
        Errno::ACCESS | Errno::ROFS if block && detect::block_is_read_only(st.st_rdev) => {
            write_protected(path)
        }
        e => open_error(path, e, access.read_only),
    })?;
    let now = rustix::fs::fstat(&fd).map_err(|e| open_error(path, e, access.read_only))?;
    if FileType::from_raw_mode(now.st_mode) != file_type {
        return Err(PmemError::Unusable {
            path: path.display().to_string(),
            why: "was replaced by something else while it was being opened; try again".into(),
            errno: libc::EAGAIN,
        });
    }
    Ok(fd)
}

fn write_protected(path: &Path) -> PmemError {
    PmemError::Unusable {
        path: path.display().to_string(),
        why: "the device is read-only; open it read-only, or lift it with `blockdev --setrw`"
            .into(),
        errno: libc::EROFS,
    }
}

pub(super) fn open_error(path: &Path, e: Errno, read_only: bool) -> PmemError {
    let why = match e {
        Errno::NOENT => {
            "no such file or device; check the path, or make a file system of that name: mkfs.pramfs REGION SIZE"
        }
        Errno::PERM if !read_only => {
            "the system refuses all writes to it, because it is immutable or append-only (see lsattr(1)), or sealed; lift that, or open it read-only"
        }
        Errno::ACCESS | Errno::PERM if read_only => {
            "permission denied for reading; run as its owner or as root, or change its mode"
        }
        Errno::ACCESS | Errno::PERM => {
            "permission denied for reading and writing; run as its owner or as root, change its mode, or open it read-only"
        }
        Errno::ROFS => {
            "lies on a read-only file system; open it read-only, or remount that file system read-write"
        }
        Errno::TXTBSY => "is being executed or used as swap",
        Errno::NXIO | Errno::NODEV => "there is no device behind this node; is its driver loaded?",
        Errno::BUSY => "is in use by the kernel or by another program",
        e => {
            return PmemError::Os {
                what: "cannot open",
                path: path.display().to_string(),
                source: e.into(),
            };
        }
    };
    PmemError::Unusable {
        path: path.display().to_string(),
        why: why.into(),
        errno: e.raw_os_error(),
    }
}
