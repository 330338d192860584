//! Test suites and programs of others on a mount: found, run with a time limit,
//! judged, and their closing line printed where it is seen.
//!
//! What is not installed is a loud skip on a developer's machine and a failure
//! where `CI` is set; `scripts/deps.sh --suites --programs` installs it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::mounted::{Mounted, available, program};
use crate::skip::skipped;

pub use crate::skip::say;

const MIB: u64 = 1 << 20;

/// The value of a variable that sets how long a test is.
pub fn number(variable: &str, otherwise: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|e| panic!("{variable}={text}: {e}")),
        Err(_) => otherwise,
    }
}

/// Says that `test` is not run for want of `what`; fails where it must run.
///
/// # Panics
/// Where `CI` is set.
pub fn missing(test: &str, what: &str) {
    assert!(
        std::env::var_os("CI").is_none(),
        "{test}: {what}; type: scripts/deps.sh --suites --programs"
    );
    skipped(format_args!(
        "{what}: {test} has not been run (scripts/deps.sh --suites --programs installs it)"
    ));
}

/// Where a program is: among the suites that `scripts/deps.sh --suites` has
/// built, in the path, or in the directories of a superuser's path.
pub fn find(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let suites = test.ancestors().nth(3).map(|dir| dir.join("suites/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin"].map(PathBuf::from);
    suites
        .into_iter()
        .chain(std::env::split_paths(&path))
        .chain(usual)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// A fresh file system on a mount, if it can be mounted here and all these
/// programs are there; `None` has been said loudly.
///
/// # Panics
/// Where `CI` is set and a program is missing.
pub fn mount_for(test: &str, programs: &[&str], mib: u64, options: &str) -> Option<Mounted> {
    if !available(test) {
        return None;
    }
    for name in programs {
        if find(name).is_none() {
            missing(test, &format!("no program {name}"));
            return None;
        }
    }
    Some(Mounted::new(&program(), mib * MIB, options))
}

/// Unmounts and lets `fsck.pramfs -n` compare everything with everything.
///
/// # Panics
/// Where it is not clean.
pub fn unmount_and_check(mount: &Mounted) -> String {
    if mount.is_mounted() {
        mount.unmount();
    }
    let fsck = program().with_file_name("fsck-pramfs");
    let out = Run::new("fsck.pramfs", &fsck, Duration::from_secs(120))
        .arg("-n")
        .arg(mount.region())
        .output();
    let text = out.text.trim().to_owned();
    assert!(out.status.success(), "fsck.pramfs: {}: {text}", out.status);
    assert!(text.contains("clean"), "{text}");
    text.rsplit_once(": clean")
        .map_or_else(|| text.clone(), |(_, rest)| format!("clean{rest}"))
}

/// What a program has ended with and said.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Both of its streams, in order.
    pub text: String,
    /// How long it took.
    pub took: Duration,
}

/// A program that is run to its end, or to that of its time.
#[derive(Debug)]
pub struct Run {
    name: String,
    /// The command, for what has no method here.
    pub command: Command,
    limit: Duration,
}

impl Run {
    /// A run of `program`, called `name` in messages, for at most `limit`.
    pub fn new(name: &str, program: impl AsRef<OsStr>, limit: Duration) -> Run {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).process_group(0);
        Run {
            name: name.to_owned(),
            command,
            limit,
        }
    }

    /// A run of a shell with `script`, whose steps must all succeed; `$1`, `$2`
    /// and so on are the arguments that follow.
    pub fn script(name: &str, script: &str, limit: Duration) -> Run {
        let mut run = Run::new(name, "/bin/bash", limit);
        run.command
            .args(["-euo", "pipefail", "-c", script])
            .arg(name);
        run
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Run {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Run {
        self.command.args(args);
        self
    }

    /// The directory that it runs in.
    #[must_use]
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Run {
        self.command.current_dir(dir);
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Run {
        self.command.env(name, value);
        self
    }

    /// Runs it.
    ///
    /// # Panics
    /// Where it cannot be started, or does not end in time; then it and all
    /// that it has started is killed.
    pub fn output(mut self) -> Output {
        let mut log = tempfile::tempfile().expect("a file for what the program says");
        let stream = || log.try_clone().expect("a descriptor");
        self.command.stdout(stream()).stderr(stream());
        let started = Instant::now();
        let spawned = self.command.spawn();
        let mut child = spawned.unwrap_or_else(|e| panic!("{}: cannot start: {e}", self.name));
        let status = loop {
            if let Some(status) = child.try_wait().expect("wait") {
                break Some(status);
            }
            if started.elapsed() > self.limit {
                break None;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        if status.is_none() {
            if let Some(group) = Pid::from_raw(child.id() as i32) {
                // It may end by itself just now.
                let _gone = rustix::process::kill_process_group(group, Signal::KILL);
            }
            // A process in the middle of a request that is never answered
            // does not even die: it is not waited for.
            let _not_yet = child.try_wait();
        }
        let text = read_all(&mut log);
        let Some(status) = status else {
            panic!(
                "{}: not done after {:?} and killed; it said:\n{text}",
                self.name, self.limit
            );
        };
        Output {
            status,
            text,
            took: started.elapsed(),
        }
    }

    /// Runs it and requires that it succeeds.
    ///
    /// # Panics
    /// Where it does not, with what it said.
    pub fn succeed(self) -> Output {
        let name = self.name.clone();
        let out = self.output();
        assert!(
            out.status.success(),
            "{name}: {}; it said:\n{}",
            out.status,
            out.text
        );
        out
    }
}

fn read_all(file: &mut File) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.read_to_end(&mut bytes))
        .expect("what the program said");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The cases of a suite that do not pass here, each with its reason.
///
/// A file of lines `CASE: REASON`; `#` begins a comment.
#[derive(Debug)]
pub struct Expected {
    path: PathBuf,
    reasons: BTreeMap<String, String>,
}

impl Expected {
    /// Reads the list.
    ///
    /// # Panics
    /// Where it cannot be read, or a line has no reason.
    pub fn read(path: impl Into<PathBuf>) -> Expected {
        let path = path.into();
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let lines = text
            .lines()
            .filter(|l| !l.is_empty() && !l.starts_with('#'));
        let reasons = lines
            .map(|line| match line.split_once(": ") {
                Some((case, reason)) if !reason.trim().is_empty() => {
                    (case.to_owned(), reason.trim().to_owned())
                }
                _ => panic!("{}: no reason is given: {line}", path.display()),
            })
            .collect();
        Expected { path, reasons }
    }

    /// Holds the cases that did not pass against the list; what is wrong, if
    /// anything: a case that got worse, or one that got better and is listed.
    pub fn judge<S: AsRef<str>>(&self, not_passed: &[S]) -> Option<String> {
        let now: Vec<&str> = not_passed.iter().map(AsRef::as_ref).collect();
        let worse = now.iter().filter(|case| !self.reasons.contains_key(**case));
        let better = self
            .reasons
            .keys()
            .filter(|case| !now.contains(&case.as_str()));
        let mut wrong: Vec<String> = worse.map(|case| format!("does not pass: {case}")).collect();
        wrong.extend(better.map(|case| {
            format!(
                "passes, and is still listed in {}: {case}",
                self.path.display()
            )
        }));
        (!wrong.is_empty()).then(|| wrong.join("\n"))
    }

    /// How many cases are listed.
    pub fn len(&self) -> usize {
        self.reasons.len()
    }

    /// Whether no case is listed.
    pub fn is_empty(&self) -> bool {
        self.reasons.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn expected(text: &str) -> Expected {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Expected::read(file.path())
    }

    #[test]
    fn suite_reports_worse_and_better_cases() {
        let list = expected("# why\na::b: the kernel\n\nc: not yet\n");
        assert_eq!(list.len(), 2);
        assert_eq!(list.judge(&["c", "a::b"]), None);
        let worse = list.judge(&["a::b", "c", "d"]).unwrap();
        assert_eq!(worse, "does not pass: d");
        let better = list.judge(&["a::b"]).unwrap();
        assert!(
            better.starts_with("passes, and is still listed"),
            "{better}"
        );
        assert!(better.ends_with(": c"), "{better}");
    }

    #[test]
    #[should_panic(expected = "no reason is given")]
    fn suite_rejects_expected_failure_without_reason() {
        expected("a::b: \n");
    }

    #[test]
    fn suite_judges_exit_status_of_program() {
        let limit = Duration::from_secs(20);
        let out = Run::script("words", "echo $1; echo $2 >&2", limit)
            .args(["one", "two"])
            .succeed();
        assert_eq!(out.text, "one\ntwo\n");
        let out = Run::script("false", "false; true", limit).output();
        assert!(!out.status.success(), "each step counts");
    }

    #[test]
    #[should_panic(expected = "not done after")]
    fn suite_kills_hanging_program() {
        let limit = Duration::from_millis(50);
        let _never = Run::new("sleep", "sleep", limit).arg("60").output();
    }
}
