//! Files that were empty when they were opened. They grow through the mount at first; a program
//! that then overwrites or maps what is there gets a lease: its descriptor is replaced as if it
//! had just been opened.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::devices::stat;
use crate::lease::{Refused, flags, guarded, write_lease};
use crate::process::{self, Changing, Inside, may_wait, owns_memory};
use crate::slots::Held;
use crate::table::{self, Entry};
use crate::{real, settings};

/// Reads and overwrites by offset before a file that was empty gets a lease. With
/// [`settings::may_append`], growing writes count too.
const EARLY: u8 = 64;

/// Ends of the writes by offset to files that were empty, by descriptor.
static ENDS: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];

/// Counts a call on a file that was empty when it was opened, which ends at this offset. If
/// such calls read or overwrite what is there, the file gets a lease: its descriptor is
/// replaced as if it had just been opened.
#[cold]
pub(crate) fn count_growing(fd: c_int, old: Entry, end: u64, write: bool) -> Option<Held> {
    let Entry::Growing {
        inode,
        calls,
        epoch,
    } = old
    else {
        return None;
    };
    let highest = usize::try_from(fd).ok().and_then(|fd| ENDS.get(fd))?;
    if calls == 0 {
        highest.store(0, Ordering::Relaxed);
    }
    let before = match write {
        true => highest.fetch_max(end, Ordering::Relaxed),
        false => u64::MAX,
    };
    let counts = end <= before || settings::may_append();
    if calls == 0 || counts && calls < EARLY {
        let calls = calls + 1;
        table::replace(
            fd,
            old,
            Entry::Growing {
                inode,
                calls,
                epoch,
            },
        );
        return None;
    }
    match counts {
        true => replace_growing(fd, old, inode, epoch),
        false => None,
    }
}

/// Gets a lease for a file that was empty when it was opened, and is now to be mapped.
#[cold]
pub(crate) fn take_growing(fd: c_int) -> Option<Held> {
    let old = table::entry(fd);
    match old {
        Entry::Growing { inode, epoch, .. } => replace_growing(fd, old, inode, epoch),
        _ => None,
    }
}

fn replace_growing(fd: c_int, old: Entry, inode: u16, epoch: u16) -> Option<Held> {
    if process::is_sealed() || !owns_memory() || !may_wait() {
        return None;
    }
    // Before the descriptor changes.
    process::make_forks_wait(&Inside::enter()?);
    let errno = real::errno();
    let this_thread = Changing::begin();
    let changing = Entry::Changing { inode };
    if !table::replace(fd, old, changing) {
        return None;
    }
    let lease = guarded(|| Some(replaced_lease(fd, inode, epoch)));
    let (new, held) = match lease {
        Some(Ok(held)) => (held.entry(true, true), Some(held.and_count())),
        Some(Err(Refused { hidden })) => (Entry::Mount { inode, hidden }, None),
        None => (Entry::plain(inode), None),
    };
    let replaced = table::replace(fd, changing, new);
    drop(this_thread);
    real::set_errno(errno);
    match replaced {
        true => held,
        // Closed by a signal handler.
        false => held.map(Held::uncount),
    }
}

/// Replaces a descriptor whose position was never used.
fn replaced_lease(fd: c_int, inode: u16, epoch: u16) -> Result<Held, Refused> {
    // Before the look at the epoch: who shares descriptions changes it, and then waits for this.
    let Some(_change) = table::Change::begin(inode) else {
        return Err(Refused::default());
    };
    let (Some(flags), Some(stat)) = (flags(fd), stat(fd)) else {
        return Err(Refused::default());
    };
    // SAFETY: asks for the position.
    let position = unsafe { real::lseek64(fd, 0, libc::SEEK_CUR) };
    let is_new = epoch == table::epoch()
        && table::hash(stat.st_dev, stat.st_ino) == inode
        && stat.st_size > 0
        && position == 0;
    match is_new {
        true => write_lease(fd, flags, &stat),
        false => Err(Refused::default()),
    }
}
