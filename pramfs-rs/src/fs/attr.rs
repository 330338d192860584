//! setattr, and the atime.

use std::sync::atomic::Ordering;

use super::inode::{Core, Inode, put_inode, touch_ctime};
use super::options::AtimePolicy;
use super::{Need, Shared, protect};
use crate::error::{Error, Result};
use crate::media::DiskInode;
use crate::media::inode::{FL_NOATIME, FLAGS_KEPT};
use crate::types::{Attr, FileType, Ino, SetAttr, SetTime};

/// Seconds after which relatime sets the atime anyway.
pub(super) const DAY: i64 = 24 * 60 * 60;

impl Shared {
    /// Changes attributes: all of them in one record, a new size before it in
    /// records of its own. Permission is the caller's business.
    ///
    /// # Errors
    /// [`Error::IsDirectory`] for the size of a directory, [`Error::Invalid`],
    /// [`Error::TooLarge`], [`Error::NoSpace`]; [`Error::NotPermitted`] where
    /// the file is immutable or append-only.
    pub fn setattr(&self, cx: &crate::types::Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.setattr_by(cx, ino, set, &anybody)
    }

    /// As [`setattr`](Self::setattr), by somebody of whom `in_group` tells
    /// whether a group is theirs: anybody else's new mode or size leaves no sgid
    /// of a file.
    ///
    /// # Errors
    /// As for [`setattr`](Self::setattr).
    pub fn setattr_by(
        &self,
        _cx: &crate::types::Ctx,
        ino: Ino,
        set: &SetAttr,
        in_group: InGroup<'_>,
    ) -> Result<Attr> {
        self.op(Need::Write, || {
            let ctime = set.ctime.map(SetTime::At);
            for t in [set.atime, set.mtime, ctime].into_iter().flatten() {
                if let SetTime::At(t) = t
                    && t.nsec >= 1_000_000_000
                {
                    return Err(Error::Invalid(
                        "a time with a second or more of nanoseconds",
                    ));
                }
            }
            if set.flags.is_some_and(|f| f & !FLAGS_KEPT != 0) {
                return Err(Error::NotSupported("a flag that is not kept"));
            }
            let inode = self.iget_user(ino)?;
            let mut core = inode.core.write();
            core.alive(ino)?;
            core.may_set(set)?;
            let now = self.now();
            if let Some(size) = set.size {
                match core.kind() {
                    FileType::Regular => self.set_size(&inode, &mut core, size)?,
                    FileType::Directory => return Err(Error::IsDirectory),
                    _ => return Err(Error::Invalid("only regular files have a size to set")),
                }
            }
            let mut new = core.d;
            if let Some(perm) = set.perm {
                new.mode = new.mode & libc::S_IFMT | perm & 0o7777;
            }
            if set.uid.is_some() || set.gid.is_some() {
                new.uid = set.uid.unwrap_or(new.uid);
                new.gid = set.gid.unwrap_or(new.gid);
                if set.perm.is_none() && !core.is_dir() {
                    new.mode = without_suid(new.mode);
                }
            }
            let mut stripped = false;
            if (set.perm.is_some() || set.size.is_some()) && !may_keep_sgid(&new, in_group) {
                new.mode &= !libc::S_ISGID;
                stripped = true;
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
            new.flags = set.flags.unwrap_or(new.flags);
            let others = stripped
                || set.perm.is_some()
                || set.uid.is_some()
                || set.gid.is_some()
                || set.atime.is_some()
                || set.mtime.is_some()
                || set.flags.is_some()
                || set.ctime.is_some();
            if others {
                touch_ctime(&mut new, set.ctime.unwrap_or(now));
                let mut tx = self.vol.begin_at(&inode.place);
                if set.perm.is_some() {
                    self.chmod_acl(&mut tx, &mut core, &mut new)?;
                }
                put_inode(&mut tx, &inode, &core, &mut new)?;
                tx.commit()?;
                core.committed(new);
            }
            Ok(core.attr(&self.vol.geo))
        })
    }

    /// Takes sgid away from a locked file that is about to be changed by
    /// somebody who may not keep it.
    #[inline]
    pub(super) fn drop_sgid(
        &self,
        inode: &Inode,
        core: &mut Core,
        in_group: InGroup<'_>,
    ) -> Result<()> {
        if may_keep_sgid(&core.d, in_group) {
            return Ok(());
        }
        let mut new = core.d;
        new.mode &= !libc::S_ISGID;
        touch_ctime(&mut new, self.now());
        let mut tx = self.vol.begin_at(&inode.place);
        put_inode(&mut tx, inode, core, &mut new)?;
        tx.commit()?;
        core.committed(new);
        Ok(())
    }

    /// Clears suid, and sgid of group-executable files, as a write by another
    /// user does; and drops `security.capability`.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::NoSpace`].
    pub fn strip_suid(&self, ino: Ino) -> Result<()> {
        self.op(Need::Write, || {
            let inode = self.iget_user(ino)?;
            let mut core = inode.core.write();
            core.alive(ino)?;
            protect::may_grow(&core.d)?;
            let mut new = core.d;
            new.mode = without_suid(new.mode);
            if new.mode != core.d.mode {
                touch_ctime(&mut new, self.now());
                let mut tx = self.vol.begin_at(&inode.place);
                put_inode(&mut tx, &inode, &core, &mut new)?;
                tx.commit()?;
                core.committed(new);
            }
            match self.remove_xattr_locked(&inode, &mut core, b"security.capability") {
                Err(Error::NoAttribute) => Ok(()),
                other => other,
            }
        })
    }

    /// Sets the atime after a read, if the policy asks for it. It reaches the
    /// medium with the inode's next record.
    #[inline]
    pub(crate) fn touch_atime(&self, inode: &Inode) {
        if self.options.atime == AtimePolicy::NoAtime || self.read_only.load(Ordering::Relaxed) {
            return;
        }
        let now = self.now();
        let due = |d: &crate::media::DiskInode| {
            let at = (d.atime_sec, d.atime_nsec);
            self.options.atime == AtimePolicy::StrictAtime && at != (now.sec, now.nsec)
                || at <= (d.mtime_sec, d.mtime_nsec)
                || at <= (d.ctime_sec, d.ctime_nsec)
                || now.sec.saturating_sub(d.atime_sec) >= DAY
        };
        // Most reads find nothing to do. The caller holds no lock.
        let core = inode.core.read();
        if core.d.flags & FL_NOATIME != 0
            || !due(&core.d)
            || (core.d.atime_sec, core.d.atime_nsec) == (now.sec, now.nsec)
        {
            return;
        }
        drop(core);
        let mut core = inode.core.write();
        if !core.gone {
            (core.d.atime_sec, core.d.atime_nsec) = (now.sec, now.nsec);
            core.lazy.atime = true;
        }
    }
}

/// Tells whether who asks is in a group, or has a group's rights without that.
pub type InGroup<'a> = &'a dyn Fn(u32) -> bool;

/// For callers who may do everything, as those of the direct API.
pub(super) fn anybody(_group: u32) -> bool {
    true
}

/// Whether a file has no sgid that somebody would have to lose.
#[inline]
fn may_keep_sgid(d: &DiskInode, in_group: InGroup<'_>) -> bool {
    d.mode & libc::S_ISGID == 0 || d.mode & libc::S_IFMT != libc::S_IFREG || in_group(d.gid)
}

/// A mode without suid, and without sgid where the group may execute.
pub(super) fn without_suid(mode: u32) -> u32 {
    let mode = mode & !libc::S_ISUID;
    if mode & libc::S_IXGRP != 0 {
        mode & !libc::S_ISGID
    } else {
        mode
    }
}
