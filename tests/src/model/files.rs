//! The model's files: contents, attributes, extended attributes.

use pramfs::{
    Fallocate, XattrMode,
    inode::{SetAttr, SetTime},
};

use super::acl;
use super::state::{Body, Call, Failure, Model, Node, NodeId, Value};

type Result<T = Value> = std::result::Result<T, Failure>;

fn fail<T>(errno: i32) -> Result<T> {
    Err(Failure(errno))
}

/// Largest size of a file.
const MAX_SIZE: u64 = i64::MAX as u64;
/// `chattr` flags that are kept.
const FLAGS_KEPT: u32 = 0x40fb;

/// A mode without suid, and without sgid where the group may execute.
fn without_suid(perm: u32) -> u32 {
    if perm & 0o010 != 0 {
        perm & !0o6000
    } else {
        perm & !0o4000
    }
}

/// `chattr +i` and `+a`.
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;

/// A node that may change in any way: in one that may only grow, and one that
/// may not change at all, that is EPERM.
pub(super) fn may_change(n: &Node) -> Result<()> {
    match n.flags & (IMMUTABLE | APPEND) {
        0 => Ok(()),
        _ => fail(libc::EPERM),
    }
}

/// A node that may at least grow.
pub(super) fn may_grow(n: &Node) -> Result<()> {
    match n.flags & IMMUTABLE {
        0 => Ok(()),
        _ => fail(libc::EPERM),
    }
}

fn check_xattr(name: &[u8]) -> Result<()> {
    if name.len() > 255 {
        return fail(libc::ENAMETOOLONG);
    }
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if spaces.contains(&name) {
        return fail(libc::EINVAL);
    }
    let known =
        spaces.iter().any(|s| name.starts_with(s)) || name == acl::ACCESS || name == acl::DEFAULT;
    if known && !name.contains(&0) {
        Ok(())
    } else {
        fail(libc::EOPNOTSUPP)
    }
}

/// A regular file, or why it is none.
fn file(n: &Node) -> Result<u64> {
    match &n.body {
        Body::File { size, .. } => Ok(*size),
        Body::Dir { .. } => fail(libc::EISDIR),
        _ => fail(libc::EINVAL),
    }
}

impl Model {
    pub(super) fn setattr(&mut self, id: NodeId, set: &SetAttr) -> Result {
        for t in [set.atime, set.mtime].into_iter().flatten() {
            if matches!(t, SetTime::At(t) if t.nsec >= 1_000_000_000) {
                return fail(libc::EINVAL);
            }
        }
        if set.flags.is_some_and(|f| f & !FLAGS_KEPT != 0) {
            return fail(libc::EOPNOTSUPP);
        }
        let now = self.now;
        // What stays immutable keeps its other flags.
        let old = self.node(id).flags;
        if set
            .flags
            .is_some_and(|f| f & old & IMMUTABLE != 0 && f != old)
        {
            return fail(libc::EPERM);
        }
        let times = [set.atime, set.mtime];
        let touched = times == [Some(SetTime::Now); 2];
        let n = self.node(id);
        if set.size.is_some()
            || set.perm.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || times != [None; 2] && !touched
        {
            may_change(n)?;
        } else if touched {
            may_grow(n)?;
        }
        if let Some(size) = set.size {
            file(self.node(id))?;
            if size > MAX_SIZE {
                return fail(libc::EFBIG);
            }
        }
        let n = self.node_mut(id);
        if let (Some(new), Body::File { size, bytes }) = (set.size, &mut n.body) {
            bytes.zero(new, u64::MAX);
            *size = new;
            n.touch_mtime(now);
        }
        let owner = set.uid.is_some() || set.gid.is_some();
        if let Some(perm) = set.perm {
            n.perm = perm & 0o7777;
            acl::chmod(n);
        } else if owner && !n.is_dir() {
            n.perm = without_suid(n.perm);
        }
        n.uid = set.uid.unwrap_or(n.uid);
        n.gid = set.gid.unwrap_or(n.gid);
        let pick = |t| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        n.atime = set.atime.map_or(n.atime, pick);
        n.mtime = set.mtime.map_or(n.mtime, pick);
        n.flags = set.flags.unwrap_or(n.flags);
        let others = set.perm.is_some()
            || owner
            || set.atime.is_some()
            || set.mtime.is_some()
            || set.flags.is_some()
            || set.ctime.is_some();
        if others {
            n.touch_ctime(set.ctime.unwrap_or(now));
        }
        Ok(Value::Node(id))
    }

    pub(super) fn read(&self, id: NodeId, offset: u64, len: usize) -> Result {
        let size = file(self.node(id))?;
        let mut out =
            vec![0; len.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX))];
        if let Body::File { bytes, .. } = &self.node(id).body {
            bytes.read(offset, &mut out);
        }
        Ok(Value::Bytes(out))
    }

    pub(crate) fn write(&mut self, id: NodeId, offset: Option<u64>, from: &[u8]) -> Result {
        let now = self.now;
        let old = file(self.node(id))?;
        match offset {
            Some(_) => may_change(self.node(id))?,
            None => may_grow(self.node(id))?,
        }
        let at = offset.unwrap_or(old);
        if offset.is_none() && from.len() as u64 > MAX_SIZE - old {
            return fail(libc::EFBIG);
        }
        let mut n = from.len();
        if n > 0 {
            if at >= MAX_SIZE {
                return fail(libc::EFBIG);
            }
            n = n.min(usize::try_from(MAX_SIZE - at).unwrap_or(usize::MAX));
            let node = self.node_mut(id);
            if let Body::File { size, bytes } = &mut node.body {
                bytes.write(at, &from[..n]);
                *size = old.max(at + n as u64);
            }
            // The times of an overwrite may lag on the medium.
            if at + n as u64 <= old {
                node.overwrite_times(now);
            } else {
                node.touch_mtime(now);
            }
        }
        Ok(Value::Count(if offset.is_some() { n as u64 } else { at }))
    }

    pub(super) fn copy(&mut self, from: (NodeId, u64), to: (NodeId, u64), len: u64) -> Result {
        let size = file(self.node(from.0))?;
        let old = file(self.node(to.0))?;
        may_change(self.node(to.0))?;
        let len = len.min(size.saturating_sub(from.1));
        if len == 0 {
            return Ok(Value::Count(0));
        }
        if to.1 >= MAX_SIZE {
            return fail(libc::EFBIG);
        }
        let len = len.min(MAX_SIZE - to.1);
        if from.0 == to.0 && from.1 < to.1 + len && to.1 < from.1 + len {
            return fail(libc::EINVAL);
        }
        let Value::Bytes(copied) = self.read(from.0, from.1, len as usize)? else {
            return fail(libc::EINVAL);
        };
        let now = self.now;
        let node = self.node_mut(to.0);
        if let Body::File { size, bytes } = &mut node.body {
            bytes.write(to.1, &copied);
            *size = old.max(to.1 + len);
        }
        if to.1 + len <= old {
            // What was a hole may have come with a record of its own.
            node.older_times.push((node.mtime, now));
            node.overwrite_times(now);
        } else {
            node.touch_mtime(now);
        }
        Ok(Value::Count(len))
    }

    /// How many bytes a write or a copy would take, if there is space.
    pub(super) fn wanted(&self, c: &Call) -> Option<u64> {
        let (offset, len) = match c {
            Call::Write {
                offset: Some(at),
                bytes,
                ..
            } => (*at, bytes.len() as u64),
            Call::Copy {
                from,
                at,
                offset,
                len,
                ..
            } => (
                *offset,
                (*len).min(file(self.node(*from)).ok()?.saturating_sub(*at)),
            ),
            _ => return None,
        };
        Some(len.min(MAX_SIZE.saturating_sub(offset)))
    }

    pub(super) fn fallocate(
        &mut self,
        id: NodeId,
        what: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result {
        if len == 0 {
            return fail(libc::EINVAL);
        }
        let Some(end) = offset.checked_add(len).filter(|e| *e <= MAX_SIZE) else {
            return fail(libc::EFBIG);
        };
        file(self.node(id))?;
        match what {
            Fallocate::Allocate { .. } => may_grow(self.node(id))?,
            _ => may_change(self.node(id))?,
        }
        let now = self.now;
        let n = self.node_mut(id);
        let Body::File { size, bytes } = &mut n.body else {
            return fail(libc::EINVAL);
        };
        if what != (Fallocate::Allocate { keep_size: false })
            && what != (Fallocate::Allocate { keep_size: true })
        {
            bytes.zero(offset, end);
        }
        let old = *size;
        if let Fallocate::Allocate { keep_size: false }
        | Fallocate::ZeroRange { keep_size: false } = what
        {
            *size = old.max(end);
        }
        match what {
            Fallocate::Allocate { .. } | Fallocate::PunchHole => n.touch_mtime(now),
            Fallocate::ZeroRange { .. } => n.overwrite_times(now),
        }
        Ok(Value::Unit)
    }

    /// Only the errno: where data and holes are is not the model's to say. See
    /// [`super::compare`].
    pub(super) fn seek(&self, id: NodeId, offset: u64) -> Result {
        if offset >= file(self.node(id))? {
            fail(libc::ENXIO)
        } else {
            Ok(Value::Unit)
        }
    }

    pub(super) fn getxattr(&self, id: NodeId, name: &[u8]) -> Result {
        check_xattr(name)?;
        match self.node(id).xattrs.get(name) {
            Some(v) => Ok(Value::Bytes(v.clone())),
            None => fail(libc::ENODATA),
        }
    }

    pub(super) fn setxattr(
        &mut self,
        id: NodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result {
        check_xattr(name)?;
        if value.len() > 65_536 {
            return fail(libc::E2BIG);
        }
        may_change(self.node(id))?;
        let check = |exists| match (exists, mode) {
            (true, XattrMode::Create) => fail(libc::EEXIST),
            (false, XattrMode::Replace) => fail(libc::ENODATA),
            _ => Ok(()),
        };
        if name == acl::ACCESS || name == acl::DEFAULT {
            return self.set_acl(id, name, value, check);
        }
        let now = self.now;
        let n = self.node_mut(id);
        check(n.xattrs.contains_key(name))?;
        n.xattrs.insert(name.to_vec(), value.to_vec());
        n.touch_ctime(now);
        Ok(Value::Unit)
    }

    pub(super) fn listxattr(&self, id: NodeId) -> Result {
        let names: Vec<_> = self.node(id).xattrs.keys().cloned().collect();
        if names.iter().map(|n| n.len() + 1).sum::<usize>() > 65_536 {
            return fail(libc::E2BIG);
        }
        Ok(Value::Attributes(names))
    }

    pub(super) fn removexattr(&mut self, id: NodeId, name: &[u8]) -> Result {
        check_xattr(name)?;
        may_change(self.node(id))?;
        let now = self.now;
        let n = self.node_mut(id);
        let list = name == acl::ACCESS || name == acl::DEFAULT;
        if list && matches!(n.body, Body::Symlink(_)) {
            return fail(libc::EOPNOTSUPP);
        }
        if n.xattrs.remove(name).is_none() {
            // Of a list it is enough that it is not there.
            return if list {
                Ok(Value::Unit)
            } else {
                fail(libc::ENODATA)
            };
        }
        n.touch_ctime(now);
        Ok(Value::Unit)
    }

    /// Of a regular file; of others it is no right that somebody runs with.
    pub(super) fn strip_suid(&mut self, id: NodeId) -> Result {
        if !matches!(self.node(id).body, Body::File { .. }) {
            return Ok(Value::Unit);
        }
        may_grow(self.node(id))?;
        let now = self.now;
        let n = self.node_mut(id);
        let perm = without_suid(n.perm);
        if n.xattrs.remove(&b"security.capability"[..]).is_some() || perm != n.perm {
            n.touch_ctime(now);
        }
        n.perm = perm;
        Ok(Value::Unit)
    }
}
