//! `pramfs put`: copies files into a region, without a mount.
//!
//! Each step is one operation of the file system. An interrupted copy leaves some
//! of the files, the last of them perhaps incomplete, and never damages the region. Standard input
//! becomes a file as a whole, or not at all.
//!
//! Invariants:
//! * the name of a file that is replaced leads to the old file or to the whole new one;
//! * below a source, every file is opened relative to the descriptor of its directory, and no symbolic
//!   link is followed.

mod source;
mod stdin;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use pramfs::{
    Error, FileType, XattrMode,
    inode::{Attr, Credentials, Fs, Ino, SetAttr, SetTime, Time},
};

use self::source::{Source, next_data};
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
        let mut job = Job::new(&fs, self, "pramfs put", &bar);
        job.region = std::fs::metadata(&self.region)
            .ok()
            // The node of a device is a file like any other.
            .filter(|meta| meta.is_file())
            .map(|meta| (meta.dev(), meta.ino()));
        let copied = job.all();
        bar.finish_and_clear();
        copied.and(open::close(&self.region, fs))
    }
}

/// Copies what a directory of this machine has to the root of a file system, for `mkfs.pramfs`. The
/// file `region` is left out. Gives up when `interrupted` says so.
pub(crate) fn put_tree(
    fs: &Fs,
    from: &Path,
    region: Option<(u64, u64)>,
    interrupted: &dyn Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let put = Put {
        region: PathBuf::new(),
        source: Vec::new(),
        destination: PathBuf::from("/"),
        recursive: true,
        force: false,
    };
    let bar = output::bar(0, "copying");
    let mut job = Job::new(fs, &put, "mkfs.pramfs", &bar);
    (job.region, job.interrupted) = (region, interrupted);
    let source = Source::named(from);
    let copied = source
        .directory()
        .and_then(|opened| job.contents(&source, &opened, Ino::ROOT, b"/"));
    bar.finish_and_clear();
    copied
}

struct Job<'a> {
    fs: &'a Fs,
    put: &'a Put,
    /// The program, for its notes.
    program: &'static str,
    /// Device and inode of the region, if it is a file.
    region: Option<(u64, u64)>,
    /// First copy of each file with several names, by device and inode.
    links: HashMap<(u64, u64), Ino>,
    interrupted: &'a dyn Fn() -> Result<(), Failure>,
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

impl<'a> Job<'a> {
    fn new(fs: &'a Fs, put: &'a Put, program: &'static str, bar: &ProgressBar) -> Job<'a> {
        Job {
            fs,
            put,
            program,
            region: None,
            links: HashMap::new(),
            interrupted: &|| Ok(()),
            buffer: vec![0; CHUNK],
            bar: bar.clone(),
        }
    }

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
        for path in &self.put.source {
            let source = &Source::named(path);
            let meta = source.metadata()?;
            if self.region == Some((meta.dev(), meta.ino())) {
                return Err(Failure::new(
                    "same",
                    format!("{}: is the region itself", shown(path)),
                ));
            }
            match (&name, path.file_name()) {
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
                (None, None) => self.contents(source, &source.open(&meta)?, dir, to)?,
            }
        }
        Ok(())
    }

    fn object(
        &mut self,
        from: &Source<'_>,
        meta: &Metadata,
        to: &Destination<'_>,
    ) -> Result<(), Failure> {
        (self.interrupted)()?;
        if self.region == Some((meta.dev(), meta.ino())) {
            eprintln!(
                "{}: note: {} skipped, because it is the region itself",
                self.program,
                shown(from.path)
            );
            return Ok(());
        }
        // Take owner, mode and attributes from the descriptor that contents or target are read
        // from: another file may have taken the name by then.
        let opened = from.open(meta)?;
        let now = opened
            .metadata()
            .map_err(|e| Failure::os("cannot copy", from.path, e))?;
        if now.file_type() != meta.file_type() {
            return Err(Failure::new(
                "failed",
                format!(
                    "{} was replaced while it was being copied",
                    shown(from.path)
                ),
            ));
        }
        let meta = &now;
        let key = (meta.dev(), meta.ino());
        let failed = |e| tree::about(&to.path, e);
        let ctx = Credentials::new(meta.uid(), meta.gid());
        let perm = meta.mode() & 0o7777;
        let Some(kind) = FileType::from_mode(meta.mode()) else {
            return Err(Failure::new(
                "failed",
                format!("{} is of an unknown type", shown(from.path)),
            ));
        };
        if kind == FileType::Directory {
            if !self.put.recursive {
                return Err(Failure::usage(format!(
                    "{} is a directory; use -r to copy it",
                    shown(from.path)
                )));
            }
            let made = match self.fs.mkdir(&ctx, to.dir, to.name, perm) {
                Err(Error::Exists) => {
                    let found = self.fs.lookup(to.dir, to.name).map_err(failed)?;
                    if found.kind != FileType::Directory {
                        return Err(Failure::new(
                            "exists",
                            format!(
                                "{} exists and is not a directory; remove it, or give another path",
                                tree::name(&to.path)
                            ),
                        ));
                    }
                    // Like cp: copy into an existing directory.
                    found
                }
                made => made.map_err(failed)?,
            };
            self.contents(from, &opened, made.ino, &to.path)?;
            return self.attributes(from, &opened, meta, &made, to);
        }
        let linked = match meta.nlink() > 1 {
            true => self.links.get(&key).copied(),
            false => None,
        };
        let old = match self.fs.lookup(to.dir, to.name) {
            // It has been copied there already.
            Ok(found) if linked == Some(found.ino) => return Ok(()),
            Ok(found) if self.put.force => Some(found),
            Ok(_) => return Err(exists(to)),
            Err(Error::NotFound) => None,
            Err(e) => return Err(failed(e)),
        };
        let old = match old {
            Some(old) if old.kind == FileType::Directory => return Err(failed(Error::IsDirectory)),
            old => old,
        };
        let made = match linked {
            Some(ino) => {
                match &old {
                    None => self.fs.link(ino, to.dir, to.name).map(drop),
                    Some(_) => stdin::replace(self.fs, to.dir, to.name, ino),
                }
                .map_err(failed)?;
                ino
            }
            None => self.new_object(from, &opened, meta, kind, old.as_ref(), to)?,
        };
        if let Some(old) = old {
            // Its number may belong to another file soon.
            self.links.retain(|_, copy| *copy != old.ino);
        }
        if meta.nlink() > 1 {
            self.links.insert(key, made);
        }
        Ok(())
    }

    /// Makes a copy of anything but a directory, and puts it in the place of `old`.
    fn new_object(
        &mut self,
        from: &Source<'_>,
        opened: &File,
        meta: &Metadata,
        kind: FileType,
        old: Option<&Attr>,
        to: &Destination<'_>,
    ) -> Result<Ino, Failure> {
        let failed = |e| tree::about(&to.path, e);
        let ctx = Credentials::new(meta.uid(), meta.gid());
        let perm = meta.mode() & 0o7777;
        if kind == FileType::Regular {
            let fs = self.fs;
            let Some(old) = old else {
                let made = fs.create(&ctx, to.dir, to.name, perm).map_err(failed)?;
                self.regular(from.path, opened, made.ino, meta.len(), to)?;
                self.attributes(from, opened, meta, &made, to)?;
                return Ok(made.ino);
            };
            stdin::refuse_if_fixed(old).map_err(failed)?;
            let made = fs.holding().create_unnamed(&ctx, to.dir, perm, true);
            // Until the end: without a reference, the file ends.
            let (_held, made) = made.map_err(failed)?;
            self.regular(from.path, opened, made.ino, meta.len(), to)?;
            self.attributes(from, opened, meta, &made, to)?;
            stdin::replace(fs, to.dir, to.name, made.ino).map_err(failed)?;
            return Ok(made.ino);
        }
        let target = match kind {
            FileType::Symlink => from.target(opened)?,
            _ => Vec::new(),
        };
        let make = |name: &[u8]| match kind {
            FileType::Symlink => self.fs.symlink(&ctx, to.dir, name, &target),
            kind => {
                let mode = kind.mode_bits() | perm;
                self.fs.mknod(&ctx, to.dir, name, mode, meta.rdev())
            }
        };
        if old.is_none() {
            let made = make(to.name).map_err(failed)?;
            self.attributes(from, opened, meta, &made, to)?;
            return Ok(made.ino);
        }
        let (aside, made) = stdin::aside(make).map_err(failed)?;
        let done = self
            .attributes(from, opened, meta, &made, to)
            .and_then(|()| {
                stdin::take_place(self.fs, to.dir, aside.as_bytes(), to.name).map_err(failed)
            });
        if done.is_err() {
            // The error is said already.
            let _ = self.fs.unlink(to.dir, aside.as_bytes());
        }
        done.map(|()| made.ino)
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
            (self.interrupted)()?;
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

    /// Copies what the directory `opened` has.
    fn contents(
        &mut self,
        from: &Source<'_>,
        opened: &File,
        dir: Ino,
        path: &[u8],
    ) -> Result<(), Failure> {
        for name in from.names(opened)? {
            let shown = from.path.join(OsStr::from_bytes(&name));
            let source = Source {
                dir: opened.as_fd(),
                name: Path::new(OsStr::from_bytes(&name)),
                path: &shown,
            };
            let meta = source.metadata()?;
            self.object(
                &source,
                &meta,
                &Destination {
                    dir,
                    name: &name,
                    path: tree::join(path, &name),
                },
            )?;
        }
        Ok(())
    }

    fn attributes(
        &self,
        from: &Source<'_>,
        opened: &File,
        meta: &Metadata,
        made: &Attr,
        to: &Destination<'_>,
    ) -> Result<(), Failure> {
        let failed = |e| tree::about(&to.path, e);
        for (name, value) in from.xattrs(opened, made.kind)? {
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

fn exists(to: &Destination<'_>) -> Failure {
    Failure::new(
        "exists",
        format!("{} exists; use -f to overwrite files", tree::name(&to.path)),
    )
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
        let mut job = Job::new(&fs, &put, "test", &ProgressBar::hidden());
        let source = Source::named(&from);
        let destination = |name: &'static str| Destination {
            dir: Ino::ROOT,
            name: name.as_bytes(),
            path: name.into(),
        };
        job.object(&source, &looked_at, &destination("copy"))
            .unwrap();
        let copy = fs.lookup(Ino::ROOT, b"copy").unwrap();
        assert_eq!((copy.perm, copy.size), (0o600, 8));
        // A symbolic link in its place is not copied at all.
        std::fs::remove_file(&from).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &from).unwrap();
        assert!(
            job.object(&source, &looked_at, &destination("other"))
                .is_err()
        );
        assert!(fs.lookup(Ino::ROOT, b"other").is_err());
        // The message escapes the name.
        std::fs::remove_file(&from).unwrap();
        std::fs::create_dir(&from).unwrap();
        let e = job
            .object(&source, &looked_at, &destination("other"))
            .unwrap_err();
        assert!(e.message.contains("fi\\u{1b}le was replaced"), "{e:?}");
    }
}
