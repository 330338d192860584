//! Block pointers: one word with address, flags and a check.
//!
//! The check is seeded by file system, inode, level and index, so that a
//! flipped or misplaced pointer is found before it is followed. It stands in
//! for a checksum of the pointer block, which therefore needs no header and
//! has a power of two of entries, as a page table has.

use super::checksum::mix64;
use crate::types::{Bno, Ino};

const BLOCK_BITS: u32 = 40;
const MEMBER_SHIFT: u32 = 40;
const CHECK_SHIFT: u32 = 48;
const LOW: u64 = (1 << CHECK_SHIFT) - 1;

/// The pointer is a leaf above the lowest level: an extent of
/// `fan-out ^ level` blocks; in an htree: a leaf block.
pub const LEAF: u64 = 1 << 44;
/// Allocated, but reads as zeros.
pub const UNWRITTEN: u64 = 1 << 45;
/// The block has other owners too (reserved).
pub const SHARED: u64 = 1 << 46;
const FLAGS: u64 = LEAF | UNWRITTEN | SHARED;

/// Where a pointer stands: what its check is seeded with.
#[derive(Debug, Clone, Copy)]
pub struct PtrAt {
    /// Seed of the file system.
    pub fs_seed: u64,
    /// Owner.
    pub ino: Ino,
    /// Height of the tree below: 0 for a pointer to one data block.
    pub level: u32,
    /// Number of this pointer among all of its level in the tree.
    pub index: u64,
}

/// A block pointer as on the medium; zero is a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ptr(pub u64);

impl Ptr {
    /// No block.
    pub const HOLE: Ptr = Ptr(0);

    fn check(low: u64, at: PtrAt) -> u64 {
        let place = at
            .ino
            .0
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(at.index.wrapping_mul(0xd6e8_feb8_6659_fd93))
            .wrapping_add(u64::from(at.level) << 56);
        mix64(low ^ at.fs_seed ^ place) >> CHECK_SHIFT
    }

    /// A pointer to `block` with `flags`, for the place `at`.
    #[inline]
    pub fn new(block: Bno, flags: u64, at: PtrAt) -> Ptr {
        debug_assert!(block.0 < 1 << BLOCK_BITS && flags & !FLAGS == 0);
        let low = block.0 | flags;
        Ptr(low | Self::check(low, at) << CHECK_SHIFT)
    }

    /// What stands in place of a pointer whose blocks could not be brought back:
    /// to block 0, which no file has, with a flag, so that it is no hole whatever
    /// its check is.
    pub fn lost(at: PtrAt) -> Ptr {
        Ptr::new(Bno(0), UNWRITTEN, at)
    }

    /// Whether it says that what it covers was lost. It leads nowhere.
    #[inline]
    pub fn is_lost(self, at: PtrAt) -> bool {
        self.0 & LOW == UNWRITTEN && self.fits(at)
    }

    /// Whether it points nowhere.
    #[inline]
    pub fn is_hole(self) -> bool {
        self.0 == 0
    }

    /// Whether the check fits the place and no unknown bit is set. Says
    /// nothing about the block being in the region.
    #[inline]
    pub fn fits(self, at: PtrAt) -> bool {
        let low = self.0 & LOW;
        low >> MEMBER_SHIFT & !(FLAGS >> MEMBER_SHIFT) == 0
            && self.0 >> CHECK_SHIFT == Self::check(low, at)
    }

    /// The block.
    #[inline]
    pub fn block(self) -> Bno {
        Bno(self.0 & ((1 << BLOCK_BITS) - 1))
    }

    /// The flags.
    #[inline]
    pub fn flags(self) -> u64 {
        self.0 & FLAGS
    }

    /// See [`LEAF`].
    #[inline]
    pub fn is_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    /// See [`UNWRITTEN`].
    #[inline]
    pub fn is_unwritten(self) -> bool {
        self.0 & UNWRITTEN != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_fits_its_place_only() {
        let at = PtrAt {
            fs_seed: 42,
            ino: Ino(17),
            level: 1,
            index: 5,
        };
        let p = Ptr::new(Bno(1234), LEAF | UNWRITTEN, at);
        assert!(p.fits(at) && p.is_leaf() && p.is_unwritten() && p.block() == Bno(1234));
        assert!(!p.fits(PtrAt { index: 6, ..at }));
        assert!(!p.fits(PtrAt { level: 0, ..at }));
        assert!(!p.fits(PtrAt { ino: Ino(18), ..at }));
        for bit in 0..64 {
            assert!(!Ptr(p.0 ^ (1 << bit)).fits(at), "bit {bit}");
        }
    }

    #[test]
    fn a_lost_pointer_is_one_in_its_place_only() {
        let at = PtrAt {
            fs_seed: 42,
            ino: Ino(17),
            level: 0,
            index: 5,
        };
        let p = Ptr::lost(at);
        assert!(p.is_lost(at) && !p.is_hole() && p.block() == Bno(0));
        assert!(!p.is_lost(PtrAt { index: 6, ..at }));
        assert!(!Ptr::new(Bno(0), 0, at).is_lost(at));
        assert!(!Ptr::new(Bno(1), UNWRITTEN, at).is_lost(at));
        assert!(!Ptr::new(Bno(0), UNWRITTEN | LEAF, at).is_lost(at));
        for bit in 0..64 {
            assert!(!Ptr(p.0 ^ (1 << bit)).is_lost(at), "bit {bit}");
        }
    }
}
