//! pramfs: a crash-safe persistent-memory file system as a library.
//!
//! ```text
//! api  ->  fs  ->  htree, map  ->  volume  ->  journal, alloc  ->  media  ->  pmem
//! ```
//! An arrow never points up. See `docs/architecture.md` in the repository.
#![deny(missing_docs)]
// What is `pub` can be named by users of the crate: tests/public_items.rs relies on it.
#![cfg_attr(not(test), deny(unreachable_pub))]

#[cfg(not(target_endian = "little"))]
compile_error!("the medium is little-endian and pramfs has not been tested on big-endian hosts");

// Tests that are shared with other crates name this one.
#[cfg(test)]
extern crate self as pramfs;

mod alloc;
mod api;
mod credentials;
pub mod error;
pub mod format;
mod fs;
pub mod fsck;
mod htree;
pub mod inode;
pub mod journal;
mod map;
pub mod media;
pub mod pmem;
mod sync;
mod types;
mod volume;

pub use api::{
    Access, Atom, Cursor, DirEntry, File, FileSystem, FileTimes, MappedFile, Metadata, OpenOptions,
    ReadDir, Sent, UnmountError,
};
pub use error::{Error, Result};
pub use fs::{AtimePolicy, Clock, ErrorPolicy, MountOptions, RecoveryReport, SystemClock};
pub use types::{Fallocate, FileExtent, FileType, RenameFlags, SeekWhence, StatFs, XattrMode};

/// The version of this library. With the feature `testing`, which adds hooks that
/// break crash safety, it ends with `+testing`.
pub const VERSION: &str = if cfg!(feature = "testing") {
    concat!(env!("CARGO_PKG_VERSION"), "+testing")
} else {
    env!("CARGO_PKG_VERSION")
};
