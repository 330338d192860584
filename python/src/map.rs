//! [`Map`]: a range of a file as memory, with the buffer protocol.
//!
//! Invariant: as long as a buffer is exported, the view lives: each export references the map,
//! and the map is not closed while there is one. So no pointer of numpy dangles, whatever
//! becomes of the file, its name and the file system. The blocks of the view belong to the file
//! until then, so a file that is truncated leaves the bytes readable.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use pramfs::{Access, MappedFile};
use pyo3::exceptions::{PyBufferError, PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::Bytes;
use crate::error::About as _;
use crate::file::checked;
use crate::fs::{Shared, locked, release};
use crate::process::Owner;

/// A view of a file of this process, or of a file of a mount.
#[derive(Debug)]
pub(crate) enum View {
    Owned(MappedFile, Arc<Shared>),
    Leased(pramfs_client::MappedFile),
}

/// Calls the same method of either view, detached from the interpreter, and gives its error the
/// name of the file.
macro_rules! call {
    ($map:ident, $py:ident, $view:ident => $work:expr) => {{
        let view = $map.view()?;
        match &*view {
            View::Owned($view, shared) => shared.run($py, &$map.path, || $work),
            View::Leased($view) => $py.detach(|| $work).about($py, &$map.path),
        }
    }};
}

/// The range that a caller has in mind: up to the end of the file without a length.
pub(crate) fn range(offset: u64, len: Option<u64>, size: u64) -> Range<u64> {
    match len {
        Some(len) => offset..offset.saturating_add(len),
        None => offset..size,
    }
}

pub(crate) fn access(writable: bool) -> Access {
    match writable {
        true => Access::Write,
        false => Access::Read,
    }
}

/// What changes of a map.
#[derive(Debug)]
struct State {
    /// `None` after `close`.
    view: Option<Arc<View>>,
    exports: usize,
}

/// A range of a file as memory: the medium itself.
///
/// It has the buffer protocol: memoryview(m), numpy.frombuffer(m, dtype) and others see the
/// bytes without a copy. Stores are durable after persist().
#[pyclass(frozen, weakref, module = "pramfs")]
#[derive(Debug)]
pub(crate) struct Map {
    state: Mutex<State>,
    owner: Owner,
    path: Vec<u8>,
    address: usize,
    len: u64,
    writable: bool,
}

impl Map {
    pub(crate) fn new(view: View, path: &[u8], writable: bool) -> Map {
        let (address, len) = match &view {
            View::Owned(view, _) => (view.as_ptr() as usize, view.len()),
            View::Leased(view) => (view.as_ptr() as usize, view.len()),
        };
        let name = String::from_utf8_lossy(path);
        Map {
            state: Mutex::new(State {
                view: Some(Arc::new(view)),
                exports: 0,
            }),
            owner: Owner::new(format!("the map of {name}")),
            path: path.to_vec(),
            address,
            len,
            writable,
        }
    }

    fn view(&self) -> PyResult<Arc<View>> {
        self.owner.check()?;
        locked(&self.state)
            .view
            .clone()
            .ok_or_else(|| PyValueError::new_err("the map is closed"))
    }

    /// One buffer less.
    fn released(&self) {
        let mut state = locked(&self.state);
        state.exports = state.exports.saturating_sub(1);
    }

    /// The range of a call, which may leave out its end.
    fn part(&self, offset: u64, len: Option<u64>) -> Range<u64> {
        range(offset, len, self.len)
    }
}

#[pymethods]
impl Map {
    /// Closes the map.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.owner.is_here() {
            return Ok(());
        }
        let view = {
            let mut state = locked(&self.state);
            if state.exports > 0 {
                return Err(PyBufferError::new_err(format!(
                    "the map of {} cannot be closed: {} buffers of it exist (memoryview, numpy \
                     array, ...); delete them first",
                    String::from_utf8_lossy(&self.path),
                    state.exports
                )));
            }
            state.view.take()
        };
        // A call in another thread that still has it ends it.
        match view.and_then(Arc::into_inner) {
            Some(View::Owned(view, shared)) => {
                py.detach(|| drop(view));
                release(py, shared)
            }
            Some(View::Leased(view)) => {
                py.detach(|| drop(view));
                Ok(())
            }
            None => Ok(()),
        }
    }

    #[getter]
    fn closed(&self) -> bool {
        self.owner.is_here() && locked(&self.state).view.is_none()
    }

    #[getter]
    fn readonly(&self) -> bool {
        !self.writable
    }

    /// The number of exported buffers.
    #[getter]
    fn exports(&self) -> PyResult<usize> {
        self.owner.check()?;
        Ok(locked(&self.state).exports)
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        self.view().map(|_| self.address)
    }

    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        crate::error::decoded(py, &self.path)
    }

    fn __len__(&self) -> PyResult<usize> {
        self.view()?;
        usize::try_from(self.len).map_err(|_| PyValueError::new_err("the map is too long"))
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().view()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _exception: &Bound<'_, pyo3::types::PyTuple>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let state = match (self.owner.is_here(), self.closed()) {
            (false, _) => "of another process",
            (true, true) => "closed",
            (true, false) if self.writable => "writable",
            (true, false) => "readonly",
        };
        let name = String::from_utf8_lossy(&self.path);
        format!("<pramfs.Map {name:?} {} bytes, {state}>", self.len)
    }

    /// Makes the stores to a range durable: the whole map without arguments.
    #[pyo3(signature = (offset = 0, length = None, /))]
    fn persist(&self, py: Python<'_>, offset: u64, length: Option<u64>) -> PyResult<()> {
        let range = self.part(offset, length);
        check(py, &range, &self.path)?;
        call!(self, py, view => view.persist(range))
    }

    /// Starts to make the stores to a range durable; drain() on the same thread completes it.
    #[pyo3(signature = (offset = 0, length = None, /))]
    fn flush(&self, py: Python<'_>, offset: u64, length: Option<u64>) -> PyResult<()> {
        let range = self.part(offset, length);
        check(py, &range, &self.path)?;
        call!(self, py, view => view.flush(range))
    }

    /// Waits until the ranges that this thread has flushed are durable.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        call!(self, py, view => view.drain())
    }

    /// Copies bytes out.
    #[pyo3(signature = (offset = 0, length = None, /))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let range = self.part(offset, length);
        check(py, &range, &self.path)?;
        if range.end > self.len {
            return Err(PyValueError::new_err("the range leaves the map"));
        }
        let count = usize::try_from(range.end - range.start)
            .map_err(|_| PyValueError::new_err("the range is too long"))?;
        PyBytes::new_with(
            py,
            count,
            |buf| call!(self, py, view => view.read(offset, buf)),
        )
    }

    /// Copies bytes in. They are durable after persist().
    #[pyo3(signature = (offset, data, /))]
    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = Bytes::of(data)?;
        let from = bytes.as_slice();
        call!(self, py, view => view.write(offset, from))
    }

    /// Loads an aligned number of 8 bytes, atomically.
    #[pyo3(signature = (offset, /))]
    fn load(&self, py: Python<'_>, offset: u64) -> PyResult<u64> {
        call!(self, py, view => view.load::<u64>(offset))
    }

    /// Stores an aligned number of 8 bytes, atomically.
    #[pyo3(signature = (offset, value, /))]
    fn store(&self, py: Python<'_>, offset: u64, value: u64) -> PyResult<()> {
        call!(self, py, view => view.store::<u64>(offset, value))
    }

    /// Adds to an aligned number of 8 bytes, atomically; returns what it was before.
    #[pyo3(signature = (offset, value, /))]
    fn fetch_add(&self, py: Python<'_>, offset: u64, value: u64) -> PyResult<u64> {
        call!(self, py, view => view.fetch_add::<u64>(offset, value))
    }

    /// Stores `new` if the number is `current`, atomically; returns what it was before.
    #[pyo3(signature = (offset, current, new, /))]
    fn compare_exchange(
        &self,
        py: Python<'_>,
        offset: u64,
        current: u64,
        new: u64,
    ) -> PyResult<u64> {
        let was = call!(self, py, view => view.compare_exchange::<u64>(offset, current, new))?;
        Ok(was.unwrap_or_else(|was| was))
    }

    /// Faults in all pages now, instead of at their first use.
    fn populate(&self, py: Python<'_>) -> PyResult<()> {
        let view = self.view()?;
        match &*view {
            View::Owned(view, shared) => shared.run(py, &self.path, || view.populate()),
            View::Leased(_) => Err(PyOSError::new_err((
                libc::EOPNOTSUPP,
                "a map of a lease is populated by its first use",
            ))),
        }
    }

    /// # Safety
    /// As of PyObject_GetBuffer: `view` is a place for the result.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let map = slf.get();
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no place for the buffer"));
        }
        if !map.owner.is_here() {
            return Err(PyBufferError::new_err(map.owner.refusal()));
        }
        if flags & ffi::PyBUF_WRITABLE != 0 && !map.writable {
            return Err(PyBufferError::new_err("the map is for reading only"));
        }
        let len = isize::try_from(map.len)
            .map_err(|_| PyBufferError::new_err("the map is too long for a buffer"))?;
        {
            let mut state = locked(&map.state);
            if state.view.is_none() {
                return Err(PyBufferError::new_err("the map is closed"));
            }
            state.exports += 1;
        }
        // Without the lock: an allocation can collect garbage, and release other buffers of
        // this map.
        //
        // SAFETY: a place for the result; the address is that of a view of `len` bytes, which
        // lives until the count of exports is 0 and the map is closed or dropped. The buffer
        // references the map.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                map.address as *mut _,
                len,
                c_int::from(!map.writable),
                flags,
            )
        };
        if filled == 0 {
            return Ok(());
        }
        map.released();
        Err(PyErr::fetch(slf.py()))
    }

    /// # Safety
    /// As of PyBuffer_Release.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        // In a forked child, the lock may be that of a thread of the parent.
        if self.owner.is_here() {
            self.released();
        }
    }
}

fn check(py: Python<'_>, range: &Range<u64>, path: &[u8]) -> PyResult<()> {
    checked(range).about(py, path)
}
