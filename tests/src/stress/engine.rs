//! The engine, called directly.

use std::ops::ControlFlow;
use std::sync::Arc;

use pramfs::{
    Access, Fallocate, RenameFlags, Result, XattrMode,
    inode::{Ctx, Engine, Fs, Ino, SetAttr, SetTime, Time},
};

use super::pattern::identity;
use super::target::{About, Target};
use crate::syscalls::Sys;

const CX: Ctx = Ctx {
    uid: 0,
    gid: 0,
    umask: 0,
};

/// A way to the engine.
#[derive(Debug)]
pub struct EngineDoor<'f>(pub &'f Fs);

/// A reference to an inode.
#[derive(Debug)]
pub struct Pinned {
    shared: Arc<Engine>,
    ino: Ino,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.shared.unpin(self.ino, 1);
    }
}

fn sys<T>(result: Result<T>) -> Sys<T> {
    result.map_err(|e| {
        let errno = e.errno();
        if matches!(errno, libc::EIO | libc::EUCLEAN) {
            eprintln!("{e}");
        }
        errno
    })
}

impl EngineDoor<'_> {
    fn pinned(&self, ino: Ino) -> Pinned {
        Pinned {
            shared: Arc::clone(self.0.engine()),
            ino,
        }
    }
}

impl Target for EngineDoor<'_> {
    type Node = Pinned;
    const WHOLE: bool = true;
    const VIEWS: bool = true;

    fn root(&self) -> Sys<Pinned> {
        self.0.pin(Ino::ROOT, 1);
        Ok(self.pinned(Ino::ROOT))
    }
    fn lookup(&self, dir: &Pinned, name: &[u8]) -> Sys<Pinned> {
        let found = sys(self.0.lookup_pinned(dir.ino, name))?;
        Ok(self.pinned(found.ino))
    }
    fn create(&self, dir: &Pinned, name: &[u8]) -> Sys<Pinned> {
        let made = sys(self.0.create_pinned(&CX, dir.ino, name, 0o644))?;
        Ok(self.pinned(made.ino))
    }
    fn mkdir(&self, dir: &Pinned, name: &[u8]) -> Sys {
        sys(self.0.mkdir(&CX, dir.ino, name, 0o755)).map(drop)
    }
    fn mknod(&self, dir: &Pinned, name: &[u8], mode: u32) -> Sys {
        sys(self.0.mknod(&CX, dir.ino, name, mode, 0)).map(drop)
    }
    fn symlink(&self, dir: &Pinned, name: &[u8], target: &[u8]) -> Sys {
        sys(self.0.symlink(&CX, dir.ino, name, target)).map(drop)
    }
    fn link(&self, node: &Pinned, dir: &Pinned, name: &[u8]) -> Sys {
        sys(self.0.link(node.ino, dir.ino, name)).map(drop)
    }
    fn unlink(&self, dir: &Pinned, name: &[u8]) -> Sys {
        sys(self.0.unlink(dir.ino, name))
    }
    fn rmdir(&self, dir: &Pinned, name: &[u8]) -> Sys {
        sys(self.0.rmdir(dir.ino, name))
    }
    fn rename(&self, from: (&Pinned, &[u8]), to: (&Pinned, &[u8]), flags: RenameFlags) -> Sys {
        sys(self
            .0
            .rename(&CX, from.0.ino, from.1, to.0.ino, to.1, flags))
    }
    fn about(&self, node: &Pinned) -> Sys<About> {
        let a = sys(self.0.getattr(node.ino))?;
        Ok(About {
            id: identity(a.ino.0, a.generation),
            kind: a.kind,
            size: a.size,
            nlink: a.nlink.into(),
            perm: a.perm,
            mtime: a.mtime.sec,
        })
    }
    fn list(&self, dir: &Pinned) -> Sys<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        sys(self.0.readdir(dir.ino, 0, &mut |e| {
            if !matches!(e.name, b"." | b"..") {
                names.push(e.name.to_vec());
            }
            ControlFlow::Continue(())
        }))?;
        Ok(names)
    }
    fn readlink(&self, node: &Pinned) -> Sys<Vec<u8>> {
        sys(self.0.readlink(node.ino))
    }
    fn read(&self, node: &Pinned, at: u64, into: &mut [u8]) -> Sys<usize> {
        sys(self.0.read(node.ino, at, into))
    }
    fn write(&self, node: &Pinned, at: u64, from: &[u8]) -> Sys<usize> {
        sys(self.0.write(node.ino, at, from))
    }
    fn append(&self, node: &Pinned, from: &[u8]) -> Sys<usize> {
        sys(self.0.append(node.ino, from)).map(|_| from.len())
    }
    fn truncate(&self, node: &Pinned, size: u64) -> Sys {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        sys(self.0.setattr(node.ino, &set)).map(drop)
    }
    fn fallocate(&self, node: &Pinned, what: Fallocate, at: u64, len: u64) -> Sys {
        sys(self.0.fallocate(node.ino, what, at, len))
    }
    fn chmod(&self, node: &Pinned, perm: u32) -> Sys {
        let set = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        sys(self.0.setattr(node.ino, &set)).map(drop)
    }
    fn utimes(&self, node: &Pinned, mtime: i64) -> Sys {
        let set = SetAttr {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(Time {
                sec: mtime,
                nsec: 1,
            })),
            ..SetAttr::default()
        };
        sys(self.0.setattr(node.ino, &set)).map(drop)
    }
    fn get_xattr(&self, node: &Pinned, name: &[u8]) -> Sys<Vec<u8>> {
        sys(self.0.getxattr(node.ino, name))
    }
    fn set_xattr(&self, node: &Pinned, name: &[u8], value: &[u8], mode: XattrMode) -> Sys {
        sys(self.0.setxattr(node.ino, name, value, mode))
    }
    fn remove_xattr(&self, node: &Pinned, name: &[u8]) -> Sys {
        sys(self.0.removexattr(node.ino, name))
    }
    fn list_xattrs(&self, node: &Pinned) -> Sys<Vec<Vec<u8>>> {
        let list = sys(self.0.listxattr(node.ino))?;
        let names = list.split(|b| *b == 0).filter(|n| !n.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }
    fn fsync(&self, node: &Pinned) -> Sys {
        sys(self.0.fsync(node.ino, false))
    }
    fn sync(&self) -> Sys<u64> {
        sys(self.0.sync())?;
        Ok(sys(self.0.statfs())?.free)
    }
    fn store(&self, node: &Pinned, at: u64, words: &[u64], persist: bool) -> Sys {
        let end = at + words.len() as u64 * 8;
        let file = sys(self.0.open_file(node.ino))?;
        let view = sys(file.map(at..end, Access::Write))?;
        for (i, word) in words.iter().enumerate() {
            sys(view.store::<u64>(i as u64 * 8, *word))?;
        }
        if persist {
            sys(view.persist(0..end - at))?;
        }
        Ok(())
    }
}
