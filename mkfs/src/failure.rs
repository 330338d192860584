//! [`Failure`]: why a tool gave up, for a person, a script and the shell.

use std::path::Path;

use pramfs::pmem::PmemError;
use pramfs_contents::ProbeError;
pub(crate) use pramfs_contents::printable;

/// An error, in the forms that people, scripts and the shell need.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Exit status.
    pub status: u8,
    /// One word that stays the same between versions, for `--json`.
    pub reason: &'static str,
    /// A sentence that names the object, the cause, and the remedy.
    pub message: String,
    /// The existing contents that prevented the operation, for `--json`.
    pub found: Option<serde_json::Value>,
}

impl Failure {
    /// A failure with exit status 1.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Failure {
        Failure {
            status: 1,
            reason,
            message: message.into(),
            found: None,
        }
    }

    /// A failure that was already reported.
    pub fn silent() -> Failure {
        Failure::new("told", "")
    }

    /// Wrong usage of options or arguments.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new("usage", message)
    }

    /// A system call on `path` failed: "cannot read PATH: why".
    pub fn os(what: &str, path: impl AsRef<Path>, e: impl Into<std::io::Error>) -> Failure {
        Failure::new(
            "os",
            format!(
                "{what} {}: {}",
                shown(path.as_ref()),
                strip_os_code(&e.into())
            ),
        )
    }

    /// An error of the library about `object`.
    pub fn about(object: impl std::fmt::Display, e: pramfs::Error) -> Failure {
        match e {
            // These name the region already.
            pramfs::Error::Pmem(e) => e.into(),
            e => Failure {
                message: format!("{object}: {e}"),
                ..Failure::from(e)
            },
        }
    }
}

impl From<pramfs::Error> for Failure {
    fn from(e: pramfs::Error) -> Failure {
        let reason = match &e {
            pramfs::Error::Pmem(e) => return Failure::new(reason_of(e), e.to_string()),
            pramfs::Error::NotMountable(_) => "not-mountable",
            pramfs::Error::Corrupt { .. } => "damaged",
            pramfs::Error::NotFound => "not-found",
            pramfs::Error::NoSpace(_) => "no-space",
            pramfs::Error::Exists => "exists",
            pramfs::Error::Busy(_) => "in-use",
            _ => "failed",
        };
        Failure::new(reason, e.to_string())
    }
}

impl From<PmemError> for Failure {
    fn from(e: PmemError) -> Failure {
        Failure::new(reason_of(&e), e.to_string())
    }
}

impl From<ProbeError> for Failure {
    fn from(e: ProbeError) -> Failure {
        match e {
            ProbeError::Os { what, path, source } => Failure::os(what, path, source),
            e => Failure::new("os", e.to_string()),
        }
    }
}

fn reason_of(e: &PmemError) -> &'static str {
    match e.errno() {
        libc::EBUSY => "in-use",
        libc::ENOENT => "not-found",
        libc::EACCES | libc::EPERM => "permission",
        libc::EROFS => "read-only",
        libc::EISDIR | libc::ENODEV => "not-a-region",
        libc::EINVAL => "size",
        libc::ENOSPC => "no-space",
        _ => "os",
    }
}

/// Returns a path with its control characters escaped, for a message.
pub(crate) fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// "No such file or directory", without "(os error 2)".
fn strip_os_code(e: &std::io::Error) -> String {
    let text = e.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}
