//! `fsck.pramfs`, and the same program under its other names.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    pramfs_tools::run("fsck.pramfs", std::env::args_os())
}
