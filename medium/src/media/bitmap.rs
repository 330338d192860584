//! Groups of a bitmap. Each has one block of bits and a descriptor in a table.

use super::geometry::Geometry;
use super::pointer::{Ptr, PtrAt};
use crate::types::{Bno, Ino};

layout! {
    /// Describes one group of a bitmap.
    pub struct GroupDesc: 32 {
        0x00 bitmap: u64 = "pointer to the bitmap block; to block 0: group not in use yet, all free",
        0x08 sum: u64 = "sum over the words of the bitmap",
        0x10 reserved_tail: [u64; 2] = "zero",
    }
}

/// The state of a group, from the first word of its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupState {
    /// All bits are clear, and the group has no bitmap block.
    Unused,
    /// The group has this bitmap block.
    Bitmap(Bno),
    /// The word is neither.
    Damaged,
}

impl GroupDesc {
    /// Makes the descriptor of a group that is not in use yet. Its pointer leads
    /// to no block but carries a check. Failing memory often reads as zeros, which
    /// are therefore not mistaken for an unused group.
    pub fn unused(geo: &Geometry, kind: BitmapKind, group: u64) -> GroupDesc {
        GroupDesc {
            bitmap: Ptr::new(Bno(0), 0, kind.bitmap_at(geo, group)).0,
            ..GroupDesc::default()
        }
    }

    /// Interprets the first word of a descriptor.
    pub fn state(geo: &Geometry, kind: BitmapKind, group: u64, word: u64) -> GroupState {
        let ptr = Ptr(word);
        match ptr.block() {
            _ if !ptr.fits(kind.bitmap_at(geo, group)) || ptr.flags() != 0 => GroupState::Damaged,
            Bno(0) => GroupState::Unused,
            b if b.0 < geo.blocks() && !geo.is_fixed(b.0, 1) => match kind {
                BitmapKind::Blocks if !has_tail(geo, group, b) => GroupState::Damaged,
                _ => GroupState::Bitmap(b),
            },
            _ => GroupState::Damaged,
        }
    }
}

/// Whether the sums of a block group can lie before its bitmap block.
fn has_tail(geo: &Geometry, group: u64, bitmap: Bno) -> bool {
    if !geo.data_sums {
        return true;
    }
    let (tail, per_group) = (geo.tail_blocks(), geo.bits_per_group());
    bitmap.0 / per_group == group
        && bitmap.0 % per_group + 1 >= tail
        && !geo.is_fixed(bitmap.0 + 1 - tail, tail)
}

/// Which of the two bitmaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitmapKind {
    /// Blocks of the region.
    Blocks,
    /// Inode numbers.
    Inodes,
}

impl BitmapKind {
    /// Returns the code that a record's entry uses.
    pub fn code(self) -> u64 {
        match self {
            BitmapKind::Blocks => 1,
            BitmapKind::Inodes => 2,
        }
    }

    /// Returns the internal inode whose file holds the descriptors.
    pub fn owner(self) -> Ino {
        match self {
            BitmapKind::Blocks => Ino::BLOCK_GROUPS,
            BitmapKind::Inodes => Ino::INODE_GROUPS,
        }
    }

    /// Returns the place of a group's bitmap pointer. Bit 62 of the index is set,
    /// so that the pointer fits no file map.
    pub fn bitmap_at(self, geo: &Geometry, group: u64) -> PtrAt {
        PtrAt {
            fs_seed: geo.seed,
            ino: self.owner(),
            level: 0,
            index: group | 1 << 62,
        }
    }

    /// Decodes the code in a record's entry.
    pub fn from_code(code: u64) -> Option<BitmapKind> {
        match code {
            1 => Some(BitmapKind::Blocks),
            2 => Some(BitmapKind::Inodes),
            _ => None,
        }
    }
}
