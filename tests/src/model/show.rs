//! What the model shows, and a model of what was shown.

use pramfs::{
    FileType, XattrMode,
    inode::{Credentials, Ino, SetAttr, SetTime, Time},
};

use super::state::{Body, Call, Make, Model, Node, NodeId, ROOT, Value};
use crate::snapshot::{self, Snapshot, Sparse, join, split};

impl Model {
    /// What a file system in this state shows, with these inode numbers and
    /// generations. Of space the model knows nothing. What is held has
    /// a path more, without a slash, and perhaps no other.
    pub fn snapshot(&self, id: impl Fn(NodeId) -> (Ino, u64)) -> Snapshot {
        let mut out = Snapshot::default();
        let mut left = vec![(b"/".to_vec(), ROOT)];
        while let Some((path, node)) = left.pop() {
            let n = self.node(node);
            if let Body::Dir { entries, .. } = &n.body {
                left.extend(entries.iter().map(|(name, id)| (join(&path, name), *id)));
            }
            out.nodes.insert(path, n.shown(id(node)));
        }
        let held = self.nodes().filter(|(_, n)| n.pins > 0);
        let held = held.map(|(node, n)| (format!("held {node}").into(), n.shown(id(node))));
        out.nodes.extend(held);
        out
    }

    /// The same with the model's own numbers.
    pub fn numbered(&self) -> Snapshot {
        self.snapshot(|id| (Ino(id), 0))
    }

    /// A model of what was shown. Owners, flags and special bits are those of
    /// new files, and so are times but for those of files.
    ///
    /// # Errors
    /// What the model cannot have.
    pub fn of(shown: &Snapshot, now: Time) -> Result<Model, String> {
        let mut model = Model::new(now);
        let mut made = std::collections::BTreeMap::new();
        for (path, n) in shown.nodes.iter().filter(|(path, _)| path.len() > 1) {
            let (dir, name) = split(path);
            let parent = model.at(dir).ok_or("a name without its directory")?;
            let name = name.to_vec();
            if let Some(&node) = made.get(&n.id) {
                model.must(&Call::Link { node, parent, name })?;
                continue;
            }
            let what = match n.kind {
                FileType::Directory => Make::Dir { perm: n.perm },
                FileType::Symlink => Make::Symlink { target: n.bytes() },
                kind => Make::Node {
                    mode: kind.mode_bits() | n.perm,
                    rdev: n.rdev,
                },
            };
            let ctx = Credentials::ROOT;
            let make = Call::Make {
                ctx,
                parent,
                name,
                what,
                pin: false,
            };
            let Value::Node(node) = model.must(&make)? else {
                return Err("nothing was made".into());
            };
            made.insert(n.id, node);
            for (name, value) in &n.xattrs {
                let (name, value) = (name.clone(), value.clone());
                let mode = XattrMode::Set;
                model.must(&Call::SetXattr {
                    node,
                    name,
                    value,
                    mode,
                })?;
            }
            if n.kind == FileType::Regular {
                model.set_contents(node, n.size, n.data.clone());
            }
            if n.times.0 != now {
                let set = SetAttr {
                    mtime: Some(SetTime::At(n.times.0)),
                    ..SetAttr::default()
                };
                model.must(&Call::SetAttr { node, set })?;
            }
        }
        Ok(model)
    }

    fn must(&mut self, c: &Call) -> Result<Value, String> {
        self.call(c).map_err(|e| format!("{c:?}: {e:?}"))
    }

    /// The node that a path leads to, symbolic links not followed.
    pub fn at(&self, path: &[u8]) -> Option<NodeId> {
        let mut names = path.split(|b| *b == b'/').filter(|n| !n.is_empty());
        names.try_fold(ROOT, |at, name| match &self.get(at)?.body {
            Body::Dir { entries, .. } => entries.get(name).copied(),
            _ => None,
        })
    }

    /// The node that a name in a directory leads to.
    pub fn child(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        match &self.node(dir).body {
            Body::Dir { entries, .. } => entries.get(name).copied(),
            _ => None,
        }
    }

    /// Whether nothing has a name in this directory.
    pub fn is_empty(&self, dir: NodeId) -> bool {
        matches!(&self.node(dir).body, Body::Dir { entries, .. } if entries.is_empty())
    }

    /// All names: directory, name, node.
    pub fn names(&self) -> impl Iterator<Item = (NodeId, &[u8], NodeId)> {
        self.nodes().flat_map(|(dir, n)| {
            let entries = match &n.body {
                Body::Dir { entries, .. } => Some(entries),
                _ => None,
            };
            let entries = entries.into_iter().flatten();
            entries.map(move |(name, id)| (dir, &name[..], *id))
        })
    }

    /// Names that lead from the root to a node; `None` if it has none.
    pub fn names_to(&self, id: NodeId) -> Option<Vec<&[u8]>> {
        let (mut names, mut at) = (Vec::new(), id);
        while at != ROOT {
            let (dir, name, _) = self.names().find(|(_, _, child)| *child == at)?;
            names.push(name);
            at = dir;
        }
        names.reverse();
        Some(names)
    }

    /// Takes over the contents of a file that the model does not foretell, and
    /// their times.
    pub fn set_contents(&mut self, id: NodeId, new: u64, found: Sparse) {
        let now = self.now;
        let n = self.node_mut(id);
        if let Body::File { size, bytes } = &mut n.body {
            (*size, *bytes) = (new, found);
        }
        n.touch_mtime(now);
    }
}

impl Node {
    fn shown(&self, id: (Ino, u64)) -> snapshot::Node {
        snapshot::Node {
            perm: self.perm,
            nlink: self.nlink,
            owner: (self.uid, self.gid),
            rdev: self.rdev(),
            size: self.size(),
            times: (self.mtime, self.ctime),
            flags: self.flags,
            data: match &self.body {
                Body::File { bytes, .. } => bytes.clone(),
                Body::Symlink(target) => Sparse::from(&target[..]),
                _ => Sparse::default(),
            },
            xattrs: self.xattrs.clone(),
            ..snapshot::Node::new(id, self.kind())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::ANY_TIME;

    #[test]
    fn model_of_snapshot_shows_the_same() {
        let mut model = Model::new(ANY_TIME);
        let make = |model: &mut Model, parent, name: &[u8], what| {
            let (ctx, name, pin) = (Credentials::ROOT, name.to_vec(), false);
            let call = Call::Make {
                ctx,
                parent,
                name,
                what,
                pin,
            };
            match model.call(&call) {
                Ok(Value::Node(id)) => id,
                other => panic!("{other:?}"),
            }
        };
        let dir = make(&mut model, ROOT, b"dir", Make::Dir { perm: 0o711 });
        let file = make(&mut model, dir, b"file", Make::File { perm: 0o640 });
        let target = b"target".to_vec();
        make(&mut model, dir, b"link", Make::Symlink { target });
        let (mode, rdev) = (libc::S_IFIFO | 0o600, 0);
        make(&mut model, ROOT, b"pipe", Make::Node { mode, rdev });
        let at = Time { sec: 77, nsec: 1 };
        for call in [
            Call::Link {
                node: file,
                parent: ROOT,
                name: b"a".to_vec(),
            },
            Call::Write {
                node: file,
                offset: Some(9000),
                bytes: vec![7; 500],
            },
            Call::SetXattr {
                node: dir,
                name: b"user.a".to_vec(),
                value: b"value".to_vec(),
                mode: XattrMode::Set,
            },
            Call::SetAttr {
                node: file,
                set: SetAttr {
                    mtime: Some(SetTime::At(at)),
                    ..SetAttr::default()
                },
            },
        ] {
            model.call(&call).expect("it is allowed");
        }
        let shown = |m: &Model| m.numbered().without(&[snapshot::Trait::Ids]);
        let again = Model::of(&model.numbered(), ANY_TIME).expect("it was shown");
        assert_eq!(shown(&model).differences(&shown(&again)), "");
        assert_eq!(shown(&again).nodes[&b"/a"[..]].times.0, at);
        assert_eq!(model.names_to(file), Some(vec![&b"a"[..]]));
    }
}
