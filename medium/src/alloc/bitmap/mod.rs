//! [`BitmapSet`]: all groups of one bitmap, and how a group is found, read and locked.
//! Submodules:
//!
//! - `cells`: what memory holds of each group;
//! - `reserve`: bits for an operation;
//! - `home`: bits on the medium;
//! - `free`: all that is free;
//! - `sums`: the sum of a group after a crash;
//! - `scrub`: the sum of a group during a mount.

mod cells;
mod free;
mod home;
mod reserve;
mod scrub;
mod sums;

use crate::media::Medium;
use std::sync::atomic::{AtomicU64, Ordering};

use super::BitRun;
use super::group::Group;
use crate::error::{Damage, Error, Result};
use crate::grows::Grows;
use crate::media::Geometry;
use crate::media::bitmap::{BitmapKind, GroupDesc, GroupState};
use crate::media::checksum::word_sum;
use crate::media::walk::MapRoot;
use crate::sync::{Mutex, MutexGuard, rank};
use crate::types::RegionOffset;
use cells::{Cell, Cells, Prepared};

/// A group has no bitmap block yet. The caller must make one first.
#[derive(Debug)]
pub struct InitGroup {
    /// Which group.
    pub group: u64,
    /// Where its descriptor is.
    pub desc_offset: RegionOffset,
}

/// Bits of one word of a bitmap that a record sets or clears.
#[derive(Debug, Clone, Copy)]
pub struct Bits {
    /// Which bitmap.
    pub kind: BitmapKind,
    /// Group.
    pub group: u64,
    /// Offset of the word in the region.
    pub word: RegionOffset,
    /// The bits.
    pub mask: u64,
    /// True sets the bits, false clears them.
    pub set: bool,
}

/// One bitmap of the file system.
#[derive(Debug)]
pub struct BitmapSet {
    kind: BitmapKind,
    bits: Grows,
    per_group: u64,
    /// Its binary logarithm.
    group_log2: u32,
    cells: Cells,
    /// A grow may put a level above the root.
    descs: Mutex<MapRoot, rank::Leaf>,
    hints: Box<[AtomicU64]>,
    /// Locked while [`each_free`](Self::each_free) holds a piece.
    lending: Mutex<(), rank::Lending>,
}

/// Shows that a bitmap has the memory for so many bits ([`BitmapSet::prepare`]).
#[derive(Debug, Clone, Copy)]
pub struct PreparedBits {
    bits: u64,
    cells: Prepared,
}

impl BitmapSet {
    /// A bitmap of `bits` bits whose descriptors are in the file `descs`.
    pub fn new(kind: BitmapKind, bits: u64, geo: &Geometry, descs: MapRoot) -> BitmapSet {
        let per_group = geo.bits_per_group();
        let groups = bits.div_ceil(per_group);
        let hints = (0..u64::from(geo.lanes))
            .map(|l| AtomicU64::new(l % groups * per_group))
            .collect();
        BitmapSet {
            kind,
            bits: Grows::new(bits),
            per_group,
            group_log2: per_group.ilog2(),
            cells: Cells::new(groups),
            descs: Mutex::new(descs),
            hints,
            lending: Mutex::new(()),
        }
    }

    /// Number of groups.
    pub fn groups(&self) -> u64 {
        (self.bits() + self.per_group - 1) >> self.group_log2
    }

    /// Number of bits.
    pub fn bits(&self) -> u64 {
        self.bits.get()
    }

    /// Allocates what memory needs for a larger number of bits. It may take long and fail, so it
    /// comes before the size is published.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn prepare(&self, bits: u64) -> Result<PreparedBits> {
        let cells = self.cells.prepare(bits.div_ceil(self.per_group))?;
        Ok(PreparedBits { bits, cells })
    }

    /// Takes over a larger number of bits. Their descriptors are in the file `descs`, and the
    /// size is durable. No group is being made meanwhile.
    ///
    /// The last group gets the bits that it lacked first, then the number is published:
    /// whoever sees the new number finds the groups complete.
    pub fn grow(&self, prepared: PreparedBits, descs: MapRoot) {
        let PreparedBits { bits, cells } = prepared;
        *self.descs.lock() = descs;
        let old = self.bits();
        self.cells.grow(cells);
        if let Some(last) = old.checked_sub(1).map(|bit| bit >> self.group_log2)
            && let Some(cell) = self.cells.get(last)
        {
            let len = (bits - last * self.per_group).min(self.per_group) as u32;
            let mut guard = cell.state.lock();
            if let Some(group) = guard.as_deref_mut() {
                group.grow(len);
                cell.free.store(group.free(), Ordering::Relaxed);
            }
            // A group that is not loaded yet must be loaded with its new length.
            self.bits.raise(bits);
        }
    }

    fn damaged(&self, kind: Damage, group: u64, what: &str) -> Error {
        Error::corrupt(kind, format!("{:?} bitmap, group {group}", self.kind), what)
    }

    /// Returns the offset of a group's descriptor.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the descriptor table has a hole or a bad pointer there.
    pub fn desc_offset(&self, medium: Medium<'_>, group: u64) -> Result<RegionOffset> {
        let descs = *self.descs.lock();
        self.desc_offset_in(&descs, medium, group)
    }

    /// As [`desc_offset`](Self::desc_offset), in a table that the bitmap does not use yet.
    ///
    /// # Errors
    /// As there.
    pub fn desc_offset_in(
        &self,
        descs: &MapRoot,
        medium: Medium<'_>,
        group: u64,
    ) -> Result<RegionOffset> {
        let geo = medium.geo;
        let at = group * GroupDesc::SIZE as u64;
        let leaf = descs.find(medium.region, geo, geo.file_block(at))?;
        let block = leaf.block.ok_or_else(|| {
            self.damaged(
                Damage::DescriptorMissing,
                group,
                "its descriptor is missing",
            )
        })?;
        Ok(geo.offset(block) + geo.within_block(at))
    }

    /// Returns the offset of a group's bitmap block; `None` if it has none yet.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn bitmap_offset(
        &self,
        medium: Medium<'_>,
        group: u64,
    ) -> Result<Option<(RegionOffset, RegionOffset)>> {
        let geo = medium.geo;
        let desc_offset = self.desc_offset(medium, group)?;
        match GroupDesc::state(geo, self.kind, group, medium.load_u64(desc_offset)?) {
            GroupState::Unused => Ok(None),
            GroupState::Bitmap(b) => Ok(Some((geo.offset(b), desc_offset))),
            GroupState::Damaged => Err(self.damaged(
                Damage::BitmapPointer,
                group,
                "the pointer to its bitmap is damaged",
            )),
        }
    }

    fn len_of(&self, group: u64) -> u32 {
        (self.bits().saturating_sub(group * self.per_group)).min(self.per_group) as u32
    }

    fn load(&self, medium: Medium<'_>, group: u64) -> Result<Box<Group>> {
        let geo = medium.geo;
        let len = self.len_of(group);
        let Some((bitmap, desc)) = self.bitmap_offset(medium, group)? else {
            return Ok(Box::new(Group::empty(
                len,
                self.desc_offset(medium, group)?,
            )));
        };
        let words = (self.per_group / 64) as usize;
        let mut bits = vec![0u64; words];
        let mut sum = 0u64;
        for (i, w) in bits.iter_mut().enumerate() {
            *w = medium.load_u64(bitmap.word(i as u64))?;
            sum = sum.wrapping_add(word_sum(geo.seed, i as u64, *w));
        }
        if sum != medium.load_u64(desc.word(1))? {
            return Err(self.damaged(
                Damage::BitmapSum,
                group,
                "the checksum of its bitmap does not match",
            ));
        }
        if self.kind == BitmapKind::Blocks {
            // Whatever the sum says, these blocks belong to the format and are never allocated.
            let base = group * self.per_group;
            let own = geo.tail_of(geo.block_at(bitmap));
            let fixed = geo.fixed_blocks().into_iter().chain(std::iter::once(own));
            let mut fixed = fixed.flat_map(|r| r.start.max(base)..r.end.min(base + u64::from(len)));
            if fixed.any(|b| bits[(b - base) as usize / 64] >> (b % 64) & 1 == 0) {
                return Err(self.damaged(
                    Damage::BlocksFree,
                    group,
                    "its bitmap has blocks of the format as free",
                ));
            }
        }
        Ok(Box::new(Group::loaded(bits.into(), len, bitmap, desc)))
    }

    #[inline]
    fn lock(&self, medium: Medium<'_>, group: u64) -> Result<MutexGuard<'_, Option<Box<Group>>>> {
        let cell = self
            .cells
            .get(group)
            .ok_or_else(|| self.damaged(Damage::BitmapPointer, group, "there is no such group"))?;
        let mut g = cell.state.lock();
        if g.is_none() {
            *g = Some(self.load_now(medium, group, cell)?);
        }
        Ok(g)
    }

    #[cold]
    fn load_now(&self, medium: Medium<'_>, group: u64, cell: &Cell) -> Result<Box<Group>> {
        let loaded = self.load(medium, group);
        match &loaded {
            Ok(g) => cell
                .bitmap_offset
                .store(g.bitmap_offset.0, Ordering::Relaxed),
            Err(_) => {
                cell.damaged.store(true, Ordering::Relaxed);
                cell.free.store(0, Ordering::Relaxed);
            }
        }
        loaded
    }

    fn note_free(&self, group: u64, g: &Group) {
        if let Some(cell) = self.cells.get(group) {
            cell.free.store(g.free(), Ordering::Relaxed);
        }
    }

    #[inline]
    fn for_groups(&self, run: BitRun, mut f: impl FnMut(u64, u32, u32)) {
        let (mut at, end) = (run.start, (run.start + run.len).min(self.bits()));
        while at < end {
            let (group, first) = (at >> self.group_log2, at & (self.per_group - 1));
            let n = (end - at).min(self.per_group - first);
            f(group, first as u32, n as u32);
            at += n;
        }
    }
}
