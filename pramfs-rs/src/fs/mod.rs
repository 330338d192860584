//! The file system on inode numbers.
//!
//! Every operation takes `&self`; threads may call operations concurrently. An
//! operation that changes metadata is atomic and durable when it returns; see
//! `docs/semantics.md` for data.
//!
//! The folders, from the lowest to the highest. A folder uses only those above it in this
//! list; the test `fs_has_no_circles` checks that.
//!
//! | folder | holds |
//! |---|---|
//! | `policy` | rules that need no file system: names, permissions of chattr, suid, times |
//! | `cache` | caches that are read without a lock |
//! | `inode` | an inode in memory: its state, its lock, the table, references |
//! | `engine` | the state of a mount, the frame of an operation, records, damage |
//! | `steps` | steps that several operations share, on locked inodes |
//! | `ops` | the POSIX operations, one file for each family |
//! | `mount` | mounting, the timer, unmounting |
//!
//! Each lock has a rank, and is taken in the order of
//! [`Rank`](pramfs_medium::sync::rank::Rank).

mod cache;
mod engine;
mod inode;
mod inode_ref;
mod mount;
mod ops;
mod options;
mod policy;
mod steps;

pub(crate) use cache::append_cursor::AppendCursor;
pub(crate) use cache::extent_cache::ExtentCache;
pub(crate) use engine::Need;
pub(crate) use inode::Inode;
pub(crate) use inode::refs::By;
pub(crate) use inode::state::{InodeState, check_file};
pub(crate) use mount::close::Handle;

pub use engine::Engine;
pub use engine::damage::{Repeats, Writability};
pub use engine::report::RecoveryReport;
pub use inode_ref::{Holding, InodeRef, InodeRefs};
pub use mount::Fs;
pub use mount::close::CloseError;
pub use ops::readdir::Taken;
pub use ops::statfs::MemoryUse;
pub use options::{AtimePolicy, Clock, ErrorPolicy, MountOptions, SystemClock};
pub use readdir::Taken;
pub use statfs::MemoryUse;

use icache::InodeCache;
use inode::Inode;
use inode_table::InodeTable;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::media::SuperblockInfo;
#[cfg(any(test, feature = "testing"))]
use pramfs_medium::pmem::Region;
use pramfs_medium::pmem::{OpenState, PmemError, RegionView};
use pramfs_medium::sync::Mutex;
use pramfs_medium::types::{Attr, Ino};
use pramfs_medium::volume::Volume;
use refs::Refs;
use superblock::SuperState;

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
    background: Mutex<Option<background::Background>>,
    unfinished: Mutex<mount::Unfinished>,
}

impl std::ops::Deref for Fs {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

/// The part of [`Fs`] that its threads and handles share. Operations are its
/// methods.
#[derive(Debug)]
pub struct Engine {
    pub(crate) vol: Volume,
    pub(crate) info: SuperblockInfo,
    pub(crate) options: MountOptions,
    pub(crate) cache: InodeCache,
    pub(crate) refs: Refs,
    /// For each lane, the directory that its threads changed last.
    last_dirs: Box<[CachePadded<LastDirCache>]>,
    table: InodeTable,
    super_state: SuperState,
    /// Shared by every operation, exclusive to freeze.
    gate: ShardedLock<()>,
    /// Locked while a directory changes its parent.
    rename: Mutex<()>,
    orphans: Mutex<BTreeSet<u64>>,
    /// Orphans without references that wait to be freed in a batch.
    forgotten: Mutex<Vec<Ino>>,
    /// Locked while a batch is freed.
    freeing: Mutex<()>,
    lazy: Mutex<Vec<Ino>>,
    /// Refuses changes: the mount is read-only, or found damage.
    read_only: AtomicBool,
    /// Damage was found that forbids changes until the next mount.
    damaged: AtomicBool,
    /// The damage found so far.
    damage: damage::Damage,
    /// The mount is read-only by its options or because the region is. Not even
    /// an error is recorded on the medium.
    quiet: AtomicBool,
    /// Open until closed; never open in a forked child.
    pub(crate) open: OpenState,
    /// Open files and views.
    handles: AtomicUsize,
    /// Time of the last timer tick, seconds; 0 without a timer.
    tick: AtomicI64,
    atime: atime::AtimeRule,
    report: RecoveryReport,
}

/// A cached directory, see [`Engine::with_dir`].
type LastDirCache = Mutex<Option<Arc<Inode>>>;

/// The access that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Reads only.
    Read,
    /// Changes something.
    Write,
}

/// Fails the engine when an operation panics: the locks that it held may guard
/// incomplete changes.
struct FailOnPanic<'a>(&'a Engine);

impl FailOnPanic<'_> {
    /// The operation has ended without a panic. (`thread::panicking` would not do: a
    /// destructor that runs while a thread unwinds may call an operation, which succeeds.)
    #[inline]
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for FailOnPanic<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.vol.fail();
    }
}

impl Engine {
    /// Runs one operation. Refuses it on a failed file system, and a change on a
    /// read-only one. Returns EIO if the medium faulted meanwhile, and records
    /// damage. If a block has no room on the host, the operation
    /// [runs again](Self::retry_for_room).
    #[inline]
    pub(crate) fn op<T>(&self, need: Need, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        self.retry_for_room(|| self.attempt(need, &mut f))
    }

    #[inline]
    fn attempt<T>(&self, need: Need, f: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.open.is_open() {
            // A forked child stops here: threads that it does not have may hold
            // the locks.
            return Err(self.ended());
        }
        let _gate = self.gate.read().map_err(|_| self.ended())?;
        if !self.is_up() {
            return Err(self.ended());
        }
        if need == Need::Write && self.read_only.load(Ordering::Relaxed) {
            return Err(Error::ReadOnly(
                "the mount is read-only, or damage was found",
            ));
        }
        let faults = self.vol.region.faults_seen();
        let panic = FailOnPanic(self);
        let result = self.judge(f(), faults);
        panic.disarm();
        result
    }

    /// The result of an operation that began when `faults` had been seen.
    #[inline]
    fn judge<T>(&self, result: Result<T>, faults: u64) -> Result<T> {
        if self.vol.region.faults_seen() != faults {
            let e = Error::io(format!(
                "the medium of {} failed during an access",
                self.vol.region.info().name
            ));
            self.note_error(&e);
            return Err(e);
        }
        if self.vol.has_failed() && result.is_ok() {
            // A previous holder of a lock may have failed. This result may rest
            // on its incomplete change.
            return Err(self.ended());
        }
        match &result {
            Err(e @ Error::Corrupt { .. }) => self.note_damage(e),
            // The error policy was applied when the loss was found.
            Err(Error::Lost { ino, offset }) => self.note_lost(*ino, *offset),
            // A page that failed earlier.
            Err(e @ Error::Pmem(PmemError::Faulted { .. })) => self.note_error(e),
            _ => {}
        }
        result
    }

    /// As [`op`](Self::op), for an operation that takes a reference to the inode it
    /// returns, unless `by` is `None`. If it fails, the reference is released: a fault of
    /// the medium is detected only at its end.
    #[inline]
    pub(crate) fn op_with_ref(
        &self,
        need: Need,
        by: Option<By>,
        mut f: impl FnMut() -> Result<Attr>,
    ) -> Result<Attr> {
        let Some(by) = by else {
            return self.op(need, f);
        };
        let mut taken = None;
        let result = self.op(need, || {
            let attr = f()?;
            taken = Some(attr.ino);
            Ok(attr)
        });
        if let Some(ino) = taken.filter(|_| result.is_err()) {
            self.release_ref(ino, 1, by);
        }
        result
    }

    /// Returns an inode by number, from memory or from the medium.
    #[inline]
    pub(crate) fn iget(&self, ino: Ino) -> Result<Arc<Inode>> {
        if let Some(inode) = self.cache.get(ino) {
            return Ok(inode);
        }
        self.iget_slow(ino)
    }

    #[cold]
    fn iget_slow(&self, ino: Ino) -> Result<Arc<Inode>> {
        match self.load(ino) {
            // mkfs creates these.
            Err(Error::Stale(_)) if ino < Ino::FIRST_FREE => Err(Error::corrupt(
                Damage::ReservedInodeFree,
                ino,
                "the file system has no such inode, and needs it",
            )),
            found => found,
        }
    }

    fn load(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.cache.get_or_load(&self.vol, ino, || {
            // The bit on the medium counts. In memory it is also set for numbers
            // that are allocated but not committed, or freed by a record that is
            // not dead.
            let exists = self.vol.inodes.is_set_at_home(self.vol.medium(), ino.0);
            if let Ok(false) = exists {
                return Err(Error::Stale(ino));
            }
            // The table grows before the bit is set, so a set bit without a block
            // is damage.
            let home = match self.table.home(&self.vol, ino) {
                Err(Error::Stale(_)) if matches!(exists, Ok(true)) => {
                    return Err(Error::corrupt(
                        Damage::InodeMissing,
                        ino,
                        "it is in use, but the inode table has no block for it",
                    ));
                }
                home => home?,
            };
            let d = Inode::load(&self.vol, ino, home)?;
            if let Err(e) = exists {
                // The bitmap is damaged. A valid inode that has names can still be
                // used; only its bit cannot be changed.
                if d.nlink == 0 {
                    return Err(e);
                }
                if ino >= Ino::FIRST_FREE {
                    self.note_damage(&e);
                }
            }
            Ok(Inode::new(ino, home, d))
        })
    }

    /// As [`iget`](Self::iget), for a number from a caller: internal inodes are
    /// stale.
    #[inline]
    pub(crate) fn iget_user(&self, ino: Ino) -> Result<Arc<Inode>> {
        if ino < Ino::FIRST_FREE && ino != Ino::ROOT {
            return Err(Error::Stale(ino));
        }
        self.iget(ino)
    }

    /// Runs a change of a directory. Reuses the directory that this lane changed
    /// last, which takes two atomic read-modify-writes where the inode cache takes
    /// four. The cached `Arc` prevents eviction, not deletion, hence the check for
    /// `Stale`.
    ///
    /// # Errors
    /// Those of `change`, and of finding the directory.
    pub(crate) fn with_dir<T>(
        &self,
        parent: Ino,
        change: impl Fn(&Arc<Inode>) -> Result<T>,
    ) -> Result<T> {
        let last = &self.last_dirs[self.vol.journal.thread_lane() as usize];
        // Never waits: if another thread of this lane holds it, the inode cache is
        // used instead.
        let mut last = last.try_lock();
        let cached = last.as_mut().and_then(|last| last.take());
        if let Some(dir) = cached.filter(|d| d.ino == parent) {
            let done = change(&dir);
            // If the cached directory was deleted, another inode may have its number.
            if !matches!(&done, Err(Error::Stale(ino)) if *ino == parent) {
                dir.note_use();
                if let Some(last) = &mut last {
                    **last = Some(dir);
                }
                return done;
            }
        }
        let dir = self.iget_user(parent)?;
        let done = change(&dir);
        if let Some(last) = &mut last {
            **last = Some(dir);
        }
        done
    }

    /// Whether the file system is open and has not failed. A result that was read
    /// from the caches before this call is valid if it returns true.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        !self.vol.has_failed() && self.open.is_open()
    }

    /// The error of an operation on a file system that is closed or has failed.
    #[cold]
    pub(crate) fn ended(&self) -> Error {
        Error::io(if self.open.is_inherited() {
            "the file system was opened before this process was forked; only the process that opened it can use it".to_owned()
        } else {
            "the file system has failed or is closed; mount it again".into()
        })
    }

    /// The time of this operation.
    #[inline]
    pub(crate) fn now(&self) -> pramfs_medium::types::Time {
        self.options.clock.now()
    }

    /// Stores the current second for readers that need only an approximate time.
    /// Only the timer calls this, since it must be repeated.
    fn note_time(&self) {
        let sec = self.now().sec;
        self.tick.store(sec, Ordering::Relaxed);
        self.atime.set_threshold(sec);
    }

    /// The approximate time, seconds: that of the last timer tick.
    #[inline]
    fn about_now(&self) -> i64 {
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
        if !self.open.is_open() {
            return Err(self.ended());
        }
        // Holds off `make_writable`, which takes the gate exclusively.
        let _gate = self.gate.read().map_err(|_| self.ended())?;
        if !self.is_up() {
            return Err(self.ended());
        }
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
            self.lazy.lock().push(inode.ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Credentials;
    use pramfs_medium::format::{FormatOptions, format};
    use pramfs_medium::journal::set_thread_lane;
    use pramfs_medium::pmem::HeapBackend;

    #[test]
    fn dir_cache_detects_inode_reuse() {
        let region = Region::new("dir cache", HeapBackend::boxed(16 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options).unwrap();
        assert!(
            fs.vol.geo.lanes > 1,
            "both threads would share one cached directory"
        );
        let ctx = Credentials::ROOT;
        set_thread_lane(0);
        let old = fs.mkdir(&ctx, Ino::ROOT, b"old", 0o755).unwrap();
        fs.create(&ctx, old.ino, b"file", 0o644).unwrap();
        fs.unlink(old.ino, b"file").unwrap();
        let elsewhere = |f: &(dyn Fn() -> Ino + Sync)| {
            std::thread::scope(|s| {
                s.spawn(|| {
                    set_thread_lane(1);
                    f()
                })
                .join()
                .unwrap()
            })
        };
        let new = elsewhere(&|| {
            fs.rmdir(Ino::ROOT, b"old").unwrap();
            fs.vol.retire_pending().unwrap();
            fs.mkdir(&ctx, Ino::ROOT, b"new", 0o755).unwrap().ino
        });
        assert_eq!(new, old.ino, "the inode number was not reused");
        let file = fs.create(&ctx, new, b"file", 0o644).unwrap();
        assert_eq!(fs.lookup(new, b"file").unwrap().ino, file.ino);
        fs.unlink(new, b"file").unwrap();
        elsewhere(&|| {
            fs.rmdir(Ino::ROOT, b"new").unwrap();
            new
        });
        let late = fs.create(&ctx, new, b"file", 0o644);
        assert!(matches!(late, Err(Error::Stale(_))), "{late:?}");
        fs.close().unwrap();
    }
}
