//! The two entries of a rename, in one directory or in two.
//!
//! Within one directory, both entries are looked up before the old one changes. Only the
//! functions here use the place of the new one afterwards.

use std::sync::Arc;

use crate::fs::Engine;
use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::inode::trees::dir_tree;
use crate::fs::steps::entries::{Entry, OccupiedEntry, Place, VacantEntry};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::htree::{self, DirEntry};
use pramfs_medium::media::DiskInode;
use pramfs_medium::types::Ino;
use pramfs_medium::volume::Record;

impl Engine {
    /// Looks up two names of one directory, for a rename within it.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the old name does not exist; [`Error::Corrupt`].
    pub(crate) fn seek_two<'e, 'v>(
        &'e self,
        dir: &'e mut Edit<'v>,
        old: &'e [u8],
        new: &'e [u8],
    ) -> Result<TwoEntries<'e, 'v>> {
        let tree = dir_tree(dir);
        let found = self.entry(dir.before(), old)?.ok_or(Error::NotFound)?;
        let place = match htree::find_dir_or_vacant(&self.vol, &tree, new)? {
            Ok(entry) => Second::Occupied(entry),
            Err(vacant) => {
                self.check_absent(dir.before(), &tree, new)?;
                Second::Vacant(vacant)
            }
        };
        let old = OccupiedEntry {
            engine: self,
            dir,
            name: old,
            found,
        };
        Ok(TwoEntries { old, new, place })
    }
}

/// Two entries of one directory: the old name of a rename, and the new one.
pub(crate) struct TwoEntries<'e, 'v> {
    /// The old name.
    pub old: OccupiedEntry<'e, 'v>,
    new: &'e [u8],
    place: Second,
}

/// What is known of the second of two names.
enum Second {
    Occupied(DirEntry),
    Vacant(Option<htree::VacantEntry>),
}

impl<'e, 'v> TwoEntries<'e, 'v> {
    /// Returns the inode that the new name leads to, if the name exists.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn new_inode(&self) -> Result<Option<Arc<Inode>>> {
        let OccupiedEntry { engine, dir, .. } = &self.old;
        match self.place {
            Second::Occupied(ref entry) => engine
                .inode_of(dir.before(), self.new, Ino(entry.ino))
                .map(Some),
            Second::Vacant(_) => Ok(None),
        }
    }

    /// Returns the number of the inode that the new name leads to, if the name exists.
    pub(crate) fn new_ino(&self) -> Option<Ino> {
        match &self.place {
            Second::Occupied(entry) => Some(Ino(entry.ino)),
            Second::Vacant(_) => None,
        }
    }

    /// Removes the old entry, and returns the new one.
    ///
    /// # Errors
    /// As for [`OccupiedEntry::remove`].
    pub(crate) fn remove_old(self, tx: &mut Record<'_>) -> Result<Entry<'e, 'v>> {
        let engine = self.old.engine;
        let dir = self.old.remove(tx)?;
        Ok(self.place.into_entry(engine, dir, self.new))
    }

    /// Lets the old entry name another inode, and returns the new one.
    ///
    /// # Errors
    /// As for [`OccupiedEntry::replace`].
    pub(crate) fn replace_old(
        self,
        tx: &mut Record<'_>,
        child: &DiskInode,
    ) -> Result<Entry<'e, 'v>> {
        let engine = self.old.engine;
        let dir = self.old.replace(tx, child)?;
        Ok(self.place.into_entry(engine, dir, self.new))
    }
}

impl Second {
    fn into_entry<'e, 'v>(
        self,
        engine: &'e Engine,
        dir: &'e mut Edit<'v>,
        name: &'e [u8],
    ) -> Entry<'e, 'v> {
        match self {
            // The removal of another item moves none.
            Second::Occupied(found) => Entry::Occupied(OccupiedEntry {
                engine,
                dir,
                name,
                found,
            }),
            Second::Vacant(vacant) => Entry::Vacant(VacantEntry {
                dir,
                name,
                place: vacant.map_or(Place::Unknown, Place::BeforeRemoval),
            }),
        }
    }
}

/// The entries of both names.
pub(crate) enum Names<'e, 'v> {
    /// They are in one directory.
    Within(TwoEntries<'e, 'v>),
    /// They are in two directories.
    Across {
        /// The old name.
        old: OccupiedEntry<'e, 'v>,
        /// The new name.
        new: Entry<'e, 'v>,
    },
}

/// A rename whose old entry is removed or replaced.
pub(crate) struct HalfRenamed<'e, 'v> {
    /// The directory of the old name; `None` if it is that of the new one.
    pub from: Option<&'e mut Edit<'v>>,
    /// The entry of the new name.
    pub new: Entry<'e, 'v>,
}

impl<'e, 'v> Names<'e, 'v> {
    /// Returns the directory of the old name.
    pub(crate) fn from(&self) -> &Edit<'v> {
        match self {
            Names::Within(two) => two.old.dir(),
            Names::Across { old, .. } => old.dir(),
        }
    }

    /// Returns the directory of the new name.
    pub(crate) fn to(&self) -> &Edit<'v> {
        match self {
            Names::Within(two) => two.old.dir(),
            Names::Across { new, .. } => new.dir(),
        }
    }

    /// Removes the entry of the old name.
    ///
    /// # Errors
    /// As for [`OccupiedEntry::remove`].
    pub(crate) fn remove_old(self, tx: &mut Record<'_>) -> Result<HalfRenamed<'e, 'v>> {
        Ok(match self {
            Names::Within(two) => HalfRenamed {
                from: None,
                new: two.remove_old(tx)?,
            },
            Names::Across { old, new } => HalfRenamed {
                from: Some(old.remove(tx)?),
                new,
            },
        })
    }

    /// Lets the entry of the old name name another inode.
    ///
    /// # Errors
    /// As for [`OccupiedEntry::replace`].
    pub(crate) fn replace_old(
        self,
        tx: &mut Record<'_>,
        child: &DiskInode,
    ) -> Result<HalfRenamed<'e, 'v>> {
        Ok(match self {
            Names::Within(two) => HalfRenamed {
                from: None,
                new: two.replace_old(tx, child)?,
            },
            Names::Across { old, new } => HalfRenamed {
                from: Some(old.replace(tx, child)?),
                new,
            },
        })
    }
}

impl<'v> HalfRenamed<'_, 'v> {
    /// Returns the directory of the old name.
    pub(crate) fn old_dir_mut(&mut self) -> &mut Edit<'v> {
        match &mut self.from {
            Some(from) => from,
            None => self.new.dir_mut(),
        }
    }
}
