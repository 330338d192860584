//! Recovery: what makes a mount after a crash see every committed record.
//!
//! It reads every slot, takes the valid records that are not dead, checks
//! every entry's bounds before it stores anything, replays in LSN order,
//! fences, and retires all of them by one store of the checkpoint. A crash
//! anywhere in it leaves the same records to the next recovery.

use std::collections::BTreeMap;

use zerocopy::{FromBytes, IntoBytes};

use super::buffer::{Entry, parse};
use super::lines::Lines;
use crate::error::{Error, Result};
use crate::media::bitmap::BitmapKind;
use crate::media::checksum::{SEALED_BITS, seal, unseal};
use crate::media::record::{ENTRIES_AT, EntryKind, RECORD_MAGIC, RecordHeader, SlotState};
use crate::media::superblock::INODE_TABLE_OFFSET;
use crate::media::{DiskInode, Geometry};
use crate::pmem::mutants::has_bug;
use crate::pmem::{Region, Unfenced};
use crate::types::{Ino, Lsn};

/// What recovery found and did.
#[derive(Debug, Default)]
pub struct Replay {
    /// Records replayed.
    pub records: usize,
    /// Slots that held a torn record.
    pub torn: usize,
    /// Largest LSN seen anywhere.
    pub newest: u64,
    /// Groups of bitmaps, by kind and number, that live records touch: their
    /// sums must be renewed.
    pub groups: BTreeMap<(u64, u64), Touched>,
    /// What looks damaged, in words.
    pub damage: Vec<String>,
    /// Lines of the journal that were put right.
    repaired: Lines,
}

/// Bits that one entry of a record sets or clears.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Region offset of the word.
    pub word: u64,
    /// The bits.
    pub mask: u64,
    /// Whether they are set.
    pub set: bool,
}

/// What live records did to one group of a bitmap.
#[derive(Debug, Clone, Default)]
pub struct Touched {
    /// A live record made the group.
    pub made: bool,
    /// The steps of the live records of each lane, in order: the group's sum on
    /// the medium has some number of them, and all older ones. Of two records
    /// the first is no more certain to be home than the second: the fence that
    /// completes its homes is the one that makes the second durable.
    pub lanes: BTreeMap<u32, Vec<Step>>,
}

struct Found {
    lsn: u64,
    lane: u32,
    bytes: Vec<u8>,
}

/// The `retired` word of a lane and its copy; `None` where the check does not
/// fit.
///
/// # Errors
/// Those of the region.
pub fn retired_words(region: &Region, geo: &Geometry, lane: u32) -> Result<[Option<u64>; 2]> {
    let mut words = [None; 2];
    for (copy, word) in (0..).zip(&mut words) {
        let raw = region.load_u64(geo.retired_offset(lane) + copy * 8)?;
        *word = if raw == 0 {
            Some(0)
        } else {
            unseal(geo.retired_seed(copy), raw)
        };
    }
    Ok(words)
}

/// Up to where a lane's records are retired: the lower of the two words, since
/// it takes both to be durable before the lane's places are handed over.
fn retired(region: &Region, geo: &Geometry, lane: u32, out: &mut Replay) -> Result<u64> {
    let at = geo.retired_offset(lane);
    let words = retired_words(region, geo, lane)?;
    match words {
        [Some(a), Some(b)] => Ok(a.min(b)),
        // The words change by aligned stores, so they cannot be torn.
        [Some(good), None] | [None, Some(good)] => {
            out.damage.push(format!(
                "journal lane {lane}: one of its two retired words is damaged"
            ));
            for copy in 0..2 {
                let word = if good == 0 {
                    0
                } else {
                    seal(geo.retired_seed(copy), good)
                };
                region.window().store_u64_unflushed(at + copy * 8, word)?;
            }
            out.repaired.add(at, 16);
            Ok(good)
        }
        // Replay without it could bring old contents back.
        [None, None] => Err(Error::corrupt(
            format!("journal lane {lane}"),
            "both retired words are damaged",
        )),
    }
}

/// Reads one slot.
///
/// # Errors
/// Those of the region.
pub fn read_slot(
    region: &Region,
    geo: &Geometry,
    lane: u32,
    slot: u32,
) -> Result<(SlotState, Vec<u8>)> {
    let at = geo.slot_offset(lane, slot);
    let mut bytes = vec![0; geo.slot_size as usize];
    region.read(at, &mut bytes)?;
    let Ok((h, _)) = RecordHeader::read_from_prefix(&bytes) else {
        return Ok((SlotState::Bad, bytes));
    };
    if h.as_bytes().iter().all(|&b| b == 0) {
        return Ok((SlotState::Empty, bytes));
    }
    let len = h.len as usize;
    if h.magic != RECORD_MAGIC
        || len < ENTRIES_AT
        || len > bytes.len()
        || h.lane != lane
        || h.slot != slot
    {
        return Ok((SlotState::Bad, bytes));
    }
    bytes.truncate(len);
    if RecordHeader::crc_of(geo.seed, &bytes) != h.crc {
        return Ok((SlotState::Bad, bytes));
    }
    // No record has such a number; one that had would leave none for the next.
    if h.lsn == 0 || h.lsn >> SEALED_BITS != 0 {
        return Ok((SlotState::Bad, bytes));
    }
    Ok((SlotState::Valid(Lsn(h.lsn)), bytes))
}

/// Replays what a crash left. Nothing is fenced and no checkpoint is written
/// here: the caller renews the sums of [`Replay::groups`], fences, and then
/// publishes the checkpoint.
///
/// # Errors
/// [`Error::Corrupt`] where a record that is valid names what it must not.
pub fn replay(region: &Region, geo: &Geometry, checkpoint: u64) -> Result<(Replay, Unfenced)> {
    let mut out = Replay {
        newest: checkpoint,
        ..Replay::default()
    };
    let mut live = Vec::new();
    let mut bad_slots = Vec::new();
    for lane in 0..geo.lanes {
        let retired = retired(region, geo, lane, &mut out)?;
        out.newest = out.newest.max(retired);
        let mut bad = 0;
        let mut bad_slot = None;
        for slot in 0..2 {
            match read_slot(region, geo, lane, slot)? {
                (SlotState::Empty, _) => {}
                (SlotState::Bad, _) => {
                    bad += 1;
                    if let Some(first) = bad_slot.replace(geo.slot_offset(lane, slot)) {
                        bad_slots.push(first);
                    }
                }
                (SlotState::Valid(Lsn(lsn)), bytes) => {
                    out.newest = out.newest.max(lsn);
                    let live_again = has_bug!(ReplaysTheDead);
                    if lsn > retired && lsn > checkpoint || live_again {
                        live.push(Found { lsn, lane, bytes });
                    }
                }
            }
        }
        let other = live.last().filter(|f| bad == 1 && f.lane == lane);
        if let Some(f) = other
            && superseded(region, geo, f)?
        {
            live.pop();
            bad = 0;
            // It stays: were it empty, and this recovery cut short, the next
            // one would take the record before it for the last.
            bad_slot = None;
            out.damage.push(format!(
                "journal lane {lane}: its last record is unreadable, though it was complete"
            ));
        }
        bad_slots.extend(bad_slot);
        out.torn += bad;
        if bad == 2 {
            // A lane writes one slot at a time, after the other is durable.
            out.damage
                .push(format!("journal lane {lane}: both records are unreadable"));
        }
    }
    live.sort_by_key(|f| f.lsn);
    // Everything is checked before anything is stored.
    for f in &live {
        check(region, geo, f)?;
    }
    let mut lines = std::mem::take(&mut out.repaired);
    for f in &live {
        let mut entries: Vec<_> = parse(&f.bytes[ENTRIES_AT..]).collect();
        if has_bug!(RecordCutShort) && entries.len() > 1 {
            entries.pop();
        }
        for e in entries {
            apply(region, &e, &mut lines)?;
            if let Some(group) = group_of(&e) {
                let touched = out.groups.entry(group).or_default();
                if e.kind == EntryKind::Desc {
                    touched.made = true;
                } else {
                    touched.lanes.entry(f.lane).or_default().push(Step {
                        word: e.offset,
                        mask: words(e.payload).next().unwrap_or(0),
                        set: e.kind == EntryKind::SetBits,
                    });
                }
            }
        }
    }
    out.records = live.len();
    let mut pending = lines.flush(region)?;
    // A torn slot is emptied, so that the next crash cannot find two of them.
    for at in bad_slots {
        pending = pending.join(region.window().nt_zero(at, 64)?);
    }
    Ok((out, pending))
}

/// Whether an inode that the record changes is newer at its home. Then the
/// lane's next record was durable, and with it all homes of this one: replay
/// would only put back what that record has changed.
fn superseded(region: &Region, geo: &Geometry, f: &Found) -> Result<bool> {
    const SIZE: u64 = DiskInode::SIZE as u64;
    for e in parse(&f.bytes[ENTRIES_AT..]) {
        let whole = e
            .offset
            .checked_add(SIZE)
            .is_some_and(|end| end <= region.len());
        if e.kind != EntryKind::Inode || !e.offset.is_multiple_of(SIZE) || !whole {
            continue;
        }
        let home: DiskInode = region.read_pod(e.offset)?;
        if home.crc != home.expected_crc(geo.seed, Ino(home.ino)) {
            continue;
        }
        let mut image = home;
        let n = e.payload.len().min(DiskInode::SIZE);
        image.as_mut_bytes()[..n].copy_from_slice(&e.payload[..n]);
        if (home.generation, home.change) > (image.generation, image.change) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn words(payload: &[u8]) -> impl Iterator<Item = u64> + '_ {
    payload
        .as_chunks::<8>()
        .0
        .iter()
        .map(|c| u64::from_le_bytes(*c))
}

/// Bitmap and group that an entry touches.
fn group_of(e: &Entry<'_>) -> Option<(u64, u64)> {
    match e.kind {
        EntryKind::SetBits | EntryKind::ClearBits => {
            let w = words(e.payload).nth(1)?;
            Some((w >> 56, w & ((1 << 56) - 1)))
        }
        // kind and group stand behind the descriptor itself
        EntryKind::Desc => {
            let w = words(e.payload).last()?;
            Some((w >> 56, w & ((1 << 56) - 1)))
        }
        _ => None,
    }
}

/// Packs a bitmap and a group for an entry's payload.
pub fn group_word(kind: BitmapKind, group: u64) -> u64 {
    kind.code() << 56 | group
}

fn check(region: &Region, geo: &Geometry, f: &Found) -> Result<()> {
    let body = &f.bytes[ENTRIES_AT..];
    let bad = |what: &str| Error::corrupt(format!("journal record {}", f.lsn), what);
    let (mut used, mut count) = (0, 0u32);
    for e in parse(body) {
        used += 8 + e.payload.len();
        count += 1;
        let payload = e.payload.len() as u64;
        let len = match e.kind {
            EntryKind::SetBits | EntryKind::ClearBits => {
                if payload != 16
                    || group_of(&e).is_none_or(|(k, _)| BitmapKind::from_code(k).is_none())
                {
                    return Err(bad("an entry of bits has the wrong shape"));
                }
                8
            }
            EntryKind::Desc => {
                if payload != 40
                    || group_of(&e).is_none_or(|(k, _)| BitmapKind::from_code(k).is_none())
                {
                    return Err(bad("an entry of a descriptor has the wrong shape"));
                }
                32
            }
            EntryKind::Zero => {
                if payload != 8 {
                    return Err(bad("an entry of zeros has the wrong shape"));
                }
                let len = words(e.payload).next().unwrap_or(0).saturating_mul(8);
                // Only pointers are emptied so: they lie in one block.
                if e.offset % geo.block_size + len.min(geo.block_size + 1) > geo.block_size {
                    return Err(bad("an entry of zeros leaves its block"));
                }
                len
            }
            _ => payload,
        };
        let end = e.offset.checked_add(len).filter(|&end| end <= region.len());
        let Some(end) = end else {
            return Err(bad("an entry leaves the region"));
        };
        let overlaps = |from: u64, to: u64| e.offset < to && end > from;
        // The static superblocks, the dynamic words and the journal are never
        // changed by a record; the internal inodes of both pages are.
        for page in [0, geo.copy_offset] {
            if overlaps(page, page + INODE_TABLE_OFFSET) {
                return Err(bad("an entry would overwrite a superblock"));
            }
        }
        if overlaps(geo.journal_offset, geo.journal_offset + geo.journal_len) {
            return Err(bad("an entry would overwrite the journal"));
        }
    }
    let header = RecordHeader::read_from_prefix(&f.bytes)
        .map_err(|_| bad("it is too short"))?
        .0;
    if used != body.len() || count != header.entries {
        return Err(bad("its entries do not fill it"));
    }
    Ok(())
}

/// Stores one entry at its home. Bits change by masks; their group's sum is
/// the caller's business.
pub fn apply(region: &Region, e: &Entry<'_>, lines: &mut Lines) -> Result<()> {
    let w = region.window();
    match e.kind {
        EntryKind::SetBits | EntryKind::ClearBits => {
            let mask = words(e.payload).next().unwrap_or(0);
            let old = region.load_u64(e.offset)?;
            let new = if e.kind == EntryKind::SetBits {
                old | mask
            } else {
                old & !mask
            };
            w.store_u64_unflushed(e.offset, new)?;
            lines.add(e.offset, 8);
        }
        EntryKind::Zero => {
            let n = words(e.payload).next().unwrap_or(0);
            for i in 0..n {
                w.store_u64_unflushed(e.offset + i * 8, 0)?;
            }
            lines.add(e.offset, n * 8);
        }
        EntryKind::Desc => {
            w.store_unflushed(e.offset, &e.payload[..32])?;
            lines.add(e.offset, 32);
        }
        EntryKind::Inode | EntryKind::Pointer | EntryKind::Leaf | EntryKind::Slot => {
            w.store_unflushed(e.offset, e.payload)?;
            lines.add(e.offset, e.payload.len() as u64);
        }
    }
    Ok(())
}
