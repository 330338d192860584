//! The atime of an inode that is read.
//!
//! Invariant: a read never waits for the medium to set an atime. It changes the atime in
//! memory and marks it as lazy; the next record of the inode, `sync` or the unmount writes
//! it. The policy is in [`policy::atime`](crate::fs::policy::atime).

use std::sync::atomic::Ordering;

use crate::fs::Engine;
use crate::fs::inode::Inode;
use crate::fs::inode::state::InodeState;
use crate::fs::options::AtimePolicy;
use pramfs_medium::error::Result;
use pramfs_medium::types::Ino;

impl Engine {
    /// Sets the atime after a read, if the policy requires it. The next record of the
    /// inode writes it to the medium. The caller holds no lock.
    #[inline]
    pub(crate) fn touch_atime(&self, inode: &Inode) {
        if self.atime.policy() == AtimePolicy::NoAtime || self.read_only.load(Ordering::Relaxed) {
            return;
        }
        let now = self.now();
        // Most reads need no update.
        let state = inode.state.read();
        if state.disk.atime() == now || !self.atime.is_due(&state.disk, || now) {
            return;
        }
        drop(state);
        let mut state = inode.state.write();
        if !state.gone {
            state.disk.set_atime(now);
            state.lazy.atime = true;
        }
    }

    /// Tells whether the next read of a file may set its atime. A cache of the
    /// bytes, such as the page cache, must then drop them, so that the read reaches
    /// the engine.
    ///
    /// # Errors
    /// [`Error::Stale`](pramfs_medium::error::Error::Stale) if the inode does not exist.
    pub fn read_sets_atime(&self, ino: Ino) -> Result<bool> {
        let inode = self.inode(ino)?;
        let state = inode.state.read();
        Ok(self.atime_due(&state))
    }

    /// Whether a read sets the atime.
    #[inline]
    pub(crate) fn atime_due(&self, state: &InodeState) -> bool {
        self.atime.is_due(&state.disk, || self.now())
    }
}
