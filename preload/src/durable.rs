//! Makes writes, and stores through mappings, durable.
//!
//! Writes are durable when they return. Stores through mappings become so by msync(2), which the
//! kernel does, or by fsync(2) and its relatives: with a lease to write, by a sync of the whole
//! region, which also makes those durable whose mapping is gone; without one, by a sync of each
//! mapping of the file that is there. So an fsync of any descriptor of a file has all stores of the
//! process, whatever became of its leases.

use std::os::fd::AsRawFd as _;

use libc::c_int;
use pramfs_preload_core::FileId;

use crate::devices::stat;
use crate::lease::guarded;
use crate::process::{Inside, is_inside, is_sealed, notice_fork};
use crate::slots::{self, Held};
use crate::table::{self, Entry};
use crate::{real, regions, views};

/// Whether the program may have stored to a file through a mapping.
fn is_mapped(held: &Held) -> bool {
    held.stored_end() > 0
}

/// Whether fdatasync(2) of a descriptor has nothing to do: a write is durable when it returns, by
/// the library or by the mount; no page of the file is in the kernel's cache while there is a lease
/// to write; and the program has stored nothing through a mapping.
pub(crate) fn is_durable(fd: c_int) -> bool {
    if table::entry(fd) == Entry::Unknown || is_inside() {
        return false;
    }
    let entry = table::entry(fd);
    matches!(entry, Entry::Leased { write: true, .. })
        && table::hold(entry).is_some_and(|held| {
            !is_mapped(&held)
                && guarded(|| held.file().fences_are_durable().then_some(())).is_some()
        })
}

/// Makes stores through mappings of the file of a descriptor durable. False if that failed. `sync`: the call that the program has made. Keeps errno if that succeeds.
pub(crate) fn flush(fd: c_int, sync: unsafe fn(c_int) -> c_int) -> bool {
    if !regions::are_any() || is_inside() {
        return true;
    }
    if is_sealed() {
        // Copies are not noted, a child of vfork may have closed its own, and no other call may be
        // made than that of the program.
        return flush_leases(sync);
    }
    match table::hold(table::entry(fd)) {
        Some(held) if is_mapped(&held) => return persist(&held, sync),
        // It knows of all mappings for stores.
        Some(held) if held.is_writable() => return true,
        _ => {}
    }
    let errno = real::errno();
    let stat = stat(fd);
    real::set_errno(errno);
    // The call of the program fails by itself.
    let Some(stat) = stat else {
        return true;
    };
    match slots::find(stat.st_dev, stat.st_ino, true) {
        Some(held) if is_mapped(&held) => persist(&held, sync),
        _ => {
            let (device, inode) = (stat.st_dev, stat.st_ino);
            views::flush(|file| file == FileId { device, inode })
        }
    }
}

/// Makes stores through all mappings durable, or through those of files on the device of a
/// descriptor. Not under a filter.
pub(crate) fn flush_all(of: Option<c_int>) -> bool {
    if !regions::are_any() || is_inside() {
        return true;
    }
    // The leases of the parent are not this process's.
    notice_fork();
    let errno = real::errno();
    let device = of.and_then(stat).map(|stat| stat.st_dev);
    real::set_errno(errno);
    let leases = flush_leases(real::fsync);
    leases & views::flush(|file| device.is_none_or(|device| file.device == device))
}

/// Makes the regions of all leases durable whose files are mapped for stores.
fn flush_leases(sync: unsafe fn(c_int) -> c_int) -> bool {
    let failed = slots::stored_to().filter(|held| !persist(held, sync));
    failed.count() == 0
}

/// Makes the region of a lease durable, by the call that the program has made where another one may
/// be forbidden. False if that failed.
fn persist(held: &Held, sync: unsafe fn(c_int) -> c_int) -> bool {
    let Some(_inside) = Inside::enter() else {
        // In a signal handler, or under a seccomp filter: the mtime is left alone.
        let synced = guarded(|| {
            held.file().with_region(|region| {
                // SAFETY: the descriptor is open while it is borrowed.
                unsafe { sync(region.as_raw_fd()) == 0 }
            })
        });
        return synced == Some(true);
    };
    guarded(|| held.file().persist_mappings().ok()).is_some()
}

/// Notes that the program may have stored to all its mappings: it ends. Makes no system call.
pub(crate) fn note_all_stores() {
    for held in slots::stored_to() {
        guarded(|| held.file().note_change().ok());
    }
}

/// Called before the program sets times. If all mappings of a file for stores are gone, it is noted now
/// that it was stored to, and not by a later fsync or close: the server sets the mtime for that, and
/// the times of the program after it. Keeps errno.
#[cold]
pub(crate) fn settle_times() {
    if is_inside() || is_sealed() || !notice_fork() || !views::are_settled() {
        return;
    }
    for held in slots::stored_to() {
        if !views::mapped(held.id()).for_stores && note_change(&held) {
            held.forget_stores();
        }
    }
}

/// False in a handler that has interrupted the library, and if the medium fails.
fn note_change(held: &Held) -> bool {
    let Some(_inside) = Inside::enter() else {
        return false;
    };
    guarded(|| held.file().note_change().ok()).is_some()
}

/// Notes that the program may have stored to its mappings in a range.
pub(crate) fn note_stores(at: u64, len: u64) {
    notice_fork();
    for held in slots::stored_to() {
        if !views::shows(at, len, held.id()) {
            continue;
        }
        note_change(&held);
    }
}
