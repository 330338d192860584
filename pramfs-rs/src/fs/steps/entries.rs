//! Entries of a directory: finding, adding, replacing and removing them.
//!
//! Who replaces or removes one holds the exclusive lock of the inode that it led
//! to: the dentry cache has forgotten it by then.

use std::sync::Arc;

use crate::fs::Engine;
use crate::fs::inode::Inode;
use crate::fs::inode::state::InodeState;
use crate::fs::inode::trees::{dir_tree, store_tree};
use crate::fs::policy::names;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, DirEntry, FreeSlots, InsertionPoint, NewItem, VacantEntry};
use pramfs_medium::media::DiskInode;
use pramfs_medium::types::Ino;
use pramfs_medium::volume::{Plan, Record};

/// A new entry of a directory.
#[derive(Debug)]
pub(crate) struct NewEntry<'a> {
    name: &'a [u8],
    kind: u8,
    ino: [u8; 8],
}

impl<'a> NewEntry<'a> {
    /// Creates an entry for an inode of this number and mode.
    #[inline]
    pub(crate) fn new(name: &'a [u8], ino: Ino, mode: u32) -> NewEntry<'a> {
        NewEntry {
            name,
            kind: names::dt(mode),
            ino: ino.0.to_le_bytes(),
        }
    }

    #[inline]
    pub(crate) fn item(&self) -> NewItem<'_> {
        NewItem {
            name: self.name,
            kind: self.kind,
            value: &self.ino,
        }
    }
}

impl Engine {
    /// A directory that can be searched and changed.
    pub(crate) fn check_dir(&self, inode: &Inode, state: &InodeState) -> Result<()> {
        state.alive(inode.ino)?;
        if !state.is_dir() {
            return Err(Error::NotDirectory);
        }
        Ok(())
    }

    /// A directory that entries can be added to: one without names has none.
    pub(crate) fn check_linked_dir(&self, inode: &Inode, state: &InodeState) -> Result<()> {
        self.check_dir(inode, state)?;
        if state.disk.nlink == 0 {
            Err(Error::NotFound)
        } else {
            Ok(())
        }
    }

    /// The entry of a name in a locked directory.
    #[inline]
    pub(crate) fn entry(&self, state: &InodeState, name: &[u8]) -> Result<Option<DirEntry>> {
        let tree = dir_tree(&state.disk);
        let found = htree::find_dir(&self.vol, &tree, name)?;
        if found.is_none() {
            self.check_absent(state, &tree, name)?;
        }
        Ok(found)
    }

    /// The inode that a name of a locked directory leads to. A name that leads
    /// nowhere is damage.
    pub(crate) fn entry_inode(
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
    pub(crate) fn inode_of(&self, state: &InodeState, name: &[u8], ino: Ino) -> Result<Arc<Inode>> {
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
    pub(crate) fn entry_inode_or_vacant(
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

    /// Puts an entry into a directory.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`].
    pub(crate) fn add_entry(
        &self,
        tx: &mut Plan<'_>,
        dir: &mut DiskInode,
        entry: &NewEntry<'_>,
    ) -> Result<()> {
        let place = htree::insertion_point(tx, &dir_tree(dir), &entry.item())?;
        self.add_entry_at(tx, dir, place, entry)
    }

    /// As [`add_entry`](Self::add_entry), at a known place.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    #[inline]
    pub(crate) fn add_entry_at(
        &self,
        tx: &mut Plan<'_>,
        dir: &mut DiskInode,
        place: InsertionPoint,
        entry: &NewEntry<'_>,
    ) -> Result<()> {
        let mut tree = dir_tree(dir);
        place.insert(tx, &mut tree, &entry.item())?;
        store_tree(dir, &tree);
        dir.size = dir.size.saturating_add(1);
        Ok(())
    }

    /// As [`add_entry`](Self::add_entry), into free slots, which allocates nothing.
    ///
    /// # Errors
    /// Errors of the region; a full record.
    #[inline]
    pub(crate) fn fill_slots(
        &self,
        tx: &mut Record<'_>,
        dir: &mut DiskInode,
        slots: FreeSlots,
        entry: &NewEntry<'_>,
    ) -> Result<()> {
        slots.insert(tx, &dir_tree(dir), &entry.item())?;
        dir.size = dir.size.saturating_add(1);
        Ok(())
    }

    /// Has an entry of a directory lead elsewhere.
    pub(crate) fn replace_entry(
        &self,
        tx: &mut Record<'_>,
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
    pub(crate) fn take_entry(
        &self,
        tx: &mut Record<'_>,
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
