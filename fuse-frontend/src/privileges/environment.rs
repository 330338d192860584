//! The environment of a process that serves a mount: what it reads, and nothing
//! else of its caller's.
//!
//! A loader, a C library and libpmem2 take orders from the environment
//! (`LD_PRELOAD`, `MALLOC_...`, `PMEM_NO_FLUSH`), and whoever may look at the
//! server finds in it what its caller had there, secrets as well.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// What the server reads: its log's filter and colours, and how much a panic
/// says.
pub const KEPT: [&str; 4] = [
    "PRAMFS_LOG",
    "NO_COLOR",
    "RUST_BACKTRACE",
    "RUST_LIB_BACKTRACE",
];

fn is_kept(name: &OsStr) -> bool {
    KEPT.iter().any(|kept| name == *kept)
}

/// Starts a command with what is kept of this process's environment.
pub fn clean(command: &mut Command) -> &mut Command {
    let kept = std::env::vars_os().filter(|(name, _)| is_kept(name));
    command.env_clear().envs(kept)
}

/// This program, by its path.
pub fn this_program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"))
}

/// Begins this program anew, in this very process, if its environment has more
/// than it should have. Returns only if it has not.
///
/// # Errors
/// Of execve(2).
pub fn begin_anew(args: &[OsString]) -> io::Result<()> {
    if std::env::vars_os().all(|(name, _)| is_kept(&name)) {
        return Ok(());
    }
    let mut command = Command::new(this_program());
    if let Some((name, rest)) = args.split_first() {
        command.arg0(name).args(rest);
    }
    Err(clean(&mut command).exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_gets_what_is_kept_and_nothing_else() {
        let mut command = Command::new("/usr/bin/env");
        let out = clean(&mut command).output().unwrap();
        assert!(out.status.success());
        for line in String::from_utf8(out.stdout).unwrap().lines() {
            let name = line.split('=').next().unwrap();
            assert!(is_kept(OsStr::new(name)), "{line}");
        }
        assert!(std::env::var_os("PATH").is_some() && !is_kept(OsStr::new("PATH")));
    }
}
