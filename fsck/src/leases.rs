//! Checks the lease table: the slots, and the append windows in them.
//!
//! Whether a process still holds a lease does not matter to a check. The next mount adds to a
//! file what the holder of its append window has appended (rule 7), so a file that is longer
//! than its inode says is not damage. An append window that cannot be read is: the size is in
//! no other place.

use std::collections::HashMap;

use super::maps::Walked;
use super::{Checker, Extent, Issue, Part};
use pramfs_medium::error::Result;
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::features::{APPEND_WINDOWS, PARKED_LEASES};
use pramfs_medium::media::lease::{AppendWindow, Lease, LeaseSlot, MAX_SLOTS, SlotContents};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{FileBlock, FileType, Ino};

/// The check's data about the lease table.
#[derive(Debug, Default)]
pub(super) struct LeaseTable {
    /// Where its slots are.
    pub extents: Vec<Extent>,
    /// Number of slots in use, by inode.
    slots: HashMap<u64, u64>,
    /// Append windows, by inode.
    windows: HashMap<u64, Vec<Window>>,
}

impl LeaseTable {
    /// Whether any slot has an append window for an inode.
    pub(super) fn has_window(&self, ino: Ino) -> bool {
        self.windows.contains_key(&ino.0)
    }
}

/// The append window of a slot, and what the file holds there.
#[derive(Debug)]
struct Window {
    slot: u64,
    /// The window, or what is wrong with it.
    window: Result<AppendWindow, &'static str>,
    /// The word that tells what its holder has appended.
    word: u64,
    /// Size of the file.
    size: u64,
    /// End of the last written block, bytes.
    written: u64,
    /// A block of the window is missing or unwritten.
    hole: bool,
}

impl Checker<'_> {
    /// Reads the lease table, and checks that its slots name files.
    pub(super) fn check_leases(&mut self) -> Result<()> {
        let Some(d) = self.table_inode(Ino::LEASES)? else {
            return Ok(());
        };
        let walked = match d.root {
            0 => Walked::default(),
            _ => self.walk_map(&MapRoot::of(&d), Ino::LEASES, Part::Contents, true)?,
        };
        if !walked.damaged {
            self.check_table(Ino::LEASES, &d, &walked);
        }
        let size = LeaseSlot::SIZE as u64;
        let slots = (d.size / size).min(MAX_SLOTS.into());
        for e in walked.extents.iter().filter(|e| !e.unwritten) {
            let first = self.geo.file_offset(e.first) / size;
            let end = (self.geo.file_offset(e.end()) / size).min(slots);
            for slot in first..end {
                let at = self.geo.offset(e.block) + (slot - first) * size;
                let home: LeaseSlot = self.region.read_pod(at)?;
                self.check_lease(slot as u32, &home)?;
            }
        }
        self.leases.extents = walked.extents;
        self.leases.extents.retain(|e| !e.unwritten);
        self.check_lease_features()
    }

    fn check_lease(&mut self, slot: u32, home: &LeaseSlot) -> Result<()> {
        let number = u64::from(slot);
        let has_window = home.recorded_window().iter().any(|b| *b != 0);
        // Without the rest of the slot, nobody can tell which file this belongs to.
        let appended = has_window && home.end != 0;
        let lease = match home.contents(self.geo.seed, slot) {
            SlotContents::Free if has_window => {
                let slot = number;
                self.add(Issue::AppendWindowLeft { slot, appended });
                return Ok(());
            }
            SlotContents::Free => return Ok(()),
            SlotContents::Used(lease) => lease,
            SlotContents::Damaged => {
                let slot = number;
                self.add(Issue::LeaseSlotDamaged { slot, appended });
                return Ok(());
            }
        };
        let regular = (FileType::Regular.mode_bits() >> 12) as u8;
        let is_named = lease.ino >= Ino::FIRST_FREE
            && (self.inodes.get(lease.ino))
                .is_some_and(|info| info.kind == regular || info.kind == 0);
        // An inode that cannot be read is another finding. Its window is checked once it can.
        let file = match self.home(lease.ino) {
            Some(at) if is_named => Some(self.read_inode(at)?)
                .filter(|d| d.crc == d.expected_crc(self.geo.seed, lease.ino)),
            _ => None,
        };
        if !is_named || file.is_some_and(|d| d.generation != lease.generation) {
            self.add(Issue::LeaseSlotWrong {
                slot: number,
                ino: lease.ino,
            });
            return Ok(());
        }
        self.report.counts.leases += 1;
        *self.leases.slots.entry(lease.ino.0).or_default() += 1;
        if let Some(d) = file {
            self.note_window(slot, home, &lease, &d);
        }
        Ok(())
    }

    fn note_window(&mut self, slot: u32, home: &LeaseSlot, lease: &Lease, d: &DiskInode) {
        let window = match home.append_window(self.geo.seed, slot) {
            Ok(None) => return,
            Ok(Some(window)) => Ok(window),
            Err(what) => Err(what),
        };
        let windows = self.leases.windows.entry(lease.ino.0).or_default();
        windows.push(Window {
            slot: slot.into(),
            window,
            word: home.end,
            size: d.size,
            written: 0,
            hole: false,
        });
    }

    /// Checks that the features tell older versions what the table holds.
    fn check_lease_features(&mut self) -> Result<()> {
        let Some(fixed) = self.valid_page()? else {
            return Ok(());
        };
        if !self.leases.slots.is_empty() && fixed.ro_compat & PARKED_LEASES == 0 {
            let name = "parked_leases";
            self.add(Issue::LeaseFeatureMissing { name });
        }
        if !self.leases.windows.is_empty() && fixed.incompat & APPEND_WINDOWS == 0 {
            let name = "append_windows";
            self.add(Issue::LeaseFeatureMissing { name });
        }
        Ok(())
    }

    /// Notes which blocks a file has in its append windows. The map was walked with its
    /// extents.
    pub(super) fn note_window_blocks(&mut self, ino: Ino, walked: &Walked) {
        let geo = &self.geo;
        let written = || walked.extents.iter().filter(|e| !e.unwritten);
        let end = written().next_back().map_or(0, |e| e.end().0);
        for w in self.leases.windows.get_mut(&ino.0).into_iter().flatten() {
            w.written = end.saturating_mul(geo.block_size);
            let Ok(window) = &w.window else {
                continue;
            };
            // The block that holds the start is one of the file, not of the window. What
            // lies behind a damaged pointer is unknown.
            let mut next: FileBlock = geo.file_block_from(window.start);
            let end = geo.file_block_from(window.limit);
            for e in written().filter(|e| e.first < end) {
                if e.first <= next && e.end() > next {
                    next = e.end();
                }
            }
            w.hole = next < end && !walked.damaged;
        }
    }

    /// Checks the append windows, after the maps of their files.
    pub(super) fn check_windows(&mut self) {
        let windows = std::mem::take(&mut self.leases.windows);
        let mut windows: Vec<_> = windows
            .into_iter()
            .flat_map(|(ino, windows)| windows.into_iter().map(move |w| (Ino(ino), w)))
            .collect();
        windows.sort_unstable_by_key(|(_, w)| w.slot);
        for (ino, w) in windows {
            match w.window {
                Ok(window) => self.check_window(ino, &w, &window),
                Err(what) => {
                    // Nothing was appended if the word is zero: it is, durably, before the
                    // window opens.
                    let bytes = match w.word {
                        0 => 0,
                        _ => w.written.saturating_sub(w.size),
                    };
                    self.add(Issue::AppendWindowDamaged {
                        slot: w.slot,
                        ino,
                        what,
                        bytes,
                    });
                }
            }
        }
    }

    fn check_window(&mut self, ino: Ino, w: &Window, window: &AppendWindow) {
        let slot = w.slot;
        let others = self.leases.slots.get(&ino.0).is_some_and(|n| *n > 1);
        let most = self.geo.max_file_size();
        let wrong = [
            (others, "it is in use with another lease of the file"),
            (w.size < window.start, "it starts past the end of the file"),
            (w.size > window.limit, "it ends before the end of the file"),
            (
                window.limit > most,
                "it ends past the largest size of a file",
            ),
            (w.hole, "the file has no written block for part of it"),
        ];
        let end = window.end_of(w.word).filter(|end| *end <= most);
        match end {
            None => {
                let bytes = w.written.min(window.limit).saturating_sub(w.size);
                self.add(Issue::AppendEndDamaged { slot, ino, bytes });
            }
            Some(end) if wrong.iter().all(|(is, _)| !is) => {
                let bytes = end.saturating_sub(w.size);
                self.add(Issue::AppendWindowOpen { slot, ino, bytes });
            }
            Some(_) => {}
        }
        for (_, what) in wrong.iter().filter(|(is, _)| *is) {
            self.add(Issue::AppendWindowWrong { slot, ino, what });
        }
    }
}
