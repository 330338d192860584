//! [`RawLease`]: a file of a mount, accessed directly beside its server.

use std::sync::{Arc, Mutex};

use pramfs_client::{File, OpenOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::Bytes;
use crate::error::About as _;
use crate::fs::{locked, path_of};
use crate::map::{Map, View, access, range};
use crate::process::Owner;

/// A file of a mount. `pramfs.Lease` is made of it.
#[pyclass(frozen, module = "pramfs._native")]
#[derive(Debug)]
pub(crate) struct RawLease {
    file: Mutex<Option<Arc<File>>>,
    owner: Owner,
    path: Vec<u8>,
}

/// Opens a file of a mount, and gets a lease of its server. See `pramfs.lease`.
#[pyfunction]
pub(crate) fn lease(
    py: Python<'_>,
    path: &[u8],
    writable: bool,
    control: Option<&[u8]>,
) -> PyResult<RawLease> {
    let mut how = OpenOptions::new().write(writable);
    if let Some(control) = control {
        how = how.control_directory(path_of(control));
    }
    let file = py.detach(|| how.open(path_of(path))).about(py, path)?;
    Ok(RawLease {
        file: Mutex::new(Some(Arc::new(file))),
        owner: Owner::new(path_of(path).display().to_string()),
        path: path.to_vec(),
    })
}

impl RawLease {
    fn file(&self) -> PyResult<Arc<File>> {
        self.owner.check()?;
        locked(&self.file)
            .clone()
            .ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }

    fn on<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&File) -> pramfs_client::Result<T> + Send,
    ) -> PyResult<T> {
        let file = self.file()?;
        py.detach(|| call(&file)).about(py, &self.path)
    }
}

#[pymethods]
impl RawLease {
    fn close(&self, py: Python<'_>) {
        if self.owner.is_here() {
            let file = locked(&self.file).take();
            py.detach(|| drop(file));
        }
    }

    #[getter]
    fn closed(&self) -> bool {
        self.owner.is_here() && locked(&self.file).is_none()
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.on(py, File::len)
    }

    fn pread<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let left = self.size(py)?.saturating_sub(offset);
        let count = size.min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut got = 0;
        let bytes = PyBytes::new_with(py, count, |buf| {
            got = self.on(py, |file| file.read_at(buf, offset))?;
            Ok(())
        })?;
        match got == count {
            true => Ok(bytes),
            false => Ok(PyBytes::new(py, &bytes.as_bytes()[..got])),
        }
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

    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let bytes = Bytes::of(data)?;
        let from = bytes.as_slice();
        self.on(py, |file| file.append(from))
    }

    fn map(&self, py: Python<'_>, offset: u64, len: Option<u64>, writable: bool) -> PyResult<Map> {
        let view = self.on(py, |file| {
            file.map(range(offset, len, file.len()?), access(writable))
        })?;
        Ok(Map::new(View::Leased(view), &self.path, writable))
    }
}
