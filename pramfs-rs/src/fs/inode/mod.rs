//! Inodes in memory: one shared object for each inode in use.
//!
//! Invariant: an inode changes only under its write lock. Its state equals its home
//! on the medium, except for the times that `lazy` names. Inodes are locked by
//! ascending number.
//!
//! | file | holds |
//! |---|---|
//! | `state`, `lock` | the state of an inode, and its lock |
//! | `lock_set` | locks on several inodes |
//! | `cache` | the inodes in memory, by number |
//! | `table` | the homes of inodes on the medium |
//! | `refs` | references from outside the engine |
//! | `disk` | edits of an inode's fields |
//! | `large_values` | values of extended attributes in blocks of their own |
//! | `leases` | the leases of an inode |
//! | `completeness` | the result of the completeness check |
//! | `mapped` | files that others store to without records |
//! | `marks` | files of which data sums do not hold |

pub(crate) mod cache;
pub(crate) mod completeness;
pub(crate) mod disk;
pub(crate) mod large_values;
pub(crate) mod leases;
pub(crate) mod lock;
pub(crate) mod lock_set;
pub(crate) mod mapped;
pub(crate) mod marks;
pub(crate) mod refs;
pub(crate) mod state;
pub(crate) mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zerocopy::FromZeros;

use crate::fs::inode::completeness::Completeness;
use crate::fs::inode::leases::Leases;
use crate::fs::inode::lock::InodeLock;
use crate::fs::inode::marks::UnsummedBlocks;
use crate::fs::inode::state::{AclPresence, InodeState, Lazy};
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::journal::LastRecord;
use pramfs_medium::media::htree::SLOT;
use pramfs_medium::media::inode::FL_UNSUMMED;
use pramfs_medium::media::{DiskInode, Geometry};
use pramfs_medium::types::{FileType, Ino, RegionOffset};
use pramfs_medium::volume::Volume;

/// An inode in memory. Fields that every operation touches come first, in one cache
/// line with the reference counts of its `Arc`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Inode {
    /// Used since the last pass of the second-chance eviction.
    pub(crate) used: AtomicBool,
    /// Waiting in the list of lazy inodes.
    pub listed: AtomicBool,
    /// It has an append window: its size may be larger than the one in memory.
    pub grows: AtomicBool,
    /// It has the flag `FL_UNSUMMED`, for reads without the lock.
    unsummed: AtomicBool,
    /// As in [`InodeState`], for reads without the lock.
    pub(crate) complete: Completeness,
    /// Number.
    pub ino: Ino,
    /// Offset of its 256 bytes in the region.
    pub home: RegionOffset,
    /// The last record that changed its homes: the inode, its pointer blocks and its
    /// htrees.
    pub last_record: LastRecord,
    /// The lock.
    pub state: InodeLock,
    /// With `unsummed`: the blocks whose sums need not hold.
    unsummed_blocks: UnsummedBlocks,
}

impl Inode {
    /// Creates an inode in memory.
    #[inline]
    pub(crate) fn new(ino: Ino, home: RegionOffset, disk: DiskInode) -> Inode {
        Inode {
            ino,
            home,
            last_record: LastRecord::default(),
            state: InodeLock::new(
                ino,
                InodeState {
                    disk,
                    lazy: Lazy::default(),
                    orphan_slot: None,
                    copied: None,
                    past_end: false,
                    linkable: false,
                    leases: Leases::default(),
                    gone: false,
                    acls: AclPresence::default(),
                    records: 0,
                    complete: Completeness::unknown(),
                },
            ),
            unsummed: AtomicBool::new(disk.flags & FL_UNSUMMED != 0),
            unsummed_blocks: UnsummedBlocks::of(&disk),
            complete: Completeness::unknown(),
            used: AtomicBool::new(true),
            listed: AtomicBool::new(false),
            grows: AtomicBool::new(false),
        }
    }

    /// Creates a new inode in memory with all bytes zero, to be filled in place. It
    /// is complete: its counts are zero.
    #[inline]
    pub(crate) fn empty(ino: Ino, home: RegionOffset) -> Arc<Inode> {
        let mut inode = Inode::new(ino, home, DiskInode::new_zeroed());
        inode.state.get_mut().complete.note();
        inode.complete.note();
        Arc::new(inode)
    }

    /// Keeps it in memory for another pass of the eviction.
    #[inline]
    pub(crate) fn note_use(&self) {
        // Read first, to write a shared cache line rarely.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Shows readers without the lock which blocks of the changed inode are marked.
    pub(crate) fn show_unsummed(&self, disk: &DiskInode) {
        let blocks = disk.unsummed();
        self.unsummed_blocks.show(&blocks);
        self.unsummed.store(!blocks.is_empty(), Ordering::Release);
    }

    /// Whether the sums of all blocks that hold a byte range need not hold.
    #[inline]
    pub(crate) fn is_unsummed(&self, geo: &Geometry, offset: u64, len: usize) -> bool {
        self.unsummed.load(Ordering::Acquire) && self.unsummed_blocks.hold(geo, offset, len)
    }

    /// Reads and checks an inode's home.
    pub(crate) fn load(vol: &Volume, ino: Ino, home: RegionOffset) -> Result<DiskInode> {
        let disk: DiskInode = vol.medium().read_pod(home)?;
        if disk.crc != disk.expected_crc(vol.geo.seed, ino) || disk.ino != ino.0 {
            return Err(Error::corrupt(
                Damage::InodeDamaged,
                ino,
                "the checksum of the inode does not match",
            ));
        }
        let bad = |what: &str| Err(Error::corrupt(Damage::InodeField, ino, what));
        if FileType::from_mode(disk.mode).is_none() {
            return bad("the mode has an unknown file type");
        }
        if u32::from(disk.height) > vol.geo.max_height() || disk.size > vol.geo.max_file_size() {
            return bad("its height or size is impossible");
        }
        let dir = FileType::from_mode(disk.mode) == Some(FileType::Directory);
        if dir && disk.size > vol.geo.region_bytes() / SLOT as u64 {
            return bad("it counts more entries than the region can hold");
        }
        let times = [disk.mtime(), disk.ctime(), disk.atime(), disk.btime()];
        if times.iter().any(|time| time.nsec >= 1_000_000_000) {
            return bad("a time has too many nanoseconds");
        }
        Ok(disk)
    }
}
