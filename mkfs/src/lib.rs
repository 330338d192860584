//! The tools of pramfs: one program with several names.
//!
//! `mkfs.pramfs` (and any `mkfs.*`, as mkfs(8) calls it) makes a file system.
//! `fsck.pramfs` (and any `fsck.*`) checks one. `pramfs` inspects paths and regions,
//! and accesses files without a mount. This module picks the tool by `args[0]`, and
//! turns a [`Failure`] into a message and an exit status.
//!
//! Not here: the structures of the medium. The tools access only those that
//! `pramfs_medium::media` describes, and only through the library.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(unreachable_pub))]

#[cfg(feature = "save")]
mod archive;
mod busy;
pub mod commands;
mod failure;
mod files;
pub mod fsck;
mod image;
pub mod mkfs;
mod moment;
mod open;
mod output;
mod signals;
mod tree;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

pub use failure::Failure;

/// Runs the tool that `args[0]` names, or `default` if it names none.
pub fn run(default: &str, args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let called = args
        .first()
        .and_then(|a| Path::new(a).file_name())
        .and_then(|n| n.to_str())
        .unwrap_or(default);
    let tool = match called {
        "pramfs" => "pramfs",
        // mkfs(8) calls `mkfs.TYPE`: mkfs.pramfs, mkfs.fuse.pramfs. Cargo cannot
        // build a binary with a dot in its name.
        name if name.starts_with("mkfs.") || name.starts_with("mkfs-") => "mkfs.pramfs",
        name if name.starts_with("fsck.") || name.starts_with("fsck-") => "fsck.pramfs",
        _ => default,
    };
    match tool {
        "pramfs" => commands::main(args),
        "fsck.pramfs" => fsck::main(args),
        _ => mkfs::main(args),
    }
}
