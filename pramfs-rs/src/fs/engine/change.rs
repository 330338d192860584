//! A change of inodes: one record makes it durable, and only then memory shows it.
//!
//! ```text
//! let mut new = Edit::new(inode, state);     // the next version of a locked inode
//! let mut tx = self.begin(inode);            // a plan: it may allocate
//! new.size = size;
//! let new = new.stage(&mut tx)?;             // into the record; no edit after this
//! self.commit(tx, [new])?;                   // durable, then visible
//! ```
//!
//! The compiler keeps the order: a staged edit cannot change, and nothing but the commit
//! publishes it. A change that is dropped leaves memory and medium as they were.

use std::ops::{Deref, DerefMut};

use crate::fs::Engine;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::{put_lines, store_healed};
use crate::fs::inode::state::InodeState;
use pramfs_medium::error::Result;
use pramfs_medium::journal::RecordId;
use pramfs_medium::map::MapRef;
use pramfs_medium::media::DiskInode;
use pramfs_medium::types::{FileBlock, Ino};
use pramfs_medium::volume::{Plan, Record, Recording, Restore};

/// The next version of a locked inode. It derefs to that version.
pub(crate) struct Edit<'v> {
    inode: &'v Inode,
    state: &'v mut InodeState,
    new: DiskInode,
    /// The inode loses its last name.
    pub dropped: Option<Dropped>,
    /// The inode, made without a name, gets its first.
    pub named: bool,
    /// Blocks below the size have changed: holders of leases must look again.
    changes_layout: bool,
    /// A changed size is that of appended bytes, see [`ops::window`](crate::fs::ops::window).
    pub merges: bool,
}

/// What removing the last name did.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Dropped {
    /// The inode is freed.
    Gone,
    /// It has this slot of the orphan table.
    Orphan(u32),
}

impl<'v> Edit<'v> {
    /// Begins with the current version.
    #[inline(always)]
    pub(crate) fn new(inode: &'v Inode, state: &'v mut InodeState) -> Edit<'v> {
        let new = state.disk;
        Edit {
            inode,
            state,
            new,
            dropped: None,
            named: false,
            changes_layout: false,
            merges: false,
        }
    }

    /// Returns the inode.
    #[inline]
    pub(crate) fn inode(&self) -> &'v Inode {
        self.inode
    }

    /// Returns the state before the change.
    #[inline]
    pub(crate) fn before(&self) -> &InodeState {
        self.state
    }

    /// As [`before`](Self::before), to note what is known about it.
    #[inline]
    pub(crate) fn before_mut(&mut self) -> &mut InodeState {
        self.state
    }

    /// Stores a changed file map, as the transaction leaves it. `first` is the first block
    /// that may have changed.
    #[inline]
    pub(crate) fn store_map(&mut self, tx: &Record<'_>, map: &MapRef, first: FileBlock) {
        store_healed(tx, &mut self.new, map);
        // Readers know the whole block at the end of the file.
        self.changes_layout |= first < tx.volume().geo.file_block_from(self.state.disk.size);
    }

    /// Puts the cache lines in which the inode differs from its home into a record, with a
    /// new CRC and change counter.
    #[inline]
    pub(crate) fn stage<'e, 'r>(&'e mut self, tx: &mut Record<'r>) -> Result<Staged<'e, 'v>>
    where
        'v: 'r,
    {
        debug_assert!(
            self.merges
                || self.new.size == self.state.disk.size
                || self.state.leases.window().is_none(),
            "rule 7: the append window is closed before the size changes"
        );
        // Line 1 holds the atime, which may be newer in memory than in place.
        let newer = if self.state.lazy.atime { 0b10 } else { 0 };
        let Inode {
            last_record,
            home,
            ino,
            ..
        } = self.inode;
        let old = &self.state.disk;
        put_lines(tx, last_record, &[*home], *ino, old, &mut self.new, newer)?;
        Ok(Staged(self))
    }

    /// Publishes the inode with a record that does not hold it, because it frees the inode.
    #[inline]
    pub(crate) fn stage_freed(&mut self) -> Staged<'_, 'v> {
        Staged(self)
    }

    #[inline]
    fn publish(&mut self, engine: &Engine) {
        let layout = self.changes_layout || self.new.size < self.state.disk.size;
        self.state.committed(&self.new);
        if !self.state.leases.is_empty() {
            // A fault of the medium is detected at the end of the operation.
            let shown = (self.state.leases).show(&engine.vol, layout, self.new.size);
            if let Err(e) = shown {
                engine.note_error(&e);
            }
        }
        if self.named {
            self.state.linkable = false;
            if !self.state.past_end {
                self.state.orphan_slot = None;
            }
            engine.orphans.lock().remove(&self.inode.ino.0);
        }
        match self.dropped {
            None => {}
            Some(Dropped::Gone) => {
                self.state.gone = true;
                engine.cache.remove(self.inode);
            }
            Some(Dropped::Orphan(slot)) => {
                self.state.orphan_slot = Some(slot);
                engine.orphans.lock().insert(self.inode.ino.0);
            }
        }
    }
}

impl Deref for Edit<'_> {
    type Target = DiskInode;
    #[inline]
    fn deref(&self) -> &DiskInode {
        &self.new
    }
}

impl DerefMut for Edit<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut DiskInode {
        &mut self.new
    }
}

/// An edit that is in a record. Its commit publishes it.
#[must_use = "the commit of its record takes it"]
pub(crate) struct Staged<'e, 'v>(&'e mut Edit<'v>);

impl Staged<'_, '_> {
    /// Returns the number, if the inode has become an orphan.
    pub(crate) fn orphan(&self) -> Option<Ino> {
        match self.0.dropped {
            Some(Dropped::Orphan(_)) => Some(self.0.inode.ino),
            _ => None,
        }
    }
}

/// A transaction that can be committed, in either phase.
pub(crate) trait Commit {
    /// Commits it.
    fn commit(self) -> Result<RecordId>;
}

impl Commit for Plan<'_> {
    fn commit(mut self) -> Result<RecordId> {
        Plan::commit(&mut self)
    }
}

impl Commit for Recording<'_, '_> {
    #[inline]
    fn commit(self) -> Result<RecordId> {
        Recording::commit(self)
    }
}

/// A transaction that copies data, with these data.
pub(crate) struct WithCopies<'p, 'v, 'r>(pub Recording<'p, 'v>, pub Restore<'r>);

impl Commit for WithCopies<'_, '_, '_> {
    fn commit(self) -> Result<RecordId> {
        self.0.commit_copies(self.1)
    }
}

impl Engine {
    /// Begins a change of a locked inode, and perhaps of others.
    #[inline(always)]
    pub(crate) fn begin<'v>(&'v self, inode: &Inode) -> Plan<'v> {
        self.vol.begin_at(&inode.last_record)
    }

    /// Changes a locked inode by a record of its own. `edit` also adds to the record what
    /// belongs to the change, such as the blocks that it takes.
    #[inline(always)]
    pub(crate) fn change<'v, T>(
        &'v self,
        inode: &'v Inode,
        state: &'v mut InodeState,
        edit: impl FnOnce(&mut Plan<'v>, &mut Edit<'v>) -> Result<T>,
    ) -> Result<T> {
        let mut new = Edit::new(inode, state);
        let mut tx = self.begin(inode);
        let done = edit(&mut tx, &mut new)?;
        let new = new.stage(&mut tx)?;
        tx.end_staging_if_large()?;
        self.commit(tx, [new])?;
        Ok(done)
    }

    /// Commits a record, and then publishes the inodes that it changes.
    // Not inlined: a plan would be copied.
    #[inline(never)]
    pub(crate) fn commit<'e, 'v: 'e>(
        &self,
        tx: impl Commit,
        staged: impl IntoIterator<Item = Staged<'e, 'v>>,
    ) -> Result<RecordId> {
        let id = tx.commit()?;
        for Staged(edit) in staged {
            edit.publish(self);
        }
        Ok(id)
    }
}
