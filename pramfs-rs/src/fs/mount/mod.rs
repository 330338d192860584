//! Mounting.
//!
//! Crash safety needs this order ([`Fs::open`]):
//!
//! 1. Read the superblock, and take room for the blocks that are never allocated.
//! 2. Recover (`recover.rs`): replay the journal, then make its records dead.
//!    Then list the blocks that the kernel names as bad: no block is allocated before that.
//! 3. Read the lease table, and adopt its leases. No block of theirs is freed from here on.
//! 4. Read the orphan table, and assign its slots to their inodes. No operation runs before
//!    that, so none can give such an inode a second slot.
//! 5. Close the append windows: the sizes of their files count what was appended.
//! 6. If the mount is writable, end the leases that no process holds any more, fill the
//!    reserve and start the background work.
//!
//! Unmounting is in [`close`](crate::fs::mount::close), the timer in [`background`].
//!
//! The duration of a mount depends on the number of lanes, of groups that live
//! records touch, and of orphans. It does not depend on the number of files, the
//! size, or how the last mount ended.

mod background;
pub(crate) mod close;
mod recover;
mod scrub;
pub(crate) mod snapshot;

use pramfs_medium::pmem::RegionAccess as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::fs::Engine;
use crate::fs::engine::room::{take_fixed_room, warn_if_host_is_short};
use crate::fs::engine::superblock::finish_change_of_fixed;
use crate::fs::options::MountOptions;
use crate::fs::scrub::task::ScrubTask;
use crate::fs::steps::bad_blocks::avoid_bad_ranges;
use crate::fs::steps::resize::Claimed;
use background::{Background, Unfinished};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::media::checksum::seal;
use pramfs_medium::media::probe::check_features;
use pramfs_medium::media::retired::Session;
use pramfs_medium::media::{Medium, probe_superblock};
use pramfs_medium::pmem::Region;
use pramfs_medium::sync::{Mutex, rank};
use pramfs_medium::types::Ino;
use recover::{fail_if_faulted, recover};
use snapshot::SnapshotState;

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
    /// The background thread of a writable mount. Locked while the mount becomes writable,
    /// and while it ends.
    background: Mutex<Option<Background>, rank::Mount>,
    unfinished: Mutex<Unfinished, rank::Leaf>,
    /// The last scrub.
    scrub: Mutex<Option<ScrubTask>, rank::Mount>,
    /// The last snapshot.
    snapshot: Mutex<Weak<SnapshotState>, rank::Mount>,
}

impl std::ops::Deref for Fs {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        &self.engine
    }
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
        let bad = avoid_bad_ranges(&region, 0);
        if read_only && !region.info().read_only && !info.is_clean() {
            tracing::info!("replaying the journal before the read-only mount");
        }
        if !(region.info().read_only || read_only && info.is_clean()) {
            let geo = info.geometry();
            take_fixed_room(Medium {
                region: &region,
                geo: &geo,
            })?;
        }
        if let Some(survivor) = &options.survivor {
            let prepared = survivor.prepare(info.geometry().inodes_max());
            prepared
                .map_err(|e| Error::io_failed("cannot count references for a later server", e))?;
        }
        let (mut engine, damage) = recover(region, info, options, read_only)?;
        // Before anything is allocated, unless damage is to keep the mount from changes.
        engine.take_out_known(&bad, !read_only && damage.is_empty());
        engine.check_root()?;
        let blind = engine.adopt_leases()?;
        let orphans = engine.read_orphans(damage, start)?;
        let unfinished = engine.claim_orphans(orphans);
        // Also of a read-only mount, which may become writable later.
        let read_only = engine.stop_changes_if(blind) || read_only;
        // Before anything past the end of a file is freed.
        engine.settle_windows(read_only || engine.is_read_only())?;
        if !read_only {
            engine.restore_times();
        }
        let fs = Fs {
            engine: Arc::new(engine),
            background: Mutex::new(None),
            unfinished: Mutex::new(unfinished),
            scrub: Mutex::new(None),
            snapshot: Mutex::new(Weak::new()),
        };
        if !read_only {
            if !fs.is_read_only() {
                fs.end_leases_of_last_mount();
            }
            fs.fill_reserve()?;
            warn_if_host_is_short(&fs.vol.region);
            fs.vol.region.backend().advise_random();
            fs.start_work(&mut fs.background.lock())?;
        }
        Ok(fs)
    }

    /// Starts the background work of a writable mount: finishes the removals and the
    /// truncations that a crash interrupted, and starts the timer. Without a timer, finishes
    /// them before it returns.
    fn start_work(&self, background: &mut Option<Background>) -> Result<()> {
        let unfinished = std::mem::take(&mut *self.unfinished.lock());
        if self.options.background {
            *background = Some(Background::start(&self.engine, unfinished)?);
        } else {
            self.finish_work(unfinished, || false);
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
            self.end_leases_of_last_mount();
            // The mount is writable now. Even without a reserve, it frees the orphans
            // and starts the timer.
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
    /// Keeps the mount read-only if a process maps blocks that a damaged slot of the lease
    /// table does not tell.
    fn stop_changes_if(&self, blind: bool) -> bool {
        if blind {
            tracing::error!(
                "a process maps blocks of this file system, and the lease that says which is damaged: the mount is read-only until that process has ended and fsck.pramfs has run"
            );
            self.damaged.store(true, Ordering::Relaxed);
            self.read_only.store(true, Ordering::Relaxed);
            self.has_unknown_lease.store(true, Ordering::Relaxed);
        }
        blind
    }

    /// Checks that the root directory is readable, and a directory.
    fn check_root(&self) -> Result<()> {
        let root = self.iget(Ino::ROOT)?;
        if !root.state.read().is_dir() {
            return Err(Error::corrupt(
                Damage::InodeField,
                "the root directory",
                "it is not a directory",
            ));
        }
        Ok(())
    }

    /// Reads the orphan table, completes the report, and notes the damage that the mount
    /// has found. Returns the orphans with their slots.
    fn read_orphans(
        &mut self,
        mut damage: Vec<(Damage, String)>,
        start: Instant,
    ) -> Result<Vec<(Ino, u32)>> {
        if self.report.used_copy {
            let what = "the first superblock is damaged; its copy was used";
            damage.push((Damage::SuperblockDamaged, what.into()));
        }
        let orphans = match self.load_orphans() {
            // Unlinked inodes stay allocated; operations that need a slot fail.
            Err(e @ Error::Corrupt { .. }) => {
                self.note_damage(&e);
                Vec::new()
            }
            found => found?,
        };
        self.report.orphans = orphans.len();
        self.report.time = start.elapsed();
        for (kind, what) in &damage {
            self.note_damage(&Error::corrupt(*kind, "the journal", what));
        }
        self.report.damage = damage.into_iter().map(|(_, what)| what).collect();
        Ok(orphans)
    }

    /// Assigns the slots of the orphan table to their inodes, before any other operation
    /// can change these inodes.
    fn claim_orphans(&self, orphans: Vec<(Ino, u32)>) -> Unfinished {
        let mut unfinished = Unfinished::default();
        for (ino, slot) in orphans {
            match self.claim_orphan(ino, slot) {
                Claimed::Orphan => unfinished.orphans.push((ino, slot)),
                Claimed::Cut => unfinished.cut.push((ino, slot)),
                Claimed::Held => {}
            }
        }
        unfinished
    }

    /// Makes the mount writable; true if it was read-only.
    fn become_writable(&self) -> Result<bool> {
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
        take_fixed_room(self.vol.medium())?;
        let faults = region.faults();
        // It may have changed since the mount: a label, a grow.
        let fixed = *self.super_state.fixed.lock();
        finish_change_of_fixed(region, self.info.from_copy, &fixed)?;
        // Nothing has been committed since the replay, so this is the checkpoint of
        // the replay. It is fenced before the first change.
        let checkpoint = self.vol.journal.last_lsn();
        let word = seal(self.vol.geo.seed, checkpoint);
        let mounts = (self.super_state).mounted(self.vol.medium(), word, self.now().sec, true)?;
        let session = Session { checkpoint, mounts };
        self.vol.journal.begin_copies(self.vol.medium(), session)?;
        fail_if_faulted(region, faults)?;
        self.quiet.store(false, Ordering::Relaxed);
        // Before any operation allocates or frees. As the kernel named them at the mount: a
        // server may open no file by now.
        self.take_out_known(&region.bad_ranges(), true);
        if self.damaged.load(Ordering::Relaxed) {
            return Err(Error::ReadOnly("damage was found"));
        }
        region.backend().advise_random();
        // The server before may have died between a change and its view words.
        if let Err(e) = self.show_leases() {
            self.note_error(&e);
        }
        self.read_only.store(false, Ordering::Relaxed);
        // No operation runs yet. A window that stays is merged when its file is needed.
        if let Err(e) = self.settle_windows(false) {
            self.note_error(&e);
        }
        Ok(true)
    }
}
