//! unlink and rmdir: one record removes the name, and frees the inode if that fits.

use std::sync::Arc;

use crate::fs::engine::change::{Edit, Staged};
use crate::fs::engine::completeness::Hole;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::{touch_ctime, touch_mtime};
use crate::fs::inode::lock_set::LockSet;
use crate::fs::inode::state::InodeState;
use crate::fs::policy::{chattr, names};
use crate::fs::steps::entries::OccupiedEntry;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, TreeRef};
use pramfs_medium::types::{Ino, Time};
use pramfs_medium::volume::{Plan, Record};

/// The outcome of [`Engine::try_remove`].
enum Removal {
    /// The name is removed. The inode is an orphan if it has a number here.
    Done(Option<Ino>),
    /// The name may lead to another inode by now.
    Retry,
    /// The lock of this inode was not free.
    Locked(Arc<Inode>),
}

/// Removes an entry, and puts the directory into the record.
#[inline]
fn remove_entry<'e, 'v: 'r, 'r>(
    entry: OccupiedEntry<'e, 'v>,
    tx: &mut Record<'r>,
    is_dir: bool,
    now: Time,
) -> Result<Staged<'e, 'v>> {
    let dir = entry.remove(tx)?;
    touch_mtime(dir, now);
    if is_dir {
        dir.nlink = dir.nlink.saturating_sub(1);
    }
    dir.stage(tx)
}

impl Engine {
    /// Removes a name of a file that is not a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`].
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.op(Need::Write, || self.remove_entry(parent, name, false))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NotEmpty`],
    /// [`Error::Invalid`] for `.`.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        if name == b".." {
            return Err(Error::NotEmpty);
        }
        self.op(Need::Write, || self.remove_entry(parent, name, true))
    }

    fn remove_entry(&self, parent: Ino, name: &[u8], directory: bool) -> Result<()> {
        names::check(name)?;
        self.with_dir(parent, |dir| self.remove_from(dir, name, directory))
    }

    #[inline(never)]
    fn remove_from(&self, dir: &Arc<Inode>, name: &[u8], directory: bool) -> Result<()> {
        loop {
            let child = match self.try_remove(dir, name, directory)? {
                Removal::Done(orphan) => return self.after_removal(orphan),
                Removal::Retry => continue,
                Removal::Locked(child) => child,
            };
            // The child's lock was not free: lock both in order and look again.
            if child.ino == dir.ino {
                return Err(Error::corrupt(
                    Damage::DirectoryLoop,
                    dir.ino,
                    "the directory contains itself",
                ));
            }
            if let Some(orphan) = self.remove_in_order(dir, &child, name, directory)? {
                return self.after_removal(orphan);
            }
        }
    }

    /// Removes a name if the lock of its inode is free.
    #[inline]
    fn try_remove(&self, dir: &Arc<Inode>, name: &[u8], directory: bool) -> Result<Removal> {
        let mut dir_state = dir.state.write();
        self.check_dir(dir, &dir_state)?;
        // A transaction ends before the locks of its inodes are released.
        let (child, mut child_state);
        let mut edit = Edit::new(dir, &mut dir_state);
        // Prefetches the lines of the name's leaf while the transaction begins.
        let cursor = self.seek_entry(&mut edit, name)?;
        let mut tx = self.begin(dir);
        let entry = cursor.occupied()?;
        child = entry.inode()?;
        match child.state.try_write() {
            // On a damaged medium a removal by another name may have freed it.
            Some(found) if found.gone => return Ok(Removal::Retry),
            Some(found) => child_state = found,
            None => return Ok(Removal::Locked(child.clone())),
        }
        self.remove_locked(&mut tx, entry, &child, &mut child_state, directory)
            .map(Removal::Done)
    }

    /// Removes a name, with the locks of its inode and of the directory taken in order.
    /// `None` if the name leads to another inode by now.
    fn remove_in_order(
        &self,
        dir: &Arc<Inode>,
        child: &Arc<Inode>,
        name: &[u8],
        directory: bool,
    ) -> Result<Option<Option<Ino>>> {
        let mut set = LockSet::new(&[dir, child]);
        let [Some(dir_state), Some(child_state)] = set.states_mut([Some(dir), Some(child)]) else {
            return Err(Error::Stale(dir.ino));
        };
        self.check_dir(dir, dir_state)?;
        let mut edit = Edit::new(dir, dir_state);
        let entry = self.seek_entry(&mut edit, name)?.occupied()?;
        if entry.ino() != child.ino || child_state.gone {
            return Ok(None);
        }
        let mut tx = self.begin(dir);
        self.remove_locked(&mut tx, entry, child, child_state, directory)
            .map(Some)
    }

    /// Frees an orphan that did not fit the record, if it has no references.
    pub(crate) fn after_removal(&self, orphan: Option<Ino>) -> Result<()> {
        // The name is removed and the orphan table names the inode: a failure from here on
        // loses nothing, and the next mount tries again.
        if let Some(ino) = orphan
            && !self.refs.has(ino)
            && let Err(e) = self.free_orphan(ino)
        {
            tracing::warn!(%ino, error = %e, "an unlinked inode was not freed");
        }
        Ok(())
    }

    fn remove_locked<'v>(
        &'v self,
        tx: &mut Plan<'v>,
        entry: OccupiedEntry<'_, 'v>,
        child: &'v Inode,
        child_state: &'v mut InodeState,
        directory: bool,
    ) -> Result<Option<Ino>> {
        chattr::check_write(entry.dir())?;
        chattr::check_write(&child_state.disk)?;
        if directory {
            self.check_empty_dir(child_state)?;
        } else if child_state.is_dir() {
            return Err(Error::IsDirectory);
        }
        let now = self.now();
        tx.allow_reserve();
        let last = directory || child_state.disk.nlink <= 1;
        if last && self.owns_nothing(child, child_state) {
            let mut record = tx.lock_lane(&[&entry.dir().inode().last_record, &child.last_record]);
            let dir = remove_entry(entry, &mut record, directory, now)?;
            record.touch(&child.last_record);
            record.free_inode(child.ino)?;
            record.decide(None);
            self.commit(record, [dir])?;
            self.remove_gone(child, child_state);
            return Ok(None);
        }
        let mut new = Edit::new(child, child_state);
        touch_ctime(&mut new, now);
        new.nlink = match directory {
            true => 0,
            false => new.nlink.saturating_sub(1),
        };
        let dir = remove_entry(entry, tx, directory, now)?;
        let new = if new.nlink == 0 {
            self.drop_inode(tx, &mut new)?
        } else {
            new.stage(tx)?
        };
        let orphan = new.orphan();
        tx.decide(None);
        self.commit(tx.end(), [dir, new])?;
        Ok(orphan)
    }

    /// Checks that a locked directory is empty. A zero count alone is not enough: its
    /// entries would be lost with it, and stale references to them would resolve in
    /// the next directory of the same number.
    pub(crate) fn check_empty_dir(&self, child_state: &InodeState) -> Result<()> {
        if !child_state.is_dir() {
            return Err(Error::NotDirectory);
        }
        if child_state.disk.size != 0 {
            return Err(Error::NotEmpty);
        }
        if child_state.disk.root == 0 {
            return self.check_hole(child_state, Hole::Contents);
        }
        if htree::is_empty(&self.vol, &TreeRef::directory(&child_state.disk))? {
            Ok(())
        } else {
            Err(Error::corrupt(
                Damage::EntryCount,
                ("directory", Ino(child_state.disk.ino)),
                "it has entries, but counts none",
            ))
        }
    }
}
