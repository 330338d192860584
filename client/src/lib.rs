//! Direct access to files of a mounted pramfs file system.
//!
//! A [`File`] is opened through the mount, so the kernel checks the permissions. The server
//! of the mount then grants a *lease*: a promise that the blocks of the file stay its
//! blocks. With it, [`File::read_at`] and [`File::map`] read the medium itself, without a
//! system call. Every other program goes on using the mount, and sees no difference.
//!
//! ```no_run
//! let file = pramfs_client::File::open("/mnt/data/table")?;
//! let mut buf = [0; 4096];
//! let n = file.read_at(&mut buf, 8192)?;
//! let view = file.map(0..file.len()?)?;
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
//! # The end of the server
//! A file goes on reading what it knows after the death of the server. It opens the file
//! again, by its path, when the next server has changed something. Nothing that it could
//! read is ever given to another file before it has ended.
//!
//! # Threads and forks
//! [`File`] and [`View`] are [`Send`] and [`Sync`]; all methods take `&self`. In a forked
//! child every call fails with EIO; the child opens the file anew.
//!
//! Not here: writing. Use the mount, or link `pramfs` if the program owns the region.
#![deny(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(unreachable_pub))]

mod blocks;
mod error;
mod file;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod leased;
mod link;
mod places;
mod snapshot;
mod view;

pub use error::{Error, Result};
pub use file::{File, OpenOptions};
pub use pramfs_medium::pmem::Atom;
pub use view::View;
