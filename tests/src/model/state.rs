//! The model's state: nodes by number, and calls on them.

use std::collections::BTreeMap;

use pramfs::{
    Fallocate, FileType, RenameFlags, SeekWhence, XattrMode,
    inode::{Credentials, SetAttr, Time},
};

use super::sparse::Sparse;

/// A node of the model. Numbers are never used again.
pub type NodeId = u64;

/// Why a call fails: an errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure(pub i32);

/// The root directory.
pub const ROOT: NodeId = 1;

/// What a node holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A regular file.
    File {
        /// Bytes.
        size: u64,
        /// Contents; zeros from `size` on.
        bytes: Sparse,
    },
    /// A directory.
    Dir {
        /// Its names.
        entries: BTreeMap<Vec<u8>, NodeId>,
        /// Where it stands; the root in itself.
        parent: NodeId,
    },
    /// A symbolic link.
    Symlink(Vec<u8>),
    /// A device, named pipe or socket.
    Special {
        /// Which.
        kind: FileType,
        /// Device number, of a device.
        rdev: u64,
    },
}

/// An inode of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Contents and type.
    pub body: Body,
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub nlink: u32,
    /// It was made without a name, and may get one.
    pub linkable: bool,
    /// References: it lives without names as long as it has any.
    pub pins: u64,
    /// chattr flags.
    pub flags: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Last read, which only `setattr` changes here (`noatime`).
    pub atime: Time,
    /// Change of contents.
    pub mtime: Time,
    /// Change of anything.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// mtime and ctime that a crash may bring back: those before writes that
    /// may have been overwrites.
    pub older_times: Vec<(Time, Time)>,
}

impl Node {
    /// Type.
    pub fn kind(&self) -> FileType {
        match &self.body {
            Body::File { .. } => FileType::Regular,
            Body::Dir { .. } => FileType::Directory,
            Body::Symlink(_) => FileType::Symlink,
            Body::Special { kind, .. } => *kind,
        }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir { .. })
    }

    /// What `stat` shows as its size.
    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File { size, .. } => *size,
            Body::Dir { entries, .. } => entries.len() as u64 * 32,
            Body::Symlink(target) => target.len() as u64,
            Body::Special { .. } => 0,
        }
    }

    /// Device number.
    pub fn rdev(&self) -> u64 {
        match &self.body {
            Body::Special {
                kind: FileType::CharDevice | FileType::BlockDevice,
                rdev,
            } => *rdev,
            _ => 0,
        }
    }

    pub(super) fn touch_ctime(&mut self, now: Time) {
        self.ctime = now;
        self.older_times.clear();
    }

    /// As [`touch_mtime`](Self::touch_mtime), for what may lag on the medium.
    pub(super) fn overwrite_times(&mut self, now: Time) {
        self.older_times.push((self.mtime, self.ctime));
        (self.mtime, self.ctime) = (now, now);
    }

    pub(super) fn touch_mtime(&mut self, now: Time) {
        self.mtime = now;
        self.touch_ctime(now);
    }
}

/// What is to be made.
#[derive(Debug, Clone)]
pub enum Make {
    /// `create`.
    File {
        /// Permission bits.
        perm: u32,
    },
    /// `mkdir`.
    Dir {
        /// Permission bits.
        perm: u32,
    },
    /// `mknod`.
    Node {
        /// Type and permission bits.
        mode: u32,
        /// Device number.
        rdev: u64,
    },
    /// `symlink`.
    Symlink {
        /// Target.
        target: Vec<u8>,
    },
}

/// An operation on nodes of the model.
#[derive(Debug, Clone)]
pub enum Call {
    /// A new inode and its first name; with a reference if `pin`.
    Make {
        /// Who.
        ctx: Credentials<'static>,
        /// Directory.
        parent: NodeId,
        /// Name.
        name: Vec<u8>,
        /// What.
        what: Make,
        /// With a reference.
        pin: bool,
    },
    /// A file without a name, with a reference.
    MakeUnnamed {
        /// Who.
        ctx: Credentials<'static>,
        /// Directory whose rules it follows.
        parent: NodeId,
        /// Permission bits.
        perm: u32,
        /// It may get a name.
        linkable: bool,
    },
    /// Another name.
    Link {
        /// Of which node.
        node: NodeId,
        /// Directory.
        parent: NodeId,
        /// Name.
        name: Vec<u8>,
    },
    /// Removes a name.
    Unlink {
        /// Directory.
        parent: NodeId,
        /// Name.
        name: Vec<u8>,
    },
    /// Removes a directory.
    Rmdir {
        /// Directory.
        parent: NodeId,
        /// Name.
        name: Vec<u8>,
    },
    /// Moves a name.
    Rename {
        /// Who, for a whiteout.
        ctx: Credentials<'static>,
        /// From this directory.
        parent: NodeId,
        /// Name there.
        name: Vec<u8>,
        /// To this directory.
        new_parent: NodeId,
        /// Name there.
        new_name: Vec<u8>,
        /// Flags.
        flags: RenameFlags,
    },
    /// Finds a name.
    Lookup {
        /// Directory.
        parent: NodeId,
        /// Name.
        name: Vec<u8>,
    },
    /// Attributes.
    GetAttr {
        /// Of which node.
        node: NodeId,
    },
    /// Changes attributes.
    SetAttr {
        /// Of which node.
        node: NodeId,
        /// What.
        set: SetAttr,
    },
    /// Reads.
    Read {
        /// From which node.
        node: NodeId,
        /// Where.
        offset: u64,
        /// How much.
        len: usize,
    },
    /// Writes; `None`: at the end of the file.
    Write {
        /// To which node.
        node: NodeId,
        /// Where.
        offset: Option<u64>,
        /// What.
        bytes: Vec<u8>,
    },
    /// `copy_file_range`.
    Copy {
        /// From which node.
        from: NodeId,
        /// Where there.
        at: u64,
        /// To which node.
        node: NodeId,
        /// Where.
        offset: u64,
        /// How much.
        len: u64,
    },
    /// `fallocate`.
    Fallocate {
        /// Of which node.
        node: NodeId,
        /// What.
        what: Fallocate,
        /// Where.
        offset: u64,
        /// How much.
        len: u64,
    },
    /// `lseek` for data or a hole.
    Seek {
        /// In which node.
        node: NodeId,
        /// From where.
        offset: u64,
        /// For what.
        whence: SeekWhence,
    },
    /// Target of a symbolic link.
    Readlink {
        /// Of which node.
        node: NodeId,
    },
    /// All entries, so many at a time.
    Readdir {
        /// Of which node.
        node: NodeId,
        /// Entries for each call.
        chunk: usize,
    },
    /// Value of an extended attribute.
    GetXattr {
        /// Of which node.
        node: NodeId,
        /// Its name.
        name: Vec<u8>,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// Of which node.
        node: NodeId,
        /// Its name.
        name: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// How.
        mode: XattrMode,
    },
    /// Names of the extended attributes.
    ListXattr {
        /// Of which node.
        node: NodeId,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// Of which node.
        node: NodeId,
        /// Its name.
        name: Vec<u8>,
    },
    /// As a write by another user does.
    StripSuid {
        /// Of which node.
        node: NodeId,
    },
    /// Takes a reference.
    Pin {
        /// To which node.
        node: NodeId,
    },
    /// Gives one back.
    Unpin {
        /// To which node.
        node: NodeId,
    },
    /// `fsync`.
    Fsync {
        /// Of which node.
        node: NodeId,
    },
}

impl Call {
    /// A write or a copy of which only the first `n` bytes were done.
    pub fn shortened(&self, n: u64) -> Call {
        let mut c = self.clone();
        match &mut c {
            Call::Write { bytes, .. } => bytes.truncate(n as usize),
            Call::Copy { len, .. } => *len = n,
            _ => {}
        }
        c
    }
}

/// What a call gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Unit,
    /// A node, whose attributes are to be compared.
    Node(NodeId),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A count or an offset.
    Count(u64),
    /// Where a seek may end: no byte before that is set, or none at all; and
    /// whether there may be no answer.
    Names(BTreeMap<Vec<u8>, NodeId>),
    /// Names of extended attributes, in no order.
    Attributes(Vec<Vec<u8>>),
}

/// The state.
#[derive(Debug, Clone)]
pub struct Model {
    pub(super) nodes: BTreeMap<NodeId, Node>,
    next: NodeId,
    /// The time of the current call.
    pub now: Time,
}

impl Model {
    /// An empty file system, made at `now`.
    pub fn new(now: Time) -> Model {
        let body = Body::Dir {
            entries: BTreeMap::new(),
            parent: ROOT,
        };
        let mut root = Model::blank(body, 0o755, now);
        root.nlink = 2;
        Model {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            now,
        }
    }

    fn blank(body: Body, perm: u32, now: Time) -> Node {
        Node {
            body,
            perm,
            uid: 0,
            gid: 0,
            nlink: 1,
            linkable: false,
            pins: 0,
            flags: 0,
            xattrs: BTreeMap::new(),
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            older_times: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, body: Body, perm: u32) -> (NodeId, &mut Node) {
        let (id, now) = (self.next, self.now);
        self.next += 1;
        let node = self
            .nodes
            .entry(id)
            .or_insert(Model::blank(body, perm, now));
        (id, node)
    }

    /// The node that the next one made will be.
    pub fn next_id(&self) -> NodeId {
        self.next
    }

    /// All nodes that live, those without names among them.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(i, n)| (*i, n))
    }

    /// A node that lives.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[&id]
    }

    /// A node, if it lives.
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("calls name nodes that live")
    }

    /// Forgets a node that nothing holds any more.
    pub(super) fn settle(&mut self, id: NodeId) {
        if self
            .nodes
            .get(&id)
            .is_some_and(|n| n.nlink == 0 && n.pins == 0)
        {
            self.nodes.remove(&id);
        }
    }

    /// What the end of a mount does: every reference is gone.
    pub fn end_of_mount(&mut self) {
        for n in self.nodes.values_mut() {
            n.pins = 0;
        }
        self.nodes.retain(|_, n| n.nlink > 0);
    }

    /// Takes over times that the model does not foretell.
    pub fn set_times(&mut self, id: NodeId, mtime: Time, ctime: Time) {
        let n = self.node_mut(id);
        (n.mtime, n.ctime) = (mtime, ctime);
        n.older_times.clear();
    }

    /// Carries a call out.
    ///
    /// # Errors
    /// What the engine is to fail with; then nothing has changed.
    pub fn call(&mut self, call: &Call) -> Result<Value, Failure> {
        match call {
            Call::Make {
                ctx,
                parent,
                name,
                what,
                pin,
            } => self.make(ctx, *parent, name, what, *pin),
            Call::MakeUnnamed {
                ctx,
                parent,
                perm,
                linkable,
            } => self.make_unnamed(ctx, *parent, *perm, *linkable),
            Call::Link { node, parent, name } => self.link(*node, *parent, name),
            Call::Unlink { parent, name } => self.unlink(*parent, name, false),
            Call::Rmdir { parent, name } => self.unlink(*parent, name, true),
            Call::Rename {
                ctx,
                parent,
                name,
                new_parent,
                new_name,
                flags,
            } => self.rename(ctx, (*parent, name), (*new_parent, new_name), *flags),
            Call::Lookup { parent, name } => self.lookup(*parent, name),
            Call::GetAttr { node } => Ok(Value::Node(*node)),
            Call::SetAttr { node, set } => self.setattr(*node, set),
            Call::Read { node, offset, len } => self.read(*node, *offset, *len),
            Call::Write {
                node,
                offset,
                bytes,
            } => self.write(*node, *offset, bytes),
            Call::Copy {
                from,
                at,
                node,
                offset,
                len,
            } => self.copy((*from, *at), (*node, *offset), *len),
            Call::Fallocate {
                node,
                what,
                offset,
                len,
            } => self.fallocate(*node, *what, *offset, *len),
            Call::Seek { node, offset, .. } => self.seek(*node, *offset),
            Call::Readlink { node } => match &self.node(*node).body {
                Body::Symlink(target) => Ok(Value::Bytes(target.clone())),
                _ => Err(Failure(libc::EINVAL)),
            },
            Call::Readdir { node, .. } => match &self.node(*node).body {
                Body::Dir { entries, .. } => Ok(Value::Names(entries.clone())),
                _ => Err(Failure(libc::ENOTDIR)),
            },
            Call::GetXattr { node, name } => self.getxattr(*node, name),
            Call::SetXattr {
                node,
                name,
                value,
                mode,
            } => self.setxattr(*node, name, value, *mode),
            Call::ListXattr { node } => self.listxattr(*node),
            Call::RemoveXattr { node, name } => self.removexattr(*node, name),
            Call::StripSuid { node } => self.strip_suid(*node),
            Call::Pin { node } => {
                self.node_mut(*node).pins += 1;
                Ok(Value::Unit)
            }
            Call::Unpin { node } => {
                let n = self.node_mut(*node);
                n.pins = n.pins.saturating_sub(1);
                self.settle(*node);
                Ok(Value::Unit)
            }
            Call::Fsync { node } => {
                let n = self.node_mut(*node);
                n.older_times.clear();
                Ok(Value::Unit)
            }
        }
    }
}
