//! Storing a repair, so that a crash or a kill at any moment leaves the file
//! system as it was, or repaired as far as a batch, and never in between.
//!
//! Order:
//! 1. What the medium's journal holds is replayed there, as a mount does it,
//!    and made dead by the checkpoint.
//! 2. Words of the superblock pages and of the journal that have no other
//!    home: each is a copy of what is valid elsewhere, so that every moment
//!    is as good as the one before.
//! 3. Everything else in batches: records in all slots of all lanes, written
//!    while they are dead because the checkpoint lies above their numbers;
//!    one store of the checkpoint makes all of them live at once; then the
//!    contents go to their homes, and the checkpoint makes the records dead.
//!    A crash in between leaves records that recovery replays, all or none.
//! 4. `state` and the error marks.
//!
//! A repair that fits one batch is stored whole or not at all. Of a longer one
//! every batch leaves each structure whole (blocks are never divided between
//! two), bits that are set go before what needs them and bits that are
//! cleared after: what is not yet done is found again by the next run.

use super::replay::{CHECKPOINT_AT, Journal};
use crate::error::{Error, Result};
use crate::fsck::view::{Change, View};
use crate::journal::{Lines, RecordBuf, recovery};
use crate::media::Geometry;
use crate::media::bitmap::{BitmapKind, GroupDesc, GroupState};
use crate::media::checksum::{seal, word_sum};
use crate::media::record::EntryKind;
use crate::media::superblock::{DYNAMIC_OFFSET, INODE_TABLE_OFFSET};
use crate::pmem::Region;

/// Bytes that two batches do not divide between them.
const UNIT: u64 = 4096;
/// Most bytes of one entry.
const ENTRY: usize = 1024;

struct Writer<'a> {
    region: &'a Region,
    geo: &'a Geometry,
    /// Largest number given.
    newest: u64,
    faults: u64,
}

/// Stores what a view has changed; the bytes that were.
pub(super) fn commit(view: &View<'_>, geo: &Geometry, journal: &Journal) -> Result<u64> {
    let region = view.region();
    let mut w = Writer {
        region,
        geo,
        newest: journal.newest,
        faults: region.faults(),
    };
    if journal.live > 0
        && let Some(checkpoint) = journal.checkpoint
    {
        w.replay(checkpoint)?;
    }
    let (mut words, mut last, mut batch) = (Vec::new(), Vec::new(), Vec::new());
    let mut stored = 0;
    for change in view.changes()? {
        stored += change.bytes.len() as u64;
        for part in w.parts(change) {
            match w.home(&part) {
                Home::Word => words.push(part),
                Home::Last => last.push(part),
                Home::Journal => batch.push(part),
            }
        }
    }
    w.plainly(&words)?;
    if !batch.is_empty() {
        w.in_batches(view, batch)?;
    }
    w.plainly(&last)?;
    region
        .sync_all()
        .map_err(|e| Error::Io(format!("the repair could not be written out: {e}; run it again")))?;
    w.sound()?;
    Ok(stored)
}

/// How a change gets to its place.
enum Home {
    /// By plain stores, before the rest.
    Word,
    /// By plain stores, after the rest.
    Last,
    /// By the journal.
    Journal,
}

impl Writer<'_> {
    /// A store to a page that fails is lost.
    fn sound(&self) -> Result<()> {
        if self.region.faults() == self.faults {
            return Ok(());
        }
        let name = self.region.info().name;
        Err(Error::Io(format!("{name} failed while it was repaired")))
    }

    /// A run of changed words, cut at units and where another home begins.
    fn parts(&self, change: Change) -> Vec<Change> {
        let mut cuts = vec![self.geo.journal_offset];
        cuts.push(self.geo.journal_offset + self.geo.journal_len);
        for page in [0, self.geo.copy_offset] {
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
        let journal = self.geo.journal_offset;
        if within(journal, journal + self.geo.journal_len) {
            return Home::Word;
        }
        for page in [0, self.geo.copy_offset] {
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

    /// Word by word, so that each is old or new.
    fn plainly(&self, changes: &[Change]) -> Result<()> {
        let w = self.region.window();
        let mut lines = Lines::default();
        for c in changes {
            for (i, word) in (0..).zip(c.bytes.as_chunks::<8>().0) {
                w.store_u64_unflushed(c.at + i * 8, u64::from_le_bytes(*word))?;
            }
            lines.add(c.at, c.bytes.len() as u64);
        }
        let _ = w.fence(lines.flush(self.region)?);
        self.sound()
    }

    fn checkpoint(&self, pages: &[u64], lsn: u64) -> Result<()> {
        let w = self.region.window();
        for page in pages {
            let at = page + DYNAMIC_OFFSET + CHECKPOINT_AT;
            w.store_u64_unflushed(at, seal(self.geo.seed, lsn))?;
            let _ = w.fence(w.flush(at, 8)?);
        }
        self.sound()
    }

    fn pages(&self) -> [u64; 2] {
        [0, self.geo.copy_offset]
    }

    /// What a crash left, on the medium.
    fn replay(&mut self, checkpoint: u64) -> Result<()> {
        let (replayed, pending) = recovery::replay(self.region, self.geo, checkpoint)?;
        let w = self.region.window();
        let mut lines = Lines::default();
        for &(kind, group) in replayed.groups.keys() {
            let Some(kind) = BitmapKind::from_code(kind) else {
                continue;
            };
            let at = group * GroupDesc::SIZE as u64;
            let view = View::new(self.region);
            let Some(desc) = super::replay::find(&view, self.geo, kind.owner(), at)? else {
                continue;
            };
            let word = self.region.load_u64(desc)?;
            if let GroupState::Bitmap(block) = GroupDesc::state(self.geo, kind, group, word) {
                let mut sum = 0u64;
                for i in 0..self.geo.block_size / 8 {
                    let word = self.region.load_u64(self.geo.offset(block) + i * 8)?;
                    sum = sum.wrapping_add(word_sum(self.geo.seed, i, word));
                }
                w.store_u64_unflushed(desc + 8, sum)?;
                lines.add(desc, 32);
            }
        }
        let _ = w.fence(pending.join(lines.flush(self.region)?));
        self.newest = self.newest.max(replayed.newest);
        self.sound()?;
        self.checkpoint(&self.pages(), self.newest)
    }

    /// Everything that is in no superblock and no journal.
    fn in_batches(&mut self, view: &View<'_>, parts: Vec<Change>) -> Result<()> {
        // Structures keep together; in each group bits that are set come
        // first. A descriptor goes with its bitmap.
        let mut units: Vec<Vec<Change>> = Vec::new();
        for part in parts {
            match units.last_mut() {
                Some(unit) if unit[0].at / UNIT == part.at / UNIT => unit.push(part),
                _ => units.push(vec![part]),
            }
        }
        let _ = view;
        let slot = self.geo.slot_size as usize;
        let mut records: Vec<RecordBuf> = Vec::new();
        let mut homes: Vec<Change> = Vec::new();
        let most = self.geo.lanes as usize * 2;
        for unit in units {
            let mut new: Vec<RecordBuf> = Vec::new();
            for part in &unit {
                let fits = match new.last_mut().or(records.last_mut()) {
                    Some(r) => r.push(EntryKind::Leaf, part.at, &part.bytes),
                    None => false,
                };
                if !fits {
                    let mut record = RecordBuf::new(slot);
                    if !record.push(EntryKind::Leaf, part.at, &part.bytes) {
                        return Err(Error::Io("a change does not fit a record".into()));
                    }
                    new.push(record);
                }
            }
            if records.len() + new.len() > most {
                self.batch(&mut records, &homes)?;
                records.clear();
                homes.clear();
            }
            records.extend(new);
            homes.extend(unit);
        }
        self.batch(&mut records, &homes)
    }

    fn batch(&mut self, records: &mut [RecordBuf], homes: &[Change]) -> Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let pages = self.pages();
        let before = self.newest;
        self.newest += records.len() as u64;
        // Above all numbers of this batch: what is written now is dead.
        self.checkpoint(&pages, self.newest)?;
        let w = self.region.window();
        let mut pending = crate::pmem::Unfenced::none();
        for lane in 0..self.geo.lanes {
            pending = pending.join(w.nt_zero(self.geo.retired_offset(lane), 64)?);
            for slot in 0..2 {
                pending = pending.join(w.nt_zero(self.geo.slot_offset(lane, slot), 64)?);
            }
        }
        let _ = w.fence(std::mem::take(&mut pending));
        for (i, record) in (0..).zip(records.iter_mut()) {
            let (lane, slot) = (i / 2, i % 2);
            let lsn = before + 1 + u64::from(i);
            let bytes = record.seal(self.geo.seed, lsn, lane, slot);
            let at = self.geo.slot_offset(lane, slot);
            pending = pending.join(w.nt_store(at, bytes)?);
        }
        let _ = w.fence(pending);
        self.sound()?;
        // The larger of the two counts: with the second store all are live.
        self.checkpoint(&[pages[1]], before)?;
        self.checkpoint(&[pages[0]], before)?;
        self.plainly(homes)?;
        self.checkpoint(&pages, self.newest)
    }
}
