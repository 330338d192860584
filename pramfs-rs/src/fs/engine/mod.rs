//! The state of a mounted file system, and the services that every operation needs.
//!
//! | file | serves |
//! |---|---|
//! | [`op`] | the frame of an operation: the gate, faults, damage |
//! | [`iget`] | inodes by number |
//! | [`change`] | edits of inodes, and the commit of their record |
//! | [`room`] | room on the host |
//! | [`damage`], [`superblock`] | log messages, marks on the medium, the error policy |
//! | [`appended`] | what holders of leases have appended, before anybody looks |
//! | [`completeness`] | telling holes from lost pointers |
//! | [`report`] | the findings of a mount |
//!
//! Invariant: an operation holds the gate shared, and its changes become visible only
//! after the commit of their record. The operations themselves are in `ops`, the steps
//! that they share in `steps`.

mod appended;
pub(crate) mod change;
pub(crate) mod completeness;
pub(crate) mod damage;
mod iget;
mod op;
pub(crate) mod report;
pub(crate) mod room;
pub(crate) mod superblock;

use pramfs_medium::pmem::RegionAccess as _;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam::utils::CachePadded;

use crate::fs::inode::Inode;
use crate::fs::inode::cache::InodeCache;
use crate::fs::inode::leases::{HeldLease, LeaseWatch};
use crate::fs::inode::mapped::MappedFiles;
use crate::fs::inode::marks::Marks;
use crate::fs::inode::refs::Refs;
use crate::fs::inode::table::InodeTable;
use crate::fs::options::MountOptions;
use crate::fs::policy::atime::AtimeRule;
use crate::fs::survivor::references::KeptReferences;
use damage::Damage;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::journal::LastRecord;
use pramfs_medium::media::SuperblockInfo;
use pramfs_medium::media::features::{ATOMIC_DATA, RANGED_MARKS};
#[cfg(any(test, feature = "testing"))]
use pramfs_medium::pmem::Region;
use pramfs_medium::pmem::{OpenState, RegionView};
use pramfs_medium::sync::{Mutex, ShardedLock, ShardedLockReadGuard, rank};
use pramfs_medium::types::{Ino, Time};
use pramfs_medium::volume::Volume;
use report::RecoveryReport;
use superblock::SuperState;

/// The part of [`Fs`](crate::inode::Fs) that its threads and handles share. Operations are
/// its methods.
#[derive(Debug)]
pub struct Engine {
    pub(crate) vol: Volume,
    pub(crate) info: SuperblockInfo,
    pub(crate) options: MountOptions,
    pub(crate) cache: InodeCache,
    pub(crate) refs: Refs,
    /// For each lane, the directory that its threads changed last.
    pub(crate) last_dirs: Box<[CachePadded<LastDirCache>]>,
    pub(crate) table: InodeTable,
    pub(crate) super_state: SuperState,
    /// Shared by every operation, exclusive to freeze.
    pub(crate) gate: ShardedLock<(), rank::Gate>,
    /// Locked while the file system grows.
    pub(crate) growing: Mutex<(), rank::Growing>,
    /// The last record that made a table of group descriptors longer.
    pub(crate) group_tables: LastRecord,
    /// Locked while a directory changes its parent.
    pub(crate) rename: Mutex<(), rank::Rename>,
    pub(crate) orphans: Mutex<BTreeSet<u64>, rank::Leaf>,
    /// Orphans without references that wait to be freed in a batch.
    pub(crate) forgotten: Mutex<Vec<Ino>, rank::Leaf>,
    /// Locked while a batch is freed.
    pub(crate) freeing: Mutex<(), rank::Freeing>,
    pub(crate) lazy: Mutex<Vec<Ino>, rank::Leaf>,
    /// The leases of this mount, by slot.
    pub(crate) leases: Mutex<BTreeMap<u32, HeldLease>, rank::Leaf>,
    /// Watches the leases, without locks.
    pub(crate) lease_watch: OnceLock<LeaseWatch>,
    /// A process holds a lease whose slot is damaged.
    pub(crate) has_unknown_lease: AtomicBool,
    /// The feature `atomic_data` is durable.
    pub(crate) uses_copies: AtomicBool,
    /// The feature `ranged_marks` is durable.
    pub(crate) uses_ranged_marks: AtomicBool,
    /// Files of which data sums do not hold.
    pub(crate) marks: Marks,
    /// Files that others store to without records.
    pub(crate) mapped: MappedFiles,
    /// Refuses changes: the mount is read-only, or found damage.
    pub(crate) read_only: AtomicBool,
    /// Damage was found that forbids changes until the next mount.
    pub(crate) damaged: AtomicBool,
    /// The damage found so far.
    pub(crate) damage: Damage,
    /// The mount is read-only by its options or because the region is. Not even
    /// an error is recorded on the medium.
    pub(crate) quiet: AtomicBool,
    /// Open until closed; never open in a forked child.
    pub(crate) open: OpenState,
    /// Open files and views.
    pub(crate) handles: AtomicUsize,
    /// Time of the last timer tick, seconds; 0 without a timer.
    pub(crate) tick: AtomicI64,
    pub(crate) atime: AtimeRule,
    pub(crate) report: RecoveryReport,
}

/// A cached directory, see [`Engine::with_dir`].
pub(crate) type LastDirCache = Mutex<Option<Arc<Inode>>, rank::LastDirectory>;

/// The access that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Reads only.
    Read,
    /// Changes something.
    Write,
}

impl Engine {
    /// Creates the engine of a recovered volume.
    pub(crate) fn new(
        vol: Volume,
        table: InodeTable,
        super_state: SuperState,
        info: SuperblockInfo,
        report: RecoveryReport,
        options: MountOptions,
        read_only: bool,
    ) -> Engine {
        // A mark of a whole file has no feature.
        let has_ranges = info.fixed.ro_compat & RANGED_MARKS != 0;
        let may_have_marks = vol.geo.data_sums && (has_ranges || !report.was_clean);
        Engine {
            uses_copies: AtomicBool::new(info.fixed.incompat & ATOMIC_DATA != 0),
            uses_ranged_marks: AtomicBool::new(has_ranges),
            cache: InodeCache::new(options.cache_bytes, vol.geo.hash_keys.0),
            refs: Refs::new(
                options
                    .survivor
                    .clone()
                    .map(|kept| kept as Arc<dyn KeptReferences>),
            ),
            last_dirs: (0..vol.geo.lanes).map(|_| Default::default()).collect(),
            table,
            super_state,
            gate: ShardedLock::new(()),
            growing: Mutex::new(()),
            group_tables: LastRecord::default(),
            rename: Mutex::new(()),
            orphans: Mutex::new(BTreeSet::new()),
            forgotten: Mutex::new(Vec::new()),
            freeing: Mutex::new(()),
            lazy: Mutex::new(Vec::new()),
            leases: Mutex::default(),
            lease_watch: OnceLock::new(),
            has_unknown_lease: AtomicBool::new(false),
            marks: Marks::new(may_have_marks),
            mapped: MappedFiles::default(),
            read_only: AtomicBool::new(read_only),
            damaged: AtomicBool::new(false),
            damage: Damage::default(),
            quiet: AtomicBool::new(read_only),
            open: OpenState::new(),
            handles: AtomicUsize::new(0),
            tick: AtomicI64::new(0),
            atime: AtimeRule::new(&options),
            report,
            info,
            options,
            vol,
        }
    }

    /// Whether the file system is open and has not failed. A result that was read
    /// from the caches before this call is valid if it returns true.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        !self.vol.has_failed() && self.open.is_open()
    }

    /// Passes the gate. Fails if the file system is closed or has failed.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Result<ShardedLockReadGuard<'_, ()>> {
        if !self.open.is_open() {
            // A forked child stops here: threads that it does not have may hold
            // the locks.
            return Err(self.ended());
        }
        let gate = self.gate.read().map_err(|_| self.ended())?;
        if !self.is_up() {
            return Err(self.ended());
        }
        Ok(gate)
    }

    /// The error of an operation on a file system that is closed or has failed.
    #[cold]
    pub(crate) fn ended(&self) -> Error {
        Error::io(if self.open.is_inherited() {
            "the file system was opened before this process was forked; only the process that opened it can use it".to_owned()
        } else {
            "the file system has failed or is closed; mount it again".to_owned()
        })
    }

    /// The time of this operation.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        self.options.clock.now()
    }

    /// Stores the current second for readers that need only an approximate time.
    /// Only the timer calls this, since it must be repeated.
    pub(crate) fn note_time(&self) {
        let sec = self.now().sec;
        self.tick.store(sec, Ordering::Relaxed);
        self.atime.set_threshold(sec);
    }

    /// The approximate time, seconds: that of the last timer tick.
    #[inline]
    pub(crate) fn about_now(&self) -> i64 {
        match self.tick.load(Ordering::Relaxed) {
            0 => self.now().sec,
            sec => sec,
        }
    }

    /// Returns the mount options.
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Returns a read-only view of the region. A store that bypasses the engine
    /// would be damage.
    ///
    /// ```
    /// let _ = |engine: &pramfs::inode::Engine| engine.region().faults();
    /// ```
    ///
    /// No other way leads to the region of a mounted file system, not even through
    /// `pramfs-medium`:
    ///
    /// ```compile_fail
    /// use pramfs_medium::pmem::RegionOwner;
    /// let _ = |engine: &pramfs::inode::Engine| RegionOwner::region(engine).faults();
    /// ```
    pub fn region(&self) -> RegionView<'_> {
        RegionView::from(&self.vol.region)
    }

    /// Returns the region itself, for tests that damage it.
    #[cfg(any(test, feature = "testing"))]
    pub fn region_to_damage(&self) -> &Region {
        &self.vol.region
    }

    /// Lets other processes open the region for reading. The mount must have been
    /// read-only from the start; see
    /// [`Region::lock_shared`](pramfs_medium::pmem::Region::lock_shared).
    ///
    /// # Errors
    /// As there; [`Error::Invalid`] for a mount that stores or has stored.
    pub fn lock_shared(&self) -> Result<()> {
        // Holds off `make_writable`, which takes the gate exclusively.
        let _gate = self.enter()?;
        if !self.quiet.load(Ordering::Relaxed) {
            return Err(Error::Invalid(
                "only a mount that was read-only from the start can share its region",
            ));
        }
        Ok(self.vol.region.lock_shared()?)
    }

    /// Returns the superblock as read at mount.
    pub fn superblock(&self) -> &SuperblockInfo {
        &self.info
    }

    /// Returns what recovery found and did at mount.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.report
    }

    /// Tells whether changes are refused: by a read-only mount, or after damage.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// Lists a locked inode whose times are newer in memory than on the medium.
    #[inline]
    pub(crate) fn note_lazy(&self, inode: &Inode) {
        // Loaded first, because an exchange waits for earlier stores. `write_lazy_all`
        // clears the flag before it locks the inode. If the flag is set here, under
        // the lock, `write_lazy_all` still has to take the lock, and sees these times.
        if !inode.listed.load(Ordering::Relaxed) && !inode.listed.swap(true, Ordering::Relaxed) {
            let mut list = self.lazy.lock();
            list.push(inode.ino);
            if let Some(survivor) = &self.options.survivor {
                survivor.list_lazy(inode.ino);
            }
        }
    }
}
