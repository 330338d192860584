//! Free blocks and free inode numbers.
//!
//! The bitmaps on the medium are authoritative. The first use of a group copies its bits to
//! ordinary memory. In that copy a bit is also set while
//! * an operation that has not committed reserves it, or
//! * the record that freed it is not dead yet.
//!
//! Only [`BitmapSet::apply_bits`] stores to the medium, on behalf of a committed record.

mod bitmap;
mod group;
mod pins;

pub use bitmap::{BitmapSet, Bits, InitGroup};
pub use pins::BlockPins;

use crate::media::bitmap::BitmapKind;
use group::for_words;

/// A run of blocks or inode numbers, or an orphan slot, that is being freed.
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

/// A reserved run within one group of a bitmap, and the location of its bits.
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

/// The outcome of a search for free bits.
#[derive(Debug, Clone, Copy)]
pub enum Found {
    /// The bits are reserved.
    Taken(Reserved),
    /// These blocks are free, but the host has no room allocated for them. Nothing is
    /// reserved.
    Roomless(Run),
}

impl Reserved {
    /// Calls `f` with the region offset and mask of each word that the run touches.
    #[inline]
    pub fn words(&self, mut f: impl FnMut(u64, u64)) {
        for_words(self.first, self.run.len as u32, |word, mask| {
            f(self.bitmap_offset + word as u64 * 8, mask)
        });
    }
}
