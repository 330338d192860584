//! [`Files`]: the files of a region for tools that read, from the region itself, or through its mount
//! if it is mounted.
//!
//! Invariant: a path is resolved below the root of the file system in both cases. Through a mount,
//! neither `..` nor a symbolic link nor another mount leads out of it.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use pramfs::FileType;
use pramfs::inode::{Attr, Fs, Ino, Time};
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::open::{self, Intent};
use crate::tree::{self, CHUNK, Entry, Follow};
use crate::{Failure, busy};

/// The reason of a failure to look into another mount.
pub(crate) const OTHER_FILE_SYSTEM: &str = "other-file-system";

/// What is called with the path of an entry that cannot be looked up.
type Unread<'f> = &'f mut dyn FnMut(&[u8], Failure) -> Result<(), Failure>;

/// Where files are read.
pub(crate) enum Files {
    /// In a region that nobody else uses.
    Region(Box<Fs>),
    /// In the root directory of a mount.
    Mount(OwnedFd),
}

impl Files {
    /// Whether they are those of a mount whose server has died.
    pub(crate) fn is_disconnected(&self) -> bool {
        match self {
            Files::Region(_) => false,
            Files::Mount(root) => matches!(
                rustix::fs::fstatvfs(root),
                Err(Errno::NOTCONN | Errno::CONNABORTED)
            ),
        }
    }

    /// Opens a region, or its mount.
    ///
    /// # Errors
    /// Those of [`open::fs`]; the region is in use and not mounted for this process.
    pub(crate) fn open(region: &Path) -> Result<Files, Failure> {
        let failure = match open::fs(region, Intent::Read) {
            Ok(fs) => return Ok(Files::Region(Box::new(fs))),
            Err(failure) => failure,
        };
        if failure.reason != "in-use" {
            return Err(failure);
        }
        // If nobody knows where it is mounted, it is in use all the same.
        match busy::open_mount(region, OFlags::PATH)? {
            Some(root) => Ok(Files::Mount(root.directory)),
            None => Err(failure),
        }
    }

    /// Looks up a path; `/` is the root.
    ///
    /// # Errors
    /// The path, and what is wrong with it.
    pub(crate) fn find(&self, path: &[u8], follow: Follow) -> Result<Attr, Failure> {
        match self {
            Files::Region(fs) => tree::find(fs, path, follow),
            Files::Mount(root) => {
                let mut flags = OFlags::PATH;
                flags.set(OFlags::NOFOLLOW, follow == Follow::No);
                let file = below(root, path, flags)?;
                let stat = rustix::fs::fstat(&file).map_err(|e| failed(path, e))?;
                attr_of(&stat).ok_or_else(|| {
                    let text = format!("{} is of an unknown type", tree::name(path));
                    Failure::new("failed", text)
                })
            }
        }
    }

    /// Reads a directory, sorted by name, without `.` and `..`.
    ///
    /// # Errors
    /// `path` is not a directory, or cannot be read.
    pub(crate) fn entries(&self, path: &[u8], dir: Ino) -> Result<Vec<Entry>, Failure> {
        self.entries_but(path, dir, &mut |_, failure| match failure.reason {
            // Removed meanwhile.
            "not-found" => Ok(()),
            _ => Err(failure),
        })
    }

    /// As [`entries`](Self::entries). Calls `unread` with the path of each entry that cannot be
    /// looked up, and goes on if it returns `Ok`.
    ///
    /// # Errors
    /// `path` is not a directory, or cannot be read; what `unread` returns.
    pub(crate) fn entries_but(
        &self,
        path: &[u8],
        dir: Ino,
        unread: Unread<'_>,
    ) -> Result<Vec<Entry>, Failure> {
        let root = match self {
            Files::Region(fs) => return tree::entries(fs, path, dir),
            Files::Mount(root) => root,
        };
        let opened = below(root, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut list = Vec::new();
        for entry in Dir::new(opened).map_err(|e| failed(path, e))? {
            let entry = entry.map_err(|e| failed(path, e))?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            // Its type is looked up: a file system need not tell it here.
            let at = tree::join(path, name);
            let found = match self.find(&at, Follow::No) {
                Ok(found) => found,
                Err(failure) => {
                    unread(&at, failure)?;
                    continue;
                }
            };
            list.push(Entry {
                name: name.to_vec(),
                ino: found.ino,
                kind: found.kind,
            });
        }
        list.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(list)
    }

    /// Attributes of an entry of [`entries`](Self::entries).
    ///
    /// # Errors
    /// Those of [`find`](Self::find).
    pub(crate) fn of_entry(&self, path: &[u8], ino: Ino) -> Result<Attr, Failure> {
        match self {
            Files::Region(fs) => fs.getattr(ino).map_err(|e| tree::about(path, e)),
            Files::Mount(_) => self.find(path, Follow::No),
        }
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn target(&self, path: &[u8], ino: Ino) -> Result<Vec<u8>, Failure> {
        match self {
            Files::Region(fs) => fs.readlink(ino).map_err(|e| tree::about(path, e)),
            Files::Mount(root) => {
                let link = below(root, path, OFlags::PATH | OFlags::NOFOLLOW)?;
                let target = rustix::fs::readlinkat(&link, "", Vec::new());
                let target = target.map_err(|e| failed(path, e))?;
                Ok(target.into_bytes())
            }
        }
    }

    /// Passes the contents of a file on, piece by piece.
    ///
    /// # Errors
    /// It cannot be read, or what `sink` returns.
    pub(crate) fn contents(
        &self,
        path: &[u8],
        mut sink: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut buffer = vec![0; CHUNK];
        match self {
            Files::Region(fs) => {
                let ino = tree::find(fs, path, Follow::Yes)?.ino;
                let mut at = 0;
                loop {
                    let read = fs.read(ino, at, &mut buffer);
                    let n = read.map_err(|e| tree::about(path, e))?;
                    if n == 0 {
                        return Ok(());
                    }
                    sink(&buffer[..n])?;
                    at += n as u64;
                }
            }
            Files::Mount(root) => {
                // A pipe of the file system is not waited for.
                let mut file = File::from(below(root, path, OFlags::RDONLY | OFlags::NONBLOCK)?);
                loop {
                    match file.read(&mut buffer) {
                        Ok(0) => return Ok(()),
                        Ok(n) => sink(&buffer[..n])?,
                        Err(e) if e.kind() == ErrorKind::Interrupted => {}
                        Err(e) => return Err(Failure::os("cannot read", tree::name(path), e)),
                    }
                }
            }
        }
    }
}

fn failed(path: &[u8], e: Errno) -> Failure {
    let failure = Failure::os("cannot read", tree::name(path), e);
    let reason = match e {
        Errno::NOENT | Errno::NOTDIR => "not-found",
        Errno::XDEV => OTHER_FILE_SYSTEM,
        _ => failure.reason,
    };
    Failure { reason, ..failure }
}

/// Opens a path below the root of a mount.
pub(crate) fn below(root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Failure> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let path_or_root = if path.is_empty() { b"/" } else { path };
    let flags = flags | OFlags::CLOEXEC;
    rustix::fs::openat2(root, path_or_root, flags, Mode::empty(), resolve)
        .map_err(|e| failed(path, e))
}

fn attr_of(stat: &rustix::fs::Stat) -> Option<Attr> {
    let time = |sec, nsec| Time {
        sec,
        nsec: u32::try_from(nsec).unwrap_or_default(),
    };
    let ctime = time(stat.st_ctime, stat.st_ctime_nsec);
    Some(Attr {
        ino: Ino(stat.st_ino),
        generation: 0,
        kind: FileType::from_mode(stat.st_mode)?,
        perm: stat.st_mode & 0o7777,
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev,
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        blocks: u64::try_from(stat.st_blocks).unwrap_or_default(),
        blksize: u32::try_from(stat.st_blksize).unwrap_or_default(),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime,
        btime: ctime,
        flags: 0,
        change: 0,
    })
}
