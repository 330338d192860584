//! A slot of the lease table: four cache lines.
//!
//! Line 0 is changed by records only. Line 1 is the *view* line: the server stores its two
//! words without a record, and readers in other processes watch them. Line 2 belongs to the
//! holder, who stores to it without a record. Neither line need survive a crash. Line 3 is
//! reserved.

use zerocopy::{FromZeros, IntoBytes};

use super::checksum::line_sum;
use super::features::PARKED_LEASES;
use super::probe::probe_superblock;
use crate::error::{Error, Result};
use crate::pmem::{LEASE_LOCKS, Region};
use crate::types::{Ino, LeaseMode};

/// Maximum number of slots, which bounds the table.
pub const MAX_SLOTS: u32 = LEASE_LOCKS;
/// Offset of the view line in a slot.
pub const VIEW_OFFSET: u64 = 0x40;
/// Offset in a slot of the word in which the holder notes that it has stored to the file.
pub const STORED_OFFSET: u64 = 0x80;
/// Bytes of a slot that records change.
pub const RECORDED: usize = 64;
/// Separates the check from other sums of lines.
const CHECK_KEY: u64 = 0x6c65_6173_6573_6c6f;

layout! {
    /// A slot of the lease table. All of line 0 is zero if the slot is free.
    pub struct LeaseSlot: 256 {
        0x00 ino: u64 = "inode number of the leased file; 0: the slot is free",
        0x08 generation: u64 = "generation of that inode",
        0x10 id: u64 = "identifies the lease among all that the slot has held",
        0x18 mode: u32 = "1: the holder reads; 2: it also stores to written blocks",
        0x1c pid: u32 = "process that asked for the lease, for messages",
        0x20 uid: u32 = "user of that process",
        0x24 reserved_head: u32 = "zero",
        0x28 granted_sec: i64 = "time of the grant, seconds",
        0x30 reserved_line0: u64 = "zero",
        0x38 check: u64 = "line sum of the preceding 56 bytes and a zero word, keyed by file system and slot",
        0x40 layout: u64 = "view: grows when the blocks below the size change",
        0x48 size: u64 = "view: size of the file, bytes",
        0x50 reserved_view: [u64; 6] = "zero",
        0x80 stored: u64 = "holder: not zero if it has stored to the file; the server sets the times of the file and clears the word",
        0x88 reserved_client: [u64; 15] = "zero",
    }
}

/// A lease, as its slot describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The leased file.
    pub ino: Ino,
    /// Its generation.
    pub generation: u64,
    /// Identifies the lease among all that its slot has held.
    pub id: u64,
    /// What its holder may do.
    pub mode: LeaseMode,
    /// Process that asked for it.
    pub pid: u32,
    /// User of that process.
    pub uid: u32,
    /// Time of the grant, seconds.
    pub granted_sec: i64,
}

impl Lease {
    /// Draws a number that no earlier lease is likely to have.
    pub fn new_id() -> u64 {
        uuid::Uuid::new_v4().as_u64_pair().0
    }
}

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotContents {
    /// Nothing.
    Free,
    /// A lease.
    Used(Lease),
    /// Bytes that no version writes.
    Damaged,
}

impl LeaseSlot {
    /// Makes the slot of a lease. The words outside line 0 are zero.
    pub fn new(fs_seed: u64, slot: u32, lease: &Lease) -> LeaseSlot {
        let mut new = LeaseSlot {
            ino: lease.ino.0,
            generation: lease.generation,
            id: lease.id,
            mode: lease.mode as u32,
            pid: lease.pid,
            uid: lease.uid,
            granted_sec: lease.granted_sec,
            ..LeaseSlot::new_zeroed()
        };
        new.check = new.expected_check(fs_seed, slot);
        new
    }

    /// Returns the bytes that a record puts.
    pub fn recorded(&self) -> &[u8] {
        &self.as_bytes()[..RECORDED]
    }

    /// Returns what the slot holds.
    pub fn contents(&self, fs_seed: u64, slot: u32) -> SlotContents {
        if self.recorded().iter().all(|b| *b == 0) {
            return SlotContents::Free;
        }
        let mode = match LeaseMode::of(self.mode) {
            Some(mode) if self.check == self.expected_check(fs_seed, slot) && self.ino != 0 => mode,
            _ => return SlotContents::Damaged,
        };
        SlotContents::Used(Lease {
            ino: Ino(self.ino),
            generation: self.generation,
            id: self.id,
            mode,
            pid: self.pid,
            uid: self.uid,
            granted_sec: self.granted_sec,
        })
    }

    /// Returns the check that belongs to the contents of a slot.
    pub fn expected_check(&self, fs_seed: u64, slot: u32) -> u64 {
        let mut line = [0; RECORDED];
        line[..RECORDED - 8].copy_from_slice(&self.as_bytes()[..RECORDED - 8]);
        line_sum(fs_seed ^ CHECK_KEY, slot.into(), &line)
    }
}

/// Fails if a process still maps files by leases that an earlier mount granted. Whoever
/// changes a region without the engine calls this first.
///
/// # Errors
/// [`Error::Busy`]; [`Error::Io`] if the locks cannot be tested.
pub fn refuse_if_leased(region: &Region) -> Result<()> {
    // A superblock that cannot be read tells nothing; then the locks count alone.
    let unused =
        probe_superblock(region).is_ok_and(|info| info.fixed.ro_compat & PARKED_LEASES == 0);
    let held = !unused
        && region
            .is_any_lease_held()
            .map_err(|e| Error::io_failed("cannot test the locks of leases", e))?;
    match held {
        false => Ok(()),
        true => Err(Error::Busy(format!(
            "a process still maps files of {}, by a lease that outlived the server; end it \
             (fuser -v lists it)",
            region.info().name
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lease = Lease {
        ino: Ino(77),
        generation: 9,
        id: 0x1234,
        mode: LeaseMode::Read,
        pid: 100,
        uid: 1000,
        granted_sec: 1_700_000_000,
    };

    #[test]
    fn slot_with_any_flipped_bit_is_damaged() {
        let slot = LeaseSlot::new(5, 3, &LEASE);
        assert_eq!(slot.contents(5, 3), SlotContents::Used(LEASE));
        for bit in 0..RECORDED * 8 {
            let mut flipped = slot;
            flipped.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(flipped.contents(5, 3), SlotContents::Damaged, "bit {bit}");
        }
    }

    #[test]
    fn slot_of_unknown_mode_is_damaged() {
        let lease = Lease {
            mode: LeaseMode::Write,
            ..LEASE
        };
        let mut slot = LeaseSlot::new(5, 3, &lease);
        assert_eq!(slot.contents(5, 3), SlotContents::Used(lease));
        for mode in [0, 3, u32::MAX] {
            slot.mode = mode;
            slot.check = slot.expected_check(5, 3);
            assert_eq!(slot.contents(5, 3), SlotContents::Damaged, "mode {mode}");
        }
    }

    #[test]
    fn slot_moved_to_other_place_is_damaged() {
        let slot = LeaseSlot::new(5, 3, &LEASE);
        assert_eq!(slot.contents(5, 4), SlotContents::Damaged);
        assert_eq!(slot.contents(6, 3), SlotContents::Damaged);
    }

    #[test]
    fn slot_with_words_outside_line_0_only_is_free() {
        let slot = LeaseSlot {
            layout: 7,
            size: 4096,
            stored: 1,
            ..LeaseSlot::new_zeroed()
        };
        assert_eq!(slot.contents(5, 3), SlotContents::Free);
    }
}
