//! What the preload library knows and decides. It exports no symbols, so that its unit tests
//! run: those of `pramfs-preload` would replace the functions of the test program's C library.
//!
//! Invariant: nothing here makes a system call, takes a lock or waits. Only [`ViewList`]
//! allocates, and only in [`ViewList::reserve`].
//!
//! - [`entry`]: what is known about a descriptor, in one word.
//! - [`users`]: who uses a lease.
//! - [`blocks`]: which blocks of a chunk of memory are in use.
//! - [`views`]: which addresses show which files.
//! - [`maps`]: a line of `/proc/self/maps`.
//! - [`settings`]: what the environment asks for.
//! - [`words`]: whether the buffers of a vector end amid words.
#![forbid(unsafe_code)]

pub mod blocks;
pub mod entry;
pub mod maps;
pub mod settings;
pub mod users;
pub mod views;
pub mod words;

pub use views::{FileId, View, ViewList};
