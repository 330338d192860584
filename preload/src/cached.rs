//! Files that this process may store to through mappings of the kernel's page cache.
//!
//! Such a store reaches the medium at the write-back of its page, so a reader of the medium does
//! not see it until then. Invariant: no descriptor has a lease to read of such a file. Whoever
//! makes a mapping notes the file, and then looks for leases; whoever takes a lease makes it
//! known, and then looks for the note. So one of the two finds the other.
//!
//! A note stays until the process ends: a mapping outlives its descriptor, and is inherited.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use libc::c_int;

use crate::process::is_sealed;
use crate::slots::{self, Held};
use crate::table::{self, Entry};
use crate::{devices, real, views};

/// Mappings of the files with each hash: those that were made, and those that are being made.
static MADE: [AtomicU32; 1 << 16] = [const { AtomicU32::new(0) }; 1 << 16];

/// Whether the process may store to a file through the page cache.
pub(crate) fn may_be_stored_to(inode: u16) -> bool {
    fence(Ordering::SeqCst);
    MADE[usize::from(inode)].load(Ordering::SeqCst) != 0
}

/// Whether a lease to read, which a descriptor has from now on, may stay. If not, the descriptors
/// of the file go on through the mount.
pub(crate) fn allows(held: &Held) -> bool {
    let may = held.is_writable() || !may_be_stored_to(held.inode());
    if !may {
        table::pass_lease(held);
    }
    may
}

/// A mapping that the kernel is about to make, of a file with this hash if it is one for stores.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapping(Option<u16>);

impl Mapping {
    /// It was not made.
    pub(crate) fn failed(self) {
        if let Some(inode) = self.0 {
            MADE[usize::from(inode)].fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Called before the kernel makes a shared mapping of a descriptor. Ends the leases to read of
/// its file if the program can store through the mapping, now or after mprotect(2). Keeps errno.
///
/// `None` if the library has mapped the file by a lease to read, which would not show the stores:
/// then the mapping is refused, as the kernel refuses it beside a lease to write.
pub(crate) fn begin_mapping(fd: c_int, writes: bool) -> Option<Mapping> {
    let errno = real::errno();
    let begun = match stored_to(fd, writes) {
        None => Some(Mapping(None)),
        Some(inode) => begin(fd, inode),
    };
    real::set_errno(errno);
    begun
}

/// Returns the hash of the file of a descriptor, if a mapping of it could be one for stores.
fn stored_to(fd: c_int, writes: bool) -> Option<u16> {
    let inode = match table::entry(fd) {
        // Open for reading only; or not through the page cache, which the kernel refuses.
        Entry::Candidate { .. } | Entry::Leased { .. } => None,
        // Opened in a way that was not seen.
        Entry::Unknown if writes || is_open_for_stores(fd) => devices::inode_of(fd),
        Entry::Unknown => None,
        Entry::Mount { inode, .. } | Entry::Growing { inode, .. } | Entry::Changing { inode } => {
            Some(inode)
        }
    };
    inode.filter(|_| writes || is_open_for_stores(fd))
}

fn begin(fd: c_int, inode: u16) -> Option<Mapping> {
    MADE[usize::from(inode)].fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let mapping = Mapping(Some(inode));
    for held in slots::readers(inode) {
        table::pass_lease(&held);
    }
    // A filter may forbid the question.
    let file = match views::are_any() && !is_sealed() {
        true => devices::id(fd),
        false => None,
    };
    if file.is_some_and(|file| views::mapped(file).anyhow) {
        mapping.failed();
        return None;
    }
    Some(mapping)
}

/// Whether mprotect(2) could allow stores later.
fn is_open_for_stores(fd: c_int) -> bool {
    // A filter may forbid the question.
    is_sealed() || {
        // SAFETY: asks for flags.
        let flags = unsafe { real::fcntl64(fd, libc::F_GETFL, 0) };
        flags >= 0 && flags & libc::O_ACCMODE == libc::O_RDWR
    }
}
