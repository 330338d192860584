//! Mounting in the background.
//!
//! The process that is called starts a second one, waits until the mount is
//! live or has failed, says why, and ends with the right status. The second
//! is this program again, started afresh rather than forked: threads and
//! locks begin their life in the process that serves. It reports through its
//! standard output: a line `live` or `failed STATUS`, then text for the user;
//! then it lets go of the terminal.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use crate::cli::SERVE_IN_BACKGROUND;
use crate::exit::{Failure, Status};
use crate::privileges::environment;

const LIVE: &str = "live";
const FAILED: &str = "failed";

/// Starts the process that serves, with the arguments of this one (program
/// name first), and waits for its report.
///
/// # Errors
/// What the process reports, or what became of it.
pub fn start(args: &[OsString]) -> Result<String, Failure> {
    let (name, rest) = match args.split_first() {
        Some((name, rest)) => (name.clone(), rest),
        None => (OsString::from("mount.pramfs"), &[][..]),
    };
    // A lock or a pipe of the caller must not stay with the server for ever.
    if let Err(error) = pramfs_medium::pmem::inherit_standard_streams_only() {
        eprintln!("mount.pramfs: descriptors stay open in the process that serves: {error}");
    }
    let mut child = environment::clean(&mut Command::new(environment::this_program()))
        .arg0(name)
        .arg(SERVE_IN_BACKGROUND)
        .args(rest)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| {
            Failure::system(format!(
                "cannot start the process that serves the mount: {error}"
            ))
        })?;
    let mut report = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut report).map_err(|error| {
            Failure::system(format!(
                "cannot read the report of the mount's process: {error}"
            ))
        })?;
    }
    understand(&report, child)
}

fn understand(report: &[u8], mut child: Child) -> Result<String, Failure> {
    let report = String::from_utf8_lossy(report);
    let (head, text) = report.split_once('\n').unwrap_or((&report, ""));
    match head.split_once(' ') {
        None if head == LIVE => Ok(text.to_owned()),
        Some((FAILED, code)) => {
            let status = code
                .parse()
                .ok()
                .and_then(Status::from_code)
                .unwrap_or(Status::Bug);
            Err(Failure {
                status,
                message: text.trim_end().to_owned(),
            })
        }
        _ => {
            let ended = child
                .wait()
                .map_err(|error| Failure::system(error.to_string()))?;
            let how = match (ended.signal(), ended.code()) {
                (Some(libc::SIGINT | libc::SIGTERM), _) => {
                    return Err(Failure {
                        status: Status::Interrupted,
                        message: "interrupted".to_owned(),
                    });
                }
                (Some(signal), _) => format!("was killed by signal {signal}"),
                (None, code) => format!("ended with status {}", code.unwrap_or(-1)),
            };
            Err(Failure {
                status: Status::Mount,
                message: format!(
                    "the process that was to serve the mount {how} before it was live"
                ),
            })
        }
    }
}

/// Reports that the mount is live, with what the user should read, and lets go
/// of the terminal, the working directory and the standard streams.
///
/// # Errors
/// Of the system calls behind it; the report may have been sent.
pub fn report_live(text: &str) -> io::Result<()> {
    // Not the leader of a process group, as the parent's child never is; a
    // refusal leaves us in the terminal's session, and that is all.
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!("setsid: {error}");
    }
    // All of it, whatever fails: the mount is live, and nobody shall wait for
    // the end of a stream that it keeps.
    let moved = std::env::set_current_dir("/");
    let reported = report(&format!("{LIVE}\n{text}"));
    let let_go = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .and_then(|null| {
            rustix::stdio::dup2_stdout(&null)?;
            rustix::stdio::dup2_stderr(&null)?;
            Ok(())
        });
    reported.and(let_go).and(moved)
}

/// Reports that the mount has failed.
pub fn report_failure(failure: &Failure) {
    let text = format!("{FAILED} {}\n{}\n", failure.status as u8, failure.message);
    if let Err(error) = report(&text) {
        tracing::error!("{failure} (and nobody listens: {error})");
    }
}

fn report(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made of a report by a process that ends like this one.
    fn understood(report: &str, script: &str) -> Result<String, Failure> {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        understand(report.as_bytes(), child)
    }

    #[test]
    fn reports() {
        assert_eq!(understood("live\na notice\n", ":").unwrap(), "a notice\n");
        let failure = understood("failed 32\n/region: in use\n", ":").unwrap_err();
        assert_eq!(failure.status, Status::Mount);
        assert_eq!(failure.message, "/region: in use");
        let failure = understood("failed 77\nodd", ":").unwrap_err();
        assert_eq!(failure.status, Status::Bug);
    }

    #[test]
    fn a_server_that_dies_before_it_is_live() {
        for (report, script, status, says) in [
            ("", "exit 101", Status::Mount, "status 101"),
            ("liv", "kill -9 $$", Status::Mount, "signal 9"),
            ("", "kill -15 $$", Status::Interrupted, "interrupted"),
        ] {
            let failure = understood(report, script).unwrap_err();
            assert_eq!(failure.status, status, "{script}");
            assert!(failure.message.contains(says), "{}", failure.message);
        }
    }
}
