//! The messages of a control socket. The table is in `docs/architecture.md`.
//!
//! One packet is one message: a JSON object with `version` and the fields of one variant.
//! Unknown fields are ignored, so that a later program can add fields without a new
//! version. An unknown variant is refused by name.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::ControlError;
use crate::lease::{Blocks, Coherence, Granted, LeaseKey, LeaseRow, Ticket, Window};
use crate::status::{Logging, SetLogging};

/// Version of the messages. Both sides refuse any other version.
pub const VERSION: u16 = 1;

/// Longest message, in bytes.
pub const MAX_MESSAGE: usize = 4096;

/// A request of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// What is mounted, and with which options. Descriptors in the answer: the region.
    Status,
    /// The connection to the kernel, to mount the file system once more.
    /// Descriptors in the answer: the region, the connection.
    Connection,
    /// A lease for the file of this ticket. Descriptor in the answer: that of the lease,
    /// which keeps it.
    Lease {
        /// From the ioctl on the open file.
        ticket: Ticket,
        /// What is to become of a lease to read.
        #[serde(default)]
        coherence: Coherence,
    },
    /// Changes what becomes of a lease to read.
    Cohere {
        /// The lease.
        lease: LeaseKey,
        /// What is to become of it.
        coherence: Coherence,
    },
    /// Blocks of a file that this connection has leased.
    Blocks {
        /// The lease.
        lease: LeaseKey,
        /// Offset in the file of the first block, bytes.
        offset: u64,
    },
    /// Fills holes of a file that this connection has leased to write.
    Fill {
        /// The lease.
        lease: LeaseKey,
        /// Offset in the file, bytes.
        offset: u64,
        /// Offset of the end.
        end: u64,
        /// Blocks past the end of the file as well, for a mapping that reaches so far.
        #[serde(default)]
        ahead: bool,
    },
    /// An append window for a file that this connection has leased to write. It closes the one
    /// before.
    Window {
        /// The lease.
        lease: LeaseKey,
        /// Bytes that it must have room for.
        bytes: u64,
        /// Opens of the file that are those of the client.
        #[serde(default)]
        opens: u32,
    },
    /// This connection has given up a lease: test whether it has ended.
    Release {
        /// The lease.
        lease: LeaseKey,
    },
    /// The leases of the mount, from a slot on.
    Leases {
        /// First slot to list.
        from: u32,
    },
    /// Ends the requests of a lease.
    Revoke {
        /// The lease.
        lease: LeaseKey,
    },
    /// How many requests of the kernel the mount has served.
    Requests,
    /// A snapshot of the file system. Descriptor in the answer: its socket, see
    /// [`snapshot`](crate::snapshot).
    Snapshot {
        /// Bytes of memory for blocks that programs change before they are read.
        memory: u64,
    },
    /// The state of the mount, a piece of the document. The first piece makes a new one.
    Report {
        /// Offset of the piece in the document, bytes.
        from: u64,
    },
    /// Sets what is logged.
    SetLogging(SetLogging),
}

impl Request {
    /// Whether only root and the user of the server may ask this.
    pub(crate) fn is_administrative(&self) -> bool {
        match self {
            Request::Status
            | Request::Connection
            | Request::Leases { .. }
            | Request::Revoke { .. }
            | Request::Requests
            | Request::Snapshot { .. }
            | Request::Report { .. }
            | Request::SetLogging(_) => true,
            Request::Lease { .. }
            | Request::Cohere { .. }
            | Request::Blocks { .. }
            | Request::Fill { .. }
            | Request::Window { .. }
            | Request::Release { .. } => false,
        }
    }
}

/// The answer of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// It serves a mount.
    Serves(Served),
    /// A lease is granted.
    Granted(Box<Granted>),
    /// Blocks of a leased file.
    Blocks(Blocks),
    /// A range is filled.
    Filled {
        /// Offset of the end of what is filled. It may be less than was asked for.
        end: u64,
    },
    /// An append window is open.
    Window(Window),
    /// Leases, in ascending order of their slots.
    Leases {
        /// As many as fit a message.
        leases: Vec<LeaseRow>,
        /// The slot to ask from next, if there are more.
        next: Option<u32>,
    },
    /// Requests of the kernel.
    Requests {
        /// How often each operation was asked for since the mount, by its name in the FUSE
        /// protocol. Those that were not are missing.
        counts: BTreeMap<String, u64>,
    },
    /// A piece of the state of the mount: a JSON document of a [`MountStatus`](crate::MountStatus).
    Report {
        /// The piece.
        text: String,
        /// Where the next one begins, if there is one.
        next: Option<u64>,
    },
    /// What is logged now.
    Logging(Logging),
    /// The request is done.
    Done,
    /// It refuses the request.
    Refused {
        /// The kind of reason.
        reason: Refusal,
        /// The reason, in words.
        message: String,
    },
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// The request has another version.
    Version,
    /// It is not a valid message.
    Malformed,
    /// The request is unknown.
    Unknown,
    /// The system failed.
    System,
    /// The user may not ask this, or the policy of the mount forbids it.
    NotPermitted,
    /// The ticket is unknown, used or expired.
    Ticket,
    /// The lease has ended, or belongs to another connection.
    Ended,
    /// There is no room, for another lease or for blocks.
    Full,
    /// The file is open through the page cache, which would not see direct stores; or another
    /// lease of it excludes an append window.
    Busy,
    /// The file is immutable or append-only.
    Immutable,
    /// This mount or region cannot be accessed directly.
    Unsupported,
    /// The file is damaged there, or the medium failed.
    Damaged,
    /// A reason unknown to this program.
    #[serde(other)]
    Other,
}

/// A live mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Device number of the mounted file system: major, minor.
    pub device: (u32, u32),
    /// User that mounted it.
    pub user_id: u32,
    /// It was mounted `ro`.
    pub read_only: bool,
    /// `nosuid`.
    pub nosuid: bool,
    /// `nodev`.
    pub nodev: bool,
    /// `noexec`.
    pub noexec: bool,
    /// `nosymfollow`.
    pub nosymfollow: bool,
}

/// Counts the requests of the kernel. The calls come from one thread.
pub trait RequestCounts: fmt::Debug + Send + Sync {
    /// Returns how often each operation was asked for since the mount, by its name in the FUSE
    /// protocol, without `FUSE_`.
    fn counts(&self) -> BTreeMap<String, u64>;
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u16,
    #[serde(flatten)]
    message: T,
}

#[derive(Deserialize)]
struct Head {
    version: u16,
}

/// Encodes a message.
pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, ControlError> {
    let bytes = serde_json::to_vec(&Versioned {
        version: VERSION,
        message,
    });
    match bytes {
        Ok(bytes) if bytes.len() <= MAX_MESSAGE => Ok(bytes),
        Ok(bytes) => Err(ControlError::Malformed(format!(
            "a message of {} bytes, more than {MAX_MESSAGE}",
            bytes.len()
        ))),
        Err(error) => Err(ControlError::Malformed(error.to_string())),
    }
}

/// Decodes a reply.
pub(crate) fn reply(bytes: &[u8]) -> Result<Reply, ControlError> {
    let malformed = |error: serde_json::Error| ControlError::Malformed(error.to_string());
    let head: Head = serde_json::from_slice(bytes).map_err(malformed)?;
    if head.version != VERSION {
        return Err(ControlError::Version(head.version));
    }
    let versioned: Versioned<Reply> = serde_json::from_slice(bytes).map_err(malformed)?;
    Ok(versioned.message)
}

/// Decodes a request, or returns the reply that refuses it.
pub(crate) fn request(bytes: &[u8]) -> Result<Request, Reply> {
    let refused = |reason, message| Reply::Refused { reason, message };
    let head: Head = serde_json::from_slice(bytes)
        .map_err(|error| refused(Refusal::Malformed, format!("malformed message: {error}")))?;
    if head.version != VERSION {
        let message = format!("unknown version {}, expected {VERSION}", head.version);
        return Err(refused(Refusal::Version, message));
    }
    let versioned: Versioned<Request> = serde_json::from_slice(bytes)
        .map_err(|error| refused(Refusal::Unknown, format!("unknown request: {error}")))?;
    Ok(versioned.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_about_the_whole_mount_are_administrative() {
        let lease = LeaseKey { slot: 1, id: 2 };
        let whole = [
            Request::Status,
            Request::Connection,
            Request::Leases { from: 0 },
            Request::Revoke { lease },
            Request::Requests,
            Request::Snapshot { memory: 1 << 20 },
        ];
        assert!(whole.iter().all(Request::is_administrative));
        let bytes = encode(&Request::Snapshot { memory: 77 }).unwrap();
        assert_eq!(request(&bytes), Ok(Request::Snapshot { memory: 77 }));
        assert!(!Request::Release { lease }.is_administrative());
    }
}
