//! Locks on several inodes, without a deadlock.
//!
//! Invariant: a thread waits for inode locks only in ascending order of numbers. To add a
//! lower number to the locks it holds, it only tries that lock. If the try fails, the
//! caller releases the set and starts again.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::fs::inode::Inode;
use crate::fs::inode::lock::InodeGuard;
use crate::fs::inode::state::InodeState;
use pramfs_medium::error::{Error, Result};

/// Write locks on a set of inodes.
#[derive(Debug)]
pub(crate) struct LockSet<'a> {
    held: SmallVec<[(&'a Arc<Inode>, InodeGuard<'a>); 4]>,
}

impl<'a> LockSet<'a> {
    /// Locks each inode of the list once, in ascending order.
    pub(crate) fn new(list: &[&'a Arc<Inode>]) -> LockSet<'a> {
        let mut sorted: SmallVec<[&'a Arc<Inode>; 4]> = list.iter().copied().collect();
        sorted.sort_by_key(|i| i.ino);
        sorted.dedup_by_key(|i| i.ino);
        LockSet {
            held: sorted.into_iter().map(|i| (i, i.state.write())).collect(),
        }
    }

    /// Returns the state of a member.
    pub(crate) fn state(&self, inode: &Inode) -> Result<&InodeState> {
        match self.held.iter().find(|(i, _)| i.ino == inode.ino) {
            Some((_, state)) => Ok(state),
            None => Err(Error::Stale(inode.ino)),
        }
    }

    /// Returns the states of different members for a change. A state is `None` if its inode
    /// is `None` or not a member.
    #[inline]
    pub(crate) fn states_mut<const N: usize>(
        &mut self,
        inodes: [Option<&Arc<Inode>>; N],
    ) -> [Option<&mut InodeState>; N] {
        let mut states = [const { None }; N];
        for (member, state) in &mut self.held {
            let is_member =
                |inode: &Option<&Arc<Inode>>| inode.is_some_and(|i| i.ino == member.ino);
            if let Some(at) = inodes.iter().position(is_member) {
                states[at] = Some(&mut **state);
            }
        }
        states
    }
}
