//! Modes, and a caller who owns nothing.

use std::path::Path;

use pramfs_tests::syscalls::{Caller, Sys, errno};
use rustix::fs::Mode;

/// The permissions, with suid, sgid and sticky.
pub fn mode(path: &Path) -> Sys<u32> {
    errno(rustix::fs::stat(path)).map(|s| s.st_mode & 0o7777)
}

/// chmod, with any bits.
pub fn chmod(path: &Path, mode: u32) -> Sys {
    errno(rustix::fs::chmod(path, Mode::from_raw_mode(mode)))
}

/// A user without rights, who owns nothing.
pub const STRANGER: Caller = Caller {
    uid: 500,
    gid: 500,
    umask: 0,
    privileged: false,
};
