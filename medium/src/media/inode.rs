//! The inode: 256 bytes, four cache lines.
//!
//! Line 0 holds the fields that almost every operation changes. Such a change
//! therefore needs one line in the journal and one flush in place.

use std::ops::Range;

use crate::types::{FileBlock, Ino, Time};
use zerocopy::IntoBytes;

use super::checksum::crc;

/// Size of an inode, bytes.
pub const INODE_SIZE: u64 = 256;
/// Longest symlink target stored in the inode, bytes.
pub const INLINE_TARGET: usize = 96;
/// Maximum number of links to one inode.
pub const LINK_MAX: u32 = 1 << 30;
/// `chattr` flags that are stored (`FS_*_FL`).
pub const FLAGS_KEPT: u32 = 0x0000_00fb | FL_ATOMIC;
/// `chattr +S`: writes are durable when the call returns.
pub const FL_SYNC: u32 = 0x08;
/// `chattr +i`: immutable.
pub const FL_IMMUTABLE: u32 = 0x10;
/// `chattr +a`: append only.
pub const FL_APPEND: u32 = 0x20;
/// `chattr +d`: excluded from backups.
pub const FL_NODUMP: u32 = 0x40;
/// `chattr +A`: no access times.
pub const FL_NOATIME: u32 = 0x80;
/// `chattr +j`: changes of the data are atomic. As on other file systems, the data pass through
/// the journal.
pub const FL_ATOMIC: u32 = 0x4000;
/// The file has lost ranges, which a repair has marked in its map. Not a `chattr`
/// flag, and only a hint: the map decides.
pub const FL_LOST: u32 = 1 << 31;
/// The sums of a part of the file's data do not hold: somebody may store to its blocks without a
/// record, or has done so since they were summed. Not a `chattr` flag.
/// [`DiskInode::unsummed`] tells which part.
pub const FL_UNSUMMED: u32 = 1 << 30;
/// No block of a file.
pub const NO_BLOCKS: Range<FileBlock> = FileBlock(0)..FileBlock(0);
/// Every block of a file, also of one that grows.
pub const ALL_BLOCKS: Range<FileBlock> = FileBlock(0)..FileBlock::END;
/// Flags of an inode that callers neither see nor set.
pub const FLAGS_HIDDEN: u32 = FL_LOST | FL_UNSUMMED;
/// Flags that a new file or directory inherits from its parent directory.
pub const FLAGS_INHERITED: u32 = FLAGS_KEPT & !(FL_IMMUTABLE | FL_APPEND);
/// Flags that a new inode of any other type inherits.
pub const FLAGS_INHERITED_SPECIAL: u32 = FL_NODUMP | FL_NOATIME;

layout! {
    /// An inode. `crc` covers the other 252 bytes, seeded by uuid and number.
    pub struct DiskInode: 256 {
        0x00 crc: u32 = "CRC32C of bytes 4 to 255, seeded by file system and inode number",
        0x04 mode: u32 = "type and permission bits as in `st_mode`",
        0x08 nlink: u32 = "link count",
        0x0c height: u8 = "levels of pointer blocks below `root`; 0: root is the data block",
        0x0d xattr_height: u8 = "reserved, zero",
        0x0e reserved_line0: u16 = "zero",
        0x10 size: u64 = "bytes; directory: number of entries",
        0x18 blocks: u64 = "blocks owned: contents, pointer blocks, xattrs",
        0x20 mtime_sec: i64 = "modification, seconds",
        0x28 ctime_sec: i64 = "change, seconds",
        0x30 mtime_nsec: u32 = "modification, nanoseconds",
        0x34 ctime_nsec: u32 = "change, nanoseconds",
        0x38 change: u64 = "grows with every change",
        0x40 root: u64 = "pointer to the contents",
        0x48 xattr_root: u64 = "pointer to the htree of extended attributes",
        0x50 generation: u64 = "LSN of the record that created the inode",
        0x58 uid: u32 = "owner",
        0x5c gid: u32 = "group",
        0x60 atime_sec: i64 = "last read, seconds",
        0x68 btime_sec: i64 = "creation, seconds",
        0x70 atime_nsec: u32 = "last read, nanoseconds",
        0x74 btime_nsec: u32 = "creation, nanoseconds",
        0x78 parent_or_rdev: u64 = "directory: inode of its parent; device: `dev_t`",
        0x80 ino: u64 = "number of this inode",
        0x88 flags: u32 = "chattr flags (`FS_*_FL`); bit 30: sums of its data do not hold (`unsummed_from`, `unsummed_to`); bit 31: it has lost ranges",
        0x8c project: u32 = "project id",
        0x90 unsummed_from: u64 = "with flag 30: the first file block whose sum need not hold; otherwise zero",
        0x98 unsummed_to: u64 = "with flag 30: the file block after the last such block, or zero with `unsummed_from`: the whole file; otherwise zero",
        0xa0 target: [u8; 96] = "short symlink: target; long symlink: CRC32C of the target, seeded by file system; otherwise zero",
    }
}

impl DiskInode {
    fn seed(fs_seed: u64, ino: Ino) -> u64 {
        fs_seed ^ ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Computes the CRC of these contents.
    pub fn expected_crc(&self, fs_seed: u64, ino: Ino) -> u32 {
        crc(Self::seed(fs_seed, ino), &self.as_bytes()[4..])
    }

    /// Stores the current CRC in the structure.
    pub fn seal(&mut self, fs_seed: u64, ino: Ino) {
        self.crc = self.expected_crc(fs_seed, ino);
    }

    /// Returns the file blocks whose sums need not hold; an empty range if all sums hold. A range
    /// that makes no sense counts as the whole file.
    #[inline]
    pub fn unsummed(&self) -> Range<FileBlock> {
        if self.flags & FL_UNSUMMED == 0 {
            return NO_BLOCKS;
        }
        match self.unsummed_from < self.unsummed_to {
            true => FileBlock(self.unsummed_from)..FileBlock(self.unsummed_to),
            false => ALL_BLOCKS,
        }
    }

    /// Sets the file blocks whose sums need not hold, and the flag that says so.
    pub fn set_unsummed(&mut self, blocks: Range<FileBlock>) {
        self.flags &= !FL_UNSUMMED;
        (self.unsummed_from, self.unsummed_to) = (0, 0);
        if blocks.is_empty() {
            return;
        }
        self.flags |= FL_UNSUMMED;
        if blocks != ALL_BLOCKS {
            (self.unsummed_from, self.unsummed_to) = (blocks.start.0, blocks.end.0);
        }
    }

    /// Returns the time of the last read.
    #[inline]
    pub fn atime(&self) -> Time {
        Time {
            sec: self.atime_sec,
            nsec: self.atime_nsec,
        }
    }

    /// Returns the time of the last modification.
    #[inline]
    pub fn mtime(&self) -> Time {
        Time {
            sec: self.mtime_sec,
            nsec: self.mtime_nsec,
        }
    }

    /// Returns the time of the last change.
    #[inline]
    pub fn ctime(&self) -> Time {
        Time {
            sec: self.ctime_sec,
            nsec: self.ctime_nsec,
        }
    }

    /// Returns the time of the creation.
    #[inline]
    pub fn btime(&self) -> Time {
        Time {
            sec: self.btime_sec,
            nsec: self.btime_nsec,
        }
    }

    /// Sets the time of the last read.
    #[inline]
    pub fn set_atime(&mut self, t: Time) {
        (self.atime_sec, self.atime_nsec) = (t.sec, t.nsec);
    }

    /// Sets the time of the last modification.
    #[inline]
    pub fn set_mtime(&mut self, t: Time) {
        (self.mtime_sec, self.mtime_nsec) = (t.sec, t.nsec);
    }

    /// Sets the time of the last change.
    #[inline]
    pub fn set_ctime(&mut self, t: Time) {
        (self.ctime_sec, self.ctime_nsec) = (t.sec, t.nsec);
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn unsummed_range_is_kept_with_its_flag() {
        let mut d = DiskInode::new_zeroed();
        assert!(d.unsummed().is_empty());
        for range in [FileBlock(3)..FileBlock(4), FileBlock(0)..FileBlock(9)] {
            d.set_unsummed(range.clone());
            assert_eq!((d.flags, d.unsummed()), (FL_UNSUMMED, range));
        }
        d.set_unsummed(ALL_BLOCKS);
        assert_eq!((d.unsummed_from, d.unsummed_to), (0, 0));
        assert_eq!((d.flags, d.unsummed()), (FL_UNSUMMED, ALL_BLOCKS));
        d.set_unsummed(NO_BLOCKS);
        assert_eq!((d.flags, d.unsummed_from, d.unsummed_to), (0, 0, 0));
    }

    #[test]
    fn impossible_unsummed_range_is_whole_file() {
        let mut d = DiskInode::new_zeroed();
        d.flags = FL_UNSUMMED;
        for (from, to) in [(1, 0), (5, 5), (u64::MAX, 3)] {
            (d.unsummed_from, d.unsummed_to) = (from, to);
            assert_eq!(d.unsummed(), ALL_BLOCKS);
        }
        d.flags = 0;
        assert!(d.unsummed().is_empty(), "without the flag, it says nothing");
    }
}
