//! The removal of suid, sgid and `security.capability` by a write.
//!
//! The server calls these operations before a write, as the kernel requires. Each bit and
//! the attribute take a record each, before that of the write: a crash in between leaves a
//! file with fewer rights and the old bytes, never the reverse.
//!
//! The rule for the bits is in [`policy::suid`](crate::fs::policy::suid). The sgid of a
//! caller outside the file's group is cleared by the operations themselves
//! ([`drop_sgid`](Engine::drop_sgid)).

use crate::fs::inode::Inode;
use crate::fs::inode::disk::touch_ctime;
use crate::fs::inode::state::InodeState;
use crate::fs::policy::chattr;
use crate::fs::policy::suid::without_suid;
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::types::{FileType, Ino};

impl Engine {
    /// Clears suid and `security.capability` of a regular file, and sgid if the group may
    /// execute the file. A write by an unprivileged caller requires this. Directories keep
    /// sgid, which grants no rights there.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::NoSpace`].
    pub fn strip_suid(&self, ino: Ino) -> Result<()> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            // Fast path: this call precedes every write by a user other than root, and
            // most files have neither these bits nor attributes.
            {
                let state = inode.state.read();
                state.alive(ino)?;
                if state.kind() != FileType::Regular {
                    return Ok(());
                }
                let nothing = Ptr(state.disk.xattr_root).is_hole();
                if nothing && without_suid(state.disk.mode) == state.disk.mode {
                    return chattr::check_append(&state.disk);
                }
            }
            let mut state = inode.state.write();
            state.alive(ino)?;
            chattr::check_append(&state.disk)?;
            let mode = without_suid(state.disk.mode);
            if mode != state.disk.mode {
                self.change(&inode, &mut state, |_, new| {
                    new.mode = mode;
                    touch_ctime(new, self.now());
                    Ok(())
                })?;
            }
            self.drop_capability(&inode, &mut state)
        })
    }

    /// Drops `security.capability`, as every write does. Returns whether the file has suid or
    /// sgid that [`strip_suid`](Self::strip_suid) would clear.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::NoSpace`].
    pub fn strip_capability(&self, ino: Ino) -> Result<bool> {
        let has_rights = |state: &InodeState| {
            state.kind() == FileType::Regular && without_suid(state.disk.mode) != state.disk.mode
        };
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            // Most files have no extended attributes.
            {
                let state = inode.state.read();
                if Ptr(state.disk.xattr_root).is_hole() {
                    return Ok(has_rights(&state));
                }
            }
            let mut state = inode.state.write();
            state.alive(ino)?;
            chattr::check_append(&state.disk)?;
            self.drop_capability(&inode, &mut state)?;
            Ok(has_rights(&state))
        })
    }

    /// Drops an attribute of a regular file, as a write drops `security.capability`: for a front end
    /// that keeps it by another name.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::NoSpace`].
    pub fn strip_attribute(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            // Most files have no extended attributes.
            {
                let state = inode.state.read();
                let nothing = Ptr(state.disk.xattr_root).is_hole();
                if nothing || state.kind() != FileType::Regular {
                    return Ok(());
                }
            }
            let mut state = inode.state.write();
            state.alive(ino)?;
            chattr::check_append(&state.disk)?;
            self.drop_attribute(&inode, &mut state, name)
        })
    }

    fn drop_capability(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        self.drop_attribute(inode, state, b"security.capability")
    }

    fn drop_attribute(&self, inode: &Inode, state: &mut InodeState, name: &[u8]) -> Result<()> {
        match self.remove_xattr_locked(inode, state, name, false) {
            Err(Error::NoAttribute) => Ok(()),
            other => other,
        }
    }
}
