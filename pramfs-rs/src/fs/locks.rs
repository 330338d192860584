//! Taking several inode locks without a deadlock.
//!
//! Blocking is only done in ascending order of inode numbers. Who holds a
//! higher lock tries a lower one, and gives up the first if that fails.

use std::sync::Arc;

use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;

use super::Shared;
use super::inode::{Core, Inode};
use super::orphan::dir_tree;
use crate::error::{Error, Result};
use crate::htree;
use crate::types::Ino;

/// Write locks on a set of inodes.
#[derive(Debug)]
pub(super) struct LockSet<'a> {
    held: SmallVec<[(&'a Arc<Inode>, RwLockWriteGuard<'a, Core>); 4]>,
}

impl<'a> LockSet<'a> {
    /// Locks each inode of the list once, in order.
    pub(super) fn new(list: &[&'a Arc<Inode>]) -> LockSet<'a> {
        let mut sorted: SmallVec<[&'a Arc<Inode>; 4]> = list.iter().copied().collect();
        sorted.sort_by_key(|i| i.ino);
        sorted.dedup_by_key(|i| i.ino);
        LockSet {
            held: sorted.into_iter().map(|i| (i, i.core.write())).collect(),
        }
    }

    /// Locks one inode, to which others are added by trying.
    pub(super) fn first(inode: &'a Arc<Inode>) -> LockSet<'a> {
        LockSet::new(&[inode])
    }

    /// Adds an inode if its lock is free: it may be lower than those held, and
    /// is not waited for.
    pub(super) fn try_add(&mut self, inode: &'a Arc<Inode>) -> bool {
        if self.held.iter().any(|(i, _)| i.ino == inode.ino) {
            return true;
        }
        match inode.core.try_write() {
            Some(core) if !core.gone => {
                self.held.push((inode, core));
                true
            }
            _ => false,
        }
    }

    /// The core of a member.
    pub(super) fn core(&self, inode: &Inode) -> Result<&Core> {
        self.held
            .iter()
            .find(|(i, _)| i.ino == inode.ino)
            .map(|(_, c)| &**c)
            .ok_or(Error::Stale(inode.ino))
    }

    /// The core of a member, to be changed.
    pub(super) fn core_mut(&mut self, inode: &Inode) -> Result<&mut Core> {
        self.held
            .iter_mut()
            .find(|(i, _)| i.ino == inode.ino)
            .map(|(_, c)| &mut **c)
            .ok_or(Error::Stale(inode.ino))
    }
}

impl Shared {
    /// A directory that can be searched and changed.
    pub(super) fn check_dir(&self, inode: &Inode, core: &Core) -> Result<()> {
        core.alive(inode.ino)?;
        if !core.is_dir() {
            return Err(Error::NotDirectory);
        }
        Ok(())
    }

    /// A directory that entries can be added to: one without names has none.
    pub(super) fn check_linked_dir(&self, inode: &Inode, core: &Core) -> Result<()> {
        self.check_dir(inode, core)?;
        if core.d.nlink == 0 {
            Err(Error::NotFound)
        } else {
            Ok(())
        }
    }

    /// The inode that a name of a locked directory leads to.
    pub(super) fn entry(&self, core: &Core, name: &[u8]) -> Result<Option<Ino>> {
        let found = htree::find_dir(&self.vol, &dir_tree(&core.d), name)?;
        Ok(found.map(|(ino, ..)| Ino(ino)))
    }

    /// As [`entry`](Self::entry), with the inode. A name that leads nowhere is
    /// damage.
    pub(super) fn entry_inode(&self, core: &Core, name: &[u8]) -> Result<Option<Arc<Inode>>> {
        let Some(ino) = self.entry(core, name)? else {
            return Ok(None);
        };
        if ino < Ino::FIRST_FREE {
            return Err(dangling(core, name, ino));
        }
        match self.iget(ino) {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::Stale(_)) => Err(dangling(core, name, ino)),
            Err(e) => Err(e),
        }
    }
}

fn dangling(core: &Core, name: &[u8], ino: Ino) -> Error {
    Error::corrupt(
        format!("directory {}", Ino(core.d.ino)),
        format!(
            "the entry \"{}\" leads to {ino}, which does not exist",
            String::from_utf8_lossy(name)
        ),
    )
}
