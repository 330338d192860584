//! Mounting in the background.
//!
//! The command starts the server process and waits until the mount is live or has
//! failed. Then it prints the report and exits with the matching status. The server
//! is this program, executed anew rather than forked, so all its threads and locks
//! are its own. It reports on its standard output: a line `live` or `failed STATUS`,
//! then text for the user. After that it detaches from the terminal.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::cli::SERVE_IN_BACKGROUND;
use crate::exit::{Failure, Status};
use crate::privileges::environment;

const LIVE: &str = "live";
const FAILED: &str = "failed";

/// Writes to standard error. Its reader may have gone, which is no reason for a server to end.
pub fn tell(text: &str) {
    let _closed = std::io::stderr().write_all(text.as_bytes());
}

/// Starts the server process with the arguments of this one (program name first), and
/// waits for its report.
///
/// # Errors
/// The reported failure, or how the process ended without a report.
pub fn start(args: &[OsString]) -> Result<String, Failure> {
    let (name, rest) = match args.split_first() {
        Some((name, rest)) => (name.clone(), rest),
        None => (OsString::from("mount.pramfs"), &[][..]),
    };
    // The server must not keep a lock or a pipe of the caller open.
    if let Err(error) = pramfs_medium::pmem::inherit_standard_streams_only() {
        eprintln!("mount.pramfs: the server process keeps inherited descriptors open: {error}");
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
                "cannot start the server process of the mount: {error}"
            ))
        })?;
    let mut report = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut report).map_err(|error| {
            Failure::system(format!(
                "cannot read the report of the server process: {error}"
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
            Err(ended_early(ended))
        }
    }
}

/// Returns why there is no mount, if the server process has ended without a report.
pub(crate) fn ended_early(status: ExitStatus) -> Failure {
    if let Some(libc::SIGINT | libc::SIGTERM) = status.signal() {
        return Failure {
            status: Status::Interrupted,
            message: "interrupted".to_owned(),
        };
    }
    let how = how_it_ended(status);
    Failure::mount(format!(
        "the server process {how} before the mount was live"
    ))
}

/// Says how a process has ended.
pub(crate) fn how_it_ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, code) => format!("ended with status {}", code.unwrap_or(-1)),
    }
}

/// Reports that the mount is live, with a text for the user. Then releases the terminal,
/// the working directory and the standard streams.
///
/// # Errors
/// Errors of the system calls; the report may have been sent nevertheless.
pub fn report_live(text: &str) -> io::Result<()> {
    leave_session();
    // Every step runs even if one fails: the mount is live, and a reader must not wait
    // for the end of a stream that the server keeps open.
    let moved = std::env::set_current_dir("/");
    let reported = report(&format!("{LIVE}\n{text}"));
    let detached = release_streams();
    reported.and(detached).and(moved)
}

/// Releases the same without a report, for a server that another process reports for.
///
/// # Errors
/// Errors of the system calls.
pub fn detach() -> io::Result<()> {
    leave_session();
    let moved = std::env::set_current_dir("/");
    release_streams().and(moved)
}

/// Leaves the session of the terminal, so that its end and its keys do not reach this process.
pub fn leave_session() {
    // The child never leads a process group, so setsid works. If it fails, the server
    // only stays in the session of the terminal.
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!("setsid: {error}");
    }
}

fn release_streams() -> io::Result<()> {
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Reports that the mount has failed.
pub fn report_failure(failure: &Failure) {
    let text = format!("{FAILED} {}\n{}\n", failure.status as u8, failure.message);
    if let Err(error) = report(&text) {
        tracing::error!("{failure} (and the report to the parent failed: {error})");
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

    /// Evaluates a report from a process that runs `script`.
    fn understood(report: &str, script: &str) -> Result<String, Failure> {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        understand(report.as_bytes(), child)
    }

    #[test]
    fn server_report_is_understood() {
        assert_eq!(understood("live\na notice\n", ":").unwrap(), "a notice\n");
        let failure = understood("failed 32\n/region: in use\n", ":").unwrap_err();
        assert_eq!(failure.status, Status::Mount);
        assert_eq!(failure.message, "/region: in use");
        let failure = understood("failed 77\nodd", ":").unwrap_err();
        assert_eq!(failure.status, Status::Bug);
    }

    #[test]
    fn server_death_before_live_is_reported() {
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
