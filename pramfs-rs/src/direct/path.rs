//! Opening by path, for programs that have no kernel to do it.

use super::file::File;
use crate::error::{Error, Result};
use crate::fs::{Fs, Shared};
use crate::types::{Attr, Ctx, FileType, Ino};

/// Most symbolic links that one path may lead through.
const MAX_LINKS: u32 = 40;

/// How a file is opened by its path.
///
/// Paths are those of the file system: `/` is its root, symbolic links are
/// followed within it. Permissions are not checked: whoever has the region
/// open can read all of it.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    create: bool,
    exclusive: bool,
    truncate: bool,
    perm: u32,
    cx: Ctx,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            create: false,
            exclusive: false,
            truncate: false,
            perm: 0o644,
            cx: Ctx::default(),
        }
    }
}

impl OpenOptions {
    /// Opens what exists.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Makes the file where there is none.
    pub fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Makes the file, and fails where there is one.
    pub fn create_new(mut self, yes: bool) -> Self {
        self.exclusive = yes;
        self.create |= yes;
        self
    }

    /// Empties the file.
    pub fn truncate(mut self, yes: bool) -> Self {
        self.truncate = yes;
        self
    }

    /// Permission bits and owner of a file that is made.
    pub fn owner(mut self, cx: Ctx, perm: u32) -> Self {
        self.cx = cx;
        self.perm = perm;
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exists`], [`Error::IsDirectory`], those
    /// of [`resolve`](Shared::resolve), and those of making a file.
    pub fn open(&self, fs: &Fs, path: impl AsRef<[u8]>) -> Result<File> {
        let path = path.as_ref();
        let attr = match fs.resolve(path) {
            Ok(_) if self.exclusive => return Err(Error::Exists),
            Ok(attr) => attr,
            // What ends in a slash can only be a directory.
            Err(Error::NotFound) if self.create && path.ends_with(b"/") => {
                return Err(Error::IsDirectory);
            }
            Err(Error::NotFound) if self.create && !path.is_empty() => {
                let (parent, name) = fs.resolve_parent(path)?;
                match fs.create(&self.cx, parent, &name, self.perm) {
                    // Somebody else was faster.
                    Err(Error::Exists) if !self.exclusive => fs.resolve(path)?,
                    made => made?,
                }
            }
            Err(e) => return Err(e),
        };
        if attr.kind == FileType::Directory {
            return Err(Error::IsDirectory);
        }
        let file = fs.open_file(attr.ino)?;
        if self.truncate {
            file.set_size(0)?;
        }
        Ok(file)
    }
}

impl Shared {
    /// Follows a path from the root, symbolic links included. What a path that
    /// ends in a slash names is a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], also for the empty path; [`Error::NotDirectory`],
    /// [`Error::TooManySymlinks`].
    pub fn resolve(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        match path.as_ref() {
            b"" => Err(Error::NotFound),
            path => self.follow(Ino::ROOT, path, &mut 0),
        }
    }

    /// The directory that a path's last name stands in, and that name. Links
    /// in the last name itself are not followed.
    ///
    /// # Errors
    /// As for [`resolve`](Self::resolve); [`Error::Exists`] for the root and
    /// the empty path.
    pub fn resolve_parent(&self, path: impl AsRef<[u8]>) -> Result<(Ino, Vec<u8>)> {
        let path = path.as_ref();
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
        let path = &path[..end];
        let cut = path.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1);
        let name = &path[cut..];
        if name.is_empty() {
            return Err(Error::Exists);
        }
        let parent = self.follow(Ino::ROOT, &path[..cut], &mut 0)?;
        Ok((parent.ino, name.to_vec()))
    }

    fn follow(&self, base: Ino, path: &[u8], links: &mut u32) -> Result<Attr> {
        let start = if path.first() == Some(&b'/') {
            Ino::ROOT
        } else {
            base
        };
        let mut at = self.getattr(start)?;
        for name in path.split(|&b| b == b'/').filter(|n| !n.is_empty()) {
            let dir = at.ino;
            at = self.lookup(dir, name)?;
            if at.kind == FileType::Symlink {
                *links += 1;
                if *links > MAX_LINKS {
                    return Err(Error::TooManySymlinks(MAX_LINKS));
                }
                let target = self.readlink(at.ino)?;
                at = self.follow(dir, &target, links)?;
            }
        }
        if path.ends_with(b"/") && at.kind != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        Ok(at)
    }
}
