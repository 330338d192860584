//! `pramfs get`: copies files out of a region, without a mount.
//!
//! Invariant: no name in the region makes `get` write outside the destination.
//! Every object is created relative to the open descriptor of its directory, and
//! no symbolic link is followed below the destination.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
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
    links: HashMap<Ino, PathBuf>,
    /// Directories already copied, to detect loops.
    directories: HashSet<Ino>,
    buffer: Vec<u8>,
    bar: ProgressBar,
}

/// Directory and name of a new object.
struct Destination<'a> {
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
            return self.contents(path, &attr, dir.as_fd(), directory);
        }
        let shown = directory.join(std::ffi::OsStr::from_bytes(name));
        self.object(
            path,
            &attr,
            &Destination {
                dir: dir.as_fd(),
                name,
                shown,
            },
        )
    }

    fn object(&mut self, path: &[u8], attr: &Attr, to: &Destination<'_>) -> Result<(), Failure> {
        if attr.kind == FileType::Directory {
            return self.directory(path, attr, to);
        }
        if attr.nlink > 1 {
            if let Some(first) = self.links.get(&attr.ino) {
                let cwd = rustix::fs::CWD;
                return self
                    .replacing(to, || {
                        rustix::fs::linkat(cwd, first, to.dir, to.name, AtFlags::empty())
                    })
                    .map_err(|e| to.error("cannot make the link", e));
            }
            self.links.insert(attr.ino, to.shown.clone());
        }
        match attr.kind {
            FileType::Regular => {
                let file = self.regular(path, attr, to)?;
                return self.attributes(path, attr, file.as_fd(), to);
            }
            FileType::Symlink => {
                let target = self
                    .fs
                    .readlink(attr.ino)
                    .map_err(|e| tree::about(path, e))?;
                self.replacing(to, || rustix::fs::symlinkat(&target[..], to.dir, to.name))
            }
            FileType::Socket => {
                eprintln!(
                    "pramfs get: note: {} skipped, because it is a socket",
                    tree::name(path)
                );
                return Ok(());
            }
            kind => {
                let file_type = rustix::fs::FileType::from_raw_mode(kind.mode_bits());
                let mode = Mode::from_raw_mode(attr.perm & 0o777);
                self.replacing(to, || {
                    rustix::fs::mknodat(to.dir, to.name, file_type, mode, attr.rdev)
                })
            }
        }
        .map_err(|e| to.error(&format!("cannot make the {}", kind_name(attr.kind)), e))?;
        if self.root {
            let (uid, gid) = owner(attr);
            rustix::fs::chownat(to.dir, to.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|e| to.error("cannot set the owner of", e))?;
        }
        rustix::fs::utimensat(to.dir, to.name, &times(attr), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| to.error("cannot set the times of", e))
    }

    /// With `-f`, first removes an existing object, unless it is a directory.
    fn replacing(
        &self,
        to: &Destination<'_>,
        mut make: impl FnMut() -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        match make() {
            Err(Errno::EXIST) if self.get.force => {
                rustix::fs::unlinkat(to.dir, to.name, AtFlags::empty())?;
                make()
            }
            done => done,
        }
    }

    fn regular(&mut self, path: &[u8], attr: &Attr, to: &Destination<'_>) -> Result<File, Failure> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = || rustix::fs::openat(to.dir, to.name, flags, Mode::RUSR | Mode::WUSR);
        let made = match make() {
            Err(Errno::EXIST) if self.get.force => {
                rustix::fs::unlinkat(to.dir, to.name, AtFlags::empty()).and_then(|()| make())
            }
            made => made,
        };
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
        self.contents(path, attr, dir.as_fd(), &to.shown)?;
        self.attributes(path, attr, dir.as_fd(), to)
    }

    fn contents(
        &mut self,
        path: &[u8],
        attr: &Attr,
        dir: BorrowedFd<'_>,
        shown: &Path,
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
            let shown = shown.join(std::ffi::OsStr::from_bytes(&e.name));
            self.object(
                &below,
                &attr,
                &Destination {
                    dir,
                    name: &e.name,
                    shown,
                },
            )?;
        }
        Ok(())
    }

    /// Sets owner, then mode (since a change of owner clears set-ID bits), then times.
    fn attributes(
        &self,
        path: &[u8],
        attr: &Attr,
        fd: BorrowedFd<'_>,
        to: &Destination<'_>,
    ) -> Result<(), Failure> {
        let names = self
            .fs
            .listxattr(attr.ino)
            .map_err(|e| tree::about(path, e))?;
        for name in names.split(|&b| b == 0).filter(|n| !n.is_empty()) {
            let value = self
                .fs
                .getxattr(attr.ino, name)
                .map_err(|e| tree::about(path, e))?;
            if let Err(e) = rustix::fs::fsetxattr(fd, name, &value, rustix::fs::XattrFlags::empty())
            {
                eprintln!(
                    "pramfs get: note: {}: attribute {} not set: {e}",
                    crate::failure::shown(&to.shown),
                    tree::name(name)
                );
            }
        }
        if self.root {
            let (uid, gid) = owner(attr);
            rustix::fs::fchown(fd, uid, gid).map_err(|e| to.error("cannot set the owner of", e))?;
        }
        // An unprivileged copy drops the set-ID bits.
        let perm = if self.root {
            attr.perm
        } else {
            attr.perm & 0o1777
        };
        rustix::fs::fchmod(fd, Mode::from_raw_mode(perm))
            .map_err(|e| to.error("cannot set the mode of", e))?;
        rustix::fs::futimens(fd, &times(attr)).map_err(|e| to.error("cannot set the times of", e))
    }
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
