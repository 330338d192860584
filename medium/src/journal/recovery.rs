//! Recovery: after a crash, makes every committed record visible to the mount.
//!
//! Recovery
//! 1. reads every slot and takes the valid records that are not dead,
//! 2. checks the bounds of every entry, and whether its page has failed, before it stores
//!    anything,
//! 3. replays the records in LSN order and fences,
//! 4. retires all of them by one store of the checkpoint.
//!
//! A crash at any point leaves the same records to the next recovery.

use std::collections::BTreeMap;

use super::buffer::parse;
use super::copies::retired_copy;
use super::failed::{Failed, LostData};
use super::last_record::RecordId;
use super::lines::Lines;
use super::records::{
    InBlocks, OnMedium, apply, check, copy_data, expand, group_of, needs_atomic_data, read_slot,
    retired_words, superseded, words,
};
use crate::error::{Damage, Error, Result};
use crate::media::Medium;
use crate::media::checksum::seal;
use crate::media::record::{DataCopy, ENTRIES_AT, EntryKind, SlotState};
use crate::pmem::PmemError;
use crate::pmem::Unfenced;
use crate::pmem::mutants::has_bug;
use crate::types::{Lsn, RegionOffset};

/// The result of recovery.
#[derive(Debug, Default)]
pub struct Replay {
    /// Records replayed.
    pub records: usize,
    /// Slots that held a torn record.
    pub torn: usize,
    /// Largest LSN found.
    pub newest: u64,
    /// Bitmap groups, by kind and number, that live records touch. Their sums must be
    /// updated.
    pub groups: BTreeMap<(u64, u64), Touched>,
    /// Descriptions of suspected damage.
    pub damage: Vec<(Damage, String)>,
    /// A page of a lane could not be read. The file system stays marked as unmounted, so that
    /// the next mount may skip the page too; nothing can be stored to it meanwhile.
    pub unreadable: bool,
    /// Bytes of files whose places have failed: they are not stored.
    pub lost: Vec<LostData>,
    /// Faults of the medium that show only such bytes.
    pub data_faults: u64,
    /// LSN of the newest record of each lane, 0 for none.
    last_of: Vec<u64>,
    /// Repaired lines of the journal.
    repaired: Lines,
}

impl Replay {
    /// Whether a record is durable that the last process began to store. The records of a lane
    /// are stored one after the other.
    pub fn has(&self, record: RecordId) -> bool {
        let last = self.last_of.get(record.lane as usize);
        last.is_some_and(|last| *last >= record.lsn)
    }

    /// A page of a lane cannot be read, and held no live record.
    fn note_unreadable(&mut self, lane: u32) {
        let what = format!(
            "journal lane {lane}: a page of it has failed; no record was in it, because the file system was unmounted"
        );
        self.damage.push((Damage::LaneDamaged, what));
        self.unreadable = true;
    }
}

fn is_unreadable(e: &Error) -> bool {
    matches!(e, Error::Pmem(PmemError::Faulted { .. }))
}

/// Bits that one entry of a record sets or clears.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Region offset of the word.
    pub word: RegionOffset,
    /// The bits.
    pub mask: u64,
    /// Whether they are set.
    pub set: bool,
}

/// The changes of live records to one group of a bitmap.
#[derive(Debug, Clone, Default)]
pub struct Touched {
    /// A live record made the group.
    pub made: bool,
    /// The steps of the live records of each lane, in order. The group's sum on the medium
    /// includes some number of them, and all older steps. The first of two records is no
    /// more likely to be in place than the second, because the fence that completes the
    /// first one's homes also makes the second durable.
    pub lanes: BTreeMap<u32, Vec<Step>>,
}

struct LiveRecord {
    lsn: u64,
    lane: u32,
    bytes: Vec<u8>,
}

/// Returns the LSN up to which a lane's records are retired. This is the lower of the two
/// words, since both must be durable before the lane's places are handed over. Their copy serves
/// if both are damaged.
fn retired(medium: Medium<'_>, lane: u32, checkpoint: u64, out: &mut Replay) -> Result<u64> {
    let Medium { region, geo } = medium;
    let at = geo.retired_offset(lane);
    let words = retired_words(medium.region, medium.geo, lane)?;
    let mut mend = |good: u64, what: &str| {
        let what = format!("journal lane {lane}: {what}");
        out.damage.push((Damage::RetiredWordDamaged, what));
        for copy in 0..2 {
            let word = if good == 0 {
                0
            } else {
                seal(geo.retired_seed(copy), good)
            };
            region.window().store_u64_unflushed(at.word(copy).0, word)?;
        }
        out.repaired.add(at, 16);
        Ok(good)
    };
    match words {
        [Some(a), Some(b)] => Ok(a.min(b)),
        // The words change by aligned stores, so they cannot be torn.
        [Some(good), None] | [None, Some(good)] => {
            mend(good, "one of its two retired words is damaged")
        }
        // Replaying without this word could restore old contents.
        [None, None] => match retired_copy(medium.region, geo, lane, checkpoint) {
            Some(good) => mend(
                good,
                "both of its retired words are damaged, and their copy is not",
            ),
            None => Err(Error::corrupt(
                Damage::RetiredWordDamaged,
                format!("journal lane {lane}"),
                "both retired words are damaged, and so is their copy",
            )),
        },
    }
}

/// Replays the records that a crash left. It neither fences nor writes a checkpoint: the
/// caller updates the sums of [`Replay::groups`], fences, and then publishes the
/// checkpoint.
///
/// `atomic_data`: whether the file system has this feature, without which no record copies data.
/// `clean`: whether it was unmounted. Then no record is live, and a page of the journal that
/// cannot be read has hidden none.
///
/// # Errors
/// [`Error::Corrupt`] if a valid record names a forbidden place; [`Error::Io`] if the medium has
/// failed where a record changes metadata, or under what a record copies.
pub fn replay(
    medium: Medium<'_>,
    checkpoint: u64,
    atomic_data: bool,
    clean: bool,
) -> Result<(Replay, Unfenced)> {
    let Medium { region, geo } = medium;
    let mut out = Replay {
        newest: checkpoint,
        ..Replay::default()
    };
    let mut live = Vec::new();
    let mut in_blocks = InBlocks::default();
    let mut bad_slots = Vec::new();
    for lane in 0..geo.lanes {
        let retired = match retired(medium, lane, checkpoint, &mut out) {
            Err(e) if clean && is_unreadable(&e) => {
                out.note_unreadable(lane);
                out.last_of.push(0);
                continue;
            }
            retired => retired?,
        };
        let mut last = 0;
        out.newest = out.newest.max(retired);
        let mut bad = 0;
        let mut bad_slot = None;
        for slot in 0..2 {
            let read = match read_slot(medium.region, medium.geo, lane, slot) {
                Err(e) if clean && is_unreadable(&e) => {
                    out.note_unreadable(lane);
                    continue;
                }
                read => read?,
            };
            match read {
                (SlotState::Empty, _) => {}
                (SlotState::Bad, _) => {
                    bad += 1;
                    if let Some(first) = bad_slot.replace(geo.slot_offset(lane, slot)) {
                        bad_slots.push(first);
                    }
                }
                (SlotState::Valid(Lsn(lsn)), mut bytes) => {
                    out.newest = out.newest.max(lsn);
                    last = lsn.max(last);
                    let live_again = has_bug!(ReplaysTheDead);
                    if lsn > retired && lsn > checkpoint || live_again {
                        expand(medium.region, medium.geo, &mut bytes, &mut in_blocks)?;
                        live.push(LiveRecord { lsn, lane, bytes });
                    }
                }
            }
        }
        out.last_of.push(last);
        let other = live.last().filter(|f| bad == 1 && f.lane == lane);
        if let Some(f) = other
            && superseded(medium.region, medium.geo, &f.bytes)?
        {
            live.pop();
            bad = 0;
            // It is unknown which one it was; the lane had no later one.
            if let Some(last) = out.last_of.last_mut() {
                *last = u64::MAX;
            }
            // Keep the slot. If it were emptied and this recovery interrupted, the next
            // recovery would treat the record before it as the last one.
            bad_slot = None;
            let what = format!(
                "journal lane {lane}: its last record is unreadable, though it was complete"
            );
            out.damage.push((Damage::LaneDamaged, what));
        }
        bad_slots.extend(bad_slot);
        out.torn += bad;
        if bad == 2 {
            // A lane writes one slot at a time, after the other is durable.
            let what = format!("journal lane {lane}: both records are unreadable");
            out.damage.push((Damage::LaneDamaged, what));
        }
    }
    live.sort_by_key(|f| f.lsn);
    if !atomic_data && let Some(f) = live.iter().find(|f| needs_atomic_data(&f.bytes)) {
        let what = format!(
            "journal record {}: it copies file data, but the feature atomic_data is not set",
            f.lsn
        );
        out.damage.push((Damage::RecordsRefused, what));
    }
    // Everything is checked before anything is stored.
    for f in &live {
        check(medium.region, medium.geo, &f.bytes, &mut in_blocks)?;
    }
    let faults = region.faults();
    let failed = Failed::of(region, live.iter().map(|f| (f.lsn, &f.bytes[..])))?;
    out.data_faults = region.faults() - faults;
    let mut copied = Unfenced::none();
    let mut lines = std::mem::take(&mut out.repaired);
    let mut homes = OnMedium {
        region,
        lines: &mut lines,
    };
    for f in &live {
        let mut entries: Vec<_> = parse(&f.bytes[ENTRIES_AT..]).collect();
        if has_bug!(RecordCutShort) && entries.len() > 1 {
            entries.pop();
        }
        for e in entries {
            match e.kind {
                EntryKind::Copy => {
                    let copy = DataCopy::read(e.offset, e.payload);
                    for copy in copy.iter().flat_map(|copy| failed.storable(copy)) {
                        copied = copied.join(copy_data(region, &copy)?);
                    }
                }
                _ => match failed.storable_sums(&e) {
                    Some(parts) => parts.iter().try_for_each(|e| apply(&mut homes, e))?,
                    None => apply(&mut homes, &e)?,
                },
            }
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
    out.lost = failed.into_lost();
    let mut pending = copied.join(lines.flush(region)?);
    // Empty a torn slot, so that the next crash cannot leave two of them.
    for at in bad_slots {
        pending = pending.join(region.window().nt_zero(at.0, 64)?);
    }
    Ok((out, pending))
}
