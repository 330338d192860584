//! Who scrubs: the server of a mount, or this program.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pramfs::inode::{Fs, ScrubOptions, ScrubStatus};
use pramfs_medium::pmem::{ScrubRequest, ask_for_scrub_finding, ask_to_scrub};

use crate::failure::shown;
use crate::open::{self, Intent};
use crate::{Failure, busy};

/// Who scrubs.
pub(super) enum Source {
    /// The server of a mount, by a descriptor of its mount point.
    Mount(File, PathBuf),
    /// This program.
    Region(std::cell::RefCell<Option<Fs>>),
}

impl Source {
    /// Finds out who scrubs a place.
    ///
    /// # Errors
    /// There is no such place, or no file system in it, or it is in use.
    pub(super) fn of(place: &Path, only_looks: bool) -> Result<Source, Failure> {
        let meta =
            std::fs::metadata(place).map_err(|e| Failure::os("cannot find", shown(place), e))?;
        if let Some(root) = busy::open_place(place, meta.is_dir())? {
            return Ok(Source::Mount(root.directory.into(), root.at));
        }
        let intent = match only_looks {
            true => Intent::Read,
            false => Intent::Write,
        };
        let fs = open::fs(place, intent).or_else(|failure| match failure.reason {
            "permission" | "read-only" if intent == Intent::Write => {
                eprintln!(
                    "pramfs: warning: {}: cannot be written: the scrub leaves no record of its findings, and cannot be resumed",
                    shown(place)
                );
                open::fs(place, Intent::Read)
            }
            // Found before the scrub could begin.
            "damaged" => Err(Failure {
                status: super::FOUND,
                ..failure
            }),
            _ => Err(failure),
        })?;
        Ok(Source::Region(std::cell::RefCell::new(Some(fs))))
    }

    /// Whether a server does the work.
    pub(super) fn mounted(&self) -> bool {
        matches!(self, Source::Mount(..))
    }

    /// Asks, starts or cancels.
    ///
    /// # Errors
    /// The request was refused.
    pub(super) fn ask(&self, request: ScrubRequest) -> Result<ScrubStatus, Failure> {
        match self {
            Source::Mount(dir, on) => ask_to_scrub(dir.as_fd(), request).map_err(|e| {
                let (reason, why) = explain(e.raw_os_error());
                let why = why.map_or_else(|| e.to_string(), str::to_owned);
                Failure::new(reason, format!("{}: {why}", shown(on)))
            }),
            Source::Region(fs) => {
                let fs = fs.borrow();
                let fs = fs.as_ref().ok_or_else(Failure::silent)?;
                match request {
                    ScrubRequest::Status => {}
                    ScrubRequest::Start { resume, limit } => {
                        fs.start_scrub(ScrubOptions { limit, resume })?;
                    }
                    ScrubRequest::Cancel => {
                        return Err(Failure::new(
                            "not-mounted",
                            "no server scrubs this region: end the program that does, or name the mount point",
                        ));
                    }
                }
                Ok(fs.scrub_status())
            }
        }
    }

    /// Waits for the end, but not longer than `at_most`.
    ///
    /// # Errors
    /// The server does not answer.
    pub(super) fn wait(&self, at_most: Duration) -> Result<ScrubStatus, Failure> {
        match self {
            Source::Mount(..) => {
                let status = self.ask(ScrubRequest::Status)?;
                if status.running {
                    std::thread::sleep(at_most);
                }
                Ok(status)
            }
            Source::Region(fs) => {
                let fs = fs.borrow();
                let fs = fs.as_ref().ok_or_else(Failure::silent)?;
                Ok(fs.wait_for_scrub(at_most))
            }
        }
    }

    /// Returns a finding; `None` if it is not in memory any more.
    ///
    /// # Errors
    /// The server does not answer.
    pub(super) fn finding(&self, number: usize) -> Result<Option<String>, Failure> {
        match self {
            Source::Mount(dir, on) => ask_for_scrub_finding(dir.as_fd(), number as u64)
                .map_err(|e| Failure::os("cannot ask the server of", shown(on), e)),
            Source::Region(fs) => {
                let fs = fs.borrow();
                let found = fs.as_ref().and_then(|fs| fs.scrub_finding(number));
                Ok(found.map(|found| found.text))
            }
        }
    }

    /// Ends the work of this program on the region.
    ///
    /// # Errors
    /// Those of the unmount.
    pub(super) fn close(&self, place: &Path) -> Result<(), Failure> {
        match self {
            Source::Mount(..) => Ok(()),
            Source::Region(fs) => match fs.borrow_mut().take() {
                Some(fs) => open::close(place, fs),
                None => Ok(()),
            },
        }
    }
}

/// Returns the reason word and the sentence for an errno of the server. Its log has more.
fn explain(errno: Option<i32>) -> (&'static str, Option<&'static str>) {
    match errno {
        Some(libc::ENOTTY) => (
            "not-mounted",
            Some("is not on a pramfs mount, or the server is of a version that cannot scrub"),
        ),
        Some(libc::EPERM) => (
            "permission",
            Some("only root and the user who mounted it may scrub it"),
        ),
        Some(libc::EBUSY) => (
            "in-use",
            Some("a scrub runs already: --status shows how far it is, --cancel stops it"),
        ),
        Some(libc::ENOENT) => ("not-running", Some("no scrub runs")),
        Some(libc::EIO) => (
            "failed",
            Some("the file system has failed or is shut down; mount it again"),
        ),
        _ => ("failed", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_errno_of_scrub_has_a_sentence() {
        for errno in [
            libc::ENOTTY,
            libc::EPERM,
            libc::EBUSY,
            libc::ENOENT,
            libc::EIO,
        ] {
            assert!(explain(Some(errno)).1.is_some());
        }
        assert_eq!(explain(Some(libc::EINVAL)), ("failed", None));
    }
}
