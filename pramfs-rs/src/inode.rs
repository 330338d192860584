//! The lower interface, for front ends: inode numbers instead of paths, a caller's
//! credentials with each operation, references that a kernel counts.
//!
//! [`Fs`] is a mounted file system; its operations are the methods of [`Engine`], which
//! open files and threads share. A program that wants files uses
//! [`FileSystem`](crate::FileSystem); [`FileSystem::inodes`](crate::FileSystem::inodes)
//! leads here.
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
    CloseError, Engine, Fs, Holding, InodeRef, InodeRefs, MemoryUse, Repeats, Taken, Writability,
};
pub use pramfs_medium::pmem::{Lent, RegionView};
pub use pramfs_medium::types::{Attr, Bno, DirEntry, Ino, Lsn, SetAttr, SetTime, Time};
