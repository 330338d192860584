//! Where to mount: is it a directory, is it empty, is it the corpse of an
//! earlier mount?
//!
//! Invariant: nothing is unmounted but a dead mount of our own type, and that
//! by exactly the path that was asked for.

use std::io;
use std::path::{Path, PathBuf};

use crate::exit::Failure;
use crate::kernel;
use crate::mountinfo::{self, FS_TYPE};

/// Corpses on top of each other that are cleared at most.
const MAX_DEAD: usize = 16;

/// A directory that can be mounted on.
#[derive(Debug)]
pub struct MountPoint {
    /// Its canonical path.
    pub path: PathBuf,
    /// What was done to make it usable, for the user to know.
    pub notices: Vec<String>,
}

/// Checks a mount point. A dead mount of ours on it is cleared away.
///
/// # Errors
/// What is wrong with it, and what to do.
pub fn prepare(given: &Path, nonempty: bool) -> Result<MountPoint, Failure> {
    let path = canonical(given)?;
    let mut notices = Vec::new();
    for _ in 0..MAX_DEAD {
        match look(&path) {
            Ok(State::Empty) => return Ok(MountPoint { path, notices }),
            Ok(State::NotEmpty) if nonempty => return Ok(MountPoint { path, notices }),
            Ok(State::NotEmpty) => return Err(not_empty(&path)),
            Ok(State::NotDirectory) => {
                return Err(Failure::mount(format!(
                    "mount point {}: not a directory",
                    path.display()
                )));
            }
            Err(error) if is_dead(&error) => {
                // It is the one above that is dead, and not ours to clear.
                if mountinfo::at(&path).is_none() {
                    return Err(unusable(&path, &error));
                }
                clear(&path)?;
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
        path.display()
    )))
}

/// The path without links. The last component may be a dead mount, which most
/// system calls refuse to touch.
fn canonical(given: &Path) -> Result<PathBuf, Failure> {
    let error = match given.canonicalize() {
        Ok(path) => return Ok(path),
        Err(error) => error,
    };
    let resolved = match (is_dead(&error), given.parent(), given.file_name()) {
        (true, Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            };
            parent.canonicalize().map(|parent| parent.join(name))
        }
        _ => Err(error),
    };
    resolved.map_err(|error| unusable(given, &error))
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

/// ECONNABORTED is what those hear who ask at the moment of death.
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

/// Attributes alone would not do: those of a dead mount may come from the
/// kernel's memory.
fn look(path: &Path) -> io::Result<State> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(State::NotDirectory);
    }
    match std::fs::read_dir(path)?.next() {
        None => Ok(State::Empty),
        Some(entry) => entry.map(|_| State::NotEmpty),
    }
}

fn not_empty(path: &Path) -> Failure {
    let shown = path.display();
    Failure::mount(match mountinfo::at(path) {
        Some(mount) if mount.fs_type == FS_TYPE => format!(
            "{} is already mounted on {shown}",
            mountinfo::shown(&mount.source)
        ),
        _ => format!(
            "mount point {shown} is not empty; its entries would be hidden: choose another directory, or add -o nonempty"
        ),
    })
}

/// Removes the dead mount on top of `path`.
fn clear(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let dead = mountinfo::at(path);
    if dead.as_ref().is_none_or(|mount| mount.fs_type != FS_TYPE) {
        let fs_type = dead.map_or_else(|| "unknown".to_owned(), |mount| mount.fs_type);
        return Err(Failure::mount(format!(
            "mount point {shown} is a dead mount of type {fs_type} (its process has died); type: umount -l {shown}"
        )));
    }
    kernel::clear(path).map_err(|error| {
        Failure::mount(format!(
            "mount point {shown} is a dead mount of ours that cannot be cleared ({error}); type: umount -l {shown}"
        ))
    })
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
    fn an_empty_directory_will_do() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            prepare(dir.path(), false).unwrap().path,
            dir.path().canonicalize().unwrap()
        );
    }

    #[test]
    fn what_will_not_do_is_named() {
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
