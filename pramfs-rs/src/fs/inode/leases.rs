//! The leases of an inode, and the words that their holders watch.
//!
//! Invariant: the list changes only under the exclusive lock of the inode, together with
//! the slots on the medium. While it is not empty, no block leaves the map of the inode
//! (rule 6 of `docs/consistency.md`).

use pramfs_medium::error::Result;
use pramfs_medium::media::lease::{Lease, STORED_OFFSET, VIEW_OFFSET};
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::sync::atomic::{Ordering, fence};
use pramfs_medium::sync::order::release;
use pramfs_medium::types::{Ino, LeaseMode, RegionOffset};
use pramfs_medium::volume::Volume;

/// The slots of an inode. Boxed as a whole: few inodes have any.
#[derive(Debug, Default)]
#[allow(
    clippy::box_collection,
    reason = "a vector is three words in each inode, the box is one"
)]
pub(crate) struct Leases(Option<Box<Vec<Slot>>>);

#[derive(Debug, Clone, Copy)]
struct Slot {
    number: u32,
    at: RegionOffset,
}

impl Leases {
    /// Whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Adds a slot, whose line 0 is durable at `at`.
    pub(crate) fn add(&mut self, number: u32, at: RegionOffset) {
        self.0.get_or_insert_default().push(Slot { number, at });
    }

    /// Removes a slot.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(slots) = &mut self.0 {
            slots.retain(|slot| slot.number != number);
        }
        self.0.take_if(|slots| slots.is_empty());
    }

    /// Shows the holder of a new slot, which is the last one, the size.
    #[cold]
    pub(crate) fn show_new(&self, vol: &Volume, size: u64) -> Result<()> {
        match self.0.as_ref().and_then(|slots| slots.last()) {
            Some(slot) => slot.show(vol, true, size),
            None => Ok(()),
        }
    }

    /// Whether a holder has stored to the file since the last call.
    #[cold]
    pub(crate) fn take_stored(&self, vol: &Volume) -> Result<bool> {
        let mut slots = self.0.iter().flat_map(|slots| slots.iter());
        slots.try_fold(false, |any, slot| Ok(slot.take_stored(vol)? | any))
    }

    /// Shows the holders a new size, and, if `layout`, that blocks below the old size have
    /// changed. The homes of the change are stored.
    #[cold]
    pub(crate) fn show(&self, vol: &Volume, layout: bool, size: u64) -> Result<()> {
        let mut slots = self.0.iter().flat_map(|slots| slots.iter());
        slots.try_for_each(|slot| slot.show(vol, layout, size))
    }
}

impl Slot {
    /// The counter never starts again: the holder of an earlier lease may watch it.
    fn show(&self, vol: &Volume, layout: bool, size: u64) -> Result<()> {
        let (w, view) = (vol.region.window(), self.at + VIEW_OFFSET);
        // A reader loads the counter before the size, and again after its copy. So a new
        // layout never has the larger size of the old one, and a larger size never belongs to
        // the old layout.
        if size < vol.medium().load_u64(view.word(1))? {
            w.store_u64_unflushed(view.word(1).0, size)?;
        }
        if layout {
            let now = vol.medium().load_u64(view)?;
            w.store_u64_unflushed(view.0, now.wrapping_add(1))?;
        }
        w.store_u64_unflushed(view.word(1).0, size)?;
        // The stores of the next change come after the counter. So a reader that copies one
        // of them sees the counter too.
        fence(release("lease-shown"));
        Ok(())
    }

    /// A note between the load and the store is lost, but not its effect: the caller takes
    /// the time afterwards.
    fn take_stored(&self, vol: &Volume) -> Result<bool> {
        let stored = self.at + STORED_OFFSET;
        let noted = vol.medium().load_u64(stored)? != 0;
        if noted {
            vol.region.window().store_u64_unflushed(stored.0, 0)?;
            // The clock is not read before the word is cleared.
            fence(Ordering::SeqCst);
        }
        Ok(noted)
    }
}

/// A lease that this mount keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLease {
    /// Slot of the lease table.
    pub slot: u32,
    /// Identifies the lease among all that the slot has held.
    pub id: u64,
    /// The leased file.
    pub ino: Ino,
    /// What its holder may do.
    pub mode: LeaseMode,
    /// Process that asked for it.
    pub pid: u32,
    /// User of that process.
    pub uid: u32,
    /// Time of the grant, seconds.
    pub granted_sec: i64,
    /// An earlier mount granted it.
    pub is_adopted: bool,
    /// It is being granted: its lock may not exist yet.
    pub(crate) is_new: bool,
    /// Place of its slot.
    pub(crate) at: RegionOffset,
}

impl HeldLease {
    pub(crate) fn new(slot: u32, at: RegionOffset, lease: &Lease, is_adopted: bool) -> HeldLease {
        HeldLease {
            slot,
            id: lease.id,
            ino: lease.ino,
            mode: lease.mode,
            pid: lease.pid,
            uid: lease.uid,
            granted_sec: lease.granted_sec,
            is_adopted,
            is_new: !is_adopted,
            at,
        }
    }
}

/// What has happened to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEvent {
    /// The timer has looked at a lease to write. `stored`: its holder has noted stores since
    /// the last look.
    Checked {
        /// Whether the holder has stored.
        stored: bool,
    },
    /// It has ended.
    Ended,
}

type Watch = dyn Fn(&HeldLease, LeaseEvent) + Send + Sync;

/// A function that watches the leases.
pub(crate) struct LeaseWatch(pub Box<Watch>);

impl std::fmt::Debug for LeaseWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeaseWatch(..)")
    }
}
