//! The lock of an inode, and the way past it for readers of file data.
//!
//! A lock that is taken and given back is a few instructions that wait for all
//! loads before them and let none begin after them: a program that reads here
//! and there pays the latency of the medium once for each read. Who only reads
//! the data of a file can do without: [`InodeLock::peek`] shows what is needed
//! to find the bytes, as the last writer left it, and [`InodeLock::validate`]
//! says afterwards whether a writer came between. If one did, what was read
//! means nothing, and is read again under the lock.
//!
//! Invariant: whoever changes an inode, its file map or, by a call, its data
//! holds the exclusive lock meanwhile. All of that is stored after the lock is
//! taken, and before it is given back the number of changes has moved.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};

use super::attr::DAY;
use super::attr_cache::AttrSlot;
use super::inode::InodeState;
use crate::map::MapRef;
use crate::media::pointer::Ptr;
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::types::{FileType, Ino};

/// See the module.
#[derive(Debug)]
pub(crate) struct InodeLock {
    published: Published,
    /// Its place in the attribute cache, once that has shown it.
    attr_slot: OnceLock<AttrSlot>,
    lock: RwLock<InodeState>,
}

/// What [`InodeLock::peek`] shows.
#[derive(Debug, Default)]
struct Published {
    changes: AtomicU64,
    size: AtomicU64,
    root: AtomicU64,
    /// See [`InodeState::records`].
    records: AtomicU64,
    /// Height of the file map; [`NOT_A_FILE`] where there is none to be read.
    height: AtomicU64,
    /// Second up to which a read leaves the atime alone, by relatime.
    atime_until: AtomicI64,
}

const NOT_A_FILE: u64 = u64::MAX;

impl Published {
    /// Shows what an inode is. The caller holds its lock, and has the number of
    /// changes move after this; or nobody else knows it yet.
    #[inline]
    fn publish(&self, state: &InodeState) {
        let d = &state.disk;
        let file = !state.gone && state.kind() == FileType::Regular;
        let height = if file { d.height.into() } else { NOT_A_FILE };
        let atime = (d.atime_sec, d.atime_nsec);
        let settled = atime > (d.mtime_sec, d.mtime_nsec) && atime > (d.ctime_sec, d.ctime_nsec);
        let until = if settled {
            // Never behind all times.
            d.atime_sec.saturating_add(DAY).min(i64::MAX - 1)
        } else {
            i64::MIN
        };
        self.size.store(d.size, Ordering::Relaxed);
        self.root.store(d.root, Ordering::Relaxed);
        self.records.store(state.records, Ordering::Relaxed);
        self.height.store(height, Ordering::Relaxed);
        self.atime_until.store(until, Ordering::Relaxed);
    }
}

/// A regular file as it was at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot {
    /// For [`InodeLock::validate`].
    pub changes: u64,
    /// Size, bytes.
    pub size: u64,
    /// File map.
    pub map: MapRef,
    /// See [`InodeState::records`]: each record that changes the map counts.
    pub records: u64,
    /// Second up to which a read leaves the atime alone, by relatime.
    pub atime_until: i64,
}

/// As much of a [`Snapshot`] as a read needs whose place is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SizeSnapshot {
    /// For [`InodeLock::validate`].
    pub changes: u64,
    /// Size, bytes.
    pub size: u64,
    /// See [`InodeState::records`].
    pub records: u64,
    /// See [`Snapshot::atime_until`].
    pub atime_until: i64,
}

impl InodeLock {
    /// An inode that nobody has locked.
    #[inline]
    pub(crate) fn new(state: InodeState) -> InodeLock {
        let published = Published::default();
        published.publish(&state);
        InodeLock {
            published,
            attr_slot: OnceLock::new(),
            lock: RwLock::new(state),
        }
    }

    /// Waits for a shared lock.
    #[inline]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, InodeState> {
        self.lock.read()
    }

    /// A shared lock, if it is free.
    #[inline]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, InodeState>> {
        self.lock.try_read()
    }

    /// What nobody else can have locked.
    pub(crate) fn get_mut(&mut self) -> &mut InodeState {
        self.lock.get_mut()
    }

    /// Waits for the exclusive lock.
    #[inline]
    pub(crate) fn write(&self) -> InodeGuard<'_> {
        InodeGuard::new(self.lock.write(), self)
    }

    /// The exclusive lock, if it is free.
    #[inline]
    pub(crate) fn try_write(&self) -> Option<InodeGuard<'_>> {
        Some(InodeGuard::new(self.lock.try_write()?, self))
    }

    /// Has the attribute cache told of every exclusive lock from now on. The
    /// caller holds the lock, shared, and shows the inode after this.
    pub(crate) fn set_attr_slot(&self, attr_slot: impl FnOnce() -> AttrSlot) {
        self.attr_slot.get_or_init(attr_slot);
    }

    /// A look at a regular file without a lock. It counts for nothing unless
    /// it is [`validate`](Self::validate) after its use. `None` where a
    /// writer is at it, or it is no regular file (any more).
    #[inline]
    pub(crate) fn snapshot(&self, ino: Ino) -> Option<Snapshot> {
        let p = &self.published;
        let changes = p.changes.load(Ordering::Acquire);
        if self.lock.is_locked_exclusive() {
            return None;
        }
        fence(Ordering::Acquire);
        let height = p.height.load(Ordering::Relaxed);
        if height == NOT_A_FILE {
            return None;
        }
        Some(Snapshot {
            changes,
            size: p.size.load(Ordering::Relaxed),
            records: p.records.load(Ordering::Relaxed),
            map: MapRef {
                ino,
                root: Ptr(p.root.load(Ordering::Relaxed)),
                height: height as u32,
                blocks: 0,
                healed: false,
            },
            atime_until: p.atime_until.load(Ordering::Relaxed),
        })
    }

    /// As [`snapshot`](Self::snapshot), without the file map.
    #[inline]
    pub(crate) fn size_snapshot(&self) -> Option<SizeSnapshot> {
        let p = &self.published;
        let changes = p.changes.load(Ordering::Acquire);
        if self.lock.is_locked_exclusive() {
            return None;
        }
        fence(Ordering::Acquire);
        if p.height.load(Ordering::Relaxed) == NOT_A_FILE {
            return None;
        }
        Some(SizeSnapshot {
            changes,
            size: p.size.load(Ordering::Relaxed),
            records: p.records.load(Ordering::Relaxed),
            atime_until: p.atime_until.load(Ordering::Relaxed),
        })
    }

    /// Whether no writer has had the lock since a look at so many changes.
    #[inline]
    pub(crate) fn validate(&self, changes: u64) -> bool {
        // All that was loaded in between comes before the two loads here: a
        // writer whose stores it met had taken the lock by then.
        fence(Ordering::Acquire);
        if self.lock.is_locked_exclusive() {
            return false;
        }
        // The lock before the number: a writer that was gone by then has moved
        // it.
        fence(Ordering::Acquire);
        self.published.changes.load(Ordering::Relaxed) == changes
    }
}

/// The exclusive lock of an inode.
#[derive(Debug)]
pub(crate) struct InodeGuard<'a> {
    state: RwLockWriteGuard<'a, InodeState>,
    published: &'a Published,
}

impl<'a> InodeGuard<'a> {
    #[inline]
    fn new(state: RwLockWriteGuard<'a, InodeState>, lock: &'a InodeLock) -> InodeGuard<'a> {
        if let Some(attr_slot) = lock.attr_slot.get() {
            attr_slot.invalidate();
        }
        // Nothing that the holder stores is seen before the lock is, or while
        // the inode is shown. On x86 the locked instruction sees to that, for
        // streaming stores too.
        fence(Ordering::Release);
        InodeGuard {
            state,
            published: &lock.published,
        }
    }
}

impl Deref for InodeGuard<'_> {
    type Target = InodeState;
    #[inline]
    fn deref(&self) -> &InodeState {
        &self.state
    }
}

impl DerefMut for InodeGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut InodeState {
        &mut self.state
    }
}

impl Drop for InodeGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let p = self.published;
        p.publish(&self.state);
        // Only the holder of the lock stores here. The lock is given back after
        // this: whoever sees it free sees the new number.
        let changes = p.changes.load(Ordering::Relaxed);
        p.changes.store(changes.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use zerocopy::FromZeros;

    use super::*;
    use crate::fs::inode::Inode;
    use crate::media::DiskInode;

    fn file() -> Inode {
        let d = DiskInode {
            mode: libc::S_IFREG | 0o644,
            ..DiskInode::new_zeroed()
        };
        Inode::new(Ino(50), 0, d)
    }

    #[test]
    fn snapshot_is_valid_until_writer_locks() {
        let inode = file();
        let look = || inode.state.snapshot(inode.ino);
        let first = look().unwrap();
        assert!(inode.state.validate(first.changes));
        drop(inode.state.read());
        assert!(inode.state.validate(first.changes));
        let mut guard = inode.state.write();
        assert!(!inode.state.validate(first.changes) && look().is_none());
        guard.disk.size = 5000;
        guard.disk.root = 77;
        drop(guard);
        assert!(!inode.state.validate(first.changes));
        let second = look().unwrap();
        assert_eq!((second.size, second.map.root), (5000, Ptr(77)));
        inode.state.write().gone = true;
        assert!(look().is_none());
    }

    #[test]
    fn snapshot_of_directory_is_none() {
        let inode = file();
        inode.state.write().disk.mode = libc::S_IFDIR | 0o755;
        assert!(inode.state.snapshot(inode.ino).is_none());
    }

    /// A glimpse that is unchanged is of one moment.
    #[test]
    fn valid_snapshot_is_consistent() {
        let inode = file();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                for i in 0..if cfg!(miri) { 30u64 } else { 200_000u64 } {
                    let mut state = inode.state.write();
                    state.disk.size = i;
                    state.disk.root = i * 3;
                }
                stop.store(true, Ordering::Release);
            });
            let mut good = 0;
            while !stop.load(Ordering::Acquire) {
                if let Some(g) = inode.state.snapshot(inode.ino)
                    && inode.state.validate(g.changes)
                {
                    assert_eq!(g.map.root.0, g.size * 3);
                    good += 1;
                }
            }
            println!("{good} glimpses");
        });
    }
}
