//! Attributes of a locked inode: changes within a transaction, and the set-group-ID rule.
//!
//! Invariant: the groups of a caller are asked for while no lock is held, because the
//! answer may block, or come through this file system. The answer is used only for the
//! group that the locked inode has.
//!
//! Which bits a change clears is decided in [`policy::suid`](crate::fs::policy::suid); the
//! access ACL follows the mode in [`acl`](super::acl); the size changes in
//! [`resize`](super::resize).

use crate::credentials::Credentials;
use crate::fs::Engine;
use crate::fs::engine::change::Edit;
use crate::fs::inode::Inode;
use crate::fs::inode::disk::touch_ctime;
use crate::fs::inode::state::InodeState;
use crate::fs::policy::suid::without_suid;
use pramfs_medium::error::Result;
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::inode::FLAGS_HIDDEN;
use pramfs_medium::types::{SetAttr, SetTime, Time};
use pramfs_medium::volume::Plan;

impl Engine {
    /// Applies a change of attributes, except for the size, to `new`, the next version of a
    /// locked inode. Also puts the changed access ACL into the record. `keeps_sgid` tells
    /// whether sgid stays if it is set before or by the change.
    pub(crate) fn apply(
        &self,
        tx: &mut Plan<'_>,
        new: &mut Edit<'_>,
        set: &SetAttr,
        keeps_sgid: bool,
        now: Time,
    ) -> Result<()> {
        let changed = with_owner_and_mode(new.before(), set);
        (new.mode, new.uid, new.gid) = (changed.mode, changed.uid, changed.gid);
        if !keeps_sgid {
            new.mode &= !libc::S_ISGID;
        }
        let pick = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        if let Some(t) = set.atime.map(pick) {
            new.set_atime(t);
        }
        if let Some(t) = set.mtime.map(pick) {
            new.set_mtime(t);
        }
        if let Some(flags) = set.flags {
            new.flags = flags | new.flags & FLAGS_HIDDEN;
        }
        touch_ctime(new, set.ctime.unwrap_or(now));
        if set.perm.is_some() {
            self.chmod_acl(tx, new)?;
        }
        Ok(())
    }

    /// Clears sgid of a locked file, before a change by a caller that may not keep sgid.
    #[cold]
    pub(crate) fn drop_sgid(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        self.change(inode, state, |_, new| {
            new.mode &= !libc::S_ISGID;
            touch_ctime(new, self.now());
            Ok(())
        })
    }
}

/// Takes locks, and tells whether the caller may keep sgid. `group` returns the group that
/// this depends on, if any.
///
/// Asks for the caller's groups without locks, because the answer may block. If the group
/// of the inode has changed meanwhile, asks again.
#[inline]
pub(crate) fn lock_and_check_group<G>(
    caller: &Credentials<'_>,
    lock: impl Fn() -> G,
    group: impl Fn(&G) -> Option<u32>,
) -> (G, bool) {
    let mut answer = None;
    loop {
        let locked = lock();
        match (group(&locked), answer) {
            (None, _) => return (locked, true),
            (Some(group), Some((asked, is_in))) if group == asked => return (locked, is_in),
            (Some(group), _) => {
                drop(locked);
                answer = Some((group, caller.in_group(group)));
            }
        }
    }
}

/// Returns a locked inode with the owner and the mode that a change gives it.
pub(crate) fn with_owner_and_mode(state: &InodeState, set: &SetAttr) -> DiskInode {
    let mut new = state.disk;
    if let Some(perm) = set.perm {
        new.mode = new.mode & libc::S_IFMT | perm & 0o7777;
    }
    if set.uid.is_some() || set.gid.is_some() {
        new.uid = set.uid.unwrap_or(new.uid);
        new.gid = set.gid.unwrap_or(new.gid);
        if set.perm.is_none() && !state.is_dir() {
            new.mode = without_suid(new.mode);
        }
    }
    new
}
