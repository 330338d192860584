//! How the program ends: the exit statuses of mount(8).

use std::fmt;
use std::process::ExitCode;

/// Exit statuses of mount(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Wrong invocation, or missing permission.
    Usage = 1,
    /// The system failed: no memory, cannot fork, no device.
    System = 2,
    /// A bug of this program.
    Bug = 4,
    /// Interrupted by the user.
    Interrupted = 8,
    /// The mount failed.
    Mount = 32,
}

impl Status {
    /// Returns the status with this number, as reported by a child process.
    pub fn from_code(code: u8) -> Option<Status> {
        [
            Status::Usage,
            Status::System,
            Status::Bug,
            Status::Interrupted,
            Status::Mount,
        ]
        .into_iter()
        .find(|status| *status as u8 == code)
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> ExitCode {
        ExitCode::from(status as u8)
    }
}

/// Why the program fails.
#[derive(Debug)]
pub struct Failure {
    /// Exit status.
    pub status: Status,
    /// What happened, to what, and what to do.
    pub message: String,
}

impl Failure {
    /// Wrong invocation.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure {
            status: Status::Usage,
            message: message.into(),
        }
    }

    /// The system failed.
    pub fn system(message: impl Into<String>) -> Failure {
        Failure {
            status: Status::System,
            message: message.into(),
        }
    }

    /// The mount failed.
    pub fn mount(message: impl Into<String>) -> Failure {
        Failure {
            status: Status::Mount,
            message: message.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
