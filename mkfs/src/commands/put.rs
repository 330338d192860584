//! `pramfs put`: copies files into a region, without a mount.
//!
//! Each step is one operation of the file system. An interrupted copy leaves some
//! of the files, the last of them perhaps incomplete, and never damages the region. Standard input
//! becomes a file as a whole, or not at all.

mod stdin;

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use pramfs::{
    Error, FileType, XattrMode,
    inode::{Attr, Credentials, Fs, Ino, SetAttr, SetTime, Time},
};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

use super::Subcommand;
use crate::failure::shown;
use crate::open::{self, Intent};
use crate::tree::{self, CHUNK};
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Put {
    /// File or device that holds the file system
    region: PathBuf,
    /// Files to copy; "-" is standard input, as the contents of one file, which appears when all has been read
    #[arg(required = true)]
    source: Vec<PathBuf>,
    /// An existing directory in the region, or a new name
    destination: PathBuf,
    /// Copy directories and their contents
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Overwrite existing files
    #[arg(short = 'f', long)]
    force: bool,
}

impl Subcommand for Put {
    const NAME: &'static str = "put";
    const ABOUT: &'static str =
        "Copy files in, with mode, owner, times, links and extended attributes";

    fn run(&self) -> Result<(), Failure> {
        if self.source.iter().any(|source| source.as_os_str() == "-") {
            return stdin::put(self);
        }
        // Report a missing source before changing anything.
        for source in &self.source {
            std::fs::symlink_metadata(source).map_err(|e| Failure::os("cannot copy", source, e))?;
        }
        let fs = open::fs(&self.region, Intent::Write)?;
        let bar = output::bar(0, "copying");
        let mut job = Job {
            fs: &fs,
            put: self,
            links: HashMap::new(),
            buffer: vec![0; CHUNK],
            bar: bar.clone(),
        };
        let copied = job.all();
        bar.finish_and_clear();
        copied.and(open::close(&self.region, fs))
    }
}

/// Copies what a directory of this machine has to the root of a file system.
pub(crate) fn put_tree(fs: &Fs, from: &Path) -> Result<(), Failure> {
    let put = Put {
        region: PathBuf::new(),
        source: Vec::new(),
        destination: PathBuf::from("/"),
        recursive: true,
        force: false,
    };
    let bar = output::bar(0, "copying");
    let mut job = Job {
        fs,
        put: &put,
        links: HashMap::new(),
        buffer: vec![0; CHUNK],
        bar: bar.clone(),
    };
    let copied = job.contents(from, Ino::ROOT, b"/");
    bar.finish_and_clear();
    copied
}

struct Job<'a> {
    fs: &'a Fs,
    put: &'a Put,
    /// First copy of each file with several names, by device and inode.
    links: HashMap<(u64, u64), Ino>,
    buffer: Vec<u8>,
    bar: ProgressBar,
}

/// Directory and name of a new object.
struct Destination<'a> {
    dir: Ino,
    name: &'a [u8],
    /// Path for messages.
    path: Vec<u8>,
}

impl Job<'_> {
    fn all(&mut self) -> Result<(), Failure> {
        let to = self.put.destination.as_os_str().as_bytes();
        let (dir, name) = match self.fs.resolve(to) {
            Ok(attr) if attr.kind == FileType::Directory => (attr.ino, None),
            Ok(_) | Err(Error::NotFound) => {
                let (dir, name) = self.fs.resolve_parent(to).map_err(|e| tree::about(to, e))?;
                (dir, Some(name))
            }
            Err(e) => return Err(tree::about(to, e)),
        };
        if name.is_some() && self.put.source.len() > 1 {
            return Err(Failure::usage(format!(
                "{} is not a directory in the region",
                tree::name(to)
            )));
        }
        for source in &self.put.source {
            let meta = std::fs::symlink_metadata(source)
                .map_err(|e| Failure::os("cannot copy", source, e))?;
            match (&name, source.file_name()) {
                (Some(name), _) => self.object(
                    source,
                    &meta,
                    &Destination {
                        dir,
                        name,
                        path: to.to_vec(),
                    },
                )?,
                (None, Some(base)) => {
                    let name = base.as_bytes();
                    self.object(
                        source,
                        &meta,
                        &Destination {
                            dir,
                            name,
                            path: tree::join(to, name),
                        },
                    )?;
                }
                // `.`, `..` and `/` have no name: copy their contents.
                (None, None) => self.contents(source, dir, to)?,
            }
        }
        Ok(())
    }

    fn object(
        &mut self,
        from: &Path,
        meta: &Metadata,
        to: &Destination<'_>,
    ) -> Result<(), Failure> {
        // Take owner, mode and attributes of a file from the descriptor that its
        // bytes are read from: another file may have taken the name by then.
        let opened = if meta.is_file() {
            Some(open_source(from)?)
        } else {
            None
        };
        let now = match &opened {
            Some(file) => file
                .metadata()
                .map_err(|e| Failure::os("cannot copy", from, e))?,
            None => meta.clone(),
        };
        if now.file_type() != meta.file_type() {
            return Err(Failure::new(
                "failed",
                format!("{} was replaced while it was being copied", shown(from)),
            ));
        }
        let meta = &now;
        let failed = |e| tree::about(&to.path, e);
        let ctx = Credentials::new(meta.uid(), meta.gid());
        let perm = meta.mode() & 0o7777;
        let Some(kind) = FileType::from_mode(meta.mode()) else {
            return Err(Failure::new(
                "failed",
                format!("{} is of an unknown type", shown(from)),
            ));
        };
        if kind == FileType::Directory {
            if !self.put.recursive {
                return Err(Failure::usage(format!(
                    "{} is a directory; use -r to copy it",
                    shown(from)
                )));
            }
            let made = match self.fs.mkdir(&ctx, to.dir, to.name, perm) {
                // Like cp: copy into an existing directory.
                Err(Error::Exists) => self.fs.lookup(to.dir, to.name).map_err(failed)?,
                made => made.map_err(failed)?,
            };
            self.contents(from, made.ino, &to.path)?;
            return self.attributes(from, None, meta, &made, to);
        }
        let key = (meta.dev(), meta.ino());
        if meta.nlink() > 1
            && let Some(&ino) = self.links.get(&key)
        {
            return self
                .replacing(to, || self.fs.link(ino, to.dir, to.name))
                .map(drop);
        }
        let made = match (kind, &opened) {
            (FileType::Symlink, _) => {
                let target =
                    std::fs::read_link(from).map_err(|e| Failure::os("cannot read", from, e))?;
                self.replacing(to, || {
                    self.fs
                        .symlink(&ctx, to.dir, to.name, target.as_os_str().as_bytes())
                })?
            }
            (_, Some(file)) => {
                let made = self.replacing(to, || self.fs.create(&ctx, to.dir, to.name, perm))?;
                self.regular(from, file, made.ino, meta.len(), to)?;
                made
            }
            (kind, None) => self.replacing(to, || {
                self.fs
                    .mknod(&ctx, to.dir, to.name, kind.mode_bits() | perm, meta.rdev())
            })?,
        };
        if meta.nlink() > 1 {
            self.links.insert(key, made.ino);
        }
        self.attributes(from, opened.as_ref(), meta, &made, to)
    }

    /// With `-f`, first removes an existing object, unless it is a directory.
    fn replacing(
        &self,
        to: &Destination<'_>,
        make: impl Fn() -> pramfs::Result<Attr>,
    ) -> Result<Attr, Failure> {
        let made = match make() {
            Err(Error::Exists) if self.put.force => {
                self.fs.unlink(to.dir, to.name).and_then(|()| make())
            }
            made => made,
        };
        made.map_err(|e| match e {
            Error::Exists => Failure::new(
                "exists",
                format!("{} exists; use -f to overwrite files", tree::name(&to.path)),
            ),
            e => tree::about(&to.path, e),
        })
    }

    /// Copies data only; holes stay holes.
    fn regular(
        &mut self,
        from: &Path,
        file: &File,
        ino: Ino,
        size: u64,
        to: &Destination<'_>,
    ) -> Result<(), Failure> {
        let failed = |e: std::io::Error| Failure::os("cannot read", from, e);
        self.bar.inc_length(size);
        let (mut at, mut end_of_data) = (0, 0);
        loop {
            if at >= end_of_data {
                (at, end_of_data) = match next_data(file, at) {
                    Ok(Some(range)) => range,
                    Ok(None) => break,
                    Err(e) => return Err(failed(e.into())),
                };
            }
            let want = (end_of_data - at).min(CHUNK as u64) as usize;
            let n = match file.read_at(&mut self.buffer[..want], at) {
                Ok(0) => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                n => n.map_err(failed)?,
            };
            let mut rest = &self.buffer[..n];
            while !rest.is_empty() {
                let written = self
                    .fs
                    .write(&Credentials::ROOT, ino, at, rest)
                    .map_err(|e| tree::about(&to.path, e))?;
                at += written as u64;
                rest = &rest[written..];
            }
            self.bar.inc(n as u64);
        }
        // The file may end in a hole.
        let size = file.metadata().map_err(failed)?.len().max(at);
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        if size > at {
            self.fs
                .setattr(&Credentials::ROOT, ino, &set)
                .map_err(|e| tree::about(&to.path, e))?;
        }
        Ok(())
    }

    fn contents(&mut self, from: &Path, dir: Ino, path: &[u8]) -> Result<(), Failure> {
        let failed = |e| Failure::os("cannot read the directory", from, e);
        let mut list: Vec<_> = std::fs::read_dir(from)
            .map_err(failed)?
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        list.sort_by_key(|e| e.file_name());
        for e in list {
            let (source, name) = (e.path(), e.file_name());
            let meta = std::fs::symlink_metadata(&source)
                .map_err(|e| Failure::os("cannot copy", &source, e))?;
            let name = name.as_bytes();
            self.object(
                &source,
                &meta,
                &Destination {
                    dir,
                    name,
                    path: tree::join(path, name),
                },
            )?;
        }
        Ok(())
    }

    fn attributes(
        &self,
        from: &Path,
        opened: Option<&File>,
        meta: &Metadata,
        made: &Attr,
        to: &Destination<'_>,
    ) -> Result<(), Failure> {
        let failed = |e| tree::about(&to.path, e);
        for (name, value) in xattrs(from, opened)? {
            self.fs
                .setxattr(&Credentials::ROOT, made.ino, &name, &value, XattrMode::Set)
                .map_err(failed)?;
        }
        let time = |sec, nsec: i64| {
            Some(SetTime::At(Time {
                sec,
                nsec: nsec as u32,
            }))
        };
        let set = SetAttr {
            uid: Some(meta.uid()),
            gid: Some(meta.gid()),
            atime: time(meta.atime(), meta.atime_nsec()),
            mtime: time(meta.mtime(), meta.mtime_nsec()),
            ..SetAttr::default()
        };
        self.fs
            .setattr(&Credentials::ROOT, made.ino, &set)
            .map_err(failed)?;
        if made.kind != FileType::Symlink {
            // Set the mode after the owner, whose change clears set-user-ID.
            let set = SetAttr {
                perm: Some(meta.mode() & 0o7777),
                mtime: set.mtime,
                ..SetAttr::default()
            };
            self.fs
                .setattr(&Credentials::ROOT, made.ino, &set)
                .map_err(failed)?;
        }
        Ok(())
    }
}

fn open_source(path: &Path) -> Result<File, Failure> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .map(File::from)
        .map_err(|e| Failure::os("cannot open", path, e))
}

/// Returns the next range with data at or after `at`, or the rest of the file if
/// its file system cannot tell.
fn next_data(file: &File, at: u64) -> rustix::io::Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL) => return Ok(Some((at, u64::MAX))),
        Err(e) => return Err(e),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    Ok(Some((start, end)))
}

/// Name and value of an extended attribute.
type Xattr = (Vec<u8>, Vec<u8>);

/// Reads the extended attributes that this process may read. Empty if the file
/// system supports none.
fn xattrs(path: &Path, opened: Option<&File>) -> Result<Vec<Xattr>, Failure> {
    let failed = |e| Failure::os("cannot read the extended attributes of", path, e);
    // The kernel's limit for a list and for a value.
    let mut buffer = vec![0u8; 64 << 10];
    let listed = match opened {
        Some(file) => rustix::fs::flistxattr(file, &mut buffer[..]),
        None => rustix::fs::llistxattr(path, &mut buffer[..]),
    };
    let n = match listed {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        n => n.map_err(failed)?,
    };
    let names: Vec<Vec<u8>> = buffer[..n]
        .split(|&b| b == 0)
        .filter(|n| !n.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    let mut list = Vec::new();
    for name in names {
        let value = match opened {
            Some(file) => rustix::fs::fgetxattr(file, &name[..], &mut buffer[..]),
            None => rustix::fs::lgetxattr(path, &name[..], &mut buffer[..]),
        };
        match value {
            Ok(n) => list.push((name, buffer[..n].to_vec())),
            Err(Errno::NODATA) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use pramfs::MountOptions;
    use pramfs::format::{FormatOptions, format};
    use pramfs::pmem::RegionOptions;

    use super::*;

    /// Another user with write permission on a parent directory can exchange the
    /// source between stat and open.
    #[test]
    fn put_of_swapped_file_copies_its_own_metadata() {
        let region = RegionOptions::new().memfd("put", 8 << 20).unwrap();
        format(&region, &FormatOptions::default()).unwrap();
        let fs = Fs::open(region, MountOptions::default()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("fi\x1ble");
        std::fs::write(&from, "open to all").unwrap();
        std::fs::set_permissions(&from, PermissionsExt::from_mode(0o666)).unwrap();
        let looked_at = std::fs::symlink_metadata(&from).unwrap();
        std::fs::remove_file(&from).unwrap();
        std::fs::write(&from, "a secret").unwrap();
        std::fs::set_permissions(&from, PermissionsExt::from_mode(0o600)).unwrap();

        let put = Put {
            region: PathBuf::new(),
            source: vec![from.clone()],
            destination: PathBuf::from("/"),
            recursive: false,
            force: false,
        };
        let mut job = Job {
            fs: &fs,
            put: &put,
            links: HashMap::new(),
            buffer: vec![0; CHUNK],
            bar: ProgressBar::hidden(),
        };
        let destination = |name: &'static str| Destination {
            dir: Ino::ROOT,
            name: name.as_bytes(),
            path: name.into(),
        };
        job.object(&from, &looked_at, &destination("copy")).unwrap();
        let copy = fs.lookup(Ino::ROOT, b"copy").unwrap();
        assert_eq!((copy.perm, copy.size), (0o600, 8));
        // A symbolic link in its place is not copied at all.
        std::fs::remove_file(&from).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &from).unwrap();
        assert!(
            job.object(&from, &looked_at, &destination("other"))
                .is_err()
        );
        assert!(fs.lookup(Ino::ROOT, b"other").is_err());
        // The message escapes the name.
        std::fs::remove_file(&from).unwrap();
        std::fs::create_dir(&from).unwrap();
        let e = job
            .object(&from, &looked_at, &destination("other"))
            .unwrap_err();
        assert!(e.message.contains("fi\\u{1b}le was replaced"), "{e:?}");
    }
}
