//! The two names of a rename, in one directory or in two.
//!
//! Both are looked up before the old one changes. [`Names::change_old`] consumes what was
//! found of the old one, and hands on the place of the new one.

use std::sync::Arc;

use crate::fs::Engine;
use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::steps::entries::{At, Insertion, MayExist, OccupiedEntry, sample};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::htree::{self, TreeRef, VacantEntry};
use pramfs_medium::media::DiskInode;
use pramfs_medium::types::Ino;
use pramfs_medium::volume::Record;

/// The names of a rename, and what is known of them.
pub(crate) struct Names<'e, 'v> {
    /// The old name, in its directory.
    pub old: OccupiedEntry<'e, 'v>,
    new: &'e [u8],
    place: NewName,
    /// The directory of the new name; `None` if it is that of the old one.
    to: Option<&'e mut Edit<'v>>,
}

/// What is known of the new name of a rename.
pub(crate) enum NewName {
    /// It leads to this inode.
    Exists(Ino),
    /// It does not exist. The place for it is from before the transaction, if it is known.
    Vacant(Option<VacantEntry>),
}

impl Engine {
    /// Looks up the names of a rename. `to` is `None` within one directory.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the old name does not exist; [`Error::Corrupt`].
    pub(crate) fn seek_names<'e, 'v>(
        &'e self,
        from: &'e mut Edit<'v>,
        to: Option<&'e mut Edit<'v>>,
        old: &'e [u8],
        new: &'e [u8],
    ) -> Result<Names<'e, 'v>> {
        let found = self.entry(from.before(), old)?.ok_or(Error::NotFound)?;
        let dir = to.as_deref().unwrap_or(from);
        let tree = TreeRef::directory(dir);
        let place = match htree::find_dir_or_vacant(&self.vol, &tree, new)? {
            Ok(entry) => NewName::Exists(Ino(entry.ino)),
            Err(vacant) => {
                self.check_absent(dir.before(), &tree, new)?;
                NewName::Vacant(vacant)
            }
        };
        let old = At {
            engine: self,
            dir: from,
            name: old,
            place: found,
        };
        Ok(Names {
            old,
            new,
            place,
            to,
        })
    }
}

impl<'e, 'v> Names<'e, 'v> {
    /// Returns the directory of the old name.
    pub(crate) fn from(&self) -> &Edit<'v> {
        self.old.dir()
    }

    /// Returns the directory of the new name.
    pub(crate) fn to(&self) -> &Edit<'v> {
        self.to.as_deref().unwrap_or(self.old.dir())
    }

    /// Returns the number of the inode that the new name leads to, if the name exists.
    pub(crate) fn new_ino(&self) -> Option<Ino> {
        match self.place {
            NewName::Exists(ino) => Some(ino),
            NewName::Vacant(_) => None,
        }
    }

    /// Returns the inode that the new name leads to, if the name exists.
    pub(crate) fn new_inode(&self) -> Result<Option<Arc<Inode>>> {
        let (engine, dir) = (self.old.engine, self.to().before());
        self.new_ino()
            .map(|ino| engine.inode_of(dir, self.new, ino))
            .transpose()
    }

    /// Lets the old name lead to `instead`, or removes it. Returns the directory of the old
    /// name, if it is not that of the new one, and the new name.
    pub(crate) fn change_old(
        self,
        tx: &mut Record<'_>,
        instead: Option<&DiskInode>,
    ) -> Result<(Option<&'e mut Edit<'v>>, At<'e, 'v, NewName>)> {
        let engine = self.old.engine;
        let from = match instead {
            Some(inode) => self.old.replace(tx, inode)?,
            None => self.old.remove(tx)?,
        };
        let (from, dir) = match self.to {
            Some(to) => (Some(from), to),
            None => (None, from),
        };
        let new = At {
            engine,
            dir,
            name: self.new,
            place: self.place,
        };
        Ok((from, new))
    }
}

impl MayExist for NewName {}

impl<'e, 'v> At<'e, 'v, NewName> {
    /// Returns the directory.
    pub(crate) fn dir_mut(&mut self) -> &mut Edit<'v> {
        self.dir
    }

    /// Forgets the place, after a record other than that of the insertion has changed the
    /// directory.
    pub(crate) fn forget_place(&mut self) {
        if let NewName::Vacant(vacant) = &mut self.place {
            *vacant = None;
        }
    }

    /// Finds the place for the name, which must not exist. Since it was looked up, nothing
    /// but `tx` has changed the directory.
    pub(crate) fn insertion(self, tx: &Record<'_>) -> Result<Insertion<'e, 'v>> {
        let (tree, item) = (TreeRef::directory(self.dir), sample(self.name));
        let known = match &self.place {
            NewName::Exists(_) => return Err(Error::Exists),
            NewName::Vacant(None) => None,
            NewName::Vacant(Some(vacant)) => vacant.insertion_point(tx, &tree, &item)?,
        };
        let point = match known {
            Some(point) => point,
            None => htree::insertion_point(tx, &tree, &item)?,
        };
        Ok(self.insertion_at(point))
    }
}
