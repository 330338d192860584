//! Free blocks and free inode numbers.
//!
//! The bitmaps on the medium are authoritative; each group's bits are copied
//! to ordinary memory when the group is first used. In that copy a bit is also
//! set while it is reserved by an operation that has not committed, or freed
//! by a record that is not dead yet. Nothing here stores to the medium but
//! [`BitmapSet::apply_bits`], on behalf of a committed record.

mod bitmap;
mod group;
mod pins;

pub use bitmap::{BitmapSet, Bits, InitGroup};
pub use pins::BlockPins;

use crate::media::bitmap::BitmapKind;
use group::for_words;

/// A run of blocks or inode numbers, or an orphan slot, on its way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// Bits of a bitmap.
    Bits {
        /// Which bitmap.
        kind: BitmapKind,
        /// First bit.
        start: u64,
        /// How many.
        len: u64,
    },
    /// A slot of the orphan table.
    OrphanSlot(u32),
}

/// A run of consecutive blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First block.
    pub start: u64,
    /// Blocks.
    pub len: u64,
}

/// A run of one group of a bitmap that was reserved, and where its bits stand.
#[derive(Debug, Clone, Copy)]
pub struct Reserved {
    /// The run.
    pub run: Run,
    /// Group.
    pub group: u64,
    /// Its first bit in the group.
    first: u32,
    /// Offset of the group's bitmap block.
    bitmap_offset: u64,
}

/// What a search for free bits has come to.
#[derive(Debug, Clone, Copy)]
pub enum Found {
    /// They are taken.
    Taken(Reserved),
    /// These blocks are free, and the host has yet to give room for them: nothing
    /// is taken.
    Roomless(Run),
}

impl Reserved {
    /// The words and masks that it touches, as region offset and mask.
    #[inline]
    pub fn words(&self, mut f: impl FnMut(u64, u64)) {
        for_words(self.first, self.run.len as u32, |word, mask| {
            f(self.bitmap_offset + word as u64 * 8, mask)
        });
    }
}
