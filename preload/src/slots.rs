//! The leases of the process, which descriptors of the `table` name.
//!
//! Invariant: an entry that names a lease counts as one user of it, and so does each call that
//! uses it. The last user drops the lease.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pramfs_client::{Coherence, File};
use pramfs_preload_core::FileId;
use pramfs_preload_core::users::Users;

use crate::lease::{self, Wanted};
use crate::process::{Inside, is_sealed};
use crate::table::{Entry, epoch, hash, may_be_locked};
use crate::views;

const LEASES: usize = 256;

static SLOTS: [Slot; LEASES] = [const { Slot::new() }; LEASES];

/// In a forked child: the leases are its parent's, and are leaked. Async-signal-safe.
pub(crate) fn forget_all() {
    for slot in &SLOTS {
        slot.users.forget();
        slot.is_used.store(false, Ordering::Release);
    }
}

/// Takes the use of an entry back that the program has closed.
pub(crate) fn drop_use(slot: u16) {
    if let Some(slot) = SLOTS.get(usize::from(slot)) {
        slot.drop_user(true);
    }
}

/// A lease of the process, shared by all descriptors of the file.
struct Slot {
    /// Entries and calls that use it.
    users: Users,
    is_used: AtomicBool,
    generation: AtomicU64,
    device: AtomicU64,
    inode: AtomicU64,
    is_writable: AtomicBool,
    /// The file may be mapped by a lease to read: the server keeps programs from storing to it
    /// through the page cache.
    is_kept: AtomicBool,
    /// End of the part of the file that was mapped for stores.
    stored_end: AtomicU64,
    /// End of the part that was mapped.
    viewed_end: AtomicU64,
    /// Calls that did not find their blocks.
    misses: AtomicU64,
    /// Calls that found no room to append.
    growths: AtomicU64,
    /// The [`epoch`] in which it was taken.
    epoch: AtomicU64,
    file: UnsafeCell<MaybeUninit<File>>,
}

// SAFETY: `file` is written while `is_used` was false, by the thread inside, before `users`
// counts anybody; read only by users; and dropped by the last one.
unsafe impl Sync for Slot {}

impl Slot {
    const fn new() -> Slot {
        Slot {
            users: Users::new(),
            is_used: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            is_writable: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            stored_end: AtomicU64::new(0),
            viewed_end: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            growths: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            file: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// `closing`: the program closes a descriptor of the file, which releases its record locks
    /// in any case.
    fn drop_user(&self, closing: bool) {
        if self.users.end() {
            let (device, inode) = (&self.device, &self.inode);
            let hash = hash(
                device.load(Ordering::Relaxed),
                inode.load(Ordering::Relaxed),
            );
            match (closing || !may_be_locked(hash)) && !is_sealed() {
                true => self.drop_file(),
                // The lease stays until the process ends, or the file is opened again. Under a
                // filter it cannot be ended, and stores through its mappings are still to be
                // made durable.
                false => self.users.begin(),
            }
        }
    }

    #[cold]
    fn drop_file(&self) {
        // The client asks the server, and closes descriptors. A signal handler that has
        // interrupted this thread inside leaves the lease until the process ends.
        let Some(inside) = Inside::enter() else {
            return;
        };
        // SAFETY: initialized before the first user; this was the last one, and none can come
        // again.
        let file = unsafe { (*self.file.get()).assume_init_read() };
        let is_mapped = self.stored_end.load(Ordering::Acquire) > 0;
        let end = std::panic::AssertUnwindSafe(|| {
            if is_mapped {
                // Nobody asks for it later: the close of a file reports no such error.
                let _ = file.persist_mappings();
            }
            drop(file);
        });
        let dropped = std::panic::catch_unwind(end);
        self.is_used.store(false, Ordering::Release);
        drop((inside, dropped));
    }
}

/// A lease in use by a call.
pub(crate) struct Held {
    slot: &'static Slot,
    /// Its number and generation.
    number: u16,
    generation: u32,
}

impl Held {
    pub(crate) fn file(&self) -> &File {
        // SAFETY: this user was counted while others were, so it is initialized and stays.
        unsafe { (*self.slot.file.get()).assume_init_ref() }
    }

    /// Returns the entry of a descriptor with this lease.
    pub(crate) fn entry(&self, reads: bool, hidden: bool) -> Entry {
        Entry::Leased {
            slot: self.number,
            generation: self.generation,
            write: self.is_writable(),
            reads,
            hidden,
        }
    }

    /// Whether an entry is of a descriptor with this lease.
    pub(crate) fn is_of(&self, entry: Entry) -> bool {
        matches!(entry, Entry::Leased { slot, generation, .. }
            if (slot, generation) == (self.number, self.generation))
    }

    /// Counts the use of a permanent entry.
    pub(crate) fn count(self) {
        std::mem::forget(self);
    }

    /// Counts the use of an entry besides this one.
    pub(crate) fn and_count(self) -> Held {
        // It cannot fail: this user is counted.
        self.slot.users.add();
        self
    }

    /// Keeps the lease until the process ends.
    pub(crate) fn keep(&self) {
        self.slot.users.add();
    }

    /// Takes the use of an entry back.
    pub(crate) fn uncount(self) -> Held {
        self.slot.drop_user(false);
        self
    }

    /// Whether other processes may share the descriptors of the file since the lease was taken.
    pub(crate) fn may_be_shared(&self) -> bool {
        self.slot.epoch.load(Ordering::Relaxed) != u64::from(epoch())
    }

    /// Returns the number of entries and calls that use the lease.
    pub(crate) fn users(&self) -> u64 {
        self.slot.users.count()
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.slot.is_writable.load(Ordering::Relaxed)
    }

    pub(crate) fn inode(&self) -> u16 {
        let FileId { device, inode } = self.id();
        hash(device, inode)
    }

    /// Returns the file, also for other leases of it.
    pub(crate) fn id(&self) -> FileId {
        FileId {
            device: self.slot.device.load(Ordering::Relaxed),
            inode: self.slot.inode.load(Ordering::Relaxed),
        }
    }

    /// Whether the file may be mapped. Asks the server before the first mapping by a lease to read.
    pub(crate) fn may_be_mapped(&self, _: &Inside) -> bool {
        let slot = self.slot;
        if self.is_writable() || slot.is_kept.load(Ordering::Acquire) {
            return true;
        }
        let is_kept = self.file().cohere(Coherence::Kept).is_ok();
        slot.is_kept.store(is_kept, Ordering::Release);
        is_kept
    }

    /// Lets programs store to the file through the page cache again, if no mapping is left.
    fn give_back(&self, _: &Inside) {
        let slot = self.slot;
        if slot.is_kept.load(Ordering::Acquire) && !views::mapped(self.id()).anyhow {
            slot.is_kept.store(false, Ordering::Release);
            // If the server does not learn it, it keeps them away until the lease ends.
            let _ = self.file().cohere(Coherence::Recalled);
        }
    }

    /// Notes that the file is mapped up to here, perhaps for stores.
    pub(crate) fn note_view(&self, end: u64, stores: bool) {
        self.slot.viewed_end.fetch_max(end, Ordering::AcqRel);
        if stores {
            self.slot.stored_end.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Counts a call that did not find its blocks. True for the first one, and for every
    /// fourth one from then on.
    pub(crate) fn misses_often(&self) -> bool {
        let before = self.slot.misses.fetch_add(1, Ordering::Relaxed);
        before.is_multiple_of(4)
    }

    /// Counts a write at the end that found no room. True from the eighth on.
    pub(crate) fn grows_often(&self) -> bool {
        self.slot.growths.fetch_add(1, Ordering::Relaxed) >= 7
    }

    /// No mapping for stores is left. One that is made meanwhile is noted after this, or seen here.
    pub(crate) fn forget_stores(&self) {
        let end = self.slot.stored_end.swap(0, Ordering::AcqRel);
        if views::mapped(self.id()).for_stores {
            self.slot.stored_end.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Returns the end of the part that was mapped for stores.
    pub(crate) fn stored_end(&self) -> u64 {
        self.slot.stored_end.load(Ordering::Acquire)
    }

    pub(crate) fn of(number: u16, generation: u32) -> Option<Held> {
        let slot = SLOTS.get(usize::from(number))?;
        if !slot.users.add() {
            return None;
        }
        let held = Held {
            slot,
            number,
            generation,
        };
        // Another lease may be there by now.
        (slot.generation.load(Ordering::Relaxed) as u32 == generation).then_some(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.slot.drop_user(false);
    }
}

/// Notes that the program may store to what it has mapped there from now on.
pub(crate) fn views_may_be_stored_to(at: u64, len: u64) {
    for held in writable(|slot| slot.viewed_end.load(Ordering::Acquire) != 0) {
        if views::shows(at, len, held.id()) {
            let end = held.slot.viewed_end.load(Ordering::Acquire);
            held.slot.stored_end.fetch_max(end, Ordering::AcqRel);
        }
    }
}

/// Returns the leases whose slots are as wanted.
fn wanted(is_wanted: impl Fn(&Slot) -> bool) -> impl Iterator<Item = Held> {
    (0..LEASES as u16).filter_map(move |number| {
        let slot = &SLOTS[usize::from(number)];
        if !slot.is_used.load(Ordering::Acquire) || !is_wanted(slot) {
            return None;
        }
        Held::of(number, slot.generation.load(Ordering::Relaxed) as u32)
    })
}

/// Returns the leases to write whose slots are as wanted.
fn writable(is_wanted: impl Fn(&Slot) -> bool) -> impl Iterator<Item = Held> {
    wanted(is_wanted).filter(Held::is_writable)
}

/// Called when views are gone. Mappings are made inside, so none is being made.
pub(crate) fn views_gone() {
    let is_kept = |slot: &Slot| slot.is_kept.load(Ordering::Acquire);
    if wanted(is_kept).next().is_none() {
        return;
    }
    if let Some(inside) = Inside::enter() {
        let kept: Vec<Held> = wanted(is_kept).collect();
        lease::guarded(|| {
            kept.iter().for_each(|held| held.give_back(&inside));
            Some(())
        });
        // The last user leaves outside.
        drop(inside);
        drop(kept);
    }
}

/// Returns the leases to write whose files are mapped for stores.
pub(crate) fn stored_to() -> impl Iterator<Item = Held> {
    writable(|slot| slot.stored_end.load(Ordering::Acquire) != 0)
}

/// Returns the leases to write of the files with a hash.
pub(crate) fn writers(inode: u16) -> impl Iterator<Item = Held> {
    writable(|_| true).filter(move |held| held.inode() == inode)
}

/// Returns the leases to write whose files were never mapped.
pub(crate) fn not_mapped() -> impl Iterator<Item = Held> {
    writable(|slot| slot.viewed_end.load(Ordering::Acquire) == 0)
}

/// Returns the lease of a file, if the process has one. Waits for nothing.
pub(crate) fn find(device: u64, inode: u64, write: bool) -> Option<Held> {
    (0..LEASES as u16).find_map(|number| {
        let slot = &SLOTS[usize::from(number)];
        let is_same = || {
            slot.is_used.load(Ordering::Acquire)
                && slot.device.load(Ordering::Relaxed) == device
                && slot.inode.load(Ordering::Relaxed) == inode
                && slot.is_writable.load(Ordering::Relaxed) == write
        };
        if !is_same() {
            return None;
        }
        // Nothing of it changes while it is held.
        Held::of(number, slot.generation.load(Ordering::Acquire) as u32).filter(|_| is_same())
    })
}

/// Whether there is room for another lease, of so many.
pub(crate) fn has_room(most: usize) -> bool {
    let used = SLOTS
        .iter()
        .filter(|slot| slot.is_used.load(Ordering::Acquire));
    used.count() < most.min(LEASES)
}

/// Adds a lease. `None` if there is no room.
pub(crate) fn add(_: &Inside, file: File, device: u64, inode: u64, wanted: Wanted) -> Option<Held> {
    let number = SLOTS
        .iter()
        .position(|slot| !slot.is_used.load(Ordering::Acquire))?;
    let slot = &SLOTS[number];
    let generation = (slot.generation.fetch_add(1, Ordering::Relaxed) + 1) as u32;
    slot.device.store(device, Ordering::Relaxed);
    slot.inode.store(inode, Ordering::Relaxed);
    slot.is_writable
        .store(wanted.is_to_write(), Ordering::Relaxed);
    slot.is_kept.store(false, Ordering::Relaxed);
    slot.stored_end.store(0, Ordering::Relaxed);
    slot.viewed_end.store(0, Ordering::Relaxed);
    slot.misses.store(0, Ordering::Relaxed);
    slot.growths.store(0, Ordering::Relaxed);
    slot.epoch.store(epoch().into(), Ordering::Relaxed);
    // SAFETY: nobody uses the slot: it has no users, and only the thread inside takes one.
    unsafe { (*slot.file.get()).write(file) };
    slot.is_used.store(true, Ordering::Relaxed);
    slot.users.begin();
    let held = Held {
        slot,
        number: number as u16,
        generation,
    };
    // Mappings by an earlier lease are mappings of this file too. Only now: one that becomes
    // writable before is in the list, and one that does so later finds the lease.
    let mapped = views::mapped(FileId { device, inode });
    slot.viewed_end
        .fetch_max(mapped.anyhow.into(), Ordering::AcqRel);
    slot.stored_end
        .fetch_max(mapped.for_stores.into(), Ordering::AcqRel);
    Some(held)
}
