//! Errors below the file system.

/// An error of the mapped region itself.
#[derive(Debug, thiserror::Error)]
pub enum PmemError {
    /// An access left the region: the medium names a place that does not exist.
    #[error(
        "access of {len} bytes at offset {offset:#x} leaves the region of {region_len:#x} bytes"
    )]
    OutOfBounds {
        /// First byte of the access, from the start of the region.
        offset: u64,
        /// Bytes accessed.
        len: u64,
        /// Size of the region in bytes.
        region_len: u64,
    },
    /// An atomic access was not naturally aligned.
    #[error("access at offset {offset:#x} is not aligned to {align} bytes")]
    Misaligned {
        /// First byte of the access, from the start of the region.
        offset: u64,
        /// Required alignment in bytes.
        align: u64,
    },
    /// The medium failed under an earlier access, and its bytes are lost.
    #[error(
        "the medium failed at offset {offset:#x}, {len} bytes; the rest of the region can still be read"
    )]
    Faulted {
        /// First byte of the access, from the start of the region.
        offset: u64,
        /// Bytes accessed.
        len: u64,
    },
    /// The host of the region has no room for a page of the region: its file system or a
    /// quota on it is full.
    #[error(
        "the host has no room for {len} bytes at offset {offset:#x} of the region; make room on the file system that holds it"
    )]
    NoRoom {
        /// First byte of the range, from the start of the region.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
    },
    /// A system call failed.
    #[error("{what} {path}: {source}")]
    Os {
        /// The action that failed, as a phrase: "cannot open", "cannot map".
        what: &'static str,
        /// The object, usually a path.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The path cannot serve as a region.
    #[error("{path}: {why}")]
    Unusable {
        /// The path as given.
        path: String,
        /// The reason, and what to do.
        why: String,
        /// The matching errno.
        errno: i32,
    },
}

impl PmemError {
    /// Returns the errno that a system call would have set.
    pub fn errno(&self) -> i32 {
        match self {
            PmemError::OutOfBounds { .. } | PmemError::Misaligned { .. } => libc::EUCLEAN,
            PmemError::Faulted { .. } => libc::EIO,
            PmemError::NoRoom { .. } => libc::ENOSPC,
            PmemError::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            PmemError::Unusable { errno, .. } => *errno,
        }
    }
}
