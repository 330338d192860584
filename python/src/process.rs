//! The process that opened a handle. A forked child inherits it, and may not use it.

use pyo3::PyResult;

use crate::error::ForkedError;

/// Who opened a handle, and on what.
#[derive(Debug)]
pub(crate) struct Owner {
    process: u32,
    what: String,
}

impl Owner {
    /// This process, for the region or file that the text names.
    pub(crate) fn new(what: impl Into<String>) -> Owner {
        Owner {
            process: std::process::id(),
            what: what.into(),
        }
    }

    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// # Errors
    /// `ForkedError` in a forked child.
    pub(crate) fn check(&self) -> PyResult<()> {
        match self.is_here() {
            true => Ok(()),
            false => Err(ForkedError::new_err((libc::EIO, self.refusal()))),
        }
    }

    pub(crate) fn is_here(&self) -> bool {
        std::process::id() == self.process
    }

    /// Why a forked child is refused.
    pub(crate) fn refusal(&self) -> String {
        format!(
            "{} was opened by process {}, of which this one is a fork: open it in this process, \
             after the other has closed it (multiprocessing: use the start method \"spawn\", or \
             mount the region and use pramfs.lease)",
            self.what, self.process
        )
    }
}
