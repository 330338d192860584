//! A mount, by system calls.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use pramfs::{Fallocate, FileType, RenameFlags, XattrMode};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags};

use super::pattern::identity;
use super::target::{About, Target};
use crate::syscalls::{self as sys, Sys, errno, path_of};

/// A way to a directory of a mount.
#[derive(Debug)]
pub struct MountAccess(pub PathBuf);

impl Target for MountAccess {
    type Node = OwnedFd;
    /// The page cache copies without a lock.
    const WHOLE: bool = false;
    const VIEWS: bool = false;

    fn root(&self) -> Sys<OwnedFd> {
        sys::root(&self.0)
    }
    fn lookup(&self, dir: &OwnedFd, name: &[u8]) -> Sys<OwnedFd> {
        sys::lookup(dir, name)
    }
    fn create(&self, dir: &OwnedFd, name: &[u8]) -> Sys<OwnedFd> {
        sys::create(dir, name, 0o644)
    }
    fn mkdir(&self, dir: &OwnedFd, name: &[u8]) -> Sys {
        errno(rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755)))
    }
    fn mknod(&self, dir: &OwnedFd, name: &[u8], mode: u32) -> Sys {
        sys::mknod(dir, name, mode, 0)
    }
    fn symlink(&self, dir: &OwnedFd, name: &[u8], target: &[u8]) -> Sys {
        errno(rustix::fs::symlinkat(target, dir, name))
    }
    fn link(&self, node: &OwnedFd, dir: &OwnedFd, name: &[u8]) -> Sys {
        sys::link(node, dir, name)
    }
    fn unlink(&self, dir: &OwnedFd, name: &[u8]) -> Sys {
        sys::unlink(dir, name, false)
    }
    fn rmdir(&self, dir: &OwnedFd, name: &[u8]) -> Sys {
        sys::unlink(dir, name, true)
    }
    fn rename(&self, from: (&OwnedFd, &[u8]), to: (&OwnedFd, &[u8]), flags: RenameFlags) -> Sys {
        sys::rename(from, to, flags)
    }
    fn about(&self, node: &OwnedFd) -> Sys<About> {
        let s = sys::stat(node)?;
        Ok(About {
            id: identity(s.st_ino, 0),
            kind: FileType::from_mode(s.st_mode).ok_or(libc::EINVAL)?,
            size: s.st_size as u64,
            nlink: s.st_nlink,
            perm: s.st_mode & 0o7777,
            mtime: s.st_mtime,
        })
    }
    fn list(&self, dir: &OwnedFd) -> Sys<Vec<Vec<u8>>> {
        Ok(sys::read_dir(dir)?.into_iter().map(|e| e.0).collect())
    }
    fn readlink(&self, node: &OwnedFd) -> Sys<Vec<u8>> {
        errno(rustix::fs::readlinkat(node, c"", Vec::new())).map(|t| t.into_bytes())
    }
    fn read(&self, node: &OwnedFd, at: u64, into: &mut [u8]) -> Sys<usize> {
        errno(rustix::io::pread(
            sys::open(node, OFlags::RDONLY)?,
            into,
            at,
        ))
    }
    fn write(&self, node: &OwnedFd, at: u64, from: &[u8]) -> Sys<usize> {
        errno(rustix::io::pwrite(
            sys::open(node, OFlags::WRONLY)?,
            from,
            at,
        ))
    }
    fn append(&self, node: &OwnedFd, from: &[u8]) -> Sys<usize> {
        let fd = sys::open(node, OFlags::WRONLY | OFlags::APPEND)?;
        errno(rustix::io::write(fd, from))
    }
    fn truncate(&self, node: &OwnedFd, size: u64) -> Sys {
        errno(rustix::fs::ftruncate(
            sys::open(node, OFlags::WRONLY)?,
            size,
        ))
    }
    fn fallocate(&self, node: &OwnedFd, what: Fallocate, at: u64, len: u64) -> Sys {
        let flags = match what {
            Fallocate::Allocate { .. } => FallocateFlags::empty(),
            Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Fallocate::ZeroRange { .. } => FallocateFlags::ZERO_RANGE,
        };
        let keep = matches!(
            what,
            Fallocate::Allocate { keep_size: true } | Fallocate::ZeroRange { keep_size: true }
        );
        let flags = if keep {
            flags | FallocateFlags::KEEP_SIZE
        } else {
            flags
        };
        errno(rustix::fs::fallocate(
            sys::open(node, OFlags::RDWR)?,
            flags,
            at,
            len,
        ))
    }
    fn chmod(&self, node: &OwnedFd, perm: u32) -> Sys {
        let mode = Mode::from_raw_mode(perm);
        errno(rustix::fs::chmodat(
            CWD,
            path_of(node),
            mode,
            AtFlags::empty(),
        ))
    }
    fn utimes(&self, node: &OwnedFd, mtime: i64) -> Sys {
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: rustix::fs::UTIME_NOW,
            },
            last_modification: Timespec {
                tv_sec: mtime,
                tv_nsec: 1,
            },
        };
        errno(rustix::fs::utimensat(
            CWD,
            path_of(node),
            &times,
            AtFlags::empty(),
        ))
    }
    fn get_xattr(&self, node: &OwnedFd, name: &[u8]) -> Sys<Vec<u8>> {
        sys::get_xattr(node, name)
    }
    fn set_xattr(&self, node: &OwnedFd, name: &[u8], value: &[u8], mode: XattrMode) -> Sys {
        let flags = match mode {
            XattrMode::Set => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        errno(rustix::fs::setxattr(path_of(node), name, value, flags))
    }
    fn remove_xattr(&self, node: &OwnedFd, name: &[u8]) -> Sys {
        errno(rustix::fs::removexattr(path_of(node), name))
    }
    fn list_xattrs(&self, node: &OwnedFd) -> Sys<Vec<Vec<u8>>> {
        sys::list_xattrs(node)
    }
    fn fsync(&self, node: &OwnedFd) -> Sys {
        errno(rustix::fs::fsync(sys::open(node, OFlags::RDONLY)?))
    }
    fn sync(&self) -> Sys<u64> {
        let root = sys::open(&self.root()?, OFlags::RDONLY)?;
        errno(rustix::fs::syncfs(&root))?;
        Ok(errno(rustix::fs::fstatvfs(&root))?.f_bfree)
    }
    fn store(&self, _: &OwnedFd, _: u64, _: &[u64], _: bool) -> Sys {
        Err(libc::EOPNOTSUPP)
    }
}
