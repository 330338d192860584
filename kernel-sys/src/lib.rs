//! System calls of Linux that no crate in use wraps.
#![deny(missing_docs)]

pub mod fuse;
pub mod fuse_ring;
pub mod label;
pub mod landlock;
pub mod memory;
pub mod processors;
pub mod scheduling;
pub mod seccomp;
pub mod shared_words;
pub mod socket;
