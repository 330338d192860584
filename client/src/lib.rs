//! Direct access to files of a mounted pramfs file system.
//!
//! A [`File`] is opened through the mount, so the kernel checks the permissions. The server
//! of the mount then grants a *lease*: a promise that the blocks of the file stay its
//! blocks. With it, [`File::read_at`], [`File::write_at`] and [`File::map`] access the medium
//! itself, without a system call. Every other program goes on using the mount.
//!
//! ```no_run
//! use pramfs_client::{Access, File};
//!
//! let file = File::open("/mnt/data/table")?;
//! let mut buf = [0; 4096];
//! let n = file.read_at(&mut buf, 8192)?;
//! let view = file.map(0..file.len()?, Access::Read)?;
//! let first: u64 = view.load(0)?;
//! # Ok::<(), pramfs_client::Error>(())
//! ```
//!
//! # What a reader sees
//! - Writes through the mount, at once. A copy is atomic by aligned words of 8 bytes only: a
//!   concurrent `write` may be seen in part.
//! - Truncation and growth, at the next call.
//! - Stores through a `mmap` of the mount, once the kernel has written the page back.
//! - After `unlink` or a rename over it, the file stays as it is.
//!
//! # Writing
//! A file opened with [`OpenOptions::write`] can be stored to. Several processes may do so at
//! the same time, as in any shared mapping. Programs with the mount see each store at once;
//! while such a file is open, the kernel caches nothing of it, and programs cannot map it
//! with `MAP_SHARED`. The mtime of the file follows the stores.
//!
//! The process can write all of the region, so a stray store of it can damage the file system.
//! [`OpenOptions::protect`] keeps such stores out.
//!
//! # The end of the server
//! A file goes on reading, and storing to, what it knows after the death of the server. It opens the file
//! again, by its path, when the next server has changed something. Nothing that it could
//! read is ever given to another file before it has ended.
//!
//! # Threads and forks
//! [`File`] and [`MappedFile`] are [`Send`] and [`Sync`]; all methods take `&self`. In a forked
//! child every call fails with EIO; the child opens the file anew.
//!
//! # Appending
//! [`File::append`] stores past the end of the file, and [`File::write_at`] where it reaches past
//! the end: without a system call, in blocks that the server has allocated ahead. That needs the
//! only lease of the file, and nobody else may have it open. Otherwise appends go through the mount.
#![deny(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(unreachable_pub))]

mod blocks;
mod descriptors;
mod error;
mod file;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod growth;
mod handover;
mod known;
mod leased;
mod link;
mod mapped;
mod places;
mod snapshot;
mod through;

pub use descriptors::{give_up_inherited_descriptors, is_kept_descriptor, keep_descriptors_above};
pub use error::{Error, Result};
pub use file::{File, OpenOptions};
pub use known::Places;
pub use link::close_connections;
pub use mapped::MappedFile;
#[doc(hidden)]
pub use pramfs_control::Coherence;
pub use pramfs_medium::pmem::direct::{DirectFile, DirectView};
pub use pramfs_medium::pmem::{Atom, Protect};
pub use pramfs_medium::types::Access;

pramfs_medium::impl_direct!(File, MappedFile, File::len);
