//! Mounting. Unmounting is in [`close`](crate::fs::mount::close).
//!
//! The duration of a mount depends on the number of lanes, of groups that live
//! records touch, and of orphans. It does not depend on the number of files, the
//! size, or how the last mount ended.

mod background;
pub(crate) mod close;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam::sync::ShardedLock;

use crate::fs::Engine;
use crate::fs::engine::report::RecoveryReport;
use crate::fs::engine::superblock::SuperState;
use crate::fs::inode::cache::InodeCache;
use crate::fs::inode::disk::map_of;
use crate::fs::inode::refs::Refs;
use crate::fs::inode::table::InodeTable;
use crate::fs::options::MountOptions;
use crate::fs::policy::atime::AtimeRule;
use background::Background;
use pramfs_medium::alloc::BitmapSet;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::journal::{Lines, recovery};
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::media::checksum::{seal, unseal};
use pramfs_medium::media::probe::check_features;
use pramfs_medium::media::superblock::{
    BLOCK_GROUPS_OFFSET, DYNAMIC_OFFSET, INODE_GROUPS_OFFSET, INODE_TABLE_OFFSET,
};
use pramfs_medium::media::{DiskInode, Medium, SuperDynamic, SuperblockInfo, probe_superblock};
use pramfs_medium::pmem::mutants::has_bug;
use pramfs_medium::pmem::{OpenState, Region};
use pramfs_medium::sync::Mutex;
use pramfs_medium::types::Ino;
use pramfs_medium::volume::Volume;

/// A mounted file system.
///
/// ```
/// use pramfs::format::{FormatOptions, format};
/// use pramfs::pmem::{HeapBackend, Region};
/// use pramfs::{inode::{Credentials, Fs, Ino}, MountOptions};
///
/// let region = Region::new("example", HeapBackend::boxed(4 << 20));
/// format(&region, &FormatOptions::default())?;
/// let fs = Fs::open(region, MountOptions::default())?;
/// let file = fs.create(&Credentials::ROOT, Ino::ROOT, b"hello", 0o644)?;
/// fs.write(&Credentials::ROOT, file.ino, 0, b"world")?;
/// assert_eq!(fs.getattr(file.ino)?.size, 5);
/// fs.close()?;
/// # Ok::<(), pramfs::Error>(())
/// ```
#[derive(Debug)]
pub struct Fs {
    engine: Arc<Engine>,
    /// The background thread of a writable mount. Locked to become writable and
    /// to end the mount.
    background: Mutex<Option<Background>>,
    unfinished: Mutex<Unfinished>,
}

impl std::ops::Deref for Fs {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

/// Inodes in the orphan table, with their slots. A read-only mount leaves them
/// there.
#[derive(Debug, Default)]
struct Unfinished {
    /// Unlinked, and to be freed.
    orphans: Vec<(Ino, u32)>,
    /// Files with an unfinished truncation, with blocks past the end.
    cut: Vec<(Ino, u32)>,
}

/// Reads an internal inode from the first page, or from the copy.
fn internal(medium: Medium<'_>, at: u64, ino: Ino) -> Result<DiskInode> {
    let Medium { region, geo } = medium;
    for page in [0, geo.copy_offset] {
        // A page that cannot be read counts as damaged.
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
        Damage::InternalInodeLost,
        "the superblock",
        format!("the inode at {at:#x} is damaged in both pages"),
    ))
}

/// Returns the checkpoint: the newer of both pages' words that pass their check.
fn checkpoint(medium: Medium<'_>, info: &SuperblockInfo) -> Result<u64> {
    let Medium { region, geo } = medium;
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
        .ok_or_else(|| {
            Error::corrupt(
                Damage::CheckpointDamaged,
                "the superblock",
                "the checkpoint is damaged in both pages",
            )
        })
}

impl Fs {
    /// Mounts the file system of a region. First replays the journal after a
    /// crash. Files that were unlinked while open are freed in the background.
    ///
    /// # Errors
    /// [`Error::NotMountable`] if the region holds no file system that this version
    /// can use; [`Error::Corrupt`] if its file system is damaged.
    pub fn open(region: Region, options: MountOptions) -> Result<Fs> {
        let start = Instant::now();
        let read_only = options.read_only || region.info().read_only;
        let info = probe_superblock(&region)?;
        check_features(&info.fixed, read_only)?;
        if read_only && !region.info().read_only && !info.is_clean() {
            tracing::info!("replaying the journal before the read-only mount");
        }
        let geo = info.geometry();
        let medium = Medium {
            region: &region,
            geo: &geo,
        };
        if !(region.info().read_only || read_only && info.is_clean()) {
            crate::fs::engine::room::take_fixed_room(medium)?;
        }
        let faults = region.faults();
        let relabelled = !read_only && crate::fs::engine::superblock::finish_label(&region, &info)?;
        let old = checkpoint(medium, &info)?;
        // Only in mutation tests.
        let stale = has_bug!(TruncateBeforeReplay).then(|| stale_free_blocks(medium));
        let (mut replay, pending) = recovery::replay(medium, old)?;

        // After the replay, which may change the internal inodes.
        let inode = |at, ino| internal(medium, at, ino);
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
                    .renew_sum(vol.medium(), group, touched, &mut lines)
                {
                    // Only this group is unusable.
                    Err(Error::Corrupt { kind, object, what }) => {
                        replay.damage.push((kind, format!("{object}: {what}")));
                    }
                    other => other?,
                }
            }
        }
        let pending = pending.join(lines.flush(&vol.region)?);
        let _ = vol.region.window().fence(pending);

        // Stores to a faulted page are lost. Its records stay live for a recovery
        // that can access the page again.
        if vol.region.faults() != faults {
            return Err(failed_while_mounting(&vol.region));
        }
        let super_state = SuperState::new(info.dynamic, info.fixed);
        if !read_only || replay.records > 0 {
            // One store makes every record dead. Until it is durable, the next
            // recovery replays the same records.
            let word = seal(vol.geo.seed, newest);
            super_state.mounted(vol.medium(), word, options.clock.now().sec, !read_only)?;
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
            damage: crate::fs::engine::damage::Damage::default(),
            quiet: AtomicBool::new(read_only),
            open: OpenState::new(),
            handles: AtomicUsize::new(0),
            tick: AtomicI64::new(0),
            atime: AtimeRule::new(&options),
            report: RecoveryReport {
                was_clean: info.is_clean(),
                records: replay.records,
                torn: replay.torn,
                damage: Vec::new(),
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
                Damage::InodeField,
                "the root directory",
                "it is not a directory",
            ));
        }
        drop(root);
        let mut damage = replay.damage;
        if engine.report.used_copy {
            let what = "the first superblock is damaged; its copy was used";
            damage.push((Damage::SuperblockDamaged, what.into()));
        }
        let orphans = match engine.load_orphans() {
            // Unlinked inodes stay allocated; operations that need a slot fail.
            Err(e @ Error::Corrupt { .. }) => {
                engine.note_damage(&e);
                Vec::new()
            }
            found => found?,
        };
        engine.report.orphans = orphans.len();
        engine.report.time = start.elapsed();
        for (kind, what) in &damage {
            engine.note_damage(&Error::corrupt(*kind, "the journal", what));
        }
        engine.report.damage = damage.into_iter().map(|(_, what)| what).collect();
        // Before any other operation can change these files.
        let (cut, orphans): (Vec<_>, Vec<_>) = orphans
            .into_iter()
            .partition(|&(ino, slot)| engine.claim_orphan(ino, slot));
        let engine = Arc::new(engine);
        let unfinished = Unfinished { orphans, cut };
        let fs = Fs {
            engine,
            background: Mutex::new(None),
            unfinished: Mutex::new(unfinished),
        };
        if !read_only {
            fs.fill_reserve()?;
            crate::fs::engine::room::warn_if_host_is_short(&fs.vol.region);
            fs.vol.region.backend().advise_random();
            fs.start_work(&mut fs.background.lock())?;
        }
        Ok(fs)
    }

    /// Starts the own work of a writable mount: finishes unlinks and truncations
    /// that a crash interrupted, and writes lazy times.
    fn start_work(&self, background: &mut Option<Background>) -> Result<()> {
        let Unfinished { orphans, cut } = std::mem::take(&mut *self.unfinished.lock());
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

    /// Makes a read-only mount writable, as `remount,rw` does. The records that the
    /// mount replayed are on the medium already. This call starts to free orphans
    /// and to finish truncations that a crash interrupted. Does nothing if the mount
    /// is writable.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::{HeapBackend, Region};
    /// # use pramfs::{inode::{Credentials, Fs, Ino}, MountOptions};
    /// # let region = Region::new("example", HeapBackend::boxed(4 << 20));
    /// # format(&region, &FormatOptions::default())?;
    /// let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    /// let fs = Fs::open(region, read_only)?;
    /// assert!(fs.create(&Credentials::ROOT, Ino::ROOT, b"a", 0o644).is_err());
    /// fs.make_writable()?;
    /// fs.create(&Credentials::ROOT, Ino::ROOT, b"a", 0o644)?;
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    ///
    /// # Errors
    /// The mount stays read-only after any of these:
    /// [`Error::ReadOnly`] if the region is open for reading only or damage was
    /// found; [`Error::NotMountable`] for a format that this version can only read;
    /// EBUSY if another process has the region open.
    pub fn make_writable(&self) -> Result<()> {
        if !self.open.is_open() {
            return Err(self.ended());
        }
        let mut background = self.background.lock();
        if self.become_writable()? {
            // The mount is writable now. Even without a reserve it finishes the
            // orphans and starts the timer.
            if let Err(e) = self.fill_reserve() {
                tracing::warn!("could not reserve blocks for removals: {e}");
            }
            self.start_work(&mut background)?;
        }
        Ok(())
    }

    /// Returns the part that operations, handles and threads share.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl Engine {
    /// Makes the mount writable; true if it was read-only.
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
        crate::fs::engine::room::take_fixed_room(self.vol.medium())?;
        let faults = region.faults();
        crate::fs::engine::superblock::finish_label(region, &self.info)?;
        // Nothing has been committed since the replay, so this is the checkpoint of
        // the replay. It is fenced before the first change.
        let word = seal(self.vol.geo.seed, self.vol.journal.last_lsn());
        self.super_state
            .mounted(self.vol.medium(), word, self.now().sec, true)?;
        if region.faults() != faults {
            return Err(failed_while_mounting(region));
        }
        region.backend().advise_random();
        self.quiet.store(false, Ordering::Relaxed);
        self.read_only.store(false, Ordering::Relaxed);
        Ok(true)
    }
}

fn failed_while_mounting(region: &Region) -> Error {
    Error::Io(format!(
        "{} failed while it was mounted",
        region.info().name
    ))
}

/// Reads the block bitmap before the journal is replayed. Only the mutant
/// `TruncateBeforeReplay` uses this stale state.
fn stale_free_blocks(medium: Medium<'_>) -> Result<BitmapSet> {
    let geo = medium.geo;
    let groups = internal(medium, BLOCK_GROUPS_OFFSET, Ino::BLOCK_GROUPS)?;
    let set = BitmapSet::new(BitmapKind::Blocks, geo.blocks, geo, map_of(&groups).root());
    for group in 0..set.groups() {
        set.is_made(medium, group)?;
    }
    Ok(set)
}
