//! [`Missed`]: what a walk over files did not examine, and why.
//!
//! Invariant: none of it ends the walk. A file that could not be examined is named and makes the
//! exit status 1, as find(1) does. One that was removed meanwhile is named, and nothing is lost
//! with it. Other file systems are only counted.

use pramfs::FileType;
use pramfs::inode::Ino;
use serde::Serialize;

use crate::files::{Files, OTHER_FILE_SYSTEM};
use crate::tree::{self, Follow};
use crate::{Failure, output};

/// Files that are named for each reason.
const NAMED: usize = 10;
/// Reasons that hold for every file.
const FOR_ALL: [&str; 3] = ["read-only", "permission", "not-mounted"];

/// What a walk did not examine.
#[derive(Debug, Default, Serialize)]
pub(super) struct Missed {
    /// Files and directories that could not be examined.
    not_examined: u64,
    /// Files and directories that were removed or replaced during the walk.
    gone: u64,
    /// Mount points of other file systems.
    other_file_systems: u64,
    /// Why, for some of them.
    #[serde(skip)]
    failures: Vec<String>,
    #[serde(skip)]
    gone_paths: Vec<String>,
}

impl Missed {
    /// Notes a file or directory that was not examined. `known` is what its directory said of it.
    ///
    /// # Errors
    /// `failure`, if no other file can be examined either.
    pub(super) fn add(
        &mut self,
        files: &Files,
        path: &[u8],
        known: Option<(Ino, FileType)>,
        failure: Failure,
    ) -> Result<(), Failure> {
        if FOR_ALL.contains(&failure.reason) || files.is_disconnected() {
            return Err(failure);
        }
        if failure.reason == OTHER_FILE_SYSTEM {
            self.other_file_systems += 1;
        } else if has_gone(files, path, known, &failure) {
            self.gone += 1;
            if self.gone_paths.len() < NAMED {
                self.gone_paths.push(tree::name(path));
            }
        } else {
            self.not_examined += 1;
            if self.failures.len() < NAMED {
                self.failures.push(failure.message);
            }
        }
        Ok(())
    }

    /// Prints the number of other file systems, for people.
    ///
    /// # Errors
    /// Those of standard output.
    pub(super) fn print(&self) -> Result<(), Failure> {
        match self.other_file_systems {
            0 => Ok(()),
            n => output::line(&format!("{n} mount points of other file systems left out")),
        }
    }

    /// Names the files on standard error, after the report.
    ///
    /// # Errors
    /// Some could not be examined. This failure has no message: with `--json`, the report stays
    /// the only object.
    pub(super) fn end(&self) -> Result<(), Failure> {
        for path in &self.gone_paths {
            eprintln!("pramfs: warning: {path}: removed or replaced meanwhile");
        }
        let more = self.gone - self.gone_paths.len() as u64;
        if more > 0 {
            eprintln!("pramfs: warning: {more} more removed or replaced meanwhile");
        }
        if self.not_examined == 0 {
            return Ok(());
        }
        for failure in &self.failures {
            eprintln!("pramfs: {failure}");
        }
        let more = self.not_examined - self.failures.len() as u64;
        if more > 0 {
            eprintln!("pramfs: {more} more files or directories like these");
        }
        eprintln!(
            "pramfs: {} files or directories could not be examined; the rest was; repeat as a user who may read \
             them, and check damaged ones with fsck.pramfs",
            self.not_examined
        );
        Err(Failure::silent())
    }
}

/// Whether a failure is for the reason that the file was removed or replaced.
fn has_gone(files: &Files, path: &[u8], known: Option<(Ino, FileType)>, failure: &Failure) -> bool {
    let not_found = |failure: &Failure| failure.reason == "not-found";
    if not_found(failure) {
        return true;
    }
    known.is_some_and(|known| match files.find(path, Follow::No) {
        Ok(now) => (now.ino, now.kind) != known,
        Err(failure) => not_found(&failure),
    })
}
