//! Internal crate of `pramfs`: the medium and its layout.
//!
//! It holds what the file system (`pramfs`) and its checker (`pramfs-fsck`) share, from
//! the memory upwards:
//!
//! | module | holds |
//! |---|---|
//! | [`pmem`] | access to persistent memory: regions, backends, flushes and fences, faults |
//! | [`media`] | the structures on the medium, byte for byte (`docs/format.md`) |
//! | [`journal`] | records, lanes, commit, replay (`docs/consistency.md`) |
//! | [`alloc`] | bitmaps of blocks and inodes |
//! | [`volume`] | a region with its geometry, journal and bitmaps; transactions |
//! | [`map`] | the block pointers of a file |
//! | [`htree`] | directories and attributes |
//! | [`mod@format`] | makes a file system (mkfs) |
//! | [`size`] | sizes as people write and read them |
//!
//! Its interface follows the needs of these two crates and changes without notice.
//! Programs use `pramfs`.

// The crate is internal: its documentation is for developers, who read private items too.
#![allow(rustdoc::private_intra_doc_links)]
#![cfg_attr(not(test), warn(unreachable_pub))]

#[cfg(not(target_endian = "little"))]
compile_error!("the medium is little-endian and pramfs has not been tested on big-endian hosts");

pub mod alloc;
mod damage;
pub mod error;
pub mod format;
pub mod grows;
pub mod htree;
pub mod journal;
pub mod map;
pub mod media;
pub mod pmem;
pub mod size;
pub mod sync;
pub mod types;
pub mod volume;

pub use error::{Error, Result};
pub use types::FileType;

/// Whether the hooks for tests are in this build: the feature `testing`.
pub const TESTING: bool = cfg!(feature = "testing");
