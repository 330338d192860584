//! The chattr flags that restrict changes: immutable (+i) and append-only (+a).
//!
//! For a FUSE file system, the kernel does not enforce these flags. The engine therefore
//! refuses, with EPERM, every change that ext4 and the kernel together refuse. The front
//! end decides which callers may set and clear the flags.
//!
//! Work that began before a flag was set continues:
//!
//! - the freeing of blocks,
//! - the writing of lazy times,
//! - the write-back of pages that a mapping has changed.

use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE, FL_SYNC, FLAGS_HIDDEN};
use pramfs_medium::types::{SetAttr, SetTime};

/// Flags that a write must check.
pub(crate) const WRITE_FLAGS: u32 = FL_SYNC | FL_IMMUTABLE | FL_APPEND;

const IMMUTABLE: Error = Error::NotPermitted("it is immutable (chattr +i)");
const APPEND_ONLY: Error = Error::NotPermitted("it can only grow (chattr +a)");

/// Checks that an inode may grow: it is not immutable. For a directory: names may be
/// added.
#[inline]
pub(crate) fn check_append(disk: &DiskInode) -> Result<()> {
    if disk.flags & FL_IMMUTABLE != 0 {
        return Err(IMMUTABLE);
    }
    Ok(())
}

/// Checks that any change of an inode is permitted: it is neither immutable nor
/// append-only. For a directory: names may be removed.
#[inline]
pub(crate) fn check_write(disk: &DiskInode) -> Result<()> {
    if disk.flags & (FL_IMMUTABLE | FL_APPEND) == 0 {
        return Ok(());
    }
    check_append(disk)?;
    Err(APPEND_ONLY)
}

/// Checks that the flags permit what `set` changes. A change of the flags themselves is
/// permitted.
pub(crate) fn check_set(disk: &DiskInode, set: &SetAttr) -> Result<()> {
    if disk.flags & (FL_IMMUTABLE | FL_APPEND) == 0 {
        return Ok(());
    }
    let times = (set.atime, set.mtime);
    // utimes(path, NULL) sets the times that a write sets, so it is permitted where a
    // write is. Other times are not.
    let touched = times == (Some(SetTime::Now), Some(SetTime::Now));
    let timed = times != (None, None) && !touched;
    let kept = set
        .flags
        .is_some_and(|f| f & disk.flags & FL_IMMUTABLE != 0);
    if kept && set.flags != Some(disk.flags & !FLAGS_HIDDEN) {
        return check_write(disk);
    }
    if set.size.is_some() || set.perm.is_some() || set.uid.is_some() || set.gid.is_some() || timed {
        return check_write(disk);
    }
    if touched {
        return check_append(disk);
    }
    Ok(())
}
