//! The state of an inode in memory. The inode's lock guards it.
//!
//! Invariant: `disk` equals the home of the inode, except for the times that `lazy` names.
//! [`committed`](InodeState::committed) is the only way to take over a new version, after
//! the commit of its record. The lock is in [`lock`](super::lock); reads without the lock
//! use its snapshot, not this struct.

use super::completeness::Completeness;
use super::leases::Leases;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::journal::RecordId;
use pramfs_medium::map::MapRef;
use pramfs_medium::media::inode::FLAGS_HIDDEN;
use pramfs_medium::media::{DiskInode, Geometry};
use pramfs_medium::types::{Attr, FileType, Ino};

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
    /// Blocks past its end are to be freed. Its slot stands for that, too.
    pub past_end: bool,
    /// It was made without a name, and may get one.
    pub linkable: bool,
    /// Its leases. While there are any, no block leaves its map.
    pub leases: Leases,
    /// Times that the medium does not have yet.
    pub lazy: Lazy,
    /// The inode does not exist any more.
    pub gone: bool,
    /// Which ACLs it has.
    pub acls: AclPresence,
    /// Number of records that changed it, and perhaps its file map, since it was
    /// loaded.
    pub records: u64,
    /// The last record that copied data to its blocks (rule 8).
    pub copied: Option<RecordId>,
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
    pub(crate) fn alive(&self, ino: Ino) -> Result<()> {
        if self.gone {
            Err(Error::Stale(ino))
        } else {
            Ok(())
        }
    }

    /// Returns the file map for use in an operation.
    pub(crate) fn map(&self) -> MapRef {
        MapRef::of(&self.disk)
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
        let disk = &self.disk;
        let kind = self.kind();
        let device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        Attr {
            ino: Ino(disk.ino),
            generation: disk.generation,
            kind,
            perm: disk.mode & 0o7777,
            nlink: disk.nlink,
            uid: disk.uid,
            gid: disk.gid,
            rdev: if device { disk.parent_or_rdev } else { 0 },
            // A directory shows 32 bytes per entry, the size of a slot.
            size: if kind == FileType::Directory {
                disk.size.saturating_mul(32)
            } else {
                disk.size
            },
            blocks: geo.bytes(disk.blocks) / 512,
            blksize: geo.block_size as u32,
            atime: disk.atime(),
            mtime: disk.mtime(),
            ctime: disk.ctime(),
            btime: disk.btime(),
            flags: disk.flags & !FLAGS_HIDDEN,
            change: disk.change,
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
