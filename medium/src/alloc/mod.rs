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

pub use bitmap::{BitmapSet, Bits, InitGroup, PreparedBits};
pub use pins::BlockPins;

use crate::types::{BlockRun, InodeRun, RegionOffset};
pub(crate) use group::for_words;

/// A run of blocks or inode numbers, or a slot of a table, that is being freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// Blocks.
    Blocks(BlockRun),
    /// Blocks that were free on the medium all the time.
    Staging(BlockRun),
    /// Inode numbers.
    Inodes(InodeRun),
    /// A slot of the orphan table.
    OrphanSlot(u32),
    /// A slot of the lease table.
    LeaseSlot(u32),
}

/// A run of consecutive bits of a bitmap: blocks or inode numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitRun {
    /// First bit.
    pub start: u64,
    /// Number of bits.
    pub len: u64,
}

impl From<BlockRun> for BitRun {
    #[inline]
    fn from(run: BlockRun) -> BitRun {
        let BlockRun { start, len } = run;
        BitRun {
            start: start.0,
            len,
        }
    }
}

impl From<InodeRun> for BitRun {
    #[inline]
    fn from(run: InodeRun) -> BitRun {
        let InodeRun { start, len } = run;
        BitRun {
            start: start.0,
            len,
        }
    }
}

/// The lengths of a run that are of use.
#[derive(Debug, Clone, Copy)]
pub struct RunLen {
    /// Fewest bits.
    pub least: u32,
    /// Most bits; of a longer run, a part is taken.
    pub most: u32,
}

/// A reserved run within one group of a bitmap, and the location of its bits.
#[derive(Debug, Clone, Copy)]
pub struct Reserved {
    /// The run.
    pub run: BitRun,
    /// Group.
    pub group: u64,
    /// Its first bit in the group.
    first: u32,
    /// Offset of the group's bitmap block.
    bitmap_offset: RegionOffset,
}

/// The outcome of a search for free bits.
#[derive(Debug, Clone, Copy)]
pub enum SearchResult {
    /// The bits are reserved.
    Taken(Reserved),
    /// These blocks are free, but the host has no room allocated for them. Nothing is
    /// reserved.
    NoHostRoom(BitRun),
}

impl Reserved {
    /// Calls `f` with the region offset and mask of each word that the run touches.
    #[inline]
    pub fn words(&self, mut f: impl FnMut(RegionOffset, u64)) {
        for_words(self.first, self.run.len as u32, |word, mask| {
            f(self.bitmap_offset.word(word as u64), mask)
        });
    }
}
