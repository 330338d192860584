//! Inodes in memory: one shared object for each inode in use.
//!
//! Invariant: an inode is changed only under the write lock of its core, and
//! its core equals its home on the medium but for what `lazy` names. The lock
//! order is ascending inode number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zerocopy::{FromZeros, IntoBytes, transmute_ref};

use super::acl::AclPresence;
use super::completeness::Completeness;
use super::inode_lock::InodeLock;
use crate::error::{Error, Result};
use crate::journal::LastRecord;
use crate::map::{self, MapRef};
use crate::media::htree::SLOT;
use crate::media::inode::{FL_LOST, LINK_MAX};
use crate::media::pointer::Ptr;
use crate::media::record::EntryKind;
use crate::media::{DiskInode, Geometry};
use crate::types::{Attr, FileType, Ino, Time};
use crate::volume::{Tx, Volume};

/// What is newer in memory than on the medium, by the rule for times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lazy {
    /// mtime and ctime of an overwrite: on the medium within a second.
    pub mtime: bool,
    /// atime: on the medium some time.
    pub atime: bool,
}

/// What the lock of an inode guards.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct InodeState {
    /// Its slot in the orphan table.
    pub orphan_slot: Option<u32>,
    /// What of it the medium does not have yet.
    pub lazy: Lazy,
    /// The inode does not exist any more.
    pub gone: bool,
    /// Which ACLs it has.
    pub acls: AclPresence,
    /// Records that have changed it, and perhaps its file map, since it came
    /// into memory.
    pub records: u64,
    /// Whether its trees have what it counts.
    pub complete: Completeness,
    /// The inode as it is.
    pub disk: DiskInode,
}

/// An inode in use. What every operation touches stands in front, beside the
/// reference counts of its `Arc`, in one cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Inode {
    /// Looked at since the clock hand passed.
    pub(super) used: AtomicBool,
    /// Waiting in the list of lazy inodes.
    pub listed: AtomicBool,
    /// As in the core, for reads without its lock.
    pub(super) complete: Completeness,
    /// Number.
    pub ino: Ino,
    /// Its 256 bytes in the region.
    pub home: u64,
    /// The record that wrote its homes last: the inode, its pointer blocks and
    /// its htrees.
    pub last_record: LastRecord,
    /// The lock.
    pub state: InodeLock,
}

impl Inode {
    /// An inode in memory.
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

    /// An inode in memory whose bytes are all zero, to be filled in where it is:
    /// a new one, which has all that it counts.
    #[inline]
    pub(crate) fn empty(ino: Ino, home: u64) -> Arc<Inode> {
        let mut inode = Inode::new(ino, home, DiskInode::new_zeroed());
        inode.state.get_mut().complete.note();
        inode.complete.note();
        Arc::new(inode)
    }

    /// Keeps it in memory for another round of the clock hand.
    #[inline]
    pub(crate) fn note_use(&self) {
        // Read first: a line that many threads share is seldom written.
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
                ino.to_string(),
                "the checksum of the inode does not fit",
            ));
        }
        let bad = |what: &str| Err(Error::corrupt(ino.to_string(), what));
        if FileType::from_mode(d.mode).is_none() {
            return bad("the mode names no type of file");
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
    /// Type of the file. The mode was checked when the inode was loaded.
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_mode(self.disk.mode).unwrap_or(FileType::Regular)
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// The inode still exists.
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

    /// The file map, to be worked on.
    pub(crate) fn map(&self) -> MapRef {
        map_of(&self.disk)
    }

    /// Takes over what a record has brought home.
    #[inline]
    pub(crate) fn committed(&mut self, new: &DiskInode) {
        self.disk = *new;
        self.lazy = Lazy::default();
        self.records += 1;
    }

    /// What `stat` shows.
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
            // Entries of a directory weigh 32 bytes each, as their slots do.
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

/// The file map of an inode.
pub(crate) fn map_of(d: &DiskInode) -> MapRef {
    MapRef {
        ino: Ino(d.ino),
        root: Ptr(d.root),
        height: u32::from(d.height),
        blocks: 0,
        healed: false,
    }
}

/// Takes a changed file map over into its inode, as the record of a transaction
/// leaves it: with the last mark of loss goes the flag that tells of one.
pub(crate) fn store_healed(tx: &Tx<'_>, d: &mut DiskInode, map: &MapRef) {
    store_map(d, map);
    // What cannot be walked may have some.
    if map.healed && d.flags & FL_LOST != 0 && matches!(map::is_any_lost(tx, map), Ok(false)) {
        d.flags &= !FL_LOST;
    }
}

/// Takes a changed file map over into its inode.
pub(crate) fn store_map(d: &mut DiskInode, map: &MapRef) {
    d.root = map.root.0;
    d.height = map.height as u8;
    d.blocks = d.blocks.saturating_add_signed(map.blocks);
}

/// Counts another name of an inode, or another directory in one. The count may
/// come from a hostile medium and be anything.
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

/// Mtime and ctime as they were: what was begun has been undone.
pub(crate) fn restore_times(d: &mut DiskInode, before: &DiskInode) {
    (d.mtime_sec, d.mtime_nsec) = (before.mtime_sec, before.mtime_nsec);
    (d.ctime_sec, d.ctime_nsec) = (before.ctime_sec, before.ctime_nsec);
}

/// Sets ctime.
pub(crate) fn touch_ctime(d: &mut DiskInode, now: Time) {
    (d.ctime_sec, d.ctime_nsec) = (now.sec, now.nsec);
}

/// Puts the lines of a locked inode in which `new` differs from its home into
/// the record, with a new CRC and change counter. After the commit the caller
/// hands `new` to [`InodeState::committed`].
///
/// # Errors
/// A record that is full.
pub(crate) fn put_inode<'v>(
    tx: &mut Tx<'v>,
    inode: &'v Inode,
    state: &InodeState,
    new: &mut DiskInode,
) -> Result<()> {
    // Line 1 holds the atime, which may be newer in memory than at home.
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

/// Puts a whole inode at a home whose bytes mean nothing yet.
///
/// # Errors
/// A record that is full.
pub(crate) fn put_new_inode(
    tx: &mut Tx<'_>,
    home: u64,
    ino: Ino,
    new: &mut DiskInode,
) -> Result<()> {
    new.change = 1;
    new.seal(tx.volume().geo.seed, ino);
    tx.put(EntryKind::Inode, home, new.as_bytes())
}

/// As [`put_inode`], for an inode with several homes. `force`: lines that are
/// put whether they differ from `old` or not.
///
/// # Errors
/// A record that is full.
pub(crate) fn put_lines<'v>(
    tx: &mut Tx<'v>,
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
        // Two lines are 16 words, which are compared sooner than memcmp is called.
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
