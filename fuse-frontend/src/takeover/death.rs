//! Whether a process that was killed can still do anything.
//!
//! The end of a process comes late: its last thread gives all of its memory back first. So each
//! thread is looked at. One that has left the memory of the process executes none of its
//! instructions any more, and is in no system call.
//!
//! Invariant: nothing is read here that makes the caller own the memory for a moment. `stat` and
//! `status` of a thread that has it do: if the thread leaves it meanwhile, this process gives it
//! back instead, for as long as that takes.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

/// `PF_EXITING`: the thread has begun to exit, and does nothing else any more.
const EXITING: u64 = 4;

/// Whether no thread of a process can do anything any more, for certain.
pub(super) fn is_certain(pid: u32) -> bool {
    // Without it, the end of the process tells.
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    let mut is_any = false;
    for task in tasks {
        match task {
            Ok(task) if exits(&task.path()) => is_any = true,
            _ => return false,
        }
    }
    is_any
}

/// Whether a thread exits, or is gone.
fn exits(task: &Path) -> bool {
    match std::fs::read_link(task.join("exe")) {
        Ok(_) => false,
        // No program, since it has no memory.
        Err(error) if is_gone(&error) => true,
        // Another user may not ask for that, but for this.
        Err(_) => match std::fs::read_to_string(task.join("stat")) {
            Ok(stat) => fields(&stat).is_some_and(|(flags, _)| flags & EXITING != 0),
            Err(error) => is_gone(&error),
        },
    }
}

fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Returns how a process ends of which death [is certain](is_certain), if the kernel tells it to
/// this process, and it is not by exit(0).
pub(super) fn how(pid: u32) -> Option<ExitStatus> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut codes = tasks.flatten().filter_map(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        fields(&stat).map(|(_, code)| code)
    });
    let code = codes.find(|code| *code != 0)?;
    Some(ExitStatus::from_raw(code))
}

/// Returns flags and exit code of a thread, of its line in `/proc/PID/task/TID/stat`.
fn fields(stat: &str) -> Option<(u64, i32)> {
    // The name, in parentheses, may have any characters.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let flags = fields.nth(6)?.parse().ok()?;
    Some((flags, fields.nth(42)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn stat_is_read_behind_any_name() {
        let middle = vec!["0"; 42].join(" ");
        let line = format!("7 (a) b) 3 (c) X 1 7 7 0 -1 4194628 {middle} 9");
        assert_eq!(fields(&line), Some((4_194_628, 9)));
        assert_eq!(fields("7 (a"), None);
        assert_eq!(fields("7 (a) X 1"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(fields(&own).unwrap().0 & EXITING, 0);
    }

    /// Also of a process that nobody has awaited.
    #[test]
    fn killed_process_is_dead_and_living_one_is_not() {
        assert!(!is_certain(std::process::id()));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(!is_certain(child.id()));
        child.kill().unwrap();
        let begun = Instant::now();
        while !is_certain(child.id()) {
            assert!(begun.elapsed() < Duration::from_secs(10));
        }
        assert_eq!(how(child.id()).unwrap().signal(), Some(9));
        child.wait().unwrap();
    }
}
