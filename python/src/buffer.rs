//! [`Bytes`]: the bytes of an object with the buffer protocol, borrowed for one call.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// A contiguous buffer of any object, of any item type. The object keeps it in place until
/// this is dropped, which needs the interpreter.
pub(crate) struct Bytes<'py> {
    view: Box<ffi::Py_buffer>,
    _py: Python<'py>,
}

impl<'py> Bytes<'py> {
    /// Borrows bytes for reading.
    ///
    /// # Errors
    /// `TypeError` for an object without them, `BufferError` for bytes that are not contiguous.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Bytes<'py>> {
        Bytes::get(object, ffi::PyBUF_SIMPLE)
    }

    /// Borrows bytes for writing.
    ///
    /// # Errors
    /// As of [`of`](Self::of); `BufferError` for an object that is for reading only.
    pub(crate) fn writable(object: &Bound<'py, PyAny>) -> PyResult<Bytes<'py>> {
        Bytes::get(object, ffi::PyBUF_WRITABLE)
    }

    fn get(object: &Bound<'py, PyAny>, flags: c_int) -> PyResult<Bytes<'py>> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object lives, and the place for the result has not moved when the buffer
        // is released.
        let got = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) };
        if got != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let bytes = Bytes {
            view,
            _py: object.py(),
        };
        match bytes.view.len >= 0 {
            true => Ok(bytes),
            false => Err(PyBufferError::new_err("the buffer has a negative length")),
        }
    }

    fn len(&self) -> usize {
        // Checked when it was made.
        self.view.len.unsigned_abs()
    }

    /// The bytes. Other threads may change them meanwhile, as they may for every call of
    /// Python that is given a buffer (`os.write`).
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self.len() {
            0 => &[],
            // SAFETY: the exporter keeps `len` readable bytes there until the release.
            len => unsafe { std::slice::from_raw_parts(self.view.buf.cast(), len) },
        }
    }

    /// The bytes of a buffer that was borrowed for writing.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        match (self.len(), self.view.readonly) {
            (0, _) => &mut [],
            // A buffer that may only be read is not written, whatever it was asked for.
            (_, readonly) if readonly != 0 => &mut [],
            // SAFETY: the exporter keeps `len` writable bytes there until the release.
            (len, _) => unsafe { std::slice::from_raw_parts_mut(self.view.buf.cast(), len) },
        }
    }
}

impl Drop for Bytes<'_> {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer, and released once, while attached.
        unsafe { ffi::PyBuffer_Release(&mut *self.view) };
    }
}
