//! Block pointers: one word with address, flags and a check.
//!
//! The check is seeded by file system, inode, level and index. A corrupt or
//! misplaced pointer is therefore detected before it is followed. The check
//! replaces a checksum of the pointer block. The block needs no header, and its
//! number of entries is a power of two, as in a page table.

use super::checksum::mix64;
use super::geometry::Geometry;
use crate::types::{Bno, FileBlock, Ino};

const BLOCK_BITS: u32 = 40;
const MEMBER_SHIFT: u32 = 40;
const CHECK_SHIFT: u32 = 48;
const LOW: u64 = (1 << CHECK_SHIFT) - 1;

/// The pointer is a leaf above the lowest level. In a file map it names an extent
/// of `fan-out ^ level` blocks, in an htree a leaf block.
pub const LEAF: u64 = 1 << 44;
/// The block is allocated but reads as zeros.
pub const UNWRITTEN: u64 = 1 << 45;
/// The block has more than one owner (reserved).
pub const SHARED: u64 = 1 << 46;
const FLAGS: u64 = LEAF | UNWRITTEN | SHARED;

/// The place of a pointer, which seeds its check.
#[derive(Debug, Clone, Copy)]
pub struct PtrAt {
    /// Seed of the file system.
    pub fs_seed: u64,
    /// Owner.
    pub ino: Ino,
    /// Height of the tree below: 0 for a pointer to one data block.
    pub level: u32,
    /// Index of this pointer among all pointers of its level in the tree.
    pub index: u64,
}

impl PtrAt {
    /// Returns the place of the pointer in a slot of the pointer block to which the pointer
    /// at this place leads.
    #[inline]
    pub fn below(self, geo: &Geometry, slot: u64) -> PtrAt {
        PtrAt {
            level: self.level - 1,
            index: self.index << geo.fan_log2 | slot,
            ..self
        }
    }

    /// Returns the first file block that the pointer at this place covers.
    #[inline]
    pub fn first(self, geo: &Geometry) -> FileBlock {
        FileBlock(self.index << (geo.fan_log2 * self.level))
    }
}

/// A block pointer as stored on the medium. Zero is a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ptr(pub u64);

impl Ptr {
    /// The pointer without a block.
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

    /// Makes a pointer to `block` with `flags` for the place `at`.
    #[inline]
    pub fn new(block: Bno, flags: u64, at: PtrAt) -> Ptr {
        debug_assert!(block.0 < 1 << BLOCK_BITS && flags & !FLAGS == 0);
        let low = block.0 | flags;
        Ptr(low | Self::check(low, at) << CHECK_SHIFT)
    }

    /// Makes the loss mark for the place `at`. It replaces a pointer whose blocks
    /// could not be recovered. It names block 0, which no file owns. Its flag
    /// distinguishes it from a hole even if its check is zero.
    pub fn lost(at: PtrAt) -> Ptr {
        Ptr::new(Bno(0), UNWRITTEN, at)
    }

    /// Tells whether this is the loss mark for the place `at`. A loss mark leads
    /// to no block.
    #[inline]
    pub fn is_lost(self, at: PtrAt) -> bool {
        self.0 & LOW == UNWRITTEN && self.fits(at)
    }

    /// Tells whether this is a hole.
    #[inline]
    pub fn is_hole(self) -> bool {
        self.0 == 0
    }

    /// Tells whether the check fits the place and no unknown bit is set. Does not
    /// check that the block lies in the region.
    #[inline]
    pub fn fits(self, at: PtrAt) -> bool {
        let low = self.0 & LOW;
        low >> MEMBER_SHIFT & !(FLAGS >> MEMBER_SHIFT) == 0
            && self.0 >> CHECK_SHIFT == Self::check(low, at)
    }

    /// Returns the block.
    #[inline]
    pub fn block(self) -> Bno {
        Bno(self.0 & ((1 << BLOCK_BITS) - 1))
    }

    /// Returns the flags.
    #[inline]
    pub fn flags(self) -> u64 {
        self.0 & FLAGS
    }

    /// Tells whether [`LEAF`] is set.
    #[inline]
    pub fn is_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    /// Tells whether [`UNWRITTEN`] is set.
    #[inline]
    pub fn is_unwritten(self) -> bool {
        self.0 & UNWRITTEN != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointer_check_fits_only_its_location() {
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
    fn lost_pointer_fits_only_its_location() {
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
