//! setattr, the removal of suid and sgid, and the atime.

use std::sync::atomic::Ordering;

use super::change::Edit;
use super::inode::{Inode, InodeState, touch_ctime};
use super::inode_lock::InodeGuard;
use super::options::AtimePolicy;
use super::{Engine, Need, chattr};
use crate::credentials::Credentials;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::inode::{FL_LOST, FL_NOATIME, FLAGS_KEPT};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::types::{Attr, FileType, Ino, SetAttr, SetTime, Time};
use pramfs_medium::volume::Plan;

/// Seconds after which relatime sets the atime in any case.
pub(super) const DAY: i64 = 24 * 60 * 60;

impl Engine {
    /// Changes attributes, all of them, including the size, in one record. If a smaller
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
            if set.flags.is_some_and(|f| f & !FLAGS_KEPT != 0) {
                return Err(Error::NotSupported("an unsupported inode flag"));
            }
            let inode = self.iget_user(ino)?;
            let asked = |state: &InodeState| {
                let changes = set.perm.is_some() || set.size.is_some();
                sgid(&with_owner_and_mode(state, set)).filter(|_| changes)
            };
            let (mut state, keeps_sgid) = lock_and_check_group(&inode, caller, asked);
            state.alive(ino)?;
            state.may_set(set)?;
            let change = AttrChange {
                set,
                keeps_sgid,
                now: self.now(),
            };
            match (set.size, state.kind()) {
                (Some(size), FileType::Regular) => {
                    self.set_size_and(&inode, &mut state, size, &change)?;
                }
                (Some(_), FileType::Directory) => return Err(Error::IsDirectory),
                (Some(_), _) => {
                    return Err(Error::Invalid("only a regular file can be resized"));
                }
                (None, _) if *set == SetAttr::default() => {}
                (None, _) => {
                    let mut new = Edit::new(&inode, &mut state);
                    let mut tx = self.begin(&inode);
                    self.apply(&mut tx, &mut new, &change)?;
                    let new = new.stage(&mut tx)?;
                    self.commit(tx, [new])?;
                }
            }
            Ok(state.attr(&self.vol.geo))
        })
    }

    /// Applies a change, except for the size, to `new`, the next version of a locked
    /// inode. Also puts the changed access ACL into the record.
    pub(super) fn apply(
        &self,
        tx: &mut Plan<'_>,
        new: &mut Edit<'_>,
        change: &AttrChange<'_>,
    ) -> Result<()> {
        let &AttrChange {
            set,
            keeps_sgid,
            now,
        } = change;
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
            (new.atime_sec, new.atime_nsec) = (t.sec, t.nsec);
        }
        if let Some(t) = set.mtime.map(pick) {
            (new.mtime_sec, new.mtime_nsec) = (t.sec, t.nsec);
        }
        if let Some(flags) = set.flags {
            new.flags = flags | new.flags & FL_LOST;
        }
        touch_ctime(new, set.ctime.unwrap_or(now));
        if set.perm.is_some() {
            self.chmod_acl(tx, new)?;
        }
        Ok(())
    }

    /// Clears sgid of a locked file, before a change by a caller that may not keep sgid.
    #[cold]
    pub(super) fn drop_sgid(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        let mut new = Edit::new(inode, state);
        let mut tx = self.begin(inode);
        new.mode &= !libc::S_ISGID;
        touch_ctime(&mut new, self.now());
        let new = new.stage(&mut tx)?;
        self.commit(tx, [new])?;
        Ok(())
    }

    /// Clears suid and `security.capability` of a regular file, and sgid if the group may
    /// execute the file. A write by an unprivileged caller requires this. Directories keep
    /// sgid, which grants no rights there.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::NoSpace`].
    pub fn strip_suid(&self, ino: Ino) -> Result<()> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            // Asked for with each write by a user other than root, of files that
            // have mostly nothing to lose.
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
                let mut new = Edit::new(&inode, &mut state);
                let mut tx = self.begin(&inode);
                new.mode = mode;
                touch_ctime(&mut new, self.now());
                let new = new.stage(&mut tx)?;
                self.commit(tx, [new])?;
            }
            self.drop_capability(&inode, &mut state)
        })
    }

    /// Drops `security.capability`, as every write does.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::NoSpace`].
    pub fn strip_capability(&self, ino: Ino) -> Result<()> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            // Most files have no extended attributes.
            if Ptr(inode.state.read().disk.xattr_root).is_hole() {
                return Ok(());
            }
            let mut state = inode.state.write();
            state.alive(ino)?;
            chattr::check_append(&state.disk)?;
            self.drop_capability(&inode, &mut state)
        })
    }

    fn drop_capability(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        match self.remove_xattr_locked(inode, state, b"security.capability") {
            Err(Error::NoAttribute) => Ok(()),
            other => other,
        }
    }

    /// Sets the atime after a read, if the policy requires it. The next record of the
    /// inode writes it to the medium.
    #[inline]
    pub(crate) fn touch_atime(&self, inode: &Inode) {
        if self.atime.policy() == AtimePolicy::NoAtime || self.read_only.load(Ordering::Relaxed) {
            return;
        }
        let now = self.now();
        let due = |d: &pramfs_medium::media::DiskInode| {
            let at = (d.atime_sec, d.atime_nsec);
            self.atime.policy() == AtimePolicy::StrictAtime && at != (now.sec, now.nsec)
                || at <= (d.mtime_sec, d.mtime_nsec)
                || at <= (d.ctime_sec, d.ctime_nsec)
                || now.sec.saturating_sub(d.atime_sec) >= DAY
        };
        // Most reads need no update. The caller holds no lock.
        let state = inode.state.read();
        if state.disk.flags & FL_NOATIME != 0
            || !due(&state.disk)
            || (state.disk.atime_sec, state.disk.atime_nsec) == (now.sec, now.nsec)
        {
            return;
        }
        drop(state);
        let mut state = inode.state.write();
        if !state.gone {
            (state.disk.atime_sec, state.disk.atime_nsec) = (now.sec, now.nsec);
            state.lazy.atime = true;
        }
    }
}

/// A change of attributes.
#[derive(Debug)]
pub(super) struct AttrChange<'a> {
    set: &'a SetAttr,
    /// Whether sgid stays if it is set before or by the change.
    keeps_sgid: bool,
    now: Time,
}

/// Returns the group of a regular file with sgid. A caller outside the group may change
/// the file, but the change clears sgid.
#[inline]
pub(super) fn sgid(d: &DiskInode) -> Option<u32> {
    (d.mode & libc::S_ISGID != 0 && d.mode & libc::S_IFMT == libc::S_IFREG).then_some(d.gid)
}

/// Write-locks an inode and tells whether the caller may keep sgid. `group` returns the
/// group that this depends on, if any.
///
/// The caller's groups are asked for without locks, because the answer may block. If the
/// group has changed meanwhile, they are asked for again.
#[inline]
pub(super) fn lock_and_check_group<'a>(
    inode: &'a Inode,
    caller: &Credentials<'_>,
    group: impl Fn(&InodeState) -> Option<u32>,
) -> (InodeGuard<'a>, bool) {
    let mut answer = None;
    loop {
        let state = inode.state.write();
        match (group(&state), answer) {
            (None, _) => return (state, true),
            (Some(group), Some((asked, is_in))) if group == asked => return (state, is_in),
            (Some(group), _) => {
                drop(state);
                answer = Some((group, caller.in_group(group)));
            }
        }
    }
}

/// Returns a locked inode with the owner and the mode that a change gives it.
fn with_owner_and_mode(state: &InodeState, set: &SetAttr) -> DiskInode {
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

/// Returns a mode without suid, and without sgid if the group may execute.
pub(super) fn without_suid(mode: u32) -> u32 {
    let mode = mode & !libc::S_ISUID;
    if mode & libc::S_IXGRP != 0 {
        mode & !libc::S_ISGID
    } else {
        mode
    }
}
