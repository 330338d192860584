//! setattr: changes of mode, owner, times, flags and size.
//!
//! Invariant: all changes of one call are in one record, so a crash leaves all or none. If
//! a smaller size frees more blocks than the record holds, only that freeing continues in
//! further records.
//!
//! The changes themselves are in [`attributes`](crate::fs::steps::attributes) and
//! `steps::resize`, the chattr flags in [`chattr`](crate::fs::policy::chattr). The engine
//! does not check permissions.

use crate::credentials::Credentials;
use crate::fs::engine::change::Edit;
use crate::fs::inode::lock::InodeGuard;
use crate::fs::policy::chattr;
use crate::fs::policy::suid::sgid;
use crate::fs::steps::attributes::{lock_and_check_group, with_owner_and_mode};
use crate::fs::{Engine, Need};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::inode::FLAGS_KEPT;
use pramfs_medium::types::{Attr, FileType, Ino, SetAttr, SetTime};
use pramfs_medium::volume::Plan;

impl Engine {
    /// Changes all attributes in `set`, including the size, in one record. If a smaller
    /// size frees more blocks than that record holds, further records free the rest. A new
    /// mode or size by a caller outside the group of a file clears sgid. The engine does
    /// not check permissions.
    ///
    /// # Errors
    /// [`Error::IsDirectory`] for the size of a directory, [`Error::Invalid`],
    /// [`Error::TooLarge`], [`Error::NoSpace`]; [`Error::NotPermitted`] if the file is
    /// immutable or append-only.
    pub fn setattr(&self, caller: &Credentials<'_>, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.op(Need::Write, || {
            let ctime = set.ctime.map(SetTime::At);
            for t in [set.atime, set.mtime, ctime].into_iter().flatten() {
                if let SetTime::At(t) = t
                    && t.nsec >= 1_000_000_000
                {
                    return Err(Error::Invalid("a time has 1000000000 nanoseconds or more"));
                }
            }
            if [set.uid, set.gid].contains(&Some(u32::MAX)) {
                return Err(Error::Invalid("a user or group of number -1"));
            }
            if set.flags.is_some_and(|f| f & !FLAGS_KEPT != 0) {
                return Err(Error::NotSupported("an unsupported inode flag"));
            }
            let inode = self.iget_user(ino)?;
            let asked = |state: &InodeGuard<'_>| {
                let changes = set.perm.is_some() || set.size.is_some();
                sgid(&with_owner_and_mode(state, set)).filter(|_| changes)
            };
            let (mut state, keeps_sgid) =
                lock_and_check_group(caller, || inode.state.write(), asked);
            state.alive(ino)?;
            chattr::check_set(&state.disk, set)?;
            if !state.leases.is_empty() && (set.mtime.is_some() || set.ctime.is_some()) {
                // Or the timer would take stores from before for later ones.
                self.note_stores_locked(&inode, &mut state)?;
            }
            if set
                .flags
                .is_some_and(|flags| flags & chattr::WRITE_FLAGS != 0)
            {
                // From now on nobody appends behind the back of the mount.
                self.close_window(&inode, &mut state)?;
            }
            let now = self.now();
            let apply =
                |tx: &mut Plan<'_>, new: &mut Edit<'_>| self.apply(tx, new, set, keeps_sgid, now);
            match (set.size, state.kind()) {
                (Some(size), FileType::Regular) => {
                    self.resize(&inode, &mut state, size, &apply)?;
                }
                (Some(_), FileType::Directory) => return Err(Error::IsDirectory),
                (Some(_), _) => {
                    return Err(Error::Invalid("only a regular file can be resized"));
                }
                (None, _) if *set == SetAttr::default() => {}
                (None, _) => self.change(&inode, &mut state, apply)?,
            }
            Ok(state.attr(&self.vol.geo))
        })
    }
}
