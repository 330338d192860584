//! Edits of a [`DiskInode`], the inode as it is on the medium, and their entries in a
//! record.
//!
//! Invariants:
//!
//! - Storing a changed map also changes the block count of the inode.
//! - Every inode in a record is sealed, and has a higher change counter than before.
//!
//! These functions change only the copy that the caller passes. The record publishes it;
//! [`change`](crate::fs::engine::change) then updates the inode in memory.

use zerocopy::{IntoBytes, transmute_ref};

use pramfs_medium::error::{Error, Result};
use pramfs_medium::journal::LastRecord;
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::inode::{FL_LOST, LINK_MAX};
use pramfs_medium::media::record::EntryKind;
use pramfs_medium::types::{Ino, RegionOffset, Time};
use pramfs_medium::volume::Record;

/// Stores a changed file map in its inode, as the transaction leaves it. If no mark
/// of a lost pointer is left, clears the inode's flag for lost ranges.
pub(crate) fn store_healed(tx: &Record<'_>, disk: &mut DiskInode, map: &MapRef) {
    map.store(disk);
    // A map that cannot be walked may still have marks.
    if map.healed && disk.flags & FL_LOST != 0 && matches!(map::is_any_lost(tx, map), Ok(false)) {
        disk.flags &= !FL_LOST;
    }
}

/// Increments the link count of an inode, for a new name or a new subdirectory. A corrupt
/// or hostile image may hold any count.
pub(crate) fn add_link(disk: &mut DiskInode) -> Result<()> {
    if disk.nlink >= LINK_MAX {
        return Err(Error::TooManyLinks(Ino(disk.ino)));
    }
    disk.nlink += 1;
    Ok(())
}

/// Sets mtime and ctime.
pub(crate) fn touch_mtime(disk: &mut DiskInode, now: Time) {
    disk.set_mtime(now);
    disk.set_ctime(now);
}

/// Restores mtime and ctime when an operation is undone.
pub(crate) fn restore_times(disk: &mut DiskInode, before: &DiskInode) {
    disk.set_mtime(before.mtime());
    disk.set_ctime(before.ctime());
}

/// Sets ctime.
pub(crate) fn touch_ctime(disk: &mut DiskInode, now: Time) {
    disk.set_ctime(now);
}

/// Puts a new inode into the record, with all its bytes: those at its home are undefined.
pub(crate) fn put_new_inode(
    tx: &mut Record<'_>,
    home: RegionOffset,
    ino: Ino,
    new: &mut DiskInode,
) -> Result<()> {
    new.change = 1;
    new.seal(tx.volume().geo.seed, ino);
    tx.put(EntryKind::Inode, home, new.as_bytes())
}

/// Puts the changed lines of an inode into the record, for each of its homes. `force` is a
/// mask of lines to put even if they equal those of `old`.
pub(crate) fn put_lines<'v>(
    tx: &mut Record<'v>,
    last_record: &'v LastRecord,
    homes: &[RegionOffset],
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
