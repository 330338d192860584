//! One side of a pair: a directory, reached by system calls.
//!
//! Nodes of the model are found by the names that the model knows. Those that
//! it has references to are held open, and are used by that descriptor, with
//! or without a name.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use pramfs::{Fallocate, FileType, SeekWhence, XattrMode, inode::SetTime};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, XattrFlags,
};

use super::state::{Body, Call, Make, Model, NodeId, ROOT};
use crate::syscalls::{self as sys, Caller, Sys, as_caller, errno, path_of};

/// No errno: neither a name nor a descriptor leads to the node.
const NO_NAME: i32 = -1;

/// What a call gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Got {
    Unit,
    Seen(Seen),
    Bytes(Vec<u8>),
    Count(u64),
    Names(BTreeMap<Vec<u8>, u32>),
    Attributes(Vec<Vec<u8>>),
}

/// What `stat` shows and two file systems have in common.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Type and permission bits.
    mode: u32,
    owner: (u32, u32),
    nlink: u64,
    /// Not of directories.
    size: Option<u64>,
    rdev: u64,
}

/// The part of `stat` that is compared.
pub(super) fn seen(s: &Stat) -> Seen {
    let directory = s.st_mode & libc::S_IFMT == libc::S_IFDIR;
    Seen {
        mode: s.st_mode,
        owner: (s.st_uid, s.st_gid),
        nlink: s.st_nlink,
        size: (!directory).then_some(s.st_size as u64),
        rdev: s.st_rdev,
    }
}

/// A directory and what of it is held open.
#[derive(Debug)]
pub(super) struct Side {
    /// For messages.
    pub name: &'static str,
    path: PathBuf,
    root: OwnedFd,
    held: BTreeMap<NodeId, OwnedFd>,
    /// Of tmpfs, which has no `FALLOC_FL_ZERO_RANGE`: it is put together.
    tmpfs: bool,
}

impl Side {
    pub(super) fn new(name: &'static str, path: &Path, tmpfs: bool) -> Sys<Side> {
        Ok(Side {
            name,
            path: path.to_owned(),
            root: sys::root(path)?,
            held: BTreeMap::new(),
            tmpfs,
        })
    }

    pub(super) fn is_tmpfs(&self) -> bool {
        self.tmpfs
    }

    /// Lets go of everything, before an unmount.
    pub(super) fn let_go(&mut self) {
        self.held.clear();
        if let Ok(elsewhere) = sys::root(Path::new("/")) {
            self.root = elsewhere;
        }
    }

    /// Finds the directory again, after a mount.
    pub(super) fn reopen(&mut self) -> Sys {
        self.root = sys::root(&self.path)?;
        Ok(())
    }

    /// Lets go of what the model holds no reference to.
    pub(super) fn settle(&mut self, model: &Model) {
        self.held
            .retain(|id, _| model.get(*id).is_some_and(|n| n.pins > 0));
    }

    /// Holds a node that the model has just taken a reference to.
    pub(super) fn hold(&mut self, model: &Model, id: NodeId) -> Sys {
        if self.held.contains_key(&id) {
            return Ok(());
        }
        let handle = self.node(model, id)?;
        let fd = match model.node(id).kind() {
            FileType::Regular => sys::open(&handle, OFlags::RDWR)?,
            FileType::Directory => sys::open(&handle, OFlags::RDONLY | OFlags::DIRECTORY)?,
            _ => handle,
        };
        self.held.insert(id, fd);
        Ok(())
    }

    /// A descriptor of a node: the one that is held, or a handle.
    pub(super) fn node(&self, model: &Model, id: NodeId) -> Sys<OwnedFd> {
        if let Some(held) = self.held.get(&id) {
            return held.try_clone().map_err(|_| libc::EMFILE);
        }
        let mut at = self.root.try_clone().map_err(|_| libc::EMFILE)?;
        // The model's nodes have a name or a reference.
        for name in names_to(model, id).ok_or(NO_NAME)? {
            at = sys::lookup(&at, name)?;
        }
        Ok(at)
    }

    /// A regular file opened with these flags; the descriptor that is held does
    /// for all of them but for appending.
    fn file(&self, model: &Model, id: NodeId, flags: OFlags) -> Sys<OwnedFd> {
        let fd = self.node(model, id)?;
        let held = self.held.contains_key(&id) && model.node(id).kind() == FileType::Regular;
        if held && !flags.contains(OFlags::APPEND) {
            return Ok(fd);
        }
        sys::open(&fd, flags)
    }

    fn seen(&self, model: &Model, id: NodeId) -> Sys<Got> {
        Ok(Got::Seen(seen(&sys::stat(self.node(model, id)?)?)))
    }

    fn seen_at(dir: &OwnedFd, name: &[u8]) -> Sys<Got> {
        Ok(Got::Seen(seen(&sys::stat(sys::lookup(dir, name)?)?)))
    }

    /// Carries a call out. Only calls that [`super::pair`] has prepared.
    pub(super) fn call(&self, model: &Model, call: &Call, caller: Caller) -> Sys<Got> {
        let node = |id: &NodeId| self.node(model, *id);
        match call {
            Call::Make {
                parent, name, what, ..
            } => {
                let dir = node(parent)?;
                as_caller(caller, || make(&dir, name, what))?;
                Side::seen_at(&dir, name)
            }
            Call::Link {
                node: id,
                parent,
                name,
            } => {
                sys::link(node(id)?, node(parent)?, name)?;
                self.seen(model, *id)
            }
            Call::Unlink { parent, name } => {
                sys::unlink(node(parent)?, name, false).map(|()| Got::Unit)
            }
            Call::Rmdir { parent, name } => {
                sys::unlink(node(parent)?, name, true).map(|()| Got::Unit)
            }
            Call::Rename {
                parent,
                name,
                new_parent,
                new_name,
                flags,
                ..
            } => {
                let (from, to) = (node(parent)?, node(new_parent)?);
                as_caller(caller, || {
                    sys::rename((&from, name), (&to, new_name), *flags)
                })?;
                Ok(Got::Unit)
            }
            Call::Lookup { parent, name } => Side::seen_at(&node(parent)?, name),
            Call::GetAttr { node: id } => self.seen(model, *id),
            Call::SetAttr { node: id, set } => {
                self.set_attr(model, *id, set)?;
                self.seen(model, *id)
            }
            Call::Read {
                node: id,
                offset,
                len,
            } => {
                let fd = self.file(model, *id, OFlags::RDONLY)?;
                let mut bytes = vec![0xee; *len];
                let n = errno(rustix::io::pread(&fd, &mut bytes[..], *offset))?;
                bytes.truncate(n);
                Ok(Got::Bytes(bytes))
            }
            Call::Write {
                node: id,
                offset: Some(at),
                bytes,
            } => {
                let fd = self.file(model, *id, OFlags::WRONLY)?;
                let n = as_caller(caller, || errno(rustix::io::pwrite(&fd, bytes, *at)))?;
                Ok(Got::Count(n as u64))
            }
            Call::Write {
                node: id,
                offset: None,
                bytes,
            } => {
                let fd = self.file(model, *id, OFlags::WRONLY | OFlags::APPEND)?;
                let n = errno(rustix::io::write(&fd, bytes))?;
                Ok(Got::Count(n as u64))
            }
            Call::Copy {
                from,
                at,
                node: id,
                offset,
                len,
            } => {
                // Both ends of a file may be one descriptor that is held.
                let source = self.file(model, *from, OFlags::RDONLY)?;
                let target = self.file(model, *id, OFlags::WRONLY)?;
                let (mut at, mut offset, mut done) = (*at, *offset, 0);
                // The kernel goes as far in one call as it likes, and a file that
                // is copied to its own end has no end. One byte is asked for also
                // at the end, but not where none is: it would overlap itself.
                let size = sys::stat(&source)?.st_size as u64;
                let least = u64::from(*len != 0);
                let len = (*len).min(size.saturating_sub(at)).max(least);
                while done < len {
                    let left = (len - done) as usize;
                    match errno(rustix::fs::copy_file_range(
                        &source,
                        Some(&mut at),
                        &target,
                        Some(&mut offset),
                        left,
                    )) {
                        Ok(0) => break,
                        Ok(n) => done += n as u64,
                        Err(e) if done == 0 => return Err(e),
                        Err(_) => break,
                    }
                }
                Ok(Got::Count(done))
            }
            Call::Fallocate {
                node: id,
                what,
                offset,
                len,
            } => {
                let fd = self.file(model, *id, OFlags::RDWR)?;
                self.fallocate(&fd, *what, *offset, *len)?;
                Ok(Got::Unit)
            }
            Call::Seek {
                node: id,
                offset,
                whence,
            } => {
                let fd = self.file(model, *id, OFlags::RDONLY)?;
                let to = match whence {
                    SeekWhence::Data => SeekFrom::Data(*offset),
                    SeekWhence::Hole => SeekFrom::Hole(*offset),
                };
                errno(rustix::fs::seek(&fd, to)).map(Got::Count)
            }
            Call::Readlink { node: id } => {
                let target = errno(rustix::fs::readlinkat(node(id)?, c"", Vec::new()))?;
                Ok(Got::Bytes(target.into_bytes()))
            }
            Call::Readdir { node: id, .. } => {
                let entries = sys::read_dir(&node(id)?)?;
                let count = entries.len();
                let names: BTreeMap<_, _> = entries
                    .into_iter()
                    .map(|(name, _, kind)| (name, kind.as_raw_mode()))
                    .collect();
                // A name that comes twice is an answer that nobody else gives.
                if names.len() != count {
                    return Ok(Got::Count(count as u64));
                }
                Ok(Got::Names(names))
            }
            Call::GetXattr { node: id, name } => sys::get_xattr(&node(id)?, name).map(Got::Bytes),
            Call::SetXattr {
                node: id,
                name,
                value,
                mode,
            } => {
                let flags = match mode {
                    XattrMode::Set => XattrFlags::empty(),
                    XattrMode::Create => XattrFlags::CREATE,
                    XattrMode::Replace => XattrFlags::REPLACE,
                };
                let fd = node(id)?;
                errno(rustix::fs::setxattr(path_of(&fd), &name[..], value, flags))?;
                Ok(Got::Unit)
            }
            Call::ListXattr { node: id } => sys::list_xattrs(&node(id)?).map(Got::Attributes),
            Call::RemoveXattr { node: id, name } => {
                let fd = node(id)?;
                errno(rustix::fs::removexattr(path_of(&fd), &name[..]))?;
                Ok(Got::Unit)
            }
            Call::Fsync { node: id } => {
                let fd = self.file(model, *id, OFlags::RDONLY)?;
                errno(rustix::fs::fsync(&fd))?;
                Ok(Got::Unit)
            }
            Call::MakeUnnamed { .. } => unreachable!("pairs make files with names"),
            // A write by another user stands for the first; references are
            // taken and given back when the model has them.
            Call::StripSuid { .. } | Call::Pin { .. } | Call::Unpin { .. } => Ok(Got::Unit),
        }
    }

    fn set_attr(&self, model: &Model, id: NodeId, set: &pramfs::inode::SetAttr) -> Sys {
        if let Some(size) = set.size {
            let fd = self.file(model, id, OFlags::WRONLY)?;
            return errno(rustix::fs::ftruncate(&fd, size));
        }
        let fd = self.node(model, id)?;
        let path = path_of(&fd);
        if let Some(perm) = set.perm {
            let mode = Mode::from_raw_mode(perm);
            errno(rustix::fs::chmodat(CWD, &path, mode, AtFlags::empty()))?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let uid = set.uid.map(rustix::fs::Uid::from_raw);
            let gid = set.gid.map(rustix::fs::Gid::from_raw);
            errno(rustix::fs::chownat(CWD, &path, uid, gid, AtFlags::empty()))?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(set.atime),
                last_modification: timespec(set.mtime),
            };
            errno(rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()))?;
        }
        if let Some(flags) = set.flags {
            sys::set_flags(&fd, flags)?;
        }
        Ok(())
    }

    fn fallocate(&self, fd: &OwnedFd, what: Fallocate, offset: u64, len: u64) -> Sys {
        let keep = FallocateFlags::KEEP_SIZE;
        let punch = FallocateFlags::PUNCH_HOLE | keep;
        let call = |flags| errno(rustix::fs::fallocate(fd, flags, offset, len));
        match what {
            Fallocate::Allocate { keep_size: false } => call(FallocateFlags::empty()),
            Fallocate::Allocate { keep_size: true } => call(keep),
            Fallocate::PunchHole => call(punch),
            Fallocate::ZeroRange { keep_size } if self.tmpfs => {
                call(punch)?;
                let end = offset + len;
                if !keep_size && end > sys::stat(fd)?.st_size as u64 {
                    errno(rustix::fs::ftruncate(fd, end))?;
                }
                Ok(())
            }
            Fallocate::ZeroRange { keep_size: false } => call(FallocateFlags::ZERO_RANGE),
            Fallocate::ZeroRange { keep_size: true } => call(FallocateFlags::ZERO_RANGE | keep),
        }
    }
}

fn make(dir: &impl AsFd, name: &[u8], what: &Make) -> Sys {
    match what {
        Make::File { perm } => sys::create(dir, name, *perm).map(drop),
        Make::Dir { perm } => errno(rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(*perm))),
        Make::Node { mode, rdev } => sys::mknod(dir, name, *mode, *rdev),
        Make::Symlink { target } => errno(rustix::fs::symlinkat(&target[..], dir, name)),
    }
}

fn timespec(time: Option<SetTime>) -> Timespec {
    let (tv_sec, tv_nsec) = match time {
        None => (0, rustix::fs::UTIME_OMIT),
        Some(SetTime::Now) => (0, rustix::fs::UTIME_NOW),
        Some(SetTime::At(t)) => (t.sec, t.nsec.into()),
    };
    Timespec { tv_sec, tv_nsec }
}

/// Names that lead from the root to a node; `None` if it has none.
fn names_to(model: &Model, id: NodeId) -> Option<Vec<&[u8]>> {
    let mut names = Vec::new();
    let mut at = id;
    while at != ROOT {
        let found = model.nodes().find_map(|(dir, n)| match &n.body {
            Body::Dir { entries, .. } => {
                let name = entries.iter().find(|(_, child)| **child == at);
                name.map(|(name, _)| (dir, &name[..]))
            }
            _ => None,
        });
        let (dir, name) = found?;
        names.push(name);
        at = dir;
    }
    names.reverse();
    Some(names)
}
