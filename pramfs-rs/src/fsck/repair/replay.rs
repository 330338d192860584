//! What a crash left in the journal, replayed into a view: a repair works on
//! what the next mount would see.
//!
//! The medium is changed only when the repair is stored: then the records are
//! replayed there first, as a mount does it.

use zerocopy::{FromBytes, IntoBytes};

use crate::error::Result;
use crate::fsck::view::View;
use crate::media::bitmap::{BitmapKind, GroupDesc, GroupState};
use crate::media::checksum::{seal, unseal, word_sum};
use crate::media::record::{ENTRIES_AT, EntryKind, EntryWord, RecordHeader, SlotState};
use crate::media::superblock::*;
use crate::media::{DiskInode, Geometry, SuperDynamic};
use crate::types::{Bno, Ino};

/// What the journal held.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Records that were alive, in order; they are replayed in the view.
    pub live: Vec<Vec<u8>>,
    /// Records that were alive and name what no record may: not replayed.
    pub refused: usize,
    /// The checkpoint; `None` where it is damaged in both pages.
    pub checkpoint: Option<u64>,
    /// Largest number given so far.
    pub newest: u64,
}

/// Replays the live records, if all that they name can be named.
pub(super) fn replay(view: &mut View<'_>, geo: &Geometry) -> Result<Journal> {
    let pages = [0, geo.copy_offset];
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
    for lane in 0..geo.lanes {
        let mut retired = None;
        for copy in 0..2 {
            let word = view.load_u64(geo.retired_offset(lane) + copy * 8)?;
            let lsn = if word == 0 {
                Some(0)
            } else {
                unseal(geo.retired_seed(copy), word)
            };
            retired = match (retired, lsn) {
                (Some(a), Some(b)) => Some(std::cmp::min(a, b)),
                (a, b) => a.or(b),
            };
        }
        out.newest = out.newest.max(retired.unwrap_or(0));
        let mut valid = Vec::new();
        let mut bad = 0;
        for slot in 0..2 {
            match view.slot(geo, lane, slot)? {
                (SlotState::Empty, _) => {}
                (SlotState::Bad, _) => bad += 1,
                (SlotState::Valid(lsn), bytes) => valid.push((lsn.0, bytes)),
            }
        }
        out.newest = valid.iter().map(|v| v.0).fold(out.newest, u64::max);
        // Without the words that say what is dead, a replay could bring old
        // contents back; without a replay at worst the last operations are
        // found half done, and put right.
        let (Some(retired), Some(checkpoint)) = (retired, out.checkpoint) else {
            continue;
        };
        valid.retain(|v| v.0 > retired && v.0 > checkpoint);
        if bad == 1 && valid.len() == 1 && superseded(view, geo, &valid[0].1)? {
            continue;
        }
        live.extend(valid);
    }
    live.sort_unstable_by_key(|r| r.0);
    if live.iter().all(|(_, record)| is_sound(view, geo, record)) {
        out.live = live.into_iter().map(|r| r.1).collect();
        for record in &out.live {
            apply(view, geo, record)?;
        }
    } else {
        out.refused = live.len();
    }
    if !out.live.is_empty() || out.refused > 0 || out.checkpoint.is_none() {
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

struct Entry<'a> {
    kind: EntryKind,
    at: u64,
    payload: &'a [u8],
}

impl Entry<'_> {
    fn word(&self, i: usize) -> u64 {
        let words = self.payload.as_chunks::<8>().0;
        words.get(i).map_or(0, |w| u64::from_le_bytes(*w))
    }

    /// Bytes at its place that it changes.
    fn len(&self) -> u64 {
        match self.kind {
            EntryKind::SetBits | EntryKind::ClearBits => 8,
            EntryKind::Desc => 32,
            EntryKind::Zero => self.word(0).saturating_mul(8),
            _ => self.payload.len() as u64,
        }
    }
}

/// The entries of a record; `None` where they do not fill it.
fn entries(record: &[u8]) -> Option<Vec<Entry<'_>>> {
    let header = RecordHeader::read_from_prefix(record).ok()?.0;
    let mut rest = record.get(ENTRIES_AT..)?;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let (word, tail) = rest.split_first_chunk::<8>()?;
        let word = EntryWord(u64::from_le_bytes(*word));
        let payload = tail.get(..word.words() * 8)?;
        out.push(Entry {
            kind: word.kind()?,
            at: word.offset(),
            payload,
        });
        rest = &tail[payload.len()..];
    }
    (out.len() as u32 == header.entries).then_some(out)
}

/// Whether a record changes what a record may change, as recovery has it.
fn is_sound(view: &View<'_>, geo: &Geometry, record: &[u8]) -> bool {
    let Some(entries) = entries(record) else {
        return false;
    };
    entries.iter().all(|e| {
        let shape = match e.kind {
            EntryKind::SetBits | EntryKind::ClearBits => e.payload.len() == 16,
            EntryKind::Desc => e.payload.len() == 40,
            EntryKind::Zero => {
                e.payload.len() == 8
                    && e.at % geo.block_size + e.len().min(geo.block_size + 1) <= geo.block_size
            }
            _ => true,
        };
        let Some(end) = e.at.checked_add(e.len()) else {
            return false;
        };
        let clear = |from: u64, to: u64| end <= from || e.at >= to;
        let pages = [0, geo.copy_offset];
        shape
            && end <= view.region().len()
            && pages.iter().all(|p| clear(*p, p + INODE_TABLE_OFFSET))
            && clear(geo.journal_offset, geo.journal_offset + geo.journal_len)
    })
}

/// Whether an inode of the record is newer at its home: then the unreadable
/// record beside it was complete, and this one is dead.
fn superseded(view: &View<'_>, geo: &Geometry, record: &[u8]) -> Result<bool> {
    for e in entries(record).unwrap_or_default() {
        let size = DiskInode::SIZE as u64;
        if e.kind != EntryKind::Inode || !e.at.is_multiple_of(size) {
            continue;
        }
        let Ok(home) = view.read_pod::<DiskInode>(e.at) else {
            continue;
        };
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

/// Changes what a record changes, and the sums of groups that are concerned.
pub(super) fn apply(view: &mut View<'_>, geo: &Geometry, record: &[u8]) -> Result<()> {
    for e in entries(record).unwrap_or_default() {
        match e.kind {
            EntryKind::SetBits | EntryKind::ClearBits => {
                let old = view.load_u64(e.at)?;
                let new = if e.kind == EntryKind::SetBits {
                    old | e.word(0)
                } else {
                    old & !e.word(0)
                };
                view.store_u64(e.at, new)?;
                renew_sum(view, geo, e.word(1))?;
            }
            EntryKind::Desc => view.store(e.at, &e.payload[..32])?,
            EntryKind::Zero => view.store(e.at, &vec![0; e.len() as usize])?,
            _ => view.store(e.at, e.payload)?,
        }
    }
    Ok(())
}

/// The sum of a group whose bits were changed: it is in no record. What else
/// may be wrong with the bits is found by holding them against the rest.
fn renew_sum(view: &mut View<'_>, geo: &Geometry, group_word: u64) -> Result<()> {
    let group = group_word & ((1 << 56) - 1);
    let Some(kind) = BitmapKind::from_code(group_word >> 56) else {
        return Ok(());
    };
    let at = group.saturating_mul(GroupDesc::SIZE as u64);
    let Some(desc) = find(view, geo, kind.owner(), at)? else {
        return Ok(());
    };
    let GroupState::Bitmap(block) = GroupDesc::state(geo, kind, group, view.load_u64(desc)?) else {
        return Ok(());
    };
    let mut words = vec![0u64; (geo.block_size / 8) as usize];
    view.read(geo.offset(block), words.as_mut_bytes())?;
    let sum = (0..)
        .zip(&words)
        .fold(0u64, |s, (i, w)| s.wrapping_add(word_sum(geo.seed, i, *w)));
    view.store_u64(desc + 8, sum)?;
    Ok(())
}

/// Offset in the region of a byte of an internal inode's file.
pub(super) fn find(view: &View<'_>, geo: &Geometry, ino: Ino, byte: u64) -> Result<Option<u64>> {
    use crate::media::pointer::{Ptr, PtrAt};
    let at = super::Fixer::internal_at(ino);
    for page in [0, geo.copy_offset] {
        let d: DiskInode = view.read_pod(page + at)?;
        if d.crc != d.expected_crc(geo.seed, ino) || u32::from(d.height) > geo.max_height() {
            continue;
        }
        let map = super::Fixer::map_of(&d);
        let index = byte >> geo.block_log2;
        if index >= map.capacity(geo) {
            return Ok(None);
        }
        let (mut level, mut ptr) = (map.height, map.root);
        loop {
            let place = PtrAt {
                fs_seed: geo.seed,
                ino,
                level,
                index: index >> (geo.fan_log2 * level),
            };
            let Ok(block) = map.open(geo, ptr, place) else {
                return Ok(None);
            };
            if level == 0 || ptr.is_leaf() {
                let within = index & ((1 << (geo.fan_log2 * level)) - 1);
                let block = Bno(block.0 + within);
                return Ok(Some(geo.offset(block) + byte % geo.block_size));
            }
            level -= 1;
            let slot = index >> (geo.fan_log2 * level) & ((1 << geo.fan_log2) - 1);
            ptr = Ptr(view.load_u64(geo.offset(block) + slot * 8)?);
        }
    }
    Ok(None)
}
