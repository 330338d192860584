//! `pramfs ls`: lists directories, also of a region that is mounted.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use pramfs::Damage;
use pramfs::{Error, FileType, inode::Attr};
use serde::Serialize;

use super::Subcommand;
use crate::files::Files;
use crate::tree::{self, Entry, Follow, Name, Timestamp, kind_name, mode_string};
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Ls {
    /// File or device that holds the file system, mounted or not
    region: PathBuf,
    /// Paths in the file system
    #[arg(default_value = "/", hide_default_value = true)]
    path: Vec<OsString>,
    /// Also show mode, links, owner, size and time
    #[arg(short = 'l', long)]
    long: bool,
    /// Also list the directories below
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print a JSON object for each entry
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    path: Name,
    kind: &'static str,
    inode: u64,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    mtime: Timestamp,
    target: Option<Name>,
}

impl Subcommand for Ls {
    const NAME: &'static str = "ls";
    const ABOUT: &'static str = "List directories";

    fn run(&self) -> Result<(), Failure> {
        let files = Files::open(&self.region)?;
        let titles = self.recursive || self.path.len() > 1;
        for path in &self.path {
            let path = path.as_bytes();
            let attr = files.find(path, Follow::Yes)?;
            if attr.kind == FileType::Directory {
                self.directory(&files, path, &attr, titles)?;
            } else {
                self.entry(&files, path, path, None)?;
            }
        }
        Ok(())
    }
}

impl Ls {
    /// Lists a directory and, with `-R`, those below it. Does not recurse, since
    /// directories may be nested too deep for the stack.
    fn directory(
        &self,
        files: &Files,
        path: &[u8],
        attr: &Attr,
        titles: bool,
    ) -> Result<(), Failure> {
        let mut todo = vec![(path.to_vec(), attr.ino)];
        let mut seen = HashSet::new();
        while let Some((path, ino)) = todo.pop() {
            if !seen.insert(ino) {
                let e = Error::corrupt(
                    Damage::DirectoryLoop,
                    "the directory",
                    "more than one directory holds it",
                );
                return Err(tree::about(&path, e));
            }
            if titles && !self.json {
                output::bytes(&self.shown(&path))?;
                output::line(":")?;
            }
            let list = files.entries(&path, ino)?;
            for e in &list {
                self.entry(files, &tree::join(&path, &e.name), &e.name, Some(e))?;
            }
            if titles && !self.json {
                output::line("")?;
            }
            if self.recursive {
                let below = list.iter().rev().filter(|e| e.kind == FileType::Directory);
                todo.extend(below.map(|e| (tree::join(&path, &e.name), e.ino)));
            }
        }
        Ok(())
    }

    fn entry(
        &self,
        files: &Files,
        path: &[u8],
        name: &[u8],
        known: Option<&Entry>,
    ) -> Result<(), Failure> {
        if !self.long && !self.json {
            output::bytes(&self.shown(name))?;
            return output::line("");
        }
        let attr = match known {
            Some(e) => files.of_entry(path, e.ino)?,
            None => files.find(path, Follow::No)?,
        };
        let target = match attr.kind {
            FileType::Symlink => Some(files.target(path, attr.ino)?),
            _ => None,
        };
        if self.json {
            return output::json(&Row {
                path: path.into(),
                kind: kind_name(attr.kind),
                inode: attr.ino.0,
                mode: format!("{:o}", attr.kind.mode_bits() | attr.perm),
                links: attr.nlink,
                uid: attr.uid,
                gid: attr.gid,
                size: attr.size,
                mtime: Timestamp(attr.mtime),
                target: target.map(Name),
            });
        }
        let size = match attr.kind {
            FileType::CharDevice | FileType::BlockDevice => {
                format!(
                    "{}, {}",
                    rustix::fs::major(attr.rdev),
                    rustix::fs::minor(attr.rdev)
                )
            }
            _ => attr.size.to_string(),
        };
        let time = Timestamp(attr.mtime).to_string();
        // To the second: "2026-01-31 12:00:00".
        let time = time.split('.').next().unwrap_or(&time);
        let (mode, links, uid, gid) = (mode_string(&attr), attr.nlink, attr.uid, attr.gid);
        output::bytes(
            format!("{mode} {links:>3} {uid:>5} {gid:>5} {size:>12} {time} ").as_bytes(),
        )?;
        output::bytes(&self.shown(name))?;
        if let Some(target) = target {
            output::bytes(b" -> ")?;
            output::bytes(&self.shown(&target))?;
        }
        output::line("")
    }

    /// Returns a name, escaped if it goes to a terminal.
    fn shown(&self, name: &[u8]) -> Vec<u8> {
        if std::io::stdout().is_terminal() {
            tree::name(name).into_bytes()
        } else {
            name.to_vec()
        }
    }
}
