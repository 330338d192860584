//! Inodes in memory: one shared object for each inode in use.
//!
//! Invariant: an inode changes only under its write lock. Its state equals its home
//! on the medium, except for the times that `lazy` names. Inodes are locked by
//! ascending number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zerocopy::{FromZeros, IntoBytes, transmute_ref};

use super::acl::AclPresence;
use super::completeness::Completeness;
use super::inode_lock::InodeLock;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::journal::LastRecord;
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::htree::SLOT;
use pramfs_medium::media::inode::{FL_LOST, LINK_MAX};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::record::EntryKind;
use pramfs_medium::media::{DiskInode, Geometry};
use pramfs_medium::types::{Attr, FileType, Ino, Time};
use pramfs_medium::volume::{Record, Volume};

/// The times that are newer in memory than on the medium, by the rule for times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lazy {
    /// mtime and ctime of an overwrite, written to the medium within a second.
    pub mtime: bool,
    /// atime, written to the medium at an unspecified time.
    pub atime: bool,
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

/// An inode in memory. Fields that every operation touches come first, in one cache
/// line with the reference counts of its `Arc`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Inode {
    /// Used since the last pass of the second-chance eviction.
    pub(super) used: AtomicBool,
    /// Waiting in the list of lazy inodes.
    pub listed: AtomicBool,
    /// As in [`InodeState`], for reads without the lock.
    pub(super) complete: Completeness,
    /// Number.
    pub ino: Ino,
    /// Offset of its 256 bytes in the region.
    pub home: u64,
    /// The last record that changed its homes: the inode, its pointer blocks and its
    /// htrees.
    pub last_record: LastRecord,
    /// The lock.
    pub state: InodeLock,
}

impl Inode {
    /// Creates an inode in memory.
    #[inline]
    pub(crate) fn new(ino: Ino, home: u64, d: DiskInode) -> Inode {
        Inode {
            ino,
            home,
            last_record: LastRecord::default(),
            state: InodeLock::new(InodeState {
                disk: d,
                lazy: Lazy::default(),
                orphan_slot: None,
                gone: false,
                acls: AclPresence::default(),
                records: 0,
                complete: Completeness::unknown(),
            }),
            complete: Completeness::unknown(),
            used: AtomicBool::new(true),
            listed: AtomicBool::new(false),
        }
    }

    /// Creates a new inode in memory with all bytes zero, to be filled in place. It
    /// is complete: its counts are zero.
    #[inline]
    pub(crate) fn empty(ino: Ino, home: u64) -> Arc<Inode> {
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

    /// Reads and checks an inode's home.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn load(vol: &Volume, ino: Ino, home: u64) -> Result<DiskInode> {
        let d: DiskInode = vol.region.read_pod(home)?;
        if d.crc != d.expected_crc(vol.geo.seed, ino) || d.ino != ino.0 {
            return Err(Error::corrupt(
                Damage::InodeDamaged,
                ino.to_string(),
                "the checksum of the inode does not match",
            ));
        }
        let bad = |what: &str| Err(Error::corrupt(Damage::InodeField, ino.to_string(), what));
        if FileType::from_mode(d.mode).is_none() {
            return bad("the mode has an unknown file type");
        }
        if u32::from(d.height) > vol.geo.max_height() || d.size > vol.geo.max_file_size() {
            return bad("height or size are impossible");
        }
        let dir = FileType::from_mode(d.mode) == Some(FileType::Directory);
        if dir && d.size > (vol.geo.blocks << vol.geo.block_log2) / SLOT as u64 {
            return bad("more entries than the region can hold");
        }
        if [d.mtime_nsec, d.ctime_nsec, d.atime_nsec, d.btime_nsec]
            .iter()
            .any(|nsec| *nsec >= 1_000_000_000)
        {
            return bad("a time has too many nanoseconds");
        }
        Ok(d)
    }
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

/// Returns the file map of an inode.
pub(crate) fn map_of(d: &DiskInode) -> MapRef {
    MapRef {
        ino: Ino(d.ino),
        root: Ptr(d.root),
        height: u32::from(d.height),
        blocks: 0,
        healed: false,
    }
}

/// Stores a changed file map in its inode, as the transaction leaves it. If no mark
/// of a lost pointer is left, clears the inode's flag for lost ranges.
pub(crate) fn store_healed(tx: &Record<'_>, d: &mut DiskInode, map: &MapRef) {
    store_map(d, map);
    // A map that cannot be walked may still have marks.
    if map.healed && d.flags & FL_LOST != 0 && matches!(map::is_any_lost(tx, map), Ok(false)) {
        d.flags &= !FL_LOST;
    }
}

/// Stores a changed file map in its inode.
pub(crate) fn store_map(d: &mut DiskInode, map: &MapRef) {
    d.root = map.root.0;
    d.height = map.height as u8;
    d.blocks = d.blocks.saturating_add_signed(map.blocks);
}

/// Counts another name of an inode, or another subdirectory of one. A corrupt or
/// hostile image may hold any count.
///
/// # Errors
/// [`Error::TooManyLinks`].
pub(crate) fn add_link(d: &mut DiskInode) -> Result<()> {
    if d.nlink >= LINK_MAX {
        return Err(Error::TooManyLinks(Ino(d.ino)));
    }
    d.nlink += 1;
    Ok(())
}

/// Sets mtime and ctime.
pub(crate) fn touch_mtime(d: &mut DiskInode, now: Time) {
    (d.mtime_sec, d.mtime_nsec) = (now.sec, now.nsec);
    touch_ctime(d, now);
}

/// Restores mtime and ctime when an operation is undone.
pub(crate) fn restore_times(d: &mut DiskInode, before: &DiskInode) {
    (d.mtime_sec, d.mtime_nsec) = (before.mtime_sec, before.mtime_nsec);
    (d.ctime_sec, d.ctime_nsec) = (before.ctime_sec, before.ctime_nsec);
}

/// Sets ctime.
pub(crate) fn touch_ctime(d: &mut DiskInode, now: Time) {
    (d.ctime_sec, d.ctime_nsec) = (now.sec, now.nsec);
}

/// Puts the cache lines of a locked inode in which `new` differs from its home into
/// the record, with a new CRC and change counter.
///
/// # Errors
/// The record is full.
pub(crate) fn put_inode<'v>(
    tx: &mut Record<'v>,
    inode: &'v Inode,
    state: &InodeState,
    new: &mut DiskInode,
) -> Result<()> {
    // Line 1 holds the atime, which may be newer in memory than in place.
    let newer = if state.lazy.atime { 0b10 } else { 0 };
    put_lines(
        tx,
        &inode.last_record,
        &[inode.home],
        inode.ino,
        &state.disk,
        new,
        newer,
    )
}

/// Puts a whole inode into the record, for a home whose bytes are unused so far.
///
/// # Errors
/// The record is full.
pub(crate) fn put_new_inode(
    tx: &mut Record<'_>,
    home: u64,
    ino: Ino,
    new: &mut DiskInode,
) -> Result<()> {
    new.change = 1;
    new.seal(tx.volume().geo.seed, ino);
    tx.put(EntryKind::Inode, home, new.as_bytes())
}

/// As [`put_inode`], for an inode with several homes. `force` is a mask of lines to
/// put even if they do not differ from `old`.
///
/// # Errors
/// The record is full.
pub(crate) fn put_lines<'v>(
    tx: &mut Record<'v>,
    last_record: &'v LastRecord,
    homes: &[u64],
    ino: Ino,
    old: &DiskInode,
    new: &mut DiskInode,
    force: u8,
) -> Result<()> {
    new.change = new.change.wrapping_add(1);
    new.seal(tx.volume().geo.seed, ino);
    let new = &*new;
    tx.touch(last_record);
    let (before, after): (&[Line; LINES], &[Line; LINES]) =
        (transmute_ref!(old), transmute_ref!(new));
    // Line 0 has the CRC: it always differs.
    let mut differs = force | 1;
    for i in 1..LINES {
        // Comparing 16 words inline is faster than a call of memcmp.
        let words = before[i].iter().zip(&after[i]);
        let bits = words.fold(0, |bits, (old, new)| bits | (old ^ new));
        differs |= u8::from(bits != 0) << i;
    }
    for &home in homes {
        let mut rest = differs;
        while rest != 0 {
            let first = rest.trailing_zeros() as usize;
            let count = (rest >> first).trailing_ones() as usize;
            rest &= !(((1 << count) - 1) << first);
            tx.put(
                EntryKind::Inode,
                home + (first * size_of::<Line>()) as u64,
                after[first..first + count].as_bytes(),
            )?;
        }
    }
    Ok(())
}

/// A cache line of an inode, as words.
type Line = [u64; 8];
const LINES: usize = DiskInode::SIZE / size_of::<Line>();
