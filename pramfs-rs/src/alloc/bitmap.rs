//! [`BitmapSet`]: all groups of one bitmap.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::group::{Group, for_words};
use super::{Found, Reserved, Run};
use crate::error::{Error, Result};
use crate::journal::Lines;
use crate::journal::recovery::{Step, Touched};
use crate::media::Geometry;
use crate::media::bitmap::{BitmapKind, GroupDesc, GroupState};
use crate::media::checksum::word_sum;
use crate::media::walk::MapRoot;
use crate::pmem::Region;
use crate::sync::{Mutex, MutexGuard};

/// Most combinations of steps that recovery looks at for one group.
const MOST_WAYS: u32 = 1 << 16;

/// A group has no bitmap block yet and the caller is to make one first.
#[derive(Debug)]
pub struct InitGroup {
    /// Which group.
    pub group: u64,
    /// Where its descriptor is.
    pub desc_offset: u64,
}

/// Bits of one word of a bitmap that a record sets or clears.
#[derive(Debug, Clone, Copy)]
pub struct Bits {
    /// Which bitmap.
    pub kind: BitmapKind,
    /// Group.
    pub group: u64,
    /// Offset of the word in the region.
    pub word: u64,
    /// The bits.
    pub mask: u64,
    /// Set, or cleared.
    pub set: bool,
}

/// The first free run of a group that has room on the host, from `need` to `want`
/// bits long.
fn find_roomy(
    region: &Region,
    geo: &Geometry,
    group: &Group,
    base: u64,
    mut from: u32,
    (need, want): (u32, u32),
) -> Option<(u32, u32)> {
    while let Some((start, len)) = group.find(from, u32::MAX) {
        let at = (base + u64::from(start)) << geo.block_log2;
        from = start + len;
        let Some((first, end)) = region.roomy_part(at, u64::from(len) << geo.block_log2) else {
            continue;
        };
        // Whole blocks of it; the rest of the run is looked at next.
        let first = start + ((first - at).div_ceil(geo.block_size)) as u32;
        let end = start + ((end - at) >> geo.block_log2) as u32;
        from = end.max(first + 1).min(from);
        if end.saturating_sub(first) >= need {
            return Some((first, (end - first).min(want)));
        }
    }
    None
}

#[derive(Debug)]
struct Cell {
    state: Mutex<Option<Box<Group>>>,
    /// Free bits when last looked at; `u32::MAX`: not known.
    free: AtomicU32,
    damaged: AtomicBool,
    /// Offset of its bitmap block, which never moves; 0: there is none, or it is
    /// not known.
    bitmap_offset: AtomicU64,
}

/// One bitmap of the file system.
#[derive(Debug)]
pub struct BitmapSet {
    kind: BitmapKind,
    bits: u64,
    per_group: u64,
    /// Its binary logarithm.
    group_log2: u32,
    cells: Box<[Cell]>,
    descs: MapRoot,
    hints: Box<[AtomicU64]>,
    /// Held while [`each_free`](Self::each_free) has a piece; before the locks of
    /// groups.
    lending: Mutex<()>,
}

impl BitmapSet {
    /// A bitmap of `bits` bits whose descriptors are in the file `descs`.
    pub fn new(kind: BitmapKind, bits: u64, geo: &Geometry, descs: MapRoot) -> BitmapSet {
        let per_group = geo.bits_per_group();
        let groups = bits.div_ceil(per_group);
        let cell = |_| Cell {
            state: Mutex::new(None),
            free: AtomicU32::new(u32::MAX),
            damaged: AtomicBool::new(false),
            bitmap_offset: AtomicU64::new(0),
        };
        let hints = (0..u64::from(geo.lanes))
            .map(|l| AtomicU64::new(l % groups * per_group))
            .collect();
        BitmapSet {
            kind,
            bits,
            per_group,
            group_log2: per_group.ilog2(),
            cells: (0..groups).map(cell).collect(),
            descs,
            hints,
            lending: Mutex::new(()),
        }
    }

    /// Number of groups.
    pub fn groups(&self) -> u64 {
        self.cells.len() as u64
    }

    fn damaged(&self, group: u64, what: &str) -> Error {
        Error::corrupt(format!("{:?} bitmap, group {group}", self.kind), what)
    }

    /// Offset of a group's descriptor.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the descriptor table has a hole or a bad
    /// pointer there.
    pub fn desc_offset(&self, region: &Region, geo: &Geometry, group: u64) -> Result<u64> {
        let at = group * GroupDesc::SIZE as u64;
        let leaf = self.descs.find(region, geo, at >> geo.block_log2)?;
        let block = leaf
            .block
            .ok_or_else(|| self.damaged(group, "its descriptor is missing"))?;
        Ok(geo.offset(block) + at % geo.block_size)
    }

    /// Offset of the bitmap block of a group; `None` when it has none yet.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn bitmap_offset(
        &self,
        region: &Region,
        geo: &Geometry,
        group: u64,
    ) -> Result<Option<(u64, u64)>> {
        let desc_offset = self.desc_offset(region, geo, group)?;
        match GroupDesc::state(geo, self.kind, group, region.load_u64(desc_offset)?) {
            GroupState::Unused => Ok(None),
            GroupState::Bitmap(b) => Ok(Some((geo.offset(b), desc_offset))),
            GroupState::Damaged => Err(self.damaged(group, "the pointer to its bitmap is damaged")),
        }
    }

    fn len_of(&self, group: u64) -> u32 {
        (self.bits - group * self.per_group).min(self.per_group) as u32
    }

    fn load(&self, region: &Region, geo: &Geometry, group: u64) -> Result<Box<Group>> {
        let len = self.len_of(group);
        let Some((bitmap, desc)) = self.bitmap_offset(region, geo, group)? else {
            return Ok(Box::new(Group::empty(
                len,
                self.desc_offset(region, geo, group)?,
            )));
        };
        let words = (self.per_group / 64) as usize;
        let mut bits = vec![0u64; words];
        let mut sum = 0u64;
        for (i, w) in bits.iter_mut().enumerate() {
            *w = region.load_u64(bitmap + i as u64 * 8)?;
            sum = sum.wrapping_add(word_sum(geo.seed, i as u64, *w));
        }
        if sum != region.load_u64(desc + 8)? {
            return Err(self.damaged(group, "the checksum of its bitmap does not fit"));
        }
        if self.kind == BitmapKind::Blocks {
            // Whatever the sum says: these are nobody's to give out.
            let base = group * self.per_group;
            let own = bitmap >> geo.block_log2;
            let fixed = geo
                .fixed_blocks()
                .into_iter()
                .chain(std::iter::once(own..own + 1));
            let mut fixed = fixed.flat_map(|r| r.start.max(base)..r.end.min(base + u64::from(len)));
            if fixed.any(|b| bits[(b - base) as usize / 64] >> (b % 64) & 1 == 0) {
                return Err(self.damaged(group, "its bitmap has blocks of the format as free"));
            }
        }
        Ok(Box::new(Group::loaded(bits.into(), len, bitmap, desc)))
    }

    #[inline]
    fn lock(
        &self,
        region: &Region,
        geo: &Geometry,
        group: u64,
    ) -> Result<MutexGuard<'_, Option<Box<Group>>>> {
        let cell = self
            .cells
            .get(group as usize)
            .ok_or_else(|| self.damaged(group, "there is no such group"))?;
        let mut g = cell.state.lock();
        if g.is_none() {
            *g = Some(self.load_now(region, geo, group, cell)?);
        }
        Ok(g)
    }

    #[cold]
    fn load_now(
        &self,
        region: &Region,
        geo: &Geometry,
        group: u64,
        cell: &Cell,
    ) -> Result<Box<Group>> {
        let loaded = self.load(region, geo, group);
        match &loaded {
            Ok(g) => cell.bitmap_offset.store(g.bitmap_offset, Ordering::Relaxed),
            Err(_) => {
                cell.damaged.store(true, Ordering::Relaxed);
                cell.free.store(0, Ordering::Relaxed);
            }
        }
        loaded
    }

    fn note_free(&self, group: u64, g: &Group) {
        self.cells[group as usize]
            .free
            .store(g.free(), Ordering::Relaxed);
    }

    /// Runs `pick` over the groups, beginning with the one that holds `near`,
    /// until it finds something. Damaged groups are passed over. `only_roomy`: a
    /// group that has to be made first is the last thing to try.
    fn search<T>(
        &self,
        region: &Region,
        geo: &Geometry,
        near: u64,
        least: u32,
        only_roomy: bool,
        mut pick: impl FnMut(u64, &mut Group) -> Option<T>,
    ) -> Result<Option<T>, InitGroup> {
        let n = self.groups();
        let first = match near >> self.group_log2 {
            group if group < n => group,
            _ => 0,
        };
        let mut to_init = None;
        for i in 0..n {
            let group = match first + i {
                group if group < n => group,
                group => group - n,
            };
            let free = self.cells[group as usize].free.load(Ordering::Relaxed);
            if free < least {
                continue;
            }
            let Ok(mut guard) = self.lock(region, geo, group) else {
                continue;
            };
            let Some(g) = guard.as_deref_mut() else {
                continue;
            };
            if !g.is_initialised() {
                // Used groups first; but the caller's own group at once.
                if i == 0 && !only_roomy {
                    return Err(InitGroup {
                        group,
                        desc_offset: g.desc_offset,
                    });
                }
                to_init.get_or_insert(InitGroup {
                    group,
                    desc_offset: g.desc_offset,
                });
                if i > 8 && !only_roomy {
                    break;
                }
                continue;
            }
            let found = pick(group, g);
            self.note_free(group, g);
            if found.is_some() {
                return Ok(found);
            }
        }
        match to_init {
            Some(init) => Err(init),
            None => Ok(None),
        }
    }

    /// Reserves a run of up to `want` bits, near `goal` or where this lane was
    /// last. `Ok(None)`: nothing is free. `Err`: make that group and come again.
    /// `only_roomy`: of blocks only those that have room on the host.
    #[allow(clippy::too_many_arguments)]
    pub fn reserve(
        &self,
        region: &Region,
        geo: &Geometry,
        lane: u32,
        goal: Option<u64>,
        want: u32,
        full: bool,
        only_roomy: bool,
    ) -> Result<Option<Found>, InitGroup> {
        if let Some(found) = goal.and_then(|at| self.reserve_here(region, geo, at, want)) {
            return Ok(Some(Found::Taken(found)));
        }
        let hint = &self.hints[lane as usize];
        let near = goal
            .filter(|g| *g < self.bits)
            .unwrap_or_else(|| hint.load(Ordering::Relaxed));
        let least = if full { want } else { 1 };
        let only_roomy = only_roomy && self.kind == BitmapKind::Blocks;
        let found = self.search(region, geo, near, least, only_roomy, |group, g| {
            let base = group * self.per_group;
            let from = if near >= base && near < base + self.per_group {
                (near - base) as u32
            } else {
                0
            };
            let mut found = |from| {
                if full {
                    g.find_full(from, want).map(|s| (s, want))
                } else {
                    g.find(from, want)
                }
            };
            let (start, len) = if only_roomy {
                let need = if full { want } else { 1 };
                let roomy = |from| find_roomy(region, geo, g, base, from, (need, want));
                match roomy(from) {
                    Some(found) => found,
                    None => roomy(0)?,
                }
            } else {
                match found(from) {
                    Some(found) => found,
                    None => found(0)?,
                }
            };
            let found = self.reserved(group, g, start, len);
            if !self.has_room(region, geo, found.run) {
                return Some(Found::Roomless(found.run));
            }
            g.take(start, len);
            Some(Found::Taken(found))
        })?;
        if let (Some(Found::Taken(Reserved { run, group, .. })), None) = (found, goal) {
            let next = match self.kind {
                // The lowest number first: the homes of inodes that come and go,
                // and what memory has about them, stay in the processor's caches.
                BitmapKind::Inodes => group * self.per_group,
                BitmapKind::Blocks => run.start + run.len,
            };
            if next != near {
                hint.store(next, Ordering::Relaxed);
            }
        }
        Ok(found)
    }

    /// Reserves just these bits, if they are free and easily found to be.
    #[inline]
    fn reserve_here(
        &self,
        region: &Region,
        geo: &Geometry,
        start: u64,
        len: u32,
    ) -> Option<Reserved> {
        let group = start >> self.group_log2;
        if start >= self.bits {
            return None;
        }
        let mut guard = self.lock(region, geo, group).ok()?;
        let g = guard.as_deref_mut()?;
        let run = Run {
            start,
            len: u64::from(len),
        };
        let first = (start & (self.per_group - 1)) as u32;
        // Without room: for the search to find out, which begins here.
        if !self.has_room(region, geo, run) || !g.take_here(first, len) {
            return None;
        }
        self.note_free(group, g);
        Some(self.reserved(group, g, first, len))
    }

    /// Where the bit of one that is reserved stands.
    ///
    /// # Errors
    /// Those of its group.
    pub fn at(&self, region: &Region, geo: &Geometry, bit: u64) -> Result<Reserved> {
        let group = bit >> self.group_log2;
        let guard = self.lock(region, geo, group)?;
        let g = guard.as_deref().filter(|g| g.is_initialised());
        let first = (bit & (self.per_group - 1)) as u32;
        g.map(|g| self.reserved(group, g, first, 1))
            .ok_or_else(|| self.damaged(group, "bits in use in a group that is not"))
    }

    #[inline]
    fn reserved(&self, group: u64, g: &Group, first: u32, len: u32) -> Reserved {
        Reserved {
            run: Run {
                start: group * self.per_group + u64::from(first),
                len: u64::from(len),
            },
            group,
            first,
            bitmap_offset: g.bitmap_offset,
        }
    }

    /// Reserves `len` bits aligned to `len`, which is a power of two from 64.
    pub fn reserve_aligned(
        &self,
        region: &Region,
        geo: &Geometry,
        near: u64,
        len: u32,
        only_roomy: bool,
    ) -> Result<Option<Found>, InitGroup> {
        if u64::from(len) > self.per_group {
            return Ok(None);
        }
        self.search(region, geo, near, len, only_roomy, |group, g| {
            let base = group * self.per_group;
            let has_room = |start| {
                let run = Run {
                    start: base + u64::from(start),
                    len: u64::from(len),
                };
                self.has_room(region, geo, run)
            };
            let start = g.find_aligned(base, len, |at| !only_roomy || has_room(at))?;
            let found = self.reserved(group, g, start, len);
            if !only_roomy && !has_room(start) {
                return Some(Found::Roomless(found.run));
            }
            g.take(start, len);
            Some(Found::Taken(found))
        })
    }

    /// Whether the blocks of a run have room on the host. Numbers of inodes take
    /// none.
    #[inline]
    fn has_room(&self, region: &Region, geo: &Geometry, run: Run) -> bool {
        self.kind != BitmapKind::Blocks
            || region.has_room(run.start << geo.block_log2, run.len << geo.block_log2)
    }

    /// The homes of a change of bits can be stored to: see [`Region::check`].
    ///
    /// # Errors
    /// Those of the region, and damage of the group.
    pub fn check_homes(&self, region: &Region, geo: &Geometry, b: &Bits) -> Result<()> {
        region.check(b.word, 8)?;
        let desc = self
            .lock(region, geo, b.group)?
            .as_ref()
            .map(|g| g.desc_offset);
        Ok(desc.map_or(Ok(()), |at| region.check(at, GroupDesc::SIZE as u64))?)
    }

    /// Gives reserved or released bits back.
    pub fn give_back(&self, region: &Region, geo: &Geometry, run: Run) {
        self.for_groups(run, |group, start, len| {
            if let Ok(mut guard) = self.lock(region, geo, group)
                && let Some(g) = guard.as_deref_mut()
            {
                g.give(start, len);
                self.note_free(group, g);
            }
        });
    }

    #[inline]
    fn for_groups(&self, run: Run, mut f: impl FnMut(u64, u32, u32)) {
        let (mut at, end) = (run.start, (run.start + run.len).min(self.bits));
        while at < end {
            let (group, first) = (at >> self.group_log2, at & (self.per_group - 1));
            let n = (end - at).min(self.per_group - first);
            f(group, first as u32, n as u32);
            at += n;
        }
    }

    /// The words and masks that a run touches, as region offset, mask, group.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the run or its group cannot be right.
    #[inline]
    pub fn words_of(
        &self,
        region: &Region,
        geo: &Geometry,
        run: Run,
        mut f: impl FnMut(u64, u64, u64),
    ) -> Result<()> {
        if run.start.checked_add(run.len).is_none_or(|e| e > self.bits) {
            return Err(self.damaged(run.start / self.per_group, "a run leaves the bitmap"));
        }
        let mut result = Ok(());
        self.for_groups(run, |group, start, len| {
            let known = self.cells.get(group as usize);
            let known = known.map_or(0, |c| c.bitmap_offset.load(Ordering::Relaxed));
            let found = match known {
                0 => self
                    .lock(region, geo, group)
                    .map(|g| g.as_deref().map_or(0, |g| g.bitmap_offset)),
                known => Ok(known),
            };
            match found {
                Ok(0) => result = Err(self.damaged(group, "bits in use in a group that is not")),
                Ok(bitmap) => for_words(start, len, |word, mask| {
                    f(bitmap + word as u64 * 8, mask, group)
                }),
                Err(e) => result = Err(e),
            }
        });
        result
    }

    /// Brings a mask home and renews the sum of its group. Called for a
    /// committed record; the record names the same word.
    ///
    /// # Errors
    /// Only where the group itself cannot be read any more.
    pub fn apply_bits(
        &self,
        region: &Region,
        geo: &Geometry,
        bits: &Bits,
        lines: &mut Lines,
    ) -> Result<()> {
        let &Bits {
            group,
            word,
            mask,
            set,
            ..
        } = bits;
        let guard = self.lock(region, geo, group)?;
        let Some(g) = guard.as_deref() else {
            return Ok(());
        };
        let index = (word - g.bitmap_offset) / 8;
        let old = region.load_u64(word)?;
        let new = if set { old | mask } else { old & !mask };
        let sum = region
            .load_u64(g.desc_offset + 8)?
            .wrapping_sub(word_sum(geo.seed, index, old))
            .wrapping_add(word_sum(geo.seed, index, new));
        let w = region.window();
        w.store_u64_unflushed(word, new)?;
        w.store_u64_unflushed(g.desc_offset + 8, sum)?;
        lines.add(word, 8);
        lines.add(g.desc_offset + 8, 8);
        Ok(())
    }

    /// Tells the set that a group now has a bitmap block, whose first bits
    /// `used` (blocks: the bitmap itself) are set.
    pub fn group_made(
        &self,
        region: &Region,
        geo: &Geometry,
        group: u64,
        bitmap_offset: u64,
        used: Option<u32>,
    ) -> Result<()> {
        let mut guard = self.lock(region, geo, group)?;
        if let Some(g) = guard.as_deref_mut()
            && !g.is_initialised()
        {
            g.initialise((self.per_group / 64) as usize, bitmap_offset);
            self.cells[group as usize]
                .bitmap_offset
                .store(bitmap_offset, Ordering::Relaxed);
            if let Some(bit) = used {
                g.take(bit, 1);
            }
            self.note_free(group, g);
        }
        Ok(())
    }

    /// Whether a group has its bitmap block.
    pub fn is_made(&self, region: &Region, geo: &Geometry, group: u64) -> Result<bool> {
        Ok(self
            .lock(region, geo, group)?
            .as_deref()
            .is_some_and(Group::is_initialised))
    }

    /// Whether a bit is set on the medium: by a committed record.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where its group is damaged.
    pub fn is_set_at_home(&self, region: &Region, geo: &Geometry, bit: u64) -> Result<bool> {
        if bit >= self.bits {
            return Ok(false);
        }
        let guard = self.lock(region, geo, bit / self.per_group)?;
        let Some(g) = guard.as_deref().filter(|g| g.is_initialised()) else {
            return Ok(false);
        };
        let word = region.load_u64(g.bitmap_offset + bit % self.per_group / 64 * 8)?;
        Ok(word >> (bit % 64) & 1 != 0)
    }

    /// Free bits. The first call after mount reads the bitmaps in use; damaged
    /// groups count as full.
    pub fn count_free(&self, region: &Region, geo: &Geometry) -> u64 {
        (0..self.groups())
            .map(|group| {
                let cell = &self.cells[group as usize];
                match cell.free.load(Ordering::Relaxed) {
                    u32::MAX => match self.lock(region, geo, group) {
                        Ok(guard) => guard.as_deref().map_or(0, |g| {
                            self.note_free(group, g);
                            u64::from(g.free())
                        }),
                        Err(_) => 0,
                    },
                    n => u64::from(n),
                }
            })
            .sum()
    }

    /// Calls `f` with each free run of a range that has at least `least` bits,
    /// in pieces of at most `most`. A piece is taken meanwhile, so that nobody
    /// else has it, and the group is not locked: `f` may take its time. Damaged
    /// groups have none. Returns how many bits that were.
    ///
    /// # Errors
    /// The first of `f`, which ends it.
    pub fn each_free(
        &self,
        region: &Region,
        geo: &Geometry,
        range: std::ops::Range<u64>,
        (least, most): (u32, u32),
        f: &mut dyn FnMut(Run) -> Result<()>,
    ) -> Result<u64> {
        let mut bits = 0;
        let mut result = Ok(());
        let run = Run {
            start: range.start,
            len: range.end.saturating_sub(range.start),
        };
        self.for_groups(run, |group, start, len| {
            let (mut at, end) = (start, start + len);
            // What is left of the run that the last piece was of.
            let mut rest = 0;
            while result.is_ok() {
                let _lent = self.lending.lock();
                let Ok(mut guard) = self.lock(region, geo, group) else {
                    return;
                };
                let Some(g) = guard.as_deref_mut() else {
                    return;
                };
                // The last block of a group without bitmap may just be being made
                // that, which this lock knows nothing of.
                let end = if g.is_initialised() {
                    end
                } else {
                    end.min(self.len_of(group) - 1)
                };
                let Some((from, n)) = g.next_free(at, end) else {
                    return;
                };
                if n < least && !(from == at && rest > 0) {
                    at = from + n;
                    continue;
                }
                let piece = n.min(most);
                (at, rest) = (from + piece, n - piece);
                let run = Run {
                    start: group * self.per_group + u64::from(from),
                    len: u64::from(piece),
                };
                if g.is_initialised() {
                    g.take(from, piece);
                    self.note_free(group, g);
                    drop(guard);
                    result = f(run);
                    self.give_back(region, geo, run);
                } else {
                    // Nothing of it can be taken; it stays locked, so that it is
                    // not made meanwhile.
                    result = f(run);
                }
                if result.is_ok() {
                    bits += u64::from(piece);
                }
            }
        });
        result.map(|()| bits)
    }

    /// Waits until no free bit is out with [`each_free`](Self::each_free), and
    /// keeps it so: whoever finds nothing looks again before saying so.
    pub fn all_at_home(&self) -> MutexGuard<'_, ()> {
        self.lending.lock()
    }

    /// Renews the sum of a group whose bits live records have set and cleared,
    /// for recovery. First the old sum is checked: it fits the bits as they are
    /// now, or as they were before some of the steps of each lane. A sum
    /// that fits none of these means damage, which must not be sealed with a new
    /// one: a used block could pass for a free one.
    ///
    /// # Errors
    /// [`Error::Corrupt`], and the sum stays as it is.
    pub fn renew_sum(
        &self,
        region: &Region,
        geo: &Geometry,
        group: u64,
        touched: &Touched,
        lines: &mut Lines,
    ) -> Result<()> {
        if group >= self.groups() {
            return Err(self.damaged(group, "there is no such group"));
        }
        let Some((bitmap, desc)) = self.bitmap_offset(region, geo, group)? else {
            return Ok(());
        };
        let mut sum = 0u64;
        for i in 0..self.per_group / 64 {
            sum = sum.wrapping_add(word_sum(geo.seed, i, region.load_u64(bitmap + i * 8)?));
        }
        let old = region.load_u64(desc + 8)?;
        if old == sum {
            return Ok(());
        }
        if !touched.made && !self.could_have_been(region, geo, bitmap, sum, old, touched)? {
            return Err(self.damaged(group, "the checksum of its bitmap does not fit"));
        }
        region.window().store_u64_unflushed(desc + 8, sum)?;
        lines.add(desc + 8, 8);
        Ok(())
    }

    /// Whether the sum was `old` when some of the last steps of each lane had not
    /// been taken; it is `sum` with all of them.
    fn could_have_been(
        &self,
        region: &Region,
        geo: &Geometry,
        bitmap: u64,
        sum: u64,
        old: u64,
        touched: &Touched,
    ) -> Result<bool> {
        let lanes: Vec<&[Step]> = touched.lanes.values().map(Vec::as_slice).collect();
        let ways = lanes
            .iter()
            .try_fold(1u32, |n, l| n.checked_mul(l.len() as u32 + 1));
        if ways.is_none_or(|n| n > MOST_WAYS) {
            // Too many operations were under way to tell.
            return Ok(true);
        }
        let mut now = BTreeMap::new();
        for step in lanes.iter().flat_map(|l| l.iter()) {
            now.insert(step.word, region.load_u64(step.word)?);
        }
        let word_sum = |word: u64, bits| word_sum(geo.seed, word.wrapping_sub(bitmap) / 8, bits);
        // How many steps of each lane had been taken, counted down from all.
        let mut taken: Vec<usize> = lanes.iter().map(|l| l.len()).collect();
        loop {
            let mut then = now.clone();
            for (steps, &n) in lanes.iter().zip(&taken) {
                for step in steps[n..].iter().rev() {
                    then.entry(step.word).and_modify(|bits| {
                        *bits = if step.set {
                            *bits & !step.mask
                        } else {
                            *bits | step.mask
                        }
                    });
                }
            }
            let differs = now.iter().zip(then.values());
            let other = differs.fold(sum, |s, ((&word, &a), &b)| {
                s.wrapping_sub(word_sum(word, a))
                    .wrapping_add(word_sum(word, b))
            });
            if other == old {
                return Ok(true);
            }
            let Some(lane) = taken.iter().position(|&n| n > 0) else {
                return Ok(false);
            };
            taken[lane] -= 1;
            for (n, steps) in taken[..lane].iter_mut().zip(&lanes) {
                *n = steps.len();
            }
        }
    }
}
