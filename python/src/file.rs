//! [`RawFile`]: an open file. `pramfs.File` makes an `io.RawIOBase` of it.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex};

use pramfs::{Error, Fallocate, File};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::buffer::Bytes;
use crate::fs::{Shared, locked, release};
use crate::map::{Map, View, range};
use crate::names;

/// An open file and its share of the file system.
#[derive(Debug)]
struct Opened {
    // Dropped before the share.
    file: File,
    shared: Arc<Shared>,
}

/// An open file.
#[pyclass(frozen, module = "pramfs._native")]
#[derive(Debug)]
pub(crate) struct RawFile {
    opened: Mutex<Option<Arc<Opened>>>,
    owner: crate::process::Owner,
    path: Vec<u8>,
}

impl RawFile {
    pub(crate) fn new(file: File, shared: Arc<Shared>, path: &[u8]) -> RawFile {
        RawFile {
            owner: crate::process::Owner::new(shared.owner.what()),
            opened: Mutex::new(Some(Arc::new(Opened { file, shared }))),
            path: path.to_vec(),
        }
    }

    fn opened(&self) -> PyResult<Arc<Opened>> {
        self.owner.check()?;
        locked(&self.opened)
            .clone()
            .ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }

    /// Runs a call of the library, detached from the interpreter.
    fn on<T: Send, E: crate::error::Failure + Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&File) -> Result<T, E> + Send,
    ) -> PyResult<T> {
        let opened = self.opened()?;
        opened.shared.run(py, &self.path, || call(&opened.file))
    }

    /// Reads up to `count` bytes with `read`, into new `bytes`.
    fn read_with<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        read: impl FnOnce(&File, &mut [u8]) -> std::io::Result<usize> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut got = 0;
        let bytes = PyBytes::new_with(py, count, |buf| {
            got = self.on(py, |file| read(file, buf))?;
            Ok(())
        })?;
        match got == count {
            true => Ok(bytes),
            false => Ok(PyBytes::new(py, &bytes.as_bytes()[..got])),
        }
    }

    /// How many of `size` bytes there are from `offset` on.
    fn there(&self, py: Python<'_>, offset: Option<u64>, size: Option<usize>) -> PyResult<usize> {
        let left = self.on(py, |file| {
            let at = match offset {
                Some(at) => at,
                None => (&mut &*file).stream_position()?,
            };
            Ok::<_, std::io::Error>(file.metadata()?.len().saturating_sub(at))
        })?;
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        Ok(size.map_or(left, |size| size.min(left)))
    }
}

/// Fills `buf` by `read`, which returns 0 at the end.
fn fill(
    buf: &mut [u8],
    mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>,
) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match read(&mut buf[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            // What was read first is returned; the next call finds the error again.
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

#[pymethods]
impl RawFile {
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.owner.is_here() {
            return Ok(());
        }
        let opened = locked(&self.opened).take();
        // A call in another thread that still has it closes it at its end.
        let Some(opened) = opened.and_then(Arc::into_inner) else {
            return Ok(());
        };
        let Opened { file, shared } = opened;
        py.detach(|| drop(file));
        release(py, shared)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.owner.is_here() && locked(&self.opened).is_none()
    }

    /// Reads at the position, which moves.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut bytes = Bytes::writable(buffer)?;
        let into = bytes.as_mut_slice();
        self.on(py, |file| (&mut &*file).read(into))
    }

    /// Reads at the position, at most `size` bytes or up to the end.
    fn read<'py>(&self, py: Python<'py>, size: Option<usize>) -> PyResult<Bound<'py, PyBytes>> {
        let count = self.there(py, None, size)?;
        self.read_with(py, count, |file, buf| fill(buf, |b| (&mut &*file).read(b)))
    }

    /// Writes at the position, which moves; or at the end of a file opened for appending.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let bytes = Bytes::of(data)?;
        let from = bytes.as_slice();
        self.on(py, |file| (&mut &*file).write(from))
    }

    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let invalid = || PyValueError::new_err(format!("negative seek position {offset}"));
        let to = match whence {
            libc::SEEK_SET => SeekFrom::Start(offset.try_into().map_err(|_| invalid())?),
            libc::SEEK_CUR => SeekFrom::Current(offset),
            libc::SEEK_END => SeekFrom::End(offset),
            _ => {
                return Err(PyValueError::new_err(format!(
                    "invalid whence ({whence}, should be 0, 1 or 2)"
                )));
            }
        };
        self.on(py, |file| (&mut &*file).seek(to))
    }

    fn pread<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let count = self.there(py, Some(offset), Some(size))?;
        self.read_with(py, count, |file, buf| {
            let mut at = offset;
            fill(buf, |b| {
                let n = file.read_at(b, at)?;
                at += n as u64;
                Ok(n)
            })
        })
    }

    fn preadinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let mut bytes = Bytes::writable(buffer)?;
        let into = bytes.as_mut_slice();
        self.on(py, |file| file.read_at(into, offset))
    }

    fn pwrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let bytes = Bytes::of(data)?;
        let from = bytes.as_slice();
        self.on(py, |file| file.write_at(from, offset))
    }

    fn write_atomic(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
        let bytes = Bytes::of(data)?;
        let from = bytes.as_slice();
        self.on(py, |file| file.write_atomic(from, offset))
    }

    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let bytes = Bytes::of(data)?;
        let from = bytes.as_slice();
        self.on(py, |file| file.append(from))
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.on(py, |file| file.set_len(size))
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.on(py, |file| file.metadata().map(|m| m.len()))
    }

    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let found = self.on(py, File::metadata)?;
        names::stat(py, &found)
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.on(py, File::sync_all)
    }

    /// `what` is allocate, punch or zero.
    fn fallocate(
        &self,
        py: Python<'_>,
        what: &str,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> PyResult<()> {
        let what = match what {
            "allocate" => Fallocate::Allocate { keep_size },
            "punch" => Fallocate::PunchHole,
            "zero" => Fallocate::ZeroRange { keep_size },
            _ => return Err(PyValueError::new_err("allocate, punch or zero")),
        };
        self.on(py, |file| file.fallocate(what, offset, len))
    }

    /// Offset in the file, offset in the region, length, unwritten, lost.
    #[expect(clippy::type_complexity, reason = "a tuple of Python, named there")]
    fn extents(&self, py: Python<'_>) -> PyResult<Vec<(u64, Option<u64>, u64, bool, bool)>> {
        let found = self.on(py, |file| file.extents(0..file.metadata()?.len()))?;
        Ok(found
            .into_iter()
            .map(|e| (e.file_offset, e.region_offset, e.len, e.unwritten, e.lost))
            .collect())
    }

    fn map(&self, py: Python<'_>, offset: u64, len: Option<u64>, writable: bool) -> PyResult<Map> {
        let opened = self.opened()?;
        let view = self.on(py, |file| {
            let size = file.metadata()?.len();
            file.map(range(offset, len, size), crate::map::access(writable))
        })?;
        let shared = Arc::clone(&opened.shared);
        Ok(Map::new(View::Owned(view, shared), &self.path, writable))
    }
}

/// The library says what is wrong with a range; this only keeps the arithmetic from wrapping.
pub(crate) fn checked(range: &std::ops::Range<u64>) -> Result<(), Error> {
    match range.start <= range.end {
        true => Ok(()),
        false => Err(Error::Invalid("the range ends before it begins")),
    }
}
