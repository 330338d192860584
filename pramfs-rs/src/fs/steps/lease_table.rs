//! The lease table: a file of slots, each of which names a file whose blocks other
//! processes may map.
//!
//! Invariant: a slot is durable before its lease is given to a process, and is cleared only
//! when no process can map the blocks any more. A slot changes in records that also touch
//! the leased inode, so that an older record never undoes a newer one. The feature
//! `parked_leases` is durable before the first slot is used.
//!
//! Granting and ending are in [`lease`](crate::fs::ops::lease), append windows in
//! [`window`](crate::fs::ops::window).

use crate::fs::Engine;
use pramfs_medium::alloc::Freed;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::features::{APPEND_WINDOWS, PARKED_LEASES};
use pramfs_medium::media::lease::{LeaseSlot, MAX_SLOTS, NO_WINDOW, SlotContents, WINDOW_OFFSET};
use pramfs_medium::media::record::EntryKind;
use pramfs_medium::types::{Ino, RegionOffset};
use pramfs_medium::volume::Plan;

const NAME: &str = "the lease table";

/// The slots of the lease table.
#[derive(Debug)]
pub(crate) struct LeaseSlots {
    /// Those that are not free.
    pub used: Vec<UsedSlot>,
    /// The free ones.
    pub free: Vec<Freed>,
}

/// A slot that is not free.
#[derive(Debug)]
pub(crate) struct UsedSlot {
    /// Its number.
    pub number: u32,
    /// Its place.
    pub at: RegionOffset,
    /// Its bytes.
    pub home: LeaseSlot,
}

impl Engine {
    /// Whether the lease table may have slots in use.
    pub(crate) fn has_lease_table(&self) -> bool {
        self.super_state.fixed.lock().ro_compat & PARKED_LEASES != 0
    }

    /// Notes in both superblock pages whether the lease table may have slots in use.
    pub(crate) fn set_lease_table(&self, in_use: bool) -> Result<()> {
        if self.has_lease_table() == in_use {
            return Ok(());
        }
        self.super_state.change_fixed(self.vol.medium(), |fixed| {
            fixed.ro_compat &= !PARKED_LEASES;
            if in_use {
                fixed.ro_compat |= PARKED_LEASES;
            }
        })
    }

    /// Notes in both superblock pages whether slots may have append windows.
    pub(crate) fn set_append_windows(&self, in_use: bool) -> Result<()> {
        if (self.super_state.fixed.lock().incompat & APPEND_WINDOWS != 0) == in_use {
            return Ok(());
        }
        self.super_state.change_fixed(self.vol.medium(), |fixed| {
            fixed.incompat &= !APPEND_WINDOWS;
            if in_use {
                fixed.incompat |= APPEND_WINDOWS;
            }
        })
    }

    /// Clears the append window of a slot, in the record that fills or frees the slot.
    pub(crate) fn clear_window(&self, tx: &mut Plan<'_>, at: RegionOffset) -> Result<()> {
        let home: LeaseSlot = self.vol.medium().read_pod(at)?;
        match home.recorded_window() == NO_WINDOW {
            true => Ok(()),
            false => tx.put(EntryKind::Slot, at + WINDOW_OFFSET, &NO_WINDOW),
        }
    }

    /// Takes a slot. Dropping the transaction frees it. The table grows in a separate
    /// record.
    pub(crate) fn take_lease_slot(&self, tx: &mut Plan<'_>) -> Result<(u32, RegionOffset)> {
        let table = self.iget(Ino::LEASES)?;
        let mut state = table.state.write();
        let slot = match tx.take_lease_slot() {
            Some(slot) => slot,
            None => {
                if state.disk.size / (LeaseSlot::SIZE as u64) >= u64::from(MAX_SLOTS) {
                    return Err(Error::NoSpace("the lease table is full"));
                }
                let new = self.grow_table(&table, &mut state)?;
                let slots = new.start / LeaseSlot::SIZE as u64..new.end / LeaseSlot::SIZE as u64;
                self.vol
                    .free(slots.rev().map(|slot| Freed::LeaseSlot(slot as u32)));
                tx.take_lease_slot()
                    .ok_or(Error::NoSpace("no free slot in the lease table"))?
            }
        };
        let at = u64::from(slot) * LeaseSlot::SIZE as u64;
        Ok((slot, self.place_in_table(&state, at, NAME)?))
    }

    /// Reads the lease table.
    pub(crate) fn read_lease_table(&self) -> Result<LeaseSlots> {
        let table = self.iget(Ino::LEASES)?;
        let state = table.state.read();
        let slots = state.disk.size / LeaseSlot::SIZE as u64;
        let (mut used, mut free) = (Vec::new(), Vec::new());
        for slot in 0..slots.min(MAX_SLOTS.into()) as u32 {
            let at = u64::from(slot) * LeaseSlot::SIZE as u64;
            let at = self.place_in_table(&state, at, NAME)?;
            let home: LeaseSlot = self.vol.medium().read_pod(at)?;
            match home.contents(self.vol.geo.seed, slot) {
                SlotContents::Free => free.push(Freed::LeaseSlot(slot)),
                SlotContents::Used(_) | SlotContents::Damaged => used.push(UsedSlot {
                    number: slot,
                    at,
                    home,
                }),
            }
        }
        Ok(LeaseSlots { used, free })
    }
}
