//! What a scrub keeps in the superblock pages: where it is, and what it has found.
//!
//! A page has two slots. A new record has the next number and goes to the slot that the one
//! before does not have: to the copy of the superblock first, fenced, then to the first page.
//! So a crash tears at most one of four slots, and the newest of the others holds.
//!
//! Older versions neither read nor change these bytes.

use zerocopy::{FromZeros, IntoBytes};

use super::checksum::crc;
use super::medium::Medium;
use crate::error::Result;
use crate::pmem::{Region, RegionView, ScrubMarkStatus, ScrubStatus};
use crate::types::RegionOffset;

/// Offset of the first slot in a superblock page.
pub const SCRUB_OFFSET: u64 = 0x700;
/// Slots of a page.
pub const SCRUB_SLOTS: u64 = 2;

/// `state`: no scrub has begun.
pub const NEVER: u32 = 0;
/// `state`: under way, or interrupted.
pub const UNDER_WAY: u32 = 1;
/// `state`: all was read.
pub const FINISHED: u32 = 2;
/// `state`: cancelled.
pub const CANCELLED: u32 = 3;

layout! {
    /// A finding of a scrub.
    pub struct ScrubMark: 48 {
        0x00 time_sec: i64 = "seconds since the epoch, 0 = no finding",
        0x08 ino: u64 = "inode concerned, 0 = none",
        0x10 place: u64 = "byte offset in the file, for contents of files; else 0",
        0x18 kind: [u8; 24] = "code of what was found, as fsck names it, zero-padded",
    }
}

layout! {
    /// The record of the scrubs, at offsets 0x700 and 0x800 of both pages.
    pub struct ScrubRecord: 256 {
        0x00 crc: u32 = "CRC32C of bytes 4 to 255, seeded by file system",
        0x04 state: u32 = "1 under way or interrupted, 2 finished, 3 cancelled",
        0x08 sequence: u64 = "number of the record; the highest valid one holds",
        0x10 started_sec: i64 = "start of the last scrub",
        0x18 updated_sec: i64 = "time of this record",
        0x20 done: u64 = "bytes that the last scrub has read",
        0x28 phase: u32 = "where it goes on: part of the file system",
        0x2c part: u32 = "where it goes on: part of the object",
        0x30 object: u64 = "where it goes on: lane, group, table or inode",
        0x38 offset: u64 = "where it goes on: place in the part",
        0x40 found: u64 = "findings of the last scrub",
        0x48 findings: u64 = "findings since mkfs or fsck",
        0x50 completed: u64 = "scrubs that read all, since mkfs or fsck",
        0x58 completed_sec: i64 = "end of the last of them",
        0x60 first: ScrubMark = "first finding since mkfs or fsck",
        0x90 last: ScrubMark = "latest finding",
        0xc0 reserved_tail: [u64; 8] = "zero",
    }
}

impl ScrubRecord {
    /// Computes the CRC of these contents.
    pub fn expected_crc(&self, fs_seed: u64) -> u32 {
        crc(fs_seed, &self.as_bytes()[4..])
    }

    /// Returns the offset of the slot of this record in a page.
    pub fn slot(&self) -> u64 {
        slot_offset(self.sequence % SCRUB_SLOTS)
    }
}

fn slot_offset(slot: u64) -> u64 {
    SCRUB_OFFSET + slot * ScrubRecord::SIZE as u64
}

/// The slots of both pages.
#[derive(Debug, Clone, Copy)]
pub struct ScrubSlots {
    /// The newest valid record.
    pub newest: Option<ScrubRecord>,
    /// Slots that hold something else than a record or zeros. One may be torn by a crash.
    pub damaged: u32,
}

impl ScrubSlots {
    /// Reads the slots. One that cannot be read counts as damaged.
    pub fn read<'r>(region: impl Into<RegionView<'r>>, geo: &super::Geometry) -> ScrubSlots {
        let region = region.into();
        ScrubSlots::read_by(geo, |at| region.read_pod(at.0).ok())
    }

    /// As [`read`](Self::read), by a function that returns the record at an offset.
    pub fn read_by(
        geo: &super::Geometry,
        read: impl Fn(RegionOffset) -> Option<ScrubRecord>,
    ) -> ScrubSlots {
        let mut slots = ScrubSlots {
            newest: None,
            damaged: 0,
        };
        let places = geo
            .pages()
            .into_iter()
            .flat_map(|page| (0..SCRUB_SLOTS).map(move |slot| page + slot_offset(slot)));
        for at in places {
            let Some(found) = read(at) else {
                slots.damaged += 1;
                continue;
            };
            if found == ScrubRecord::new_zeroed() {
                continue;
            }
            if found.crc != found.expected_crc(geo.seed) || found.sequence == 0 {
                slots.damaged += 1;
            } else if (slots.newest).is_none_or(|newest| newest.sequence < found.sequence) {
                slots.newest = Some(found);
            }
        }
        slots
    }

    /// Whether more is damaged than a crash can leave.
    pub fn is_damaged(&self) -> bool {
        self.damaged > 1
    }
}

/// Stores the record as the newest: numbers and seals it, then stores it to the copy and to the
/// first page, each durable before the next.
///
/// # Errors
/// Those of the region.
pub fn store_scrub_record(medium: Medium<'_>, record: &mut ScrubRecord) -> Result<()> {
    let Medium { region, geo } = medium;
    record.sequence = record.sequence.saturating_add(1);
    record.crc = record.expected_crc(geo.seed);
    for page in geo.pages().into_iter().rev() {
        store(region, page + record.slot(), record)?;
    }
    Ok(())
}

fn store(region: &Region, at: RegionOffset, record: &ScrubRecord) -> Result<()> {
    let w = region.window();
    let pending = w.store(at.0, record.as_bytes())?;
    let _ = w.fence(pending);
    Ok(())
}

/// Returns what a record tells.
pub fn status_of(record: &ScrubRecord) -> ScrubStatus {
    let mark = |mark: &ScrubMark| ScrubMarkStatus {
        time_sec: mark.time_sec,
        ino: mark.ino,
        place: mark.place,
        kind: mark.kind,
    };
    ScrubStatus {
        state: record.state,
        started_sec: record.started_sec,
        done: record.done,
        found: record.found,
        findings: record.findings,
        completed: record.completed,
        completed_sec: record.completed_sec,
        phase: record.phase,
        object: record.object,
        first: mark(&record.first),
        last: mark(&record.last),
        ..ScrubStatus::default()
    }
}
