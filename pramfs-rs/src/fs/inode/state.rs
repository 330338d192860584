//! The state of an inode in memory, which its lock guards.

use super::completeness::Completeness;
use super::disk::map_of;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::MapRef;
use pramfs_medium::media::inode::FL_LOST;
use pramfs_medium::media::{DiskInode, Geometry};
use pramfs_medium::types::{Attr, FileType, Ino, Time};

/// The times that are newer in memory than on the medium, by the rule for times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lazy {
    /// mtime and ctime of an overwrite, written to the medium within a second.
    pub mtime: bool,
    /// atime, written to the medium at an unspecified time.
    pub atime: bool,
}

/// Which ACLs an inode has, if that is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AclPresence {
    pub known: bool,
    pub access: bool,
    pub default: bool,
}

/// The state that the lock of an inode guards.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct InodeState {
    /// Its slot in the orphan table.
    pub orphan_slot: Option<u32>,
    /// Times that the medium does not have yet.
    pub lazy: Lazy,
    /// The inode does not exist any more.
    pub gone: bool,
    /// Which ACLs it has.
    pub acls: AclPresence,
    /// Number of records that changed it, and perhaps its file map, since it was
    /// loaded.
    pub records: u64,
    /// Whether its trees hold as many blocks and entries as it counts.
    pub complete: Completeness,
    /// The current inode.
    pub disk: DiskInode,
}

impl InodeState {
    /// Returns the file type. The mode was checked when the inode was loaded.
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_mode(self.disk.mode).unwrap_or(FileType::Regular)
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// Checks that the inode still exists.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub(crate) fn alive(&self, ino: Ino) -> Result<()> {
        if self.gone {
            Err(Error::Stale(ino))
        } else {
            Ok(())
        }
    }

    /// Returns the file map for use in an operation.
    pub(crate) fn map(&self) -> MapRef {
        map_of(&self.disk)
    }

    /// Takes over the inode after its record is committed.
    #[inline]
    pub(crate) fn committed(&mut self, new: &DiskInode) {
        self.disk = *new;
        self.lazy = Lazy::default();
        self.records += 1;
    }

    /// Returns the attributes for `stat`.
    pub(crate) fn attr(&self, geo: &Geometry) -> Attr {
        let d = &self.disk;
        let kind = self.kind();
        let device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        Attr {
            ino: Ino(d.ino),
            generation: d.generation,
            kind,
            perm: d.mode & 0o7777,
            nlink: d.nlink,
            uid: d.uid,
            gid: d.gid,
            rdev: if device { d.parent_or_rdev } else { 0 },
            // A directory shows 32 bytes per entry, the size of a slot.
            size: if kind == FileType::Directory {
                d.size.saturating_mul(32)
            } else {
                d.size
            },
            blocks: (d.blocks << geo.block_log2) / 512,
            blksize: geo.block_size as u32,
            atime: Time {
                sec: d.atime_sec,
                nsec: d.atime_nsec,
            },
            mtime: Time {
                sec: d.mtime_sec,
                nsec: d.mtime_nsec,
            },
            ctime: Time {
                sec: d.ctime_sec,
                nsec: d.ctime_nsec,
            },
            btime: Time {
                sec: d.btime_sec,
                nsec: d.btime_nsec,
            },
            flags: d.flags & !FL_LOST,
            change: d.change,
        }
    }
}

/// Checks that an inode is a regular file and still exists.
#[inline]
pub(crate) fn check_file(ino: Ino, state: &InodeState) -> Result<()> {
    state.alive(ino)?;
    match state.kind() {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Error::IsDirectory),
        _ => Err(Error::Invalid("not a regular file")),
    }
}
