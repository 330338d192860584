//! Copies of blocks as they were at one moment, while stores to them go on.
//!
//! Purpose: a save of a live mount. From the moment on, the first store to a block in use copies
//! the block to memory before it. A reader gets the copy, or the block if nobody stored to it.
//!
//! Invariants:
//! * A store to a block that is in use and not read yet comes after its copy: both, and the
//!   reads, take the lock of the block's shard, and a store begins after it has had that lock.
//! * Blocks that were free at the moment have no copy. Which were is known from the bitmaps,
//!   whose blocks keep their copies until the end.
//! * Memory for copies is bounded. An operation that may store waits at its start, with no lock
//!   held, until the reader has released some. If it releases none in [`PATIENCE`], the copies
//!   end: a reader that stops delays no operation for longer. They also end if the operations
//!   under way need [`EXCESS`] more, since these hold locks and cannot wait.
//! * The end is noted before the first store without a copy. So what is read is of the moment if
//!   the end is not noted after the read.
//!
//! Not here: stores without a [`WriteWindow`](super::WriteWindow), by views and leases. The engine
//! sets aside each block that it gives to a file as written without a store of its own, before the
//! block is in the map of the file.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::PmemError;
use super::region::Region;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, RwLock, rank};

/// Time for which an operation waits for a reader that releases nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that the operations under way may need beside the limit.
const EXCESS: u64 = 64 << 20;

const SHARDS: usize = 64;

/// What is copied.
#[derive(Debug, Clone)]
pub struct AsidePlan {
    /// Bytes of a block, a power of two.
    pub block_size: u64,
    /// Blocks that are in use whatever the bitmaps say, and are read first.
    pub fixed: Vec<Range<u64>>,
    /// Blocks that a bitmap tells of, a multiple of 64.
    pub per_group: u64,
    /// The block of each group's bitmap; `None`: all of its blocks are free.
    pub bitmaps: Vec<Option<u64>>,
    /// The same blocks, sorted.
    pub bitmap_blocks: Vec<u64>,
    /// Most bytes of copies, without those of bitmaps.
    pub most: u64,
}

/// The part of a [`Region`] that its windows ask.
#[derive(Debug, Default)]
pub(super) struct AsideSlot {
    /// Copies are made. Set and cleared while `current` is locked.
    active: AtomicBool,
    current: RwLock<Option<Arc<Aside>>, rank::Leaf>,
}

impl AsideSlot {
    /// Whether stores must ask for copies.
    #[inline(always)]
    pub(super) fn is_active(&self) -> bool {
        // The operations that follow the begin see it through the gate, which was held
        // exclusively. Acquire: after the end, the end is seen as noted.
        self.active.load(Ordering::Acquire)
    }

    fn get(&self) -> Option<Arc<Aside>> {
        self.current.read().clone()
    }
}

/// Why copies have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsideEnd {
    /// The reader released nothing while an operation waited, or too little.
    Slow,
    /// The operations under way needed much more memory for copies than there may be.
    Excess,
    /// The system has no memory for a copy.
    NoMemory,
    /// The file system is being closed, or no reader is left.
    Closed,
}

#[derive(Debug, Default)]
struct Shard {
    copies: HashMap<u64, Box<[u8]>>,
    /// Of the blocks of bitmaps.
    bitmaps: HashMap<u64, Box<[u8]>>,
    /// Nothing is copied any more.
    ended: bool,
}

/// The copies since one moment.
#[derive(Debug)]
pub struct Aside {
    plan: AsidePlan,
    shards: Vec<Mutex<Shard, rank::Aside>>,
    /// Bytes of copies, without those of bitmaps.
    bytes: AtomicU64,
    /// Blocks below this one are released, but not the fixed ones.
    released: AtomicU64,
    /// The fixed blocks are released.
    fixed_released: AtomicBool,
    /// Guards the end and the wait for room.
    end: Mutex<Option<AsideEnd>, rank::Leaf>,
    changed: Condvar,
}

impl Region {
    /// Begins to copy blocks before the first store to each. The caller keeps all stores out
    /// until this returns. `None` if somebody else copies already.
    pub(crate) fn begin_aside(&self, plan: AsidePlan) -> Option<Arc<Aside>> {
        let mut current = self.aside.current.write();
        if current.is_some() {
            return None;
        }
        let aside = Arc::new(Aside::new(plan));
        *current = Some(Arc::clone(&aside));
        self.aside.active.store(true, Ordering::Relaxed);
        Some(aside)
    }

    /// Ends the copies, and frees them. Operations that wait go on.
    pub(crate) fn end_aside(&self, aside: &Arc<Aside>, why: AsideEnd) {
        // Before the first store without a copy.
        aside.end.lock().get_or_insert(why);
        let mut current = self.aside.current.write();
        if current.as_ref().is_some_and(|of| Arc::ptr_eq(of, aside)) {
            self.aside.active.store(false, Ordering::Release);
            *current = None;
        }
        drop(current);
        aside.clear();
        aside.changed.notify_all();
    }

    /// Copies the blocks of a range before they are stored to.
    #[cold]
    pub(super) fn copy_aside(&self, offset: u64, len: u64) {
        if let Some(aside) = self.aside.get()
            && let Err(why) = aside.before_store(self, offset, len)
        {
            self.give_up(&aside, why);
        }
    }

    /// Whether blocks are copied before their first store.
    pub(crate) fn copies_aside(&self) -> bool {
        self.aside.is_active()
    }

    /// Copies the blocks of a range before somebody may store to them without a window.
    pub(crate) fn set_aside(&self, offset: u64, len: u64) {
        if self.aside.is_active() {
            self.copy_aside(offset, len);
        }
    }

    /// Whether the first store to a range would copy a block of it. Once it would not, it never will
    /// for these copies.
    pub(crate) fn needs_aside(&self, offset: u64, len: u64) -> bool {
        let aside = match self.aside.is_active() {
            true => self.aside.get(),
            false => None,
        };
        aside.is_some_and(|aside| aside.needs_copy(self, offset, len))
    }

    /// Waits until there is room for copies, before an operation that may store. The caller
    /// holds no lock and no window.
    #[inline]
    pub(crate) fn wait_for_aside(&self) {
        if self.aside.is_active() {
            self.wait_for_reader();
        }
    }

    #[cold]
    fn wait_for_reader(&self) {
        if let Some(aside) = self.aside.get()
            && aside.wait_for_room().is_err()
        {
            self.give_up(&aside, AsideEnd::Slow);
        }
    }

    fn give_up(&self, aside: &Arc<Aside>, why: AsideEnd) {
        let reason = match why {
            AsideEnd::NoMemory => "there is no memory for copies of what programs change".into(),
            AsideEnd::Excess => format!(
                "what is being changed at once needs {} MiB more for copies than it may have",
                EXCESS >> 20
            ),
            _ => format!(
                "its reader took too little for {} s, and programs that write waited for it",
                PATIENCE.as_secs()
            ),
        };
        let name = self.info().name;
        tracing::warn!("{name}: a save of the file system was given up: {reason}");
        self.end_aside(aside, why);
    }
}

/// The reader is too slow.
struct Slow;

impl Aside {
    fn new(plan: AsidePlan) -> Aside {
        Aside {
            plan,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            bytes: AtomicU64::new(0),
            released: AtomicU64::new(0),
            fixed_released: AtomicBool::new(false),
            end: Mutex::new(None),
            changed: Condvar::default(),
        }
    }

    /// Why the copies have ended, if they have.
    pub fn ended(&self) -> Option<AsideEnd> {
        *self.end.lock()
    }

    /// What is copied.
    pub fn plan(&self) -> &AsidePlan {
        &self.plan
    }

    /// Bytes of copies now, without those of bitmaps.
    pub fn held_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.ended = true;
            shard.copies = HashMap::new();
            shard.bitmaps = HashMap::new();
        }
        self.bytes.store(0, Ordering::Relaxed);
    }

    fn shard(&self, block: u64) -> &Mutex<Shard, rank::Aside> {
        // Neighbours in different shards. The index is below SHARDS.
        &self.shards[(block % SHARDS as u64) as usize]
    }

    fn is_fixed(&self, block: u64) -> bool {
        self.plan.fixed.iter().any(|run| run.contains(&block))
    }

    fn is_bitmap(&self, block: u64) -> bool {
        self.plan.bitmap_blocks.binary_search(&block).is_ok()
    }

    fn bitmap_of(&self, group: u64) -> Option<u64> {
        let group = usize::try_from(group).ok()?;
        self.plan.bitmaps.get(group).copied().flatten()
    }

    fn is_released(&self, block: u64) -> bool {
        match self.is_fixed(block) {
            true => self.fixed_released.load(Ordering::Acquire),
            false => block < self.released.load(Ordering::Acquire),
        }
    }

    /// Whether a block of a range is to be copied before a store to it.
    fn needs_copy(&self, region: &Region, offset: u64, len: u64) -> bool {
        self.blocks_of(offset, len).any(|block| {
            let shard = self.shard(block).lock();
            let known = shard.copies.contains_key(&block) || shard.bitmaps.contains_key(&block);
            let ended = shard.ended;
            // Of a bitmap, the look at a bit takes the same lock.
            drop(shard);
            let is_kept = || !self.is_released(block) && self.was_in_use(region, block);
            !known && !ended && (self.is_bitmap(block) || is_kept())
        })
    }

    fn blocks_of(&self, offset: u64, len: u64) -> Range<u64> {
        let size = self.plan.block_size;
        offset / size..offset.saturating_add(len).div_ceil(size)
    }

    /// Copies the blocks of a range that need it.
    fn before_store(&self, region: &Region, offset: u64, len: u64) -> Result<(), AsideEnd> {
        if len == 0 {
            return Ok(());
        }
        let size = self.plan.block_size;
        for block in self.blocks_of(offset, len) {
            let is_bitmap = self.is_bitmap(block);
            if !is_bitmap && (self.is_released(block) || !self.was_in_use(region, block)) {
                continue;
            }
            let mut shard = self.shard(block).lock();
            let known = match is_bitmap {
                true => shard.bitmaps.contains_key(&block),
                // Released meanwhile: nobody would free the copy.
                false => self.is_released(block) || shard.copies.contains_key(&block),
            };
            if known || shard.ended {
                continue;
            }
            let mut copy = Vec::new();
            let reserved = copy.try_reserve_exact(size as usize);
            reserved.map_err(|_| AsideEnd::NoMemory)?;
            copy.resize(size as usize, 0);
            if region.read(block * size, &mut copy).is_err() {
                // The page has failed. The reader meets the same error.
                continue;
            }
            let copies = match is_bitmap {
                true => &mut shard.bitmaps,
                false => &mut shard.copies,
            };
            copies.try_reserve(1).map_err(|_| AsideEnd::NoMemory)?;
            copies.insert(block, copy.into_boxed_slice());
            // Under the lock: whoever frees the copy subtracts it later.
            if !is_bitmap
                && self.bytes.fetch_add(size, Ordering::Relaxed)
                    >= self.plan.most.saturating_add(EXCESS)
            {
                return Err(AsideEnd::Excess);
            }
        }
        Ok(())
    }

    /// Waits until there is room for a copy.
    fn wait_for_room(&self) -> Result<(), Slow> {
        let is_full = || self.bytes.load(Ordering::Relaxed) >= self.plan.most;
        if !is_full() {
            return Ok(());
        }
        let mut end = self.end.lock();
        let mut position = self.position();
        let mut since = Instant::now();
        while end.is_none() && is_full() {
            let waited = since.elapsed();
            if self.position() != position {
                position = self.position();
                since = Instant::now();
            } else if waited >= PATIENCE {
                return Err(Slow);
            }
            let rest = PATIENCE.saturating_sub(since.elapsed());
            // The condition is looked at again.
            let _in_time = self.changed.wait_for(&mut end, rest);
        }
        Ok(())
    }

    fn position(&self) -> (bool, u64) {
        (
            self.fixed_released.load(Ordering::Relaxed),
            self.released.load(Ordering::Relaxed),
        )
    }

    /// Whether a block was in use at the moment.
    fn was_in_use(&self, region: &Region, block: u64) -> bool {
        if self.is_fixed(block) {
            return true;
        }
        let bit = block % self.plan.per_group;
        let Some(bitmap) = self.bitmap_of(block / self.plan.per_group) else {
            return false;
        };
        let at = (bit / 64 * 8) as usize;
        let shard = self.shard(bitmap).lock();
        let word = match shard.bitmaps.get(&bitmap) {
            Some(copy) => copy.get(at..).and_then(|rest| rest.first_chunk()).copied(),
            None => {
                let mut word = [0; 8];
                let read = region.read(bitmap * self.plan.block_size + at as u64, &mut word);
                read.is_ok().then_some(word)
            }
        };
        // Unknown counts as in use.
        word.is_none_or(|word| u64::from_le_bytes(word) >> (bit % 64) & 1 != 0)
    }

    /// Reads a block as it was at the moment. One that was free holds anything. Returns whether
    /// it comes from the region, and not from a copy.
    ///
    /// # Errors
    /// Those of reading the region.
    pub fn read(&self, region: &Region, block: u64, into: &mut [u8]) -> Result<bool, PmemError> {
        let shard = self.shard(block).lock();
        let copy = shard.copies.get(&block).or(shard.bitmaps.get(&block));
        match copy.filter(|copy| copy.len() == into.len()) {
            Some(copy) => into.copy_from_slice(copy),
            None => region.read(block * self.plan.block_size, into)?,
        }
        Ok(copy.is_none())
    }

    /// The fixed blocks are read, and are copied no more.
    pub fn release_fixed(&self) {
        self.fixed_released.store(true, Ordering::Release);
        self.drop_released();
    }

    /// The blocks below `end` are read, but for fixed ones, and are copied no more.
    pub fn release_below(&self, end: u64) {
        self.released.fetch_max(end, Ordering::Release);
        self.drop_released();
    }

    fn drop_released(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.copies.len();
            shard.copies.retain(|block, _| !self.is_released(*block));
            let freed = (before - shard.copies.len()) as u64 * self.plan.block_size;
            self.bytes.fetch_sub(freed, Ordering::Relaxed);
        }
        // Under the lock, so that no operation misses it between its look and its wait.
        drop(self.end.lock());
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
