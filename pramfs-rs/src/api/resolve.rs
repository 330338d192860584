//! Resolves paths from the root to an inode; for programs that bypass the kernel.

use std::sync::Arc;

use crate::fs::{By, Engine, InodeRef};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::types::{Attr, FileType, Ino};

/// Limit of symbolic links in the resolution of one path.
pub(super) const MAX_LINKS: u32 = 40;

/// The inode of a resolved path, with a reference: the inode number is not reused
/// while this lives, even if the name is removed.
#[derive(Debug)]
pub(crate) struct Resolved<'a> {
    engine: &'a Engine,
    attr: Attr,
}

impl<'a> Resolved<'a> {
    /// Looks up a name in a directory that the caller holds.
    pub(super) fn child(engine: &'a Engine, dir: Ino, name: &[u8]) -> Result<Resolved<'a>> {
        let attr = engine.lookup_with_ref(dir, name, By::Guard)?;
        Ok(Resolved { engine, attr })
    }

    /// Takes over the reference of a guard.
    pub(super) fn adopt(engine: &'a Engine, attr: Attr) -> Resolved<'a> {
        Resolved { engine, attr }
    }

    /// Returns the attributes at the time of the look-up.
    pub(super) fn attr(&self) -> &Attr {
        &self.attr
    }

    /// Converts it to a reference that can be kept.
    pub(super) fn into_ref(self, engine: &Arc<Engine>) -> InodeRef {
        InodeRef::new(engine, self.attr.ino)
    }
}

impl Drop for Resolved<'_> {
    fn drop(&mut self) {
        self.engine.release_ref(self.attr.ino, 1, By::Guard);
    }
}

impl Engine {
    /// Resolves a path from the root, including symbolic links. A path that ends in a slash
    /// must name a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], also for the empty path; [`Error::NotDirectory`],
    /// [`Error::TooManySymlinks`].
    pub fn resolve(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        Ok(self.walk_path(path.as_ref(), true)?.attr)
    }

    /// Returns the directory of a path's last name, and that name. Does not follow a link
    /// in the last name.
    ///
    /// # Errors
    /// As for [`resolve`](Self::resolve); [`Error::Exists`] for the root.
    pub fn resolve_parent(&self, path: impl AsRef<[u8]>) -> Result<(Ino, Vec<u8>)> {
        let (parent, name) = self.walk_to_parent(path.as_ref())?;
        Ok((parent.attr.ino, name.to_vec()))
    }

    /// As [`resolve`](Self::resolve), with a reference. Without `follow`, returns a symbolic
    /// link in the last name itself, unless a slash follows it.
    pub(super) fn walk_path(&self, path: &[u8], follow: bool) -> Result<Resolved<'_>> {
        match path {
            b"" => Err(Error::NotFound),
            path => self.walk(Ino::ROOT, path, follow, &mut 0),
        }
    }

    pub(super) fn walk_to_parent<'p>(&self, path: &'p [u8]) -> Result<(Resolved<'_>, &'p [u8])> {
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
        let path = &path[..end];
        let cut = path.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1);
        let name = &path[cut..];
        if name.is_empty() {
            return Err(Error::Exists);
        }
        Ok((self.walk(Ino::ROOT, &path[..cut], true, &mut 0)?, name))
    }

    /// Resolves a path from an inode that the caller holds. Each directory on the path is
    /// held until the next name is found. A directory removed meanwhile has no names, but
    /// without a reference its number could lead into another directory.
    fn walk(&self, base: Ino, path: &[u8], follow: bool, links: &mut u32) -> Result<Resolved<'_>> {
        let start = if path.first() == Some(&b'/') {
            Ino::ROOT
        } else {
            base
        };
        // Before waiting for a lock: a forked child has no thread that releases it.
        if self.open.is_inherited() {
            return Err(self.ended());
        }
        self.refs.add(start, 1, By::Guard);
        let attr = self
            .getattr(start)
            .inspect_err(|_| self.release_ref(start, 1, By::Guard))?;
        let mut at = Resolved::adopt(self, attr);
        let mut names = path
            .split(|&b| b == b'/')
            .filter(|n| !n.is_empty())
            .peekable();
        while let Some(name) = names.next() {
            let next = Resolved::child(self, at.attr.ino, name)?;
            let dir = std::mem::replace(&mut at, next);
            let last = names.peek().is_none() && !path.ends_with(b"/");
            if at.attr.kind == FileType::Symlink && (follow || !last) {
                *links += 1;
                if *links > MAX_LINKS {
                    return Err(Error::TooManySymlinks(MAX_LINKS));
                }
                let target = self.readlink(at.attr.ino)?;
                at = self.walk(dir.attr.ino, &target, true, links)?;
            }
        }
        if path.ends_with(b"/") && at.attr.kind != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        Ok(at)
    }
}
