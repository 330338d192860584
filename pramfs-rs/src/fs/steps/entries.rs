//! Entries of a directory: finding, adding, replacing and removing them.
//!
//! A change goes from a [`Cursor`] to an [`Entry`], as in the maps of `std`. Both borrow the
//! directory's next version exclusively, so nothing can change the directory between the
//! search for a place and its use. Within one record this holds by the borrow; between
//! records, by the lock of the directory, which the edit keeps.
//!
//! Replacing or removing an entry requires the exclusive lock of its inode: taking that lock
//! invalidates what the dentry cache knows of it.

use std::sync::Arc;

use crate::fs::Engine;
use crate::fs::engine::change::Edit;
use crate::fs::engine::completeness::Hole;
use crate::fs::inode::Inode;
use crate::fs::inode::state::InodeState;
use crate::fs::inode::trees::{dir_tree, store_tree};
use crate::fs::policy::names;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::htree::{self, DirEntry, InsertionPoint, LeafCursor, NewItem};
use pramfs_medium::media::DiskInode;
use pramfs_medium::types::Ino;
use pramfs_medium::volume::{Plan, Record};

/// A new entry of a directory.
#[derive(Debug)]
struct NewEntry<'a> {
    name: &'a [u8],
    kind: u8,
    ino: [u8; 8],
}

impl<'a> NewEntry<'a> {
    /// Creates an entry for an inode of this number and mode.
    #[inline]
    fn new(name: &'a [u8], ino: Ino, mode: u32) -> NewEntry<'a> {
        NewEntry {
            name,
            kind: names::dt(mode),
            ino: ino.0.to_le_bytes(),
        }
    }

    #[inline]
    fn item(&self) -> NewItem<'_> {
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

    /// Finds the leaf of a name in a directory that is about to change, and prefetches its
    /// lines.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    #[inline]
    pub(crate) fn seek_entry<'e, 'v>(
        &'e self,
        dir: &'e mut Edit<'v>,
        name: &'e [u8],
    ) -> Result<Cursor<'e, 'v>> {
        let leaf = htree::seek_leaf(&self.vol, &dir_tree(dir), name)?;
        Ok(Cursor {
            engine: self,
            dir,
            name,
            leaf,
        })
    }
}

/// The leaf of a name in a directory. While it lives, the directory cannot change.
pub(crate) struct Cursor<'e, 'v> {
    engine: &'e Engine,
    dir: &'e mut Edit<'v>,
    name: &'e [u8],
    leaf: LeafCursor,
}

impl<'e, 'v> Cursor<'e, 'v> {
    /// Returns the directory.
    #[inline]
    pub(crate) fn dir(&self) -> &Edit<'v> {
        self.dir
    }

    /// Checks that the leaf is not a lost pointer: otherwise the name may exist, and an
    /// insertion would give it a second inode.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    #[inline]
    pub(crate) fn check_hole(&self) -> Result<()> {
        match self.leaf.is_hole() {
            true => self.engine.check_hole(self.dir.before(), Hole::Contents),
            false => Ok(()),
        }
    }

    /// Tells whether the name exists.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn exists(&self) -> Result<bool> {
        Ok(self.engine.entry(self.dir.before(), self.name)?.is_some())
    }

    /// Looks up the name.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    #[inline]
    pub(crate) fn entry(self) -> Result<Entry<'e, 'v>> {
        let Cursor {
            engine,
            dir,
            name,
            leaf,
        } = self;
        let tree = dir_tree(dir);
        Ok(match htree::find_dir_on(&engine.vol, &tree, &leaf, name)? {
            Some(found) => Entry::Occupied(OccupiedEntry {
                engine,
                dir,
                name,
                found,
            }),
            None => {
                engine.check_absent(dir.before(), &tree, name)?;
                Entry::Vacant(VacantEntry {
                    dir,
                    name,
                    place: Place::Leaf(leaf),
                })
            }
        })
    }

    /// Finds the place for the name, which must not exist. `ino` and `mode` are those of
    /// the inode that the entry names.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`], [`Error::Corrupt`].
    #[inline]
    pub(crate) fn vacant(self, tx: &Record<'_>, ino: Ino, mode: u32) -> Result<Insertion<'e, 'v>> {
        let Cursor {
            dir, name, leaf, ..
        } = self;
        let entry = NewEntry::new(name, ino, mode);
        let place = leaf.insertion_point(tx, &dir_tree(dir), &entry.item())?;
        Ok(Insertion::new(dir, entry, place))
    }
}

/// A name in a directory that is about to change, as in the maps of `std`. While it lives,
/// the directory cannot change in another way.
pub(crate) enum Entry<'e, 'v> {
    /// The name exists.
    Occupied(OccupiedEntry<'e, 'v>),
    /// It does not.
    Vacant(VacantEntry<'e, 'v>),
}

impl<'v> Entry<'_, 'v> {
    /// Returns the directory.
    pub(crate) fn dir(&self) -> &Edit<'v> {
        match self {
            Entry::Occupied(entry) => entry.dir,
            Entry::Vacant(entry) => entry.dir,
        }
    }

    /// Returns the directory.
    pub(crate) fn dir_mut(&mut self) -> &mut Edit<'v> {
        match self {
            Entry::Occupied(entry) => entry.dir,
            Entry::Vacant(entry) => entry.dir,
        }
    }

    /// Returns the number of the inode that the name leads to, if the name exists.
    pub(crate) fn ino(&self) -> Option<Ino> {
        match self {
            Entry::Occupied(entry) => Some(entry.ino()),
            Entry::Vacant(_) => None,
        }
    }

    /// Forgets the place of a vacant entry, after a record other than that of the
    /// insertion has changed the directory.
    pub(crate) fn forget_place(&mut self) {
        if let Entry::Vacant(entry) = self {
            entry.place = Place::Unknown;
        }
    }
}

/// An existing entry, with its place.
pub(crate) struct OccupiedEntry<'e, 'v> {
    pub(super) engine: &'e Engine,
    pub(super) dir: &'e mut Edit<'v>,
    pub(super) name: &'e [u8],
    pub(super) found: DirEntry,
}

impl<'e, 'v> OccupiedEntry<'e, 'v> {
    /// Returns the directory.
    #[inline]
    pub(crate) fn dir(&self) -> &Edit<'v> {
        self.dir
    }

    /// Returns the number of the inode that it names.
    #[inline]
    pub(crate) fn ino(&self) -> Ino {
        Ino(self.found.ino)
    }

    /// Returns the inode that it names.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn inode(&self) -> Result<Arc<Inode>> {
        self.engine
            .inode_of(self.dir.before(), self.name, self.ino())
    }

    /// Removes the entry. The caller holds the exclusive lock of its inode, which has
    /// invalidated the dentry cache.
    ///
    /// # Errors
    /// Errors of the region; a full record.
    #[inline]
    pub(crate) fn remove(self, tx: &mut Record<'_>) -> Result<&'e mut Edit<'v>> {
        let mut tree = dir_tree(self.dir);
        htree::remove_found(tx, &mut tree, &self.found.found)?;
        store_tree(self.dir, &tree);
        self.dir.size = self.dir.size.saturating_sub(1);
        Ok(self.dir)
    }

    /// Lets the entry name another inode. The caller holds the exclusive lock of the
    /// inode that it named.
    ///
    /// # Errors
    /// Errors of the region; a full record.
    pub(crate) fn replace(
        self,
        tx: &mut Record<'_>,
        child: &DiskInode,
    ) -> Result<&'e mut Edit<'v>> {
        replace(tx, self.dir, self.name, child)?;
        Ok(self.dir)
    }
}

/// A name that does not exist.
pub(crate) struct VacantEntry<'e, 'v> {
    pub(super) dir: &'e mut Edit<'v>,
    pub(super) name: &'e [u8],
    pub(super) place: Place,
}

/// What is known of the place for a name.
pub(super) enum Place {
    /// Its leaf.
    Leaf(LeafCursor),
    /// Its leaf before the removals of this transaction.
    BeforeRemoval(htree::VacantEntry),
    /// Nothing.
    Unknown,
}

impl<'e, 'v> VacantEntry<'e, 'v> {
    /// Returns the directory.
    #[inline]
    pub(crate) fn dir(&self) -> &Edit<'v> {
        self.dir
    }

    /// Finds the place for the name. `ino` and `mode` are those of the inode that the
    /// entry will name.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Corrupt`].
    pub(crate) fn insertion(
        self,
        tx: &Record<'_>,
        ino: Ino,
        mode: u32,
    ) -> Result<Insertion<'e, 'v>> {
        let VacantEntry { dir, name, place } = self;
        let entry = NewEntry::new(name, ino, mode);
        let (tree, item) = (dir_tree(dir), entry.item());
        let point = match place {
            Place::Leaf(leaf) => Some(leaf.insertion_point(tx, &tree, &item)?),
            Place::BeforeRemoval(vacant) => vacant.insertion_point(tx, &tree, &item)?,
            Place::Unknown => None,
        };
        let point = match point {
            Some(point) => point,
            None => htree::insertion_point(tx, &tree, &item)?,
        };
        Ok(Insertion::new(dir, entry, point))
    }
}

/// Where a new entry goes. It borrows the directory until it is there.
pub(crate) enum Insertion<'e, 'v> {
    /// Its leaf has room: the insertion allocates nothing.
    InLeaf(InLeaf<'e, 'v>),
    /// Its leaf has to be written or divided: the insertion allocates blocks.
    NewLeaf(NewLeaf<'e, 'v>),
}

/// See [`Insertion::InLeaf`].
pub(crate) struct InLeaf<'e, 'v> {
    dir: &'e mut Edit<'v>,
    entry: NewEntry<'e>,
    slots: htree::FreeSlots,
}

/// See [`Insertion::NewLeaf`].
pub(crate) struct NewLeaf<'e, 'v> {
    dir: &'e mut Edit<'v>,
    entry: NewEntry<'e>,
    leaf: htree::NewLeaf,
}

impl<'e, 'v> Insertion<'e, 'v> {
    #[inline]
    fn new(dir: &'e mut Edit<'v>, entry: NewEntry<'e>, point: InsertionPoint) -> Self {
        match point {
            InsertionPoint::InLeaf(slots) => Insertion::InLeaf(InLeaf { dir, entry, slots }),
            InsertionPoint::NewLeaf(leaf) => Insertion::NewLeaf(NewLeaf { dir, entry, leaf }),
        }
    }

    /// Returns the directory.
    #[inline]
    pub(crate) fn dir(&self) -> &Edit<'v> {
        match self {
            Insertion::InLeaf(slots) => slots.dir,
            Insertion::NewLeaf(leaf) => leaf.dir,
        }
    }

    /// Inserts the entry, and returns the directory.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Corrupt`].
    #[inline]
    pub(crate) fn insert(self, tx: &mut Plan<'_>) -> Result<&'e mut Edit<'v>> {
        match self {
            Insertion::InLeaf(slots) => slots.insert(tx),
            Insertion::NewLeaf(NewLeaf { dir, entry, leaf }) => {
                let mut tree = dir_tree(dir);
                leaf.insert(tx, &mut tree, &entry.item())?;
                store_tree(dir, &tree);
                dir.size = dir.size.saturating_add(1);
                Ok(dir)
            }
        }
    }
}

impl<'e, 'v> InLeaf<'e, 'v> {
    /// Inserts the entry, and returns the directory.
    ///
    /// # Errors
    /// Errors of the region; a full record.
    #[inline]
    pub(crate) fn insert(self, tx: &mut Record<'_>) -> Result<&'e mut Edit<'v>> {
        let InLeaf { dir, entry, slots } = self;
        slots.insert(tx, &dir_tree(dir), &entry.item())?;
        dir.size = dir.size.saturating_add(1);
        Ok(dir)
    }
}

/// Lets an entry name another inode.
fn replace(tx: &mut Record<'_>, dir: &DiskInode, name: &[u8], child: &DiskInode) -> Result<()> {
    let (kind, value) = (names::dt(child.mode), child.ino.to_le_bytes());
    match htree::set_value(tx, &dir_tree(dir), name, kind, &value)? {
        true => Ok(()),
        false => Err(Error::NotFound),
    }
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
