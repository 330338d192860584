//! [`UnmountError`]: why an unmount failed.

use std::fmt;

use super::file_system::FileSystem;
use pramfs_medium::error::Error;

/// Why [`FileSystem::unmount`] did nothing, or did not end cleanly.
pub enum UnmountError {
    /// Files, mappings or directories are open. Nothing has changed, and the file
    /// system stays mounted.
    InUse {
        /// The file system, for a later unmount.
        fs: Box<FileSystem>,
        /// Number of open [`File`](crate::File)s, [`MappedFile`](crate::MappedFile)s,
        /// [`ReadDir`](crate::ReadDir)s and [`InodeRef`](crate::inode::InodeRef)s.
        handles: usize,
    },
    /// The medium failed. The file system is unmounted, and the next mount recovers it.
    Failed(Error),
}

impl UnmountError {
    /// Returns the errno that umount(2) would set.
    pub fn errno(&self) -> i32 {
        match self {
            UnmountError::InUse { .. } => libc::EBUSY,
            UnmountError::Failed(e) => e.errno(),
        }
    }
}

impl fmt::Debug for UnmountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnmountError::InUse { handles, .. } => f
                .debug_struct("InUse")
                .field("handles", handles)
                .finish_non_exhaustive(),
            UnmountError::Failed(e) => f.debug_tuple("Failed").field(e).finish(),
        }
    }
}

impl fmt::Display for UnmountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnmountError::InUse { fs, handles } => write!(
                f,
                "the file system on {} is in use: {handles} files, mappings or directories are \
                 open; drop them first, or call unmount_now",
                fs.inodes().region().info().name
            ),
            UnmountError::Failed(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for UnmountError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            UnmountError::InUse { .. } => None,
            UnmountError::Failed(e) => Some(e),
        }
    }
}

/// Drops the file system of [`UnmountError::InUse`], which unmounts it like
/// [`FileSystem::unmount_now`].
impl From<UnmountError> for Error {
    fn from(e: UnmountError) -> Error {
        let what = e.to_string();
        match e {
            UnmountError::InUse { .. } => Error::Busy(what),
            UnmountError::Failed(e) => e,
        }
    }
}
