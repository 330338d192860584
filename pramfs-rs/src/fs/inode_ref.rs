//! [`InodeRef`]: a reference to an inode that gives itself back.

use std::sync::Arc;

use super::{By, Engine, Fs, Handle};
use crate::types::Ino;

/// A reference to an inode: while it lives, the number is not given to another,
/// and one that loses its last name stays. What nobody refers to any more and has
/// no name is freed with the last of them.
#[derive(Debug)]
pub struct InodeRef {
    engine: Handle,
    ino: Ino,
}

impl Fs {
    /// Takes a reference to what has this number. Whether it is what it was when
    /// the number was found, [`getattr`](crate::inode::Engine::getattr) tells by its generation,
    /// asked after this.
    ///
    /// ```
    /// # use pramfs::format::{FormatOptions, format};
    /// # use pramfs::pmem::{HeapBackend, Region};
    /// # use pramfs::{inode::{Ctx, Fs, Ino}, MountOptions};
    /// # let region = Region::new("example", HeapBackend::boxed(4 << 20));
    /// # format(&region, &FormatOptions::default())?;
    /// # let fs = Fs::open(region, MountOptions::default())?;
    /// let file = fs.create(&Ctx::default(), Ino::ROOT, b"name", 0o644)?.ino;
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
    pub(crate) fn new(engine: &Arc<Engine>, ino: Ino) -> InodeRef {
        // A forked child waits for no lock; nothing that it asks is answered.
        if !engine.open.is_inherited() {
            engine.refs.add(ino, 1, By::Guard);
        }
        InodeRef {
            engine: Handle::new(engine),
            ino,
        }
    }

    /// The number.
    pub fn ino(&self) -> Ino {
        self.ino
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        self.engine.release_ref(self.ino, 1, By::Guard);
    }
}
