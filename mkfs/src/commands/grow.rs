//! `pramfs grow`: makes a file system larger, on a live mount through its server, or without a
//! mount.

use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::Args;
use pramfs::pmem::RegionOptions;
use pramfs::{MountOptions, inode::Fs};
use pramfs_medium::pmem::ask_to_grow;
use pramfs_medium::size::{self, human};
use serde::Serialize;

use super::Subcommand;
use crate::busy::{self, Root};
use crate::failure::shown;
use crate::{Failure, open, output};

#[derive(Debug, Args)]
pub(super) struct Grow {
    /// Mount point, or file or device that holds the file system
    place: PathBuf,
    /// New size in bytes, or with K, M, G or T (default: all of the file or device). A file
    /// becomes longer if need be
    #[arg(value_parser = size::parse)]
    size: Option<u64>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    place: String,
    mounted: bool,
    bytes_before: u64,
    bytes: u64,
}

impl Subcommand for Grow {
    const NAME: &'static str = "grow";
    const ABOUT: &'static str = "Make the file system larger, mounted or not";

    fn run(&self) -> Result<(), Failure> {
        if self.size == Some(0) {
            return Err(Failure::usage(
                "a size of 0: leave it out for all of the region",
            ));
        }
        let meta = std::fs::metadata(&self.place)
            .map_err(|e| Failure::os("cannot find", shown(&self.place), e))?;
        let (mounted, (from, to)) = match busy::open_place(&self.place, meta.is_dir())? {
            Some(root) => (true, self.ask(&root)?),
            None => (false, self.offline()?),
        };
        let report = Report {
            place: shown(&self.place),
            mounted,
            bytes_before: from,
            bytes: to,
        };
        match self.json {
            true => output::json(&report),
            false => output::line(&report.text()),
        }
    }
}

impl Grow {
    /// Grows the file system of a region that nobody has mounted.
    fn offline(&self) -> Result<(u64, u64), Failure> {
        let fail = |e| Failure::about(shown(&self.place), e);
        // A file that becomes much longer needs as many addresses.
        let options = RegionOptions::new().room_to_grow(self.size.unwrap_or(0));
        let region = options
            .open(&self.place)
            .map_err(|e| busy::with_mount_point(&self.place, e.into()))?;
        let quiet = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let fs = Fs::open(region, quiet).map_err(fail)?;
        let grown = fs.grow(self.size).map_err(fail);
        let closed = open::close(&self.place, fs);
        // What went wrong first is said.
        let grown = grown
            .map_err(|failure| self.longer(failure))
            .and_then(|grown| closed.map(|()| grown))?;
        Ok((grown.from, grown.to))
    }

    /// Asks the server of a mount.
    fn ask(&self, root: &Root) -> Result<(u64, u64), Failure> {
        ask_to_grow(root.directory.as_fd(), self.size).map_err(|e| {
            let (reason, why) = explain(e.raw_os_error());
            let why = why.map_or_else(|| e.to_string(), str::to_owned);
            self.longer(Failure::new(reason, format!("{}: {why}", shown(&root.at))))
        })
    }

    /// Adds to a failure that the file has become longer, if it has the new size.
    fn longer(&self, mut failure: Failure) -> Failure {
        let size = std::fs::metadata(&self.place)
            .ok()
            .filter(std::fs::Metadata::is_file)
            .map(|meta| meta.len());
        if size.is_some() && size == self.size && failure.reason != "size" {
            failure.message += "; the file has the new size, and the file system in it the old one";
        }
        failure
    }
}

/// Returns the reason word and the sentence for an errno of the server. Its log has more.
fn explain(errno: Option<i32>) -> (&'static str, Option<&'static str>) {
    match errno {
        Some(libc::ENOTTY) => (
            "not-mounted",
            Some("is not on a pramfs mount, or the server is of a version that cannot grow"),
        ),
        Some(libc::EPERM) => (
            "permission",
            Some("only root and the user who mounted it may grow it"),
        ),
        Some(libc::EINVAL) => (
            "size",
            Some(
                "the size is smaller than the file system, which cannot shrink, or no multiple of the unit of the region",
            ),
        ),
        Some(libc::EFBIG) => (
            "too-large",
            Some(
                "the size is past the end of the format, or of the file system that holds the region",
            ),
        ),
        Some(libc::ENOSPC) => (
            "no-space",
            Some(
                "the device is smaller, its host has no room, or no block is free for the new tables; the log of the server says which",
            ),
        ),
        Some(libc::EROFS) => (
            "read-only",
            Some("is mounted read-only; remount it rw first"),
        ),
        Some(libc::EOPNOTSUPP) => (
            "unsupported",
            Some(
                "cannot grow while it is mounted: the server has too few addresses for it (see ulimit -v); unmount it, grow its region, and mount it again",
            ),
        ),
        _ => ("failed", None),
    }
}

impl Report {
    fn text(&self) -> String {
        match self.bytes == self.bytes_before {
            true => format!("{}: has {} already", self.place, human(self.bytes)),
            false => format!(
                "{}: grown from {} to {}",
                self.place,
                human(self.bytes_before),
                human(self.bytes)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_errno_of_grow_has_a_sentence() {
        for errno in [
            libc::ENOTTY,
            libc::EPERM,
            libc::EINVAL,
            libc::EFBIG,
            libc::ENOSPC,
            libc::EROFS,
            libc::EOPNOTSUPP,
        ] {
            assert!(explain(Some(errno)).1.is_some());
        }
        assert_eq!(explain(Some(libc::EIO)), ("failed", None));
    }
}
