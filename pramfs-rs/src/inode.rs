//! The lower-level interface, for front ends. It differs from
//! [`FileSystem`](crate::FileSystem) in three points:
//!
//! - Operations take inode numbers instead of paths.
//! - Operations take the credentials of the caller.
//! - A kernel can count the references to inodes.
//!
//! [`Fs`] is a mounted file system; its operations are the methods of [`Engine`], which
//! open files and threads share. A program that works with paths and files uses
//! [`FileSystem`](crate::FileSystem) instead;
//! [`FileSystem::inodes`](crate::FileSystem::inodes) returns its [`Fs`].
//!
//! ```
//! use pramfs::MountOptions;
//! use pramfs::format::{FormatOptions, format};
//! use pramfs::inode::{Credentials, Fs, Ino};
//! use pramfs::pmem::{HeapBackend, Region};
//!
//! let region = Region::new("example", HeapBackend::boxed(4 << 20));
//! format(&region, &FormatOptions::default())?;
//! let fs = Fs::open(region, MountOptions::default())?;
//! let file = fs.create(&Credentials::ROOT, Ino::ROOT, b"hello", 0o644)?;
//! fs.write(&Credentials::ROOT, file.ino, 0, b"world")?;
//! assert_eq!(fs.lookup(Ino::ROOT, b"hello")?.size, 5);
//! # Ok::<(), pramfs::Error>(())
//! ```

pub use crate::api::OpenIn;
pub use crate::credentials::{Credentials, Groups};
pub use crate::fs::{
    CloseError, Engine, FreeSpace, Fs, FsState, HeldLease, Holding, InodeRef, InodeRefs,
    KeptReferences, LeaseEvent, LeaseGrant, LeasedExtents, MemoryUse, RecordedError, Repeats,
    ScrubFinding, ScrubOptions, Snapshot, SnapshotEnd, Survivor, Taken, VerifiedData, Writability,
};
pub use pramfs_medium::journal::{Outcomes, RecordId};
pub use pramfs_medium::pmem::{
    Gathered, Lent, PointerBlock, RegionView, ScrubMarkStatus, ScrubStatus, Vacated,
};
pub use pramfs_medium::types::{Attr, Bno, DirEntry, Ino, LeaseMode, Lsn, SetAttr, SetTime, Time};
