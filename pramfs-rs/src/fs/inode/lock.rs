//! The lock of an inode, with a seqlock for readers of file data.
//!
//! Taking and releasing a lock orders all loads before and after it, so a program
//! with random reads pays the full latency of the medium for each read. A reader of
//! file data needs no lock: [`InodeLock::snapshot`] returns the fields that locate
//! the bytes, as the last writer left them, and [`InodeLock::validate`] tells
//! afterwards whether a writer interfered. If so, the reader discards the bytes and
//! reads again under the lock.
//!
//! Invariant: a thread that changes an inode, its file map or, by a call, its data
//! holds the exclusive lock. All these stores follow the acquisition of the lock,
//! and the change counter moves before the lock is released.

use std::ops::{Deref, DerefMut};

use crate::fs::cache::attr_cache::AttrSlot;
use crate::fs::inode::state::InodeState;
use crate::fs::policy::atime::relatime_until;
use pramfs_medium::map::MapRef;
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};
use pramfs_medium::sync::order::{acquire, release};
use pramfs_medium::sync::{OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use pramfs_medium::types::{FileType, Ino};

/// The lock of an inode, see the module.
#[derive(Debug)]
pub(crate) struct InodeLock {
    published: Published,
    /// Its slot in the attribute cache, once the cache has shown it.
    attr_slot: OnceLock<AttrSlot>,
    lock: RwLock<InodeState, rank::Inode>,
}

/// The fields that [`InodeLock::snapshot`] returns.
#[derive(Debug, Default)]
struct Published {
    changes: AtomicU64,
    size: AtomicU64,
    root: AtomicU64,
    /// See [`InodeState::records`].
    records: AtomicU64,
    /// Height of the file map; [`NOT_A_FILE`] if it is not a regular file, or has an append
    /// window.
    height: AtomicU64,
    /// Time, in seconds, until which relatime leaves the atime unchanged.
    atime_until: AtomicI64,
}

const NOT_A_FILE: u64 = u64::MAX;

impl Published {
    /// Publishes the fields of an inode. The caller either holds the inode's lock and
    /// advances the change counter afterwards, or has the only reference.
    #[inline]
    fn publish(&self, state: &InodeState) {
        let disk = &state.disk;
        // With an append window, the size may be larger than the one here.
        let file =
            !state.gone && state.kind() == FileType::Regular && state.leases.window().is_none();
        let height = if file { disk.height.into() } else { NOT_A_FILE };
        self.size.store(disk.size, Ordering::Relaxed);
        self.root.store(disk.root, Ordering::Relaxed);
        self.records.store(state.records, Ordering::Relaxed);
        self.height.store(height, Ordering::Relaxed);
        self.atime_until
            .store(relatime_until(disk), Ordering::Relaxed);
    }
}

/// The state of a regular file at one moment.
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
    /// Time, in seconds, until which relatime leaves the atime unchanged.
    pub atime_until: i64,
}

/// The part of a [`Snapshot`] for a read whose place is cached.
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
    /// Creates an unlocked inode.
    #[inline]
    pub(crate) fn new(ino: Ino, state: InodeState) -> InodeLock {
        let published = Published::default();
        published.publish(&state);
        InodeLock {
            published,
            attr_slot: OnceLock::new(),
            lock: RwLock::numbered(ino.0, state),
        }
    }

    /// Takes the lock shared; waits for it.
    #[inline]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, InodeState> {
        self.lock.read()
    }

    /// Takes the lock shared if it is free.
    #[inline]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, InodeState>> {
        self.lock.try_read()
    }

    /// Returns the state without locking, for the only owner.
    pub(crate) fn get_mut(&mut self) -> &mut InodeState {
        self.lock.get_mut()
    }

    /// Takes the lock exclusively; waits for it.
    #[inline]
    pub(crate) fn write(&self) -> InodeGuard<'_> {
        InodeGuard::new(self.lock.write(), self)
    }

    /// Takes the lock exclusively if it is free.
    #[inline]
    pub(crate) fn try_write(&self) -> Option<InodeGuard<'_>> {
        Some(InodeGuard::new(self.lock.try_write()?, self))
    }

    /// Makes every later exclusive lock invalidate this slot of the attribute cache.
    /// The caller holds the lock shared, and publishes the inode afterwards.
    pub(crate) fn set_attr_slot(&self, attr_slot: impl FnOnce() -> AttrSlot) {
        self.attr_slot.get_or_init(attr_slot);
    }

    /// Returns a snapshot of a regular file without a lock. It is meaningless unless
    /// [`validate`](Self::validate) returns true after its use. `None` if a writer
    /// holds the lock, it is not, or no longer, a regular file, or it has an append window.
    #[inline]
    pub(crate) fn snapshot(&self, ino: Ino) -> Option<Snapshot> {
        let p = &self.published;
        // Pairs with the store in `InodeGuard::drop`: the fields are those of this counter,
        // or later ones, which `validate` notices. A look at the lock only saves the effort.
        let changes = p.changes.load(acquire("inode-snapshot"));
        if self.lock.is_locked_exclusive() {
            return None;
        }
        let height = p.height.load(Ordering::Relaxed);
        if height == NOT_A_FILE {
            return None;
        }
        Some(Snapshot {
            changes,
            size: p.size.load(Ordering::Relaxed),
            records: p.records.load(Ordering::Relaxed),
            map: MapRef::from(MapRoot {
                ino,
                root: Ptr(p.root.load(Ordering::Relaxed)),
                height: height as u32,
            }),
            atime_until: p.atime_until.load(Ordering::Relaxed),
        })
    }

    /// As [`snapshot`](Self::snapshot), without the file map.
    #[inline]
    pub(crate) fn size_snapshot(&self) -> Option<SizeSnapshot> {
        let p = &self.published;
        let changes = p.changes.load(acquire("inode-size-snapshot"));
        if self.lock.is_locked_exclusive() {
            return None;
        }
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

    /// Whether no writer has held the lock since the snapshot with this change
    /// counter.
    #[inline]
    pub(crate) fn validate(&self, changes: u64) -> bool {
        // Orders all loads since the snapshot before the two loads here. If one of
        // them saw a writer's store, that writer had taken the lock before.
        fence(acquire("inode-validate-reads"));
        if self.lock.is_locked_exclusive() {
            return false;
        }
        // The lock before the counter: a writer that has released the lock by now
        // advanced the counter before.
        fence(acquire("inode-validate-lock"));
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
        // No store of the holder becomes visible before the lock does, or while the
        // attribute cache shows the inode. On x86 the locked instruction ensures
        // this, also for streaming stores.
        fence(release("inode-locked"));
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
        // Only the lock holder stores here. The lock is released afterwards: a thread
        // that sees it free sees the new counter.
        let changes = p.changes.load(Ordering::Relaxed);
        p.changes
            .store(changes.wrapping_add(1), release("inode-published"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use zerocopy::FromZeros;

    use super::*;
    use crate::fs::inode::Inode;
    use pramfs_medium::media::DiskInode;
    use pramfs_medium::types::RegionOffset;

    fn file() -> Inode {
        let disk = DiskInode {
            mode: libc::S_IFREG | 0o644,
            ..DiskInode::new_zeroed()
        };
        Inode::new(Ino(50), RegionOffset(0), disk)
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

    /// The size and root of a valid snapshot belong to the same write.
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
            println!("{good} valid snapshots");
        });
    }
}
