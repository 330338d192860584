//! The orphan table: a file of 8-byte slots, each of which names an inode.
//!
//! Invariant: a slot is zero, or the sealed number of an inode; the seal depends on the
//! slot. A slot changes only in a record that also changes its inode: it is set when the
//! inode loses its last name, is made without one, or keeps blocks past its end; it is cleared
//! when the inode is freed, gets its first name, or has no such blocks left.
//! The list of free slots is in memory only.
//!
//! The callers decide which inodes need a slot: [`orphans`](super::orphans) and
//! [`resize`](super::resize).

use crate::fs::Engine;
use crate::fs::inode::state::InodeState;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::media::checksum::{orphan_of, orphan_word};
use pramfs_medium::media::record::EntryKind;
use pramfs_medium::types::{Ino, RegionOffset};
use pramfs_medium::volume::{Plan, Record};

/// Bytes of a slot.
const SLOT: u64 = 8;

impl Engine {
    fn slot_offset(&self, state: &InodeState, slot: u32) -> Result<RegionOffset> {
        self.place_in_table(state, u64::from(slot) * SLOT, "the orphan table")
    }

    /// Reads the orphan table at mount. Returns the orphans with their slots, and puts the
    /// free slots into the list of free slots.
    pub(crate) fn load_orphans(&self) -> Result<Vec<(Ino, u32)>> {
        let table = self.iget(Ino::ORPHANS)?;
        let state = table.state.read();
        let mut orphans = Vec::new();
        let mut free = Vec::new();
        for slot in 0..u32::try_from(state.disk.size / SLOT)
            .unwrap_or(u32::MAX)
            .min(1 << 24)
        {
            let at = self.slot_offset(&state, slot)?;
            let word = self.vol.medium().load_u64(at)?;
            if word == 0 {
                free.push(pramfs_medium::alloc::Freed::OrphanSlot(slot));
            } else if let Some(ino) = orphan_of(self.vol.geo.seed, slot.into(), word) {
                orphans.push((ino, slot));
            } else {
                self.note_damage(&Error::corrupt(
                    Damage::OrphanSlotDamaged,
                    "the orphan table",
                    format!("slot {slot} is damaged"),
                ));
            }
        }
        free.reverse();
        self.vol.free(free);
        Ok(orphans)
    }

    /// Allocates a slot. Dropping the transaction frees it. The table grows in a
    /// separate record.
    fn take_slot(&self, tx: &mut Plan<'_>) -> Result<u32> {
        if let Some(slot) = tx.take_orphan_slot() {
            return Ok(slot);
        }
        let table = self.iget(Ino::ORPHANS)?;
        let mut state = table.state.write();
        if let Some(slot) = tx.take_orphan_slot() {
            return Ok(slot);
        }
        let new = self.grow_table(&table, &mut state)?;
        let slots = (new.start / SLOT) as u32..(new.end / SLOT) as u32;
        self.vol
            .free(slots.rev().map(pramfs_medium::alloc::Freed::OrphanSlot));
        tx.take_orphan_slot()
            .ok_or(Error::NoSpace("no free slot in the orphan table"))
    }

    /// Puts an inode into the orphan table, in the transaction that makes it an orphan.
    pub(crate) fn put_orphan(&self, tx: &mut Plan<'_>, ino: Ino) -> Result<u32> {
        if !self.vol.journal.rules.orphan_chain {
            return Ok(u32::MAX);
        }
        let slot = self.take_slot(tx)?;
        let table = self.iget(Ino::ORPHANS)?;
        let at = self.slot_offset(&table.state.read(), slot)?;
        let word = orphan_word(self.vol.geo.seed, slot.into(), ino);
        tx.put(EntryKind::Slot, at, &word.to_le_bytes())?;
        Ok(slot)
    }

    /// Clears a slot, in the transaction after which its inode needs none.
    pub(crate) fn clear_orphan(&self, tx: &mut Record<'_>, slot: u32) -> Result<()> {
        if slot == u32::MAX {
            return Ok(());
        }
        let table = self.iget(Ino::ORPHANS)?;
        let at = self.slot_offset(&table.state.read(), slot)?;
        tx.put(EntryKind::Slot, at, &[0; 8])?;
        tx.free_orphan_slot(slot);
        Ok(())
    }
}
