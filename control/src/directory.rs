//! The directory of the control sockets, in which only root can make names.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::ControlError;

/// The directory of the control sockets.
pub const DIRECTORY: &str = "/run/pramfs";

/// A directory in which only root (or the user of this process) can make, rename or replace
/// a name. It and all directories above it belong to one of these two users.
///
/// No variable and no option changes its place, because a caller could then forge it.
/// Tests pass their own path to the same checks.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

/// Whether a checked directory is the last one of the path. Above the last one, a sticky
/// directory may be writable by others: they cannot rename foreign entries in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Yes,
    No,
}

impl Directory {
    /// Opens the directory. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// [`ControlError::Directory`] if another user could make names in it.
    pub fn open(path: impl AsRef<Path>) -> Result<Option<Directory>, ControlError> {
        let path = path.as_ref();
        match walk(path) {
            Ok(fd) => Ok(Some(Directory {
                fd,
                path: path.to_owned(),
            })),
            Err(ControlError::Os { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the directory, and makes it if it is missing.
    ///
    /// # Errors
    /// As [`open`](Self::open), and errors of mkdir(2).
    pub fn make(path: impl AsRef<Path>) -> Result<Directory, ControlError> {
        let path = path.as_ref();
        if let Some(found) = Directory::open(path)? {
            return Ok(found);
        }
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(refused(path, "is not a directory path"));
        };
        match rustix::fs::mkdirat(walk_above(above)?, name, Mode::RWXU) {
            // Another server may have made it meanwhile.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                return Err(refused(path, &format!("cannot be created: {error}")));
            }
        }
        Directory::open(path)?.ok_or_else(|| refused(path, "has disappeared"))
    }

    /// Returns the names of the control sockets in it.
    ///
    /// # Errors
    /// Errors of reading the directory.
    pub fn sockets(&self) -> Result<Vec<String>, ControlError> {
        let os = |source| ControlError::Os {
            what: "cannot list the control sockets",
            source,
        };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.way_to(".")).map_err(os)? {
            let name = entry.map_err(os)?.file_name();
            if let Some(name) = name.to_str()
                && name.ends_with(".sock")
                && !name.starts_with('.')
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Returns its path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path to `name` in the open directory, short enough for a socket address.
    pub(crate) fn way_to(&self, name: &str) -> String {
        format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd())
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn walk(path: &Path) -> Result<OwnedFd, ControlError> {
    let fd = steps(path)?;
    check(&fd, path, Last::Yes)?;
    Ok(fd)
}

fn walk_above(path: &Path) -> Result<OwnedFd, ControlError> {
    let fd = steps(path)?;
    check(&fd, path, Last::No)?;
    Ok(fd)
}

/// Opens the path name by name and refuses symbolic links. Checks all directories but the
/// last.
fn steps(path: &Path) -> Result<OwnedFd, ControlError> {
    const FLAGS: OFlags = OFlags::PATH
        .union(OFlags::DIRECTORY)
        .union(OFlags::NOFOLLOW)
        .union(OFlags::CLOEXEC);
    let os = ControlError::os("cannot open the directory of the control sockets");
    if !path.is_absolute() {
        return Err(refused(path, "is not an absolute path"));
    }
    let mut so_far = PathBuf::from("/");
    let mut fd = rustix::fs::open("/", FLAGS, Mode::empty()).map_err(&os)?;
    for component in path.components() {
        let name = match component {
            Component::RootDir => continue,
            Component::Normal(name) => name,
            _ => return Err(refused(path, "contains `.` or `..`")),
        };
        check(&fd, &so_far, Last::No)?;
        so_far.push(name);
        fd = match rustix::fs::openat(&fd, name, FLAGS, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(refused(
                    &so_far,
                    "is not a directory, or is a symbolic link",
                ));
            }
            opened => opened.map_err(&os)?,
        };
    }
    Ok(fd)
}

fn check(fd: &OwnedFd, path: &Path, last: Last) -> Result<(), ControlError> {
    let stat = rustix::fs::fstat(fd).map_err(ControlError::os("cannot stat a directory"))?;
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != own {
        return Err(refused(path, &format!("belongs to user {}", stat.st_uid)));
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    let kept_by_sticky = last == Last::No && mode.contains(Mode::SVTX);
    if mode.intersects(Mode::WGRP | Mode::WOTH) && !kept_by_sticky {
        return Err(refused(path, "may be written by others"));
    }
    Ok(())
}

fn refused(path: &Path, why: &str) -> ControlError {
    ControlError::Directory {
        path: path.to_owned(),
        why: why.to_owned(),
    }
}
