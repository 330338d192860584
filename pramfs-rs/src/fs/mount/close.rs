//! Unmounting, and the handles that prevent it.
//!
//! Invariant: a closed file system stores nothing, even if handles are left. The region
//! stays mapped and locked until the last handle is dropped.
//!
//! A forked child unmounts nothing, because the file system belongs to the parent. It
//! waits for no lock, because the thread that holds it may not exist in the child.

use pramfs_medium::pmem::RegionAccess as _;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::fs::steps::marks::Summed;
use crate::fs::{Engine, Fs};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::checksum::seal;
use pramfs_medium::media::lease::NO_WINDOW;
use pramfs_medium::pmem::Region;

/// Inodes that an unmount looks at, for marks that a crash has left.
const LOOKED_AT_BY_UNMOUNT: u64 = 4 << 20;

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

/// The error of [`Fs::close`].
#[derive(thiserror::Error)]
pub enum CloseError {
    /// Files or views are open, or inodes are held. Nothing was done, and the file system
    /// stays mounted.
    #[error(
        "cannot close the file system on {}: it has {handles} open files, views or references; drop them first, or call close_now",
        fs.region().info().name
    )]
    InUse {
        /// The file system, for a later call of `close`.
        fs: Box<Fs>,
        /// Open [`File`](crate::api::File)s,
        /// [`MappedFile`](crate::api::MappedFile)s and [`InodeRef`](crate::inode::InodeRef)s.
        handles: usize,
    },
    /// The medium failed. The file system is closed; the next mount recovers it.
    #[error("{0}")]
    Failed(#[source] Error),
}

impl CloseError {
    /// Returns the errno that a system call would set.
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

/// Drops the file system of [`CloseError::InUse`], which closes it as [`Fs::close_now`]
/// does.
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
    /// Unmounts: writes everything to the medium and leaves the journal empty. Fails if
    /// files or views are open, or inodes are held.
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
    /// [`CloseError::InUse`] returns the file system. [`CloseError::Failed`] is an error of
    /// the medium; the file system is closed.
    pub fn close(self) -> Result<(), CloseError> {
        match self.engine().handles.load(Ordering::Acquire) {
            0 => self.close_now().map_err(CloseError::Failed),
            handles => Err(CloseError::InUse {
                fs: Box::new(self),
                handles,
            }),
        }
    }

    /// Unmounts even if files or views are open. Afterwards:
    ///
    /// - Every call through such a file or view fails with EIO and stores nothing. A store
    ///   that another thread has already begun may still reach the medium.
    /// - The region stays locked until the last of them is dropped.
    /// - The addresses of a view stay valid while the view lives. The engine cannot prevent
    ///   stores through raw pointers.
    ///
    /// # Errors
    /// Those of the medium. The file system is closed in any case.
    pub fn close_now(mut self) -> Result<()> {
        self.unmount()
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
        self.unmount()?;
        let engine = Arc::clone(self.engine());
        drop(self);
        let found = inspect(&engine.vol.region);
        Ok((Arc::into_inner(engine).map(|e| e.vol.region), found))
    }

    fn unmount(&mut self) -> Result<()> {
        let background = self.background.get_mut().take();
        let scrub = self.scrub.get_mut().take();
        let snapshot = self.snapshot.get_mut().upgrade();
        if self.engine().open.is_inherited() {
            // The threads and their channels belong to the parent.
            std::mem::forget((background, scrub, snapshot));
            return Err(self.engine().ended());
        }
        // Before anything that stores, which might wait for its reader.
        if let Some(snapshot) = snapshot {
            snapshot.end();
        }
        if let Some(scrub) = scrub {
            scrub.stop();
        }
        if let Some(background) = background {
            background.stop();
        }
        let engine = self.engine();
        if engine.has_lease_table() && engine.is_up() && !engine.is_read_only() {
            let noted = engine.note_all_stores();
            let ended = engine.end_released_leases().map(drop);
            // Each of them, whatever the others did.
            for done in [noted, ended, engine.close_windows()] {
                if let Err(e) = done {
                    tracing::warn!(error = %e, "could not clear the lease table; the next mount does");
                }
            }
        }
        if engine.is_up() && !engine.is_read_only() {
            engine.find_marked(LOOKED_AT_BY_UNMOUNT, || false);
            if engine.sum_marked(|| false) != Summed::All {
                tracing::debug!(
                    "files that are mapped for writing, or large, stay marked as unsummed"
                );
            }
        }
        engine.unmount()
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        if let Err(e) = self.unmount()
            && !self.engine().open.is_inherited()
        {
            tracing::error!(error = %e, "the unmount failed; the next mount recovers the file system");
        }
    }
}

impl Engine {
    /// Shuts the file system down for the rest of the mount. The changes of completed
    /// operations are durable, and every later operation fails with EIO. The journal is not
    /// emptied, so the next mount recovers as after a crash.
    ///
    /// # Errors
    /// Those of the medium. The file system is shut down in any case.
    pub fn force_shutdown(&self) -> Result<()> {
        if self.open.is_inherited() {
            return Err(self.ended());
        }
        tracing::warn!("the file system has been shut down; unmount it");
        let _all = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if !self.open.close() {
            return Ok(());
        }
        if self.is_read_only() || self.vol.has_failed() {
            return self.leave_as_it_is();
        }
        self.write_lazy_all(true)?;
        self.sync_medium()
    }

    /// Ends a mount that may not change anything any more. Syncs its earlier writes, and
    /// the records that it replayed: on media where a fence only orders stores, they may
    /// not be durable yet, although their operations have completed.
    fn leave_as_it_is(&self) -> Result<()> {
        let replayed = self.report.records > 0 && !self.vol.region.info().read_only;
        match replayed || !self.quiet.load(Ordering::Relaxed) {
            true => self.sync_medium(),
            false => Ok(()),
        }
    }

    fn unmount(&self) -> Result<()> {
        let _all = self.gate.write().unwrap_or_else(PoisonError::into_inner);
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
            return Err(Error::io("the medium failed during the unmount"));
        }
        // No record is live.
        if self.uses_copies.load(Ordering::Relaxed) {
            self.set_atomic_data(false)?;
        }
        let uses_ranges = self.uses_ranged_marks.load(Ordering::Relaxed);
        // If it is not known, they stay: an older version must not mount the region.
        if uses_ranges && self.marks.are_done() {
            self.set_ranged_marks(false)?;
        }
        // The slots that records have cleared are at home, and none of the records is live.
        if self.has_lease_table() {
            let used = self.read_lease_table()?.used;
            if used
                .iter()
                .all(|slot| slot.home.recorded_window() == NO_WINDOW)
            {
                self.set_append_windows(false)?;
            }
            if self.leases.lock().is_empty() && used.is_empty() {
                self.set_lease_table(false)?;
            }
        }
        let word = seal(self.vol.geo.seed, self.vol.journal.last_lsn());
        self.super_state.unmounted(self.vol.medium(), word)?;
        self.sync_medium()
    }
}
