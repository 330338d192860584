//! Entries of a directory: finding, adding, replacing and removing them.
//!
//! Who replaces or removes one holds the exclusive lock of the inode that it led
//! to: the dentry cache has forgotten it by then.

use std::sync::Arc;

use super::inode::{Inode, InodeState};
use super::orphan::{dir_tree, store_tree};
use super::{Engine, names};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, Cursor, DirEntry, VacantEntry};
use pramfs_medium::media::DiskInode;
use pramfs_medium::types::Ino;
use pramfs_medium::volume::Tx;

impl Engine {
    /// A directory that can be searched and changed.
    pub(super) fn check_dir(&self, inode: &Inode, state: &InodeState) -> Result<()> {
        state.alive(inode.ino)?;
        if !state.is_dir() {
            return Err(Error::NotDirectory);
        }
        Ok(())
    }

    /// A directory that entries can be added to: one without names has none.
    pub(super) fn check_linked_dir(&self, inode: &Inode, state: &InodeState) -> Result<()> {
        self.check_dir(inode, state)?;
        if state.disk.nlink == 0 {
            Err(Error::NotFound)
        } else {
            Ok(())
        }
    }

    /// The entry of a name in a locked directory.
    #[inline]
    pub(super) fn entry(&self, state: &InodeState, name: &[u8]) -> Result<Option<DirEntry>> {
        let tree = dir_tree(&state.disk);
        let found = htree::find_dir(&self.vol, &tree, name)?;
        if found.is_none() {
            self.check_absent(state, &tree, name)?;
        }
        Ok(found)
    }

    /// The inode that a name of a locked directory leads to. A name that leads
    /// nowhere is damage.
    pub(super) fn entry_inode(
        &self,
        state: &InodeState,
        name: &[u8],
    ) -> Result<Option<Arc<Inode>>> {
        match self.entry(state, name)? {
            Some(entry) => self.inode_of(state, name, Ino(entry.ino)).map(Some),
            None => Ok(None),
        }
    }

    /// The inode that an entry names.
    #[inline]
    pub(super) fn inode_of(&self, state: &InodeState, name: &[u8], ino: Ino) -> Result<Arc<Inode>> {
        if ino < Ino::FIRST_FREE {
            return Err(reserved(state, name, ino));
        }
        self.iget(ino).map_err(|e| match e {
            Error::Stale(_) => dangling(state, name, ino),
            other => other,
        })
    }

    /// As [`entry_inode`](Self::entry_inode), of a name that is likely not to be
    /// there: then, if possible, with the place for it, for
    /// [`add_entry_at`](Self::add_entry_at).
    pub(super) fn entry_inode_or_vacant(
        &self,
        state: &InodeState,
        name: &[u8],
    ) -> Result<(Option<Arc<Inode>>, Option<VacantEntry>)> {
        let tree = dir_tree(&state.disk);
        match htree::find_dir_or_vacant(&self.vol, &tree, name)? {
            Ok(entry) => Ok((Some(self.inode_of(state, name, Ino(entry.ino))?), None)),
            Err(vacant) => {
                self.check_absent(state, &tree, name)?;
                Ok((None, vacant))
            }
        }
    }

    /// Puts an entry into a directory, for an inode of this number and mode.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`].
    pub(super) fn add_entry(
        &self,
        tx: &mut Tx<'_>,
        dir: &mut DiskInode,
        name: &[u8],
        (ino, mode): (u64, u32),
    ) -> Result<()> {
        self.add_entry_at(tx, dir, name, None, (ino, mode))
    }

    /// As [`add_entry`](Self::add_entry), of a name to which the way is known:
    /// the directory has been locked exclusively since that was found, and `tx`
    /// has done nothing to it.
    ///
    /// # Errors
    /// As for [`add_entry`](Self::add_entry).
    pub(super) fn add_entry_on(
        &self,
        tx: &mut Tx<'_>,
        dir: &mut DiskInode,
        (name, cursor): (&[u8], &Cursor),
        (ino, mode): (u64, u32),
    ) -> Result<()> {
        let mut tree = dir_tree(dir);
        let (kind, value) = (names::dt(mode), ino.to_le_bytes());
        htree::insert_on(tx, &mut tree, cursor, name, kind, &value)?;
        store_tree(dir, &tree);
        dir.size = dir.size.saturating_add(1);
        Ok(())
    }

    /// As [`add_entry`](Self::add_entry), of a name that was looked for and not
    /// found; the directory has been locked exclusively since, and `tx` has done
    /// no more to it than to remove entries.
    ///
    /// # Errors
    /// As for [`add_entry`](Self::add_entry).
    #[inline]
    pub(super) fn add_entry_at(
        &self,
        tx: &mut Tx<'_>,
        dir: &mut DiskInode,
        name: &[u8],
        vacant: Option<&VacantEntry>,
        (ino, mode): (u64, u32),
    ) -> Result<()> {
        let mut tree = dir_tree(dir);
        let (kind, value) = (names::dt(mode), ino.to_le_bytes());
        match vacant {
            Some(vacant) => htree::insert_at(tx, &mut tree, vacant, name, kind, &value)?,
            None => htree::insert(tx, &mut tree, name, kind, &value)?,
        };
        store_tree(dir, &tree);
        dir.size = dir.size.saturating_add(1);
        Ok(())
    }

    /// Has an entry of a directory lead elsewhere.
    pub(super) fn replace_entry(
        &self,
        tx: &mut Tx<'_>,
        dir: &DiskInode,
        name: &[u8],
        child: &DiskInode,
    ) -> Result<()> {
        let (kind, value) = (names::dt(child.mode), child.ino.to_le_bytes());
        match htree::set_value(tx, &dir_tree(dir), name, kind, &value)? {
            true => Ok(()),
            false => Err(Error::NotFound),
        }
    }

    /// Takes an entry out of a directory, which has been locked and not changed
    /// since it was found.
    pub(super) fn take_entry(
        &self,
        tx: &mut Tx<'_>,
        dir: &mut DiskInode,
        entry: &DirEntry,
    ) -> Result<()> {
        let mut tree = dir_tree(dir);
        htree::remove_found(tx, &mut tree, &entry.found)?;
        store_tree(dir, &tree);
        dir.size = dir.size.saturating_sub(1);
        Ok(())
    }
}

#[cold]
fn reserved(state: &InodeState, name: &[u8], ino: Ino) -> Error {
    Error::corrupt(
        Damage::EntryReserved,
        format!("directory {}", Ino(state.disk.ino)),
        format!(
            "the entry \"{}\" leads to {ino}, which is reserved",
            name.escape_ascii()
        ),
    )
}

#[cold]
fn dangling(state: &InodeState, name: &[u8], ino: Ino) -> Error {
    Error::corrupt(
        Damage::DanglingEntry,
        format!("directory {}", Ino(state.disk.ino)),
        format!(
            "the entry \"{}\" leads to {ino}, which does not exist",
            name.escape_ascii()
        ),
    )
}
