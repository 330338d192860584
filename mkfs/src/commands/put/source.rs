//! What `pramfs put` and `mkfs.pramfs -d` copy: a name, relative to an open directory.
//!
//! Invariant: no symbolic link is followed. The caller compares what it has looked at with what it has
//! opened.

use std::fs::{File, Metadata};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use pramfs::FileType;
use rustix::fs::{CWD, Dir, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::Failure;

/// Name and value of an extended attribute.
type Xattr = (Vec<u8>, Vec<u8>);

/// A file to copy.
pub(super) struct Source<'a> {
    pub(super) dir: BorrowedFd<'a>,
    pub(super) name: &'a Path,
    /// Path for messages.
    pub(super) path: &'a Path,
}

impl<'a> Source<'a> {
    /// As the caller names it: above its last name, links are followed.
    pub(super) fn named(path: &'a Path) -> Source<'a> {
        Source {
            dir: CWD,
            name: path,
            path,
        }
    }

    fn opened(&self, what: &str, flags: OFlags) -> Result<File, Failure> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.dir, self.name, flags, Mode::empty())
            .map(File::from)
            .map_err(|e| Failure::os(what, self.path, e))
    }

    pub(super) fn metadata(&self) -> Result<Metadata, Failure> {
        let file = self.opened("cannot copy", OFlags::PATH)?;
        file.metadata()
            .map_err(|e| Failure::os("cannot copy", self.path, e))
    }

    /// Opens what `meta` says it is: a file or directory to read it, anything else as a place.
    pub(super) fn open(&self, meta: &Metadata) -> Result<File, Failure> {
        let flags = match meta.file_type() {
            kind if kind.is_file() => OFlags::RDONLY | OFlags::NONBLOCK,
            kind if kind.is_dir() => OFlags::RDONLY | OFlags::NONBLOCK,
            _ => OFlags::PATH,
        };
        self.opened("cannot open", flags)
    }

    /// Opens a directory, as the caller names it: a link to one, too.
    pub(super) fn directory(&self) -> Result<File, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(self.dir, self.name, flags, Mode::empty())
            .map(File::from)
            .map_err(|e| Failure::os("cannot open", self.path, e))
    }

    /// The names in a directory, sorted.
    pub(super) fn names(&self, opened: &File) -> Result<Vec<Vec<u8>>, Failure> {
        let failed = |e| Failure::os("cannot read the directory", self.path, e);
        let mut names = Vec::new();
        for entry in Dir::read_from(opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        names.sort();
        Ok(names)
    }

    /// The target of a symbolic link.
    pub(super) fn target(&self, opened: &File) -> Result<Vec<u8>, Failure> {
        rustix::fs::readlinkat(opened, "", Vec::new())
            .map(|target| target.into_bytes())
            .map_err(|e| Failure::os("cannot read", self.path, e))
    }

    /// Reads the extended attributes that this process may read. Empty if the file
    /// system supports none.
    pub(super) fn xattrs(&self, opened: &File, kind: FileType) -> Result<Vec<Xattr>, Failure> {
        let failed = |e| Failure::os("cannot read the extended attributes of", self.path, e);
        // What is open as a place only has no calls for its attributes. This name leads to it,
        // and no further if it is a symbolic link.
        let place = match kind {
            FileType::Regular | FileType::Directory => None,
            _ => Some(format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd())),
        };
        // The kernel's limit for a list and for a value.
        let mut buffer = vec![0u8; 64 << 10];
        let listed = match &place {
            None => rustix::fs::flistxattr(opened, &mut buffer[..]),
            Some(place) => rustix::fs::listxattr(place, &mut buffer[..]),
        };
        let n = match listed {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            n => n.map_err(failed)?,
        };
        let names: Vec<Vec<u8>> = buffer[..n]
            .split(|&b| b == 0)
            .filter(|n| !n.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
        let mut list = Vec::new();
        for name in names {
            let value = match &place {
                None => rustix::fs::fgetxattr(opened, &name[..], &mut buffer[..]),
                Some(place) => rustix::fs::getxattr(place, &name[..], &mut buffer[..]),
            };
            match value {
                Ok(n) => list.push((name, buffer[..n].to_vec())),
                Err(Errno::NODATA) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(list)
    }
}

/// Returns the next range with data at or after `at`, or the rest of the file if
/// its file system cannot tell.
pub(super) fn next_data(file: &File, at: u64) -> rustix::io::Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL) => return Ok(Some((at, u64::MAX))),
        Err(e) => return Err(e),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    Ok(Some((start, end)))
}
