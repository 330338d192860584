//! The engine: POSIX operations on inode numbers.
//!
//! Every operation takes `&self` and may be called from many threads. An
//! operation that changes metadata is atomic and durable when it returns; see
//! `docs/semantics.md` for data. Each family has a file of its own.
//!
//! Locks, in the order in which they are taken: the gate (shared), the rename
//! lock (only for directories that move), inode cores in ascending order of
//! their numbers (out of order only by trying), shards of the inode cache, the
//! orphan table's core, the inode table, lanes, and groups of the bitmaps. The
//! last five are held only briefly. Under a lane nothing is waited for but
//! groups, and under those nothing at all.

mod acl;
mod append;
mod atime;
mod attr;
mod attr_cache;
mod background;
mod chattr;
mod close;
mod completeness;
mod copy;
#[cfg(test)]
mod copy_tests;
mod create;
mod damage;
mod dcache;
mod entries;
mod extent_cache;
mod extents;
mod fallocate;
#[cfg(test)]
mod file_tests;
mod icache;
pub(crate) mod inode;
mod inode_lock;
mod inode_ref;
mod inode_table;
mod link;
mod locks;
mod lookup;
mod lost;
mod mount;
mod names;
mod options;
mod orphan;
mod read;
mod readdir;
mod refs;
mod rename;
mod room;
mod seek;
mod statfs;
mod superblock;
mod symlink;
mod sync;
mod trim;
mod truncate;
mod unlink;
mod write;
mod write_source;
mod xattr;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use crossbeam::sync::ShardedLock;
use crossbeam::utils::CachePadded;

pub(crate) use append::AppendCursor;
pub(crate) use extent_cache::ExtentCache;
pub(crate) use read::check_file;
pub(crate) use refs::By;

pub use attr::InGroup;
pub use close::CloseError;
pub(crate) use close::Handle;
pub use damage::{Repeats, Writability};
pub use inode_ref::InodeRef;
pub use mount::RecoveryReport;
pub use options::{AtimePolicy, Clock, ErrorPolicy, MountOptions, SystemClock};
pub use readdir::Taken;
pub use statfs::MemoryUse;

use crate::error::{Error, Result};
use crate::media::SuperblockInfo;
#[cfg(any(test, feature = "testing"))]
use crate::pmem::Region;
use crate::pmem::{OpenState, PmemError, RegionView};
use crate::sync::Mutex;
use crate::types::{Attr, Ino};
use crate::volume::Volume;
use icache::InodeCache;
use inode::Inode;
use inode_table::InodeTable;
use refs::Refs;
use superblock::SuperState;

/// A mounted file system.
///
/// ```
/// use pramfs::format::{FormatOptions, format};
/// use pramfs::pmem::{HeapBackend, Region};
/// use pramfs::{inode::{Ctx, Fs, Ino}, MountOptions};
///
/// let region = Region::new("example", HeapBackend::boxed(4 << 20));
/// format(&region, &FormatOptions::default())?;
/// let fs = Fs::open(region, MountOptions::default())?;
/// let file = fs.create(&Ctx::default(), Ino::ROOT, b"hello", 0o644)?;
/// fs.write(file.ino, 0, b"world")?;
/// assert_eq!(fs.getattr(file.ino)?.size, 5);
/// fs.close()?;
/// # Ok::<(), pramfs::Error>(())
/// ```
#[derive(Debug)]
pub struct Fs {
    engine: Arc<Engine>,
    /// What a mount that writes has; taken to become one, and to end.
    background: Mutex<Option<background::Background>>,
    left: Mutex<mount::Left>,
}

impl std::ops::Deref for Fs {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

/// The part of [`Fs`] that its threads and handles share; every operation is a
/// method of it.
#[derive(Debug)]
pub struct Engine {
    pub(crate) vol: Volume,
    pub(crate) info: SuperblockInfo,
    pub(crate) options: MountOptions,
    pub(crate) cache: InodeCache,
    pub(crate) refs: Refs,
    /// For each lane the directory that its threads have changed last.
    last_dirs: Box<[CachePadded<LastDirCache>]>,
    table: InodeTable,
    super_state: SuperState,
    /// Shared by every operation, exclusive to freeze.
    gate: ShardedLock<()>,
    /// Locked while a directory changes its parent.
    rename: Mutex<()>,
    orphans: Mutex<BTreeSet<u64>>,
    /// Those of them that nobody holds and that are to be freed with others.
    forgotten: Mutex<Vec<Ino>>,
    /// Locked while they are freed.
    freeing: Mutex<()>,
    lazy: Mutex<Vec<Ino>>,
    /// Nothing is changed: the mount is read-only, or has met damage.
    read_only: AtomicBool,
    /// Damage was met that forbids changes until the next mount.
    damaged: AtomicBool,
    /// What of it is remembered.
    damage: damage::Damage,
    /// The mount is read-only because it was asked to be, or because the region
    /// is: not even an error is noted on the medium.
    quiet: AtomicBool,
    /// Until it is closed, and not in a forked child.
    pub(crate) open: OpenState,
    /// Open files and views.
    handles: AtomicUsize,
    /// The second that it was when the timer came by; 0 without a timer.
    tick: AtomicI64,
    atime: atime::AtimeRule,
    report: RecoveryReport,
}

/// A directory at hand, see [`Engine::with_dir`].
type LastDirCache = Mutex<Option<Arc<Inode>>>;

/// What an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Reads only.
    Read,
    /// Changes something.
    Write,
}

/// Fails the engine when an operation panics: locks it held may guard halves.
struct FailOnPanic<'a>(&'a Engine);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.vol.fail();
        }
    }
}

impl Engine {
    /// Runs one operation: refuses it on a failed or read-only file system,
    /// answers EIO where the medium faulted under it, and notes damage.
    /// Where there was a block without room it runs [again](Self::in_turns).
    #[inline]
    pub(crate) fn op<T>(&self, need: Need, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        self.in_turns(|| self.attempt(need, &mut f))
    }

    #[inline]
    fn attempt<T>(&self, need: Need, f: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.open.is_open() {
            // Also keeps a forked child from locks of threads that it does not
            // have.
            return Err(self.ended());
        }
        let _gate = self.gate.read().map_err(|_| self.ended())?;
        let _panic = FailOnPanic(self);
        if !self.is_up() {
            return Err(self.ended());
        }
        if need == Need::Write && self.read_only.load(Ordering::Relaxed) {
            return Err(Error::ReadOnly("it was mounted so, or damage was found"));
        }
        let faults = self.vol.region.faults_seen();
        let result = f();
        if self.vol.region.faults_seen() != faults {
            let e = Error::Io(format!(
                "the medium of {} failed under an access",
                self.vol.region.info().name
            ));
            self.note_error(&e);
            return Err(e);
        }
        if self.vol.has_failed() && result.is_ok() {
            // By whoever had the lock before: what was seen or done since may
            // rest on half a change.
            return Err(self.ended());
        }
        match &result {
            Err(e @ Error::Corrupt { .. }) => self.note_damage(e),
            // What was lost was acted on when it was found.
            Err(Error::Lost { ino, offset }) => self.note_lost(*ino, *offset),
            // A page that has failed before.
            Err(e @ Error::Pmem(PmemError::Faulted { .. })) => self.note_error(e),
            _ => {}
        }
        result
    }

    /// As [`op`](Self::op), for what takes a reference to the inode that it
    /// shows: whoever gets an error instead has none.
    pub(crate) fn op_pinned(
        &self,
        need: Need,
        by: By,
        mut f: impl FnMut() -> Result<Attr>,
    ) -> Result<Attr> {
        let mut pinned = None;
        let result = self.op(need, || {
            let attr = f()?;
            pinned = Some(attr.ino);
            Ok(attr)
        });
        if let Some(ino) = pinned.filter(|_| result.is_err()) {
            self.release_ref(ino, 1, by);
        }
        result
    }

    /// The inode of a number, from memory or from the medium.
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
            // These exist from mkfs on.
            Err(Error::Stale(_)) if ino < Ino::FIRST_FREE => Err(Error::corrupt(
                ino.to_string(),
                "the file system has no such inode, and needs it",
            )),
            found => found,
        }
    }

    fn load(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.cache.get_or_load(&self.vol, ino, || {
            // The bit on the medium: in memory it is set also for numbers that
            // are taken and not committed, or freed and not dead.
            let exists = self
                .vol
                .inodes
                .is_set_at_home(&self.vol.region, &self.vol.geo, ino.0);
            if let Ok(false) = exists {
                return Err(Error::Stale(ino));
            }
            // The table grows before the bit is set.
            let home = match self.table.home(&self.vol, ino) {
                Err(Error::Stale(_)) if let Ok(true) = exists => {
                    return Err(Error::corrupt(
                        ino.to_string(),
                        "it is in use, and the inode table has no block for it",
                    ));
                }
                home => home?,
            };
            let d = Inode::load(&self.vol, ino, home)?;
            if let Err(e) = exists {
                // The bitmap is damaged. An inode that is whole and has names
                // can still be used; only its bit cannot be changed.
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

    /// As [`iget`](Self::iget), for a number that comes from a caller.
    #[inline]
    pub(crate) fn iget_user(&self, ino: Ino) -> Result<Arc<Inode>> {
        if ino < Ino::FIRST_FREE && ino != Ino::ROOT {
            return Err(Error::Stale(ino));
        }
        self.iget(ino)
    }

    /// Runs a change of a directory. The one of this lane's last change is at hand:
    /// to find an inode in the cache and to let go of it takes four locked
    /// instructions, where the lock of this takes two. It stays in the cache meanwhile, since
    /// that gives up nothing that somebody holds; but it may be gone.
    ///
    /// # Errors
    /// Those of `change`, and of finding the directory.
    pub(crate) fn with_dir<T>(
        &self,
        parent: Ino,
        change: impl Fn(&Arc<Inode>) -> Result<T>,
    ) -> Result<T> {
        let last = &self.last_dirs[self.vol.journal.thread_lane() as usize];
        // Nobody waits for it: who finds another thread of this lane at it does
        // without.
        let mut last = last.try_lock();
        let at_hand = last.as_mut().and_then(|last| last.take());
        if let Some(dir) = at_hand.filter(|d| d.ino == parent) {
            let done = change(&dir);
            // One that is gone may have left its number to another.
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

    /// Whether operations go on: what was found before this was asked could be
    /// had from the caches.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        !self.vol.has_failed() && self.open.is_open()
    }

    /// Why operations do not go on.
    #[cold]
    pub(crate) fn ended(&self) -> Error {
        Error::Io(if self.open.is_inherited() {
            "the file system was opened before this process was forked; only the process that opened it can use it".into()
        } else {
            "the file system has failed or is closed; mount it again".into()
        })
    }

    /// The time of this operation.
    #[inline]
    pub(crate) fn now(&self) -> crate::types::Time {
        self.options.clock.now()
    }

    /// Notes the second that it is, for those who need it about so. Only a timer
    /// does: it comes again.
    fn note_time(&self) {
        let sec = self.now().sec;
        self.tick.store(sec, Ordering::Relaxed);
        self.atime.draw_line(sec);
    }

    /// The second that it is, or was not long ago.
    #[inline]
    fn about_now(&self) -> i64 {
        match self.tick.load(Ordering::Relaxed) {
            0 => self.now().sec,
            sec => sec,
        }
    }

    /// The options it was mounted with.
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// The region, to be looked at: what is stored past the engine is damage.
    pub fn region(&self) -> RegionView<'_> {
        RegionView::from(&self.vol.region)
    }

    /// The region with all rights, for tests that damage it.
    #[cfg(any(test, feature = "testing"))]
    pub fn region_to_damage(&self) -> &Region {
        &self.vol.region
    }

    /// Lets others open the region for reading, of a mount that is read-only and has
    /// been so from the start; see
    /// [`Region::lock_shared`](crate::pmem::Region::lock_shared).
    ///
    /// # Errors
    /// As there; [`Error::Invalid`] of a mount that stores or has stored.
    pub fn lock_shared(&self) -> Result<()> {
        if !self.open.is_open() {
            return Err(self.ended());
        }
        // Nobody makes it writable meanwhile.
        let _gate = self.gate.read().map_err(|_| self.ended())?;
        if !self.is_up() {
            return Err(self.ended());
        }
        if !self.quiet.load(Ordering::Relaxed) {
            return Err(Error::Invalid("a region that is stored to is not engine"));
        }
        Ok(self.vol.region.lock_shared()?)
    }

    /// The superblock as it was at mount.
    pub fn superblock(&self) -> &SuperblockInfo {
        &self.info
    }

    /// What recovery found and did at mount.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.report
    }

    /// Whether nothing may be written (any more).
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// Notes that times of a locked inode are newer in memory.
    #[inline]
    pub(crate) fn note_lazy(&self, inode: &Inode) {
        // Looked at first: an exchange waits for the stores before it. Who takes
        // inodes off the list clears this before locking them, so that a mark
        // which is seen under the lock has its lazy times seen, too.
        if !inode.listed.load(Ordering::Relaxed) && !inode.listed.swap(true, Ordering::Relaxed) {
            self.lazy.lock().push(inode.ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{FormatOptions, format};
    use crate::journal::set_thread_lane;
    use crate::pmem::HeapBackend;
    use crate::types::Ctx;

    #[test]
    fn a_directory_at_hand_that_is_gone_is_not_taken_for_the_next_of_its_number() {
        let region = Region::new("at hand", HeapBackend::boxed(16 << 20));
        format(&region, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, options).unwrap();
        assert!(fs.vol.geo.lanes > 1, "both would have the same one at hand");
        let ctx = Ctx::default();
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
        assert_eq!(new, old.ino, "the number was not used again");
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
