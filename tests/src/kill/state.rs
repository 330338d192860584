//! What one writer has, by its own account.

use std::collections::BTreeMap;

/// The writer's directory.
pub const OWN: u32 = 0;
/// What it has in the directory that all share.
pub const SHARED: u32 = 1;

/// What a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    Dir(BTreeMap<Vec<u8>, u32>),
    File(Vec<u8>),
    Symlink(Vec<u8>),
    Fifo,
}

/// An inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub body: Body,
    pub perm: u32,
    /// Where it was set, and nothing has changed it since.
    pub mtime: Option<i64>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The directories and files of one writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Lives before this one.
    pub life: u64,
    pub(super) nodes: BTreeMap<u32, Node>,
}

impl Default for State {
    fn default() -> Self {
        State::new()
    }
}

impl State {
    /// Nothing yet.
    pub fn new() -> State {
        let dir = || Node::new(Body::Dir(BTreeMap::new()), 0o755);
        State {
            life: 0,
            nodes: BTreeMap::from([(OWN, dir()), (SHARED, dir())]),
        }
    }

    pub(super) fn node(&self, id: u32) -> &Node {
        &self.nodes[&id]
    }

    pub(super) fn entries(&self, dir: u32) -> &BTreeMap<Vec<u8>, u32> {
        match &self.nodes[&dir].body {
            Body::Dir(entries) => entries,
            other => panic!("{other:?} is no directory"),
        }
    }

    pub(super) fn find(&self, dir: u32, name: &[u8]) -> Option<u32> {
        self.entries(dir).get(name).copied()
    }

    /// All names: directory, name, node.
    pub(super) fn names(&self) -> impl Iterator<Item = (u32, &Vec<u8>, u32)> {
        self.nodes.iter().flat_map(|(dir, node)| {
            let entries = match &node.body {
                Body::Dir(entries) => Some(entries),
                _ => None,
            };
            let entries = entries.into_iter().flatten();
            entries.map(|(name, id)| (*dir, name, *id))
        })
    }

    /// Directory and name that lead to a directory; none for the two that are
    /// always there.
    pub(super) fn parent(&self, dir: u32) -> Option<(u32, &Vec<u8>)> {
        let found = self.names().find(|(_, _, id)| *id == dir);
        found.map(|(dir, name, _)| (dir, name))
    }

    /// Whether `dir` is `above` or lies in it.
    pub(super) fn is_in(&self, dir: u32, above: u32) -> bool {
        dir == above
            || self
                .parent(dir)
                .is_some_and(|(up, _)| self.is_in(up, above))
    }

    pub(super) fn add(&mut self, dir: u32, name: &[u8], node: Node) {
        let id = self.nodes.keys().last().map_or(0, |id| id + 1);
        self.nodes.insert(id, node);
        self.set(dir, name, Some(id));
    }

    /// Changes what a name leads to; a node without names is forgotten.
    pub(super) fn set(&mut self, dir: u32, name: &[u8], to: Option<u32>) {
        let node = self.nodes.get_mut(&dir).expect("a directory");
        node.mtime = None;
        let Body::Dir(entries) = &mut node.body else {
            panic!("no directory");
        };
        match to {
            Some(id) => entries.insert(name.to_vec(), id),
            None => entries.remove(name),
        };
    }

    pub(super) fn forget_nameless(&mut self) {
        let named: Vec<u32> = self.names().map(|(_, _, id)| id).collect();
        self.nodes
            .retain(|id, _| *id == OWN || *id == SHARED || named.contains(id));
    }

    /// The form that [`decode`](Self::decode) reads.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |bytes: &[u8]| {
            out.extend((bytes.len() as u64).to_le_bytes());
            out.extend(bytes);
        };
        put(&self.life.to_le_bytes());
        for (id, node) in &self.nodes {
            put(&id.to_le_bytes());
            put(&node.perm.to_le_bytes());
            put(&node.mtime.map_or(Vec::new(), |t| t.to_le_bytes().to_vec()));
            let (kind, data): (u8, &[u8]) = match &node.body {
                Body::Dir(_) => (b'd', &[]),
                Body::File(bytes) => (b'f', bytes),
                Body::Symlink(target) => (b'l', target),
                Body::Fifo => (b'p', &[]),
            };
            put(&[kind]);
            put(data);
            put(&(node.xattrs.len() as u64).to_le_bytes());
            for (name, value) in &node.xattrs {
                put(name);
                put(value);
            }
            let entries = match &node.body {
                Body::Dir(entries) => entries.clone(),
                _ => BTreeMap::new(),
            };
            put(&(entries.len() as u64).to_le_bytes());
            for (name, id) in &entries {
                put(name);
                put(&id.to_le_bytes());
            }
        }
        out
    }

    /// What [`encode`](Self::encode) has written; nothing if it was not that.
    pub fn decode(bytes: &[u8]) -> Option<State> {
        let mut left = bytes;
        let mut get = || {
            let (len, rest) = left.split_first_chunk()?;
            let (part, rest) = rest.split_at_checked(u64::from_le_bytes(*len) as usize)?;
            left = rest;
            Some((part.to_vec(), rest.is_empty()))
        };
        let (life, mut end) = get()?;
        let mut nodes = BTreeMap::new();
        while !end {
            let id = u32::from_le_bytes(get()?.0.try_into().ok()?);
            let perm = u32::from_le_bytes(get()?.0.try_into().ok()?);
            let mtime = get()?.0.try_into().ok().map(i64::from_le_bytes);
            let (kind, data) = (get()?.0, get()?.0);
            let mut xattrs = BTreeMap::new();
            for _ in 0..u64::from_le_bytes(get()?.0.try_into().ok()?) {
                xattrs.insert(get()?.0, get()?.0);
            }
            let (count, last) = get()?;
            end = last;
            let mut entries = BTreeMap::new();
            for _ in 0..u64::from_le_bytes(count.try_into().ok()?) {
                let name = get()?.0;
                let (id, last) = get()?;
                end = last;
                entries.insert(name, u32::from_le_bytes(id.try_into().ok()?));
            }
            let body = match kind[..] {
                [b'd'] => Body::Dir(entries),
                [b'f'] => Body::File(data),
                [b'l'] => Body::Symlink(data),
                [b'p'] => Body::Fifo,
                _ => return None,
            };
            let node = Node {
                body,
                perm,
                mtime,
                xattrs,
            };
            nodes.insert(id, node);
        }
        Some(State {
            life: u64::from_le_bytes(life.try_into().ok()?),
            nodes,
        })
    }
}

impl Node {
    pub fn new(body: Body, perm: u32) -> Node {
        Node {
            body,
            perm,
            mtime: None,
            xattrs: BTreeMap::new(),
        }
    }
}
