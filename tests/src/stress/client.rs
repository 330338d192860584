//! A mount whose files are written beside it: by the client library, or by system calls on a
//! file that stays open, which the preload library serves.
//!
//! The file that was written last stays open. Everything else goes through the mount.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pramfs::{Fallocate, RenameFlags, XattrMode};
use pramfs_client::{Access, OpenOptions};
use rustix::fs::OFlags;

use super::mount::MountAccess;
use super::target::{About, Target};
use crate::syscalls::{self as sys, Sys, path_of};

type Node = <MountAccess as Target>::Node;

/// How often a lease is asked for. The kernel reports a close a little late.
const ATTEMPTS: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(20);

/// A file that stays open for writing.
pub trait Writer: Send + Sized {
    /// It has views.
    const VIEWS: bool;

    /// Opens a file. Nothing, if the next call had better open it again.
    ///
    /// # Errors
    /// An errno.
    fn open(node: &Node) -> Sys<(Self, bool)>;
    /// As [`Target::write`].
    ///
    /// # Errors
    /// An errno.
    fn write(&self, at: u64, from: &[u8]) -> Sys<usize>;
    /// As [`Target::append`], and whether it needed no call.
    ///
    /// # Errors
    /// An errno.
    fn append(&self, from: &[u8]) -> Sys<(usize, bool)>;
    /// As [`Target::store`].
    ///
    /// # Errors
    /// An errno.
    fn store(&self, at: u64, words: &[u64], persist: bool) -> Sys;
}

/// By a lease to write.
#[derive(Debug)]
pub struct Leased(pramfs_client::File);

/// By pwrite(2) and fdatasync(2) of the C library.
#[derive(Debug)]
pub struct Synced(File);

fn errno<T>(result: pramfs_client::Result<T>) -> Sys<T> {
    result.map_err(|error| {
        let errno = error.errno();
        // Says more than the number, unless it is the death of a server.
        if errno != libc::ENOTCONN {
            eprintln!("client: {error}");
        }
        errno
    })
}

fn os<T>(result: std::io::Result<T>) -> Sys<T> {
    result.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}

impl Writer for Leased {
    const VIEWS: bool = true;

    fn open(node: &Node) -> Sys<(Leased, bool)> {
        let lease = || {
            let file = sys::open(node, OFlags::RDWR | OFlags::DIRECT);
            let file = file.map_err(std::io::Error::from_raw_os_error);
            let file = file.map_err(pramfs_client::Error::Mount)?;
            OpenOptions::new().write(true).from_file(file.into())
        };
        let mut leased = lease();
        for _ in 0..ATTEMPTS {
            match &leased {
                Err(error) if error.errno() == libc::EBUSY => std::thread::sleep(PAUSE),
                _ => break,
            }
            leased = lease();
        }
        errno(leased).map(|file| (Leased(file), true))
    }

    fn write(&self, at: u64, from: &[u8]) -> Sys<usize> {
        errno(self.0.write_at(from, at))
    }

    fn append(&self, from: &[u8]) -> Sys<(usize, bool)> {
        // In the window that is open, or in a new one, or through the mount.
        let known = errno(self.0.append_known(from, None))?;
        if known.is_none() {
            errno(self.0.append(from))?;
        }
        Ok((from.len(), known.is_some()))
    }

    fn store(&self, at: u64, words: &[u64], persist: bool) -> Sys {
        let len = words.len() as u64 * 8;
        let view = errno(self.0.map(at..at + len, Access::Write))?;
        for (n, word) in words.iter().enumerate() {
            errno(view.store(n as u64 * 8, word.to_le()))?;
        }
        match persist {
            true => errno(view.persist(0..len)),
            false => Ok(()),
        }
    }
}

impl Writer for Synced {
    const VIEWS: bool = false;

    fn open(node: &Node) -> Sys<(Synced, bool)> {
        // By the C library, which std calls; rustix makes system calls itself.
        let file = File::options().read(true).write(true).open(path_of(node));
        let file = os(file)?;
        // An empty file gets no lease when it is opened.
        let is_empty = os(file.metadata())?.len() == 0;
        Ok((Synced(file), !is_empty))
    }

    fn write(&self, at: u64, from: &[u8]) -> Sys<usize> {
        let written = os(self.0.write_at(from, at))?;
        os(self.0.sync_data())?;
        Ok(written)
    }

    fn append(&self, from: &[u8]) -> Sys<(usize, bool)> {
        let end = os(self.0.metadata())?.len();
        self.write(end, from).map(|written| (written, false))
    }

    fn store(&self, _: u64, _: &[u64], _: bool) -> Sys {
        Err(libc::EOPNOTSUPP)
    }
}

/// A way to a directory of a mount, for one writer.
#[derive(Debug)]
pub struct ClientAccess<W> {
    mount: MountAccess,
    open: Mutex<Option<(u64, W)>>,
    appends: [AtomicU64; 2],
}

impl<W: Writer> ClientAccess<W> {
    /// A way to this directory.
    pub fn new(directory: PathBuf) -> ClientAccess<W> {
        ClientAccess {
            mount: MountAccess(directory),
            open: Mutex::new(None),
            appends: Default::default(),
        }
    }

    /// Returns how many appends needed no call, and how many there were.
    pub fn appends(&self) -> [u64; 2] {
        self.appends.each_ref().map(|n| n.load(Ordering::Relaxed))
    }

    fn with<T>(&self, node: &Node, f: impl FnOnce(&W) -> Sys<T>) -> Sys<T> {
        let mut open: MutexGuard<'_, _> = self.open.lock();
        let id = self.mount.about(node)?.id;
        if let Some((_, writer)) = open.as_ref().filter(|(of, _)| *of == id) {
            return f(writer);
        }
        let (writer, stays) = W::open(node)?;
        let done = f(&writer);
        *open = stays.then_some((id, writer));
        done
    }
}

impl<W: Writer> Target for ClientAccess<W> {
    type Node = Node;
    const WHOLE: bool = false;
    const VIEWS: bool = W::VIEWS;

    fn write(&self, node: &Node, at: u64, from: &[u8]) -> Sys<usize> {
        self.with(node, |writer| writer.write(at, from))
    }
    fn append(&self, node: &Node, from: &[u8]) -> Sys<usize> {
        let (written, without_call) = self.with(node, |writer| writer.append(from))?;
        self.appends[0].fetch_add(u64::from(without_call), Ordering::Relaxed);
        self.appends[1].fetch_add(1, Ordering::Relaxed);
        Ok(written)
    }
    fn store(&self, node: &Node, at: u64, words: &[u64], persist: bool) -> Sys {
        self.with(node, |writer| writer.store(at, words, persist))
    }

    fn root(&self) -> Sys<Node> {
        self.mount.root()
    }
    fn lookup(&self, dir: &Node, name: &[u8]) -> Sys<Node> {
        self.mount.lookup(dir, name)
    }
    fn create(&self, dir: &Node, name: &[u8]) -> Sys<Node> {
        self.mount.create(dir, name)
    }
    fn mkdir(&self, dir: &Node, name: &[u8]) -> Sys {
        self.mount.mkdir(dir, name)
    }
    fn mknod(&self, dir: &Node, name: &[u8], mode: u32) -> Sys {
        self.mount.mknod(dir, name, mode)
    }
    fn symlink(&self, dir: &Node, name: &[u8], target: &[u8]) -> Sys {
        self.mount.symlink(dir, name, target)
    }
    fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Sys {
        self.mount.link(node, dir, name)
    }
    fn unlink(&self, dir: &Node, name: &[u8]) -> Sys {
        self.mount.unlink(dir, name)
    }
    fn rmdir(&self, dir: &Node, name: &[u8]) -> Sys {
        self.mount.rmdir(dir, name)
    }
    fn rename(&self, from: (&Node, &[u8]), to: (&Node, &[u8]), flags: RenameFlags) -> Sys {
        self.mount.rename(from, to, flags)
    }
    fn about(&self, node: &Node) -> Sys<About> {
        self.mount.about(node)
    }
    fn list(&self, dir: &Node) -> Sys<Vec<Vec<u8>>> {
        self.mount.list(dir)
    }
    fn readlink(&self, node: &Node) -> Sys<Vec<u8>> {
        self.mount.readlink(node)
    }
    fn read(&self, node: &Node, at: u64, into: &mut [u8]) -> Sys<usize> {
        self.mount.read(node, at, into)
    }
    fn truncate(&self, node: &Node, size: u64) -> Sys {
        self.mount.truncate(node, size)
    }
    fn fallocate(&self, node: &Node, what: Fallocate, at: u64, len: u64) -> Sys {
        self.mount.fallocate(node, what, at, len)
    }
    fn chmod(&self, node: &Node, perm: u32) -> Sys {
        self.mount.chmod(node, perm)
    }
    fn utimes(&self, node: &Node, mtime: i64) -> Sys {
        self.mount.utimes(node, mtime)
    }
    fn get_xattr(&self, node: &Node, name: &[u8]) -> Sys<Vec<u8>> {
        self.mount.get_xattr(node, name)
    }
    fn set_xattr(&self, node: &Node, name: &[u8], value: &[u8], mode: XattrMode) -> Sys {
        self.mount.set_xattr(node, name, value, mode)
    }
    fn remove_xattr(&self, node: &Node, name: &[u8]) -> Sys {
        self.mount.remove_xattr(node, name)
    }
    fn list_xattrs(&self, node: &Node) -> Sys<Vec<Vec<u8>>> {
        self.mount.list_xattrs(node)
    }
    fn fsync(&self, node: &Node) -> Sys {
        self.mount.fsync(node)
    }
    fn sync(&self) -> Sys<u64> {
        self.mount.sync()
    }
}
