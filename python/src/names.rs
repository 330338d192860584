//! Operations on names, as methods of [`RawFileSystem`].

use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pramfs::{Error, FileTimes, FileType, Metadata, RenameFlags, XattrMode};
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::error::decoded;
use crate::fs::{RawFileSystem, path_of};

/// The nanoseconds of a time since 1970.
fn nanoseconds(at: pramfs::Result<SystemTime>) -> i128 {
    let whole = |d: Duration| i128::try_from(d.as_nanos()).unwrap_or(i128::MAX);
    match at.map(|at| at.duration_since(UNIX_EPOCH)) {
        Ok(Ok(after)) => whole(after),
        Ok(Err(before)) => -whole(before.duration()),
        // A time that the system cannot hold.
        Err(_) => 0,
    }
}

fn time(nanoseconds: i64) -> PyResult<SystemTime> {
    let part = Duration::from_nanos(nanoseconds.unsigned_abs());
    let at = match nanoseconds < 0 {
        true => UNIX_EPOCH.checked_sub(part),
        false => UNIX_EPOCH.checked_add(part),
    };
    at.ok_or_else(|| PyOverflowError::new_err("the time cannot be represented"))
}

/// The fields of `os.stat_result` in its order, then blksize, blocks, and the times in
/// nanoseconds: last read, change of contents, change of attributes, creation.
pub(crate) fn stat<'py>(py: Python<'py>, m: &Metadata) -> PyResult<Bound<'py, PyTuple>> {
    let a = m.attr();
    (
        (m.mode(), a.ino.0, m.nlink(), m.uid(), m.gid(), m.len()),
        (a.blksize, m.blocks(), a.rdev),
        (
            nanoseconds(m.accessed()),
            nanoseconds(m.modified()),
            nanoseconds(m.changed()),
            nanoseconds(m.created()),
        ),
    )
        .into_pyobject(py)
}

/// The bits of S_IFMT.
fn type_bits(kind: FileType) -> u32 {
    kind.mode_bits()
}

#[pymethods]
impl RawFileSystem {
    fn mkdir(&self, py: Python<'_>, path: &[u8], mode: u32) -> PyResult<()> {
        self.on(py, path, |fs| {
            let at = path_of(path);
            fs.create_dir(at)?;
            // 0777 less the umask is what it has.
            match mode & 0o7777 {
                0o777 => Ok(()),
                mode => fs.set_permissions(at, Permissions::from_mode(mode & !0o022)),
            }
        })
    }

    fn makedirs(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.on(py, path, |fs| fs.create_dir_all(path_of(path)))
    }

    fn unlink(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.on(py, path, |fs| fs.remove_file(path_of(path)))
    }

    fn rmdir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.on(py, path, |fs| fs.remove_dir(path_of(path)))
    }

    fn rmtree(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.on(py, path, |fs| fs.remove_dir_all(path_of(path)))
    }

    fn rename(
        &self,
        py: Python<'_>,
        old: &[u8],
        new: &[u8],
        replace: bool,
        exchange: bool,
    ) -> PyResult<()> {
        // An exchange and a refusal exclude each other: the caller gives one of them.
        let flags = RenameFlags {
            noreplace: !replace,
            exchange,
            ..RenameFlags::default()
        };
        self.on(py, old, |fs| {
            fs.rename_with(path_of(old), path_of(new), flags)
        })
    }

    fn link(&self, py: Python<'_>, original: &[u8], link: &[u8]) -> PyResult<()> {
        self.on(py, link, |fs| {
            fs.hard_link(path_of(original), path_of(link))
        })
    }

    fn symlink(&self, py: Python<'_>, target: &[u8], link: &[u8]) -> PyResult<()> {
        self.on(py, link, |fs| fs.symlink(path_of(target), path_of(link)))
    }

    fn readlink<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let target = self.on(py, path, |fs| fs.read_link(path_of(path)))?;
        decoded(py, target.as_os_str().as_bytes())
    }

    fn stat<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        follow: bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let found = self.on(py, path, |fs| match follow {
            true => fs.metadata(path_of(path)),
            false => fs.symlink_metadata(path_of(path)),
        })?;
        stat(py, &found)
    }

    /// Names, numbers and types of the entries of a directory.
    fn scandir<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let found = self.on(py, path, |fs| {
            fs.read_dir(path_of(path))?
                .map(|entry| {
                    let entry = entry?;
                    let name = entry.name().as_bytes().to_vec();
                    Ok((name, entry.ino().0, type_bits(entry.file_type()?)))
                })
                .collect::<Result<Vec<_>, Error>>()
        })?;
        let list = PyList::empty(py);
        for (name, ino, kind) in found {
            list.append((decoded(py, &name)?, ino, kind))?;
        }
        Ok(list)
    }

    fn chmod(&self, py: Python<'_>, path: &[u8], mode: u32) -> PyResult<()> {
        let mode = Permissions::from_mode(mode & 0o7777);
        self.on(py, path, |fs| fs.set_permissions(path_of(path), mode))
    }

    fn chown(
        &self,
        py: Python<'_>,
        path: &[u8],
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> PyResult<()> {
        self.on(py, path, |fs| match follow {
            true => fs.chown(path_of(path), uid, gid),
            false => fs.lchown(path_of(path), uid, gid),
        })
    }

    fn utime(&self, py: Python<'_>, path: &[u8], accessed: i64, modified: i64) -> PyResult<()> {
        let times = FileTimes::new()
            .set_accessed(time(accessed)?)
            .set_modified(time(modified)?);
        self.on(py, path, |fs| fs.set_times(path_of(path), times))
    }

    fn copy(&self, py: Python<'_>, source: &[u8], target: &[u8]) -> PyResult<u64> {
        self.on(py, source, |fs| fs.copy(path_of(source), path_of(target)))
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        name: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.on(py, path, |fs| fs.xattr(path_of(path), name))?;
        Ok(PyBytes::new(py, &value))
    }

    fn setxattr(
        &self,
        py: Python<'_>,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> PyResult<()> {
        let mode = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => {
                return Err(PyValueError::new_err(
                    "flags is 0, os.XATTR_CREATE or os.XATTR_REPLACE",
                ));
            }
        };
        self.on(py, path, |fs| {
            fs.set_xattr(path_of(path), name, value, mode)
        })
    }

    fn listxattr<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let names = self.on(py, path, |fs| fs.list_xattrs(path_of(path)))?;
        let list = PyList::empty(py);
        for name in names {
            list.append(decoded(py, &name)?)?;
        }
        Ok(list)
    }

    fn removexattr(&self, py: Python<'_>, path: &[u8], name: &[u8]) -> PyResult<()> {
        self.on(py, path, |fs| fs.remove_xattr(path_of(path), name))
    }
}
