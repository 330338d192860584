//! The one error of the public interface: an errno, and a sentence.
//!
//! Every failure names its object. Which errno a failure becomes is decided
//! by one exhaustive match, [`Error::errno`].

use std::io;

pub use crate::damage::Damage;
use crate::pmem::PmemError;
use crate::types::Ino;

/// Result of an engine call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such name.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists.
    #[error("the name exists already")]
    Exists,
    /// A directory was asked for.
    #[error("not a directory")]
    NotDirectory,
    /// The file was not opened for this.
    #[error("bad file handle: {0}")]
    BadHandle(&'static str),
    /// The file ends before the bytes that were asked for.
    #[error("the file ends at or before offset {0}, within the range to be read")]
    UnexpectedEnd(u64),
    /// Memory for so many bytes cannot be had.
    #[error("out of memory: {0} bytes")]
    OutOfMemory(u64),
    /// A time that cannot be represented; seconds since 1970-01-01 UTC.
    #[error("the time {0} seconds from 1970-01-01 UTC cannot be represented")]
    TimeOutOfRange(i64),
    /// Anything but a directory was asked for.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A name of more than 255 bytes, or a symlink target that is too long.
    #[error("the name is too long: {0} bytes, the longest allowed has {1}")]
    NameTooLong(usize, usize),
    /// An argument that makes no sense, with the reason.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The object does not support the operation.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// Not permitted whatever the caller's rights.
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// No right.
    #[error("permission denied: {0}")]
    AccessDenied(&'static str),
    /// No free block or inode.
    #[error("no space left in the region: {0}")]
    NoSpace(&'static str),
    /// Larger than any file can be.
    #[error("file too large: byte {0} is past the largest offset")]
    TooLarge(u64),
    /// Too many links to one file.
    #[error("too many links to {0}")]
    TooManyLinks(Ino),
    /// No such extended attribute.
    #[error("no such extended attribute")]
    NoAttribute,
    /// The attribute does not fit the buffer or the medium.
    #[error("attribute too large: {0} bytes, at most {1}")]
    AttributeTooLarge(usize, usize),
    /// SEEK_HOLE or SEEK_DATA past the last byte.
    #[error("nothing of the kind after offset {0}")]
    NoSuchAddress(u64),
    /// A path that leads through too many symbolic links, or round in a circle.
    #[error("the path leads through more than {0} symbolic links")]
    TooManySymlinks(u32),
    /// The inode number names nothing (any more).
    #[error("{0} does not exist any more")]
    Stale(Ino),
    /// The file system is read-only, with the reason.
    #[error("the file system is read-only: {0}")]
    ReadOnly(&'static str),
    /// In use.
    #[error("busy: {0}")]
    Busy(String),
    /// Bytes on the medium that cannot be right.
    #[error("damaged: {object}: {what}; unmount it and run `fsck.pramfs` on its region")]
    Corrupt {
        /// The kind of damage, as fsck reports it.
        kind: Damage,
        /// The object that is hurt.
        object: String,
        /// What is wrong with it.
        what: String,
    },
    /// Bytes of a file that an earlier repair could not bring back, and that
    /// nobody has written since.
    #[error(
        "lost: the bytes of {ino} at offset {offset} were lost; they read again once they are written whole"
    )]
    Lost {
        /// The file.
        ino: Ino,
        /// The first byte that was met.
        offset: u64,
    },
    /// The medium failed under an access, or the engine has failed before.
    #[error("input/output error: {0}")]
    Io(String),
    /// The region holds no file system of ours, or one that this version
    /// cannot use.
    #[error("cannot mount: {0}")]
    NotMountable(String),
    /// An error of the region.
    #[error(transparent)]
    Pmem(#[from] PmemError),
}

impl Error {
    /// Damage to `object`.
    pub fn corrupt(kind: Damage, object: impl Into<String>, what: impl Into<String>) -> Error {
        Error::Corrupt {
            kind,
            object: object.into(),
            what: what.into(),
        }
    }

    /// The kind of damage, if the error is one.
    pub fn damage(&self) -> Option<Damage> {
        match self {
            Error::Corrupt { kind, .. } => Some(*kind),
            _ => None,
        }
    }

    /// The inode that is damaged, where it is one: the object names it as
    /// [`Ino`] shows itself.
    pub fn ino(&self) -> Option<Ino> {
        let object = match self {
            Error::Corrupt { object, .. } => object,
            Error::Lost { ino, .. } => return Some(*ino),
            _ => return None,
        };
        let (_, rest) = object.split_once("inode ")?;
        let end = rest.find(|c: char| !c.is_ascii_digit());
        rest[..end.unwrap_or(rest.len())].parse().ok().map(Ino)
    }

    /// The errno that a system call would have set.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound => libc::ENOENT,
            Error::Exists => libc::EEXIST,
            Error::NotDirectory => libc::ENOTDIR,
            Error::IsDirectory => libc::EISDIR,
            Error::BadHandle(_) => libc::EBADF,
            // As read(2) of a file that another process has cut has no errno, EIO.
            Error::UnexpectedEnd(_) => libc::EIO,
            Error::OutOfMemory(_) => libc::ENOMEM,
            Error::TimeOutOfRange(_) => libc::EOVERFLOW,
            Error::NotEmpty => libc::ENOTEMPTY,
            Error::NameTooLong(..) => libc::ENAMETOOLONG,
            Error::Invalid(_) => libc::EINVAL,
            Error::NotSupported(_) => libc::EOPNOTSUPP,
            Error::NotPermitted(_) => libc::EPERM,
            Error::AccessDenied(_) => libc::EACCES,
            Error::NoSpace(_) => libc::ENOSPC,
            Error::TooLarge(_) => libc::EFBIG,
            Error::TooManyLinks(_) => libc::EMLINK,
            Error::NoAttribute => libc::ENODATA,
            Error::AttributeTooLarge(..) => libc::E2BIG,
            Error::NoSuchAddress(_) => libc::ENXIO,
            Error::TooManySymlinks(_) => libc::ELOOP,
            Error::Stale(_) => libc::ESTALE,
            Error::ReadOnly(_) => libc::EROFS,
            Error::Busy(_) => libc::EBUSY,
            Error::Corrupt { .. } => libc::EUCLEAN,
            Error::Lost { .. } | Error::Io(_) => libc::EIO,
            Error::NotMountable(_) => libc::EINVAL,
            Error::Pmem(e) => e.errno(),
        }
    }
}

impl Error {
    /// The kind that `std::io` has for this error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Error::UnexpectedEnd(_) => io::ErrorKind::UnexpectedEof,
            e => io::Error::from_raw_os_error(e.errno()).kind(),
        }
    }
}

/// The error keeps this one as its source ([`get_ref`](io::Error::get_ref)), with its
/// message and its [`kind`](Error::kind). It has no raw OS error: no call of the system
/// has failed.
///
/// ```
/// let e = std::io::Error::from(pramfs_medium::Error::NotFound);
/// assert_eq!(e.kind(), std::io::ErrorKind::NotFound);
/// let source = e.get_ref().unwrap().downcast_ref::<pramfs_medium::Error>();
/// assert!(matches!(source, Some(pramfs_medium::Error::NotFound)));
/// ```
impl From<Error> for io::Error {
    fn from(e: Error) -> io::Error {
        io::Error::new(e.kind(), e)
    }
}

impl From<PmemError> for io::Error {
    fn from(e: PmemError) -> io::Error {
        Error::from(e).into()
    }
}
