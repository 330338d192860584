//! [`File`]: a file of a mount, read directly.

use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::{Error, Result};
use crate::leased::Leased;
use crate::snapshot::Shown as _;
use crate::view::View;

/// How to open a file.
///
/// ```no_run
/// let file = pramfs_client::OpenOptions::new().open("/mnt/data/table")?;
/// # Ok::<(), pramfs_client::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    directory: Option<PathBuf>,
}

impl OpenOptions {
    /// For reading.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Looks for the control sockets of servers in another directory than `/run/pramfs`.
    /// Only root and this user may be able to create names in it.
    pub fn control_directory(mut self, path: impl Into<PathBuf>) -> OpenOptions {
        self.directory = Some(path.into());
        self
    }

    /// Opens a file of a mount, and asks for a lease.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NoTicket`], [`Error::Refused`], [`Error::ServerGone`];
    /// [`Error::Medium`] if the region cannot be mapped.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        let given = path.as_ref();
        // The current directory may be another one when the next server is there.
        let path = std::path::absolute(given).map_err(|source| Error::Open {
            path: given.to_owned(),
            source,
        })?;
        let leased = self.lease(&path)?;
        Ok(File {
            options: self.clone(),
            path: Some(path),
            leased: RwLock::new(Arc::new(leased)),
        })
    }

    /// Asks for a lease on an open file of a mount. After the death of its server, such a
    /// file cannot be opened again.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn from_file(&self, file: std::fs::File) -> Result<File> {
        let leased = Leased::new(file, self.directory.as_ref())?;
        Ok(File {
            options: self.clone(),
            path: None,
            leased: RwLock::new(Arc::new(leased)),
        })
    }

    fn lease(&self, path: &Path) -> Result<Leased> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            // A pipe would wait for a writer.
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(|source| Error::Open {
                path: path.to_owned(),
                source,
            })?;
        Leased::new(file, self.directory.as_ref())
    }
}

/// A file of a mount, read directly from the medium.
///
/// ```no_run
/// let file = pramfs_client::File::open("/mnt/data/table")?;
/// let mut buf = vec![0; 4096];
/// let n = file.read_at(&mut buf, 0)?;
/// println!("{n} of {} bytes", file.len()?);
/// # Ok::<(), pramfs_client::Error>(())
/// ```
#[derive(Debug)]
pub struct File {
    options: OpenOptions,
    path: Option<PathBuf>,
    leased: RwLock<Arc<Leased>>,
}

impl File {
    /// Opens a file of a mount. See [`OpenOptions::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().open(path)
    }

    /// Runs `f` on the lease. If its server is gone, takes a lease of the next one and runs
    /// `f` again.
    fn with<T>(&self, f: impl Fn(&Arc<Leased>) -> Result<T>) -> Result<T> {
        let leased = self.leased.read();
        match f(&leased) {
            Err(Error::ServerGone) => {}
            done => return done,
        }
        let old = Arc::clone(&leased);
        drop(leased);
        self.attach_again(&old)?;
        f(&self.leased.read())
    }

    /// Opens the file again at the next server. Does nothing if another thread has.
    #[cold]
    fn attach_again(&self, old: &Arc<Leased>) -> Result<()> {
        let Some(path) = &self.path else {
            return Err(Error::ServerGone);
        };
        let mut current = self.leased.write();
        if !Arc::ptr_eq(&current, old) {
            return Ok(());
        }
        let new = match self.options.lease(path) {
            // The mount point of the dead server, or nothing there.
            Err(Error::Open { source, .. })
                if matches!(
                    source.raw_os_error(),
                    Some(libc::ENOTCONN | libc::ENOENT | libc::ECONNABORTED)
                ) =>
            {
                return Err(Error::ServerGone);
            }
            new => new?,
        };
        if new.identity != old.identity {
            return Err(Error::Replaced(path.clone()));
        }
        *current = Arc::new(new);
        Ok(())
    }

    /// Reads bytes from an offset. Returns fewer than asked at the end of the file only.
    ///
    /// ```no_run
    /// # let file = pramfs_client::File::open("/mnt/data/table")?;
    /// let mut buf = [0; 512];
    /// assert_eq!(file.read_at(&mut buf, file.len()?)?, 0, "the end of the file");
    /// # Ok::<(), pramfs_client::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ServerGone`] if the blocks of the range are not known, and no server can be
    /// asked; [`Error::Medium`]. If the file changes too fast, or a part of it was lost, the
    /// call reads through the mount: [`Error::Mount`].
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        // In a variable, so that the lock is released before the slow way takes it.
        let known = self.leased.read().read_known(buf, offset);
        match known {
            Some(n) => Ok(n),
            None => self.read_slow(buf, offset),
        }
    }

    #[inline(never)]
    fn read_slow(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        // The buffer is borrowed by one attempt at a time.
        let buf = std::cell::RefCell::new(buf);
        self.with(|leased| leased.read_at(&mut buf.borrow_mut(), offset))
    }

    /// As [`read_at`](Self::read_at), but fills the buffer.
    ///
    /// # Errors
    /// [`Error::Range`] if the file ends before; as [`read_at`](Self::read_at).
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self.read_at(buf, offset)? == buf.len() {
            true => Ok(()),
            false => Err(Error::Range),
        }
    }

    /// Maps a range of the file as memory. Holes read as zeros.
    ///
    /// The view keeps showing the same blocks. [`View::is_current`] tells whether they are
    /// still those of the file.
    ///
    /// # Errors
    /// [`Error::Range`] for an empty range and past the end of the file;
    /// [`Error::Medium`] if the region cannot be mapped so (small blocks, too many
    /// mappings, no addresses); as [`read_at`](Self::read_at).
    pub fn map(&self, range: Range<u64>) -> Result<View> {
        self.with(|leased| View::new(leased, range.clone()))
    }

    /// Returns the size of the file in bytes, without a system call.
    ///
    /// # Errors
    /// [`Error::Medium`].
    #[allow(clippy::len_without_is_empty, reason = "as for a file of std")]
    pub fn len(&self) -> Result<u64> {
        self.with(|leased| leased.size())
    }

    /// Returns the metadata, by a system call on the mount.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn metadata(&self) -> Result<Metadata> {
        let leased = self.leased.read();
        leased.file.metadata().map_err(|source| Error::Open {
            path: self.path.clone().unwrap_or_default(),
            source,
        })
    }
}
