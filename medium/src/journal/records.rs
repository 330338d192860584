//! The contents of a record, and how they change its homes. The homes lie on the medium
//! (commit, recovery) or in changes kept in memory (repair).

use std::collections::BTreeMap;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::buffer::{Entry, MAX_CONTINUED, parse};
use super::lines::Lines;
use crate::error::{Damage, Error, Result};
use crate::media::bitmap::{BitmapKind, GroupDesc};
use crate::media::checksum::{SEALED_BITS, crc, unseal};
use crate::media::record::{
    DataCopy, ENTRIES_AT, EntryKind, RECORD_MAGIC, RecordHeader, SlotState,
};
use crate::media::superblock::{INODE_TABLE_OFFSET, PAGE};
use crate::media::{DiskInode, Geometry};
use crate::pmem::{Region, Unfenced};
use crate::types::{Ino, Lsn, RegionOffset};

/// The bytes of a file system, current or after planned changes.
#[expect(clippy::len_without_is_empty, reason = "a medium is never empty")]
pub trait ReadMedium {
    /// Returns the length in bytes.
    fn len(&self) -> u64;
    /// Loads an aligned word.
    ///
    /// # Errors
    /// Errors of reading.
    fn load_u64(&self, at: RegionOffset) -> Result<u64>;
    /// Copies bytes out.
    ///
    /// # Errors
    /// Errors of reading.
    fn read(&self, at: RegionOffset, into: &mut [u8]) -> Result<()>;
}

/// The place where the homes of records lie.
pub trait Homes: ReadMedium {
    /// Changes bytes.
    ///
    /// # Errors
    /// Errors of storing.
    fn store(&mut self, at: RegionOffset, bytes: &[u8]) -> Result<()>;
    /// Changes an aligned word.
    ///
    /// # Errors
    /// Errors of storing.
    fn store_u64(&mut self, at: RegionOffset, word: u64) -> Result<()>;
    /// Zeroes `words` words.
    ///
    /// # Errors
    /// Errors of storing.
    fn zero(&mut self, at: RegionOffset, words: u64) -> Result<()>;

    /// Copies file data.
    ///
    /// # Errors
    /// Errors of reading and storing.
    fn copy(&mut self, copy: &DataCopy) -> Result<()> {
        let mut bytes = [0; 4096];
        let mut done = 0;
        while done < copy.len {
            let n = (copy.len - done).min(bytes.len() as u64);
            let bytes = &mut bytes[..n as usize];
            if let Some(from) = copy.from {
                self.read(from + done, bytes)?;
            }
            self.store(copy.to + done, bytes)?;
            done += n;
        }
        Ok(())
    }
}

impl ReadMedium for Region {
    fn len(&self) -> u64 {
        Region::len(self)
    }

    #[inline]
    fn load_u64(&self, at: RegionOffset) -> Result<u64> {
        Ok(Region::load_u64(self, at.0)?)
    }

    fn read(&self, at: RegionOffset, into: &mut [u8]) -> Result<()> {
        Ok(Region::read(self, at.0, into)?)
    }
}

/// Homes on the medium: stores to them, and notes the lines to flush.
#[derive(Debug)]
pub struct OnMedium<'a> {
    /// The medium.
    pub region: &'a Region,
    /// The lines to flush.
    pub lines: &'a mut Lines,
}

impl ReadMedium for OnMedium<'_> {
    fn len(&self) -> u64 {
        self.region.len()
    }

    #[inline]
    fn load_u64(&self, at: RegionOffset) -> Result<u64> {
        ReadMedium::load_u64(self.region, at)
    }

    fn read(&self, at: RegionOffset, into: &mut [u8]) -> Result<()> {
        ReadMedium::read(self.region, at, into)
    }
}

impl Homes for OnMedium<'_> {
    // This is all that a commit does for each entry. Inlined, so that its checks are those
    // of a loop.
    #[inline(always)]
    fn store(&mut self, at: RegionOffset, bytes: &[u8]) -> Result<()> {
        self.region.window().store_unflushed(at.0, bytes)?;
        self.lines.add(at, bytes.len() as u64);
        Ok(())
    }

    #[inline]
    fn store_u64(&mut self, at: RegionOffset, word: u64) -> Result<()> {
        self.region.window().store_u64_unflushed(at.0, word)?;
        self.lines.add(at, 8);
        Ok(())
    }

    fn zero(&mut self, at: RegionOffset, words: u64) -> Result<()> {
        let w = self.region.window();
        for i in 0..words {
            w.store_u64_unflushed(at.word(i).0, 0)?;
        }
        self.lines.add(at, words * 8);
        Ok(())
    }
}

/// Returns the `retired` word of a lane and its copy; `None` where the check does not
/// match.
///
/// # Errors
/// Errors of reading.
pub fn retired_words(
    from: &impl ReadMedium,
    geo: &Geometry,
    lane: u32,
) -> Result<[Option<u64>; 2]> {
    let mut words = [None; 2];
    for (copy, word) in (0..).zip(&mut words) {
        let raw = from.load_u64(geo.retired_offset(lane).word(copy))?;
        *word = if raw == 0 {
            Some(0)
        } else {
            unseal(geo.retired_seed(copy), raw)
        };
    }
    Ok(words)
}

/// Reads one slot.
///
/// # Errors
/// Errors of reading.
pub fn read_slot(
    from: &impl ReadMedium,
    geo: &Geometry,
    lane: u32,
    slot: u32,
) -> Result<(SlotState, Vec<u8>)> {
    let at = geo.slot_offset(lane, slot);
    let mut bytes = vec![0; geo.slot_size as usize];
    from.read(at, &mut bytes)?;
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
    // Not an LSN of any record; a record with the last number would leave none for the
    // next.
    if h.lsn == 0 || h.lsn >> SEALED_BITS != 0 {
        return Ok((SlotState::Bad, bytes));
    }
    Ok((SlotState::Valid(Lsn(h.lsn)), bytes))
}

/// What all live records together have in blocks. Writers give a block to one of them only, so
/// these ranges are disjoint, and no record can make a mount read or copy more than the region.
#[derive(Debug, Default)]
pub struct InBlocks {
    /// Start and end of what records continue with.
    more: BTreeMap<RegionOffset, RegionOffset>,
    /// Sum of the lengths of all sources.
    staged: u64,
}

impl InBlocks {
    /// Adds a range. False if it overlaps an earlier one.
    fn add_more(&mut self, start: RegionOffset, end: RegionOffset) -> bool {
        let before = self.more.range(..end).next_back();
        if before.is_some_and(|(_, before_end)| *before_end > start) {
            return false;
        }
        self.more.insert(start, end);
        true
    }
}

/// Appends to a record that may be live what it has in blocks ([`EntryKind::More`]).
///
/// # Errors
/// [`Error::Corrupt`] if these bytes are not those of the record; errors of reading.
pub fn expand(
    from: &impl ReadMedium,
    geo: &Geometry,
    record: &mut Vec<u8>,
    all: &mut InBlocks,
) -> Result<()> {
    let bad = |what| {
        Err(Error::corrupt(
            Damage::RecordsRefused,
            "a journal record",
            what,
        ))
    };
    let mut more = Vec::new();
    for e in parse(record.get(ENTRIES_AT..).unwrap_or(&[])) {
        if e.kind != EntryKind::More {
            continue;
        }
        let ([len, sum], []) = e.payload.as_chunks::<8>() else {
            return bad("its entry for more entries has the wrong shape");
        };
        let (len, sum) = (u64::from_le_bytes(*len), u64::from_le_bytes(*sum));
        let total = len.saturating_add(more.len() as u64);
        if len % 8 != 0 || total > MAX_CONTINUED as u64 || !is_data(from, geo, e.offset, len) {
            return bad("it continues where no entries can be");
        }
        if len > 0 && !all.add_more(e.offset, e.offset + len) {
            return bad("it continues in the blocks of another entry");
        }
        let start = more.len();
        more.resize(start + len as usize, 0);
        from.read(e.offset, &mut more[start..])?;
        if u64::from(crc(geo.seed, &more[start..])) != sum {
            return bad("what it has in blocks is damaged");
        }
    }
    record.append(&mut more);
    Ok(())
}

/// Limit of the bytes that one record zeroes by entries of kind `Copy`: a part of a change is at
/// most 1 MiB long, and ends within a page.
const MAX_ZEROS: u64 = 2 << 20;

/// Whether file data can lie in a range: neither superblock pages nor journal.
fn is_data(from: &impl ReadMedium, geo: &Geometry, at: RegionOffset, len: u64) -> bool {
    let Some(end) = at.checked_add(len).filter(|end| end.0 <= from.len()) else {
        return false;
    };
    let overlaps = |from: RegionOffset, to: RegionOffset| at < to && end > from;
    !geo.pages().iter().any(|page| overlaps(*page, *page + PAGE))
        && !overlaps(geo.journal_offset, geo.journal_offset + geo.journal_len)
}

/// Whether an inode that the record changes is newer at its home. If so, the lane's next
/// record was durable, and with it all homes of this one. Replay would only undo the
/// changes of that next record.
///
/// # Errors
/// Errors of reading.
pub fn superseded(from: &impl ReadMedium, geo: &Geometry, record: &[u8]) -> Result<bool> {
    const SIZE: u64 = DiskInode::SIZE as u64;
    for e in parse(&record[ENTRIES_AT..]) {
        let whole = e
            .offset
            .checked_add(SIZE)
            .is_some_and(|end| end.0 <= from.len());
        if e.kind != EntryKind::Inode || !e.offset.0.is_multiple_of(SIZE) || !whole {
            continue;
        }
        let mut home = DiskInode::new_zeroed();
        from.read(e.offset, home.as_mut_bytes())?;
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

/// The words of a payload.
pub fn words(payload: &[u8]) -> impl Iterator<Item = u64> + '_ {
    payload
        .as_chunks::<8>()
        .0
        .iter()
        .map(|c| u64::from_le_bytes(*c))
}

/// Returns the bitmap and group that an entry touches.
pub fn group_of(e: &Entry<'_>) -> Option<(u64, u64)> {
    match e.kind {
        EntryKind::SetBits | EntryKind::ClearBits => {
            let w = words(e.payload).nth(1)?;
            Some((w >> 56, w & ((1 << 56) - 1)))
        }
        // Kind and group follow the descriptor itself.
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

/// Checks, before any of it is stored, that a valid record names only what a record may
/// name. [`expand`] has completed it.
///
/// # Errors
/// [`Error::Corrupt`] if it does not.
pub fn check(
    from: &impl ReadMedium,
    geo: &Geometry,
    record: &[u8],
    all: &mut InBlocks,
) -> Result<()> {
    let header = RecordHeader::read_from_prefix(record)
        .map_err(|_| {
            Error::corrupt(
                Damage::RecordsRefused,
                "a journal record",
                "it is too short",
            )
        })?
        .0;
    let body = &record[ENTRIES_AT..];
    let bad = |what: &str| {
        Error::corrupt(
            Damage::RecordsRefused,
            format!("journal record {}", header.lsn),
            what,
        )
    };
    let (mut used, mut count) = (0, 0u32);
    let mut sources: Vec<(RegionOffset, RegionOffset)> = Vec::new();
    let mut homes: Vec<(RegionOffset, RegionOffset)> = Vec::new();
    let mut targets: Vec<(RegionOffset, RegionOffset)> = Vec::new();
    let mut zeros = 0u64;
    for e in parse(body) {
        used += 8 + e.payload.len();
        // The header counts the entries in the slot.
        let in_slot = used + ENTRIES_AT <= header.len as usize;
        count += u32::from(in_slot);
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
                // Zeros only clear pointers, which lie in one block.
                if e.offset.0 % geo.block_size + len.min(geo.block_size + 1) > geo.block_size {
                    return Err(bad("an entry of zeros leaves its block"));
                }
                len
            }
            EntryKind::Copy => {
                let copy = DataCopy::read(e.offset, e.payload)
                    .ok_or_else(|| bad("an entry of file data has the wrong shape"))?;
                if !is_data(from, geo, copy.to, copy.len) {
                    return Err(bad("an entry copies to where no file data is"));
                }
                if let Some(at) = copy.from {
                    if !is_data(from, geo, at, copy.len) {
                        return Err(bad("an entry copies from where no file data is"));
                    }
                    sources.push((at, at + copy.len));
                    all.staged = all.staged.saturating_add(copy.len);
                } else {
                    zeros = zeros.saturating_add(copy.len);
                }
                if all.staged > from.len() || zeros > MAX_ZEROS {
                    return Err(bad("its entries copy more than a record can"));
                }
                targets.push((copy.to, copy.to + copy.len));
                copy.to - e.offset + copy.len
            }
            EntryKind::More if !in_slot => {
                return Err(bad("it continues more than once"));
            }
            // `expand` has checked what it names.
            EntryKind::More => continue,
            _ => payload,
        };
        let end = e.offset.checked_add(len).filter(|end| end.0 <= from.len());
        let Some(end) = end else {
            return Err(bad("an entry leaves the region"));
        };
        let overlaps = |from: RegionOffset, to: RegionOffset| e.offset < to && end > from;
        // A record never changes the static superblocks, the dynamic words or the journal.
        // It may change the internal inodes of both pages.
        for page in geo.pages() {
            if overlaps(page, page + INODE_TABLE_OFFSET) {
                return Err(bad("an entry would overwrite a superblock"));
            }
        }
        if overlaps(geo.journal_offset, geo.journal_offset + geo.journal_len) {
            return Err(bad("an entry would overwrite the journal"));
        }
        homes.push((e.offset, end));
    }
    // Another recovery would not find what this one has copied.
    if !sources.is_empty() && overlap(&mut sources, &mut homes) {
        return Err(bad("an entry would overwrite what another one copies"));
    }
    targets.sort_unstable();
    if targets.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err(bad("two entries copy to the same place"));
    }
    if used != body.len() || count != header.entries {
        return Err(bad("its entries do not fill it"));
    }
    Ok(())
}

/// Copies or zeroes file data by non-temporal stores, for recovery and after a commit.
///
/// # Errors
/// Errors of the region.
pub fn copy_data(region: &Region, copy: &DataCopy) -> Result<Unfenced> {
    let w = region.window();
    Ok(match copy.from {
        None => w.nt_zero(copy.to.0, copy.len)?,
        Some(from) => w.nt_copy(copy.to.0, from.0, copy.len)?,
    })
}

/// Whether a record needs the feature `atomic_data`.
pub fn needs_atomic_data(record: &[u8]) -> bool {
    parse(record.get(ENTRIES_AT..).unwrap_or(&[]))
        .any(|e| matches!(e.kind, EntryKind::Copy | EntryKind::More))
}

/// Returns the number of bytes that an entry changes at its home.
pub fn home_len(e: &Entry<'_>) -> u64 {
    match e.kind {
        EntryKind::SetBits | EntryKind::ClearBits => 8,
        EntryKind::Desc => GroupDesc::SIZE as u64,
        EntryKind::Zero => e
            .payload
            .first_chunk::<8>()
            .map_or(0, |b| u64::from_le_bytes(*b).saturating_mul(8)),
        EntryKind::Copy => {
            DataCopy::read(e.offset, e.payload).map_or(0, |copy| copy.to - e.offset + copy.len)
        }
        EntryKind::More => 0,
        _ => e.payload.len() as u64,
    }
}

/// Whether a range of one list overlaps one of the other.
fn overlap(a: &mut [(RegionOffset, RegionOffset)], b: &mut [(RegionOffset, RegionOffset)]) -> bool {
    a.sort_unstable();
    b.sort_unstable();
    // The homes may overlap each other: each range reaches to the furthest end so far.
    let mut furthest = RegionOffset::START;
    for range in b.iter_mut() {
        furthest = furthest.max(range.1);
        range.1 = furthest;
    }
    a.iter().any(|&(start, end)| {
        let before = b.partition_point(|range| range.0 < end);
        before > 0 && b[before - 1].1 > start
    })
}

/// Applies an entry to its home. Bits change by masks; the caller updates the sum of their
/// group.
///
/// # Errors
/// Errors of the homes.
#[inline]
pub fn apply(homes: &mut impl Homes, e: &Entry<'_>) -> Result<()> {
    match e.kind {
        EntryKind::SetBits | EntryKind::ClearBits => {
            let mask = words(e.payload).next().unwrap_or(0);
            let old = homes.load_u64(e.offset)?;
            let new = if e.kind == EntryKind::SetBits {
                old | mask
            } else {
                old & !mask
            };
            homes.store_u64(e.offset, new)
        }
        EntryKind::Zero => homes.zero(e.offset, words(e.payload).next().unwrap_or(0)),
        EntryKind::Desc => homes.store(e.offset, &e.payload[..32]),
        EntryKind::Copy => match DataCopy::read(e.offset, e.payload) {
            Some(copy) => homes.copy(&copy),
            None => Ok(()),
        },
        // Its entries follow.
        EntryKind::More => Ok(()),
        EntryKind::Inode
        | EntryKind::Pointer
        | EntryKind::Leaf
        | EntryKind::Slot
        | EntryKind::Sum => homes.store(e.offset, e.payload),
    }
}
