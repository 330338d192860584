//! The POSIX operations: methods of [`Engine`](super::Engine), one file for each family.

mod append;
mod copy;
#[cfg(test)]
mod copy_tests;
pub(crate) mod create;
mod extents;
mod fallocate;
#[cfg(test)]
mod file_tests;
mod label;
mod link;
mod lookup;
pub(crate) mod lost;
mod read;
pub(crate) mod readdir;
mod rename;
mod seek;
mod setattr;
pub(crate) mod statfs;
mod strip;
mod symlink;
mod sync;
mod trim;
mod unlink;
mod write;
pub(crate) mod write_source;
mod writer;
mod xattr;
