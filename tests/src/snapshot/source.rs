//! The two ways to a file system that is read: the engine, and a directory of a
//! mount or of any other file system.
//!
//! Both say the same of the same thing. The engine also tells generations, what
//! is allocated, and the label.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::os::fd::OwnedFd;
use std::path::Path;

use pramfs::{
    Error, FileType, SeekWhence,
    inode::{Fs, Ino, Time},
};
use rustix::fs::{OFlags, SeekFrom};

use super::{Node, Piece, Trouble};
use crate::syscalls::{self as sys, Sys, errno};

/// An entry of a directory.
#[derive(Debug)]
pub struct Entry {
    /// Name; `.` and `..` only from the engine.
    pub name: Vec<u8>,
    /// Inode.
    pub ino: Ino,
    /// Type.
    pub kind: FileType,
}

type Result<T = ()> = std::result::Result<T, Trouble>;

/// A way to a file system.
#[expect(missing_docs, reason = "each is what its name says")]
pub trait Source {
    /// What names an inode.
    type Handle;

    fn root(&self) -> Result<Self::Handle>;
    fn find(&self, dir: &Self::Handle, name: &[u8]) -> Result<Self::Handle>;
    /// An inode by its number, without a name.
    fn by_ino(&self, ino: Ino) -> Option<Self::Handle>;
    /// Attributes; contents and extended attributes are empty.
    fn attributes(&self, node: &Self::Handle) -> Result<Node>;
    /// Entries as they come: those before an error, too.
    fn list(&self, dir: &Self::Handle, into: &mut Vec<Entry>) -> Result;
    fn bytes(&self, node: &Self::Handle, at: u64, into: &mut [u8]) -> Result<usize>;
    /// The next range that has data.
    fn next_data(&self, node: &Self::Handle, at: u64) -> Result<Option<Range<u64>>>;
    fn allocated(&self, node: &Self::Handle, size: u64) -> Result<Vec<Piece>>;
    fn target(&self, node: &Self::Handle) -> Result<Vec<u8>>;
    fn xattr_names(&self, node: &Self::Handle) -> Result<Vec<Vec<u8>>>;
    fn xattr(&self, node: &Self::Handle, name: &[u8]) -> Result<Vec<u8>>;
    /// Free blocks and inodes, and the label.
    fn totals(&self) -> Result<(u64, u64, String)>;
}

impl Source for Fs {
    type Handle = Ino;

    fn root(&self) -> Result<Ino> {
        Ok(Ino::ROOT)
    }
    fn find(&self, dir: &Ino, name: &[u8]) -> Result<Ino> {
        Ok(self.lookup(*dir, name)?.ino)
    }
    fn by_ino(&self, ino: Ino) -> Option<Ino> {
        Some(ino)
    }
    fn attributes(&self, node: &Ino) -> Result<Node> {
        let a = self.getattr(*node)?;
        Ok(Node {
            perm: a.perm,
            nlink: a.nlink,
            owner: (a.uid, a.gid),
            rdev: a.rdev,
            size: a.size,
            blocks: a.blocks,
            times: (a.mtime, a.ctime),
            flags: a.flags,
            ..Node::new((a.ino, a.generation), a.kind)
        })
    }
    fn list(&self, dir: &Ino, into: &mut Vec<Entry>) -> Result {
        let (mut cookies, mut twice) = (BTreeSet::new(), false);
        self.readdir(*dir, 0, &mut |e| {
            twice |= !cookies.insert(e.cookie);
            into.push(Entry {
                name: e.name.to_vec(),
                ino: e.ino,
                kind: e.kind,
            });
            ControlFlow::Continue(())
        })?;
        match twice {
            true => Err(Trouble::contradiction("two entries with the same cookie")),
            false => Ok(()),
        }
    }
    fn bytes(&self, node: &Ino, at: u64, into: &mut [u8]) -> Result<usize> {
        Ok(self.read(*node, at, into)?)
    }
    fn next_data(&self, node: &Ino, at: u64) -> Result<Option<Range<u64>>> {
        let from = match self.seek(*node, at, SeekWhence::Data) {
            Ok(from) => from,
            Err(Error::NoSuchAddress(_)) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        Ok(Some(from..self.seek(*node, from, SeekWhence::Hole)?))
    }
    fn allocated(&self, node: &Ino, size: u64) -> Result<Vec<Piece>> {
        let (mut pieces, mut at): (Vec<Piece>, u64) = (Vec::new(), 0);
        for e in self.file_extents(*node, 0, u64::MAX)? {
            if e.file_offset != at || e.len == 0 {
                return Err(Trouble::contradiction(format!(
                    "the extents do not follow each other: {e:?}, expected {at}"
                )));
            }
            at += e.len;
            if e.region_offset.is_none() {
                continue;
            }
            match pieces.last_mut() {
                // Where a block lies is not shown.
                Some(last) if last.0 + last.1 == e.file_offset && last.2 == e.unwritten => {
                    last.1 += e.len;
                }
                _ => pieces.push((e.file_offset, e.len, e.unwritten)),
            }
        }
        match at == size {
            true => Ok(pieces),
            false => Err(Trouble::contradiction(format!(
                "the extents end at {at}, not at {size}"
            ))),
        }
    }
    fn target(&self, node: &Ino) -> Result<Vec<u8>> {
        Ok(self.readlink(*node)?)
    }
    fn xattr_names(&self, node: &Ino) -> Result<Vec<Vec<u8>>> {
        let list = self.listxattr(*node)?;
        let names = list.split_inclusive(|b| *b == 0);
        Ok(names.map(|n| n[..n.len() - 1].to_vec()).collect())
    }
    fn xattr(&self, node: &Ino, name: &[u8]) -> Result<Vec<u8>> {
        Ok(self.getxattr(*node, name)?)
    }
    fn totals(&self) -> Result<(u64, u64, String)> {
        let s = self.statfs()?;
        Ok((s.free, s.free_inodes, self.label()))
    }
}

/// A directory, of a mount or of any other file system.
#[derive(Debug)]
pub struct Directory {
    root: OwnedFd,
    device: u64,
    /// Descriptors of what need not have a name.
    held: BTreeMap<Ino, OwnedFd>,
    /// Of larger files it is not asked where data are.
    most: u64,
}

impl Directory {
    /// By its path.
    ///
    /// # Errors
    /// Where it cannot be reached.
    pub fn at(path: &Path) -> Result<Directory> {
        let root = named("open", sys::root(path))?;
        Directory::new(&root, [], u64::MAX)
    }

    /// By a descriptor, with others of what is held in it, by any numbers, and
    /// the size up to which files tell where they have data.
    ///
    /// # Errors
    /// Where it cannot be reached.
    pub fn new<'f>(
        root: &OwnedFd,
        held: impl IntoIterator<Item = (Ino, &'f OwnedFd)>,
        most: u64,
    ) -> Result<Directory> {
        let held = held.into_iter().map(|(ino, fd)| Ok((ino, again(fd)?)));
        Ok(Directory {
            root: again(root)?,
            device: named("stat", sys::stat(root))?.st_dev,
            held: held.collect::<Result<_>>()?,
            most,
        })
    }
}

fn again(fd: &OwnedFd) -> Result<OwnedFd> {
    named("dup", fd.try_clone().map_err(|_| libc::EMFILE))
}

/// Puts a call that has failed into words.
fn named<T>(call: &str, result: Sys<T>) -> Result<T> {
    result.map_err(|errno| Trouble {
        errno,
        what: format!("{call}: errno {errno}"),
    })
}

impl Source for Directory {
    type Handle = OwnedFd;

    fn root(&self) -> Result<OwnedFd> {
        again(&self.root)
    }
    fn find(&self, dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
        named("lookup", sys::lookup(dir, name))
    }
    fn by_ino(&self, ino: Ino) -> Option<OwnedFd> {
        again(self.held.get(&ino)?).ok()
    }
    fn attributes(&self, node: &OwnedFd) -> Result<Node> {
        let s = named("stat", sys::stat(node))?;
        if s.st_dev != self.device {
            return Err(Trouble::contradiction("it is of another file system"));
        }
        let kind = FileType::from_mode(s.st_mode)
            .ok_or_else(|| Trouble::contradiction(format!("mode {:o}", s.st_mode)))?;
        let time = |sec, nsec: u64| Time {
            sec,
            nsec: nsec as u32,
        };
        let flags = match kind {
            FileType::Regular | FileType::Directory => named("flags", sys::flags(node))?,
            _ => 0,
        };
        Ok(Node {
            perm: s.st_mode & 0o7777,
            nlink: s.st_nlink as u32,
            owner: (s.st_uid, s.st_gid),
            rdev: s.st_rdev,
            size: s.st_size as u64,
            blocks: s.st_blocks as u64,
            times: (
                time(s.st_mtime, s.st_mtime_nsec as u64),
                time(s.st_ctime, s.st_ctime_nsec as u64),
            ),
            flags,
            ..Node::new((Ino(s.st_ino), 0), kind)
        })
    }
    fn list(&self, dir: &OwnedFd, into: &mut Vec<Entry>) -> Result {
        for (name, ino, kind) in named("readdir", sys::read_dir(dir))? {
            let kind = FileType::from_mode(kind.as_raw_mode())
                .ok_or_else(|| Trouble::contradiction("an entry without a type"))?;
            let ino = Ino(ino);
            into.push(Entry { name, ino, kind });
        }
        Ok(())
    }
    fn bytes(&self, node: &OwnedFd, at: u64, into: &mut [u8]) -> Result<usize> {
        let fd = named("open", sys::open(node, OFlags::RDONLY))?;
        let mut done = 0;
        // Near the largest offset the kernel reads less than was asked for.
        while done < into.len() {
            let part = &mut into[done..];
            match named(
                "read",
                errno(rustix::io::pread(&fd, part, at + done as u64)),
            )? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }
    fn next_data(&self, node: &OwnedFd, at: u64) -> Result<Option<Range<u64>>> {
        if named("stat", sys::stat(node))?.st_size as u64 > self.most {
            return Ok(None);
        }
        let fd = named("open", sys::open(node, OFlags::RDONLY))?;
        let seek = |to| named("seek", errno(rustix::fs::seek(&fd, to)));
        match seek(SeekFrom::Data(at)) {
            Ok(from) => Ok(Some(from..seek(SeekFrom::Hole(from))?)),
            Err(e) if e.errno == libc::ENXIO => Ok(None),
            Err(e) => Err(e),
        }
    }
    fn allocated(&self, _: &OwnedFd, _: u64) -> Result<Vec<Piece>> {
        Ok(Vec::new())
    }
    fn target(&self, node: &OwnedFd) -> Result<Vec<u8>> {
        let target = errno(rustix::fs::readlinkat(node, c"", Vec::new()));
        Ok(named("readlink", target)?.into_bytes())
    }
    fn xattr_names(&self, node: &OwnedFd) -> Result<Vec<Vec<u8>>> {
        named("listxattr", sys::list_xattrs(node))
    }
    fn xattr(&self, node: &OwnedFd, name: &[u8]) -> Result<Vec<u8>> {
        named("getxattr", sys::get_xattr(node, name))
    }
    fn totals(&self) -> Result<(u64, u64, String)> {
        let fd = named("open", sys::open(&self.root, OFlags::RDONLY))?;
        let s = named("statvfs", errno(rustix::fs::fstatvfs(&fd)))?;
        Ok((s.f_bfree, s.f_ffree, String::new()))
    }
}
