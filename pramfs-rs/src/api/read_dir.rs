//! [`ReadDir`]: the entries of a directory.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::iter::FusedIterator;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::metadata::Metadata;
use crate::fs::{Engine, InodeRef};
use pramfs_medium::error::Result;
use pramfs_medium::types::{FileType, Ino};

/// Number of entries that are fetched at a time.
const BATCH: usize = 128;
/// The cookies of `.` and `..`.
const LAST_DOT: u64 = 2;

/// An iterator over the entries of a directory, without `.` and `..`.
///
/// An entry that exists throughout is given exactly once, whatever is created or
/// removed meanwhile. The order is that of a hash.
///
/// # Threads
/// `ReadDir` and [`DirEntry`] are [`Send`] and [`Sync`], and have no lifetime: they keep the
/// directory and what they need of the [`FileSystem`](crate::FileSystem) alive. The iterator
/// advances by `&mut self`, so threads that share one put it behind a lock. No lock of the
/// file system is held between two entries.
#[derive(Debug)]
pub struct ReadDir {
    engine: Arc<Engine>,
    dir: Arc<InodeRef>,
    path: Arc<Path>,
    batch: VecDeque<DirEntry>,
    /// Start of the next batch.
    cookie: u64,
    ended: bool,
}

impl ReadDir {
    pub(super) fn new(engine: Arc<Engine>, dir: InodeRef, path: &Path) -> ReadDir {
        ReadDir {
            engine,
            dir: Arc::new(dir),
            path: path.into(),
            batch: VecDeque::new(),
            cookie: 0,
            ended: false,
        }
    }

    fn fetch(&mut self) -> Result<()> {
        let (engine, dir, path) = (&self.engine, &self.dir, &self.path);
        let (mut batch, mut full, mut cookie) = (VecDeque::new(), false, self.cookie);
        self.engine.readdir(self.dir.ino(), self.cookie, &mut |e| {
            if batch.len() == BATCH {
                full = true;
                return ControlFlow::Break(());
            }
            cookie = e.cookie;
            if e.cookie > LAST_DOT {
                batch.push_back(DirEntry {
                    engine: Arc::clone(engine),
                    dir: Arc::clone(dir),
                    path: Arc::clone(path),
                    name: OsString::from_vec(e.name.to_vec()),
                    ino: e.ino,
                    kind: e.kind,
                });
            }
            ControlFlow::Continue(())
        })?;
        self.ended = !full;
        (self.batch, self.cookie) = (batch, cookie);
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.batch.is_empty()
            && !self.ended
            && let Err(e) = self.fetch()
        {
            self.ended = true;
            return Some(Err(e));
        }
        self.batch.pop_front().map(Ok)
    }
}

impl FusedIterator for ReadDir {}

/// An entry of a directory, as of when it was read.
#[derive(Debug, Clone)]
pub struct DirEntry {
    engine: Arc<Engine>,
    /// Held, so that its number cannot be reused for another directory.
    dir: Arc<InodeRef>,
    path: Arc<Path>,
    name: OsString,
    ino: Ino,
    kind: FileType,
}

impl DirEntry {
    /// Returns the path passed to [`read_dir`](super::FileSystem::read_dir), joined with
    /// the name.
    pub fn path(&self) -> PathBuf {
        self.path.join(&self.name)
    }

    /// Returns the name: 1 to 255 bytes, without `/` and NUL.
    pub fn file_name(&self) -> OsString {
        self.name.clone()
    }

    /// Returns the name, borrowed.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Type of the file. Symbolic links are not followed.
    ///
    /// # Errors
    /// None: the entry has the type. `std::fs` returns a result too.
    pub fn file_type(&self) -> Result<FileType> {
        Ok(self.kind)
    }

    /// Returns the inode number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Returns the metadata of the file that currently has this name. Does not follow
    /// symbolic links.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound) if the name was removed,
    /// [`Error::Corrupt`](crate::Error::Corrupt).
    pub fn metadata(&self) -> Result<Metadata> {
        let attr = self.engine.lookup(self.dir.ino(), self.name.as_bytes())?;
        Ok(attr.into())
    }
}
