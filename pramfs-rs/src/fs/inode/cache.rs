//! The inode cache: the inodes in memory, by number.
//!
//! Invariant: an inode is in memory once. It is evicted only if it has no users,
//! its last record is dead, its mtime is on the medium, and it has no lease. Eviction may lose an
//! atime that is newer in memory, as the rule for atimes allows. Such inodes are
//! evicted last.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam::utils::CachePadded;
use rustc_hash::FxHashMap;

use crate::fs::cache::dcache::Dcache;
use crate::fs::inode::Inode;
use pramfs_medium::error::Result;
use pramfs_medium::sync::{RwLock, rank};
use pramfs_medium::types::Ino;
use pramfs_medium::volume::Volume;

const SHARDS: usize = 64;

/// Bytes per cached inode, including its place in the maps. Checked by a test.
pub(crate) const BYTES_PER_INODE: u64 = 704;

/// Inodes per page: consecutive inodes of a shard. Numbers are allocated in order,
/// so a map of pages is a tenth of the size of a map of inodes and stays in the
/// processor's caches.
const PAGE: u64 = 16;

type Page = Box<[Option<Arc<Inode>>; PAGE as usize]>;

#[derive(Debug, Default)]
struct Shard {
    pages: FxHashMap<u64, Page>,
    /// An empty page for reuse. An inode that is alone in its page then comes and
    /// goes without the memory allocator.
    spare: Option<Page>,
    len: usize,
}

/// Returns the page of an inode in its shard, and the place in the page.
#[inline]
fn place(ino: Ino) -> (u64, usize) {
    let nth = ino.0 / SHARDS as u64;
    (nth / PAGE, (nth % PAGE) as usize)
}

impl Shard {
    #[inline]
    fn get(&self, ino: Ino) -> Option<&Arc<Inode>> {
        let (page, at) = place(ino);
        self.pages.get(&page)?[at].as_ref()
    }

    /// Inserts an inode and returns the one that it replaces.
    fn insert(&mut self, inode: Arc<Inode>) -> Option<Arc<Inode>> {
        let (page, at) = place(inode.ino);
        let slots =
            (self.pages.entry(page)).or_insert_with(|| self.spare.take().unwrap_or_default());
        let old = slots[at].replace(inode);
        self.len += usize::from(old.is_none());
        old
    }

    fn remove(&mut self, ino: Ino) -> Option<Arc<Inode>> {
        let (page, at) = place(ino);
        let slots = self.pages.get_mut(&page)?;
        let old = slots[at].take();
        if slots.iter().all(Option::is_none) {
            self.spare = self.pages.remove(&page);
        }
        self.len -= usize::from(old.is_some());
        old
    }
}

/// The inodes in memory.
#[derive(Debug)]
pub(crate) struct InodeCache {
    /// Each lock has its own cache line, so that threads on different shards do not
    /// contend for it.
    shards: Box<[CachePadded<RwLock<Shard, rank::CacheShard>>]>,
    per_shard: usize,
    /// Names and attributes, readable without a lock.
    pub names: Dcache,
}

impl InodeCache {
    /// Creates a cache of about `bytes` bytes. `key` is the key of the name hashes.
    pub(crate) fn new(bytes: u64, key: u64) -> InodeCache {
        let per_shard = (bytes / BYTES_PER_INODE) as usize / SHARDS;
        let per_shard = per_shard.max(16);
        InodeCache {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            per_shard,
            names: Dcache::new(per_shard * SHARDS, key),
        }
    }

    /// Returns the shard of an inode. Consecutive numbers are in different shards,
    /// since threads often work on files that were created one after the other.
    #[inline]
    fn shard(&self, ino: Ino) -> &RwLock<Shard, rank::CacheShard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Returns the number of inodes in memory.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().len).sum()
    }

    /// Returns an inode if it is in memory.
    #[inline]
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        let shard = self.shard(ino).read();
        let inode = shard.get(ino)?;
        pramfs_medium::pmem::prefetch_object(&**inode);
        inode.note_use();
        Some(inode.clone())
    }

    /// As [`get`](Self::get), but loads an inode that is not in memory. It loads
    /// under the shard's lock, so that no thread brings back an inode that is freed
    /// meanwhile.
    pub(crate) fn get_or_load(
        &self,
        vol: &Volume,
        ino: Ino,
        load: impl FnOnce() -> Result<Inode>,
    ) -> Result<Arc<Inode>> {
        let mut shard = self.shard(ino).write();
        if let Some(there) = shard.get(ino) {
            return Ok(there.clone());
        }
        let inode = Arc::new(load()?);
        self.add(vol, &mut shard, inode.clone());
        Ok(inode)
    }

    /// Inserts a new inode before its record is committed. The caller holds its
    /// lock, so that other threads that find it wait. It replaces a deleted inode of
    /// the same number.
    pub(crate) fn insert_new(&self, vol: &Volume, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.ino).write();
        let old = self.add(vol, &mut shard, inode.clone());
        // Free the memory outside the lock.
        drop(shard);
        drop(old);
    }

    fn add(&self, vol: &Volume, shard: &mut Shard, inode: Arc<Inode>) -> Option<Arc<Inode>> {
        if shard.len >= self.per_shard {
            self.evict(vol, shard);
        }
        shard.insert(inode)
    }

    /// Removes a deleted inode.
    pub(crate) fn remove(&self, inode: &Inode) {
        let mut shard = self.shard(inode.ino).write();
        if shard
            .get(inode.ino)
            .is_some_and(|i| std::ptr::eq(&**i, inode))
        {
            shard.remove(inode.ino);
        }
    }

    /// Evicts an eighth of the shard by the second-chance algorithm. Evicts inodes
    /// with a newer atime in memory only if the others are not enough.
    fn evict(&self, vol: &Volume, shard: &mut Shard) {
        let mut want = (self.per_shard / 8).max(1);
        for evict_dirty_atime in [false, true] {
            if want == 0 {
                break;
            }
            shard.pages.retain(|_, page| {
                let mut empty = true;
                for slot in page.iter_mut() {
                    if want != 0
                        && slot
                            .as_mut()
                            .is_some_and(|i| self.can_evict(vol, i, evict_dirty_atime))
                    {
                        *slot = None;
                        want -= 1;
                        shard.len -= 1;
                    }
                    empty &= slot.is_none();
                }
                !empty
            });
        }
    }

    /// Whether an inode can be evicted. The caller holds its shard's write lock.
    fn can_evict(&self, vol: &Volume, inode: &mut Arc<Inode>, evict_dirty_atime: bool) -> bool {
        let used = inode.used.load(Ordering::Relaxed);
        if used {
            inode.used.store(false, Ordering::Relaxed);
        }
        if self.names.attrs.take_used(inode.ino) || used {
            return false;
        }
        // No thread can get it while the shard is locked: if this is the only
        // reference, it stays the only one.
        let Some(inode) = Arc::get_mut(inode) else {
            return false;
        };
        let last = inode.last_record.last();
        let state = inode.state.get_mut();
        last.is_none_or(|s| vol.journal.is_dead(s))
            && !state.lazy.mtime
            && state.orphan_slot.is_none()
            && state.leases.is_empty()
            && (evict_dirty_atime || !state.lazy.atime)
    }

    /// Returns every inode in memory, for the timer and the unmount.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        let of = |s: &RwLock<Shard, rank::CacheShard>| -> Vec<_> {
            let shard = s.read();
            shard
                .pages
                .values()
                .flat_map(|p| p.iter().flatten().cloned())
                .collect()
        };
        self.shards.iter().flat_map(|s| of(s)).collect()
    }
}
