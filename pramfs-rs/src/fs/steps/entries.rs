//! Entries of a directory: finding, adding, replacing and removing them.
//!
//! What was found of a name, and where, is an [`At`]. It borrows the directory's next version
//! exclusively, and each change consumes it: a place cannot be used after its directory has
//! changed. Within one record this holds by the borrow; between records, by the lock of the
//! directory, which the edit keeps.
//!
//! Replacing or removing an entry requires the exclusive lock of its inode: taking that lock
//! invalidates what the dentry cache knows of it.

use std::sync::Arc;

use crate::fs::Engine;
use crate::fs::engine::change::Edit;
use crate::fs::engine::completeness::Hole;
use crate::fs::inode::Inode;
use crate::fs::inode::state::InodeState;
use crate::fs::policy::names;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{
    self, DirEntry, FreeSlots, InsertionPoint, LeafCursor, NewItem, NewLeaf, TreeRef,
};
use pramfs_medium::media::DiskInode;
use pramfs_medium::types::Ino;
use pramfs_medium::volume::{Plan, Record};

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
        let tree = TreeRef::directory(&state.disk);
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

    /// Finds the leaf of a name in a directory that is about to change, and prefetches its
    /// lines.
    #[inline]
    pub(crate) fn seek_entry<'e, 'v>(
        &'e self,
        dir: &'e mut Edit<'v>,
        name: &'e [u8],
    ) -> Result<Cursor<'e, 'v>> {
        Ok(At {
            engine: self,
            place: htree::seek_leaf(&self.vol, &TreeRef::directory(dir), name)?,
            dir,
            name,
        })
    }
}

/// A name in a directory that is about to change, and what is known of its place. While it
/// lives, the directory cannot change in another way.
pub(crate) struct At<'e, 'v, P> {
    pub(super) engine: &'e Engine,
    pub(super) dir: &'e mut Edit<'v>,
    pub(super) name: &'e [u8],
    pub(super) place: P,
}

/// A name, and the leaf that it leads to.
pub(crate) type Cursor<'e, 'v> = At<'e, 'v, LeafCursor>;
/// A name that exists.
pub(crate) type OccupiedEntry<'e, 'v> = At<'e, 'v, DirEntry>;

/// A name that does not exist, and where its entry goes.
pub(crate) enum Insertion<'e, 'v> {
    /// Its leaf has room: the insertion allocates nothing.
    InLeaf(At<'e, 'v, FreeSlots>),
    /// Its leaf has to be written or divided: the insertion allocates blocks.
    NewLeaf(At<'e, 'v, NewLeaf>),
}

impl<'e, 'v, P> At<'e, 'v, P> {
    /// Returns the directory.
    #[inline]
    pub(crate) fn dir(&self) -> &Edit<'v> {
        self.dir
    }

    #[inline]
    fn with<Q>(self, place: Q) -> At<'e, 'v, Q> {
        At {
            engine: self.engine,
            dir: self.dir,
            name: self.name,
            place,
        }
    }

    #[inline]
    pub(super) fn insertion_at(self, point: InsertionPoint) -> Insertion<'e, 'v> {
        match point {
            InsertionPoint::InLeaf(slots) => Insertion::InLeaf(self.with(slots)),
            InsertionPoint::NewLeaf(leaf) => Insertion::NewLeaf(self.with(leaf)),
        }
    }
}

/// What may be known of a name that exists.
pub(crate) trait MayExist {}
impl MayExist for DirEntry {}

impl<'e, 'v, P: MayExist> At<'e, 'v, P> {
    /// Lets the existing entry of the name lead to another inode, and returns the directory.
    /// The caller holds the exclusive lock of the inode that it named.
    pub(crate) fn replace(
        self,
        tx: &mut Record<'_>,
        child: &DiskInode,
    ) -> Result<&'e mut Edit<'v>> {
        let (kind, ino) = (names::dt(child.mode), child.ino.to_le_bytes());
        match htree::set_value(tx, &TreeRef::directory(self.dir), self.name, kind, &ino)? {
            true => Ok(self.dir),
            false => Err(Error::NotFound),
        }
    }
}

impl<'e, 'v> Cursor<'e, 'v> {
    /// Checks that the leaf is not a lost pointer: otherwise the name may exist, and an
    /// insertion would give it a second inode.
    #[inline]
    pub(crate) fn check_hole(&self) -> Result<()> {
        match self.place.is_hole() {
            true => self.engine.check_hole(self.dir.before(), Hole::Contents),
            false => Ok(()),
        }
    }

    /// Tells whether the name exists.
    pub(crate) fn exists(&self) -> Result<bool> {
        Ok(self.engine.entry(self.dir.before(), self.name)?.is_some())
    }

    /// Finds the entry of the name, which must exist.
    #[inline]
    pub(crate) fn occupied(self) -> Result<OccupiedEntry<'e, 'v>> {
        let tree = TreeRef::directory(self.dir);
        match htree::find_dir_on(&self.engine.vol, &tree, &self.place, self.name)? {
            Some(found) => Ok(self.with(found)),
            None => {
                self.engine
                    .check_absent(self.dir.before(), &tree, self.name)?;
                Err(Error::NotFound)
            }
        }
    }

    /// Finds the place for the name, which must not exist.
    #[inline]
    pub(crate) fn vacant(self, tx: &Record<'_>) -> Result<Insertion<'e, 'v>> {
        let tree = TreeRef::directory(self.dir);
        let point = self.place.insertion_point(tx, &tree, &sample(self.name))?;
        Ok(self.insertion_at(point))
    }
}

impl<'e, 'v> OccupiedEntry<'e, 'v> {
    /// Returns the number of the inode that it names.
    #[inline]
    pub(crate) fn ino(&self) -> Ino {
        Ino(self.place.ino)
    }

    /// Returns the inode that it names.
    pub(crate) fn inode(&self) -> Result<Arc<Inode>> {
        self.engine
            .inode_of(self.dir.before(), self.name, self.ino())
    }

    /// Removes the entry, and returns the directory. The caller holds the exclusive lock of
    /// its inode, which has invalidated the dentry cache.
    #[inline]
    pub(crate) fn remove(self, tx: &mut Record<'_>) -> Result<&'e mut Edit<'v>> {
        let mut tree = TreeRef::directory(self.dir);
        htree::remove_found(tx, &mut tree, &self.place.found)?;
        tree.store(self.dir);
        self.dir.size = self.dir.size.saturating_sub(1);
        Ok(self.dir)
    }
}

impl<'e, 'v> Insertion<'e, 'v> {
    /// Inserts an entry for an inode of this number and mode, and returns the directory.
    #[inline]
    pub(crate) fn insert(self, tx: &mut Plan<'_>, ino: Ino, mode: u32) -> Result<&'e mut Edit<'v>> {
        match self {
            Insertion::InLeaf(slots) => slots.insert(tx, ino, mode),
            Insertion::NewLeaf(At {
                dir, name, place, ..
            }) => {
                let mut tree = TreeRef::directory(dir);
                let value = ino.0.to_le_bytes();
                place.insert(tx, &mut tree, &item(name, mode, &value))?;
                tree.store(dir);
                dir.size = dir.size.saturating_add(1);
                Ok(dir)
            }
        }
    }
}

impl<'e, 'v> At<'e, 'v, FreeSlots> {
    /// As [`Insertion::insert`].
    #[inline]
    pub(crate) fn insert(
        self,
        tx: &mut Record<'_>,
        ino: Ino,
        mode: u32,
    ) -> Result<&'e mut Edit<'v>> {
        let At {
            dir, name, place, ..
        } = self;
        let value = ino.0.to_le_bytes();
        place.insert(tx, &TreeRef::directory(dir), &item(name, mode, &value))?;
        dir.size = dir.size.saturating_add(1);
        Ok(dir)
    }
}

#[inline]
fn item<'a>(name: &'a [u8], mode: u32, ino: &'a [u8; 8]) -> NewItem<'a> {
    NewItem {
        name,
        kind: names::dt(mode),
        value: ino,
    }
}

/// An item of the size of an entry with this name: enough to find its place.
#[inline]
pub(super) fn sample(name: &[u8]) -> NewItem<'_> {
    item(name, 0, &[0; 8])
}

#[cold]
fn reserved(state: &InodeState, name: &[u8], ino: Ino) -> Error {
    Error::corrupt(
        Damage::EntryReserved,
        ("directory", Ino(state.disk.ino)),
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
        ("directory", Ino(state.disk.ino)),
        format!(
            "the entry \"{}\" leads to {ino}, which does not exist",
            name.escape_ascii()
        ),
    )
}
