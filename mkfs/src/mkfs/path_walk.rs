//! Resolves a path component by component.
//!
//! The owner of a symbolic link chooses its target: it may be a file that only the
//! caller may write, or a directory in which only the caller may create names. Any
//! component of a path can be such a link; in /dev/shm or /tmp, any user can plant
//! one. So the walk opens the components one by one, and checks the owner of each
//! link before it follows it.
//!
//! Invariant: the walk reaches the result, and the directory of a new file, only
//! through links that it checked. Exchanging a name meanwhile changes nothing.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use pramfs::pmem::{Region, RegionOptions};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::target::Objection;
use crate::Failure;
use crate::failure::shown;

/// The kernel's limit of links in one path.
const MAX_LINKS: usize = 40;
/// Magic number of procfs, see statfs(2). The text of its links does not name the
/// target.
const PROCFS: u64 = 0x9fa0;

/// The result of a walk.
pub(super) struct PathWalk {
    /// The object found; `None` if only the last name is missing.
    pub found: Option<Metadata>,
    /// Objections to links on the path.
    pub doubts: Vec<Objection>,
    /// Directory and last name of the path.
    pub place: NameAt,
}

/// A name in a directory that is held open.
pub(super) struct NameAt {
    directory: OwnedFd,
    name: OsString,
}

/// Opens an object to examine it and to walk on from it.
const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn start(path: &Path) -> rustix::io::Result<OwnedFd> {
    let from = if path.is_absolute() { "/" } else { "." };
    rustix::fs::open(from, HANDLE | OFlags::DIRECTORY, Mode::empty())
}

/// Splits a path into names, including `..`.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

impl PathWalk {
    /// Walks `path`.
    ///
    /// # Errors
    /// Those of open(2): ENOENT if a directory on the path is missing, ELOOP.
    pub(super) fn to(path: &Path) -> io::Result<PathWalk> {
        let user = rustix::process::geteuid().as_raw();
        let mut doubts = Vec::new();
        let mut place = NameAt {
            directory: start(path)?,
            name: ".".into(),
        };
        // The path so far, for messages.
        let mut at = PathBuf::from(if path.is_absolute() { "/" } else { "" });
        let mut rest: VecDeque<OsString> = names(path).collect();
        let mut links = 0;
        let mut found = rustix::io::dup(&place.directory)?;
        while let Some(name) = rest.pop_front() {
            let is_last = rest.is_empty();
            let (next, meta) = match open(&place.directory, &name, is_last) {
                Ok(opened) => opened,
                Err(error) if is_last && error.raw_os_error() == Some(libc::ENOENT) => {
                    place.name = name;
                    return Ok(PathWalk {
                        found: None,
                        doubts,
                        place,
                    });
                }
                Err(error) => return Err(error),
            };
            if meta.is_symlink() {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                if meta.uid() != user && meta.uid() != 0 {
                    doubts.push(objection(&at.join(&name), meta.uid()));
                }
                let target = rustix::fs::readlinkat(&next, c"", Vec::new())?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    place.directory = start(&target)?;
                    at = PathBuf::from("/");
                }
                for name in names(&target).rev() {
                    rest.push_front(name);
                }
                // A link to "." or "/" leaves no further name.
                found = rustix::io::dup(&place.directory)?;
                place.name = ".".into();
                continue;
            }
            at.push(&name);
            if is_last {
                found = next;
                place.name = name;
            } else {
                place.directory = next;
            }
        }
        Ok(PathWalk {
            found: Some(File::from(found).metadata()?),
            doubts,
            place,
        })
    }
}

/// Opens a name to examine it. Within a path it must be a directory; an automount
/// point is mounted.
fn open(directory: &OwnedFd, name: &OsStr, is_last: bool) -> io::Result<(OwnedFd, Metadata)> {
    let open = |flags| rustix::fs::openat(directory, name, flags, Mode::empty());
    let opened = match is_last {
        true => open(HANDLE)?,
        false => match open(HANDLE | OFlags::DIRECTORY) {
            Err(Errno::NOTDIR | Errno::LOOP) => open(HANDLE)?,
            opened => opened?,
        },
    };
    let look =
        |fd: &OwnedFd| -> io::Result<Metadata> { File::from(rustix::io::dup(fd)?).metadata() };
    let meta = look(&opened)?;
    // Only the kernel can follow these.
    if meta.is_symlink() && rustix::fs::fstatfs(&opened)?.f_type as u64 == PROCFS {
        let followed = open(HANDLE - OFlags::NOFOLLOW)?;
        let meta = look(&followed)?;
        return Ok((followed, meta));
    }
    if !is_last && !meta.is_symlink() && !meta.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    Ok((opened, meta))
}

fn objection(link: &Path, owner: u32) -> Objection {
    Objection {
        sentence: format!(
            "{} is a symbolic link that belongs to user {owner}, who can change its target",
            shown(link)
        ),
        reason: "others-may-write",
    }
}

/// Explains why a file could not be created.
fn not_made(path: &Path, error: Errno) -> Failure {
    let (reason, why) = match error {
        Errno::ROFS => (
            "read-only",
            "lies on a read-only file system; remount that read-write, or choose another place",
        ),
        Errno::ACCESS | Errno::PERM => (
            "permission",
            "permission denied to make a file there; run as the owner of the directory or as root, or choose another place",
        ),
        error => return Failure::os("cannot make", path, error),
    };
    Failure::new(reason, format!("{}: {why}", shown(path)))
}

impl NameAt {
    /// Creates a new file of mode 0600 and `len` bytes, and opens it as a region.
    /// `path` is for messages.
    ///
    /// # Errors
    /// The name exists by now; system errors.
    pub(super) fn make(&self, path: &Path, len: u64) -> Result<Region, Failure> {
        let ours_alone = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let made = rustix::fs::openat(
            &self.directory,
            &self.name,
            flags | OFlags::CLOEXEC | OFlags::NOCTTY,
            ours_alone,
        );
        let fd = match made {
            Ok(fd) => fd,
            Err(Errno::EXIST) => {
                return Err(Failure::new(
                    "replaced",
                    format!(
                        "{}: another process has just created it; look at it with ls -l, then try again",
                        shown(path)
                    ),
                ));
            }
            Err(error) => return Err(not_made(path, error)),
        };
        let file = File::from(fd);
        let fill = || -> Result<Region, Failure> {
            // Overrides the umask and the directory's default ACL.
            rustix::fs::fchmod(&file, ours_alone)
                .map_err(|e| Failure::os("cannot set the mode of", path, e))?;
            file.set_len(len).map_err(|e| match e.raw_os_error() {
                Some(libc::EFBIG | libc::EINVAL) => Failure::new(
                    "size",
                    format!(
                        "{}: its file system cannot hold a file of {len} bytes; choose a smaller size or another file system",
                        shown(path)
                    ),
                ),
                _ => Failure::os("cannot set the size of", path, e),
            })?;
            let copy = file
                .try_clone()
                .map_err(|e| Failure::os("cannot open", path, e))?;
            let name = path.to_string_lossy();
            Ok(RegionOptions::new().from_fd(OwnedFd::from(copy), &name)?)
        };
        // Nobody has seen the file yet: remove it if it cannot become a region.
        fill().inspect_err(|_| self.remove(&file))
    }

    /// Removes a file that was created here, unless its name now belongs to another.
    pub(super) fn remove(&self, file: impl AsFd) {
        let named = rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if let (Ok(made), Ok(named)) = (rustix::fs::fstat(file), named)
            && (made.st_dev, made.st_ino) == (named.st_dev, named.st_ino)
        {
            // The caller reports the original error.
            let _ = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn path_walk_matches_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/b/file"), "").unwrap();
        symlink("a/b", at("link")).unwrap();
        symlink(at("link/.."), at("a/up")).unwrap();
        symlink("file", at("a/b/other")).unwrap();
        symlink("loop", at("loop")).unwrap();
        for name in [
            "a/b/file",
            "link/file",
            "a/up/b/../b/./other",
            "link/../../a/b/other",
            "link",
            "link/..",
        ] {
            let way = PathWalk::to(&at(name)).unwrap();
            let (found, wanted) = (way.found.unwrap(), std::fs::metadata(at(name)).unwrap());
            assert_eq!(
                (found.dev(), found.ino()),
                (wanted.dev(), wanted.ino()),
                "{name}"
            );
            assert!(way.doubts.is_empty(), "{name}");
        }
        let missing = PathWalk::to(&at("link/../new")).unwrap();
        assert!(missing.found.is_none());
        missing.place.make(&at("new"), 1 << 20).unwrap();
        assert_eq!(std::fs::metadata(at("a/new")).unwrap().len(), 1 << 20);
        for (name, errno) in [
            ("nowhere/file", libc::ENOENT),
            ("a/b/file/x", libc::ENOTDIR),
            ("a/b/other/x", libc::ENOTDIR),
            ("loop", libc::ELOOP),
            ("loop/x", libc::ELOOP),
        ] {
            let error = PathWalk::to(&at(name)).err().expect(name);
            assert_eq!(error.raw_os_error(), Some(errno), "{name}");
        }
    }

    /// The text of a descriptor's link in procfs does not name the target.
    #[test]
    fn path_walk_opens_unnamed_file_by_descriptor() {
        use std::os::fd::AsRawFd;
        let file = tempfile::tempfile().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let found = PathWalk::to(Path::new(&path)).unwrap().found.unwrap();
        assert_eq!(found.ino(), file.metadata().unwrap().ino());
    }

    /// The name is taken between the walk and the creation.
    #[test]
    fn file_is_created_at_end_of_checked_path() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("place")).unwrap();
        std::fs::create_dir(at("victim")).unwrap();
        let way = PathWalk::to(&at("place/region")).unwrap();
        std::fs::rename(at("place"), at("moved")).unwrap();
        symlink("victim", at("place")).unwrap();
        let region = way.place.make(&at("place/region"), 1 << 20).unwrap();
        assert!(at("moved/region").exists() && !at("victim/region").exists());
        let again = way.place.make(&at("place/region"), 1 << 20).unwrap_err();
        assert_eq!(again.reason, "replaced");
        drop(region);
        // An unusable file is removed.
        let way = PathWalk::to(&at("moved/large")).unwrap();
        assert!(way.place.make(&at("moved/large"), u64::MAX).is_err());
        assert!(!at("moved/large").exists());
    }
}
