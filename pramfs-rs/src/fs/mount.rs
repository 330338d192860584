//! Mounting. Unmounting is in [`close`](super::close).
//!
//! The time of a mount depends on the number of lanes, of groups that live
//! records touch, and of orphans; not on files, size, or on how the last mount
//! ended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam::sync::ShardedLock;

use super::atime::AtimeRule;
use super::background::Background;
use super::icache::InodeCache;
use super::inode::map_of;
use super::inode_table::InodeTable;
use super::options::MountOptions;
use super::refs::Refs;
use super::superblock::SuperState;
use super::{Engine, Fs, Need};
use crate::alloc::BitmapSet;
use crate::error::{Error, Result};
use crate::journal::{Lines, recovery};
use crate::media::bitmap::BitmapKind;
use crate::media::checksum::{seal, unseal};
use crate::media::probe::check_features;
use crate::media::superblock::{
    BLOCK_GROUPS_OFFSET, DYNAMIC_OFFSET, INODE_GROUPS_OFFSET, INODE_TABLE_OFFSET,
};
use crate::media::{DiskInode, Geometry, SuperDynamic, SuperblockInfo, probe_superblock};
use crate::pmem::mutants::has_bug;
use crate::pmem::{OpenState, Region};
use crate::sync::Mutex;
use crate::types::Ino;
use crate::volume::Volume;

/// Inodes in the orphan table, with their slots: of a mount that is read-only
/// they stay there.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Unlinked, and to be freed.
    orphans: Vec<(Ino, u32)>,
    /// Cut, with blocks past the end.
    cut: Vec<(Ino, u32)>,
}

/// What a mount found, for people and tests.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {
    /// The last unmount was clean.
    pub was_clean: bool,
    /// Journal records replayed.
    pub records: usize,
    /// Slots with a torn record: operations that had not returned.
    pub torn: usize,
    /// Unlinked inodes to be freed.
    pub orphans: usize,
    /// What looked damaged.
    pub damage: Vec<String>,
    /// The first superblock was damaged and the copy was used.
    pub used_copy: bool,
    /// The copy of the superblock is damaged: nothing is lost yet, and there is
    /// nothing to fall back on.
    pub copy_damaged: bool,
    /// Time of the mount, orphans not counted.
    pub time: Duration,
}

/// An internal inode: from the first page, or from the copy.
fn internal(region: &Region, geo: &Geometry, at: u64, ino: Ino) -> Result<DiskInode> {
    for page in [0, geo.copy_offset] {
        // A page that has failed is as good as a damaged one.
        let Ok(d) = region.read_pod::<DiskInode>(page + at) else {
            continue;
        };
        if d.crc == d.expected_crc(geo.seed, ino)
            && d.ino == ino.0
            && u32::from(d.height) <= geo.max_height()
        {
            return Ok(d);
        }
    }
    Err(Error::corrupt(
        "the superblock",
        format!("the inode at {at:#x} is damaged in both pages"),
    ))
}

/// The checkpoint: the newer of both pages' words whose check fits.
fn checkpoint(region: &Region, info: &SuperblockInfo, geo: &Geometry) -> Result<u64> {
    let copy = region.read_pod::<SuperDynamic>(geo.copy_offset + DYNAMIC_OFFSET);
    let words = [
        Some(info.dynamic.checkpoint),
        copy.ok().map(|c| c.checkpoint),
    ];
    words
        .iter()
        .flatten()
        .filter_map(|w| unseal(geo.seed, *w))
        .max()
        .ok_or_else(|| Error::corrupt("the superblock", "the checkpoint is damaged in both pages"))
}

impl Fs {
    /// Mounts the file system of a region. What a crash has left is replayed
    /// first; unlinked files that were open are freed in the background.
    ///
    /// # Errors
    /// [`Error::NotMountable`] where there is no file system that this version
    /// can use; [`Error::Corrupt`] where there is one and it is damaged.
    pub fn open(region: Region, options: MountOptions) -> Result<Fs> {
        let start = Instant::now();
        let read_only = options.read_only || region.info().read_only;
        let info = probe_superblock(&region)?;
        check_features(&info.fixed, read_only)?;
        if read_only && !region.info().read_only && !info.is_clean() {
            tracing::info!("replaying the journal before the read-only mount");
        }
        let geo = info.geometry();
        if !(region.info().read_only || read_only && info.is_clean()) {
            super::room::take_fixed_room(&region, &geo)?;
        }
        let faults = region.faults();
        let relabelled = !read_only && super::superblock::finish_label(&region, &info)?;
        let old = checkpoint(&region, &info, &geo)?;
        // Never but in a test of the tests.
        let stale = has_bug!(TruncateBeforeReplay).then(|| stale_free_blocks(&region, &geo));
        let (mut replay, pending) = recovery::replay(&region, &geo, old)?;

        // The internal inodes are read after the replay, which may change them.
        let inode = |at, ino| internal(&region, &geo, at, ino);
        let table = inode(INODE_TABLE_OFFSET, Ino::INODE_TABLE)?;
        let inode_groups = map_of(&inode(INODE_GROUPS_OFFSET, Ino::INODE_GROUPS)?).root();
        let block_groups = map_of(&inode(BLOCK_GROUPS_OFFSET, Ino::BLOCK_GROUPS)?).root();
        let newest = replay.newest.max(old);
        let rules = options.rules();
        let mut vol = Volume::new(region, geo, newest, (block_groups, inode_groups), rules);
        vol.discard = options.discard;
        if let Some(stale) = stale {
            vol.blocks = stale?;
        }

        let mut lines = Lines::default();
        for (&(kind, group), touched) in &replay.groups {
            if let Some(kind) = BitmapKind::from_code(kind) {
                match vol
                    .bitmap(kind)
                    .renew_sum(&vol.region, &vol.geo, group, touched, &mut lines)
                {
                    // Only this group cannot be used.
                    Err(Error::Corrupt { object, what }) => {
                        replay.damage.push(format!("{object}: {what}"))
                    }
                    other => other?,
                }
            }
        }
        let pending = pending.join(lines.flush(&vol.region)?);
        let _ = vol.region.window().fence(pending);

        // A store to a page that has faulted was lost: its records stay alive
        // for a recovery that finds the page whole again.
        if vol.region.faults() != faults {
            return Err(failed_while_mounting(&vol.region));
        }
        let super_state = SuperState::new(info.dynamic, info.fixed);
        if !read_only || replay.records > 0 {
            // One store makes every record dead; until it is durable, the next
            // recovery does the same again.
            let word = seal(vol.geo.seed, newest);
            super_state.mounted(
                &vol.region,
                &vol.geo,
                word,
                options.clock.now().sec,
                !read_only,
            )?;
        }
        if vol.region.faults() != faults {
            return Err(failed_while_mounting(&vol.region));
        }
        let mut engine = Engine {
            cache: InodeCache::new(options.cache_bytes, vol.geo.hash_keys.0),
            refs: Refs::default(),
            last_dirs: (0..vol.geo.lanes).map(|_| Default::default()).collect(),
            table: InodeTable::new(table),
            super_state,
            gate: ShardedLock::new(()),
            rename: Mutex::new(()),
            orphans: Mutex::new(BTreeSet::new()),
            forgotten: Mutex::new(Vec::new()),
            freeing: Mutex::new(()),
            lazy: Mutex::new(Vec::new()),
            read_only: AtomicBool::new(read_only),
            damaged: AtomicBool::new(false),
            damage: super::damage::Damage::default(),
            quiet: AtomicBool::new(read_only),
            open: OpenState::new(),
            handles: AtomicUsize::new(0),
            tick: AtomicI64::new(0),
            atime: AtimeRule::new(&options),
            report: RecoveryReport {
                was_clean: info.is_clean(),
                records: replay.records,
                torn: replay.torn,
                damage: replay.damage,
                used_copy: info.from_copy && !relabelled,
                copy_damaged: info.copy_damaged,
                ..RecoveryReport::default()
            },
            info,
            options,
            vol,
        };
        let root = engine.iget(Ino::ROOT)?;
        if !root.state.read().is_dir() {
            return Err(Error::corrupt(
                "the root directory",
                "it is not a directory",
            ));
        }
        drop(root);
        if engine.report.used_copy {
            engine
                .report
                .damage
                .push("the first superblock is damaged; its copy was used".into());
        }
        let orphans = match engine.load_orphans() {
            // What was unlinked stays; what needs a slot fails.
            Err(e @ Error::Corrupt { .. }) => {
                engine.note_damage(&e);
                Vec::new()
            }
            found => found?,
        };
        engine.report.orphans = orphans.len();
        engine.report.time = start.elapsed();
        for d in engine.report.damage.clone() {
            engine.note_damage(&Error::corrupt("the journal", d));
        }
        // Before anything else can change these files.
        let (cut, orphans): (Vec<_>, Vec<_>) = orphans
            .into_iter()
            .partition(|&(ino, slot)| engine.claim_orphan(ino, slot));
        let engine = Arc::new(engine);
        let left = Left { orphans, cut };
        let fs = Fs {
            engine,
            background: Mutex::new(None),
            left: Mutex::new(left),
        };
        if !read_only {
            fs.take_room_for_removals()?;
            super::room::warn_of_little_room(&fs.vol.region);
            fs.vol.region.backend().advise_random();
            fs.start_work(&mut fs.background.lock())?;
        }
        Ok(fs)
    }

    /// What a mount that writes does by itself: finishes what a crash has left,
    /// and keeps times.
    fn start_work(&self, background: &mut Option<Background>) -> Result<()> {
        let Left { orphans, cut } = std::mem::take(&mut *self.left.lock());
        if self.options.background {
            *background = Some(Background::start(&self.engine, orphans, cut)?);
            return Ok(());
        }
        for (ino, slot) in orphans {
            self.finish_orphan(ino, slot);
        }
        for (ino, _) in cut {
            self.finish_truncated(ino);
        }
        Ok(())
    }

    /// Makes a read-only mount writable, as `remount,rw` does. What the mount
    /// has replayed is on the medium already; what else a crash has left is
    /// finished from here on. Does nothing where the mount is writable.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::{HeapBackend, Region};
    /// # use pramfs::{inode::{Ctx, Fs, Ino}, MountOptions};
    /// # let region = Region::new("example", HeapBackend::boxed(4 << 20));
    /// # format(&region, &FormatOptions::default())?;
    /// let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    /// let fs = Fs::open(region, read_only)?;
    /// assert!(fs.create(&Ctx::default(), Ino::ROOT, b"a", 0o644).is_err());
    /// fs.make_writable()?;
    /// fs.create(&Ctx::default(), Ino::ROOT, b"a", 0o644)?;
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ReadOnly`] where the region is open for reading only, or damage
    /// was met; [`Error::NotMountable`] for what this version can only read;
    /// EBUSY where somebody else has the region open. The mount stays read-only.
    pub fn make_writable(&self) -> Result<()> {
        if !self.open.is_open() {
            return Err(self.ended());
        }
        let mut background = self.background.lock();
        if self.become_writable()? {
            // It is writable by now: whatever is missing, what a crash has left is
            // finished, and the timer runs.
            if let Err(e) = self.take_room_for_removals() {
                tracing::warn!("no blocks could be put aside for removals: {e}");
            }
            self.start_work(&mut background)?;
        }
        Ok(())
    }

    /// What operations, handles and threads share.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl Engine {
    /// True if the mount was read-only and is no longer.
    fn become_writable(&self) -> Result<bool> {
        if !self.open.is_open() {
            return Err(self.ended());
        }
        let _all = self.gate.write().map_err(|_| self.ended())?;
        if !self.is_up() {
            return Err(self.ended());
        }
        if !self.is_read_only() {
            return Ok(false);
        }
        let region = &self.vol.region;
        if region.info().read_only {
            return Err(Error::ReadOnly("the region is open for reading only"));
        }
        if self.damaged.load(Ordering::Relaxed) {
            return Err(Error::ReadOnly("damage was found"));
        }
        check_features(&self.info.fixed, false)?;
        region.lock_exclusive()?;
        super::room::take_fixed_room(region, &self.vol.geo)?;
        let faults = region.faults();
        super::superblock::finish_label(region, &self.info)?;
        // Nothing has been committed since the replay, so this is where that
        // has put the checkpoint; and fenced before the first change.
        let word = seal(self.vol.geo.seed, self.vol.journal.last_lsn());
        self.super_state
            .mounted(region, &self.vol.geo, word, self.now().sec, true)?;
        if region.faults() != faults {
            return Err(failed_while_mounting(region));
        }
        region.backend().advise_random();
        self.quiet.store(false, Ordering::Relaxed);
        self.read_only.store(false, Ordering::Relaxed);
        Ok(true)
    }

    /// Frees an inode that the last mount left in the orphan table.
    pub(super) fn finish_orphan(&self, ino: Ino, slot: u32) {
        let result = self.op(Need::Write, || {
            match self.iget(ino) {
                Ok(inode) => {
                    let mut state = inode.state.write();
                    if state.disk.nlink != 0 || ino < Ino::FIRST_FREE {
                        return Err(Error::corrupt(
                            ino.to_string(),
                            "it is in the orphan table and has names",
                        ));
                    }
                    state.orphan_slot = Some(slot);
                    self.orphans.lock().insert(ino.0);
                }
                Err(Error::Stale(_)) => {
                    return Err(Error::corrupt(
                        ino.to_string(),
                        "it is in the orphan table and does not exist",
                    ));
                }
                Err(e) => return Err(e),
            }
            self.free_orphan(ino)
        });
        if let Err(e) = result {
            tracing::warn!(%ino, error = %e, "an orphan was not freed");
        }
    }
}

fn failed_while_mounting(region: &Region) -> Error {
    Error::Io(format!(
        "{} failed while it was mounted",
        region.info().name
    ))
}

/// The free blocks as they are before the journal is replayed: what no mount may
/// go by.
fn stale_free_blocks(region: &Region, geo: &Geometry) -> Result<BitmapSet> {
    let groups = internal(region, geo, BLOCK_GROUPS_OFFSET, Ino::BLOCK_GROUPS)?;
    let set = BitmapSet::new(BitmapKind::Blocks, geo.blocks, geo, map_of(&groups).root());
    for group in 0..set.groups() {
        set.is_made(region, geo, group)?;
    }
    Ok(set)
}
