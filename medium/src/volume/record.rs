//! [`Record`]: one atomic, durable change.
//!
//! A transaction stores new data at places that nothing names yet, and collects
//! after-images of places in use. Nothing in use changes before
//! [`Recording::commit`](super::Recording::commit). Dropping a transaction changes nothing.
//!
//! A transaction has two phases. A [`Plan`](super::Plan) may allocate and holds no lane. A
//! [`Recording`](super::Recording) may hold one and cannot allocate. Both deref to a record.

use crate::media::Medium;
use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Volume;
use super::staging::{Restore, Unused, copy_data};
use crate::alloc::{BitRun, Bits, Freed, Reserved};
use crate::error::{Error, Result};
use crate::journal::records::{Homes, OnMedium, apply, group_word, home_len};
use crate::journal::{Change, LaneGuard, LastRecord, Lines, RecordBuf, RecordId};
use crate::media::bitmap::{BitmapKind, GroupDesc};
use crate::media::record::EntryKind;
use crate::pmem::{Region, Unfenced};
use crate::types::{BlockRun, Bno, Ino, InodeRun, RegionOffset};

/// Bytes of an entry of bits in a record.
const BITS_ENTRY: usize = 24;

pub(super) const TOO_LARGE: Error =
    Error::NotSupported("a change too large for one journal record");

/// The collected changes of a transaction, see the module. Functions that do not allocate take a
/// `&mut Record`.
#[derive(Debug)]
pub struct Record<'v> {
    vol: &'v Volume,
    lane: u32,
    pub(super) rec: RecordBuf,
    /// Blocks in which the record continues.
    pub(super) more: SmallVec<[BlockRun; 1]>,
    /// Staging blocks without use so far.
    pub(super) unused: Unused,
    /// No run of free blocks was as long as wanted, so no more searches for a whole one.
    pub(super) scattered: bool,
    /// Number of entries that copy file data.
    pub(super) copies: u32,
    /// Number of entries that hold sums of file data.
    pub(super) sums: u32,
    /// The record may continue in blocks, which are not taken yet.
    pub(super) is_large: bool,
    data: Option<Unfenced>,
    entered: Option<LaneGuard<'v>>,
    places: SmallVec<[&'v LastRecord; 4]>,
    bits: SmallVec<[Bits; 4]>,
    pub(super) taken: SmallVec<[Freed; 2]>,
    pub(super) freed: SmallVec<[Freed; 2]>,
    /// The transaction may use the reserve.
    pub(super) use_reserve: bool,
    over: bool,
    /// Faults of the medium at the start.
    faults: u64,
    /// See [`decide`](Self::decide).
    decides: Option<Option<Ino>>,
}

impl<'v> Record<'v> {
    // Inlined with all that it calls, so the value is built where it stays. A copy would
    // cost as much again.
    #[inline(always)]
    pub(super) fn new(vol: &'v Volume, lane: u32) -> Record<'v> {
        Record {
            vol,
            lane,
            rec: RecordBuf::new(vol.geo.slot_size as usize),
            more: SmallVec::new(),
            unused: Unused::default(),
            scattered: false,
            copies: 0,
            sums: 0,
            is_large: false,
            data: None,
            entered: None,
            places: SmallVec::new(),
            bits: SmallVec::new(),
            taken: SmallVec::new(),
            freed: SmallVec::new(),
            use_reserve: false,
            over: false,
            faults: vol.region.faults_seen(),
            decides: None,
        }
    }

    /// Returns the volume.
    pub fn volume(&self) -> &'v Volume {
        self.vol
    }

    /// Names a locked object whose homes this record writes. See rule 1 in
    /// `docs/consistency.md`.
    pub fn touch(&mut self, place: &'v LastRecord) {
        if !self.places.iter().any(|p| std::ptr::eq(*p, place)) {
            self.places.push(place);
        }
    }

    /// Payload bytes that still fit in one entry of the record.
    #[inline]
    pub fn room(&self) -> usize {
        self.rec.room()
    }

    // ---- reads of current and future contents

    /// Copies bytes out as they will be after this transaction.
    ///
    /// # Errors
    /// Errors of the region.
    #[inline(always)]
    pub fn read(&self, offset: RegionOffset, into: &mut [u8]) -> Result<()> {
        self.vol.medium().read(offset, into)?;
        self.overlay(offset, into);
        Ok(())
    }

    /// Applies this record's changes to bytes read from the region.
    #[inline]
    fn overlay(&self, offset: RegionOffset, into: &mut [u8]) {
        if self.rec.may_change(offset.0, into.len()) {
            self.overlay_entries(offset, into);
        }
    }

    fn overlay_entries(&self, offset: RegionOffset, into: &mut [u8]) {
        let end = offset + into.len() as u64;
        for e in self.rec.entries_near(offset.0, end.0) {
            let len = home_len(&e);
            let (from, to) = (e.offset.max(offset), (e.offset + len).min(end));
            if from >= to {
                continue;
            }
            let part = &mut into[(from - offset) as usize..(to - offset) as usize];
            match e.kind {
                EntryKind::SetBits | EntryKind::ClearBits => {}
                // Transactions do not read file data.
                EntryKind::Copy | EntryKind::More => {}
                EntryKind::Zero => part.fill(0),
                _ => part.copy_from_slice(
                    &e.payload[(from - e.offset) as usize..(to - e.offset) as usize],
                ),
            }
        }
    }

    /// Loads a word as it will be after this transaction.
    ///
    /// # Errors
    /// Errors of the region.
    #[inline]
    pub fn load_u64(&self, offset: RegionOffset) -> Result<u64> {
        let mut word = self.vol.medium().load_u64(offset)?;
        self.overlay(offset, word.as_mut_bytes());
        Ok(word)
    }

    /// Copies a structure out as it will be after this transaction.
    ///
    /// # Errors
    /// Errors of the region.
    #[inline]
    pub fn read_pod<T: FromBytes + IntoBytes + Immutable>(
        &self,
        offset: RegionOffset,
    ) -> Result<T> {
        let mut value: T = self.vol.medium().read_pod(offset)?;
        self.overlay(offset, value.as_mut_bytes());
        Ok(value)
    }

    // ---- new data, not reachable before commit

    /// Stores bytes at a place that nothing names before this commits.
    ///
    /// # Errors
    /// Errors of the region.
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn write_new(&mut self, offset: RegionOffset, bytes: &[u8]) -> Result<()> {
        self.vol.region.need_room(offset.0, bytes.len() as u64)?;
        let pending = self.vol.region.window().nt_store(offset.0, bytes)?;
        self.stored_new(pending);
        Ok(())
    }

    /// Takes charge of data that was stored at a place that nothing names before this
    /// commits.
    #[inline]
    pub fn stored_new(&mut self, pending: Unfenced) {
        self.data = Some(self.data.take().unwrap_or_default().join(pending));
    }

    /// Zeroes a range that nothing names before this commits.
    ///
    /// # Errors
    /// Errors of the region.
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn zero_new(&mut self, offset: RegionOffset, len: u64) -> Result<()> {
        self.vol.region.need_room(offset.0, len)?;
        let pending = self.vol.region.window().nt_zero(offset.0, len)?;
        self.stored_new(pending);
        Ok(())
    }

    /// Makes new data durable now, for an operation that turns out to need no record.
    #[cfg_attr(feature = "mutants", track_caller)]
    pub fn settle(&mut self) {
        if let Some(data) = self.data.take() {
            let _ = self.vol.region.write_back().fence(data);
        }
    }

    // ---- after-images

    /// Whether a commit changes nothing.
    pub fn has_no_record(&self) -> bool {
        self.rec.is_empty() && self.bits.is_empty()
    }

    pub(super) fn has_no_bits(&self) -> bool {
        self.bits.is_empty()
    }

    #[inline]
    pub(super) fn push(
        &mut self,
        kind: EntryKind,
        offset: RegionOffset,
        payload: &[u8],
    ) -> Result<()> {
        match self.rec.push(kind, offset.0, payload) {
            true => Ok(()),
            false => Err(TOO_LARGE),
        }
    }

    /// Changes the bytes at `offset` to `bytes`. Offset and length are multiples of 8.
    ///
    /// # Errors
    /// Errors of the region; a full record.
    #[inline(always)]
    pub fn put(&mut self, kind: EntryKind, offset: RegionOffset, bytes: &[u8]) -> Result<()> {
        debug_assert!(kind.replaces());
        self.vol.check_range(offset, bytes.len() as u64)?;
        self.push(kind, offset, bytes)
    }

    /// As [`put`](Self::put), but replaces an earlier `put` for exactly the same bytes. No
    /// later entry may cover a part of them.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    #[inline]
    pub fn put_anew(&mut self, kind: EntryKind, offset: RegionOffset, bytes: &[u8]) -> Result<()> {
        match self.rec.replace(kind, offset.0, bytes) {
            true => Ok(()),
            false => self.put(kind, offset, bytes),
        }
    }

    /// Changes the `words` words at `offset` to zero.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn put_zeros(&mut self, offset: RegionOffset, words: u64) -> Result<()> {
        self.vol.check_range(offset, words.saturating_mul(8))?;
        self.push(EntryKind::Zero, offset, words.as_bytes())
    }

    pub(super) fn put_desc(
        &mut self,
        offset: RegionOffset,
        desc: &GroupDesc,
        kind: BitmapKind,
        group: u64,
    ) -> Result<()> {
        let mut payload = [0; GroupDesc::SIZE + 8];
        payload[..GroupDesc::SIZE].copy_from_slice(desc.as_bytes());
        payload[GroupDesc::SIZE..].copy_from_slice(&group_word(kind, group).to_le_bytes());
        self.vol.check_range(offset, GroupDesc::SIZE as u64)?;
        self.push(EntryKind::Desc, offset, &payload)
    }

    // ---- allocation

    /// Notes bits of one word to be set or cleared; false if the record has no room.
    fn note_word(&mut self, mut b: Bits) -> bool {
        // A block that this transaction took and frees again is not set on the medium.
        if !b.set
            && let Some(own) = self.bits.iter_mut().find(|o| o.word == b.word && o.set)
        {
            let both = own.mask & b.mask;
            own.mask &= !both;
            b.mask &= !both;
        }
        if b.mask == 0 {
            return true;
        }
        let mut noted = self.bits.iter_mut();
        match noted.find(|o| o.word == b.word && o.set == b.set) {
            Some(o) => {
                o.mask |= b.mask;
                true
            }
            None => {
                self.bits.push(b);
                self.rec.keep(BITS_ENTRY)
            }
        }
    }

    fn note_freed(&mut self, kind: BitmapKind, run: BitRun) -> Result<()> {
        let vol = self.vol;
        let mut fits = true;
        vol.bitmap(kind)
            .words_of(vol.medium(), run, |word, mask, group| {
                fits &= self.note_word(Bits {
                    kind,
                    group,
                    word,
                    mask,
                    set: false,
                });
            })?;
        if fits { Ok(()) } else { Err(TOO_LARGE) }
    }

    pub(super) fn note_reserved(&mut self, kind: BitmapKind, found: Reserved) -> Result<BitRun> {
        // Note it for Drop first, then for the record.
        let Reserved { run, group, .. } = found;
        self.taken.push(freed_bits(kind, run));
        let mut fits = true;
        found.words(|word, mask| {
            fits &= self.note_word(Bits {
                kind,
                group,
                word,
                mask,
                set: true,
            });
        });
        if fits { Ok(run) } else { Err(TOO_LARGE) }
    }

    /// Notes an orphan slot or bits to be freed if the transaction is dropped.
    #[inline]
    pub(super) fn note_taken(&mut self, taken: Freed) {
        self.taken.push(taken);
    }

    /// The lane of this transaction.
    #[inline]
    pub(super) fn lane(&self) -> u32 {
        self.lane
    }

    /// See [`Plan::lock_lane`](super::Plan::lock_lane).
    #[inline]
    pub(super) fn lock_lane(&mut self, homes: &[&LastRecord]) {
        let Volume {
            journal, region, ..
        } = self.vol;
        if !homes
            .iter()
            .any(|home| journal.must_hand_over(self.lane, home))
        {
            self.entered = journal.enter(region, self.lane).ok();
        }
    }

    /// Releases the lane, if it is locked.
    #[inline]
    pub(super) fn release_lane(&mut self) {
        self.entered = None;
    }

    /// As [`free_blocks`](Self::free_blocks), for blocks that no list of bad blocks names.
    pub(super) fn free_listed_by_none(&mut self, run: BlockRun) -> Result<()> {
        self.note_freed(BitmapKind::Blocks, run.into())?;
        match self.freed.last_mut() {
            Some(Freed::Blocks(last)) if last.end() == run.start => last.len += run.len,
            _ => self.freed.push(Freed::Blocks(run)),
        }
        Ok(())
    }

    /// Whether this transaction took the block. If so, nothing in use names it, and its
    /// contents may change by [`write_new`](Self::write_new).
    #[inline]
    pub fn is_new(&self, block: Bno) -> bool {
        (self.taken.iter()).any(|t| matches!(t, Freed::Blocks(run) if run.contains(block)))
    }

    /// Whether this transaction frees anything.
    #[inline]
    pub fn frees(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Frees an inode number.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn free_inode(&mut self, ino: Ino) -> Result<()> {
        let run = InodeRun { start: ino, len: 1 };
        self.note_freed(BitmapKind::Inodes, run.into())?;
        self.freed.push(Freed::Inodes(run));
        Ok(())
    }

    /// Frees a slot of the orphan table. The caller puts its word.
    pub fn free_orphan_slot(&mut self, slot: u32) {
        self.freed.push(Freed::OrphanSlot(slot));
    }

    /// Frees a slot of the lease table. The caller puts its words.
    pub fn free_lease_slot(&mut self, slot: u32) {
        self.freed.push(Freed::LeaseSlot(slot));
    }

    // ---- commit and drop

    /// Marks the record that completes an operation: with it the operation has happened, and
    /// without it, it has not. `made` is the inode that it makes.
    #[inline]
    pub fn decide(&mut self, made: Option<Ino>) {
        self.decides = Some(made);
    }

    /// See [`Recording::commit`](super::Recording::commit).
    pub(super) fn commit(&mut self, restore: Option<Restore<'_>>) -> Result<RecordId> {
        let vol = self.vol;
        if std::mem::replace(&mut self.over, true) {
            return Err(Error::io("a transaction is committed once"));
        }
        // Any error from here on releases the lane at once.
        let entered = self.entered.take();
        let medium = vol.medium();
        let Medium { region, geo: _ } = medium;
        if vol.has_failed() {
            return Err(Error::io(
                "the file system has failed before; mount it again",
            ));
        }
        if Region::any_faults() {
            // Bytes read may have been zeros, and new data may be lost.
            if region.faults_seen() != self.faults {
                return Err(Error::io("the medium failed during a change"));
            }
            for b in &self.bits {
                vol.bitmap(b.kind).check_homes(medium, b)?;
            }
        }
        self.rec.use_kept();
        for b in &self.bits {
            region.need_room(b.word.0, 8)?;
            let ok = if vol.journal.rules.bit_masks {
                let kind = if b.set {
                    EntryKind::SetBits
                } else {
                    EntryKind::ClearBits
                };
                self.rec
                    .push_words(kind, b.word.0, &[b.mask, group_word(b.kind, b.group)])
            } else {
                let old = medium.load_u64(b.word)?;
                let new = if b.set { old | b.mask } else { old & !b.mask };
                let group = group_word(b.kind, b.group);
                self.rec
                    .push_words(EntryKind::SetBits, b.word.0, &[new, group])
                    && self
                        .rec
                        .push_words(EntryKind::ClearBits, b.word.0, &[!new, group])
            };
            if !ok {
                return Err(TOO_LARGE);
            }
        }
        let mut short = self.continue_in_blocks()?;
        for place in &self.places {
            // Two lanes that retired each other's records would deadlock.
            assert!(
                entered.is_none() || !vol.journal.must_hand_over(self.lane, place),
                "a lane is taken before the records of others are retired"
            );
            vol.journal
                .hand_over(medium, self.lane, place, |f| vol.free(f))?;
        }
        // Before the record is stored: what the system refuses is an error of this operation alone.
        // Open until the homes are stored, which must not fail.
        let opened = region.window();
        opened.check_open()?;
        let entered = match entered {
            Some(entered) => Ok(entered),
            None => vol.journal.enter(region, self.lane),
        };
        let bits = &self.bits;
        let copies = self.copies > 0;
        // What the slot holds, and all entries where that is not the same.
        let (in_slot, all) = match &mut short {
            Some(short) => (short, Some(&self.rec)),
            None => (&mut self.rec, None),
        };
        let change = Change {
            record: in_slot,
            data: self.data.take(),
            freed: &self.freed,
            decides: self.decides,
        };
        let faults = self.faults;
        let bring_home = |rec: &RecordBuf, lines: &mut Lines| {
            let rec = all.unwrap_or(rec);
            if copies {
                copy_data(region, rec, restore)?;
            }
            let mut homes = OnMedium { region, lines };
            for e in rec.entries() {
                match e.kind {
                    EntryKind::SetBits | EntryKind::ClearBits => {}
                    EntryKind::Copy | EntryKind::More => {}
                    // Most entries are of these kinds, and `apply` does no more with them.
                    EntryKind::Inode | EntryKind::Leaf | EntryKind::Pointer => {
                        homes.store(e.offset, e.payload)?;
                    }
                    _ => apply(&mut homes, &e)?,
                }
            }
            // Bits come last: their lock is the first instruction that waits for the fence, and
            // all of the above overlaps with it.
            for b in bits {
                vol.bitmap(b.kind).apply_bits(medium, b, homes.lines)?;
            }
            // The record still holds a lost home, for a recovery that finds the page whole
            // again, so nothing may retire the record. The fault may also be another thread's
            // and concern none of these pages.
            if Region::any_faults() && region.faults_seen() != faults {
                for e in rec.entries() {
                    region.check(e.offset.0, home_len(&e))?;
                }
                for b in bits {
                    vol.bitmap(b.kind).check_homes(medium, b)?;
                }
            }
            Ok(())
        };
        let done = match entered {
            Ok(entered) => vol.journal.commit(medium, entered, change, bring_home),
            Err(e) => Err(e),
        };
        let done = match done {
            Ok(done) => done,
            Err(e) => {
                // The record may be durable and its homes partly stored; from now on only
                // recovery can tell.
                self.taken.clear();
                vol.fail();
                return Err(e);
            }
        };
        drop(opened);
        self.taken.clear();
        for place in &self.places {
            place.set(done.record_id);
        }
        vol.free(done.reusable);
        Ok(done.record_id)
    }
}

/// Returns what bits of a bitmap stand for.
fn freed_bits(kind: BitmapKind, run: BitRun) -> Freed {
    let BitRun { start, len } = run;
    match kind {
        BitmapKind::Blocks => Freed::Blocks(BlockRun {
            start: Bno(start),
            len,
        }),
        BitmapKind::Inodes => Freed::Inodes(InodeRun {
            start: Ino(start),
            len,
        }),
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        self.release_lane();
        // New data on its way to blocks that are being freed must arrive before the next
        // owner writes there.
        self.settle();
        self.vol.unreserve(&self.taken);
    }
}
