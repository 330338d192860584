//! Files and free space of a region, or of a mount through its server.
//!
//! Invariant: through a mount, no symbolic link and no other mount leads out of it.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use pramfs::FileType;
use pramfs::inode::{Fs, Ino};
use pramfs_medium::pmem::{
    FreeRuns, Gathered, PointerBlock, Vacated, ask_for_extents, ask_for_free_space,
    ask_for_leaf_use, ask_for_pointers, ask_to_gather, ask_to_vacate,
};
use pramfs_medium::types::FileExtent;
use rustix::fs::OFlags;

use super::missed::Missed;
use crate::failure::shown;
use crate::files::{Files, below};
use crate::open::{self, Intent};
use crate::{Failure, busy, tree};

/// Where files are.
pub(super) enum Place {
    /// All files of a region or mount.
    All { files: Files, name: String },
    /// One file of a mount.
    One { file: File, path: Vec<u8> },
}

/// What is called with the path of a file, and the file.
type Visit<'f> = &'f mut dyn FnMut(&[u8], &FileAt<'_>) -> Result<(), Failure>;

/// A regular file.
pub(in crate::commands) enum FileAt<'a> {
    Region(&'a Fs, Ino),
    Mount(&'a File),
}

impl Place {
    /// Finds out what a path is.
    ///
    /// # Errors
    /// There is no file system, or it is in use and not mounted for this process.
    pub(super) fn of(path: &Path, intent: Intent) -> Result<Place, Failure> {
        let meta =
            std::fs::metadata(path).map_err(|e| Failure::os("cannot find", shown(path), e))?;
        let name = shown(path);
        if meta.is_file()
            && let Ok(file) = File::open(path)
            && ask_for_extents(file.as_fd()).is_ok()
        {
            let path = path.as_os_str().as_encoded_bytes().to_vec();
            return Ok(Place::One { file, path });
        }
        let files = match busy::open_root(path, meta.is_dir())? {
            Some(root) => Files::Mount(root.directory),
            None => Files::Region(Box::new(open::fs(path, intent)?)),
        };
        Ok(Place::All { files, name })
    }

    /// Returns the free runs.
    ///
    /// # Errors
    /// It is on no pramfs mount; those of the file system.
    pub(super) fn free(&self) -> Result<FreeRuns, Failure> {
        match self {
            Place::All {
                files: Files::Region(fs),
                name,
            } => {
                let about = |e| Failure::about(name, e);
                let free = fs.free_space().map_err(about)?;
                let block_size = u64::from(fs.statfs().map_err(about)?.block_size);
                Ok(FreeRuns {
                    blocks: free.blocks,
                    leaves: free.leaves,
                    block_size,
                    part: fs.gather_unit() / block_size,
                    runs: free.runs,
                })
            }
            Place::All {
                files: Files::Mount(root),
                name,
            } => ask_for_free_space(root.as_fd()).map_err(|e| refused(name, &e)),
            Place::One { file, path } => {
                ask_for_free_space(file.as_fd()).map_err(|e| refused(&tree::name(path), &e))
            }
        }
    }

    /// Returns the number of blocks in use in each leaf; `None` if the server of a mount is too old
    /// to tell.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn leaf_use(&self) -> Result<Option<Vec<u16>>, Failure> {
        let (asked, name) = match self {
            Place::All {
                files: Files::Region(fs),
                name,
            } => {
                let used = fs.leaf_use(0, usize::MAX);
                return used.map(Some).map_err(|e| Failure::about(name, e));
            }
            Place::All {
                files: Files::Mount(root),
                name,
            } => (ask_for_leaf_use(root.as_fd()), name.clone()),
            Place::One { file, path } => (ask_for_leaf_use(file.as_fd()), tree::name(path)),
        };
        match asked {
            Ok(used) => Ok(Some(used)),
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => Ok(None),
            Err(e) => Err(refused(&name, &e)),
        }
    }

    /// Calls `f` with each regular file once, by one of its names. What cannot be examined is
    /// added to `missed`, also if `f` fails, and is tried again by another name.
    ///
    /// # Errors
    /// The place itself cannot be read, or nothing in it can.
    pub(super) fn each_file(&self, missed: &mut Missed, f: Visit<'_>) -> Result<(), Failure> {
        let files = match self {
            Place::One { file, path } => return f(path, &FileAt::Mount(file)),
            Place::All { files, .. } => files,
        };
        let root = files.find(b"/", tree::Follow::Yes)?;
        let (mut todo, mut seen) = (vec![(b"/".to_vec(), root.ino)], HashSet::new());
        while let Some((path, dir)) = todo.pop() {
            if seen.contains(&dir) {
                continue;
            }
            let mut unread = |path: &[u8], failure| missed.add(files, path, None, failure);
            let list = match files.entries_but(&path, dir, &mut unread) {
                Err(failure) if dir != root.ino => {
                    missed.add(files, &path, Some((dir, FileType::Directory)), failure)?;
                    continue;
                }
                list => list?,
            };
            // Only now: it may have moved to another place, and be found there.
            seen.insert(dir);
            for entry in list {
                if seen.contains(&entry.ino) {
                    continue;
                }
                let path = tree::join(&path, &entry.name);
                let examined = match (entry.kind, files) {
                    (FileType::Directory, _) => {
                        todo.push((path, entry.ino));
                        continue;
                    }
                    (FileType::Regular, Files::Region(fs)) => {
                        f(&path, &FileAt::Region(fs, entry.ino))
                    }
                    (FileType::Regular, Files::Mount(root)) => {
                        opened(root, &path).and_then(|file| f(&path, &FileAt::Mount(&file)))
                    }
                    _ => continue,
                };
                match examined {
                    Ok(()) => {
                        seen.insert(entry.ino);
                    }
                    Err(failure) => {
                        missed.add(files, &path, Some((entry.ino, entry.kind)), failure)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Closes a region after changes.
    ///
    /// # Errors
    /// Those of the medium.
    pub(super) fn close(self, path: &Path) -> Result<(), Failure> {
        match self {
            Place::All {
                files: Files::Region(fs),
                ..
            } => open::close(path, *fs),
            _ => Ok(()),
        }
    }
}

/// Opens a regular file of a mount.
///
/// # Errors
/// It cannot be opened, has gone, or is no regular file now.
fn opened(root: &OwnedFd, path: &[u8]) -> Result<File, Failure> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = File::from(below(root, path, flags)?);
    match file.metadata().is_ok_and(|meta| meta.is_file()) {
        true => Ok(file),
        false => {
            let text = format!("{} is no regular file any more", tree::name(path));
            Err(Failure::new("not-found", text))
        }
    }
}

impl FileAt<'_> {
    /// Returns where the file lies.
    ///
    /// # Errors
    /// Those of the file system.
    pub(in crate::commands) fn extents(&self, path: &[u8]) -> Result<Vec<FileExtent>, Failure> {
        match self {
            FileAt::Region(fs, ino) => fs
                .file_extents(*ino, 0, u64::MAX)
                .map_err(|e| tree::about(path, e)),
            FileAt::Mount(file) => {
                ask_for_extents(file.as_fd()).map_err(|e| refused(&tree::name(path), &e))
            }
        }
    }

    /// Returns where its pointer blocks lie.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn pointers(&self, path: &[u8]) -> Result<Vec<PointerBlock>, Failure> {
        match self {
            FileAt::Region(fs, ino) => fs
                .pointer_blocks(*ino, 0, usize::MAX)
                .map(|(blocks, _)| blocks)
                .map_err(|e| tree::about(path, e)),
            FileAt::Mount(file) => {
                ask_for_pointers(file.as_fd()).map_err(|e| refused(&tree::name(path), &e))
            }
        }
    }

    /// Moves what a part has in the leaf at an offset of the region.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn vacate(&self, path: &[u8], offset: u64, leaf: u64) -> Result<Vacated, Failure> {
        match self {
            FileAt::Region(fs, ino) => fs
                .vacate(*ino, offset, leaf)
                .map_err(|e| tree::about(path, e)),
            FileAt::Mount(file) => ask_to_vacate(file.as_fd(), offset, leaf)
                .map_err(|e| refused(&tree::name(path), &e)),
        }
    }

    /// Moves a part.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn gather(&self, path: &[u8], offset: u64) -> Result<Gathered, Failure> {
        match self {
            FileAt::Region(fs, ino) => fs.gather(*ino, offset).map_err(|e| tree::about(path, e)),
            FileAt::Mount(file) => match ask_to_gather(file.as_fd(), offset) {
                Ok((done, _)) => Ok(done),
                Err(e) => Err(refused(&tree::name(path), &e)),
            },
        }
    }
}

/// Explains a refusal of the server.
fn refused(name: &str, e: &std::io::Error) -> Failure {
    let (reason, why) = match e.raw_os_error() {
        Some(libc::ENOTTY) => (
            "not-mounted",
            "is not on a pramfs mount, or the server is of a version that cannot tell where blocks lie",
        ),
        Some(libc::EPERM | libc::EACCES) => (
            "permission",
            "only root and the user who mounted it may do that",
        ),
        Some(libc::EROFS) => ("read-only", "is mounted read-only; remount it rw first"),
        _ => {
            return Failure::os(
                "cannot ask the server about",
                name,
                std::io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO)),
            );
        }
    };
    Failure::new(reason, format!("{name}: {why}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use rustix::fs::Mode;
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    /// Walks a directory. Returns the paths of the files that were examined.
    fn walked(dir: &Path, mut visit: impl FnMut(&[u8])) -> (Vec<String>, Missed) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir, flags, Mode::empty()).unwrap();
        let (files, name) = (Files::Mount(root), shown(dir));
        let (mut paths, mut missed) = (Vec::new(), Missed::default());
        let done = Place::All { files, name }.each_file(&mut missed, &mut |path, _| {
            visit(path);
            paths.push(tree::name(path));
            Ok(())
        });
        done.unwrap();
        paths.sort();
        (paths, missed)
    }

    /// A directory with these empty files.
    fn directory(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        dir
    }

    fn counts(missed: &Missed) -> serde_json::Value {
        serde_json::to_value(missed).unwrap()
    }

    #[test]
    fn walk_past_unreadable_file_and_directory_examines_the_rest() {
        let dir = directory(&["a", "closed", "locked/b", "z"]);
        for name in ["closed", "locked"] {
            let none = fs::Permissions::from_mode(0o000);
            fs::set_permissions(dir.path().join(name), none).unwrap();
        }
        // Root reads them by its capabilities, which each thread has for itself.
        let (paths, missed) = std::thread::scope(|threads| {
            let walk = threads.spawn(|| {
                let mut sets = capabilities(None).unwrap();
                sets.effective
                    .remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
                set_capabilities(None, sets).unwrap();
                walked(dir.path(), |_| {})
            });
            walk.join().unwrap()
        });
        assert_eq!(paths, ["/a", "/z"]);
        let of_each = serde_json::json!({ "not_examined": 2, "gone": 0, "other_file_systems": 0 });
        assert_eq!(counts(&missed), of_each);
        assert_eq!(missed.end().unwrap_err().status, 1);
        let open = fs::Permissions::from_mode(0o700);
        fs::set_permissions(dir.path().join("locked"), open).unwrap();
    }

    #[test]
    fn renamed_directory_is_examined_at_its_new_place() {
        let dir = directory(&["one/x", "one/sub/f", "two/x", "two/sub/g"]);
        let at = |name: &str| dir.path().join(name);
        let (paths, missed) = walked(dir.path(), |path| {
            // Whichever comes first gets the other, which was listed and not read.
            let (first, other) = match path {
                b"/one/x" => ("one", "two"),
                b"/two/x" => ("two", "one"),
                _ => return,
            };
            if at(other).exists() {
                fs::rename(at(other), at(first).join("sub/moved")).unwrap();
            }
        });
        for name in ["/f", "/g"] {
            assert!(paths.iter().any(|p| p.ends_with(name)), "{paths:?}");
        }
        let of_each = serde_json::json!({ "not_examined": 0, "gone": 0, "other_file_systems": 0 });
        assert_eq!(counts(&missed), of_each);
    }

    #[test]
    fn walk_past_removed_and_replaced_files_succeeds() {
        let names = ["a", "link", "removed", "socket", "d/b", "e/c", "z"];
        let dir = directory(&names);
        let at = |name: &str| dir.path().join(name);
        let (paths, missed) = walked(dir.path(), |path| {
            // The directory has been read.
            if path == b"/a" {
                for name in ["link", "removed", "socket"] {
                    fs::remove_file(at(name)).unwrap();
                }
                for name in ["d", "e"] {
                    fs::remove_dir_all(at(name)).unwrap();
                }
                symlink("a", at("link")).unwrap();
                UnixListener::bind(at("socket")).unwrap();
                fs::write(at("e"), "").unwrap();
            }
        });
        assert_eq!(paths, ["/a", "/z"]);
        let of_each = serde_json::json!({ "not_examined": 0, "gone": 5, "other_file_systems": 0 });
        assert_eq!(counts(&missed), of_each);
        missed.end().unwrap();
    }
}
