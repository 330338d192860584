//! The one error of the public interface: an errno, and a sentence.
//!
//! Every error names its object. [`Error::errno`], one exhaustive match, assigns
//! the errno.

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
    /// The object is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The file was not opened for this access.
    #[error("bad file handle: {0}")]
    BadHandle(&'static str),
    /// The file ends before the requested bytes.
    #[error("the file ends at or before offset {0}, inside the requested range")]
    UnexpectedEnd(u64),
    /// Memory for this many bytes cannot be allocated.
    #[error("out of memory: {0} bytes")]
    OutOfMemory(u64),
    /// A time that cannot be represented; seconds since 1970-01-01 UTC.
    #[error("the time {0} seconds from 1970-01-01 UTC cannot be represented")]
    TimeOutOfRange(i64),
    /// The object is a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A name of more than 255 bytes, or a symlink target that is too long.
    #[error("the name is too long: {0} bytes, at most {1} are allowed")]
    NameTooLong(usize, usize),
    /// An argument is invalid, for this reason.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The object does not support the operation.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// Not permitted, whatever the caller's rights.
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// The caller lacks the right.
    #[error("permission denied: {0}")]
    AccessDenied(&'static str),
    /// No free block or inode.
    #[error("no space left in the region: {0}")]
    NoSpace(&'static str),
    /// Larger than any file may be.
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
    /// SEEK_HOLE or SEEK_DATA found nothing up to the end of the file.
    #[error("no data or hole after offset {0}")]
    NoSuchAddress(u64),
    /// Resolving a path takes too many symbolic links, or is caught in a loop.
    #[error("the path contains more than {0} symbolic links")]
    TooManySymlinks(u32),
    /// No inode has the number, or no longer.
    #[error("{0} no longer exists")]
    Stale(Ino),
    /// The file system is read-only, with the reason.
    #[error("the file system is read-only: {0}")]
    ReadOnly(&'static str),
    /// In use.
    #[error("busy: {0}")]
    Busy(String),
    /// Impossible contents of the medium.
    #[error("damaged: {object}: {what}; unmount it and run `fsck.pramfs` on its region")]
    Corrupt {
        /// The kind of damage, as fsck reports it.
        kind: Damage,
        /// The damaged inode, or the inode that owns what is damaged.
        ino: Option<Ino>,
        /// The object that is damaged.
        object: String,
        /// What is wrong with it.
        what: String,
    },
    /// An earlier repair could not recover bytes of a file, and they have not been
    /// written since.
    #[error(
        "lost: the bytes of {ino} at offset {offset} were lost; write the whole range to make it readable again"
    )]
    Lost {
        /// The file.
        ino: Ino,
        /// The first lost byte of the request.
        offset: u64,
    },
    /// Bytes of a file are not those that were written: the checksum of their block does not
    /// match.
    #[error(
        "wrong checksum: the bytes of {ino} at offset {offset}, block {block}, are not those that were written; write the whole block, or restore the file"
    )]
    WrongSum {
        /// The file.
        ino: Ino,
        /// The first byte of the block in the file.
        offset: u64,
        /// The block of the region.
        block: u64,
    },
    /// The medium failed under an access, or the engine has failed before.
    #[error("input/output error: {what}")]
    Io {
        /// What failed, and why.
        what: String,
        /// The error of the operating system, if a call of it failed.
        source: Option<io::Error>,
    },
    /// Bytes that are not UTF-8, where text was asked for.
    #[error("the file is not UTF-8")]
    NotUtf8,
    /// The region holds no file system of ours, or one that this version
    /// cannot use.
    #[error("cannot mount: {0}")]
    NotMountable(String),
    /// An error of the region.
    #[error(transparent)]
    Pmem(#[from] PmemError),
}

/// A damaged object, for [`Error::corrupt`].
#[derive(Debug)]
pub struct Object {
    ino: Option<Ino>,
    text: String,
}

impl From<&str> for Object {
    fn from(text: &str) -> Object {
        text.to_owned().into()
    }
}

impl From<String> for Object {
    fn from(text: String) -> Object {
        Object { ino: None, text }
    }
}

impl From<Ino> for Object {
    fn from(ino: Ino) -> Object {
        (ino, ino.to_string()).into()
    }
}

/// What it is of the inode: `("directory", ino)`.
impl From<(&str, Ino)> for Object {
    fn from((what, ino): (&str, Ino)) -> Object {
        (ino, format!("{what} {ino}")).into()
    }
}

/// An object that the inode owns, in words that name the inode too.
impl From<(Ino, String)> for Object {
    fn from((ino, text): (Ino, String)) -> Object {
        Object {
            ino: Some(ino),
            text,
        }
    }
}

impl Error {
    /// Damage to `object`: an [`Ino`], a text, or both.
    pub fn corrupt(kind: Damage, object: impl Into<Object>, what: impl Into<String>) -> Error {
        let Object { ino, text } = object.into();
        Error::Corrupt {
            kind,
            ino,
            object: text,
            what: what.into(),
        }
    }

    /// A failure of the medium or the engine.
    pub fn io(what: impl Into<String>) -> Error {
        Error::Io {
            what: what.into(),
            source: None,
        }
    }

    /// A failure of a call of the operating system.
    pub fn io_failed(what: &str, e: io::Error) -> Error {
        Error::Io {
            what: format!("{what}: {e}"),
            source: Some(e),
        }
    }

    /// The kind of damage, if the error is one.
    pub fn damage(&self) -> Option<Damage> {
        match self {
            Error::Corrupt { kind, .. } => Some(*kind),
            _ => None,
        }
    }

    /// The damaged inode, or the inode that owns what is damaged or lost.
    pub fn ino(&self) -> Option<Ino> {
        match self {
            Error::Corrupt { ino, .. } => *ino,
            Error::Lost { ino, .. } | Error::WrongSum { ino, .. } => Some(*ino),
            _ => None,
        }
    }

    /// Returns the errno that a system call would set.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound => libc::ENOENT,
            Error::Exists => libc::EEXIST,
            Error::NotDirectory => libc::ENOTDIR,
            Error::IsDirectory => libc::EISDIR,
            Error::BadHandle(_) => libc::EBADF,
            // read(2) has no errno for a file that another process has truncated: EIO.
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
            Error::Lost { .. } | Error::WrongSum { .. } | Error::Io { .. } => libc::EIO,
            Error::NotMountable(_) => libc::EINVAL,
            Error::NotUtf8 => libc::EILSEQ,
            Error::Pmem(e) => e.errno(),
        }
    }
}

impl Error {
    /// Returns the kind that `std::io` has for this error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Error::UnexpectedEnd(_) => io::ErrorKind::UnexpectedEof,
            Error::Corrupt { .. }
            | Error::Lost { .. }
            | Error::WrongSum { .. }
            | Error::NotUtf8 => io::ErrorKind::InvalidData,
            e => io::Error::from_raw_os_error(e.errno()).kind(),
        }
    }
}

/// The new error keeps this one as its source ([`get_ref`](io::Error::get_ref)), with its
/// message and its [`kind`](Error::kind). It has no raw OS error, because no system call
/// has failed.
///
/// ```
/// # use pramfs_medium as pramfs;
/// use pramfs::Error;
///
/// let e = std::io::Error::from(Error::NotFound);
/// assert_eq!(e.kind(), std::io::ErrorKind::NotFound);
/// let source = e.get_ref().unwrap().downcast_ref::<Error>();
/// assert!(matches!(source, Some(Error::NotFound)));
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
