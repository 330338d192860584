//! A volume: region, geometry, journal and allocators of one mounted file
//! system, and the transactions that change it.
//!
//! Invariant: a volume changes only through [`Tx::commit`]; what a transaction
//! reserved goes back if it is dropped; what a record freed goes back through
//! [`Volume::free`] and nowhere else.
//!
//! Left to others: locks on inodes, and what inodes and directories mean.

mod reserve;
mod room;
mod tx;
mod verified;

pub use room::{RoomAsItIs, room_is_final};
pub use tx::Tx;
pub use verified::Verified;

use crate::alloc::{BitmapSet, BlockPins, Found, Freed, InitGroup, Reserved, Run};
use crate::error::{Damage, Error, Result};
use crate::journal::{Journal, LastRecord, Rules};
use crate::media::Geometry;
use crate::media::bitmap::{BitmapKind, GroupDesc};
use crate::media::checksum::word_sum;
use crate::media::pointer::Ptr;
use crate::media::walk::MapRoot;
use crate::pmem::{PmemError, Region};
use crate::sync::Mutex;
use crate::types::Bno;
use reserve::Reserve;
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::IntoBytes;

/// See the module.
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
    /// Blocks that direct mappings hold.
    pub pins: BlockPins,
    /// Htree leaves whose sum has been checked.
    pub verified: Verified,
    reserve: Reserve,
    /// One group of each bitmap is made at a time. Making an inode group takes
    /// a block, and so may make a block group: never the other way round.
    making: [Mutex<()>; 2],
    orphan_slots: Mutex<Vec<u32>>,
    failed: AtomicBool,
    /// Blocks go back to the host before they go back to the allocators.
    pub discard: bool,
}

impl Volume {
    /// A volume whose records up to `checkpoint` are dead.
    pub fn new(
        region: Region,
        geo: Geometry,
        checkpoint: u64,
        roots: (MapRoot, MapRoot),
        rules: Rules,
    ) -> Volume {
        let (block_groups, inode_groups) = roots;
        Volume {
            journal: Journal::new(&geo, checkpoint, rules, region.failed_fences()),
            blocks: BitmapSet::new(BitmapKind::Blocks, geo.blocks, &geo, block_groups),
            inodes: BitmapSet::new(BitmapKind::Inodes, geo.inodes_max, &geo, inode_groups),
            pins: BlockPins::default(),
            verified: Verified::new(),
            reserve: Reserve::new(geo.reserve_blocks),
            making: [Mutex::new(()), Mutex::new(())],
            orphan_slots: Mutex::new(Vec::new()),
            failed: AtomicBool::new(false),
            discard: false,
            region,
            geo,
        }
    }

    /// Starts a transaction on the lane of this thread.
    pub fn begin(&self) -> Tx<'_> {
        Tx::new(self, self.journal.thread_lane())
    }

    /// As [`begin`](Self::begin), for a change of `place`, whose lock is held: on
    /// the lane that costs least.
    pub fn begin_at(&self, place: &LastRecord) -> Tx<'_> {
        Tx::new(self, self.journal.lane_for(place))
    }

    /// The bitmap of a kind.
    pub fn bitmap(&self, kind: BitmapKind) -> &BitmapSet {
        match kind {
            BitmapKind::Blocks => &self.blocks,
            BitmapKind::Inodes => &self.inodes,
        }
    }

    /// Marks the volume as failed: no transaction commits any more.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Whether it has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The one way back to the allocators. What comes here is named by nothing
    /// on the medium and by no record that replay could see; blocks that a
    /// direct mapping still holds are parked until it is gone.
    #[inline]
    pub fn free(&self, freed: impl IntoIterator<Item = Freed>) {
        for f in freed {
            self.free_one(f, self.discard);
        }
    }

    /// As [`free`](Self::free), for what an operation took that came to
    /// nothing: the host has lost nothing by it.
    #[inline]
    fn unreserve(&self, taken: &[Freed]) {
        for f in taken {
            self.free_one(*f, false);
        }
    }

    fn free_one(&self, freed: Freed, discard: bool) {
        match freed {
            Freed::Bits {
                kind: BitmapKind::Blocks,
                start,
                len,
            } => {
                let run = Run { start, len };
                if self.pins.free_or_park(run) {
                    self.free_run(run, discard);
                }
            }
            Freed::Bits {
                kind: BitmapKind::Inodes,
                start,
                len,
            } => {
                self.inodes
                    .free_run(&self.region, &self.geo, Run { start, len });
            }
            Freed::OrphanSlot(slot) => self.orphan_slots.lock().push(slot),
        }
    }

    /// Ends a pin and gives back what it had parked.
    pub fn unpin(&self, id: u64) {
        for run in self.pins.unpin(id) {
            self.free_run(run, self.discard);
        }
    }

    fn free_run(&self, run: Run, discard: bool) {
        for b in run.start..run.start + run.len {
            self.verified.forget(Bno(b));
        }
        // What is kept aside has room, and keeps it.
        if self.reserve.missing() > 0 && self.is_known_to_have_room(run) && self.reserve.refill(run)
        {
            return;
        }
        if discard {
            let (at, len) = (
                self.geo.offset(Bno(run.start)),
                run.len << self.geo.block_log2,
            );
            // Whatever the host says, the blocks are free.
            if let Err(e) = self.region.window().discard(at, len) {
                tracing::debug!(at, len, error = %e, "the host takes nothing back");
            }
        }
        self.blocks.free_run(&self.region, &self.geo, run);
    }

    /// Makes every record dead, so that all that was freed can be used again.
    /// Returns whether anything had been waiting.
    ///
    /// # Errors
    /// Those of the region.
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
    /// Those of the region.
    pub fn retire_all(&self) -> Result<()> {
        self.journal
            .retire_all(&self.region, &self.geo, &mut |f| self.free(f))
    }

    /// A free slot of the orphan table, if one is known.
    pub fn take_orphan_slot(&self) -> Option<u32> {
        self.orphan_slots.lock().pop()
    }

    /// Free blocks: in all, and without the reserve.
    pub fn free_blocks(&self) -> (u64, u64) {
        let usable = self.blocks.count_free(&self.region, &self.geo);
        let held = self.reserve.held();
        // The reserve is taken from the groups at the first allocation.
        let missing = self.geo.reserve_blocks.saturating_sub(held);
        (usable + held, usable.saturating_sub(missing))
    }

    /// Gives a group its bitmap block, by a record of its own.
    fn make_group(&self, kind: BitmapKind, init: &InitGroup) -> Result<()> {
        let _one = self.making[usize::from(kind == BitmapKind::Inodes)].lock();
        let set = self.bitmap(kind);
        if set.is_made(&self.region, &self.geo, init.group)? {
            return Ok(());
        }
        let mut tx = self.begin();
        let (block, used) = match kind {
            // A block group keeps its bitmap in its own last block.
            BitmapKind::Blocks => {
                let first = init.group * self.geo.bits_per_group();
                let len = (self.geo.blocks - first).min(self.geo.bits_per_group());
                (Bno(first + len - 1), Some((len - 1) as u32))
            }
            BitmapKind::Inodes => (Bno(tx.alloc_blocks(None, 1, true)?.start), None),
        };
        let at = self.geo.offset(block);
        tx.zero_new(at, self.geo.block_size)?;
        let mut desc = GroupDesc {
            bitmap: Ptr::new(block, 0, kind.bitmap_at(&self.geo, init.group)).0,
            ..GroupDesc::default()
        };
        if let Some(bit) = used {
            let (word, mask) = (u64::from(bit / 64), 1u64 << (bit % 64));
            tx.write_new(at + word * 8, mask.as_bytes())?;
            desc.sum = word_sum(self.geo.seed, word, mask);
        }
        tx.put_desc(init.desc_offset, &desc, kind, init.group)?;
        tx.commit()?;
        set.group_made(&self.region, &self.geo, init.group, at, used)
    }

    /// Reserves bits, making groups as needed; `None` when nothing is free.
    ///
    /// Where the host has refused room, only blocks that have it are looked for.
    /// If there are none the host is asked once more, by the error; a caller that
    /// `knows_another_way` gets `None`, and so does the last attempt of all.
    fn reserve_bits(
        &self,
        kind: BitmapKind,
        knows_another_way: bool,
        mut find: impl FnMut(&BitmapSet, bool) -> Result<Option<Found>, InitGroup>,
    ) -> Result<Option<Reserved>> {
        let mut retired = false;
        let mut only_roomy = self.region.host_is_full();
        let mut looked_for_roomy = only_roomy;
        // Free blocks that are out for trimming are free all the same.
        let mut at_home = None;
        loop {
            match find(self.bitmap(kind), only_roomy) {
                Ok(Some(Found::Taken(found))) => return Ok(Some(found)),
                Ok(Some(Found::Roomless(run))) if !room_is_final() => {
                    return Err(self.no_room(run));
                }
                Ok(Some(Found::Roomless(_))) if looked_for_roomy => return Ok(None),
                Ok(Some(Found::Roomless(_))) => (only_roomy, looked_for_roomy) = (true, true),
                // Before the host is asked for more.
                Err(_) if only_roomy && !retired && self.retire_pending()? => retired = true,
                Err(_) if only_roomy && knows_another_way => return Ok(None),
                Ok(None) if !retired && self.retire_pending()? => retired = true,
                Ok(None) if at_home.is_none() => at_home = Some(self.bitmap(kind).trim_lock()),
                Ok(None) if only_roomy && !knows_another_way => only_roomy = false,
                Ok(None) => return Ok(None),
                Err(init) => {
                    // It may take blocks itself, and come to this point.
                    at_home = None;
                    self.make_group(kind, &init)?;
                }
            }
        }
    }

    /// Nobody is asked: blocks of which nothing is known may as well have none.
    fn is_known_to_have_room(&self, run: Run) -> bool {
        let (at, len) = (Bno(run.start), run.len << self.geo.block_log2);
        self.region.is_known_to_have_room(self.geo.offset(at), len)
    }

    fn no_room(&self, run: Run) -> Error {
        let (offset, len) = (
            self.geo.offset(Bno(run.start)),
            run.len << self.geo.block_log2,
        );
        PmemError::NoRoom { offset, len }.into()
    }

    /// Puts blocks aside for what frees more than it takes, where none can be had
    /// later: on a host that may be full by then.
    ///
    /// # Errors
    /// Those of the region and of its host.
    pub fn keep_reserve(&self) -> Result<()> {
        if self.region.needs_room() && self.reserve.missing() > 0 {
            self.begin().keep_reserve()?;
        }
        Ok(())
    }

    /// A home that a record is to change: once the record is durable, a store
    /// that fails would fail the whole volume.
    #[inline(always)]
    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        // A page that is missing then would be a failure of all, too.
        if self.region.is_within(offset, len)
            && !Region::any_faults()
            && self.region.has_room(offset, len)
        {
            return Ok(());
        }
        self.check_range_slowly(offset, len)
    }

    #[cold]
    fn check_range_slowly(&self, offset: u64, len: u64) -> Result<()> {
        match self.region.check(offset, len) {
            Ok(()) => Ok(self.region.need_room(offset, len)?),
            Err(e) => Err(outside(e, offset, len)),
        }
    }
}

#[cold]
fn outside(e: PmemError, offset: u64, len: u64) -> Error {
    match e {
        PmemError::OutOfBounds { .. } => Error::corrupt(
            Damage::MapPointer,
            "the region",
            format!("a change of {len} bytes at {offset:#x} leaves it"),
        ),
        other => other.into(),
    }
}
