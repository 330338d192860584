//! Everything that a file system shows, as a value that can be compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::ControlFlow;

use pramfs::Damage;
use pramfs::{
    Error, FileType, Result,
    inode::{Attr, Fs, Ino, Time},
};

/// What is under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Inode number and generation.
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
    pub data: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// All names of a file system, with what is free beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// By path, `/` first.
    pub nodes: BTreeMap<Vec<u8>, Node>,
    /// Free blocks, the reserve included.
    pub free: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

impl Tree {
    /// Reads all of it, through every operation that reads. Contradictions
    /// between `readdir`, `lookup` and `getattr` are errors.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn of(fs: &Fs) -> Result<Tree> {
        let mut nodes = BTreeMap::new();
        let mut seen = Seen::new();
        let mut left = vec![(Ino::ROOT, Ino::ROOT, b"/".to_vec())];
        while let Some((parent, ino, path)) = left.pop() {
            let a = fs.getattr(ino)?;
            nodes.insert(path.clone(), node(fs, &a)?);
            if a.kind == FileType::Directory {
                left.append(&mut children(fs, parent, &a, &path)?);
            } else {
                seen.entry(ino).or_insert((0, a.nlink)).0 += 1;
            }
        }
        for (ino, (names, nlink)) in seen {
            if names != nlink {
                let what = format!("{names} names and a link count of {nlink}");
                return Err(Error::corrupt(Damage::TreeLeaf, ino.to_string(), what));
            }
        }
        let s = fs.statfs()?;
        Ok(Tree {
            nodes,
            free: s.free,
            free_inodes: s.free_inodes,
        })
    }

    /// The tree without its times, which may lag after overwrites.
    #[must_use]
    pub fn timeless(mut self) -> Tree {
        for n in self.nodes.values_mut() {
            n.times = Default::default();
        }
        self
    }

    /// What differs, in words; empty where nothing does.
    pub fn differences(&self, other: &Tree) -> String {
        let mut out = String::new();
        let paths: BTreeSet<_> = self.nodes.keys().chain(other.nodes.keys()).collect();
        for path in paths {
            let shown = String::from_utf8_lossy(path);
            match (self.nodes.get(path), other.nodes.get(path)) {
                (Some(a), Some(b)) if a == b => {}
                (Some(a), Some(b)) => {
                    let _ = writeln!(out, "{shown}: {}\n   is: {}", brief(a), brief(b));
                    if let Some(i) = a.data.iter().zip(&b.data).position(|(a, b)| a != b) {
                        let _ = writeln!(out, "   contents differ from byte {i} on");
                    }
                }
                (Some(_), None) => {
                    let _ = writeln!(out, "{shown}: is missing");
                }
                (None, Some(b)) => {
                    let _ = writeln!(out, "{shown}: is there: {}", brief(b));
                }
                (None, None) => {}
            }
        }
        if (self.free, self.free_inodes) != (other.free, other.free_inodes) {
            let _ = writeln!(
                out,
                "free: {} blocks, {} inodes\n  are: {} blocks, {} inodes",
                self.free, self.free_inodes, other.free, other.free_inodes
            );
        }
        out
    }
}

fn brief(n: &Node) -> String {
    format!(
        "{:?} {} gen {} {:o} links {} owner {:?} rdev {} flags {:#x} size {} blocks {} times {}.{:09} {}.{:09} xattrs {:?}",
        n.kind,
        n.id.0,
        n.id.1,
        n.perm,
        n.nlink,
        n.owner,
        n.rdev,
        n.flags,
        n.size,
        n.blocks,
        n.times.0.sec,
        n.times.0.nsec,
        n.times.1.sec,
        n.times.1.nsec,
        n.xattrs
            .iter()
            .map(|(k, v)| (String::from_utf8_lossy(k), v.len()))
            .collect::<Vec<_>>(),
    )
}

/// Names found, and the link count.
type Seen = BTreeMap<Ino, (u32, u32)>;
/// Parent, inode and path of what a directory names.
type Children = Vec<(Ino, Ino, Vec<u8>)>;

fn children(fs: &Fs, parent: Ino, a: &Attr, path: &[u8]) -> Result<Children> {
    let mut entries = Vec::new();
    fs.readdir(a.ino, 0, &mut |e| {
        entries.push((e.name.to_vec(), e.ino, e.kind, e.cookie));
        ControlFlow::Continue(())
    })?;
    let bad = |what: String| {
        Err(Error::corrupt(
            Damage::TreeLeaf,
            String::from_utf8_lossy(path).into_owned(),
            what,
        ))
    };
    let mut cookies = BTreeSet::new();
    let mut directories = 0;
    let mut out = Vec::new();
    for (name, child, kind, cookie) in entries {
        if !cookies.insert(cookie) {
            return bad("two entries with the same cookie".into());
        }
        let found = fs.lookup(a.ino, &name)?;
        if found.ino != child || found.kind != kind {
            let shown = String::from_utf8_lossy(&name);
            return bad(format!("readdir and lookup disagree on \"{shown}\""));
        }
        match &name[..] {
            b"." if child != a.ino => return bad("\".\" is another directory".into()),
            b".." if child != parent => return bad("\"..\" is not the parent".into()),
            b"." | b".." => {}
            _ => {
                directories += u32::from(kind == FileType::Directory);
                let slash: &[u8] = if path.ends_with(b"/") { b"" } else { b"/" };
                out.push((a.ino, child, [path, slash, &name].concat()));
            }
        }
    }
    if a.nlink != directories + 2 {
        return bad(format!(
            "{directories} directories and a link count of {}",
            a.nlink
        ));
    }
    Ok(out)
}

fn node(fs: &Fs, a: &Attr) -> Result<Node> {
    let data = match a.kind {
        FileType::Regular => {
            // Sparse files are read where they have data.
            let mut data = vec![0; usize::try_from(a.size.min(1 << 26)).unwrap_or(0)];
            let n = fs.read(a.ino, 0, &mut data)?;
            data.truncate(n);
            data
        }
        FileType::Symlink => fs.readlink(a.ino)?,
        _ => Vec::new(),
    };
    let mut xattrs = BTreeMap::new();
    for name in fs
        .listxattr(a.ino)?
        .split(|b| *b == 0)
        .filter(|n| !n.is_empty())
    {
        xattrs.insert(name.to_vec(), fs.getxattr(a.ino, name)?);
    }
    Ok(Node {
        id: (a.ino, a.generation),
        kind: a.kind,
        perm: a.perm,
        nlink: a.nlink,
        owner: (a.uid, a.gid),
        rdev: a.rdev,
        flags: a.flags,
        size: a.size,
        blocks: a.blocks,
        times: (a.mtime, a.ctime),
        data,
        xattrs,
    })
}
