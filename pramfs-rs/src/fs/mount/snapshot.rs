//! Reading a mounted file system as it was at one moment, while programs change it.
//!
//! The moment has no operation under way, so the snapshot is what a crash would leave at that
//! moment, with all that had returned: a mount recovers it. Its records are dead, since those of
//! atomic writes have their data in blocks that no bitmap names. The moment takes as long as the
//! operations under way, two fences for each lane, and a look at the descriptor of each block
//! group: the size of the region does not matter otherwise. From then on, [`Aside`] copies each block in use before its first
//! store.
//!
//! Stores that pass no engine are not held back: those of views for writing and of leases to
//! write. Their files are named. The end of an append window is of the moment, since the blocks of
//! the lease table are copied at once. With sums of data, the inode of the moment says which sums need
//! not hold. So a view that begins later copies its blocks first, and there are no new leases to
//! write.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::fs::{Engine, Fs};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::lease::LeaseSlot;
use pramfs_medium::pmem::{Aside, AsideEnd, AsidePlan, RegionAccess as _};
use pramfs_medium::sync::{Mutex, MutexGuard, rank};
use pramfs_medium::types::{BlockRun, Bno, Ino, LeaseMode};

/// Why a snapshot has ended before its reader did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotEnd {
    /// Programs that write waited for memory, and the reader released none for ten seconds.
    Slow,
    /// The operations under way changed much more than the memory for copies holds.
    Excess,
    /// The system had no memory for a copy.
    NoMemory,
    /// The file system was closed.
    Closed,
}

/// What a snapshot and its mount share.
#[derive(Debug)]
pub(crate) struct SnapshotState {
    /// `None` from the end of the mount, or the begin of another snapshot, on.
    engine: Mutex<Option<Arc<Engine>>, rank::Mount>,
    aside: Arc<Aside>,
    /// Blocks that were listed as bad at the moment.
    bad: Vec<BlockRun>,
    /// Number of the snapshot for `Engine::mapped`.
    number: u64,
}

impl SnapshotState {
    /// Ends it, once no read is under way. Operations that wait for its reader go on.
    pub(crate) fn end(&self) {
        if let Some(engine) = self.engine.lock().take() {
            engine.vol.region.end_aside(&self.aside, AsideEnd::Closed);
            engine.mapped.forget(self.number);
        }
    }
}

/// A file system at one moment. Dropping it ends the copies.
///
/// ```
/// use pramfs::format::{FormatOptions, format};
/// use pramfs::pmem::{HeapBackend, Region};
/// use pramfs::{inode::{Credentials, Fs, Ino}, MountOptions};
///
/// let region = Region::new("example", HeapBackend::boxed(4 << 20));
/// format(&region, &FormatOptions::default())?;
/// let fs = Fs::open(region, MountOptions::default())?;
/// let snapshot = fs.snapshot(1 << 20)?;
/// fs.create(&Credentials::ROOT, Ino::ROOT, b"later", 0o644)?;
/// let mut block = vec![0; snapshot.block_size() as usize];
/// for run in snapshot.fixed() {
///     for at in run.clone() {
///         snapshot.read(at, &mut block)?;
///     }
/// }
/// snapshot.release_fixed();
/// assert_eq!(snapshot.end(), None);
/// drop(snapshot);
/// fs.close()?;
/// # Ok::<(), pramfs::Error>(())
/// ```
#[derive(Debug)]
pub struct Snapshot {
    state: Arc<SnapshotState>,
    /// The process that it belongs to.
    process: u32,
}

impl Fs {
    /// Begins a snapshot. `most` is the number of bytes of memory for copies of blocks that
    /// programs change before they are read and released: a program that needs more waits, for
    /// ten seconds at most without progress of the reader, and then the snapshot ends.
    ///
    /// # Errors
    /// EBUSY while there is another one; [`Error::Corrupt`] if it is not known which blocks are
    /// in use; EIO on a file system that is closed or has failed.
    pub fn snapshot(&self, most: u64) -> Result<Snapshot> {
        if !self.is_up() {
            return Err(self.ended());
        }
        let last = self.snapshot.lock().upgrade();
        if let Some(last) = last {
            if last.aside.ended().is_none() {
                return Err(running());
            }
            // Its reader has not gone yet.
            last.end();
        }
        let engine = self.engine();
        let begun = engine.begin_snapshot(most);
        if let Err(e @ Error::Corrupt { .. }) = &begun {
            engine.note_damage(e);
        }
        let (aside, bad, number) = begun?;
        let state = Arc::new(SnapshotState {
            engine: Mutex::new(Some(Arc::clone(engine))),
            aside,
            bad,
            number,
        });
        // Copies can begin once at a time, so this is the only one.
        *self.snapshot.lock() = Arc::downgrade(&state);
        Ok(Snapshot {
            state,
            process: std::process::id(),
        })
    }
}

fn running() -> Error {
    Error::Busy("a save of this file system runs already; wait for its end".into())
}

impl Engine {
    fn begin_snapshot(&self, most: u64) -> Result<(Arc<Aside>, Vec<BlockRun>, u64)> {
        let _all = self.gate.write().map_err(|_| self.ended())?;
        if !self.is_up() {
            return Err(self.ended());
        }
        if self.has_unknown_lease.load(Ordering::Relaxed) {
            return Err(Error::Busy(
                "a process maps blocks of this file system, and the lease that says which is damaged; unmount it and run fsck.pramfs".into(),
            ));
        }
        if self.is_read_only() {
            // Such a mount may have live records, and must not retire them.
            if !self.quiet.load(Ordering::Relaxed) {
                return Err(Error::io(
                    "damage was found, and the mount became read-only; unmount it, run fsck.pramfs, then save it",
                ));
            }
        } else if self.vol.journal.rules.snapshot_retires {
            // The records of atomic writes have their data in blocks that no bitmap names.
            self.vol.retire_all()?;
        }
        let geo = &self.vol.geo;
        let per_group = geo.bits_per_group();
        let groups = geo.blocks().div_ceil(per_group);
        let (mut bitmaps, mut bitmap_blocks) = (Vec::new(), Vec::new());
        let room = usize::try_from(groups).unwrap_or(usize::MAX);
        let reserved = bitmaps.try_reserve_exact(room).is_ok()
            && bitmap_blocks.try_reserve_exact(room).is_ok();
        if !reserved {
            return Err(Error::OutOfMemory(groups.saturating_mul(24)));
        }
        for group in 0..groups {
            let at = self.vol.blocks.bitmap_offset(self.vol.medium(), group)?;
            let block = at.map(|(bitmap, _)| geo.block_at(bitmap).0);
            bitmaps.push(block);
            bitmap_blocks.extend(block);
        }
        bitmap_blocks.sort_unstable();
        let plan = AsidePlan {
            block_size: geo.block_size,
            fixed: geo.fixed_runs(),
            per_group,
            bitmaps,
            bitmap_blocks,
            most,
        };
        let bad = self.vol.bad.runs();
        let aside = self.vol.region.begin_aside(plan).ok_or_else(running)?;
        let leases = self.leases();
        // The holder of an append window stores the end of the file without a window of the region.
        // What it has appended before is in place, so this end is one of the moment.
        for held in &leases {
            let slot = LeaseSlot::SIZE as u64;
            self.vol.region.set_aside(held.at.0, slot);
        }
        let written = leases.iter().filter(|held| held.mode == LeaseMode::Write);
        let number = self.mapped.collect(written.map(|held| held.ino));
        Ok((aside, bad, number))
    }
}

impl Snapshot {
    fn plan(&self) -> &AsidePlan {
        self.state.aside.plan()
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> u64 {
        self.plan().block_size
    }

    /// The blocks of the superblock pages and the journal. They are to be read first.
    pub fn fixed(&self) -> &[Range<u64>] {
        &self.plan().fixed
    }

    /// Blocks of a group.
    pub fn blocks_per_group(&self) -> u64 {
        self.plan().per_group
    }

    /// The block of each group's bitmap, in which a set bit means that the block is in use;
    /// `None`: all blocks of the group are free.
    pub fn bitmaps(&self) -> &[Option<u64>] {
        &self.plan().bitmaps
    }

    /// Reads whole blocks as they were, from a block on. A released block is as it is now, and so
    /// is one that was free. Blocks of the list of bad blocks are zeros.
    ///
    /// # Errors
    /// The snapshot has ended, see [`end`](Self::end); the medium failed; a part of a block.
    pub fn read(&self, first: u64, into: &mut [u8]) -> Result<()> {
        let size = self.block_size();
        if !(into.len() as u64).is_multiple_of(size) {
            return Err(Error::Invalid("a snapshot is read by whole blocks"));
        }
        let engine = self.engine()?;
        let Some(engine) = engine.as_ref() else {
            return Err(self.ended());
        };
        let geo = &engine.vol.geo;
        let count = into.len() as u64 / size;
        if first
            .checked_add(count)
            .is_none_or(|end| end > geo.blocks())
        {
            return Err(Error::Invalid("a block past the end of the file system"));
        }
        let region = &engine.vol.region;
        for (block, into) in (first..).zip(into.chunks_mut(size as usize)) {
            if self.state.bad.iter().any(|run| run.contains(Bno(block))) {
                into.fill(0);
                continue;
            }
            let from_region = self.state.aside.read(region, block, into)?;
            if from_region && region.is_faulted(block * size, size) {
                return Err(Error::io(format!(
                    "the page at offset {} cannot be read; run pramfs scrub, then fsck.pramfs",
                    block * size
                )));
            }
        }
        // Stores made no copies any more after that.
        match self.end() {
            None => Ok(()),
            Some(_) => Err(self.ended()),
        }
    }

    /// Locks the engine, in the process that made the snapshot.
    fn engine(&self) -> Result<MutexGuard<'_, Option<Arc<Engine>>>> {
        if self.process != std::process::id() {
            return Err(Error::io(
                "the snapshot was made before this process was forked; only its process can read it",
            ));
        }
        let engine = self.state.engine.lock();
        match self.end() {
            None => Ok(engine),
            Some(_) => Err(self.ended()),
        }
    }

    fn ended(&self) -> Error {
        Error::io(match self.end() {
            Some(SnapshotEnd::Slow) => {
                "the save was given up: programs that write waited 10 s for memory, and it took too little; save to a faster disk, or with more memory"
            }
            Some(SnapshotEnd::Excess) => {
                "the save was given up: programs changed so much at once that the copies needed 64 MiB more memory than they may have; save with more memory, or when less is written"
            }
            Some(SnapshotEnd::NoMemory) => {
                "the save was given up: the system had no memory for copies of what programs changed"
            }
            _ => "the file system has been unmounted, or another save has begun",
        })
    }

    /// The blocks of [`fixed`](Self::fixed) are read.
    pub fn release_fixed(&self) {
        self.state.aside.release_fixed();
    }

    /// All blocks below this one are read, but for fixed ones and bitmaps.
    pub fn release_below(&self, block: u64) {
        self.state.aside.release_below(block);
    }

    /// Bytes of copies in memory, without those of bitmaps.
    pub fn held_bytes(&self) -> u64 {
        self.state.aside.held_bytes()
    }

    /// Why it has ended, if it has. What was read before stays valid.
    pub fn end(&self) -> Option<SnapshotEnd> {
        self.state.aside.ended().map(|end| match end {
            AsideEnd::Slow => SnapshotEnd::Slow,
            AsideEnd::Excess => SnapshotEnd::Excess,
            AsideEnd::NoMemory => SnapshotEnd::NoMemory,
            AsideEnd::Closed => SnapshotEnd::Closed,
        })
    }

    /// The files that were mapped for writing, or leased to write, at the moment or later. What
    /// was read of them may be of any moment. Each with its path, if the engine has seen one.
    ///
    /// # Errors
    /// The snapshot has ended.
    pub fn mapped_files(&self) -> Result<Vec<(Ino, Option<String>)>> {
        let engine = self.engine()?;
        let engine = engine.as_ref().ok_or_else(|| self.ended())?;
        let files = engine.mapped.collected(self.state.number);
        let files = files.ok_or_else(|| self.ended())?.into_iter();
        Ok(files.map(|ino| (ino, engine.path_hint(ino))).collect())
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // A forked child has no thread that would let go of the lock.
        if self.process == std::process::id() {
            self.state.end();
        }
    }
}

#[cfg(test)]
mod tests;
