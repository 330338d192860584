//! References to inodes that are released on drop: [`InodeRef`], and the operations that
//! return one ([`Holding`]).

use std::sync::Arc;

use crate::credentials::Credentials;
use crate::fs::inode::refs::By;
use crate::fs::ops::create::{InodeTemplate, Label};
use crate::fs::ops::readdir::Taken;
use crate::fs::ops::xattr::check_labels;
use crate::fs::{Engine, Fs, Handle};
use pramfs_medium::error::Result;
use pramfs_medium::types::{Attr, DirEntry, Ino};

/// A reference to an inode. While it lives, the inode number is not reused, and the
/// inode survives the removal of its last name. Dropping the last reference frees an
/// inode without names.
#[derive(Debug)]
pub struct InodeRef {
    engine: Handle,
    ino: Ino,
}

impl Fs {
    /// Takes a reference to the inode with this number. The number may have been
    /// reused since the caller learned it. To find out, compare the generation that
    /// [`getattr`](crate::inode::Engine::getattr) returns after this call.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::{HeapBackend, Region};
    /// # use pramfs::{inode::{Credentials, Fs, Ino}, MountOptions};
    /// # let region = Region::new("example", HeapBackend::boxed(4 << 20));
    /// # format(&region, &FormatOptions::default())?;
    /// # let fs = Fs::open(region, MountOptions::default())?;
    /// let file = fs.create(&Credentials::ROOT, Ino::ROOT, b"name", 0o644)?.ino;
    /// let held = fs.hold(file);
    /// fs.unlink(Ino::ROOT, b"name")?;
    /// assert_eq!(fs.getattr(file)?.nlink, 0);
    /// drop(held);
    /// assert!(fs.getattr(file).is_err());
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    pub fn hold(&self, ino: Ino) -> InodeRef {
        InodeRef::new(self.engine(), ino)
    }
}

impl InodeRef {
    /// Takes over a reference that the engine added for a guard.
    fn adopt(engine: &Arc<Engine>, ino: Ino) -> InodeRef {
        InodeRef {
            engine: Handle::new(engine),
            ino,
        }
    }

    pub(crate) fn new(engine: &Arc<Engine>, ino: Ino) -> InodeRef {
        engine.add_ref(ino, By::Guard);
        InodeRef::adopt(engine, ino)
    }

    /// Returns the inode number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Converts the reference to a counted one, which the caller releases by
    /// [`Engine::forget`] or [`Engine::release`]. A server of the kernel needs this: the
    /// kernel counts lookups by inode number, and returns them by `forget`.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::{HeapBackend, Region};
    /// # use pramfs::{inode::{Credentials, Fs, Ino}, MountOptions};
    /// # let region = Region::new("example", HeapBackend::boxed(4 << 20));
    /// # format(&region, &FormatOptions::default())?;
    /// # let fs = Fs::open(region, MountOptions::default())?;
    /// # fs.create(&Credentials::ROOT, Ino::ROOT, b"name", 0o644)?;
    /// let (found, attr) = fs.holding().lookup(Ino::ROOT, b"name")?;
    /// found.into_count();
    /// fs.unlink(Ino::ROOT, b"name")?;
    /// assert_eq!(fs.getattr(attr.ino)?.nlink, 0);
    /// fs.forget(attr.ino, 1);
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    pub fn into_count(self) -> Ino {
        let ino = self.ino;
        self.engine.add_ref(ino, By::Count);
        // The drop releases the guard's reference; the counted one remains.
        ino
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        self.engine.release_ref(self.ino, 1, By::Guard);
    }
}

/// References to the entries that [`Holding::readdir`] passed on. They are released on
/// drop, unless [`into_counts`](Self::into_counts) leaves them to the caller.
#[derive(Debug)]
pub struct InodeRefs {
    engine: Handle,
    inos: Vec<Ino>,
}

impl InodeRefs {
    /// Returns the inode numbers, one for each reference.
    pub fn inos(&self) -> &[Ino] {
        &self.inos
    }

    /// Converts all references to counted ones, as [`InodeRef::into_count`] does.
    pub fn into_counts(self) -> Vec<Ino> {
        for &ino in &self.inos {
            self.engine.add_ref(ino, By::Count);
        }
        self.inos.clone()
    }
}

impl Drop for InodeRefs {
    fn drop(&mut self) {
        for &ino in &self.inos {
            self.engine.release_ref(ino, 1, By::Guard);
        }
    }
}

/// The operations that find or create inodes. Each also takes a reference, before another
/// operation can remove the inode.
///
/// [`Fs::holding`] returns it. The methods of [`Engine`] of the same names take no
/// reference.
#[derive(Debug, Clone, Copy)]
pub struct Holding<'a> {
    engine: &'a Arc<Engine>,
    labels: &'a [Label<'a>],
}

impl Fs {
    /// Returns the operations that take references.
    pub fn holding(&self) -> Holding<'_> {
        Holding {
            engine: self.engine(),
            labels: &[],
        }
    }
}

impl<'a> Holding<'a> {
    /// Returns the same operations, of which those that make an inode also give it these attributes
    /// (names and values), in the record that makes it: a crash leaves no file without its labels. The names are in the namespace `security.`.
    ///
    /// These operations then also fail with [`Error::NotSupported`](crate::Error::NotSupported)
    /// for another name, [`Error::Invalid`](crate::Error::Invalid) for a name that comes twice,
    /// and [`Error::AttributeTooLarge`](crate::Error::AttributeTooLarge) for a value of more
    /// than 64 KiB.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::{HeapBackend, Region};
    /// # use pramfs::{inode::{Credentials, Fs, Ino}, MountOptions};
    /// # let region = Region::new("example", HeapBackend::boxed(4 << 20));
    /// # format(&region, &FormatOptions::default())?;
    /// # let fs = Fs::open(region, MountOptions::default())?;
    /// let labels = [(&b"security.selinux"[..], &b"user_u:object_r:tmp_t\0"[..])];
    /// let holding = fs.holding().with_labels(&labels);
    /// let (_made, attr) = holding.create(&Credentials::ROOT, Ino::ROOT, b"name", 0o644)?;
    /// assert_eq!(fs.getxattr(attr.ino, labels[0].0)?, labels[0].1);
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    pub fn with_labels<'b>(self, labels: &'b [(&'b [u8], &'b [u8])]) -> Holding<'b>
    where
        'a: 'b,
    {
        Holding { labels, ..self }
    }

    fn adopt(self, attr: Attr) -> (InodeRef, Attr) {
        (InodeRef::adopt(self.engine, attr.ino), attr)
    }

    /// As [`Engine::lookup`].
    ///
    /// # Errors
    /// As for [`Engine::lookup`].
    pub fn lookup(self, parent: Ino, name: &[u8]) -> Result<(InodeRef, Attr)> {
        let found = self.engine.lookup_with_ref(parent, name, By::Guard)?;
        Ok(self.adopt(found))
    }

    /// As [`Engine::create`].
    ///
    /// # Errors
    /// As for [`Engine::create`].
    pub fn create(
        self,
        caller: &Credentials<'_>,
        parent: Ino,
        name: &[u8],
        perm: u32,
    ) -> Result<(InodeRef, Attr)> {
        self.make(caller, parent, name, &InodeTemplate::file(perm))
    }

    /// As [`Engine::mknod`].
    ///
    /// # Errors
    /// As for [`Engine::mknod`].
    pub fn mknod(
        self,
        caller: &Credentials<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<(InodeRef, Attr)> {
        self.make(caller, parent, name, &InodeTemplate::node(mode, rdev)?)
    }

    /// As [`Engine::mkdir`].
    ///
    /// # Errors
    /// As for [`Engine::mkdir`].
    pub fn mkdir(
        self,
        caller: &Credentials<'_>,
        parent: Ino,
        name: &[u8],
        perm: u32,
    ) -> Result<(InodeRef, Attr)> {
        self.make(caller, parent, name, &InodeTemplate::dir(perm))
    }

    /// As [`Engine::symlink`].
    ///
    /// # Errors
    /// As for [`Engine::symlink`].
    pub fn symlink(
        self,
        caller: &Credentials<'_>,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<(InodeRef, Attr)> {
        self.make(caller, parent, name, &InodeTemplate::symlink(target)?)
    }

    /// Creates a regular file without a name, in the place of a file of `parent`: it
    /// inherits from there what a file with a name would. It exists as long as it is
    /// referenced, and a crash leaves nothing of it. Unless `linkable` is false,
    /// [`Engine::link`] can give it a name, which then appears with its contents:
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::{HeapBackend, Region};
    /// # use pramfs::{inode::{Credentials, Fs, Ino}, MountOptions};
    /// # let region = Region::new("example", HeapBackend::boxed(4 << 20));
    /// # format(&region, &FormatOptions::default())?;
    /// # let fs = Fs::open(region, MountOptions::default())?;
    /// let root = Credentials::ROOT;
    /// let (held, file) = fs.holding().create_unnamed(&root, Ino::ROOT, 0o644, true)?;
    /// fs.write(&root, file.ino, 0, b"contents")?;
    /// assert_eq!(fs.getattr(file.ino)?.nlink, 0);
    /// fs.link(file.ino, Ino::ROOT, b"name")?;
    /// drop(held);
    /// assert_eq!(fs.lookup(Ino::ROOT, b"name")?.size, 8);
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace),
    /// [`Error::NotFound`](crate::Error::NotFound) in a removed directory,
    /// [`Error::NotDirectory`](crate::Error::NotDirectory),
    /// [`Error::NotPermitted`](crate::Error::NotPermitted) in an immutable directory.
    pub fn create_unnamed(
        self,
        caller: &Credentials<'_>,
        parent: Ino,
        perm: u32,
        linkable: bool,
    ) -> Result<(InodeRef, Attr)> {
        check_labels(self.labels)?;
        let labels = self.labels;
        let made = self
            .engine
            .create_unnamed_for_guard(caller, parent, perm, linkable, labels)?;
        Ok(self.adopt(made))
    }

    fn make(
        self,
        caller: &Credentials<'_>,
        parent: Ino,
        name: &[u8],
        what: &InodeTemplate<'_>,
    ) -> Result<(InodeRef, Attr)> {
        check_labels(self.labels)?;
        let what = InodeTemplate {
            labels: self.labels,
            ..*what
        };
        let by = Some(By::Guard);
        let made = self.engine.make(caller, parent, name, &what, by)?;
        Ok(self.adopt(made))
    }

    /// As [`Engine::link`].
    ///
    /// # Errors
    /// As for [`Engine::link`].
    pub fn link(self, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<(InodeRef, Attr)> {
        let by = Some(By::Guard);
        let linked = self.engine.link_with_ref(ino, new_parent, new_name, by)?;
        Ok(self.adopt(linked))
    }

    /// As [`Engine::readdir`], and passes the attributes of each entry, `None` if its
    /// inode is damaged. Returns references to the entries that `f` kept, except `.` and
    /// `..`. If the directory is damaged after an entry that was kept, the walk ends
    /// without an error, and the next call from there returns it.
    ///
    /// # Errors
    /// As for [`Engine::readdir`].
    pub fn readdir(
        self,
        ino: Ino,
        cookie: u64,
        f: &mut dyn FnMut(DirEntry<'_>, Option<&Attr>) -> Taken,
    ) -> Result<InodeRefs> {
        let mut kept = InodeRefs {
            engine: Handle::new(self.engine),
            inos: Vec::new(),
        };
        self.engine
            .readdir_with_refs(ino, cookie, f, &mut kept.inos)?;
        Ok(kept)
    }
}
