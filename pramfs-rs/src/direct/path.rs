//! Opening by path, for programs that have no kernel to do it.

use super::file::File;
use crate::error::{Error, Result};
use crate::fs::{By, Fs, Shared};
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
    ctx: Ctx,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            create: false,
            exclusive: false,
            truncate: false,
            perm: 0o644,
            ctx: Ctx::default(),
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
    pub fn owner(mut self, ctx: Ctx, perm: u32) -> Self {
        self.ctx = ctx;
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
        let held = match fs.resolve_held(path) {
            Ok(_) if self.exclusive => return Err(Error::Exists),
            Ok(held) => held,
            // What ends in a slash can only be a directory.
            Err(Error::NotFound) if self.create && path.ends_with(b"/") => {
                return Err(Error::IsDirectory);
            }
            Err(Error::NotFound) if self.create && !path.is_empty() => {
                let (parent, name) = fs.parent_held(path)?;
                match fs.create_pinned(&self.ctx, parent.attr.ino, name, self.perm) {
                    // Somebody else was faster.
                    Err(Error::Exists) if !self.exclusive => fs.resolve_held(path)?,
                    made => Held::counted(fs, made?),
                }
            }
            Err(e) => return Err(e),
        };
        if held.attr.kind == FileType::Directory {
            return Err(Error::IsDirectory);
        }
        let file = fs.open_file(held.attr.ino)?;
        if self.truncate {
            file.set_size(0)?;
        }
        Ok(file)
    }
}

/// An inode with a reference: its number is not given to another meanwhile,
/// whatever becomes of the name by which it was found.
struct Held<'a> {
    shared: &'a Shared,
    attr: Attr,
}

impl<'a> Held<'a> {
    /// What has a counted reference.
    fn counted(shared: &'a Shared, attr: Attr) -> Held<'a> {
        shared.refs.add(attr.ino, 1, By::Guard);
        shared.unpin(attr.ino, 1);
        Held { shared, attr }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shared.release_ref(self.attr.ino, 1, By::Guard);
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
        Ok(self.resolve_held(path.as_ref())?.attr)
    }

    fn resolve_held(&self, path: &[u8]) -> Result<Held<'_>> {
        match path {
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
        let (parent, name) = self.parent_held(path.as_ref())?;
        Ok((parent.attr.ino, name.to_vec()))
    }

    fn parent_held<'p>(&self, path: &'p [u8]) -> Result<(Held<'_>, &'p [u8])> {
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
        let path = &path[..end];
        let cut = path.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1);
        let name = &path[cut..];
        if name.is_empty() {
            return Err(Error::Exists);
        }
        Ok((self.follow(Ino::ROOT, &path[..cut], &mut 0)?, name))
    }

    /// Follows a path from an inode whose number cannot be another's meanwhile.
    /// Each directory on the way is held until the next name has been found: one
    /// that is removed then has no names, where its number alone could lead into
    /// another.
    fn follow(&self, base: Ino, path: &[u8], links: &mut u32) -> Result<Held<'_>> {
        let start = if path.first() == Some(&b'/') {
            Ino::ROOT
        } else {
            base
        };
        // Asked before a lock is waited for.
        if self.open.is_inherited() {
            return Err(self.ended());
        }
        self.refs.add(start, 1, By::Guard);
        let attr = self
            .getattr(start)
            .inspect_err(|_| self.release_ref(start, 1, By::Guard))?;
        let held = |attr| Held { shared: self, attr };
        let mut at = held(attr);
        for name in path.split(|&b| b == b'/').filter(|n| !n.is_empty()) {
            let next = held(self.lookup_by(at.attr.ino, name, By::Guard)?);
            let dir = std::mem::replace(&mut at, next);
            if at.attr.kind == FileType::Symlink {
                *links += 1;
                if *links > MAX_LINKS {
                    return Err(Error::TooManySymlinks(MAX_LINKS));
                }
                let target = self.readlink(at.attr.ino)?;
                at = self.follow(dir.attr.ino, &target, links)?;
            }
        }
        if path.ends_with(b"/") && at.attr.kind != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        Ok(at)
    }
}
