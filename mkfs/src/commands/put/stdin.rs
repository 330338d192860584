//! `pramfs put REGION - NAME`: standard input becomes the contents of a file.

use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;

use pramfs::inode::{Credentials, Fs, Ino, SetAttr};
use pramfs::{Error, FileType};
use rustix::fs::Mode;

use super::Put;
use crate::open::{self, Intent};
use crate::tree::{self, CHUNK};
use crate::{Failure, output};

/// Copies standard input. With `-f`, an existing file keeps its inode, and gets these contents.
pub(super) fn put(put: &Put) -> Result<(), Failure> {
    if put.source.len() > 1 {
        return Err(Failure::usage(
            "\"-\" (standard input) cannot be copied together with other files",
        ));
    }
    let fs = open::fs(&put.region, Intent::Write)?;
    let copied = copy(put, &fs);
    copied.and(open::close(&put.region, fs))
}

fn copy(put: &Put, fs: &Fs) -> Result<(), Failure> {
    let to = put.destination.as_os_str().as_bytes();
    let about = |e| tree::about(to, e);
    let existing = match fs.resolve(to) {
        Ok(found) if found.kind == FileType::Directory => {
            return Err(Failure::usage(format!(
                "{} is a directory; name the file that standard input is copied to",
                tree::name(to)
            )));
        }
        Ok(found) => Some(found),
        Err(Error::NotFound) => None,
        Err(e) => return Err(about(e)),
    };
    let ino = match existing {
        Some(found) if put.force && found.kind == FileType::Regular => {
            let empty = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            fs.setattr(&Credentials::ROOT, found.ino, &empty)
                .map_err(about)?;
            found.ino
        }
        Some(_) => {
            return Err(Failure::new(
                "exists",
                format!("{} exists; use -f to overwrite files", tree::name(to)),
            ));
        }
        None => {
            let (parent, name) = fs.resolve_parent(to).map_err(about)?;
            let umask = rustix::process::umask(Mode::empty());
            rustix::process::umask(umask);
            let owner = Credentials::new(
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            );
            let perm = 0o666 & !umask.as_raw_mode();
            fs.create(&owner, parent, &name, perm).map_err(about)?.ino
        }
    };
    fill(fs, ino, to)
}

fn fill(fs: &Fs, ino: Ino, to: &[u8]) -> Result<(), Failure> {
    let mut input = std::io::stdin().lock();
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
