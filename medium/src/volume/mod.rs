//! A volume: region, geometry, journal and allocators of one mounted file
//! system, and the transactions that change it.
//!
//! Invariants:
//! * A volume changes only through [`Recording::commit`].
//! * If a transaction is dropped, its reservations are released.
//! * Whatever a record freed returns to the allocators through [`Volume::free`] only.
//!
//! Not handled here: inode locks, and the meaning of inodes and directories.

mod bad_blocks;
mod failed_free;
mod hold;
mod plan;
mod record;
mod reserve;
mod room;
mod staging;
mod sums;
mod verified;

pub use bad_blocks::{BadBlocks, LockedList};
pub use plan::{Plan, Recording};
pub use record::Record;
pub use room::{RoomAsItIs, room_is_final};
pub use staging::Restore;
pub use sums::DataAfter;
pub use verified::Verified;

use crate::alloc::{
    BitRun, BitmapSet, BlockPins, Freed, InitGroup, PreparedBits, Reserved, SearchResult, for_words,
};
use crate::error::{Damage, Error, Result};
use crate::journal::{Journal, LastRecord, RecordId, Rules};
use crate::media::bitmap::{BitmapKind, GroupDesc};
use crate::media::checksum::word_sum;
use crate::media::pointer::Ptr;
use crate::media::walk::MapRoot;
use crate::media::{Geometry, Medium, SuperStatic};
use crate::pmem::{PmemError, Region};
use crate::sync::{Mutex, rank};
use crate::types::{BlockRun, Bno, RegionOffset};
use failed_free::FailedFree;
use hold::Hold;
use reserve::Reserve;
use staging::Staging;
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::IntoBytes;

/// A volume, see the module.
#[derive(Debug)]
pub struct Volume {
    /// The medium.
    pub region: Region,
    /// Sizes and places.
    pub geo: Geometry,
    /// Lanes.
    pub journal: Journal,
    /// Blocks of the region.
    pub blocks: BitmapSet,
    /// Inode numbers.
    pub inodes: BitmapSet,
    /// Blocks pinned by direct mappings.
    pub pins: BlockPins,
    /// Blocks of failed pages.
    pub bad: BadBlocks,
    /// Htree leaves whose sums have been checked.
    pub verified: Verified,
    reserve: Reserve,
    /// Leaves that are being vacated.
    hold: Hold,
    /// Groups of one bitmap are made one at a time. Making an inode group takes a block and
    /// may therefore make a block group, never the other way round.
    making_inodes: Mutex<(), rank::MakeInodeGroup>,
    making_blocks: Mutex<(), rank::MakeBlockGroup>,
    orphan_slots: Mutex<Vec<u32>, rank::Leaf>,
    lease_slots: Mutex<Vec<u32>, rank::Leaf>,
    /// Where the lanes look for staging blocks.
    staging: Staging,
    failed: AtomicBool,
    failed_free: FailedFree,
    /// Freed blocks are discarded on the host before they return to the allocators.
    pub discard: bool,
}

/// The maps of the files that hold the group descriptors.
#[derive(Debug, Clone, Copy)]
pub struct GroupRoots {
    /// Descriptors of block groups.
    pub blocks: MapRoot,
    /// Descriptors of inode groups.
    pub inodes: MapRoot,
}

/// Sizes that a volume has the memory for ([`Volume::prepare_growth`]).
#[derive(Debug)]
pub struct PreparedGrowth {
    inodes: PreparedBits,
    blocks: PreparedBits,
    sizes: SuperStatic,
}

impl Volume {
    /// Creates a volume whose records up to `checkpoint` are dead.
    pub fn new(
        region: Region,
        geo: Geometry,
        checkpoint: u64,
        roots: GroupRoots,
        rules: Rules,
    ) -> Volume {
        Volume {
            journal: Journal::new(&geo, checkpoint, rules, region.failed_fences()),
            blocks: BitmapSet::new(BitmapKind::Blocks, geo.blocks(), &geo, roots.blocks),
            inodes: BitmapSet::new(BitmapKind::Inodes, geo.inodes_max(), &geo, roots.inodes),
            pins: BlockPins::default(),
            bad: BadBlocks::default(),
            verified: Verified::new(),
            reserve: Reserve::new(geo.reserve_blocks()),
            hold: Hold::default(),
            making_inodes: Mutex::new(()),
            making_blocks: Mutex::new(()),
            orphan_slots: Mutex::new(Vec::new()),
            lease_slots: Mutex::new(Vec::new()),
            staging: Staging::new(geo.lanes),
            failed: AtomicBool::new(false),
            failed_free: FailedFree::default(),
            discard: false,
            region,
            geo,
        }
    }

    /// Returns the region and its geometry.
    #[inline]
    pub fn medium(&self) -> Medium<'_> {
        Medium {
            region: &self.region,
            geo: &self.geo,
        }
    }

    /// Starts a transaction on the lane of this thread.
    pub fn begin(&self) -> Plan<'_> {
        Plan::new(self, self.journal.thread_lane())
    }

    /// As [`begin`](Self::begin), for a change of `place`, whose lock is held. Chooses the
    /// cheapest lane.
    #[inline(always)]
    pub fn begin_at(&self, place: &LastRecord) -> Plan<'_> {
        Plan::new(self, self.journal.lane_for(place))
    }

    /// Allocates the memory that the sizes of a superblock need. It may take long and fail, so
    /// it comes before the sizes are made durable.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn prepare_growth(&self, sb: &SuperStatic) -> Result<PreparedGrowth> {
        Ok(PreparedGrowth {
            inodes: self.inodes.prepare(sb.inodes_max)?,
            blocks: self.blocks.prepare(sb.blocks)?,
            sizes: *sb,
        })
    }

    /// Takes over the sizes of a superblock that a grow has made durable, and the file maps of
    /// the descriptors of its groups.
    ///
    /// No operation runs meanwhile, so none sees a part of the new sizes only. A group that is
    /// being made has its length from the old size; the locks keep that apart, too.
    pub fn grow(&self, prepared: &PreparedGrowth, roots: GroupRoots) {
        let sb = &prepared.sizes;
        let _inodes = self.making_inodes.lock();
        let _blocks = self.making_blocks.lock();
        self.geo.grow(sb);
        self.inodes.grow(prepared.inodes, roots.inodes);
        self.blocks.grow(prepared.blocks, roots.blocks);
        self.reserve.grow(sb.reserve_blocks);
    }

    /// Returns the bitmap of a kind.
    pub fn bitmap(&self, kind: BitmapKind) -> &BitmapSet {
        match kind {
            BitmapKind::Blocks => &self.blocks,
            BitmapKind::Inodes => &self.inodes,
        }
    }

    /// Marks the volume as failed: no further transaction commits.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Whether the volume has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Returns blocks and numbers to the allocators; no other function does. Nothing on the
    /// medium, and no record that replay could see, refers to them. Blocks that a
    /// direct mapping still pins are parked until the mapping is gone.
    #[inline]
    pub fn free(&self, freed: impl IntoIterator<Item = Freed>) {
        for f in freed {
            self.free_one(f, self.discard);
        }
    }

    /// As [`free`](Self::free), for the reservations of an operation that did not commit.
    /// Nothing is discarded on the host.
    #[inline]
    fn unreserve(&self, taken: &[Freed]) {
        for f in taken {
            self.free_one(*f, false);
        }
    }

    fn free_one(&self, freed: Freed, discard: bool) {
        match freed {
            Freed::Blocks(run) => {
                if self.pins.free_or_park(run) {
                    self.free_run(run, discard);
                }
            }
            // The next atomic write takes them again.
            Freed::Staging(run) => self.free_run(run, false),
            Freed::Inodes(run) => self.inodes.free_run(self.medium(), run.into()),
            Freed::OrphanSlot(slot) => self.orphan_slots.lock().push(slot),
            Freed::LeaseSlot(slot) => self.lease_slots.lock().push(slot),
        }
    }

    /// Ends a pin and frees the blocks parked for it.
    pub fn unpin(&self, id: u64) {
        for run in self.pins.unpin(id) {
            self.free_run(run, self.discard);
        }
    }

    fn free_run(&self, run: BlockRun, discard: bool) {
        for block in run.blocks() {
            self.verified.forget(block);
        }
        match self.hold.is_active() {
            true => self.free_or_hold(run, discard),
            false => self.free_unheld(run, discard),
        }
    }

    /// As [`free_run`](Self::free_run), for blocks of leaves that are not held.
    fn free_unheld(&self, run: BlockRun, discard: bool) {
        // Blocks put into the reserve have room, and keep it.
        if self.reserve.missing() > 0 && self.is_known_to_have_room(run) && self.reserve.refill(run)
        {
            return;
        }
        let (at, len) = (self.geo.offset(run.start), self.geo.bytes(run.len));
        // A save that goes on reads them later. To copy all of them would end it.
        if discard && !self.region.needs_aside(at.0, len) {
            // The blocks are free even if the host refuses the discard.
            if let Err(e) = self.region.window().discard(at.0, len) {
                tracing::debug!(at = at.0, len, error = %e, "the host refused the discard");
            }
        }
        self.blocks.free_run(self.medium(), run.into());
    }

    /// Makes every record dead, so that everything freed can be reused. Returns whether
    /// anything had been waiting.
    ///
    /// # Errors
    /// Errors of the region.
    pub fn retire_pending(&self) -> Result<bool> {
        let waiting = self.journal.has_pending();
        if waiting {
            self.retire_all()?;
        }
        Ok(waiting)
    }

    /// Makes every record of every lane dead.
    ///
    /// # Errors
    /// Errors of the region.
    pub fn retire_all(&self) -> Result<()> {
        self.journal
            .retire_all(self.medium(), &mut |f| self.free(f))
    }

    /// Rule 8. Before data of a file change without a record, the last record that copied data
    /// to it must be dead: its replay would copy them again.
    ///
    /// # Errors
    /// Errors of the region.
    pub fn retire_copies(&self, last: RecordId) -> Result<()> {
        if !self.journal.is_dead(last) && self.journal.rules.copies_retired {
            self.free(self.journal.retire(self.medium(), last.lane)?);
        }
        Ok(())
    }

    /// Returns a free slot of the orphan table, if one is known.
    pub fn take_orphan_slot(&self) -> Option<u32> {
        self.orphan_slots.lock().pop()
    }

    /// Returns a free slot of the lease table, if one is known.
    pub fn take_lease_slot(&self) -> Option<u32> {
        self.lease_slots.lock().pop()
    }

    /// Returns the number of free blocks: in total, and without the reserve.
    pub fn free_blocks(&self) -> (u64, u64) {
        let usable = self.blocks.count_free(self.medium()) + self.hold.blocks();
        let held = self.reserve.held();
        // The first allocation fills the reserve from the groups.
        let missing = self.geo.reserve_blocks().saturating_sub(held);
        (usable + held, usable.saturating_sub(missing))
    }

    /// Makes the bitmap block of a group, with a separate record.
    fn make_group(&self, kind: BitmapKind, init: &InitGroup) -> Result<()> {
        let _one = match kind {
            BitmapKind::Inodes => self.making_inodes.lock(),
            BitmapKind::Blocks => self.making_blocks.lock(),
        };
        let set = self.bitmap(kind);
        if set.is_made(self.medium(), init.group)? {
            return Ok(());
        }
        let mut tx = self.begin();
        let (block, used) = match kind {
            // A block group keeps its bitmap in its last block that is readable, and its sums
            // before it.
            BitmapKind::Blocks => {
                let first = init.group * self.geo.bits_per_group();
                let len = (self.geo.blocks() - first).min(self.geo.bits_per_group());
                let tail = self.geo.tail_blocks();
                if len < tail {
                    return Err(Error::NoSpace("the last block group is too short"));
                }
                let fails = |nth: u64| {
                    let at = self.geo.offset(Bno(first + nth));
                    self.region.is_faulted(at.0, self.geo.block_size)
                };
                let holds = |end: &u64| !(end - tail..*end).any(fails);
                let end = (tail..=len).rev().find(holds).unwrap_or(len);
                let used = (end - tail) as u32..end as u32;
                (Bno(first + end - 1), used)
            }
            BitmapKind::Inodes => (tx.alloc_blocks(None, 1, true)?.start, 0..0),
        };
        let at = self.geo.offset(block);
        tx.zero_new(at, self.geo.block_size)?;
        let mut desc = GroupDesc {
            bitmap: Ptr::new(block, 0, kind.bitmap_at(&self.geo, init.group)).0,
            ..GroupDesc::default()
        };
        let mut stored = Ok(());
        for_words(used.start, used.end - used.start, |word, mask| {
            let word = word as u64;
            desc.sum = (desc.sum).wrapping_add(word_sum(self.geo.seed, word, mask));
            if stored.is_ok() {
                stored = tx.write_new(at.word(word), mask.as_bytes());
            }
        });
        stored?;
        tx.put_desc(init.desc_offset, &desc, kind, init.group)?;
        tx.commit()?;
        set.group_made(self.medium(), init.group, at, used)
    }

    /// Makes the group of a block if it has no bitmap block yet.
    fn ensure_group_of(&self, block: Bno) -> Result<()> {
        let group = block.0 / self.geo.bits_per_group();
        if self.blocks.is_made(self.medium(), group)? {
            return Ok(());
        }
        let desc_offset = self.blocks.desc_offset(self.medium(), group)?;
        self.make_group(BitmapKind::Blocks, &InitGroup { group, desc_offset })
    }

    /// Reserves bits, making groups as needed; `None` if no bit is free.
    ///
    /// If the host has refused room, looks only for blocks that have room. If it finds
    /// none, it returns an error, which makes the caller query the host once more. If the caller
    /// `knows_another_way`, or on the last attempt, it returns `None` instead.
    ///
    /// Blocks that have failed are skipped, see [`failed_free`].
    fn reserve_bits(
        &self,
        kind: BitmapKind,
        knows_another_way: bool,
        mut find: impl FnMut(&BitmapSet, bool) -> Result<Option<SearchResult>, InitGroup>,
    ) -> Result<Option<Reserved>> {
        let mut retired = false;
        let mut only_roomy = self.region.host_is_full();
        let mut looked_for_roomy = only_roomy;
        // Free blocks that trimming holds still count as free.
        let mut at_home = None;
        loop {
            match find(self.bitmap(kind), only_roomy) {
                Ok(Some(SearchResult::Taken(found))) if self.is_sound(kind, found.run) => {
                    return Ok(Some(found));
                }
                Ok(Some(SearchResult::Taken(found))) => {
                    // What frees the sound blocks may wait for the lock of trimming.
                    at_home = None;
                    self.keep_failed(found.run);
                }
                Ok(Some(SearchResult::NoHostRoom(run))) if !room_is_final() => {
                    return Err(self.no_room(run));
                }
                Ok(Some(SearchResult::NoHostRoom(_))) if looked_for_roomy => return Ok(None),
                Ok(Some(SearchResult::NoHostRoom(_))) => {
                    (only_roomy, looked_for_roomy) = (true, true)
                }
                // Held blocks have room perhaps, and a new group has none.
                Err(_) if only_roomy && !knows_another_way && self.hold.is_active() => {
                    drop(at_home.take());
                    self.end_hold();
                }
                // Retire before asking the host for more room.
                Err(_) if only_roomy && !retired && self.retire_pending()? => retired = true,
                Err(_) if only_roomy && knows_another_way => return Ok(None),
                Ok(None) if !retired && self.retire_pending()? => retired = true,
                Ok(None) if at_home.is_none() => at_home = Some(self.bitmap(kind).trim_lock()),
                Ok(None)
                    if !knows_another_way && kind == BitmapKind::Blocks && self.release_held() => {}
                Ok(None) if only_roomy && !knows_another_way => only_roomy = false,
                Ok(None) => return Ok(None),
                Err(init) => {
                    // Making a group may allocate blocks, and so reach this point itself.
                    at_home = None;
                    self.make_group(kind, &init)?;
                }
            }
        }
    }

    /// Does not ask the host: a block of unknown state counts as having no room.
    fn is_known_to_have_room(&self, run: BlockRun) -> bool {
        let len = self.geo.bytes(run.len);
        self.region
            .is_known_to_have_room(self.geo.offset(run.start).0, len)
    }

    fn no_room(&self, run: BitRun) -> Error {
        let (offset, len) = (self.geo.offset(Bno(run.start)).0, self.geo.bytes(run.len));
        PmemError::NoRoom { offset, len }.into()
    }

    /// Fills the reserve for operations that free more than they take. Later a host that is
    /// full could refuse the room.
    ///
    /// # Errors
    /// Errors of the region and of its host.
    pub fn keep_reserve(&self) -> Result<()> {
        if self.region.needs_room() && self.reserve.missing() > 0 {
            self.begin().keep_reserve()?;
        }
        Ok(())
    }

    /// Checks a home that a record will change. Once the record is durable, a store that
    /// fails would fail the whole volume.
    #[inline(always)]
    fn check_range(&self, at: RegionOffset, len: u64) -> Result<()> {
        // A page missing at that point would fail the whole volume as well.
        if self.region.is_within(at.0, len)
            && !Region::any_faults()
            && self.region.has_room(at.0, len)
        {
            return Ok(());
        }
        self.check_range_slowly(at, len)
    }

    #[cold]
    fn check_range_slowly(&self, at: RegionOffset, len: u64) -> Result<()> {
        match self.region.check(at.0, len) {
            Ok(()) => Ok(self.region.need_room(at.0, len)?),
            Err(e) => Err(outside(e, at, len)),
        }
    }
}

#[cold]
fn outside(e: PmemError, at: RegionOffset, len: u64) -> Error {
    match e {
        PmemError::OutOfBounds { .. } => Error::corrupt(
            Damage::MapPointer,
            "the region",
            format!("a change of {len} bytes at {:#x} leaves it", at.0),
        ),
        other => other.into(),
    }
}
