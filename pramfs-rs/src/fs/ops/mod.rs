//! The POSIX operations: methods of [`Engine`](super::Engine), one file for each family.
//!
//! Invariant: each operation runs in the frame of [`Engine::op`](super::Engine), takes its
//! locks in the lock order, and has changed nothing if it fails before its commit. Steps
//! that several operations share are in `steps`, the credentials rules in `policy`.

mod ahead;
mod append;
mod atomic;
mod copy;
#[cfg(test)]
mod copy_tests;
pub(crate) mod create;
mod defaults;
mod extents;
mod fallocate;
#[cfg(test)]
mod fence_tests;
#[cfg(test)]
mod file_model_tests;
#[cfg(test)]
mod file_tests;
pub(crate) mod free_space;
pub(crate) mod gather;
#[cfg(test)]
mod gather_tests;
pub(crate) mod grow;
mod label;
pub(crate) mod leaf_use;
pub(crate) mod lease;
mod link;
mod lookup;
pub(crate) mod lost;
mod ranges;
mod read;
pub(crate) mod readdir;
mod rename;
mod seek;
mod setattr;
pub(crate) mod state;
pub(crate) mod statfs;
mod strip;
mod symlink;
mod sync;
mod trim;
#[cfg(test)]
mod truncate_tests;
mod unlink;
mod unnamed;
pub(crate) mod vacate;
#[cfg(test)]
mod vacate_tests;
pub(crate) mod verify;
mod window;
mod write;
pub(crate) mod write_source;
mod writer;
pub(crate) mod xattr;
