//! The extension module `pramfs._native`: the library and direct access beside a mount, for
//! Python. The package `pramfs` in `pramfs/*.py` makes Python's own interfaces of it.
//!
//! # The contract of this crate
//! 1. A call that may wait or copy much runs detached from the interpreter, so that other
//!    threads go on. No lock of this crate is held while a thread attaches or detaches.
//! 2. A forked child uses no handle of its parent: `process::Owner::check` comes before any lock,
//!    whose holder may not exist in the child.
//! 3. Addresses of a view leave it through the buffer protocol alone. A view with exported
//!    buffers is not closed, and the exporter is referenced by each of them.

mod buffer;
mod error;
mod file;
mod format;
mod fs;
mod lease;
mod map;
mod names;
mod options;
mod process;

use pyo3::prelude::*;

/// What the package needs of the libraries.
// gil_used: every class is frozen, and its state is behind locks or atomics.
#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use super::error::{BusyError, CorruptError, ForkedError, LostError, NotMountableError};
    #[pymodule_export]
    use super::file::RawFile;
    #[pymodule_export]
    use super::format::{format, memory};
    #[pymodule_export]
    use super::fs::{RawFileSystem, mount};
    #[pymodule_export]
    use super::lease::{RawLease, lease};
    #[pymodule_export]
    use super::map::Map;

    #[pymodule_export]
    const VERSION: &str = pramfs::VERSION;
}
