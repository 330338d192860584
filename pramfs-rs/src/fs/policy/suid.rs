//! The rule for suid and sgid: which of them a change clears.

use pramfs_medium::media::DiskInode;

/// Returns the group of a regular file with sgid. A caller outside the group may change
/// the file, but the change clears sgid.
#[inline]
pub(crate) fn sgid(disk: &DiskInode) -> Option<u32> {
    (disk.mode & libc::S_ISGID != 0 && disk.mode & libc::S_IFMT == libc::S_IFREG)
        .then_some(disk.gid)
}

/// Returns a mode without suid, and without sgid if the group may execute.
pub(crate) fn without_suid(mode: u32) -> u32 {
    let mode = mode & !libc::S_ISUID;
    if mode & libc::S_IXGRP != 0 {
        mode & !libc::S_ISGID
    } else {
        mode
    }
}
