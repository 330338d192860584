//! [`RawFileSystem`]: a mounted file system.
//!
//! Invariant: the file system stays mounted until the last handle of it is closed: the file
//! system, its files and maps. The one that is closed last unmounts, and returns the error of
//! that. A forced unmount ends it before.
//!
//! Invariant: after a panic in a call, no later call works on the file system. What the engine
//! has in memory is not known any more, and could reach the medium.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pramfs::{Error, FileSystem, OpenOptions, UnmountError};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{About as _, BusyError, Failure, raised};
use crate::file::RawFile;
use crate::options::Options;
use crate::process::Owner;

/// What the handles of one file system share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// `None` after an unmount. A call keeps it by a reference of its own.
    fs: Mutex<Option<Arc<FileSystem>>>,
    pub(crate) owner: Owner,
    failed: AtomicBool,
}

/// A call in progress. If it panics, it is the last one.
struct Call<'a>(&'a AtomicBool);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// A panic while such a lock is held leaves the value as it was.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

impl Shared {
    /// Runs a call of the library on a handle, detached from the interpreter.
    ///
    /// # Errors
    /// `ForkedError` in a forked child, EIO after a panic, those of the call with the path.
    pub(crate) fn run<T: Send, E: Failure + Send>(
        &self,
        py: Python<'_>,
        path: &[u8],
        call: impl FnOnce() -> Result<T, E> + Send,
    ) -> PyResult<T> {
        self.owner.check()?;
        if self.failed.load(Ordering::Relaxed) {
            let region = self.owner.what();
            return Err(PyOSError::new_err((
                libc::EIO,
                format!(
                    "a bug of pramfs has ended the use of {region}: close it, run `fsck.pramfs \
                     {region}`, and open it again"
                ),
            )));
        }
        py.detach(|| {
            let _call = Call(&self.failed);
            call()
        })
        .about(py, path)
    }

    /// Runs a call on the file system.
    ///
    /// # Errors
    /// As of [`run`](Self::run); EIO after an unmount.
    pub(crate) fn on<T: Send>(
        &self,
        py: Python<'_>,
        path: &[u8],
        call: impl FnOnce(&FileSystem) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.owner.check()?;
        let fs = locked(&self.fs).clone();
        let Some(fs) = fs else {
            return Err(self.unmounted());
        };
        self.run(py, path, move || call(&fs))
    }

    fn unmounted(&self) -> PyErr {
        PyOSError::new_err((
            libc::EIO,
            format!("{} has been unmounted", self.owner.what()),
        ))
    }
}

/// Gives up a handle's share. Whoever has the last one unmounts.
///
/// # Errors
/// Those of the unmount.
pub(crate) fn release(py: Python<'_>, shared: Arc<Shared>) -> PyResult<()> {
    let Some(shared) = Arc::into_inner(shared) else {
        return Ok(());
    };
    if !shared.owner.is_here() {
        // Its drop changes nothing that belongs to the parent.
        return Ok(());
    }
    let fs = shared
        .fs
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    // A call in another thread that still has it unmounts at its end.
    match fs.and_then(Arc::into_inner) {
        Some(fs) => py.detach(|| fs.unmount_now()).map_err(raised),
        None => Ok(()),
    }
}

/// A mounted file system. `pramfs.FileSystem` is made of it.
#[pyclass(frozen, module = "pramfs._native")]
#[derive(Debug)]
pub(crate) struct RawFileSystem {
    /// `None` after `close`.
    pub(crate) shared: Mutex<Option<Arc<Shared>>>,
    pub(crate) owner: Owner,
}

impl RawFileSystem {
    pub(crate) fn new(fs: FileSystem, region: String) -> RawFileSystem {
        RawFileSystem {
            shared: Mutex::new(Some(Arc::new(Shared {
                fs: Mutex::new(Some(Arc::new(fs))),
                owner: Owner::new(region.clone()),
                failed: AtomicBool::new(false),
            }))),
            owner: Owner::new(region),
        }
    }

    /// # Errors
    /// `ForkedError`; `ValueError` after `close`, as of a closed file.
    pub(crate) fn shared(&self) -> PyResult<Arc<Shared>> {
        self.owner.check()?;
        locked(&self.shared).clone().ok_or_else(|| {
            pyo3::exceptions::PyValueError::new_err("operation on a closed file system")
        })
    }

    pub(crate) fn on<T: Send>(
        &self,
        py: Python<'_>,
        path: &[u8],
        call: impl FnOnce(&FileSystem) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.shared()?.on(py, path, call)
    }
}

/// Opens a region and mounts its file system. See `pramfs.open`.
#[pyfunction]
pub(crate) fn mount(
    py: Python<'_>,
    region: &[u8],
    options: &Bound<'_, PyDict>,
) -> PyResult<RawFileSystem> {
    let Options { region: how, mount } = Options::of(options)?;
    let opened = py.detach(|| how.open(path_of(region)).map_err(Error::from));
    let opened = opened.about(py, region)?;
    let fs = py.detach(|| FileSystem::mount(opened, mount));
    Ok(RawFileSystem::new(
        fs.about(py, region)?,
        path_of(region).display().to_string(),
    ))
}

#[pymethods]
impl RawFileSystem {
    /// Closes the handle. The file system stays mounted while files or maps of it are open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.owner.is_here() {
            return Ok(());
        }
        let shared = locked(&self.shared).take();
        match shared {
            Some(shared) => release(py, shared),
            None => Ok(()),
        }
    }

    /// Unmounts, or is refused while files or maps are open. With `force`, they fail afterwards.
    fn unmount(&self, py: Python<'_>, force: bool) -> PyResult<()> {
        self.owner.check()?;
        let Some(shared) = locked(&self.shared).clone() else {
            return Ok(());
        };
        let fs = {
            let mut place = locked(&shared.fs);
            // This reference, that of the handle, and those of files and maps.
            let others = Arc::strong_count(&shared).saturating_sub(2);
            if others > 0 && !force {
                return Err(BusyError::new_err((
                    libc::EBUSY,
                    format!(
                        "{} cannot be unmounted: {others} files or maps are open; close them, or \
                         unmount with force=True, after which they fail",
                        shared.owner.what()
                    ),
                )));
            }
            match place.take().map(Arc::try_unwrap) {
                None => None,
                Some(Ok(fs)) => Some(fs),
                Some(Err(used)) => {
                    *place = Some(used);
                    return Err(BusyError::new_err((
                        libc::EBUSY,
                        format!(
                            "{} cannot be unmounted: another thread is in a call on it",
                            shared.owner.what()
                        ),
                    )));
                }
            }
        };
        let taken = locked(&self.shared).take();
        drop((shared, taken));
        match fs {
            None => Ok(()),
            Some(fs) if force => py.detach(|| fs.unmount_now()).map_err(raised),
            Some(fs) => py.detach(|| fs.unmount()).map_err(|e| match e {
                // Cannot be: nobody else has a handle. It is unmounted by its drop.
                UnmountError::InUse { .. } => raised(Error::Busy("a handle is open".to_owned())),
                UnmountError::Failed(e) => raised(e),
            }),
        }
    }

    /// Whether `close` or `unmount` has been called.
    #[getter]
    fn closed(&self) -> bool {
        self.owner.is_here() && locked(&self.shared).is_none()
    }

    /// The number of open files and maps.
    fn handles(&self) -> PyResult<usize> {
        Ok(Arc::strong_count(&self.shared()?).saturating_sub(2))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.on(py, b"", FileSystem::sync)
    }

    /// Block size; blocks in total, free, available; inodes in total, free; length of a name;
    /// id; whether the mount is read-only.
    #[expect(clippy::type_complexity, reason = "a tuple of Python, named there")]
    fn statvfs(&self, py: Python<'_>) -> PyResult<(u32, u64, u64, u64, u64, u64, u32, u64, bool)> {
        self.on(py, b"", |fs| {
            let s = fs.statfs()?;
            Ok((
                s.block_size,
                s.blocks,
                s.free,
                s.available,
                s.inodes,
                s.free_inodes,
                s.name_max,
                s.fsid,
                fs.inodes().is_read_only(),
            ))
        })
    }

    /// Name, backend, durability, medium, whether it survives a loss of power.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let shared = self.shared()?;
        let info = shared.on(py, b"", |fs| {
            Ok((
                fs.inodes().region().info().clone(),
                fs.recovery().was_clean,
                fs.recovery().records,
            ))
        })?;
        let (region, was_clean, records) = info;
        let found = PyDict::new(py);
        found.set_item("region", &region.name)?;
        found.set_item("backend", region.backend)?;
        found.set_item("medium", region.kind.map(|kind| kind.name()))?;
        found.set_item(
            "persistence",
            format!("{:?}", region.persistence).to_lowercase(),
        )?;
        found.set_item(
            "durability",
            format!("{:?}", region.durability).to_lowercase(),
        )?;
        found.set_item("protect", format!("{:?}", region.protect).to_lowercase())?;
        found.set_item("protect_notice", region.protect_notice)?;
        found.set_item("was_clean", was_clean)?;
        found.set_item("records_replayed", records)?;
        Ok(found)
    }

    fn grow(&self, py: Python<'_>, size: Option<u64>) -> PyResult<(u64, u64)> {
        self.on(py, b"", |fs| {
            fs.grow(size).map(|grown| (grown.from, grown.to))
        })
    }

    /// Opens a file. `how` is a combination of the letters r, w, a (append), t (truncate),
    /// c (create), x (create, exclusively).
    fn open(&self, py: Python<'_>, path: &[u8], how: &str, mode: u32) -> PyResult<RawFile> {
        let shared = self.shared()?;
        let mut options = OpenOptions::new();
        options
            .read(how.contains('r'))
            .write(how.contains('w'))
            .append(how.contains('a'))
            .truncate(how.contains('t'))
            .create(how.contains('c'))
            .create_new(how.contains('x'))
            .mode(mode & 0o7777);
        let file = shared.on(py, path, |fs| options.open(fs, path_of(path)))?;
        Ok(RawFile::new(file, shared, path))
    }
}
