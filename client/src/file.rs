//! [`File`]: a file of a mount, read directly.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use pramfs_control::{Coherence, Refusal};
use pramfs_medium::pmem::{Protect, RegionAccess as _};
use pramfs_medium::types::{Access, LeaseMode};

use crate::error::{Error, Result};
use crate::leased::Leased;
use crate::link::asked_again;
use crate::mapped::MappedFile;
use crate::snapshot::Shown as _;

/// How to open a file.
///
/// ```no_run
/// let file = pramfs_client::OpenOptions::new().open("/mnt/data/table")?;
/// # Ok::<(), pramfs_client::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    directory: Option<PathBuf>,
    write: bool,
    coherence: Coherence,
    protect: Protect,
}

impl OpenOptions {
    /// For reading.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// For writing too: [`File::write_at`], and views for stores. The lease is refused while
    /// any program has the file open through the page cache of the kernel. While it lives,
    /// programs that open the file through the mount use no page cache, and cannot map it
    /// with `MAP_SHARED`.
    ///
    /// ```no_run
    /// use pramfs_client::{Access, OpenOptions};
    ///
    /// let file = OpenOptions::new().write(true).open("/mnt/data/table")?;
    /// file.write_all_at(b"durable when this returns", 4096)?;
    /// let view = file.map(0..4096, Access::Write)?;
    /// view.store(64, 1u64)?;
    /// view.persist(64..72)?;
    /// # Ok::<(), pramfs_client::Error>(())
    /// ```
    pub fn write(mut self, write: bool) -> OpenOptions {
        self.write = write;
        self
    }

    /// Keeps stray stores of this process from the region, which a file for writing has mapped
    /// as a whole. Off by default. Views are writable for their range in any case. A file for
    /// reading needs no protection: the process cannot store to the region then. With
    /// [`Protect::Pkey`], each open file takes one of the 15 keys of the process; with
    /// [`Protect::Auto`], files past that are not protected.
    ///
    /// ```no_run
    /// use pramfs_client::{OpenOptions, Protect};
    ///
    /// let options = OpenOptions::new().write(true).protect(Protect::Pkey);
    /// let file = options.open("/mnt/data/table")?;
    /// # Ok::<(), pramfs_client::Error>(())
    /// ```
    pub fn protect(mut self, protect: Protect) -> OpenOptions {
        self.protect = protect;
        self
    }

    /// For the preload library: what becomes of a lease to read when a program opens the file in a
    /// way that lets it store through a mapping of the mount. By default nothing: this file shows
    /// such a store after its write-back. A recalled lease fails in all that needs a request
    /// ([`Refusal::Ended`], ESTALE).
    #[doc(hidden)]
    pub fn coherence(mut self, coherence: Coherence) -> OpenOptions {
        self.coherence = coherence;
        self
    }

    fn mode(&self) -> LeaseMode {
        match self.write {
            true => LeaseMode::Write,
            false => LeaseMode::Read,
        }
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
    /// [`Error::Open`], [`Error::NoTicket`], [`Error::ServerGone`]; [`Error::Refused`], with
    /// EBUSY for writing if the file is open through the page cache; [`Error::Medium`] if the
    /// region cannot be mapped, or protected as asked.
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

    /// Asks for a lease on an open file of a mount. For writing it must have been opened for
    /// reading and writing, with O_DIRECT. After the death of its server, such a file cannot
    /// be opened again.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn from_file(&self, file: std::fs::File) -> Result<File> {
        let leased = self.leased(file)?;
        Ok(File {
            options: self.clone(),
            path: None,
            leased: RwLock::new(Arc::new(leased)),
        })
    }

    /// Opens a file and asks for a lease. The kernel tells the server of a close a little
    /// after close(2) has returned, so an open through the page cache counts for a while.
    fn lease(&self, path: &Path) -> Result<Leased> {
        asked_again(|| self.try_lease(path), is_busy)
    }

    fn try_lease(&self, path: &Path) -> Result<Leased> {
        let open = |flags| {
            std::fs::OpenOptions::new()
                .read(true)
                .write(self.write)
                // A pipe would wait for a writer.
                .custom_flags(libc::O_NONBLOCK | flags)
                .open(path)
        };
        // An open through the page cache would refuse the leases of writers.
        let file = match open(libc::O_DIRECT) {
            // Another file system: it has no tickets, which is the clearer error.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0),
            opened => opened,
        };
        let file = file.map_err(|source| Error::Open {
            path: path.to_owned(),
            source,
        })?;
        self.leased(file)
    }

    fn leased(&self, file: std::fs::File) -> Result<Leased> {
        let directory = self.directory.as_ref();
        Leased::new(file, self.mode(), self.coherence, self.protect, directory)
    }
}

/// Whether somebody else has the file, perhaps for a moment: by an open through the page cache, or
/// by an append that is under way.
fn is_busy(error: &Error) -> bool {
    match error {
        Error::Refused { reason, .. } => *reason == Refusal::Busy,
        Error::Open { source, .. } => source.raw_os_error() == Some(libc::EBUSY),
        _ => false,
    }
}

/// Whether a descriptor is of a mount whose server has ended.
fn is_of_dead_server(error: &Error) -> bool {
    match error {
        Error::ServerGone => true,
        Error::NoTicket(source) => matches!(
            source.raw_os_error(),
            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)
        ),
        _ => false,
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
        // Its slot counts as another lease of the file.
        drop(old);
        f(&self.leased.read())
    }

    /// Takes another lease: at the same server, if only the connection is lost, or of the file that
    /// has the path at the next server. Does nothing if another thread has.
    #[cold]
    fn attach_again(&self, old: &Arc<Leased>) -> Result<()> {
        let mut current = self.leased.write();
        if !Arc::ptr_eq(&current, old) {
            return Ok(());
        }
        // The descriptor works as long as its server lives, whatever has become of the path.
        if let Ok(file) = old.file.try_clone() {
            match self.options.leased(file) {
                Ok(new) => {
                    *current = Arc::new(new);
                    return Ok(());
                }
                Err(error) if is_of_dead_server(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let Some(path) = &self.path else {
            return Err(Error::ServerGone);
        };
        let new = match self.options.lease(path) {
            // The mount point of the dead server, or nothing there.
            Err(Error::Open { source, .. })
                if matches!(
                    source.raw_os_error(),
                    Some(libc::ENOTCONN | libc::ENOENT | libc::ECONNABORTED | libc::ECANCELED)
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

    /// Writes bytes at an offset; they are durable when it returns. Returns the number of
    /// bytes written: fewer if the region is full.
    ///
    /// An overwrite is in place, without a system call, and atomic in units of 8 aligned
    /// bytes. A range that begins at the end of the file or before, and reaches past it, is
    /// appended as by [`append`](Self::append). What touches a hole, or begins past the end, is
    /// written through the mount. Two writers of the same bytes can mix them.
    ///
    /// # Errors
    /// [`Error::NotWritable`]; as [`read_at`](Self::read_at).
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.may_write()?;
        self.with(|leased| leased.write_at(buf, offset))
    }

    /// As [`write_at`](Self::write_at), but writes all bytes.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at). Some of the bytes may have been written by then.
    pub fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> Result<()> {
        while !buf.is_empty() {
            match self.write_at(buf, offset)? {
                0 => return Err(Error::Mount(ErrorKind::WriteZero.into())),
                n => {
                    buf = &buf[n..];
                    offset += n as u64;
                }
            }
        }
        Ok(())
    }

    /// Appends bytes; they are durable when it returns. Returns the offset at which they begin.
    ///
    /// Up to 16 MiB, beside no other lease of the file, it makes no system call, and is all or
    /// nothing: after an error and after a crash too. Otherwise it goes through the mount, and a
    /// part may be left. Appends of all threads and processes never overlap and leave no gap.
    ///
    /// ```no_run
    /// let log = pramfs_client::OpenOptions::new().write(true).open("/mnt/data/log")?;
    /// let at = log.append(b"durable when this returns\n")?;
    /// assert_eq!(log.len()?, at + 26);
    /// # Ok::<(), pramfs_client::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotWritable`]; [`Error::Mount`], ENOSPC for instance; [`Error::ServerGone`] if
    /// it needs a server; [`Error::AppendUnknown`] if the server ended meanwhile;
    /// [`Error::Faulted`].
    pub fn append(&self, buf: &[u8]) -> Result<u64> {
        self.may_write()?;
        self.with(|leased| leased.append(buf))
    }

    pub(crate) fn leased(&self) -> &RwLock<Arc<Leased>> {
        &self.leased
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.options.write
    }

    fn may_write(&self) -> Result<()> {
        match self.options.write {
            true => Ok(()),
            false => Err(Error::NotWritable),
        }
    }

    /// Maps a range of the file as memory. Holes read as zeros; for stores they are filled.
    ///
    /// The view keeps showing the same blocks. [`MappedFile::is_current`] tells whether they
    /// are still those of the file.
    ///
    /// # Errors
    /// [`Error::Range`] for an empty range and past the end of the file;
    /// [`Error::Medium`] if the region cannot be mapped so (small blocks, too many
    /// mappings, no addresses); [`Error::NotWritable`]; as [`read_at`](Self::read_at).
    pub fn map(&self, range: Range<u64>, access: Access) -> Result<MappedFile> {
        if access == Access::Write {
            self.may_write()?;
        }
        self.with(|leased| MappedFile::new(leased, range.clone(), access))
    }

    /// Returns the size of the file in bytes, without a system call.
    ///
    /// # Errors
    /// [`Error::Medium`].
    #[allow(clippy::len_without_is_empty, reason = "as for a file of std")]
    pub fn len(&self) -> Result<u64> {
        self.with(|leased| {
            leased.region().check_owner()?;
            leased.size()
        })
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
