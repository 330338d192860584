//! Unmounting, and the handles that stand against it.
//!
//! Invariant: a file system that has been closed stores nothing any more,
//! whatever handles are left; the region stays mapped, and locked, until the
//! last of them is dropped.
//!
//! In a forked child nothing is unmounted: the file system is the parent's, and
//! the locks of threads that the child does not have are not waited for.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::fs::{Engine, Fs};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::checksum::seal;
use pramfs_medium::pmem::Region;

/// A counted reference of an open file, a view, or an [`InodeRef`](crate::fs::InodeRef).
#[derive(Debug)]
pub(crate) struct Handle(Arc<Engine>);

impl Handle {
    pub(crate) fn new(engine: &Arc<Engine>) -> Handle {
        engine.handles.fetch_add(1, Ordering::Relaxed);
        Handle(Arc::clone(engine))
    }

    pub(crate) fn arc(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Deref for Handle {
    type Target = Engine;
    #[inline]
    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.handles.fetch_sub(1, Ordering::Release);
    }
}

/// Why [`Fs::close`] did not close, or not cleanly.
pub enum CloseError {
    /// Files or views are open, or inodes held. Nothing has been done, and the file system goes
    /// on.
    InUse {
        /// The file system, to be closed again later.
        fs: Box<Fs>,
        /// Open [`File`](crate::api::File)s,
        /// [`MappedFile`](crate::api::MappedFile)s and [`InodeRef`](crate::inode::InodeRef)s.
        handles: usize,
    },
    /// The medium failed. The file system is closed, and the next mount
    /// recovers it.
    Failed(Error),
}

impl CloseError {
    /// The errno that a system call would have set.
    pub fn errno(&self) -> i32 {
        match self {
            CloseError::InUse { .. } => libc::EBUSY,
            CloseError::Failed(e) => e.errno(),
        }
    }
}

impl fmt::Debug for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseError::InUse { handles, .. } => f
                .debug_struct("InUse")
                .field("handles", handles)
                .finish_non_exhaustive(),
            CloseError::Failed(e) => f.debug_tuple("Failed").field(e).finish(),
        }
    }
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseError::InUse { fs, handles } => write!(
                f,
                "the file system on {} is not closed: {handles} open files, views or references are left; drop them first, or call close_now",
                fs.region().info().name
            ),
            CloseError::Failed(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for CloseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CloseError::InUse { .. } => None,
            CloseError::Failed(e) => Some(e),
        }
    }
}

/// Drops the file system of [`CloseError::InUse`], which ends it as
/// [`Fs::close_now`] does.
impl From<CloseError> for Error {
    fn from(e: CloseError) -> Error {
        let what = e.to_string();
        match e {
            CloseError::InUse { .. } => Error::Busy(what),
            CloseError::Failed(e) => e,
        }
    }
}

impl Fs {
    /// Unmounts: everything goes to the medium, and the journal is left empty.
    /// Open files and views stand against it.
    ///
    /// ```
    /// use pramfs::OpenOptions;
    /// use pramfs::format::{FormatOptions, format};
    /// use pramfs::pmem::{HeapBackend, Region};
    /// use pramfs::{MountOptions, inode::{CloseError, Fs}};
    ///
    /// let region = Region::new("example", HeapBackend::boxed(4 << 20));
    /// format(&region, &FormatOptions::default())?;
    /// let fs = Fs::open(region, MountOptions::default())?;
    /// let file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/log")?;
    /// let Err(CloseError::InUse { fs, handles: 1 }) = fs.close() else {
    ///     panic!("the file is open");
    /// };
    /// file.append(b"still there")?;
    /// drop(file);
    /// fs.close()?;
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CloseError::InUse`] gives the file system back; [`CloseError::Failed`]
    /// is an error of the medium, and the file system is closed.
    pub fn close(self) -> Result<(), CloseError> {
        match self.engine().handles.load(Ordering::Acquire) {
            0 => self.close_now().map_err(CloseError::Failed),
            handles => Err(CloseError::InUse {
                fs: Box::new(self),
                handles,
            }),
        }
    }

    /// Unmounts whatever is open: every call through a file or a view that is
    /// left answers EIO from here on, and stores nothing; a store through a view
    /// that another thread has begun may still arrive. The region stays locked
    /// until the last of them is dropped. The addresses of a view stay valid as
    /// long as it lives, and what is stored through a raw pointer is the
    /// program's business.
    ///
    /// # Errors
    /// Those of the medium. The file system is closed in any case.
    pub fn close_now(mut self) -> Result<()> {
        self.shutdown()
    }

    /// As [`close_now`](Self::close_now), and passes the region to `inspect`, which may
    /// check it. Returns the region too, unless an open file or a view holds it.
    ///
    /// # Errors
    /// As for [`close_now`](Self::close_now).
    pub fn close_with<T>(
        mut self,
        inspect: impl FnOnce(&Region) -> T,
    ) -> Result<(Option<Region>, T)> {
        self.shutdown()?;
        let engine = Arc::clone(self.engine());
        drop(self);
        let found = inspect(&engine.vol.region);
        Ok((Arc::into_inner(engine).map(|e| e.vol.region), found))
    }

    fn shutdown(&mut self) -> Result<()> {
        let background = self.background.get_mut().take();
        if self.engine().open.is_inherited() {
            // Its thread is the parent's, and so is what it waits with.
            std::mem::forget(background);
            return Err(self.engine().ended());
        }
        if let Some(background) = background {
            background.stop();
        }
        self.engine().finish()
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        if let Err(e) = self.shutdown()
            && !self.engine().open.is_inherited()
        {
            tracing::error!(error = %e, "the file system was not unmounted cleanly; the next mount recovers it");
        }
    }
}

impl Engine {
    /// Stops the file system, for good: everything that has returned is
    /// durable, and every operation from here on answers EIO. The journal stays
    /// as it is, so the next mount recovers as it does after a crash.
    ///
    /// # Errors
    /// Those of the medium; it is shut down in any case.
    pub fn shut_down(&self) -> Result<()> {
        if self.open.is_inherited() {
            return Err(self.ended());
        }
        tracing::warn!("the file system has been shut down; unmount it");
        let _all = match self.gate.write() {
            Ok(g) => g,
            Err(poisoned) => poisoned.into_inner(),
        };
        if !self.open.close() {
            return Ok(());
        }
        if self.is_read_only() || self.vol.has_failed() {
            return self.leave_as_it_is();
        }
        self.write_lazy_all(true)?;
        self.sync_medium()
    }

    /// The end of a mount that may change nothing any more. What it wrote while
    /// it could, or has replayed, goes out where a fence only orders: it had
    /// returned.
    fn leave_as_it_is(&self) -> Result<()> {
        let replayed = self.report.records > 0 && !self.vol.region.info().read_only;
        match replayed || !self.quiet.load(Ordering::Relaxed) {
            true => self.sync_medium(),
            false => Ok(()),
        }
    }

    fn finish(&self) -> Result<()> {
        let _all = match self.gate.write() {
            Ok(g) => g,
            Err(poisoned) => poisoned.into_inner(),
        };
        self.damage.writability.end();
        if !self.open.close() {
            return Ok(());
        }
        if self.is_read_only() || self.vol.has_failed() {
            return self.leave_as_it_is();
        }
        let faults = self.vol.region.faults();
        self.free_forgotten_inodes();
        self.write_lazy_all(true)?;
        self.vol.retire_all()?;
        if self.vol.region.faults() != faults {
            return Err(Error::Io("the medium failed during the unmount".into()));
        }
        let word = seal(self.vol.geo.seed, self.vol.journal.last_lsn());
        self.super_state.unmounted(self.vol.medium(), word)?;
        self.vol
            .region
            .backend()
            .sync_all()
            .map_err(|e| Error::Io(format!("msync: {e}")))?;
        Ok(())
    }
}
