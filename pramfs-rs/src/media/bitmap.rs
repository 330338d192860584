//! Groups of a bitmap: one block of bits each, described out of line.

layout! {
    /// Describes one group of a bitmap.
    pub struct GroupDesc: 32 {
        0x00 bitmap: u64 = "pointer to the block of bits; 0: group not in use yet, all free",
        0x08 sum: u64 = "sum over the words of the bitmap",
        0x10 reserved_tail: [u64; 2] = "zero",
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

    /// From a record's entry.
    pub fn from_code(code: u64) -> Option<BitmapKind> {
        match code {
            1 => Some(BitmapKind::Blocks),
            2 => Some(BitmapKind::Inodes),
            _ => None,
        }
    }
}
