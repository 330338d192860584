//! unlink and rmdir: one record removes the name, and frees the inode if that fits.

use std::sync::Arc;

use crate::fs::engine::change::Edit;
use crate::fs::engine::completeness::Hole;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::{touch_ctime, touch_mtime};
use crate::fs::inode::state::InodeState;
use crate::fs::inode::trees::dir_tree;
use crate::fs::policy::{chattr, names};
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, DirEntry};
use pramfs_medium::types::Ino;
use pramfs_medium::volume::Plan;

/// A name to remove, with its locked inodes.
struct Removal<'v> {
    dir: &'v Inode,
    dir_state: &'v mut InodeState,
    child: &'v Inode,
    child_state: &'v mut InodeState,
    /// Whether the caller removes a directory.
    directory: bool,
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
        let mut next: Option<Arc<Inode>> = None;
        loop {
            let (orphan, again) = match next.take() {
                None => {
                    let mut dir_state = dir.state.write();
                    self.check_dir(dir, &dir_state)?;
                    // A transaction ends before the locks of its inodes are released.
                    let (child, mut child_state);
                    // Prefetches the lines of the name's leaf while the transaction
                    // begins.
                    let tree = dir_tree(&dir_state.disk);
                    let cursor = htree::seek_leaf(&self.vol, &tree, name)?;
                    let mut tx = self.begin(dir);
                    let Some(entry) = htree::find_dir_on(&self.vol, &tree, &cursor, name)? else {
                        self.check_absent(&dir_state, &tree, name)?;
                        return Err(Error::NotFound);
                    };
                    child = self.inode_of(&dir_state, name, Ino(entry.ino))?;
                    match child.state.try_write() {
                        // On a damaged medium a removal by another name may have freed
                        // it.
                        Some(found) if found.gone => continue,
                        Some(found) => {
                            child_state = found;
                            let removal = Removal {
                                dir,
                                dir_state: &mut dir_state,
                                child: &child,
                                child_state: &mut child_state,
                                directory,
                            };
                            (self.remove_locked(&mut tx, removal, &entry)?, None)
                        }
                        None => (None, Some(child.clone())),
                    }
                }
                // The child's lock was not free: lock both in order and look again.
                Some(child) => {
                    if child.ino == dir.ino {
                        return Err(Error::corrupt(
                            Damage::DirectoryLoop,
                            dir.ino.to_string(),
                            "the directory contains itself",
                        ));
                    }
                    let (first, second) = if child.ino < dir.ino {
                        (&child, dir)
                    } else {
                        (dir, &child)
                    };
                    let (mut a, mut b) = (first.state.write(), second.state.write());
                    let (dir_state, child_state) = if child.ino < dir.ino {
                        (&mut b, &mut a)
                    } else {
                        (&mut a, &mut b)
                    };
                    self.check_dir(dir, dir_state)?;
                    match self.entry(dir_state, name)? {
                        None => return Err(Error::NotFound),
                        Some(entry) if entry.ino == child.ino.0 && !child_state.gone => {
                            let removal = Removal {
                                dir,
                                dir_state,
                                child: &child,
                                child_state,
                                directory,
                            };
                            (
                                self.remove_locked(&mut self.begin(dir), removal, &entry)?,
                                None,
                            )
                        }
                        Some(_) => continue,
                    }
                }
            };
            match again {
                Some(child) => next = Some(child),
                None => return self.after_removal(orphan),
            }
        }
    }

    /// Frees an orphan that did not fit the record, if it has no references.
    pub(crate) fn after_removal(&self, orphan: Option<Ino>) -> Result<()> {
        match orphan {
            // The name is removed and the orphan table names the inode: a failure from
            // here on loses nothing, and the next mount tries again.
            Some(ino) if !self.refs.has(ino) => {
                if let Err(e) = self.free_orphan(ino) {
                    tracing::warn!(%ino, error = %e, "an unlinked inode was not freed");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn remove_locked<'v>(
        &self,
        tx: &mut Plan<'v>,
        removal: Removal<'v>,
        entry: &DirEntry,
    ) -> Result<Option<Ino>> {
        let Removal {
            dir,
            dir_state,
            child,
            child_state,
            directory,
        } = removal;
        chattr::check_write(&dir_state.disk)?;
        chattr::check_write(&child_state.disk)?;
        if directory {
            self.check_empty_dir(child_state)?;
        } else if child_state.is_dir() {
            return Err(Error::IsDirectory);
        }
        let now = self.now();
        tx.allow_reserve();
        let mut new_dir = Edit::new(dir, dir_state);
        touch_mtime(&mut new_dir, now);
        if directory {
            new_dir.nlink = new_dir.nlink.saturating_sub(1);
        }
        let last = directory || child_state.disk.nlink <= 1;
        if last && self.owns_nothing(child, child_state) {
            let mut record = tx.lock_lane(&[&dir.last_record, &child.last_record]);
            self.take_entry(&mut record, &mut new_dir, entry)?;
            let new_dir = new_dir.stage(&mut record)?;
            record.touch(&child.last_record);
            record.free_inode(child.ino)?;
            self.commit(record, [new_dir])?;
            self.remove_gone(child, child_state);
            return Ok(None);
        }
        let mut new = Edit::new(child, child_state);
        touch_ctime(&mut new, now);
        new.nlink = match directory {
            true => 0,
            false => new.nlink.saturating_sub(1),
        };
        self.take_entry(tx, &mut new_dir, entry)?;
        let new_dir = new_dir.stage(tx)?;
        let new = if new.nlink == 0 {
            self.drop_inode(tx, &mut new)?
        } else {
            new.stage(tx)?
        };
        let orphan = new.orphan();
        self.commit(tx.end(), [new_dir, new])?;
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
        if htree::is_empty(&self.vol, &dir_tree(&child_state.disk))? {
            Ok(())
        } else {
            Err(Error::corrupt(
                Damage::EntryCount,
                format!("directory {}", Ino(child_state.disk.ino)),
                "it has entries, but counts none",
            ))
        }
    }
}
