//! The chattr flags that forbid something: immutable (+i) and append-only (+a).
//!
//! The kernel does not know of them in a FUSE file system, so the engine
//! refuses by itself what ext4 and the kernel refuse together, with EPERM. Who
//! may set and clear the flags is the front end's business.
//!
//! What was begun before a flag was set goes on: blocks that are freed for it,
//! lagging times, pages that a mapping has changed.

use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE, FL_LOST, FL_SYNC};
use pramfs_medium::types::{SetAttr, SetTime};

/// Flags that a write must check.
pub(crate) const WRITE_FLAGS: u32 = FL_SYNC | FL_IMMUTABLE | FL_APPEND;

const IMMUTABLE: Error = Error::NotPermitted("it is immutable (chattr +i)");
const APPEND_ONLY: Error = Error::NotPermitted("it can only grow (chattr +a)");

/// Nothing of it may change, but that it may grow.
#[inline]
pub(crate) fn check_append(d: &DiskInode) -> Result<()> {
    if d.flags & FL_IMMUTABLE != 0 {
        return Err(IMMUTABLE);
    }
    Ok(())
}

/// It may be changed in any way. Of a directory: names may be removed.
#[inline]
pub(crate) fn check_write(d: &DiskInode) -> Result<()> {
    if d.flags & (FL_IMMUTABLE | FL_APPEND) == 0 {
        return Ok(());
    }
    check_append(d)?;
    Err(APPEND_ONLY)
}

/// Checks that the flags permit what `set` changes. A change of the flags themselves is
/// permitted.
pub(crate) fn check_set(d: &DiskInode, set: &SetAttr) -> Result<()> {
    if d.flags & (FL_IMMUTABLE | FL_APPEND) == 0 {
        return Ok(());
    }
    let times = (set.atime, set.mtime);
    // utimes(path, NULL) is what a write does; any other time is not.
    let touched = times == (Some(SetTime::Now), Some(SetTime::Now));
    let timed = times != (None, None) && !touched;
    let kept = set.flags.is_some_and(|f| f & d.flags & FL_IMMUTABLE != 0);
    if kept && set.flags != Some(d.flags & !FL_LOST) {
        return check_write(d);
    }
    if set.size.is_some() || set.perm.is_some() || set.uid.is_some() || set.gid.is_some() || timed {
        return check_write(d);
    }
    if touched {
        return check_append(d);
    }
    Ok(())
}
