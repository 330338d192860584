//! [`InodeRef`]: a reference to an inode that is released on drop.

use std::sync::Arc;

use super::{By, Engine, Fs, Handle};
use crate::types::Ino;

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
        // A forked child must take no lock; its operations all fail.
        if !engine.open.is_inherited() {
            engine.refs.add(ino, 1, By::Guard);
        }
        InodeRef {
            engine: Handle::new(engine),
            ino,
        }
    }

    /// Returns the inode number.
    pub fn ino(&self) -> Ino {
        self.ino
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        self.engine.release_ref(self.ino, 1, By::Guard);
    }
}
