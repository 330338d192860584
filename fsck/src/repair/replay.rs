//! Replays the records of a crash into a view, so that a repair works on the contents
//! that the next mount would see.
//!
//! The medium changes only when the repair is stored. Then the records are first
//! replayed there, as a mount does.

use zerocopy::IntoBytes;

use super::commit::UNIT;
use crate::view::{SECTOR, View};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::journal::records::Homes;
use pramfs_medium::journal::{parse, records, retired_copy};
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc, GroupState};
use pramfs_medium::media::checksum::{seal, unseal, word_sum};
use pramfs_medium::media::record::{DataCopy, ENTRIES_AT, EntryKind, SlotState};
use pramfs_medium::media::superblock::*;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{DiskInode, Geometry, SuperDynamic};
use pramfs_medium::types::{Ino, RegionOffset};

/// The contents of the journal.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// Live records in order. They are replayed in the view.
    pub live: Vec<Vec<u8>>,
    /// Number of live records that are not replayed, because at least one targets
    /// a place that no record may change.
    pub refused: usize,
    /// The checkpoint; `None` if it is damaged in both pages.
    pub checkpoint: Option<u64>,
    /// Lanes with records that may be live, and with both `retired` words damaged.
    /// Their records are not replayed.
    pub unknown: Vec<u32>,
    /// The copy of the `retired` words of a lane has told which of its records are dead.
    pub by_copy: bool,
    /// Largest record number used so far.
    pub newest: u64,
}

impl Journal {
    /// Whether the checkpoint must be raised above all records before anything
    /// else is stored.
    pub(super) fn needs_checkpoint(&self) -> bool {
        !self.live.is_empty() || !self.unknown.is_empty() || self.by_copy
    }
}

/// Replays the live records, if all their targets are allowed.
pub(crate) fn replay(view: &mut View<'_>, geo: &Geometry) -> Result<Journal> {
    let pages = geo.pages();
    let mut words = Vec::new();
    for page in pages {
        let d: SuperDynamic = view.read_pod(page + DYNAMIC_OFFSET)?;
        words.extend(unseal(geo.seed, d.checkpoint));
    }
    let mut out = Journal {
        checkpoint: words.iter().copied().max(),
        ..Journal::default()
    };
    out.newest = out.checkpoint.unwrap_or(0);
    let mut live: Vec<(u64, Vec<u8>)> = Vec::new();
    // Each record has all that it has in blocks.
    let mut whole = true;
    let mut in_blocks = records::InBlocks::default();
    for lane in 0..geo.lanes {
        let words = records::retired_words(view, geo, lane)?;
        let mut retired = words.into_iter().flatten().min();
        if retired.is_none() {
            retired = (out.checkpoint).and_then(|at| retired_copy(view, geo, lane, at));
            // The repair of the two words has no LSN for them.
            out.by_copy |= retired.is_some();
        }
        out.newest = out.newest.max(retired.unwrap_or(0));
        let mut valid = Vec::new();
        let mut bad = 0;
        for slot in 0..2 {
            match records::read_slot(view, geo, lane, slot)? {
                (SlotState::Empty, _) => {}
                (SlotState::Bad, _) => bad += 1,
                (SlotState::Valid(lsn), bytes) => valid.push((lsn.0, bytes)),
            }
        }
        out.newest = valid.iter().map(|v| v.0).fold(out.newest, u64::max);
        // Without the words that tell which records are dead, a replay could bring
        // old contents back. Without a replay, at worst the last operations are
        // incomplete, and the repair corrects them.
        let Some(checkpoint) = out.checkpoint else {
            continue;
        };
        let Some(retired) = retired else {
            if valid.iter().any(|v| v.0 > checkpoint) {
                out.unknown.push(lane);
                view.store(geo.retired_offset(lane), &[0; 16])?;
            }
            continue;
        };
        valid.retain(|v| v.0 > retired && v.0 > checkpoint);
        for (_, record) in &mut valid {
            whole &= match records::expand(view, geo, record, &mut in_blocks) {
                Ok(()) => true,
                Err(Error::Corrupt { .. }) => false,
                Err(e) => return Err(e),
            };
        }
        if bad == 1 && valid.len() == 1 && records::superseded(view, geo, &valid[0].1)? {
            continue;
        }
        live.extend(valid);
    }
    live.sort_unstable_by_key(|r| r.0);
    let mut is_sound =
        |(_, r): &(u64, Vec<u8>)| records::check(view, geo, r, &mut in_blocks).is_ok();
    if whole && live.iter().all(&mut is_sound) {
        out.live = live.into_iter().map(|r| r.1).collect();
        for record in &out.live {
            apply(view, geo, record)?;
        }
    } else {
        out.refused = live.len();
    }
    if out.needs_checkpoint() || out.refused > 0 || out.checkpoint.is_none() {
        let word = seal(geo.seed, out.newest.max(1));
        out.newest = out.newest.max(1);
        for page in pages {
            view.store_u64(page + DYNAMIC_OFFSET + CHECKPOINT_AT, word)?;
        }
    }
    Ok(out)
}

/// Offset of the checkpoint among the dynamic words.
pub(super) const CHECKPOINT_AT: u64 = std::mem::offset_of!(SuperDynamic, checkpoint) as u64;

/// Applies a record, and updates the sums of the groups that it changes.
pub(super) fn apply(view: &mut View<'_>, geo: &Geometry, record: &[u8]) -> Result<()> {
    for e in parse(&record[ENTRIES_AT..]) {
        match e.kind {
            EntryKind::Copy => {
                if let Some(data) = DataCopy::read(e.offset, e.payload) {
                    copy(view, &data, UNIT)?;
                }
            }
            _ => records::apply(view, &e)?,
        }
        // A record that creates a group includes its sum.
        if e.kind != EntryKind::Desc
            && let Some((kind, group)) = records::group_of(&e)
        {
            renew_sum(view, geo, kind, group)?;
        }
    }
    Ok(())
}

/// Copies file data, but what has failed: the place of its bytes, which stays failed, or the
/// bytes themselves. Then nobody knows any more what belongs there, so the place counts as failed
/// from now on. In both cases the file loses the bytes.
fn copy(view: &mut View<'_>, data: &DataCopy, unit: u64) -> Result<()> {
    let mut done = 0;
    while done < data.len {
        let to = data.to + done;
        let len = (data.len - done).min(unit - to.0 % unit);
        let from = data.from.map(|from| from + done);
        done += len;
        let is_lost = view.has_failed(to, len);
        let has_no_source = !is_lost && from.is_some_and(|from| view.has_failed(from, len));
        let part = DataCopy { to, from, len };
        match is_lost || has_no_source {
            false => Homes::copy(view, &part)?,
            true if unit > SECTOR => copy(view, &part, SECTOR)?,
            true if has_no_source => {
                let sector = to.0 / SECTOR * SECTOR;
                view.lose(sector..sector + SECTOR);
            }
            true => {}
        }
    }
    Ok(())
}

/// Recomputes the sum of a group whose bits were changed: records do not hold it.
/// Other damage to the bits shows when they are compared with what is in use.
fn renew_sum(view: &mut View<'_>, geo: &Geometry, kind: u64, group: u64) -> Result<()> {
    let Some(kind) = BitmapKind::from_code(kind) else {
        return Ok(());
    };
    let at = group.saturating_mul(GroupDesc::SIZE as u64);
    let Some(desc) = find(view, geo, kind.owner(), at)? else {
        return Ok(());
    };
    let GroupState::Bitmap(block) = GroupDesc::state(geo, kind, group, view.load_u64(desc)?) else {
        return Ok(());
    };
    let mut words = vec![0u64; geo.words_per_block() as usize];
    view.read(geo.offset(block), words.as_mut_bytes())?;
    let sum = (0..)
        .zip(&words)
        .fold(0u64, |s, (i, w)| s.wrapping_add(word_sum(geo.seed, i, *w)));
    view.store_u64(desc + 8, sum)?;
    Ok(())
}

/// Returns the offset in the region of a byte of an internal inode's file.
pub(super) fn find(
    view: &View<'_>,
    geo: &Geometry,
    ino: Ino,
    byte: u64,
) -> Result<Option<RegionOffset>> {
    use pramfs_medium::media::pointer::Ptr;
    let at = super::Repairer::internal_at(ino);
    for page in geo.pages() {
        let d: DiskInode = view.read_pod(page + at)?;
        let fits = d.crc == d.expected_crc(geo.seed, ino) && d.ino == ino.0;
        if !fits || u32::from(d.height) > geo.max_height() {
            continue;
        }
        let map = MapRoot::of(&d);
        let index = geo.file_block(byte);
        if index >= map.end(geo) {
            return Ok(None);
        }
        let (mut level, mut ptr) = (map.height, map.root);
        loop {
            let Ok(block) = map.open(geo, ptr, map.at(geo, level, index)) else {
                return Ok(None);
            };
            if level == 0 || ptr.is_leaf() {
                let block = block.after(index - geo.first_under(level, index));
                return Ok(Some(geo.offset(block) + geo.within_block(byte)));
            }
            level -= 1;
            let slot = geo.slot_at(level, index);
            ptr = Ptr(view.load_u64(geo.offset(block) + slot * 8)?);
        }
    }
    Ok(None)
}
