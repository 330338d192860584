//! Conversion between the attributes of an inode and the words of a slot of the
//! attribute cache.

use pramfs_medium::types::{Attr, FileType, Ino, Time};

/// Number of words that [`to_words`] returns.
pub(crate) const ATTR_WORDS: usize = 14;

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Packs the attributes of an inode, except its number.
pub(crate) fn to_words(a: &Attr) -> [u64; ATTR_WORDS] {
    [
        a.generation,
        pair(a.kind.mode_bits() | a.perm, a.nlink),
        pair(a.uid, a.gid),
        a.rdev,
        a.size,
        a.blocks,
        a.atime.sec as u64,
        a.mtime.sec as u64,
        a.ctime.sec as u64,
        a.btime.sec as u64,
        pair(a.atime.nsec, a.mtime.nsec),
        pair(a.ctime.nsec, a.btime.nsec),
        pair(a.flags, a.blksize),
        a.change,
    ]
}

/// Unpacks the words of a slot. If the slot is being written, the result is meaningless.
#[inline]
pub(crate) fn attr_of_words(ino: Ino, word: impl Fn(usize) -> u64) -> Attr {
    let low = |i: usize| word(i) as u32;
    let high = |i: usize| (word(i) >> 32) as u32;
    let time = |sec: usize, nsec: u32| Time {
        sec: word(sec) as i64,
        nsec,
    };
    Attr {
        ino,
        generation: word(0),
        // Any value is possible in a slot that is being written.
        kind: FileType::from_mode(low(1)).unwrap_or(FileType::Regular),
        perm: low(1) & 0o7777,
        nlink: high(1),
        uid: low(2),
        gid: high(2),
        rdev: word(3),
        size: word(4),
        blocks: word(5),
        atime: time(6, low(10)),
        mtime: time(7, high(10)),
        ctime: time(8, low(11)),
        btime: time(9, high(11)),
        flags: low(12),
        blksize: high(12),
        change: word(13),
    }
}
