//! The C interface of pramfs: `libpramfs.so`, `libpramfs.a` and `pramfs.h`.
//!
//! Each function converts its arguments, calls the Rust library, and converts the result:
//! 0 or a count, or a negative errno with a message. It holds no logic of a file system.
//! `docs/c-api.md` describes the interface; the comments here become those of the header,
//! which `PRAMFS_BLESS=1 cargo test -p pramfs-capi --test header` writes.
//!
//! # Rules
//! - Each function of the interface runs in `guard.rs`: no panic crosses the border.
//! - Each pointer passes through `args.rs`: NULL is an error, not a crash. The caller vouches
//!   for everything else about a pointer, as the head of the header says.
//! - A handle is a box. Handles of one file system share it (`fs.rs`); the last one unmounts.
#![deny(missing_docs)]
// The names of the C interface.
#![allow(non_camel_case_types)]

mod args;
mod dir;
mod error;
mod file;
mod format;
mod fs;
mod guard;
mod lease;
mod map;
mod names;
mod options;
mod stat;
mod version;
mod view;
mod xattr;
