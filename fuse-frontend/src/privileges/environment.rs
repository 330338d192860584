//! The environment of the server process: only the variables that it reads.
//!
//! The loader, the C library and libpmem2 obey variables (`LD_PRELOAD`, `MALLOC_...`,
//! `PMEM_NO_FLUSH`). A process that may inspect the server would also see the variables
//! of its caller, including secrets.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The variables that the server reads: log filter, whether standard error is the journal, log
/// colours, and backtraces of a panic.
pub const KEPT: [&str; 5] = [
    "PRAMFS_LOG",
    "JOURNAL_STREAM",
    "NO_COLOR",
    "RUST_BACKTRACE",
    "RUST_LIB_BACKTRACE",
];

fn is_kept(name: &OsStr) -> bool {
    KEPT.iter().any(|kept| name == *kept)
}

/// Reduces a command's environment to the kept variables of this process.
pub fn clean(command: &mut Command) -> &mut Command {
    let kept = std::env::vars_os().filter(|(name, _)| is_kept(name));
    command.env_clear().envs(kept)
}

/// Returns the path of this program.
pub fn this_program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"))
}

/// Re-executes this program in this process if its environment has other variables than
/// the kept ones and these. Otherwise returns.
///
/// # Errors
/// Errors of execve(2).
pub fn begin_anew(args: &[OsString], also: &[&str]) -> io::Result<()> {
    let is_also_kept = |name: &OsStr| also.iter().any(|kept| name == *kept);
    if std::env::vars_os().all(|(name, _)| is_kept(&name) || is_also_kept(&name)) {
        return Ok(());
    }
    let mut command = Command::new(this_program());
    if let Some((name, rest)) = args.split_first() {
        command.arg0(name).args(rest);
    }
    let others = std::env::vars_os().filter(|(name, _)| is_also_kept(name));
    Err(clean(&mut command).envs(others).exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_gets_only_kept_environment() {
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
