//! The tools of pramfs: one program that is called by several names.
//!
//! `mkfs.pramfs` (and any `mkfs.*`, as mkfs(8) calls it) makes a file system;
//! `fsck.pramfs` (and any `fsck.*`) checks one; `pramfs` looks at paths and regions and gets at files without a mount. This
//! module picks the tool by the name it was called by, and turns a [`Failure`]
//! into a message and an exit status.
//!
//! Left to others: everything about the medium is the library's business. No
//! tool reads or writes a structure of the medium that `pramfs_medium::media` does not
//! describe.
#![forbid(unsafe_code)]

mod busy;
pub mod commands;
mod failure;
pub mod fsck;
mod image;
pub mod mkfs;
mod open;
mod output;
mod size;
mod tree;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

pub use failure::Failure;

/// Runs the tool that `args[0]` names, or `default` where it names none.
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
        // make a name with a dot.
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
