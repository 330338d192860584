//! `pramfs mkdir`, `rm`, `mv` and `ln`: change the tree of a region without a mount.
//!
//! Each change of a name is one operation of the file system: an interrupted tool leaves some of
//! them done, each as a whole.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use pramfs::inode::{Credentials, Fs, Ino};
use pramfs::{Error, FileType, RenameFlags};

use super::Subcommand;
use crate::Failure;
use crate::failure::shown;
use crate::open::{self, Intent};
use crate::tree::{self, Follow};

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Opens a region, works in it, and closes it, also after a failure: what was done stays.
fn change(region: &Path, work: impl FnOnce(&Fs) -> Result<(), Failure>) -> Result<(), Failure> {
    let fs = open::fs(region, Intent::Write)?;
    let done = work(&fs);
    let closed = open::close(region, fs);
    done.and(closed)
}

/// The caller, as owner of what is made.
fn caller() -> Credentials<'static> {
    Credentials::new(
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}

/// Returns the directory of a path and the name in it.
fn place(fs: &Fs, path: &[u8]) -> Result<(Ino, Vec<u8>), Failure> {
    fs.resolve_parent(path).map_err(|e| match e {
        Error::Exists => Failure::new("exists", "/ is the root of the file system"),
        e => tree::about(path, e),
    })
}

#[derive(Debug, Args)]
pub(super) struct Mkdir {
    /// File or device that holds the file system
    region: PathBuf,
    /// Directories to make, from the root of the file system
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Also make missing parents; an existing directory is no error
    #[arg(short = 'p', long)]
    parents: bool,
    /// Mode, octal
    #[arg(short = 'm', long, value_parser = crate::mkfs::octal, default_value = "755")]
    mode: u32,
}

impl Subcommand for Mkdir {
    const NAME: &'static str = "mkdir";
    const ABOUT: &'static str = "Make directories";

    fn run(&self) -> Result<(), Failure> {
        change(&self.region, |fs| {
            self.paths
                .iter()
                .try_for_each(|path| self.make(fs, bytes(path)))
        })
    }
}

impl Mkdir {
    fn make(&self, fs: &Fs, path: &[u8]) -> Result<(), Failure> {
        if self.parents {
            let is_name = |part: &&[u8]| !part.is_empty();
            let parts: Vec<_> = path.split(|&b| b == b'/').filter(is_name).collect();
            let mut at = b"/".to_vec();
            for part in parts {
                at = tree::join(&at, part);
                match fs.resolve(&at) {
                    Ok(found) if found.kind == FileType::Directory => {}
                    Ok(_) => {
                        let text = format!("{} exists and is no directory", tree::name(&at));
                        return Err(Failure::new("exists", text));
                    }
                    Err(Error::NotFound) => self.one(fs, &at)?,
                    Err(e) => return Err(tree::about(&at, e)),
                }
            }
            return Ok(());
        }
        self.one(fs, path)
    }

    fn one(&self, fs: &Fs, path: &[u8]) -> Result<(), Failure> {
        let (parent, name) = place(fs, path)?;
        fs.mkdir(&caller(), parent, &name, self.mode)
            .map(drop)
            .map_err(|e| tree::about(path, e))
    }
}

#[derive(Debug, Args)]
pub(super) struct Rm {
    /// File or device that holds the file system
    region: PathBuf,
    /// Files to remove, from the root of the file system
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Remove directories and their contents
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Remove empty directories
    #[arg(short = 'd', long)]
    dir: bool,
    /// Ignore files that do not exist
    #[arg(short = 'f', long)]
    force: bool,
}

impl Subcommand for Rm {
    const NAME: &'static str = "rm";
    const ABOUT: &'static str = "Remove files and directories";

    fn run(&self) -> Result<(), Failure> {
        change(&self.region, |fs| {
            self.paths
                .iter()
                .try_for_each(|path| self.remove(fs, bytes(path)))
        })
    }
}

impl Rm {
    fn remove(&self, fs: &Fs, path: &[u8]) -> Result<(), Failure> {
        let (parent, name) = match place(fs, path) {
            Err(failure) if self.force && failure.reason == "not-found" => return Ok(()),
            found => found?,
        };
        let about = |e| tree::about(path, e);
        let found = match fs.lookup(parent, &name) {
            Err(Error::NotFound) if self.force => return Ok(()),
            found => found.map_err(about)?,
        };
        if found.kind != FileType::Directory {
            return fs.unlink(parent, &name).map_err(about);
        }
        if !self.recursive && !self.dir {
            return Err(Failure::usage(format!(
                "{} is a directory; use -d if it is empty, or -r to remove it with its contents",
                tree::name(path)
            )));
        }
        if self.recursive {
            self.empty(fs, path, found.ino)?;
        }
        fs.rmdir(parent, &name).map_err(about)
    }

    /// Removes everything below a directory. A list in the place of calls: a tree may be deeper
    /// than the stack.
    fn empty(&self, fs: &Fs, path: &[u8], dir: Ino) -> Result<(), Failure> {
        // Directories that are still to be emptied, each before those in it.
        let mut open = vec![(path.to_vec(), dir)];
        let mut emptied = Vec::new();
        while let Some((path, dir)) = open.pop() {
            for entry in tree::entries(fs, &path, dir)? {
                let inner = tree::join(&path, &entry.name);
                if entry.kind == FileType::Directory {
                    open.push((inner.clone(), entry.ino));
                    emptied.push((inner, dir, entry.name));
                } else {
                    let removed = fs.unlink(dir, &entry.name);
                    removed.map_err(|e| tree::about(&inner, e))?;
                }
            }
        }
        // Each directory is in the list before those that it contains.
        emptied.iter().rev().try_for_each(|(path, parent, name)| {
            fs.rmdir(*parent, name).map_err(|e| tree::about(path, e))
        })
    }
}

#[derive(Debug, Args)]
pub(super) struct Mv {
    /// File or device that holds the file system
    region: PathBuf,
    /// Files and directories to move, from the root of the file system
    #[arg(required = true)]
    sources: Vec<PathBuf>,
    /// An existing directory, or a new name
    destination: PathBuf,
    /// Refuse to replace an existing file
    #[arg(short = 'n', long)]
    no_clobber: bool,
}

impl Subcommand for Mv {
    const NAME: &'static str = "mv";
    const ABOUT: &'static str = "Rename or move files and directories";

    fn run(&self) -> Result<(), Failure> {
        change(&self.region, |fs| {
            let targets = Targets::new(fs, &self.destination, self.sources.len())?;
            self.sources.iter().try_for_each(|source| {
                let from = bytes(source);
                let (parent, name) = place(fs, from)?;
                let (new_parent, new_name, to) = targets.of(from);
                let flags = RenameFlags {
                    noreplace: self.no_clobber,
                    ..RenameFlags::default()
                };
                fs.rename(
                    &Credentials::ROOT,
                    parent,
                    &name,
                    new_parent,
                    &new_name,
                    flags,
                )
                .map_err(|e| match e {
                    Error::NotFound => tree::about(from, e),
                    e => tree::about(&to, e),
                })
            })
        })
    }
}

#[derive(Debug, Args)]
pub(super) struct Ln {
    /// File or device that holds the file system
    region: PathBuf,
    /// File that gets another name; with -s the text of the link
    target: PathBuf,
    /// An existing directory, or the new name, from the root of the file system
    destination: PathBuf,
    /// Make a symbolic link
    #[arg(short = 's', long)]
    symbolic: bool,
}

impl Subcommand for Ln {
    const NAME: &'static str = "ln";
    const ABOUT: &'static str = "Give a file another name, or make a symbolic link";

    fn run(&self) -> Result<(), Failure> {
        change(&self.region, |fs| {
            let target = bytes(&self.target);
            let targets = Targets::new(fs, &self.destination, 1)?;
            let (parent, name, to) = targets.of(target);
            let made = match self.symbolic {
                true => fs.symlink(&caller(), parent, &name, target),
                false => {
                    let file = tree::find(fs, target, Follow::No)?;
                    if file.kind == FileType::Directory {
                        let text = format!(
                            "{} is a directory, which has one name; use -s for a symbolic link",
                            tree::name(target)
                        );
                        return Err(Failure::usage(text));
                    }
                    fs.link(file.ino, parent, &name)
                }
            };
            made.map(drop).map_err(|e| tree::about(&to, e))
        })
    }
}

/// Where sources get their new names.
struct Targets<'a> {
    path: &'a [u8],
    dir: Ino,
    /// The name, if the destination is no directory.
    name: Option<Vec<u8>>,
}

impl<'a> Targets<'a> {
    fn new(fs: &Fs, destination: &'a Path, sources: usize) -> Result<Targets<'a>, Failure> {
        let path = bytes(destination);
        let (dir, name) = match fs.resolve(path) {
            Ok(found) if found.kind == FileType::Directory => (found.ino, None),
            Ok(_) | Err(Error::NotFound) => {
                let (dir, name) = place(fs, path)?;
                (dir, Some(name))
            }
            Err(e) => return Err(tree::about(path, e)),
        };
        if name.is_some() && sources > 1 {
            return Err(Failure::usage(format!(
                "{} is not a directory in the region",
                shown(destination)
            )));
        }
        Ok(Targets { path, dir, name })
    }

    /// Returns directory, name and path for a source.
    fn of(&self, source: &[u8]) -> (Ino, Vec<u8>, Vec<u8>) {
        match &self.name {
            Some(name) => (self.dir, name.clone(), self.path.to_vec()),
            None => {
                let base = tree::base(source);
                (self.dir, base.to_vec(), tree::join(self.path, base))
            }
        }
    }
}
