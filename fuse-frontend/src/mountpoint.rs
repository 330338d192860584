//! Checks a mount point: a directory, empty, and not a dead mount.
//!
//! Invariants:
//! * a path is resolved once; all later steps use the directory opened then,
//!   even if the name is replaced meanwhile;
//! * only a dead mount of our own type, made by the caller, is unmounted.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, StatxFlags};

use crate::exit::Failure;
use crate::kernel;
use crate::mountinfo::{self, FS_TYPE};

/// Limit of stacked dead mounts to clear.
const MAX_DEAD: usize = 16;

/// A directory that can be mounted on.
#[derive(Debug)]
pub struct MountPoint {
    /// The checked directory.
    pub directory: OwnedFd,
    /// Its path at the time of the check, without symbolic links. For messages, and
    /// for fusermount3, which does not take a descriptor.
    pub path: PathBuf,
    /// Messages for the user: what `prepare` did to make it usable.
    pub notices: Vec<String>,
}

/// Checks a mount point and clears a dead mount of the caller on it.
///
/// # Errors
/// [`Failure`] with the cause and what to do.
pub fn prepare(given: &Path, nonempty: bool) -> Result<MountPoint, Failure> {
    let mut notices = Vec::new();
    for _ in 0..MAX_DEAD {
        let (directory, path) = open(given)?;
        match look(&directory) {
            Ok(State::NotEmpty) if !nonempty => return Err(not_empty(&directory, &path)),
            Ok(State::Empty | State::NotEmpty) => {
                return Ok(MountPoint {
                    directory,
                    path,
                    notices,
                });
            }
            Ok(State::NotDirectory) => {
                return Err(Failure::mount(format!(
                    "mount point {}: not a directory",
                    path.display()
                )));
            }
            Err(error) if is_dead(&error) => {
                // Not the top of a mount: a mount above is dead, which is not ours to clear.
                if mountinfo::of_top(&directory).is_none() {
                    return Err(unusable(&path, &error));
                }
                clear(&directory, &path)?;
                notices.push(format!(
                    "cleared the dead mount on {}: its process had died",
                    path.display()
                ));
            }
            Err(error) => return Err(unusable(&path, &error)),
        }
    }
    Err(Failure::mount(format!(
        "mount point {}: dead mounts keep appearing; see findmnt(8)",
        given.display()
    )))
}

/// Opens a path, and returns the descriptor and the path without symbolic links.
/// Works on a dead mount: sends no request to its server.
pub(crate) fn open(given: &Path) -> Result<(OwnedFd, PathBuf), Failure> {
    let opened = rustix::fs::open(given, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let directory = opened.map_err(|error| unusable(given, &error.into()))?;
    let path = std::fs::read_link(mountinfo::descriptor_path(&directory))
        .map_err(|error| unusable(given, &error))?;
    Ok((directory, path))
}

fn unusable(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure::mount(match error.kind() {
        io::ErrorKind::NotFound => {
            format!("mount point {path} does not exist; type: mkdir -p {path}")
        }
        io::ErrorKind::NotADirectory => {
            format!("mount point {path}: a part of the path is not a directory")
        }
        _ if is_dead(error) => {
            format!("mount point {path} lies in a dead FUSE mount ({error}); unmount that first")
        }
        _ => format!("mount point {path}: {error}"),
    })
}

/// Tells whether an error means a dead server. A request in flight when the server
/// dies gets ECONNABORTED.
fn is_dead(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTCONN | libc::ECONNABORTED)
    )
}

enum State {
    Empty,
    NotEmpty,
    NotDirectory,
}

/// Asks the server of the directory. The kernel may have attributes and entries of a
/// dead mount cached; a forced sync bypasses them.
fn look(directory: &OwnedFd) -> io::Result<State> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let stat = rustix::fs::statx(directory, c"", flags, StatxFlags::TYPE)?;
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Directory {
        return Ok(State::NotDirectory);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut entries = Dir::new(rustix::fs::openat(directory, c".", flags, Mode::empty())?)?;
    loop {
        match entries.next() {
            None => return Ok(State::Empty),
            Some(Ok(entry)) if [c".", c".."].contains(&entry.file_name()) => {}
            Some(entry) => return Ok(entry.map(|_| State::NotEmpty)?),
        }
    }
}

fn not_empty(directory: &OwnedFd, path: &Path) -> Failure {
    let shown = path.display();
    Failure::mount(match mountinfo::of_top(directory) {
        Some(mount) if mount.fs_type == FS_TYPE && mount.is_trusted() => format!(
            "{} is already mounted on {shown}",
            mountinfo::shown(&mount.source)
        ),
        _ => format!(
            "mount point {shown} is not empty; its entries would be hidden: choose another directory, or add -o nonempty"
        ),
    })
}

/// Removes the dead mount on top of `directory`.
fn clear(directory: &OwnedFd, path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let whose = match mountinfo::of_top(directory) {
        Some(mount) if mount.fs_type != FS_TYPE => {
            format!("of type {}", mount.fs_type.escape_debug())
        }
        Some(mount) if !mount.is_own() => match mount.user_id() {
            Some(id) => format!("of user {id}"),
            None => "of an unknown user".to_owned(),
        },
        None => "of unknown type".to_owned(),
        Some(_) => {
            return kernel::clear(directory, path).map_err(|error| {
                Failure::mount(format!(
                    "mount point {shown} is a dead mount of ours that cannot be cleared ({error}); type: umount -l {shown}"
                ))
            });
        }
    };
    Err(Failure::mount(format!(
        "mount point {shown} is a dead mount {whose} (its process has died); type: umount -l {shown}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Status;

    fn refused(path: &Path) -> String {
        let failure = prepare(path, false).expect_err("must be refused");
        assert_eq!(failure.status, Status::Mount);
        failure.message
    }

    #[test]
    fn mount_point_empty_directory_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            prepare(dir.path(), false).unwrap().path,
            dir.path().canonicalize().unwrap()
        );
    }

    #[test]
    fn unusable_mount_point_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        assert!(refused(&missing).contains("mkdir -p"));
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(refused(&file).contains("not a directory"));
        assert!(refused(&file.join("below")).contains("not a directory"));
        assert!(refused(dir.path()).contains("-o nonempty"));
        assert!(prepare(dir.path(), true).is_ok());
    }
}
