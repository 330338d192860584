//! The identity of a region, by kernel numbers.

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags};

use crate::error::ControlError;

/// A region, by numbers that only the kernel assigns: device and inode number of a file, or
/// the device number of a device, whatever the name of its node.
///
/// ```
/// use pramfs_control::Identity;
/// let null = Identity::of_path("/dev/null".as_ref())?;
/// assert_eq!(null.to_string(), "char-1-3");
/// assert_ne!(null, Identity::of_path("/dev/zero".as_ref())?);
/// # Ok::<(), pramfs_control::ControlError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Identity {
    /// A file.
    File {
        /// Device of its file system: major and minor number.
        device: (u32, u32),
        /// Its inode.
        inode: u64,
    },
    /// A block device.
    Block(u32, u32),
    /// A character device.
    Char(u32, u32),
}

/// Sends no request to a server of the file system that contains the region: these numbers
/// never change.
const QUIETLY: AtFlags = AtFlags::STATX_DONT_SYNC;
const WANTED: StatxFlags = StatxFlags::TYPE.union(StatxFlags::INO);

impl Identity {
    /// Returns the identity of an open descriptor.
    ///
    /// # Errors
    /// Errors of statx(2).
    pub fn of(fd: impl AsFd) -> Result<Identity, ControlError> {
        let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH | QUIETLY, WANTED);
        stat.map(|stat| Identity::from_stat(&stat))
            .map_err(ControlError::os("cannot stat the region"))
    }

    /// Returns the identity of the file or device at a path.
    ///
    /// # Errors
    /// Errors of statx(2).
    pub fn of_path(path: &Path) -> Result<Identity, ControlError> {
        let stat = rustix::fs::statx(CWD, path, QUIETLY, WANTED);
        stat.map(|stat| Identity::from_stat(&stat))
            .map_err(ControlError::os("cannot stat the region"))
    }

    fn from_stat(stat: &Statx) -> Identity {
        match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::BlockDevice => Identity::Block(stat.stx_rdev_major, stat.stx_rdev_minor),
            FileType::CharacterDevice => Identity::Char(stat.stx_rdev_major, stat.stx_rdev_minor),
            _ => Identity::File {
                device: (stat.stx_dev_major, stat.stx_dev_minor),
                inode: stat.stx_ino,
            },
        }
    }

    /// Returns the name of its socket. The name is unique: the kinds differ in the first
    /// word, and the rest are numbers separated by dashes.
    pub fn socket_name(&self) -> String {
        format!("{self}.sock")
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::File {
                device: (major, minor),
                inode,
            } => write!(f, "file-{major}-{minor}-{inode}"),
            Identity::Block(major, minor) => write!(f, "block-{major}-{minor}"),
            Identity::Char(major, minor) => write!(f, "char-{major}-{minor}"),
        }
    }
}
