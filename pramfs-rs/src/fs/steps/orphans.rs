//! Orphans: inodes without a name that still exist, because they are open or
//! because freeing their blocks takes more than one record.
//!
//! Invariant: a slot of the orphan table names each such inode. The record that removes the
//! last name sets the slot; the record that frees the inode clears it. After a crash the
//! next mount finishes the work.
//!
//! The slots are in [`orphan_table`](super::orphan_table). Unfinished truncations also have
//! slots; [`resize`](super::resize) finishes them.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::fs::engine::change::{Dropped, Edit, Staged};
use crate::fs::inode::Inode;
use crate::fs::inode::lock::InodeGuard;
use crate::fs::inode::refs::By;
use crate::fs::inode::state::{InodeState, Lazy};
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, TreeRef};
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::DiskInode;
use pramfs_medium::pmem::PmemError;
use pramfs_medium::types::{Attr, FileBlock, FileType, Ino};
use pramfs_medium::volume::Plan;

/// Maximum number of forgotten orphans in a batch.
const FREE_BATCH: usize = 16;
/// Maximum number of blocks of an orphan that may wait for a batch.
const SMALL_FILE_BLOCKS: u64 = 16;
/// Free bytes of a record required to start freeing another inode: for its bits
/// and its slot, or for the inode with fewer blocks.
const MIN_ROOM: usize = 1024;

impl Engine {
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

    /// Frees an orphan of an earlier mount.
    pub(crate) fn finish_orphan(&self, ino: Ino, slot: u32) {
        let result = self.op(Need::Write, || {
            let wrong = |what| Err(Error::corrupt(Damage::OrphanSlotWrong, ino, what));
            let inode = match self.iget(ino) {
                Err(Error::Stale(_)) => {
                    return wrong("it is in the orphan table but does not exist");
                }
                found => found?,
            };
            let mut state = inode.state.write();
            if state.disk.nlink != 0 || ino < Ino::FIRST_FREE {
                return wrong("it is in the orphan table but has names");
            }
            state.orphan_slot = Some(slot);
            self.orphans.lock().insert(ino.0);
            drop(state);
            self.free_orphan(ino)
        });
        if let Err(e) = result {
            tracing::warn!(%ino, error = %e, "could not free an orphan");
        }
    }

    /// Frees as many blocks of an inode as fit the record; true when none are
    /// left.
    pub(crate) fn free_some(&self, tx: &mut Plan<'_>, disk: &mut DiskInode) -> Result<bool> {
        let kind = FileType::from_mode(disk.mode);
        if disk.root != 0 {
            if kind == Some(FileType::Directory) {
                let mut tree = TreeRef::directory(disk);
                let done = htree::free_step(tx, &mut tree)?;
                tree.store(disk);
                if !done {
                    return Ok(false);
                }
            } else {
                let mut map = MapRef::of(disk);
                let end = map.root().end(&self.vol.geo);
                let next = map::remove(tx, &mut map, FileBlock(0), end)?;
                map.store(disk);
                if next < end {
                    return Ok(false);
                }
            }
        }
        if disk.xattr_root != 0 {
            let fresh = tx.has_no_record();
            return self.free_some_xattrs(tx, disk, fresh);
        }
        Ok(true)
    }

    /// Handles the removal of an inode's last name, in the same transaction. Frees the
    /// inode if it has no references and fits the record, else makes it an orphan.
    pub(crate) fn drop_inode<'e, 'v>(
        &self,
        tx: &mut Plan<'v>,
        new: &'e mut Edit<'v>,
    ) -> Result<Staged<'e, 'v>> {
        let (inode, slot) = (new.inode(), new.before().orphan_slot);
        if !self.refs.has(inode.ino) {
            tx.allow_reserve();
            let done = (new.root == 0 && new.xattr_root == 0) || self.free_some(tx, new)?;
            if done {
                // An unfinished truncation has a slot.
                if let Some(slot) = slot {
                    self.clear_orphan(tx, slot)?;
                }
                tx.touch(&inode.last_record);
                tx.free_inode(inode.ino)?;
                new.dropped = Some(Dropped::Gone);
                return Ok(new.stage_freed());
            }
        }
        let slot = match slot {
            Some(slot) => slot,
            None => self.put_orphan(tx, inode.ino)?,
        };
        new.dropped = Some(Dropped::Orphan(slot));
        new.stage(tx)
    }

    /// Whether an inode has no references, blocks or orphan slot, so that freeing
    /// its number frees it completely.
    #[inline]
    pub(crate) fn owns_nothing(&self, inode: &Inode, state: &InodeState) -> bool {
        state.disk.root == 0
            && state.disk.xattr_root == 0
            && state.orphan_slot.is_none()
            && !self.refs.has(inode.ino)
    }

    /// Updates memory after a record has freed an inode that owned nothing.
    #[inline]
    pub(crate) fn remove_gone(&self, inode: &Inode, state: &mut InodeState) {
        state.disk.nlink = 0;
        state.lazy = Lazy::default();
        state.records += 1;
        state.gone = true;
        self.cache.remove(inode);
    }

    /// Frees an orphan without references by a chain of records. Each record
    /// leaves a smaller orphan; the last one frees it.
    pub(crate) fn free_orphan(&self, ino: Ino) -> Result<()> {
        self.free_orphans(&[self.iget(ino)?])
    }

    /// Frees orphans without references, given in ascending order. A record frees
    /// as many as fit; an orphan that does not fit takes a chain of records.
    fn free_orphans(&self, inodes: &[Arc<Inode>]) -> Result<()> {
        let mut states: SmallVec<[InodeGuard<'_>; 1]> =
            inodes.iter().map(|i| i.state.write()).collect();
        let mut at = 0;
        while at < inodes.len() {
            let mut freed: SmallVec<[Edit<'_>; 1]> = SmallVec::new();
            let mut smaller = None;
            let mut tx = self.begin(&inodes[at]);
            tx.allow_reserve();
            for (inode, state) in inodes[at..].iter().zip(&mut states[at..]) {
                let held = state.disk.nlink != 0 || self.refs.has(inode.ino);
                let (false, false, Some(slot)) = (state.gone, held, state.orphan_slot) else {
                    at += 1;
                    continue;
                };
                if !tx.has_no_record() && tx.room() < MIN_ROOM {
                    break;
                }
                tx.touch(&inode.last_record);
                let mut new = Edit::new(inode, state);
                if !self.free_some(&mut tx, &mut new)? {
                    smaller = Some(new);
                    break;
                }
                self.clear_orphan(&mut tx, slot)?;
                tx.free_inode(inode.ino)?;
                new.dropped = Some(Dropped::Gone);
                freed.push(new);
                at += 1;
            }
            if freed.is_empty() && smaller.is_none() {
                return Ok(());
            }
            let numbers: SmallVec<[Ino; FREE_BATCH]> =
                freed.iter().map(|new| new.inode().ino).collect();
            let smaller = match &mut smaller {
                Some(new) => Some(new.stage(&mut tx)?),
                None => None,
            };
            let staged = freed.iter_mut().map(Edit::stage_freed).chain(smaller);
            // Before the commit, after which the numbers can be reused.
            self.mark(&numbers, false);
            if let Err(e) = self.commit(tx, staged) {
                self.mark(&numbers, true);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Adds inodes to the set of orphans, or removes them.
    fn mark(&self, freed: &[Ino], orphans: bool) {
        let mut set = self.orphans.lock();
        for ino in freed {
            if orphans {
                set.insert(ino.0);
            } else {
                set.remove(&ino.0);
            }
        }
    }

    /// Releases references that [`InodeRef::into_count`](crate::fs::InodeRef::into_count)
    /// left to the caller's count. Frees an inode that has no name and no reference left.
    ///
    /// Open files, views and an [`InodeRef`](crate::fs::InodeRef) have separate references
    /// that this call does not release. They stay valid even if the caller miscounts.
    pub fn release(&self, ino: Ino, n: u64) {
        self.release_ref(ino, n, By::Count);
    }

    /// Takes a reference. In a forked child this does nothing and takes no lock: the thread
    /// that held the lock may not exist there.
    pub(crate) fn add_ref(&self, ino: Ino, by: By) {
        if !self.open.is_inherited() {
            self.refs.add(ino, 1, by);
        }
    }

    /// Releases references. Does nothing in a forked child, as [`add_ref`](Self::add_ref).
    pub(crate) fn release_ref(&self, ino: Ino, n: u64, by: By) {
        if self.sub_refs(ino, n, by)
            && let Err(e) = self.op(Need::Write, || self.free_orphan(ino))
        {
            self.not_freed(ino, &e);
        }
    }

    /// Takes references off. True if the inode is to be freed: it has no name and no
    /// reference left.
    fn sub_refs(&self, ino: Ino, n: u64, by: By) -> bool {
        !self.open.is_inherited()
            && n != 0
            && self.refs.sub(ino, n, by)
            && self.orphans.lock().contains(&ino.0)
    }

    /// As [`release`](Self::release), but a small inode may wait for a batch that is
    /// freed in one record. The batch is freed when it has sixteen inodes, and
    /// earlier by the timer, [`statfs`](Self::statfs), [`sync`](Self::sync), unmount,
    /// and [`free_forgotten`](Self::free_forgotten).
    pub fn forget(&self, ino: Ino, n: u64) {
        if !self.sub_refs(ino, n, By::Count) {
            return;
        }
        let small = self.cache.get(ino).is_some_and(|inode| is_small(&inode));
        let due = {
            let mut forgotten = self.forgotten.lock();
            forgotten.push(ino);
            !small || forgotten.len() >= FREE_BATCH
        };
        if due {
            self.free_forgotten();
        }
    }

    /// Frees the inodes that [`forget`](Self::forget) deferred, or waits for a
    /// thread that is freeing them. Returns whether there were any.
    pub fn free_forgotten(&self) -> bool {
        // If the operation is refused, the orphan table still names them.
        self.op(Need::Write, || Ok(self.free_forgotten_inodes()))
            .unwrap_or_default()
    }

    /// As [`free_forgotten`](Self::free_forgotten), inside an operation that holds
    /// no inode lock.
    pub(crate) fn free_forgotten_inodes(&self) -> bool {
        let (_freeing, waited) = match self.freeing.try_lock() {
            Some(guard) => (guard, false),
            None => (self.freeing.lock(), true),
        };
        let mut forgotten = std::mem::take(&mut *self.forgotten.lock());
        if forgotten.is_empty() {
            return waited;
        }
        forgotten.sort_unstable();
        forgotten.dedup();
        let mut small = Vec::new();
        for ino in forgotten {
            match self.iget(ino) {
                Ok(inode) if is_small(&inode) => small.push(inode),
                Ok(inode) => self.try_free(&inode),
                // Freed meanwhile by the release of another reference.
                Err(Error::Stale(_)) => {}
                Err(e) => self.not_freed(ino, &e),
            }
        }
        for some in small.chunks(FREE_BATCH) {
            // One of them failed; free the others one by one.
            if self.free_orphans(some).is_err() {
                some.iter().for_each(|inode| self.try_free(inode));
            }
        }
        true
    }

    fn try_free(&self, inode: &Arc<Inode>) {
        if let Err(e) = self.free_orphans(std::slice::from_ref(inode)) {
            self.not_freed(inode.ino, &e);
        }
    }

    /// Logs a failure to free an orphan. The orphan table still names it, and the
    /// next mount tries again.
    fn not_freed(&self, ino: Ino, e: &Error) {
        match e {
            Error::Corrupt { .. } => self.note_damage(e),
            Error::Pmem(PmemError::Faulted { .. }) => self.note_error(e),
            _ => {}
        }
        tracing::warn!(%ino, error = %e, "could not free an unlinked inode");
    }
}

/// Whether an orphan may wait for a batch. A locked inode may not.
fn is_small(inode: &Inode) -> bool {
    let state = inode.state.try_read();
    state.is_some_and(|s| s.disk.blocks <= SMALL_FILE_BLOCKS && s.disk.xattr_root == 0)
}
