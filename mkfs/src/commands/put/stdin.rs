//! `pramfs put REGION - NAME`: standard input becomes the contents of a file.
//!
//! Invariant: the name leads to the old file or to the whole new one. The contents are collected
//! in a file without a name, of which a failure, a signal or a crash leaves nothing. A crash between
//! the link and the rename of [`replace`] leaves the new file under its name aside as well.

#[cfg(test)]
mod tests;

use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;

use pramfs::inode::{Attr, Credentials, Fs, Ino, SetAttr};
use pramfs::{Error, FileType, RenameFlags, XattrMode};
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE};
use rustix::fs::Mode;

use super::Put;
use crate::open::{self, Intent};
use crate::tree::{self, CHUNK};
use crate::{Failure, output};

/// The system's limit of symbolic links at the end of a path.
const MAX_LINKS: usize = 40;

/// Copies standard input. With `-f`, an existing file is replaced when all has been read. The new
/// file has its owner, mode, flags and extended attributes.
pub(super) fn put(put: &Put) -> Result<(), Failure> {
    if put.source.len() > 1 {
        return Err(Failure::usage(
            "\"-\" (standard input) cannot be copied together with other files",
        ));
    }
    let fs = open::fs(&put.region, Intent::Write)?;
    let copied = copy(put, &fs, std::io::stdin().lock());
    copied.and(open::close(&put.region, fs))
}

/// The place of the new contents.
struct Place<'a> {
    /// Its path, for messages.
    path: &'a [u8],
    dir: Ino,
    name: Vec<u8>,
    /// What is there.
    existing: Option<Attr>,
}

fn copy(put: &Put, fs: &Fs, input: impl Read) -> Result<(), Failure> {
    let place = find(fs, put.destination.as_os_str().as_bytes())?;
    let about = |e| tree::about(place.path, e);
    let (owner, perm) = match &place.existing {
        None => new_file(),
        Some(found) if found.kind == FileType::Directory => {
            return Err(Failure::usage(format!(
                "{} is a directory; name the file that standard input is copied to",
                tree::name(place.path)
            )));
        }
        Some(found) if put.force && found.kind == FileType::Regular => {
            refuse_if_fixed(found).map_err(about)?;
            (Credentials::new(found.uid, found.gid), found.perm)
        }
        Some(_) => {
            return Err(Failure::new(
                "exists",
                format!(
                    "{} exists; use -f to overwrite files",
                    tree::name(place.path)
                ),
            ));
        }
    };
    let made = fs.holding().create_unnamed(&owner, place.dir, perm, true);
    // Until the end: without a reference, the file ends.
    let (_held, new) = made.map_err(about)?;
    fill(fs, new.ino, place.path, input)?;
    let done = match &place.existing {
        None => fs.link(new.ino, place.dir, &place.name).map(drop),
        Some(old) => take_attributes(fs, old, new.ino)
            .and_then(|()| replace(fs, place.dir, &place.name, new.ino)),
    };
    done.map_err(about)
}

/// Returns the place that a path leads to, through symbolic links at its end as well.
fn find<'a>(fs: &Fs, path: &'a [u8]) -> Result<Place<'a>, Failure> {
    let about = |e| tree::about(path, e);
    let mut at = path.to_vec();
    for _ in 0..=MAX_LINKS {
        let (dir, name) = match fs.resolve_parent(&at) {
            // The root has no name.
            Err(Error::Exists) => {
                let root = fs.resolve(&at).map_err(about)?;
                return Ok(Place {
                    path,
                    dir: root.ino,
                    name: Vec::new(),
                    existing: Some(root),
                });
            }
            found => found.map_err(about)?,
        };
        let existing = match fs.lookup(dir, &name) {
            Ok(found) if found.kind == FileType::Symlink => {
                let target = fs.readlink(found.ino).map_err(about)?;
                let end = at.len() - at.iter().rev().take_while(|&&b| b == b'/').count();
                let above = at[..end].iter().rposition(|&b| b == b'/').unwrap_or(0);
                at = match target.first() {
                    Some(b'/') => target,
                    _ => tree::join(&at[..above], &target),
                };
                continue;
            }
            Ok(found) => Some(found),
            Err(Error::NotFound) => None,
            Err(e) => return Err(about(e)),
        };
        return Ok(Place {
            path,
            dir,
            name,
            existing,
        });
    }
    Err(about(Error::TooManySymlinks(MAX_LINKS as u32)))
}

/// Owner and mode of a file that did not exist.
fn new_file() -> (Credentials<'static>, u32) {
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    let owner = Credentials::new(
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    (owner, 0o666 & !umask.as_raw_mode())
}

fn fill(fs: &Fs, ino: Ino, to: &[u8], mut input: impl Read) -> Result<(), Failure> {
    let mut buffer = vec![0; CHUNK];
    let bar = output::spinner("copying");
    let mut at = 0;
    let done = loop {
        let n = match input.read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => break Err(Failure::os("cannot read", "standard input", e)),
        };
        let mut rest = &buffer[..n];
        let mut written = || -> Result<(), Failure> {
            while !rest.is_empty() {
                let n = fs
                    .write(&Credentials::ROOT, ino, at, rest)
                    .map_err(|e| tree::about(to, e))?;
                at += n as u64;
                rest = &rest[n..];
            }
            Ok(())
        };
        if let Err(failure) = written() {
            break Err(failure);
        }
    };
    bar.finish_and_clear();
    done
}

/// Gives a new file what a program cannot tell from the old one: all but contents and times.
fn take_attributes(fs: &Fs, old: &Attr, new: Ino) -> pramfs::Result<()> {
    let root = &Credentials::ROOT;
    // An access ACL of the directory's default is not that of the old file.
    let inherited = fs.listxattr(new)?;
    for name in names(&inherited) {
        fs.removexattr(new, name)?;
    }
    let kept = fs.listxattr(old.ino)?;
    // The list of lost ranges belongs to the old contents.
    for name in names(&kept).filter(|name| !name.starts_with(b"system.pramfs.")) {
        let value = fs.getxattr(old.ino, name)?;
        fs.setxattr(root, new, name, &value, XattrMode::Set)?;
    }
    let owner = SetAttr {
        uid: Some(old.uid),
        gid: Some(old.gid),
        ..SetAttr::default()
    };
    fs.setattr(root, new, &owner)?;
    // After the owner, whose change clears set-user-ID.
    let mode = SetAttr {
        perm: Some(old.perm),
        flags: Some(old.flags),
        ..SetAttr::default()
    };
    fs.setattr(root, new, &mode).map(drop)
}

fn names(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&b| b == 0).filter(|name| !name.is_empty())
}

/// Refuses to replace a file that no rename replaces, before its new contents are read.
pub(super) fn refuse_if_fixed(old: &Attr) -> pramfs::Result<()> {
    match old.flags & (FL_IMMUTABLE | FL_APPEND) {
        0 => Ok(()),
        _ => Err(Error::NotPermitted("its flags forbid it (lsattr)")),
    }
}

/// Puts a file in the place of another one. For a moment it has a name of its own,
/// in the same directory: only a rename replaces a file in one step.
pub(super) fn replace(fs: &Fs, dir: Ino, name: &[u8], new: Ino) -> pramfs::Result<()> {
    let (aside, _) = aside(|aside| fs.link(new, dir, aside))?;
    take_place(fs, dir, aside.as_bytes(), name)
        .or_else(|e| fs.unlink(dir, aside.as_bytes()).and(Err(e)))
}

/// Makes something under a name that nothing has.
pub(super) fn aside(
    make: impl Fn(&[u8]) -> pramfs::Result<Attr>,
) -> pramfs::Result<(String, Attr)> {
    let mut number = 0u32;
    loop {
        let name = format!(".pramfs-put-{number}");
        match make(name.as_bytes()) {
            Ok(made) => return Ok((name, made)),
            Err(Error::Exists) => number += 1,
            Err(e) => return Err(e),
        }
    }
}

/// Gives the file `aside` the name of another one, which ends.
pub(super) fn take_place(fs: &Fs, dir: Ino, aside: &[u8], name: &[u8]) -> pramfs::Result<()> {
    let flags = RenameFlags::default();
    fs.rename(&Credentials::ROOT, dir, aside, dir, name, flags)
}
