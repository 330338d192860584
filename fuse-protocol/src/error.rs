//! What is wrong with a request.

use crate::errno::Errno;
use crate::opcode::Opcode;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There is not even a header.
    #[error("the request has {0} bytes, and a header has 40")]
    NoHeader(usize),
    /// The header has another length than the request.
    #[error("the header says {header} bytes, and the request has {found}")]
    Length {
        /// What the header says.
        header: u32,
        /// What is there.
        found: usize,
    },
    /// The request is longer than any that was agreed upon.
    #[error("the request has {0} bytes, which is more than was negotiated")]
    TooLong(usize),
    /// A reply with this number would be taken for a notification.
    #[error("the request has the number 0")]
    NoNumber,
    /// The operation is unknown.
    #[error("the operation {0} is unknown")]
    UnknownOpcode(u32),
    /// The body ends too early.
    #[error("{0:?} ends within its {1}")]
    Truncated(Opcode, &'static str),
    /// Bytes follow the body.
    #[error("{0:?} has {1} bytes too many")]
    Trailing(Opcode, usize),
    /// A count or size in the body contradicts its length.
    #[error("{0:?} announces {1} and brings {2}")]
    Announced(Opcode, u64, u64),
    /// The request asks for more bytes than a reply can have.
    #[error("{0:?} asks for {1} bytes, which is more than was negotiated")]
    TooMuch(Opcode, u32),
    /// Something that must lie in one piece is scattered.
    #[error("{0:?} has its {1} in several pieces")]
    Scattered(Opcode, &'static str),
    /// An offset or size is past the end of every file.
    #[error("{0:?} reaches to {1} + {2}, which no file does")]
    Range(Opcode, u64, u64),
    /// A time has a second of nanoseconds or more.
    #[error("{0:?} has an invalid time")]
    Time(Opcode),
    /// A name is empty, `.`, `..`, or has a slash.
    #[error("{0:?} has an invalid name")]
    Name(Opcode),
    /// A name is too long.
    #[error("{0:?} has a name of {1} bytes")]
    NameTooLong(Opcode, usize),
    /// The operation has no extensions, or they were not negotiated.
    #[error("{0:?} has extensions")]
    UnexpectedExtension(Opcode),
    /// An extension is malformed, unknown, or there twice.
    #[error("{0:?} has a malformed extension: {1}")]
    Extension(Opcode, &'static str),
}

impl RequestError {
    /// The error that answers the request.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            RequestError::UnknownOpcode(_) => Errno::ENOSYS,
            RequestError::NameTooLong(..) => Errno::ENAMETOOLONG,
            RequestError::NoHeader(_) | RequestError::Length { .. } => Errno::EIO,
            _ => Errno::EINVAL,
        }
    }
}

/// A request that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {}: {error}", .unique.unwrap_or(0))]
pub struct Malformed {
    /// The number to answer to. `None`: nothing can or may be answered. (There is no
    /// header, or the operation has no reply.)
    pub unique: Option<u64>,
    /// What is wrong.
    pub error: RequestError,
}
