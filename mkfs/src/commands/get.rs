//! `pramfs get`: copies files out of a region, without a mount.
//!
//! Invariant: no name in the region makes `get` write outside the destination.
//! Every object is created relative to the open descriptor of its directory, and
//! no symbolic link is followed below the destination.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use pramfs::Damage;
use pramfs::{
    Error, FileType, SeekWhence,
    inode::{Attr, Fs, Ino},
};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::Subcommand;
use crate::open::{self, Intent};
use crate::tree::{self, CHUNK, Follow, kind_name};
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Get {
    /// File or device that holds the file system
    region: PathBuf,
    /// Paths in the file system
    #[arg(required = true)]
    path: Vec<OsString>,
    /// An existing directory, or a new name
    destination: PathBuf,
    /// Copy directories and their contents
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Overwrite existing files
    #[arg(short = 'f', long)]
    force: bool,
}

impl Subcommand for Get {
    const NAME: &'static str = "get";
    const ABOUT: &'static str = "Copy files out, with mode, times, links and extended attributes";

    fn run(&self) -> Result<(), Failure> {
        let fs = open::fs(&self.region, Intent::Read)?;
        let bar = output::bar(0, "copying");
        let mut job = Job {
            fs: &fs,
            get: self,
            root: rustix::process::geteuid().is_root(),
            links: HashMap::new(),
            directories: HashSet::new(),
            buffer: vec![0; CHUNK],
            bar: bar.clone(),
        };
        let into = self.destination.is_dir();
        if !into && self.path.len() > 1 {
            return Err(Failure::usage(format!(
                "{} is not a directory",
                crate::failure::shown(&self.destination)
            )));
        }
        let result = self
            .path
            .iter()
            .try_for_each(|path| job.source(path.as_bytes(), into));
        bar.finish_and_clear();
        result
    }
}

struct Job<'a> {
    fs: &'a Fs,
    get: &'a Get,
    /// Whether the caller is root: only root can give files to others.
    root: bool,
    /// First copy of each inode with several names.
    links: HashMap<Ino, Copied>,
    /// Directories already copied, to detect loops.
    directories: HashSet<Ino>,
    buffer: Vec<u8>,
    bar: ProgressBar,
}

/// A copy of an inode with several names.
struct Copied {
    /// Its path, from the directory that the destination is in.
    path: PathBuf,
    /// Device and inode.
    object: (u64, u64),
}

/// Directory and name of a new object.
struct Destination<'a> {
    /// The directory that the destination is in.
    top: BorrowedFd<'a>,
    /// The path from there.
    path: PathBuf,
    dir: BorrowedFd<'a>,
    name: &'a [u8],
    /// Path for messages.
    shown: PathBuf,
}

impl Destination<'_> {
    fn error(&self, what: &str, e: Errno) -> Failure {
        match e {
            Errno::EXIST => Failure::new(
                "exists",
                format!(
                    "{} exists; use -f to overwrite files",
                    crate::failure::shown(&self.shown)
                ),
            ),
            e => Failure::os(what, &self.shown, e),
        }
    }

    /// Device and inode of what has the name.
    fn object(&self) -> rustix::io::Result<(u64, u64)> {
        object(self.dir, self.name)
    }

    /// Opens it as a place, without following a symbolic link.
    fn place(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.dir, self.name, flags, Mode::empty())
    }
}

fn object(dir: impl AsFd, name: &[u8]) -> rustix::io::Result<(u64, u64)> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Job<'_> {
    fn source(&mut self, path: &[u8], into: bool) -> Result<(), Failure> {
        let attr = tree::find(self.fs, path, Follow::No)?;
        let destination = &self.get.destination;
        let (directory, name) = if into {
            (destination.as_path(), tree::base(path))
        } else {
            let parent = destination
                .parent()
                .filter(|p| !p.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            (
                parent,
                destination.file_name().unwrap_or_default().as_bytes(),
            )
        };
        let dir = rustix::fs::open(
            directory,
            OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|e| Failure::os("cannot open", directory, e))?;
        if name.is_empty() || name == b"." || name == b".." {
            // The root of the region has no name: copy its contents.
            let top = Destination {
                top: dir.as_fd(),
                path: PathBuf::new(),
                dir: dir.as_fd(),
                name,
                shown: directory.to_owned(),
            };
            return self.contents(path, &attr, dir.as_fd(), &top);
        }
        let name_of = std::ffi::OsStr::from_bytes(name);
        self.object(
            path,
            &attr,
            &Destination {
                top: dir.as_fd(),
                path: name_of.into(),
                dir: dir.as_fd(),
                name,
                shown: directory.join(name_of),
            },
        )
    }

    fn object(&mut self, path: &[u8], attr: &Attr, to: &Destination<'_>) -> Result<(), Failure> {
        if attr.kind == FileType::Directory {
            return self.directory(path, attr, to);
        }
        if attr.nlink > 1 && self.linked(attr.ino, to)? {
            return Ok(());
        }
        match attr.kind {
            FileType::Regular => {
                let file = self.regular(path, attr, to)?;
                self.attributes(path, attr, Target::File(file.as_fd()), to)?;
            }
            FileType::Socket => {
                eprintln!(
                    "pramfs get: note: {} skipped, because it is a socket",
                    tree::name(path)
                );
                return Ok(());
            }
            kind => self.special(path, attr, kind, to)?,
        }
        if attr.nlink > 1 {
            let object = to
                .object()
                .map_err(|e| to.error("cannot look at the copy", e))?;
            let path = to.path.clone();
            self.links.insert(attr.ino, Copied { path, object });
        }
        Ok(())
    }

    /// Links the first copy of an inode, if it is still there.
    fn linked(&mut self, ino: Ino, to: &Destination<'_>) -> Result<bool, Failure> {
        let Some(first) = self.links.get(&ino) else {
            return Ok(false);
        };
        // It has been copied there already.
        if to.object() == Ok(first.object) {
            return Ok(true);
        }
        let (Some(above), Some(name)) = (first.path.parent(), first.path.file_name()) else {
            return Ok(false);
        };
        let above = match above.as_os_str().is_empty() {
            true => Path::new("."),
            false => above,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let failed = |e| to.error("cannot make the link", e);
        let dir = rustix::fs::openat2(to.top, above, flags, Mode::empty(), resolve);
        let dir = dir.map_err(failed)?;
        // Else another program has put something else in its place.
        if object(&dir, name.as_bytes()) != Ok(first.object) {
            return Ok(false);
        }
        let name = name.to_owned();
        self.replacing(to, || {
            rustix::fs::linkat(&dir, &name, to.dir, to.name, AtFlags::empty())
        })
        .map_err(failed)?;
        Ok(true)
    }

    /// Copies a symbolic link, a pipe or a device.
    fn special(
        &mut self,
        path: &[u8],
        attr: &Attr,
        kind: FileType,
        to: &Destination<'_>,
    ) -> Result<(), Failure> {
        if kind == FileType::Symlink {
            let target = self.fs.readlink(attr.ino);
            let target = target.map_err(|e| tree::about(path, e))?;
            self.replacing(to, || rustix::fs::symlinkat(&target[..], to.dir, to.name))
        } else {
            let file_type = rustix::fs::FileType::from_raw_mode(kind.mode_bits());
            let mode = Mode::from_raw_mode(attr.perm & 0o700);
            self.replacing(to, || {
                rustix::fs::mknodat(to.dir, to.name, file_type, mode, attr.rdev)
            })
        }
        .map_err(|e| to.error(&format!("cannot make the {}", kind_name(kind)), e))?;
        let place = to.place().map_err(|e| to.error("cannot open", e))?;
        self.attributes(path, attr, Target::Place(place.as_fd()), to)
    }

    /// With `-f`, first removes an existing object, unless it is a directory.
    fn replacing<T>(
        &mut self,
        to: &Destination<'_>,
        mut make: impl FnMut() -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        match make() {
            Err(Errno::EXIST) if self.get.force => {
                let old = to.object()?;
                rustix::fs::unlinkat(to.dir, to.name, AtFlags::empty())?;
                // Its number may belong to another file soon.
                self.links.retain(|_, copy| copy.object != old);
                make()
            }
            done => done,
        }
    }

    fn regular(&mut self, path: &[u8], attr: &Attr, to: &Destination<'_>) -> Result<File, Failure> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = self.replacing(to, || {
            rustix::fs::openat(to.dir, to.name, flags, Mode::RUSR | Mode::WUSR)
        });
        let file = File::from(made.map_err(|e| to.error("cannot make", e))?);
        let failed = |e: std::io::Error| Failure::os("cannot write", &to.shown, e);
        self.bar.inc_length(attr.size);
        // Holes stay holes.
        let mut at = 0;
        while at < attr.size {
            at = match self.fs.seek(attr.ino, at, SeekWhence::Data) {
                Ok(data) => data,
                Err(Error::NoSuchAddress(_)) => break,
                Err(e) => return Err(tree::about(path, e)),
            };
            let hole = self.fs.seek(attr.ino, at, SeekWhence::Hole);
            let end = hole.map_err(|e| tree::about(path, e))?;
            while at < end {
                let want = (end - at).min(CHUNK as u64) as usize;
                let n = self.fs.read(attr.ino, at, &mut self.buffer[..want]);
                let n = n.map_err(|e| tree::about(path, e))?;
                if n == 0 {
                    return Err(tree::about(
                        path,
                        Error::corrupt(Damage::InodeField, "the file", "it ends before its size"),
                    ));
                }
                file.write_all_at(&self.buffer[..n], at).map_err(failed)?;
                at += n as u64;
                self.bar.inc(n as u64);
            }
        }
        file.set_len(attr.size).map_err(failed)?;
        Ok(file)
    }

    fn directory(&mut self, path: &[u8], attr: &Attr, to: &Destination<'_>) -> Result<(), Failure> {
        if !self.get.recursive {
            return Err(Failure::usage(format!(
                "{} is a directory; use -r to copy it",
                tree::name(path)
            )));
        }
        match rustix::fs::mkdirat(to.dir, to.name, Mode::RWXU) {
            // Like cp: copy into an existing directory.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(to.error("cannot make the directory", e)),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir: OwnedFd = rustix::fs::openat(to.dir, to.name, flags, Mode::empty())
            .map_err(|e| to.error("cannot open", e))?;
        self.contents(path, attr, dir.as_fd(), to)?;
        self.attributes(path, attr, Target::File(dir.as_fd()), to)
    }

    fn contents(
        &mut self,
        path: &[u8],
        attr: &Attr,
        dir: BorrowedFd<'_>,
        to: &Destination<'_>,
    ) -> Result<(), Failure> {
        if !self.get.recursive {
            return Err(Failure::usage(format!(
                "{} is a directory; use -r to copy it",
                tree::name(path)
            )));
        }
        if !self.directories.insert(attr.ino) {
            let e = Error::corrupt(
                Damage::DirectoryLoop,
                "the directory",
                "more than one directory holds it, or it was named twice",
            );
            return Err(tree::about(path, e));
        }
        for e in tree::entries(self.fs, path, attr.ino)? {
            let below = tree::join(path, &e.name);
            let attr = self.fs.getattr(e.ino).map_err(|e| tree::about(&below, e))?;
            let name_of = std::ffi::OsStr::from_bytes(&e.name);
            self.object(
                &below,
                &attr,
                &Destination {
                    top: to.top,
                    path: to.path.join(name_of),
                    dir,
                    name: &e.name,
                    shown: to.shown.join(name_of),
                },
            )?;
        }
        Ok(())
    }

    /// Sets owner, then attributes and mode (since a change of owner clears capabilities and set-ID
    /// bits), then times.
    fn attributes(
        &self,
        path: &[u8],
        attr: &Attr,
        target: Target<'_>,
        to: &Destination<'_>,
    ) -> Result<(), Failure> {
        if self.root {
            target
                .chown(owner(attr), to)
                .map_err(|e| to.error("cannot set the owner of", e))?;
        }
        let names = self
            .fs
            .listxattr(attr.ino)
            .map_err(|e| tree::about(path, e))?;
        for name in names.split(|&b| b == 0).filter(|n| !n.is_empty()) {
            let value = self
                .fs
                .getxattr(attr.ino, name)
                .map_err(|e| tree::about(path, e))?;
            if let Err(e) = target.setxattr(name, &value) {
                eprintln!(
                    "pramfs get: note: {}: attribute {} not set: {e}",
                    crate::failure::shown(&to.shown),
                    tree::name(name)
                );
            }
        }
        // An unprivileged copy drops the set-ID bits.
        let perm = if self.root {
            attr.perm
        } else {
            attr.perm & 0o1777
        };
        // A symbolic link has none.
        if attr.kind != FileType::Symlink {
            target
                .chmod(Mode::from_raw_mode(perm))
                .map_err(|e| to.error("cannot set the mode of", e))?;
        }
        match target {
            Target::File(fd) => rustix::fs::futimens(fd, &times(attr)),
            Target::Place(_) => {
                rustix::fs::utimensat(to.dir, to.name, &times(attr), AtFlags::SYMLINK_NOFOLLOW)
            }
        }
        .map_err(|e| to.error("cannot set the times of", e))
    }
}

/// A copy whose attributes are set.
#[derive(Clone, Copy)]
enum Target<'a> {
    /// A file or directory.
    File(BorrowedFd<'a>),
    /// Anything else, open as a place only. Its name in `/proc` leads to it, and no further if it is
    /// a symbolic link.
    Place(BorrowedFd<'a>),
}

impl Target<'_> {
    fn chown(
        self,
        (uid, gid): (Option<rustix::fs::Uid>, Option<rustix::fs::Gid>),
        to: &Destination<'_>,
    ) -> rustix::io::Result<()> {
        match self {
            Target::File(fd) => rustix::fs::fchown(fd, uid, gid),
            Target::Place(_) => {
                rustix::fs::chownat(to.dir, to.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }

    fn setxattr(self, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
        let flags = XattrFlags::empty();
        match self {
            Target::File(fd) => rustix::fs::fsetxattr(fd, name, value, flags),
            Target::Place(fd) => rustix::fs::setxattr(in_proc(fd), name, value, flags),
        }
    }

    fn chmod(self, mode: Mode) -> rustix::io::Result<()> {
        match self {
            Target::File(fd) => rustix::fs::fchmod(fd, mode),
            Target::Place(fd) => rustix::fs::chmod(in_proc(fd), mode),
        }
    }
}

fn in_proc(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn owner(attr: &Attr) -> (Option<rustix::fs::Uid>, Option<rustix::fs::Gid>) {
    (
        Some(rustix::fs::Uid::from_raw(attr.uid)),
        Some(rustix::fs::Gid::from_raw(attr.gid)),
    )
}

fn times(attr: &Attr) -> Timestamps {
    let spec = |t: pramfs::inode::Time| Timespec {
        tv_sec: t.sec,
        tv_nsec: i64::from(t.nsec),
    };
    Timestamps {
        last_access: spec(attr.atime),
        last_modification: spec(attr.mtime),
    }
}
