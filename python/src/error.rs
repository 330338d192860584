//! Errors: an `OSError` with the errno of the failure, its reason and the name of the file.
//!
//! Python chooses the built-in subclass by the errno (`FileNotFoundError`, `FileExistsError`,
//! ...). Failures that have none get a subclass of this package.

use std::ffi::CString;
use std::fmt::Display;
use std::io;

use pramfs::pmem::PmemError;
use pramfs::{Error, UnmountError};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

pyo3::create_exception!(
    pramfs,
    BusyError,
    PyOSError,
    "The region is in use, or files and maps of it are open (EBUSY)."
);
pyo3::create_exception!(
    pramfs,
    CorruptError,
    PyOSError,
    "The medium has impossible contents (EUCLEAN): run fsck.pramfs on the region."
);
pyo3::create_exception!(
    pramfs,
    LostError,
    PyOSError,
    "Bytes of a file are lost, or are not those that were written (EIO)."
);
pyo3::create_exception!(
    pramfs,
    NotMountableError,
    PyOSError,
    "The region holds no file system of pramfs, or one that this version cannot use (EINVAL)."
);
pyo3::create_exception!(
    pramfs,
    ForkedError,
    PyOSError,
    "The object belongs to the process of which this one is a fork (EIO)."
);

/// An error of one of the libraries.
pub(crate) trait Failure: Display {
    fn errno(&self) -> i32;

    /// The class of the exception, if the errno does not choose it.
    fn class(&self) -> Class {
        match self.errno() {
            libc::EBUSY => Class::Busy,
            _ => Class::ByErrno,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Class {
    ByErrno,
    Busy,
    Corrupt,
    Lost,
    NotMountable,
}

impl Failure for Error {
    fn errno(&self) -> i32 {
        Error::errno(self)
    }

    fn class(&self) -> Class {
        match self {
            Error::Corrupt { .. } => Class::Corrupt,
            Error::Lost { .. } | Error::WrongSum { .. } => Class::Lost,
            Error::NotMountable(_) => Class::NotMountable,
            e if e.errno() == libc::EBUSY => Class::Busy,
            _ => Class::ByErrno,
        }
    }
}

impl Failure for PmemError {
    fn errno(&self) -> i32 {
        PmemError::errno(self)
    }
}

impl Failure for UnmountError {
    fn errno(&self) -> i32 {
        UnmountError::errno(self)
    }
}

impl Failure for pramfs_client::Error {
    fn errno(&self) -> i32 {
        pramfs_client::Error::errno(self)
    }
}

/// What the traits of `std` return: the error of the library is its source.
impl Failure for io::Error {
    fn errno(&self) -> i32 {
        let source = self.get_ref().and_then(|e| e.downcast_ref::<Error>());
        match source {
            Some(e) => e.errno(),
            None => self.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    fn class(&self) -> Class {
        match self.get_ref().and_then(|e| e.downcast_ref::<Error>()) {
            Some(e) => Failure::class(e),
            None => Class::ByErrno,
        }
    }
}

/// Makes an exception, which names no file.
pub(crate) fn raised(e: impl Failure) -> PyErr {
    let errno = match e.errno() {
        errno if errno > 0 => errno,
        // Never a success.
        _ => libc::EIO,
    };
    let args = (errno, e.to_string());
    match e.class() {
        Class::ByErrno => PyOSError::new_err(args),
        Class::Busy => BusyError::new_err(args),
        Class::Corrupt => CorruptError::new_err(args),
        Class::Lost => LostError::new_err(args),
        Class::NotMountable => NotMountableError::new_err(args),
    }
}

/// Adds the name of the file to an error.
pub(crate) trait About<T> {
    fn about(self, py: Python<'_>, path: &[u8]) -> PyResult<T>;
}

impl<T, E: Failure> About<T> for Result<T, E> {
    fn about(self, py: Python<'_>, path: &[u8]) -> PyResult<T> {
        self.map_err(|e| {
            let error = raised(e);
            // As `os` shows names: text, with what is not UTF-8 escaped.
            let name = match CString::new(path).is_ok() {
                true => decoded(py, path),
                false => Ok(PyBytes::new(py, path).into_any()),
            };
            match name.and_then(|name| error.value(py).setattr("filename", name)) {
                Ok(()) => error,
                Err(other) => other,
            }
        })
    }
}

/// Decodes a name as `os.fsdecode` does.
pub(crate) fn decoded<'py>(py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match std::str::from_utf8(name) {
        Ok(text) => Ok(text.into_pyobject(py)?.into_any()),
        Err(_) => PyBytes::new(py, name).call_method1("decode", ("utf-8", "surrogateescape")),
    }
}
