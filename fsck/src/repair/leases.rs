//! Repairs slots of the lease table, and closes append windows.
//!
//! No process holds a lease during a repair. So each open append window is closed as the next
//! mount would do it: the size of the file becomes the end of what was appended, and the
//! window leaves the slot. This comes before the repair of file maps, which treats what lies
//! past the end of a file as unused.
//!
//! The slot itself stays: the next mount ends its lease, and sets the times of the file.

use zerocopy::IntoBytes;

use super::Repairer;
use super::commit::UNIT;
use crate::maps::place_of;
use crate::outcome::{Done, Lost};
use pramfs_medium::error::Result;
use pramfs_medium::media::features::APPEND_WINDOWS;
use pramfs_medium::media::lease::{
    AppendWindow, END_OFFSET, LeaseSlot, RECORDED, STORED_OFFSET, SlotContents, WINDOW_OFFSET,
};
use pramfs_medium::media::probe_superblock;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{FileBlock, Ino, RegionOffset};

/// Returns the only slot that differs from this one in one byte, which is in `range`, and that
/// `fits`.
fn corrected(
    slot: &LeaseSlot,
    range: std::ops::Range<usize>,
    fits: impl Fn(&LeaseSlot) -> bool,
) -> Option<LeaseSlot> {
    let mut found = None;
    for at in range {
        for bits in 1..=u8::MAX {
            let mut other = *slot;
            other.as_mut_bytes()[at] ^= bits;
            if fits(&other) && found.replace(other).is_some() {
                return None;
            }
        }
    }
    found
}

/// Returns the end that a word says. If its check does not fit, tries each word that differs in
/// one byte: exactly one of them must fit.
fn end_of(window: &AppendWindow, word: u64) -> Option<u64> {
    if let Some(end) = window.end_of(word) {
        return Some(end);
    }
    let mut found = None;
    for at in 0..8 {
        for bits in 1..=u64::from(u8::MAX) {
            if let Some(end) = window.end_of(word ^ bits << (at * 8))
                && found.replace(end).is_some()
            {
                return None;
            }
        }
    }
    found
}

impl Repairer<'_, '_> {
    fn lease_slot(&self, slot: u64) -> Result<Option<(RegionOffset, LeaseSlot)>> {
        let at = slot.saturating_mul(LeaseSlot::SIZE as u64);
        match place_of(self.geo, &self.known.leases, at) {
            Some(at) => Ok(Some((at, self.view.read_pod(at)?))),
            None => Ok(None),
        }
    }

    /// Repairs a slot whose line 0 is damaged. If it is corrected, the next round checks its
    /// append window.
    pub(super) fn repair_lease_slot(&mut self, slot: u64, appended: bool) -> Result<bool> {
        let Some((at, home)) = self.lease_slot(slot)? else {
            return Ok(false);
        };
        let used = |s: &LeaseSlot| {
            let contents = s.contents(self.geo.seed, slot as u32);
            matches!(contents, SlotContents::Used(_))
        };
        if let Some(right) = corrected(&home, 0..RECORDED, used) {
            self.view.store(at, right.recorded())?;
            self.did(Done::Corrected);
            return Ok(true);
        }
        if appended {
            self.lose_at(None, None, Lost::Appended { most: None });
        }
        self.clear_lease_slot(slot)
    }

    /// Empties a slot. The view stays: its words mean nothing in a free slot.
    pub(super) fn clear_lease_slot(&mut self, slot: u64) -> Result<bool> {
        let Some((at, _)) = self.lease_slot(slot)? else {
            return Ok(false);
        };
        self.view.store(at, &[0; RECORDED])?;
        self.clear_window(at)?;
        Ok(true)
    }

    /// Clears the append window of a free slot.
    pub(super) fn clear_left_window(&mut self, slot: u64, appended: bool) -> Result<bool> {
        if appended {
            self.lose_at(None, None, Lost::Appended { most: None });
        }
        self.clear_lease_slot(slot)
    }

    fn clear_window(&mut self, at: RegionOffset) -> Result<()> {
        self.view.store(at + WINDOW_OFFSET, &[0; RECORDED])?;
        self.view.store_u64(at + END_OFFSET, 0)?;
        Ok(())
    }

    /// Closes the append window of a slot. If what was appended cannot be told: `most` bytes
    /// may be lost with the window; with `None`, the window stays, for another finding.
    pub(super) fn close_window(&mut self, slot: u64, most: Option<u64>) -> Result<bool> {
        let Some((at, mut home)) = self.lease_slot(slot)? else {
            return Ok(false);
        };
        let (seed, number) = (self.geo.seed, slot as u32);
        let SlotContents::Used(lease) = home.contents(seed, number) else {
            return Ok(false);
        };
        let mut window = home.append_window(seed, number);
        if window.is_err() {
            let fits = |s: &LeaseSlot| matches!(s.append_window(seed, number), Ok(Some(_)));
            if let Some(right) = corrected(&home, WINDOW_OFFSET as usize..LeaseSlot::SIZE, fits) {
                home = right;
                window = home.append_window(seed, number);
                self.did(Done::Corrected);
            }
        }
        let Some(mut d) = self.inode(lease.ino)? else {
            return Ok(false);
        };
        let end = match window {
            // Another finding of this round closed it.
            Ok(None) => return Ok(true),
            Ok(Some(window)) => {
                let end = end_of(&window, home.end);
                if end.is_some() && window.end_of(home.end).is_none() {
                    self.did(Done::Corrected);
                }
                end.filter(|end| *end <= self.geo.max_file_size())
            }
            // Nothing was appended.
            Err(_) if home.end == 0 => Some(d.size),
            Err(_) => None,
        };
        match end {
            Some(end) if end > d.size => {
                d.size = end;
                self.put_inode(lease.ino, d)?;
                // The next mount sets the times of the file.
                self.view.store_u64(at + STORED_OFFSET, 1)?;
            }
            Some(_) => {}
            // No name leads to the file: it is about to be freed.
            None if d.nlink == 0 => {}
            None if most.is_none() => {
                self.left = true;
                return Ok(false);
            }
            None => {
                // The next mount would free the blocks past the end.
                for (at, ino) in self.orphan_slots()? {
                    if ino == lease.ino {
                        self.view.store_u64(at, 0)?;
                    }
                }
                if most != Some(0) {
                    self.lose(Some(lease.ino), Lost::Appended { most });
                }
            }
        }
        self.notes.closed.insert(at.0 / UNIT);
        self.clear_window(at)?;
        Ok(true)
    }

    /// Repairs a table whose features do not announce what it holds.
    pub(super) fn repair_lease_features(&mut self, name: &str) -> Result<bool> {
        if name == "append_windows" {
            // An earlier phase closes the windows, unless that is left.
            self.left = true;
            return Ok(false);
        }
        for e in self.known.leases.clone() {
            let slot = |block| self.geo.file_offset(block) / LeaseSlot::SIZE as u64;
            for slot in slot(e.first)..slot(e.end()) {
                let Some((_, home)) = self.lease_slot(slot)? else {
                    continue;
                };
                // Damaged ones and append windows are other findings.
                let contents = home.contents(self.geo.seed, slot as u32);
                let window = home.append_window(self.geo.seed, slot as u32);
                if matches!(contents, SlotContents::Used(_)) && window == Ok(None) {
                    self.clear_lease_slot(slot)?;
                }
            }
        }
        Ok(true)
    }

    /// Repairs a damaged pointer of the lease table, or else empties the table.
    pub(super) fn repair_lease_pointer(&mut self, level: u32, first: FileBlock) -> Result<bool> {
        let Some(d) = self.inode(Ino::LEASES)? else {
            return Ok(false);
        };
        let map = MapRoot::of(&d);
        if let Some(found) = self.find_pointer(&map, level, first)?
            && let Some(right) = self.correct_map_pointer(&map, &found)?
        {
            self.known.claims.claim(right.block().0, 1);
            self.did(Done::Corrected);
            return self.put_pointer(Ino::LEASES, &found, right);
        }
        self.empty_leases()
    }

    /// Empties the lease table. The repair of this round still finds the append windows that
    /// can be read, and closes them.
    pub(super) fn empty_leases(&mut self) -> Result<bool> {
        self.lose_windows()?;
        self.did(Done::Cleared);
        self.recount(Ino::LEASES);
        self.edit(Ino::LEASES, |d| {
            (d.size, d.root, d.height, d.blocks) = (0, 0, 0, 0);
        })
    }

    /// Notes that append windows may be lost with the lease table.
    pub(super) fn lose_windows(&mut self) -> Result<()> {
        let info = probe_superblock(self.view.region())?;
        if info.fixed.incompat & APPEND_WINDOWS != 0 {
            self.lose_at(None, None, Lost::Appended { most: None });
        }
        Ok(())
    }
}
