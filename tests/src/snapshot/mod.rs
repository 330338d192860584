//! A snapshot: everything that a file system shows, as one value.
//!
//! ```text
//! this file  the type, and what is left out of it where two cannot share it
//! take       reading it: all of it, a part of the paths, or what damage has left
//! source     the two ways to a file system: the engine, and a directory
//! compare    the one comparison, with its tolerance
//! sparse     the contents of files
//! ```
//!
//! Invariant: what a source can show is in the snapshot. Whoever compares two
//! that do not have everything in common says what to leave out.
//!
//! Left to others, because no whole state is expected there: `stress::pattern`
//! (contents that say what they are, while others change them),
//! `stress::private_file` (one file, read in parts at any time), the answers of
//! single calls (`model::compare`), atime and btime (there too, since a read may
//! change the one), and `exercise` (images of any bytes).

mod compare;
#[cfg(test)]
mod lies;
mod source;
mod sparse;
mod take;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use pramfs::{
    FileType,
    inode::{Ino, Time},
};

pub use compare::{ANY_TIME, Cut, Damage, Lag, Tolerance};
pub use source::{Directory, Source};
pub use sparse::Sparse;
pub use take::{Errors, Paths, Take, Trouble};

/// A piece of a file: offset, bytes, and whether it is flagged unwritten.
pub type Piece = (u64, u64, bool);

/// What is under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Inode number and generation; a directory tells no generation.
    pub id: (Ino, u64),
    /// Type of the file.
    pub kind: FileType,
    /// Permission bits.
    pub perm: u32,
    /// Names.
    pub nlink: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Device number.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// mtime and ctime.
    pub times: (Time, Time),
    /// chattr flags.
    pub flags: u32,
    /// Contents of a file, target of a symbolic link.
    pub data: Sparse,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What is allocated of a file, holes left out; only the engine tells.
    pub allocated: Vec<Piece>,
}

impl Node {
    /// One of which nothing else is known.
    pub fn new(id: (Ino, u64), kind: FileType) -> Node {
        Node {
            id,
            kind,
            perm: 0,
            nlink: 0,
            owner: (0, 0),
            rdev: 0,
            size: 0,
            blocks: 0,
            times: Default::default(),
            flags: 0,
            data: Sparse::default(),
            xattrs: BTreeMap::new(),
            allocated: Vec::new(),
        }
    }

    /// All bytes of a file, or a target.
    pub fn bytes(&self) -> Vec<u8> {
        match self.kind {
            FileType::Regular | FileType::Symlink => self.data.to_vec(self.size),
            _ => Vec::new(),
        }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }
}

/// A part of what is under a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Its attributes, and so all of it.
    Node,
    /// The list of its names.
    Names,
    /// The name leads there, and the directory does not list it.
    Unlisted,
    /// A chunk of its bytes, from this offset.
    Bytes(u64),
    /// Its target.
    Target,
    /// The list of its extended attributes.
    XattrNames,
    /// One of them.
    Xattr(Vec<u8>),
}

/// All names of a file system, with what is free beside them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// By path, `/` first.
    pub nodes: BTreeMap<Vec<u8>, Node>,
    /// Free blocks, the reserve included.
    pub free: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// The label; only the engine tells.
    pub label: String,
    /// What could not be read, with the errno; only where that is allowed.
    pub unread: BTreeMap<(Vec<u8>, Part), i32>,
}

/// What two snapshots may not have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trait {
    /// Numbers and generations. That two names lead to one inode stays.
    Ids,
    /// Generations.
    Generations,
    /// Free blocks and inodes.
    Free,
    /// mtime and ctime.
    Times,
    /// ctime.
    Ctime,
    /// Space taken.
    Blocks,
    /// What is allocated.
    Allocated,
    /// Sizes of directories.
    DirectorySizes,
}

impl Snapshot {
    /// The snapshot without some of it.
    #[must_use]
    pub fn without(mut self, traits: &[Trait]) -> Snapshot {
        for t in traits {
            match t {
                Trait::Ids => self.number_by_path(),
                Trait::Generations => self.each(|n| n.id.1 = 0),
                Trait::Free => (self.free, self.free_inodes) = (0, 0),
                Trait::Times => self.each(|n| n.times = Default::default()),
                Trait::Ctime => self.each(|n| n.times.1 = Default::default()),
                Trait::Blocks => self.each(|n| n.blocks = 0),
                Trait::Allocated => self.each(|n| n.allocated.clear()),
                Trait::DirectorySizes => self.each(|n| {
                    if n.is_dir() {
                        n.size = 0;
                    }
                }),
            }
        }
        self
    }

    fn each(&mut self, change: impl FnMut(&mut Node)) {
        self.nodes.values_mut().for_each(change);
    }

    /// Inodes get the hash of their first path as their number.
    fn number_by_path(&mut self) {
        let mut numbers = BTreeMap::new();
        for (path, n) in &mut self.nodes {
            let hash = path.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
                (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
            });
            n.id = (Ino(*numbers.entry(n.id).or_insert(hash)), 0);
        }
    }

    /// Names but the root's, directories before what is in them: directory,
    /// name in it, inode.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = (Ino, &[u8], Ino)> {
        let named = self.nodes.iter().filter(|(path, _)| path.len() > 1);
        named.map(|(path, n)| {
            let (dir, name) = split(path);
            (self.nodes[dir].id.0, name, n.id.0)
        })
    }

    /// The node of an inode, by one of its names.
    pub fn by_ino(&self, ino: Ino) -> Option<&Node> {
        self.nodes.values().find(|n| n.id.0 == ino)
    }
}

/// The path of the directory, and the name in it, of a path but the root's.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
    (&path[..slash.max(1)], &path[slash + 1..])
}

/// The path of a name in a directory.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, slash, name].concat()
}
