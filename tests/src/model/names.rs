//! The model's names: making, linking, removing, moving, finding.

use std::collections::BTreeMap;

use pramfs::{FileType, RenameFlags, inode::Credentials};

use super::acl;
use super::files::{may_change, may_grow};
use super::state::{Body, Failure, Make, Model, NodeId, ROOT, Value};

type Result<T = Value> = std::result::Result<T, Failure>;

fn fail<T>(errno: i32) -> Result<T> {
    Err(Failure(errno))
}

fn check(name: &[u8]) -> Result<()> {
    match name {
        _ if name.len() > 255 => fail(libc::ENAMETOOLONG),
        b"" => fail(libc::ENOENT),
        b"." | b".." => fail(libc::EINVAL),
        _ if name.iter().any(|b| matches!(b, b'/' | 0)) => fail(libc::EINVAL),
        _ => Ok(()),
    }
}

/// chattr flags that what is made in a directory has from it.
fn handed_down(kind: FileType) -> u32 {
    match kind {
        FileType::Regular | FileType::Directory => 0x40fb & !0x30,
        _ => 0xc0,
    }
}

impl Model {
    fn entries(&self, dir: NodeId) -> Result<&BTreeMap<Vec<u8>, NodeId>> {
        match &self.node(dir).body {
            Body::Dir { entries, .. } => Ok(entries),
            _ => fail(libc::ENOTDIR),
        }
    }

    fn entries_mut(&mut self, dir: NodeId) -> &mut BTreeMap<Vec<u8>, NodeId> {
        match &mut self.node_mut(dir).body {
            Body::Dir { entries, .. } => entries,
            _ => unreachable!("it was checked that this is a directory"),
        }
    }

    /// Entries of a directory that can get new ones.
    fn linked_entries(&self, dir: NodeId) -> Result<&BTreeMap<Vec<u8>, NodeId>> {
        let entries = self.entries(dir)?;
        if self.node(dir).nlink == 0 {
            fail(libc::ENOENT)
        } else {
            Ok(entries)
        }
    }

    fn parent(&self, dir: NodeId) -> NodeId {
        match self.node(dir).body {
            Body::Dir { parent, .. } => parent,
            _ => dir,
        }
    }

    fn set_parent(&mut self, dir: NodeId, to: NodeId) {
        if let Body::Dir { parent, .. } = &mut self.node_mut(dir).body {
            *parent = to;
        }
    }

    /// Whether `above` is `below` or contains it.
    fn is_above(&self, above: NodeId, below: NodeId) -> bool {
        let mut at = below;
        loop {
            if at == above {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.parent(at);
        }
    }

    fn touch_dir(&mut self, dir: NodeId) {
        let now = self.now;
        self.node_mut(dir).touch_mtime(now);
    }

    fn touch(&mut self, id: NodeId) {
        let now = self.now;
        self.node_mut(id).touch_ctime(now);
    }

    pub(super) fn make(
        &mut self,
        ctx: &Credentials<'_>,
        parent: NodeId,
        name: &[u8],
        what: &Make,
        pin: bool,
    ) -> Result {
        let (body, mode, asked) = match what {
            Make::File { perm } => (
                Body::File {
                    size: 0,
                    bytes: Default::default(),
                },
                perm & 0o7777 & !(ctx.umask & 0o777),
                *perm,
            ),
            Make::Dir { perm } => (
                Body::Dir {
                    entries: BTreeMap::new(),
                    parent,
                },
                perm & 0o7777 & !(ctx.umask & 0o777),
                *perm,
            ),
            Make::Node { mode, rdev } => {
                let body = match FileType::from_mode(*mode) {
                    None | Some(FileType::Directory | FileType::Symlink) => {
                        return fail(libc::EINVAL);
                    }
                    Some(FileType::Regular) => Body::File {
                        size: 0,
                        bytes: Default::default(),
                    },
                    Some(kind) => Body::Special { kind, rdev: *rdev },
                };
                (body, mode & 0o7777 & !(ctx.umask & 0o777), *mode)
            }
            Make::Symlink { target } => {
                match target.len() {
                    0 => return fail(libc::ENOENT),
                    4096.. => return fail(libc::ENAMETOOLONG),
                    _ if target.contains(&0) => return fail(libc::EINVAL),
                    _ => {}
                }
                (Body::Symlink(target.clone()), 0o777, 0o777)
            }
        };
        check(name)?;
        self.linked_entries(parent)?;
        may_grow(self.node(parent))?;
        if self.linked_entries(parent)?.contains_key(name) {
            return fail(libc::EEXIST);
        }
        let dir = self.node(parent).clone();
        let (sgid, gid) = (self.node(parent).perm & 0o2000, self.node(parent).gid);
        let is_dir = matches!(body, Body::Dir { .. });
        let (id, node) = self.add(body, mode);
        (node.uid, node.gid) = (ctx.uid, ctx.gid);
        node.flags = dir.flags & handed_down(node.kind());
        acl::inherit(node, &dir, asked);
        if sgid != 0 {
            node.gid = gid;
            if is_dir {
                node.perm |= 0o2000;
            }
        }
        node.pins = u64::from(pin);
        if is_dir {
            node.nlink = 2;
            self.node_mut(parent).nlink += 1;
        }
        self.entries_mut(parent).insert(name.to_vec(), id);
        self.touch_dir(parent);
        Ok(Value::Node(id))
    }

    pub(super) fn make_unnamed(
        &mut self,
        ctx: &Credentials<'_>,
        parent: NodeId,
        perm: u32,
        linkable: bool,
    ) -> Result {
        self.linked_entries(parent)?;
        may_grow(self.node(parent))?;
        let dir = self.node(parent).clone();
        let body = Body::File {
            size: 0,
            bytes: Default::default(),
        };
        let (id, node) = self.add(body, perm & 0o7777 & !(ctx.umask & 0o777));
        (node.uid, node.gid) = (ctx.uid, ctx.gid);
        if dir.perm & 0o2000 != 0 {
            node.gid = dir.gid;
        }
        node.flags = dir.flags & handed_down(FileType::Regular);
        acl::inherit(node, &dir, perm);
        (node.nlink, node.pins, node.linkable) = (0, 1, linkable);
        Ok(Value::Node(id))
    }

    pub(super) fn link(&mut self, node: NodeId, parent: NodeId, name: &[u8]) -> Result {
        check(name)?;
        if self.node(node).is_dir() {
            return fail(libc::EPERM);
        }
        let exists = self.linked_entries(parent)?.contains_key(name);
        may_change(self.node(node))?;
        may_grow(self.node(parent))?;
        if self.node(node).nlink == 0 && !self.node(node).linkable {
            return fail(libc::ENOENT);
        }
        if exists {
            return fail(libc::EEXIST);
        }
        self.entries_mut(parent).insert(name.to_vec(), node);
        self.node_mut(node).nlink += 1;
        self.node_mut(node).linkable = false;
        self.touch(node);
        self.touch_dir(parent);
        Ok(Value::Node(node))
    }

    pub(super) fn unlink(&mut self, parent: NodeId, name: &[u8], directory: bool) -> Result {
        if directory && name == b".." {
            return fail(libc::ENOTEMPTY);
        }
        check(name)?;
        let Some(&id) = self.entries(parent)?.get(name) else {
            return fail(libc::ENOENT);
        };
        may_change(self.node(parent))?;
        may_change(self.node(id))?;
        match (directory, self.node(id).is_dir()) {
            (true, false) => return fail(libc::ENOTDIR),
            (false, true) => return fail(libc::EISDIR),
            (true, true) if !self.entries(id)?.is_empty() => return fail(libc::ENOTEMPTY),
            _ => {}
        }
        self.entries_mut(parent).remove(name);
        self.touch_dir(parent);
        self.drop_name(id);
        if directory {
            self.node_mut(parent).nlink -= 1;
        }
        Ok(Value::Unit)
    }

    /// A name of a node is gone.
    fn drop_name(&mut self, id: NodeId) {
        self.touch(id);
        let n = self.node_mut(id);
        n.nlink = if n.is_dir() { 0 } else { n.nlink - 1 };
        self.settle(id);
    }

    pub(super) fn rename(
        &mut self,
        ctx: &Credentials<'_>,
        (from, name): (NodeId, &[u8]),
        (to, new_name): (NodeId, &[u8]),
        flags: RenameFlags,
    ) -> Result {
        if flags.exchange && (flags.noreplace || flags.whiteout) {
            return fail(libc::EINVAL);
        }
        check(name)?;
        check(new_name)?;
        let Some(&source) = self.entries(from)?.get(name) else {
            return fail(libc::ENOENT);
        };
        let target = self.linked_entries(to)?.get(new_name).copied();
        match target {
            Some(_) if flags.noreplace => return fail(libc::EEXIST),
            None if flags.exchange => return fail(libc::ENOENT),
            _ => {}
        }
        let s_dir = self.node(source).is_dir();
        let t_dir = target.is_some_and(|t| self.node(t).is_dir());
        let across = from != to;
        if across && s_dir && self.is_above(source, to) {
            return fail(libc::EINVAL);
        }
        if let Some(t) = target
            && across
            && t_dir
            && (flags.exchange || s_dir)
            && self.is_above(t, from)
        {
            return fail(if flags.exchange {
                libc::EINVAL
            } else {
                libc::ENOTEMPTY
            });
        }
        if target == Some(source) {
            return Ok(Value::Unit);
        }
        may_change(self.node(from))?;
        may_change(self.node(source))?;
        match target {
            Some(t) => {
                may_change(self.node(to))?;
                may_change(self.node(t))?;
            }
            None => may_grow(self.node(to))?,
        }
        if flags.exchange {
            self.exchange(
                (from, name, source),
                (to, new_name, target.unwrap_or(source)),
            );
            return Ok(Value::Unit);
        }
        if let Some(t) = target {
            match (s_dir, t_dir) {
                (true, false) => return fail(libc::ENOTDIR),
                (false, true) => return fail(libc::EISDIR),
                (true, true) if !self.entries(t)?.is_empty() => return fail(libc::ENOTEMPTY),
                _ => {}
            }
        }
        self.entries_mut(from).remove(name);
        if let Some(t) = target {
            self.drop_name(t);
            if s_dir {
                self.node_mut(to).nlink -= 1;
            }
        }
        self.entries_mut(to).insert(new_name.to_vec(), source);
        if s_dir {
            self.node_mut(from).nlink -= 1;
            self.node_mut(to).nlink += 1;
            self.set_parent(source, to);
        }
        self.touch(source);
        if flags.whiteout {
            let (sgid, gid) = (self.node(from).perm & 0o2000, self.node(from).gid);
            let flags = self.node(from).flags & handed_down(FileType::CharDevice);
            let (id, white) = self.add(
                Body::Special {
                    kind: FileType::CharDevice,
                    rdev: 0,
                },
                0,
            );
            white.flags = flags;
            (white.uid, white.gid) = (ctx.uid, if sgid != 0 { gid } else { ctx.gid });
            self.entries_mut(from).insert(name.to_vec(), id);
        }
        self.touch_dir(from);
        self.touch_dir(to);
        Ok(Value::Unit)
    }

    fn exchange(&mut self, a: (NodeId, &[u8], NodeId), b: (NodeId, &[u8], NodeId)) {
        for ((dir, name, old), (_, _, new)) in [(a, b), (b, a)] {
            self.entries_mut(dir).insert(name.to_vec(), new);
            if self.node(old).is_dir() {
                self.node_mut(dir).nlink -= 1;
            }
            if self.node(new).is_dir() {
                self.node_mut(dir).nlink += 1;
                self.set_parent(new, dir);
            }
            self.touch_dir(dir);
            self.touch(old);
        }
    }

    pub(super) fn lookup(&self, parent: NodeId, name: &[u8]) -> Result {
        if !matches!(name, b"." | b"..") {
            check(name)?;
        }
        let entries = self.entries(parent)?;
        let found = match name {
            b"." => Some(parent),
            // Where a removed directory stood is not kept.
            b".." if self.node(parent).nlink == 0 => None,
            b".." => Some(self.parent(parent)),
            _ => entries.get(name).copied(),
        };
        found.map_or(fail(libc::ENOENT), |id| Ok(Value::Node(id)))
    }
}
