//! What is known about the numbers of descriptors. A lookup takes no lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(crate) use pramfs_preload_core::entry::{Entry, hash};

use crate::process::{Changing, is_inside, is_sealed, may_wait, notice_fork, owns_memory, pause};
use crate::slots::{self, Held};
use crate::{devices, views};

/// Descriptors with higher numbers are left to the mount.
pub(crate) const DESCRIPTORS: usize = 4096;

/// Descriptors that are files of a mount.
static TABLE: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];
/// One more than the highest number that was ever noted.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Hashes of inodes on which this process has taken record locks. Closing any descriptor
/// of such a file would release them.
static LOCKED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

fn word(fd: i32) -> Option<&'static AtomicU64> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Whether anything can be noted about a descriptor.
pub(crate) fn is_tracked(fd: i32) -> bool {
    word(fd).is_some()
}

/// Returns what is known about a descriptor.
#[inline]
pub(crate) fn entry(fd: i32) -> Entry {
    word(fd).map_or(Entry::Unknown, |word| {
        Entry::decode(word.load(Ordering::Acquire))
    })
}

/// Notes a new descriptor. A lease in the entry must have been [counted](Held::count).
/// False if its number is too high.
pub(crate) fn set(fd: i32, entry: Entry) -> bool {
    let Some(word) = word(fd) else {
        return false;
    };
    USED.fetch_max(fd as usize + 1, Ordering::Relaxed);
    let old = word.swap(entry.encode(), Ordering::AcqRel);
    drop_entry(Entry::decode(old));
    true
}

/// Notes what is known about a descriptor, if that was not changed meanwhile. False if it was, or if
/// its number is too high.
pub(crate) fn note(fd: i32, old: Entry, new: Entry) -> bool {
    if is_tracked(fd) {
        USED.fetch_max(fd as usize + 1, Ordering::Relaxed);
    }
    replace(fd, old, new)
}

/// Changes an entry if it is still the given one.
pub(crate) fn replace(fd: i32, old: Entry, new: Entry) -> bool {
    word(fd).is_some_and(|word| {
        word.compare_exchange(
            old.encode(),
            new.encode(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_ok()
    })
}

/// Forgets a descriptor that is about to be closed or replaced.
pub(crate) fn forget(fd: i32) {
    if entry(fd) != Entry::Unknown && owns_memory() {
        settle(fd);
        set(fd, Entry::Unknown);
    }
}

/// Called before a use of a descriptor's description that a replacement would not keep: its
/// position, its locks, copies. Waits for a replacement in progress, and allows none from then
/// on.
#[inline]
pub(crate) fn settle(fd: i32) {
    if matches!(entry(fd), Entry::Growing { .. } | Entry::Changing { .. }) {
        settle_slowly(fd);
    }
}

#[cold]
fn settle_slowly(fd: i32) {
    loop {
        let old = entry(fd);
        match old {
            Entry::Growing { inode, .. } => {
                if replace(fd, old, Entry::plain(inode)) {
                    return;
                }
            }
            // A signal handler must not wait for the thread that it has interrupted.
            Entry::Changing { .. } if may_wait() => {
                pause(std::time::Duration::from_micros(50));
            }
            _ => return,
        }
    }
}

/// Waits for a replacement in progress of a descriptor. A signal handler does not.
#[inline]
pub(crate) fn await_change(fd: i32) {
    while matches!(entry(fd), Entry::Changing { .. }) && may_wait() {
        pause(std::time::Duration::from_micros(50));
    }
}

/// Replacements of descriptors in progress. Each closes a description, which releases the
/// record locks of the process on that file.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// A replacement of a descriptor.
pub(crate) struct Change {
    _changing: Changing,
}

impl Change {
    /// `None` if the process may have record locks on the file, or a filter.
    pub(crate) fn begin(inode: u16) -> Option<Change> {
        // Before the look at the locks: `note_lock` does the opposite. So does who sets a filter.
        CHANGES.fetch_add(1, Ordering::SeqCst);
        let change = Change {
            _changing: Changing::begin(),
        };
        (!may_be_locked(inode) && !is_sealed()).then_some(change)
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        // In a child that a signal handler has forked it may be zero already.
        let _ = CHANGES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    }
}

/// Changes when descriptions may have become shared with another process.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// Returns the number of times at which all descriptions may have become shared.
pub(crate) fn epoch() -> u16 {
    EPOCH.load(Ordering::SeqCst) as u16
}

/// Notes a fork, or descriptors in a message.
pub(crate) fn note_sharing() {
    EPOCH.fetch_add(1, Ordering::SeqCst);
}

/// As [`note_sharing`], before the descriptions are shared: a replacement of a descriptor that
/// has not seen it ends first.
pub(crate) fn begin_sharing() {
    note_sharing();
    await_changes();
}

/// Waits for the replacements in progress. A signal handler that has interrupted one does not.
pub(crate) fn await_changes() {
    while CHANGES.load(Ordering::SeqCst) != 0 && may_wait() {
        pause(std::time::Duration::from_micros(50));
    }
}

/// Forgets the descriptors of a range.
pub(crate) fn forget_range(first: u32, last: u32) {
    let used = USED.load(Ordering::Relaxed) as u32;
    for fd in first..used.min(last.saturating_add(1)) {
        forget(fd as i32);
    }
}

/// Passes the calls of a descriptor, and of all others with its lease, to the mount.
pub(crate) fn pass_copies(fd: i32) {
    if let Some(held) = hold(entry(fd)) {
        pass_lease(&held);
    }
}

/// Passes the calls of all descriptors with a lease to the mount.
pub(crate) fn pass_lease(held: &Held) {
    let inode = held.inode();
    let locked = may_be_locked(inode);
    for fd in 0..USED.load(Ordering::Relaxed) as i32 {
        let same = entry(fd);
        let hidden = same.hides_direct();
        if held.is_of(same) && replace(fd, same, Entry::Mount { inode, hidden }) {
            drop_entry(same);
        }
    }
    if locked {
        // Its end would close a descriptor of the file. It stays until the process ends.
        held.keep();
    }
}

/// Returns the descriptors with a lease, and their entries.
pub(crate) fn with_lease(held: &Held) -> Vec<(i32, Entry)> {
    (0..USED.load(Ordering::Relaxed) as i32)
        .map(|fd| (fd, entry(fd)))
        .filter(|(_, entry)| held.is_of(*entry))
        .collect()
}

/// Whether a descriptor has O_DIRECT set, of which the program does not know. In a child of vfork the
/// number may be another file by now.
pub(crate) fn hides_direct(fd: i32) -> bool {
    let entry = entry(fd);
    entry.hides_direct() && (owns_memory() || shows(fd, entry))
}

/// Whether a descriptor is the file of an entry.
pub(crate) fn shows(fd: i32, entry: Entry) -> bool {
    let inode = entry.inode().or_else(|| Some(hold(entry)?.inode()));
    inode.is_some() && devices::inode_of(fd) == inode
}

/// Notes what the program has asked for, of a descriptor that keeps O_DIRECT while it has a lease to
/// write. True if it does.
pub(crate) fn keeps_direct(fd: i32, is_asked_for: bool) -> bool {
    loop {
        let old = entry(fd);
        let Entry::Leased {
            slot,
            generation,
            write: true,
            reads,
            ..
        } = old
        else {
            return false;
        };
        let new = Entry::Leased {
            slot,
            generation,
            write: true,
            reads,
            hidden: !is_asked_for,
        };
        if !owns_memory() || old == new || replace(fd, old, new) {
            return owns_memory();
        }
    }
}

/// Passes the calls of all descriptors of a file to the mount.
pub(crate) fn pass_file(device: u64, inode: u64) {
    for write in [false, true] {
        if let Some(held) = slots::find(device, inode, write) {
            pass_lease(&held);
        }
    }
}

/// Passes the calls of all descriptors to the mount.
pub(crate) fn pass_all() {
    for fd in 0..USED.load(Ordering::Relaxed) as i32 {
        pass_copies(fd);
    }
}

/// Notes that `new` is a copy of `fd`.
pub(crate) fn copy(fd: i32, new: i32) {
    if is_sealed() {
        // This may be a child of vfork, whose table is that of its parent: under this number the
        // parent can have another file. Only a system call could tell, which the filter may
        // forbid. Nothing known about a number is right for both.
        if entry(new) != Entry::Unknown {
            set(new, Entry::Unknown);
        }
        return;
    }
    settle(fd);
    let old = entry(fd);
    if old == Entry::Unknown && entry(new) == Entry::Unknown || !owns_memory() {
        return;
    }
    if let Some(held) = hold(old) {
        held.count();
    } else if matches!(old, Entry::Leased { .. }) {
        // Closed meanwhile.
        set(new, Entry::Unknown);
        return;
    }
    if !set(new, old) {
        drop_entry(old);
    }
}

/// In a forked child: nothing is known about its descriptors. The leases are its parent's,
/// and are leaked. Async-signal-safe.
pub(crate) fn forget_all() {
    for word in &TABLE[..USED.load(Ordering::Relaxed)] {
        word.store(0, Ordering::Relaxed);
    }
    CHANGES.store(0, Ordering::Relaxed);
    views::forked();
    slots::forget_all();
}

/// Uses the lease of an entry. `None` if it has none, or none any more.
#[inline]
pub(crate) fn hold(entry: Entry) -> Option<Held> {
    notice_fork();
    match entry {
        Entry::Leased {
            slot, generation, ..
        } => Held::of(slot, generation),
        _ => None,
    }
}

fn drop_entry(entry: Entry) {
    if let Entry::Leased { slot, .. } = entry {
        slots::drop_use(slot);
    }
}

/// Notes that this process takes locks on the file of a descriptor: record locks, which end
/// with any descriptor of the file, or locks of the description.
pub(crate) fn note_lock(fd: i32) {
    settle(fd);
    let entry = entry(fd);
    let inode = match entry {
        // Opened in a way that was not seen: by stdio, by the parent.
        Entry::Unknown => match crate::devices::inode_of(fd) {
            Some(inode) => inode,
            None => return,
        },
        Entry::Mount { inode, .. }
        | Entry::Candidate { inode, .. }
        | Entry::Growing { inode, .. }
        | Entry::Changing { inode } => inode,
        Entry::Leased { .. } => match hold(entry) {
            Some(held) => held.inode(),
            None => return,
        },
    };
    let (at, bit) = (usize::from(inode) / 64, 1 << (inode % 64));
    LOCKED[at].fetch_or(bit, Ordering::SeqCst);
    await_changes();
}

/// Whether this process may have taken record locks on a file.
pub(crate) fn may_be_locked(inode: u16) -> bool {
    LOCKED[usize::from(inode) / 64].load(Ordering::SeqCst) & 1 << (inode % 64) != 0
}

/// Whether a number belongs to the library itself: the program must not close or replace it.
pub(crate) fn is_own(fd: i32) -> bool {
    !is_inside() && pramfs_client::is_kept_descriptor(fd)
}
