//! A slot of the lease table: four cache lines.
//!
//! Line 0 is changed by records only. Line 1 is the *view* line: the server stores its words
//! without a record, and readers in other processes watch them; it need not survive a crash.
//! Line 2 belongs to the holder, who stores to it without a record. Line 3 holds the append
//! window, and is changed by records only.
//!
//! `end` in line 2 is the one word outside the records that a crash must not lose: the size
//! that the holder has appended up to ([`AppendWindow::end_of`]).

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
/// Word of the view line: the number of the append window that is open, or 0.
pub const OPEN_WORD: u64 = 2;
/// Word of the view line: the number of the window that was closed last, or
/// [`ALL_CLOSED`].
pub const CLOSED_WORD: u64 = 3;
/// Word of the view line: the size of the file at that moment.
pub const TAKEN_WORD: u64 = 4;
/// In [`CLOSED_WORD`]: every window is closed, and `taken` tells nothing.
pub const ALL_CLOSED: u64 = u64::MAX;
/// Offset in a slot of the word in which the holder notes that it has stored to the file.
pub const STORED_OFFSET: u64 = 0x80;
/// Offset in a slot of the word in which the holder tells what it has appended.
pub const END_OFFSET: u64 = 0x88;
/// Offset in a slot of the word in which the holder says that it is storing bytes past the end
/// of the file.
pub const APPENDING_OFFSET: u64 = 0x90;
/// Offset of the append window in a slot.
pub const WINDOW_OFFSET: u64 = 0xc0;
/// Bytes of a slot, from its start, that records change; and from the append window.
pub const RECORDED: usize = 64;
/// The append window of a slot that has none.
pub const NO_WINDOW: [u8; LeaseSlot::SIZE - WINDOW_OFFSET as usize] =
    [0; LeaseSlot::SIZE - WINDOW_OFFSET as usize];
/// Maximum length of an append window, bytes: a length fits half a word.
pub const MAX_WINDOW: u64 = 1 << 30;
/// Separates the check from other sums of lines.
const CHECK_KEY: u64 = 0x6c65_6173_6573_6c6f;
/// The same, for the append window.
const WINDOW_KEY: u64 = 0x7769_6e64_6f77_7321;

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
        0x50 open: u64 = "view: number of the append window that is open; 0: none",
        0x58 closed: u64 = "view: number of the window that was closed last; all bits set: all windows are closed",
        0x60 taken: u64 = "view: size of the file when that window was closed, bytes",
        0x68 reserved_view: [u64; 3] = "zero",
        0x80 stored: u64 = "holder: not zero if it has stored to the file; the server sets the times of the file and clears the word",
        0x88 end: u64 = "holder: bytes appended since the start of the window (low half), and their check (high half); 0: none",
        0x90 appending: u64 = "holder: where the append ends whose bytes it is storing, as in `end`; 0: none. It need not survive a crash",
        0x98 reserved_client: [u64; 5] = "zero",
        0xc0 window: u64 = "number of the append window; 0: there is none, and all of line 3 is zero",
        0xc8 window_start: u64 = "size of the file when the window was opened, bytes",
        0xd0 window_limit: u64 = "offset in the file of the end of the blocks of the window, bytes",
        0xd8 reserved_window: [u64; 4] = "zero",
        0xf8 window_check: u64 = "line sum of the preceding 56 bytes and a zero word, keyed by file system, lease and slot",
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

/// Where the holder of a lease may append without a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendWindow {
    /// Distinguishes the windows of all times. Not 0 and not [`ALL_CLOSED`].
    pub number: u64,
    /// Size of the file when it was opened, bytes.
    pub start: u64,
    /// Offset in the file of the end of its blocks, bytes.
    pub limit: u64,
    /// Keys the checks of the ends that are stored for it.
    pub key: u64,
}

impl AppendWindow {
    /// Returns the word that says that the file ends at `end`, which lies in the window.
    #[inline]
    pub fn word_of(&self, end: u64) -> u64 {
        let appended = end.wrapping_sub(self.start) & u64::from(u32::MAX);
        appended | self.check_of(appended) << 32
    }

    /// Returns the end that a word says. 0 says the start of the window.
    ///
    /// `None` if the check does not fit, or the end does not lie in the window.
    #[inline]
    pub fn end_of(&self, word: u64) -> Option<u64> {
        let appended = word & u64::from(u32::MAX);
        let fits = word == 0 || word >> 32 == self.check_of(appended);
        let end = self.start.checked_add(appended)?;
        (fits && end <= self.limit).then_some(end)
    }

    /// Multiply-shift hashing, 2-universal in the key.
    #[inline]
    fn check_of(&self, appended: u64) -> u64 {
        (appended + 1).wrapping_mul(self.key | 1) >> 32
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

    /// Makes line 3 of the slot of a lease: an append window with a new number.
    pub fn new_window(fs_seed: u64, slot: u32, lease: u64, start: u64, limit: u64) -> LeaseSlot {
        let mut new = LeaseSlot {
            id: lease,
            window: Lease::new_id().clamp(1, ALL_CLOSED - 1),
            window_start: start,
            window_limit: limit,
            ..LeaseSlot::new_zeroed()
        };
        new.window_check = new.expected_window_check(fs_seed, slot);
        new
    }

    /// Returns the bytes of the append window that a record puts.
    pub fn recorded_window(&self) -> &[u8] {
        &self.as_bytes()[WINDOW_OFFSET as usize..]
    }

    /// Returns the append window of a slot in use, or `None` if there is none.
    ///
    /// # Errors
    /// The bytes are such that no version writes.
    pub fn append_window(
        &self,
        fs_seed: u64,
        slot: u32,
    ) -> Result<Option<AppendWindow>, &'static str> {
        if self.recorded_window() == NO_WINDOW {
            return Ok(None);
        }
        let fits = self.window_check == self.expected_window_check(fs_seed, slot);
        if !fits || self.window == 0 || self.window == ALL_CLOSED {
            return Err("the check of its append window does not fit");
        }
        let len = self.window_limit.checked_sub(self.window_start);
        if self.mode != LeaseMode::Write as u32 || len.is_none_or(|len| len > MAX_WINDOW) {
            return Err("its append window is impossible");
        }
        Ok(Some(self.as_window()))
    }

    /// Returns the append window of line 3, as it is there.
    pub fn as_window(&self) -> AppendWindow {
        AppendWindow {
            number: self.window,
            start: self.window_start,
            limit: self.window_limit,
            key: self.window_check,
        }
    }

    /// Returns the check that belongs to the append window of a slot.
    pub fn expected_window_check(&self, fs_seed: u64, slot: u32) -> u64 {
        let mut line = [0; RECORDED];
        line[..RECORDED - 8].copy_from_slice(&self.recorded_window()[..RECORDED - 8]);
        line_sum(fs_seed ^ WINDOW_KEY ^ self.id, slot.into(), &line)
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

    const START: u64 = 5000;
    const LIMIT: u64 = 5000 + (1 << 20);

    fn with_window() -> LeaseSlot {
        let lease = Lease {
            mode: LeaseMode::Write,
            ..LEASE
        };
        let line = LeaseSlot::new_window(5, 3, lease.id, START, LIMIT);
        LeaseSlot {
            window: line.window,
            window_start: line.window_start,
            window_limit: line.window_limit,
            window_check: line.window_check,
            ..LeaseSlot::new(5, 3, &lease)
        }
    }

    #[test]
    fn append_window_with_any_flipped_bit_is_refused() {
        let slot = with_window();
        let window = slot.append_window(5, 3).unwrap().unwrap();
        assert_eq!((window.start, window.limit), (START, LIMIT));
        for bit in WINDOW_OFFSET as usize * 8..LeaseSlot::SIZE * 8 {
            let mut flipped = slot;
            flipped.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
            assert!(flipped.append_window(5, 3).is_err(), "bit {bit}");
        }
        // Of another slot, file system, or lease.
        assert!(slot.append_window(5, 4).is_err() && slot.append_window(6, 3).is_err());
        let other = LeaseSlot { id: 9, ..slot };
        assert!(other.append_window(5, 3).is_err());
        let reads = LeaseSlot { mode: 1, ..slot };
        assert!(reads.append_window(5, 3).is_err());
        assert_eq!(LeaseSlot::new(5, 3, &LEASE).append_window(5, 3), Ok(None));
    }

    #[test]
    fn end_with_any_flipped_bit_or_of_other_window_is_refused() {
        let window = with_window().append_window(5, 3).unwrap().unwrap();
        let other = with_window().append_window(5, 3).unwrap().unwrap();
        assert_eq!(window.end_of(0), Some(START));
        for end in [START, START + 1, START + 4096, LIMIT - 1, LIMIT] {
            let word = window.word_of(end);
            assert_eq!(window.end_of(word), Some(end));
            // Each but one of 2^32 words.
            assert_eq!(other.end_of(word), None);
            for bit in 0..64 {
                assert_eq!(window.end_of(word ^ 1 << bit), None, "{end}, bit {bit}");
            }
        }
        assert_eq!(window.end_of(window.word_of(LIMIT + 1)), None);
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
