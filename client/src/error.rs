//! Errors of direct access.

use std::io;
use std::path::PathBuf;

use pramfs_control::{ControlError, Refusal};
use pramfs_medium::pmem::PmemError;

/// Why a file cannot be accessed directly.
///
/// The mount serves the same file by ordinary system calls in all of these cases, unless
/// its server has died.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened through the mount.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The mount gives no ticket for the file.
    #[error("the mount gives no direct access to this file: {0}{hint}", hint = hint(.0))]
    NoTicket(#[source] io::Error),
    /// The server refuses the lease, or a request about it.
    #[error("the server refuses direct access: {message}")]
    Refused {
        /// The kind of reason.
        reason: Refusal,
        /// The reason, in words.
        message: String,
    },
    /// The server of the mount is gone. What the file knows of its blocks can still be
    /// read.
    #[error("the server of the mount has ended; mount the region again")]
    ServerGone,
    /// Another file has the name now.
    #[error("{} is another file since the server has ended", .0.display())]
    Replaced(PathBuf),
    /// The conversation with the server failed.
    #[error(transparent)]
    Control(ControlError),
    /// The region cannot be mapped or read.
    #[error(transparent)]
    Medium(#[from] PmemError),
    /// The mount cannot do what cannot be done directly.
    #[error("cannot read or write through the mount: {0}")]
    Mount(#[source] io::Error),
    /// The file was not opened for writing.
    #[error("the file was not opened for writing")]
    NotWritable,
    /// A page has failed, or its write-back. Bytes that were to be stored may be lost.
    #[error("the medium has failed under a page of the region")]
    Faulted,
    /// The server ended during an append through the mount. The bytes are in the file, or not, or
    /// a first part of them is.
    #[error(
        "the server of the mount ended during an append, whose outcome is not known; look at the \
         end of the file before you append the bytes again"
    )]
    AppendUnknown,
    /// The range is empty or exceeds the file.
    #[error("the range is empty or extends past the end of the file")]
    Range,
    /// Blocks of the file do not begin at pages of the region.
    #[error(
        "the file cannot be mapped: its blocks do not begin at pages of {unit} bytes; read_at and \
         write_at work"
    )]
    NotWholePages {
        /// Bytes of a page.
        unit: u64,
    },
    /// The file changes faster than its blocks can be asked for.
    #[error("the file changed again and again while it was mapped")]
    Unstable,
}

/// A result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOTTY) => " (it is not on a pramfs mount)",
        Some(libc::EOPNOTSUPP) => {
            " (mount it with the option direct=owner; a region on a device has none)"
        }
        Some(libc::EACCES) => " (the policy of the mount does not allow this user)",
        Some(libc::EBADF) => " (open it for reading, and for writing without O_APPEND)",
        Some(libc::EPERM) => " (the file is immutable or append-only)",
        _ => "",
    }
}

impl Error {
    /// Returns the errno that a system call would set.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Open { source, .. } | Error::NoTicket(source) | Error::Mount(source) => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Error::Refused { reason, .. } => match reason {
                Refusal::NotPermitted => libc::EACCES,
                Refusal::Ticket | Refusal::Ended => libc::ESTALE,
                Refusal::Full => libc::ENOSPC,
                Refusal::Busy => libc::EBUSY,
                Refusal::Immutable => libc::EPERM,
                Refusal::Unsupported | Refusal::Unknown | Refusal::Version => libc::EOPNOTSUPP,
                _ => libc::EIO,
            },
            Error::ServerGone => libc::ENOTCONN,
            Error::Replaced(_) => libc::ESTALE,
            Error::Control(ControlError::Timeout(_)) => libc::ETIMEDOUT,
            Error::Control(ControlError::Os { source, .. }) => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Error::Control(_) => libc::EIO,
            Error::Medium(error) => error.errno(),
            Error::NotWritable => libc::EBADF,
            Error::Faulted | Error::AppendUnknown => libc::EIO,
            Error::Range => libc::EINVAL,
            // As of a map by the library.
            Error::NotWholePages { .. } => libc::EOPNOTSUPP,
            Error::Unstable => libc::EAGAIN,
        }
    }

    /// Whether the server has ended, so that a later call may find the next one.
    pub fn is_server_gone(&self) -> bool {
        matches!(self, Error::ServerGone)
    }
}

impl From<ControlError> for Error {
    fn from(error: ControlError) -> Error {
        match error {
            ControlError::Refused { reason, message } => Error::Refused { reason, message },
            ControlError::Gone => Error::ServerGone,
            other => Error::Control(other),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = io::Error::from_raw_os_error(error.errno()).kind();
        io::Error::new(kind, error)
    }
}
