//! Stores a repair. A crash or a kill at any moment leaves the file system as it
//! was, or repaired up to the end of a batch, and never in between.
//!
//! Order:
//! 1. Replay the records of the medium's journal there, as a mount does, and
//!    make them dead by the checkpoint. To restart record numbers, raise the
//!    checkpoint above all records, empty the journal, and then lower the
//!    checkpoint: at no moment is an old record live.
//! 2. Store the words of the superblock pages and of the journal that cannot go
//!    through the journal. Each is a copy of a valid word elsewhere, so every
//!    intermediate state is as good as the one before.
//! 3. Store everything else in batches. Write records to the slots of all lanes;
//!    they are dead, because the checkpoint is above their numbers. One store of
//!    the checkpoint makes all of them live at once. Then store the contents in
//!    place, and raise the checkpoint, which makes the records dead. After a
//!    crash, recovery replays all of these records or none.
//! 4. Store `state` and the error marks.
//!
//! A repair that fits one batch is atomic. In a longer one, every batch leaves
//! each structure whole: no block is divided between two batches. Bits are set
//! before the structures that need them and cleared after. A closed append window
//! leaves its slot after the size of the file is stored. The next run finds
//! again what a crash left undone.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use zerocopy::IntoBytes;

use super::RoundState;
use super::replay::{CHECKPOINT_AT, Journal};
use crate::view::{Change, View};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::journal::records::retired_words;
use pramfs_medium::journal::{Lines, RecordBuf};
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc, GroupState};
use pramfs_medium::media::checksum::{SEALED_BITS, seal, word_sum};
use pramfs_medium::media::record::EntryKind;
use pramfs_medium::media::retired::RetiredCopy;
use pramfs_medium::media::superblock::{DYNAMIC_OFFSET, INODE_TABLE_OFFSET};
use pramfs_medium::media::{Geometry, SuperStatic, probe_superblock};
use pramfs_medium::pmem::{Region, RegionAccess, Unfenced};
use pramfs_medium::types::{Bno, RegionOffset};

/// Alignment and size of what two batches never divide, in bytes.
pub(super) const UNIT: u64 = 4096;
/// Largest entry in bytes.
const ENTRY: usize = 1024;

/// The bitmap of a group.
struct Bitmap {
    kind: BitmapKind,
    group: u64,
    /// Offset of its descriptor.
    desc: RegionOffset,
    /// Offset of its bits.
    bits: RegionOffset,
}

/// Changes that go into one batch.
struct Unit {
    /// The unit is a bitmap with its descriptor.
    bitmap: bool,
    parts: Vec<Change>,
}

struct Writer<'a> {
    region: &'a Region,
    geo: &'a Geometry,
    /// Lanes for batches: those with a readable `retired` word. Recovery accepts
    /// no record of another lane.
    lanes: Vec<u32>,
    /// Largest record number used so far.
    newest: u64,
    faults: u64,
}

/// Stores the changes of a view of `region`. Returns the number of bytes changed, including
/// those of a replay and of restarted record numbers.
/// `notes` have the number at which record numbers restart, and the append windows closed.
pub(super) fn commit(
    region: &Region,
    view: &View<'_>,
    geo: &Geometry,
    journal: &Journal,
    notes: &RoundState,
) -> Result<u64> {
    let mut w = Writer {
        region,
        geo,
        lanes: Vec::new(),
        newest: journal.newest,
        faults: region.faults(),
    };
    for run in geo.fixed_blocks() {
        let blocks = run.end - run.start;
        region.take_room(geo.offset(Bno(run.start)).0, geo.bytes(blocks))?;
    }
    // Before the first store, which may belong to the replay: if the host file
    // system is full (ENOSPC), nothing is changed.
    let mut stored = 0;
    for change in view.changes()? {
        stored += change.bytes.len() as u64;
        region.take_room(change.at, change.bytes.len() as u64)?;
    }
    w.rewrite_failed(view)?;
    if journal.needs_checkpoint() {
        w.replay(journal)?;
    }
    if let Some(first) = notes.first {
        w.renumber(first)?;
    }
    let (mut words, mut last, mut batch) = (Vec::new(), Vec::new(), Vec::new());
    let mut statics = [Vec::new(), Vec::new()];
    let pages = w.pages_unused_first()?;
    let has_new_root = w.has_new_root(view)?;
    for change in view.changes()? {
        for part in w.parts(change) {
            let page = pages.iter().position(|page| {
                let RegionOffset(page) = *page;
                has_new_root && (page..page + DYNAMIC_OFFSET).contains(&part.at)
            });
            if let Some(page) = page {
                statics[page].push(part);
                continue;
            }
            match w.home(&part) {
                Home::Word => words.push(part),
                Home::Last => last.push(part),
                Home::Journal => batch.push(part),
            }
        }
    }
    w.write_in_place(&words, Unfenced::none())?;
    if !batch.is_empty() {
        w.find_lanes()?;
        w.in_batches(view, batch, &notes.closed)?;
    }
    for page in statics {
        w.write_in_place(&page, Unfenced::none())?;
    }
    w.write_in_place(&last, Unfenced::none())?;
    region.sync_all().map_err(|e| {
        Error::io(format!(
            "the repair could not be written to the medium: {e}; run it again"
        ))
    })?;
    w.check_faults()?;
    Ok(stored)
}

/// How a change reaches the medium.
enum Home {
    /// By plain stores, before everything else.
    Word,
    /// By plain stores, after everything else.
    Last,
    /// Through the journal.
    Journal,
}

impl Writer<'_> {
    /// Fails if the medium reported a fault: stores to such a page are lost.
    fn check_faults(&self) -> Result<()> {
        if self.region.faults() == self.faults {
            return Ok(());
        }
        let name = self.region.info().name;
        Err(Error::io(format!("{name} failed during the repair")))
    }

    /// Writes failed pages anew that hold the superblocks, the journal, or what the repair
    /// changes there, because no block can take their place.
    fn rewrite_failed(&mut self, view: &View<'_>) -> Result<()> {
        let bad = self.region.bad_ranges();
        if bad.is_empty() {
            return Ok(());
        }
        let changed = view.changes()?;
        let pages: BTreeSet<u64> = bad
            .iter()
            .flat_map(|bad| (bad.start / UNIT * UNIT..bad.end).step_by(UNIT as usize))
            .collect();
        for at in pages {
            let page = at..(at + UNIT).min(self.region.len());
            let (first, len) = (
                self.geo.block_at(RegionOffset(at)),
                UNIT / self.geo.block_size,
            );
            let ends = |change: &Change| change.at + change.bytes.len() as u64;
            if !self.geo.is_of_format(first.0, len.max(1))
                && !changed
                    .iter()
                    .any(|c| c.at < page.end && page.start < ends(c))
            {
                continue;
            }
            let mut bytes = vec![0; (page.end - page.start) as usize];
            // What the medium has, with failed sectors filled; the journal brings the changes.
            View::new(self.region).read(RegionOffset(at), &mut bytes)?;
            self.region.rewrite_failed(page, &bytes)?;
        }
        self.faults = self.region.faults();
        Ok(())
    }

    /// Returns the superblock pages, last the one that mounts use.
    fn pages_unused_first(&self) -> Result<[RegionOffset; 2]> {
        let [first, copy] = self.geo.pages();
        Ok(match probe_superblock(self.region)?.from_copy {
            true => [first, copy],
            false => [copy, first],
        })
    }

    /// Whether the repair changes the root of the list of bad blocks. What it leads to is
    /// stored before the root, and one page after the other.
    fn has_new_root(&self, view: &View<'_>) -> Result<bool> {
        let mut any = false;
        for page in self.geo.pages() {
            let old: SuperStatic = View::new(self.region).read_pod(page)?;
            let new: SuperStatic = view.read_pod(page)?;
            any |= old.badblock_root != new.badblock_root;
        }
        Ok(any)
    }

    /// Splits a run of changed words at units and where [`Home`] may change.
    fn parts(&self, change: Change) -> Vec<Change> {
        let RegionOffset(journal) = self.geo.journal_offset;
        let mut cuts = vec![journal, journal + self.geo.journal_len];
        for RegionOffset(page) in self.geo.pages() {
            let own = [0, DYNAMIC_OFFSET, DYNAMIC_OFFSET + CHECKPOINT_AT];
            cuts.extend(own.map(|o| page + o));
            cuts.push(page + DYNAMIC_OFFSET + CHECKPOINT_AT + 8);
            cuts.push(page + INODE_TABLE_OFFSET);
        }
        let mut out = Vec::new();
        let (mut at, mut rest) = (change.at, &change.bytes[..]);
        while !rest.is_empty() {
            let end = at + rest.len() as u64;
            let unit = (at / UNIT + 1) * UNIT;
            let inside = cuts.iter().copied().filter(|c| *c > at);
            let stop = inside.fold(end.min(unit).min(at + ENTRY as u64), u64::min);
            let (part, tail) = rest.split_at((stop - at) as usize);
            out.push(Change {
                at,
                bytes: part.to_vec(),
            });
            (at, rest) = (stop, tail);
        }
        out
    }

    fn home(&self, part: &Change) -> Home {
        let within = |from: u64, to: u64| (from..to).contains(&part.at);
        let RegionOffset(journal) = self.geo.journal_offset;
        if within(journal, journal + self.geo.journal_len) {
            return Home::Word;
        }
        for RegionOffset(page) in self.geo.pages() {
            let dynamic = page + DYNAMIC_OFFSET;
            if within(page, dynamic) || part.at == dynamic + CHECKPOINT_AT {
                return Home::Word;
            }
            if within(dynamic, page + INODE_TABLE_OFFSET) {
                return Home::Last;
            }
        }
        Home::Journal
    }

    /// Stores changes word by word, so that a crash leaves each word old or new. Its fence
    /// also makes `pending` durable.
    fn write_in_place(&self, changes: &[Change], pending: Unfenced) -> Result<()> {
        let w = self.region.window();
        let mut lines = Lines::default();
        for c in changes {
            for (i, word) in (0..).zip(c.bytes.as_chunks::<8>().0) {
                w.store_u64_unflushed(c.at + i * 8, u64::from_le_bytes(*word))?;
            }
            lines.add(RegionOffset(c.at), c.bytes.len() as u64);
        }
        let _ = w.fence(pending.join(lines.flush(self.region)?));
        self.check_faults()
    }

    /// Stores the checkpoint in these pages, one after the other.
    fn checkpoint(&self, pages: &[RegionOffset], lsn: u64) -> Result<()> {
        for page in pages {
            self.publish(*page, lsn, Unfenced::none())?;
        }
        Ok(())
    }

    /// Stores the checkpoint of a page. Its fence also makes `pending` durable.
    fn publish(&self, page: RegionOffset, lsn: u64, pending: Unfenced) -> Result<()> {
        let w = self.region.window();
        let RegionOffset(at) = page + DYNAMIC_OFFSET + CHECKPOINT_AT;
        w.store_u64_unflushed(at, seal(self.geo.seed, lsn))?;
        let _ = w.fence(pending.join(w.flush(at, 8)?));
        self.check_faults()
    }

    /// Replays on the medium the records that a crash left. Until the checkpoint is durable,
    /// the same records stay live.
    fn replay(&mut self, journal: &Journal) -> Result<()> {
        let mut view = View::new(self.region);
        for record in &journal.live {
            super::replay::apply(&mut view, self.geo, record)?;
        }
        let changes = view.changes()?;
        // The repair may change bytes back to zeros: those are not in its changes,
        // and may not have a page yet.
        for change in &changes {
            let len = change.bytes.len() as u64;
            self.region.take_room(change.at, len)?;
        }
        self.write_in_place(&changes, Unfenced::none())?;
        self.checkpoint(&self.geo.pages(), self.newest)
    }

    /// Restarts record numbers at a lower number. No old record may be live at any
    /// moment: the checkpoint stays above all of them until none is left.
    fn renumber(&mut self, first: u64) -> Result<()> {
        self.checkpoint(&self.geo.pages(), self.newest)?;
        let w = self.region.window();
        let mut pending = Unfenced::none();
        for lane in 0..self.geo.lanes {
            for slot in 0..2 {
                let RegionOffset(at) = self.geo.slot_offset(lane, slot);
                pending = pending.join(w.nt_zero(at, 64)?);
            }
        }
        // The copies of the words, too: there may have been a mount with the lower checkpoint.
        let copies = (0..self.geo.lanes).map_while(|lane| RetiredCopy::place(self.geo, lane));
        let words = (0..self.geo.lanes).map(|lane| self.geo.retired_offset(lane));
        let retired = words.chain(copies).map(|at| Change {
            at: at.0,
            bytes: vec![0; RetiredCopy::SIZE],
        });
        // Durable before the lower checkpoint; until then the high one keeps old records dead.
        self.write_in_place(&retired.collect::<Vec<_>>(), pending)?;
        self.checkpoint(&self.geo.pages(), first)?;
        self.newest = first;
        Ok(())
    }

    /// Finds the usable lanes. Runs after the repair of their words, which the
    /// policy may have declined.
    fn find_lanes(&mut self) -> Result<()> {
        for lane in 0..self.geo.lanes {
            let words = retired_words(self.region, self.geo, lane)?;
            if words.iter().any(Option::is_some) {
                self.lanes.push(lane);
            }
        }
        if self.lanes.is_empty() {
            return Err(Error::io(
                "the repair needs the journal, but the retired words of all its lanes are \
                 damaged: repair them too",
            ));
        }
        Ok(())
    }

    /// Stores everything outside the superblocks and the journal. If it does not
    /// fit one batch, it starts with the bits to set and ends with the bits to
    /// clear. The sizes of files are stored before the append windows that told them leave the
    /// slots in the pages `closed`.
    fn in_batches(
        &mut self,
        view: &View<'_>,
        parts: Vec<Change>,
        closed: &HashSet<u64>,
    ) -> Result<()> {
        let bitmaps = self.bitmaps(view)?;
        let all = self.units(&bitmaps, parts);
        if self.records(&all)?.len() <= self.max_records() {
            return self.units_in_batches(&all);
        }
        let mut union = View::new(self.region);
        for b in &bitmaps {
            let (mut words, mut sum) = (Vec::new(), 0u64);
            for i in 0..self.geo.words_per_block() {
                let word = view.load_u64(b.bits + i * 8)? | self.old_bits(b, i)?;
                sum = sum.wrapping_add(word_sum(self.geo.seed, i, word));
                words.push(word);
            }
            union.store(b.bits, words.as_bytes())?;
            union.store_u64(b.desc, view.load_u64(b.desc)?)?;
            union.store_u64(b.desc + 8, sum)?;
        }
        let mut first = Vec::new();
        for change in union.changes()? {
            first.extend(self.parts(change));
        }
        let first = self.units(&bitmaps, first);
        self.units_in_batches(&first)?;
        let (structures, _): (Vec<_>, Vec<_>) = all.into_iter().partition(|u| !u.bitmap);
        let (windows, structures): (Vec<_>, Vec<_>) = structures
            .into_iter()
            .partition(|u| u.parts.iter().any(|p| closed.contains(&(p.at / UNIT))));
        self.units_in_batches(&structures)?;
        self.units_in_batches(&windows)?;
        // The medium has changed since then: only the bits to clear are left.
        let mut rest = Vec::new();
        for change in view.changes()? {
            rest.extend(self.parts(change));
        }
        rest.retain(|p| matches!(self.home(p), Home::Journal));
        let rest = self.units(&bitmaps, rest);
        self.units_in_batches(&rest)
    }

    /// Reads a bitmap word of a group on the medium; zero if its bitmap moves to
    /// another place.
    fn old_bits(&self, b: &Bitmap, index: u64) -> Result<u64> {
        let word = self.region.load_u64(b.desc.0)?;
        match GroupDesc::state(self.geo, b.kind, b.group, word) {
            GroupState::Bitmap(block) if self.geo.offset(block) == b.bits => {
                Ok(self.region.load_u64(b.bits.word(index).0)?)
            }
            _ => Ok(0),
        }
    }

    /// Returns the bitmaps of the view.
    fn bitmaps(&self, view: &View<'_>) -> Result<Vec<Bitmap>> {
        let mut out = Vec::new();
        for (kind, bits) in [
            (BitmapKind::Blocks, self.geo.blocks()),
            (BitmapKind::Inodes, self.geo.inodes_max()),
        ] {
            for group in 0..bits.div_ceil(self.geo.bits_per_group()) {
                let at = group * GroupDesc::SIZE as u64;
                let Some(desc) = super::replay::find(view, self.geo, kind.owner(), at)? else {
                    continue;
                };
                let word = view.load_u64(desc)?;
                if let GroupState::Bitmap(block) = GroupDesc::state(self.geo, kind, group, word) {
                    out.push(Bitmap {
                        kind,
                        group,
                        desc,
                        bits: self.geo.offset(block),
                    });
                }
            }
        }
        Ok(out)
    }

    /// Groups changes by the structure that they belong to. A bitmap and its
    /// descriptor are one structure.
    fn units(&self, bitmaps: &[Bitmap], parts: Vec<Change>) -> Vec<Unit> {
        const DESC: u64 = GroupDesc::SIZE as u64;
        let mut owner = HashMap::new();
        let mut descs = HashSet::new();
        for (i, b) in bitmaps.iter().enumerate() {
            owner.insert(self.geo.block_at(b.bits), i);
            descs.insert(self.geo.block_at(b.desc));
        }
        let by_desc: HashMap<u64, usize> =
            bitmaps.iter().map(|b| b.desc.0 / DESC).zip(0..).collect();
        let mut units: BTreeMap<(bool, u64), Unit> = BTreeMap::new();
        for part in parts {
            let mut pieces = Vec::new();
            let in_descs = descs.contains(&(self.geo.block_at(RegionOffset(part.at))));
            let step = if in_descs { DESC } else { self.geo.block_size };
            let (mut at, mut rest) = (part.at, &part.bytes[..]);
            while !rest.is_empty() {
                let n = rest.len().min(((at / step + 1) * step - at) as usize);
                pieces.push(Change {
                    at,
                    bytes: rest[..n].to_vec(),
                });
                (at, rest) = (at + n as u64, &rest[n..]);
            }
            for piece in pieces {
                let bitmap = owner
                    .get(&self.geo.block_at(RegionOffset(piece.at)))
                    .or_else(|| by_desc.get(&(piece.at / DESC)).filter(|_| in_descs));
                let key = match bitmap {
                    Some(i) => (true, *i as u64),
                    None => (false, piece.at / UNIT),
                };
                let unit = units.entry(key).or_insert_with(|| Unit {
                    bitmap: key.0,
                    parts: Vec::new(),
                });
                unit.parts.push(piece);
            }
        }
        units.into_values().collect()
    }

    /// Returns the most records of a batch.
    fn max_records(&self) -> usize {
        self.lanes.len() * 2
    }

    /// Builds one or more records for each unit. Units share a record if they fit
    /// as a whole.
    fn records(&self, units: &[Unit]) -> Result<Vec<RecordBuf>> {
        let mut records: Vec<RecordBuf> = Vec::new();
        for unit in units {
            let bytes: usize = unit.parts.iter().map(|p| p.bytes.len() + 8).sum();
            let mut open = records.last().is_some_and(|r| r.room() + 8 >= bytes);
            for part in &unit.parts {
                let fits = match records.last_mut() {
                    Some(r) if open => r.push(EntryKind::Leaf, part.at, &part.bytes),
                    _ => false,
                };
                if !fits {
                    let mut record = RecordBuf::new(self.geo.slot_size as usize);
                    if !record.push(EntryKind::Leaf, part.at, &part.bytes) {
                        return Err(Error::io("a change does not fit a record"));
                    }
                    records.push(record);
                    open = true;
                }
            }
        }
        Ok(records)
    }

    /// Stores units in order, in as few batches as possible.
    fn units_in_batches(&mut self, units: &[Unit]) -> Result<()> {
        let mut rest = units;
        while !rest.is_empty() {
            // Find how many units fit, by reducing a number that does not.
            let mut n = rest.len();
            let mut records = self.records(rest)?;
            while records.len() > self.max_records() && n > 1 {
                n = (n * self.max_records() / records.len()).clamp(1, n - 1);
                records = self.records(&rest[..n])?;
            }
            if records.len() > self.max_records() {
                return Err(Error::io("a change does not fit the journal"));
            }
            let homes: Vec<Change> = rest[..n].iter().flat_map(|u| u.parts.clone()).collect();
            self.batch(&mut records, &homes)?;
            rest = &rest[n..];
        }
        Ok(())
    }

    /// Stores one batch. Slots of all lanes may hold old records. They stay dead,
    /// because the checkpoint never falls below their numbers.
    fn batch(&mut self, records: &mut [RecordBuf], homes: &[Change]) -> Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let [first, copy] = self.geo.pages();
        let before = self.newest;
        self.newest += records.len() as u64;
        if self.newest >> SEALED_BITS != 0 {
            return Err(Error::io(
                "the repair needs the journal, but its record numbers are used up: repair \
                 lsns-used-up too",
            ));
        }
        // Above all numbers of this batch: its records are dead when written.
        self.checkpoint(&[first, copy], self.newest)?;
        let w = self.region.window();
        let mut pending = Unfenced::none();
        for (i, record) in (0..).zip(records.iter_mut()) {
            let (lane, slot) = (self.lanes[i / 2], (i % 2) as u32);
            let lsn = before + 1 + i as u64;
            let bytes = record.seal(self.geo.seed, lsn, lane, slot);
            let RegionOffset(at) = self.geo.slot_offset(lane, slot);
            pending = pending.join(w.nt_store(at, bytes)?);
        }
        // The larger of the two checkpoints counts. The first store's fence makes
        // the records durable; the second store makes all of them live.
        self.publish(copy, before, pending)?;
        self.publish(first, before, Unfenced::none())?;
        self.write_in_place(homes, Unfenced::none())?;
        self.checkpoint(&[first, copy], self.newest)
    }
}
