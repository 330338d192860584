//! Groups of a bitmap: one block of bits each, described out of line.

use super::geometry::Geometry;
use super::pointer::{Ptr, PtrAt};
use crate::types::{Bno, Ino};

layout! {
    /// Describes one group of a bitmap.
    pub struct GroupDesc: 32 {
        0x00 bitmap: u64 = "pointer to the block of bits; to block 0: group not in use yet, all free",
        0x08 sum: u64 = "sum over the words of the bitmap",
        0x10 reserved_tail: [u64; 2] = "zero",
    }
}

/// What the first word of a descriptor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupState {
    /// All bits are clear, and there is no bitmap.
    Unused,
    /// The block of bits.
    Bitmap(Bno),
    /// Neither.
    Damaged,
}

impl GroupDesc {
    /// The descriptor of a group that is not in use yet. Its pointer leads to
    /// no block and carries a check all the same: zeros, which failing memory
    /// often turns into, do not pass for it.
    pub fn unused(geo: &Geometry, kind: BitmapKind, group: u64) -> GroupDesc {
        GroupDesc {
            bitmap: Ptr::new(Bno(0), 0, kind.bitmap_at(geo, group)).0,
            ..GroupDesc::default()
        }
    }

    /// Reads a descriptor's first word.
    pub fn state(geo: &Geometry, kind: BitmapKind, group: u64, word: u64) -> GroupState {
        let ptr = Ptr(word);
        match ptr.block() {
            _ if !ptr.fits(kind.bitmap_at(geo, group)) || ptr.flags() != 0 => GroupState::Damaged,
            Bno(0) => GroupState::Unused,
            b if b.0 < geo.blocks && !geo.is_fixed(b.0, 1) => GroupState::Bitmap(b),
            _ => GroupState::Damaged,
        }
    }
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
    /// As in a record's entry.
    pub fn code(self) -> u64 {
        match self {
            BitmapKind::Blocks => 1,
            BitmapKind::Inodes => 2,
        }
    }

    /// The internal inode whose file the descriptors are.
    pub fn owner(self) -> Ino {
        match self {
            BitmapKind::Blocks => Ino::BLOCK_GROUPS,
            BitmapKind::Inodes => Ino::INODE_GROUPS,
        }
    }

    /// Where the bitmap pointer of a group stands. The index is marked, so that
    /// it fits no file map.
    pub fn bitmap_at(self, geo: &Geometry, group: u64) -> PtrAt {
        PtrAt {
            fs_seed: geo.seed,
            ino: self.owner(),
            level: 0,
            index: group | 1 << 62,
        }
    }

    /// From a record's entry.
    pub fn from_code(code: u64) -> Option<BitmapKind> {
        match code {
            1 => Some(BitmapKind::Blocks),
            2 => Some(BitmapKind::Inodes),
            _ => None,
        }
    }
}
