//! Edits of an inode as it is on the medium, and how a record takes them.

use zerocopy::{IntoBytes, transmute_ref};

use pramfs_medium::error::{Error, Result};
use pramfs_medium::journal::LastRecord;
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::inode::{FL_LOST, LINK_MAX};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::record::EntryKind;
use pramfs_medium::types::{Ino, Time};
use pramfs_medium::volume::Record;

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
