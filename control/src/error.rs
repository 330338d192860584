//! Errors of a control socket.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

use crate::message::{Refusal, VERSION};

/// Why a control socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A directory in which a user other than root could make names.
    #[error("{}: {why}; the control sockets of mounts need directories that belong to root and that no other user may write", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another server of the same region answers there.
    #[error("another process serves the region")]
    Taken,
    /// The other end is neither root nor the user of this process.
    #[error("the process at the other end of the control socket belongs to user {0}, not to root")]
    Peer(u32),
    /// The other end does not answer in time.
    #[error("the process that serves the region does not answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The other end ended the connection.
    #[error("the process that serves the region ended the connection")]
    Gone,
    /// The other end refuses the request, with a reason.
    #[error("the process that serves the region refuses: {message}")]
    Refused {
        /// The kind of reason.
        reason: Refusal,
        /// The reason, in words.
        message: String,
    },
    /// The other end speaks another version.
    #[error(
        "the process that serves the region speaks version {0} of the control protocol, this program version {VERSION}; unmount the region and mount it again"
    )]
    Version(u16),
    /// A malformed message.
    #[error("the process that serves the region sent a malformed answer: {0}")]
    Malformed(String),
    /// The other end has another region open.
    #[error("the process that answers for the region has a different region open")]
    OtherRegion,
    /// The system failed.
    #[error("{what}: {source}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl ControlError {
    /// For `map_err`.
    pub(crate) fn os(what: &'static str) -> impl Fn(Errno) -> ControlError {
        move |error| ControlError::Os {
            what,
            source: error.into(),
        }
    }
}
