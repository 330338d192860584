//! The engine, called directly.

use std::ops::ControlFlow;

use pramfs::{
    Access, Fallocate, RenameFlags, Result, XattrMode,
    inode::{Credentials, Fs, Ino, InodeRef, SetAttr, SetTime, Time},
};

use super::pattern::identity;
use super::target::{About, Target};
use crate::syscalls::Sys;

const CX: Credentials<'_> = Credentials::new(0, 0);

/// A way to the engine.
#[derive(Debug)]
pub struct EngineAccess<'f>(pub &'f Fs);

fn sys<T>(result: Result<T>) -> Sys<T> {
    result.map_err(|e| {
        let errno = e.errno();
        if matches!(errno, libc::EIO | libc::EUCLEAN) {
            eprintln!("{e}");
        }
        errno
    })
}

impl Target for EngineAccess<'_> {
    type Node = InodeRef;
    const WHOLE: bool = true;
    const VIEWS: bool = true;

    fn root(&self) -> Sys<InodeRef> {
        Ok(self.0.hold(Ino::ROOT))
    }
    fn lookup(&self, dir: &InodeRef, name: &[u8]) -> Sys<InodeRef> {
        sys(self.0.holding().lookup(dir.ino(), name)).map(|(found, _)| found)
    }
    fn create(&self, dir: &InodeRef, name: &[u8]) -> Sys<InodeRef> {
        sys(self.0.holding().create(&CX, dir.ino(), name, 0o644)).map(|(made, _)| made)
    }
    fn mkdir(&self, dir: &InodeRef, name: &[u8]) -> Sys {
        sys(self.0.mkdir(&CX, dir.ino(), name, 0o755)).map(drop)
    }
    fn mknod(&self, dir: &InodeRef, name: &[u8], mode: u32) -> Sys {
        sys(self.0.mknod(&CX, dir.ino(), name, mode, 0)).map(drop)
    }
    fn symlink(&self, dir: &InodeRef, name: &[u8], target: &[u8]) -> Sys {
        sys(self.0.symlink(&CX, dir.ino(), name, target)).map(drop)
    }
    fn link(&self, node: &InodeRef, dir: &InodeRef, name: &[u8]) -> Sys {
        sys(self.0.link(node.ino(), dir.ino(), name)).map(drop)
    }
    fn unlink(&self, dir: &InodeRef, name: &[u8]) -> Sys {
        sys(self.0.unlink(dir.ino(), name))
    }
    fn rmdir(&self, dir: &InodeRef, name: &[u8]) -> Sys {
        sys(self.0.rmdir(dir.ino(), name))
    }
    fn rename(&self, from: (&InodeRef, &[u8]), to: (&InodeRef, &[u8]), flags: RenameFlags) -> Sys {
        sys(self
            .0
            .rename(&CX, from.0.ino(), from.1, to.0.ino(), to.1, flags))
    }
    fn about(&self, node: &InodeRef) -> Sys<About> {
        let a = sys(self.0.getattr(node.ino()))?;
        Ok(About {
            id: identity(a.ino.0, a.generation),
            kind: a.kind,
            size: a.size,
            nlink: a.nlink.into(),
            perm: a.perm,
            mtime: a.mtime.sec,
        })
    }
    fn list(&self, dir: &InodeRef) -> Sys<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        sys(self.0.readdir(dir.ino(), 0, &mut |e| {
            if !matches!(e.name, b"." | b"..") {
                names.push(e.name.to_vec());
            }
            ControlFlow::Continue(())
        }))?;
        Ok(names)
    }
    fn readlink(&self, node: &InodeRef) -> Sys<Vec<u8>> {
        sys(self.0.readlink(node.ino()))
    }
    fn read(&self, node: &InodeRef, at: u64, into: &mut [u8]) -> Sys<usize> {
        sys(self.0.read(node.ino(), at, into))
    }
    fn write(&self, node: &InodeRef, at: u64, from: &[u8]) -> Sys<usize> {
        sys(self.0.write(&CX, node.ino(), at, from))
    }
    fn append(&self, node: &InodeRef, from: &[u8]) -> Sys<usize> {
        sys(self.0.append(&CX, node.ino(), from)).map(|_| from.len())
    }
    fn truncate(&self, node: &InodeRef, size: u64) -> Sys {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        sys(self.0.setattr(&CX, node.ino(), &set)).map(drop)
    }
    fn fallocate(&self, node: &InodeRef, what: Fallocate, at: u64, len: u64) -> Sys {
        sys(self.0.fallocate(&CX, node.ino(), what, at, len))
    }
    fn chmod(&self, node: &InodeRef, perm: u32) -> Sys {
        let set = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        sys(self.0.setattr(&CX, node.ino(), &set)).map(drop)
    }
    fn utimes(&self, node: &InodeRef, mtime: i64) -> Sys {
        let set = SetAttr {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(Time {
                sec: mtime,
                nsec: 1,
            })),
            ..SetAttr::default()
        };
        sys(self.0.setattr(&CX, node.ino(), &set)).map(drop)
    }
    fn get_xattr(&self, node: &InodeRef, name: &[u8]) -> Sys<Vec<u8>> {
        sys(self.0.getxattr(node.ino(), name))
    }
    fn set_xattr(&self, node: &InodeRef, name: &[u8], value: &[u8], mode: XattrMode) -> Sys {
        sys(self.0.setxattr(&CX, node.ino(), name, value, mode))
    }
    fn remove_xattr(&self, node: &InodeRef, name: &[u8]) -> Sys {
        sys(self.0.removexattr(node.ino(), name))
    }
    fn list_xattrs(&self, node: &InodeRef) -> Sys<Vec<Vec<u8>>> {
        let list = sys(self.0.listxattr(node.ino()))?;
        let names = list.split(|b| *b == 0).filter(|n| !n.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }
    fn fsync(&self, node: &InodeRef) -> Sys {
        sys(self.0.fsync(node.ino(), false))
    }
    fn sync(&self) -> Sys<u64> {
        sys(self.0.sync())?;
        Ok(sys(self.0.statfs())?.free)
    }
    fn store(&self, node: &InodeRef, at: u64, words: &[u64], persist: bool) -> Sys {
        let end = at + words.len() as u64 * 8;
        let file = sys(self.0.open_file(node.ino()))?;
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
