//! Offsets and sizes of one file system, computed once from a valid superblock. A live grow
//! raises the three sizes that depend on the length of the region ([`Geometry::grow`]).

use std::ops::Range;

use super::checksum::mix64;
use super::htree::LeafShape;
use super::superblock::{PAGE, SuperStatic};
use crate::grows::Grows;
use crate::types::{BlockRun, Bno, FileBlock, RegionOffset};

/// The two powers of two that split an offset in a file: bytes of a block, and blocks of a
/// part, which one pointer of level 1 covers.
#[derive(Debug, Clone, Copy)]
pub struct MapShape {
    block_log2: u32,
    fan_log2: u32,
}

impl MapShape {
    /// The shape for the default block size. As a constant it makes shorter code than the
    /// same numbers from a [`Geometry`].
    pub const DEFAULT: MapShape = MapShape {
        block_log2: DEFAULT_BLOCK_LOG2,
        fan_log2: DEFAULT_BLOCK_LOG2 - 3,
    };

    /// Returns the number of bytes in a block.
    #[inline(always)]
    pub const fn block(self) -> u64 {
        1 << self.block_log2
    }

    /// Returns the number of bytes in a part.
    #[inline(always)]
    pub const fn part(self) -> u64 {
        1 << (self.block_log2 + self.fan_log2)
    }

    /// Returns the part of a file that holds the byte at an offset.
    #[inline(always)]
    pub const fn part_at(self, offset: u64) -> u64 {
        offset >> (self.block_log2 + self.fan_log2)
    }

    /// Returns the block within its part that holds the byte at an offset of a file.
    #[inline(always)]
    pub const fn slot_at(self, offset: u64) -> usize {
        ((offset >> self.block_log2) & ((1 << self.fan_log2) - 1)) as usize
    }

    /// Returns the byte offset of a block of the region.
    #[inline(always)]
    pub const fn offset(self, block: Bno) -> RegionOffset {
        RegionOffset(block.0 << self.block_log2)
    }
}

/// Offsets and sizes of one file system.
#[derive(Debug, Clone)]
pub struct Geometry {
    /// log2 of the block size. Private: shifts by it are methods.
    block_log2: u32,
    /// Block size, bytes.
    pub block_size: u64,
    /// See [`blocks`](Self::blocks).
    blocks: Grows,
    /// log2 of the number of pointers in a block.
    pub fan_log2: u32,
    /// Seed of checks and checksums, derived from the uuid.
    pub seed: u64,
    /// Keys of the name hash.
    pub hash_keys: (u64, u64),
    /// Offset of the superblock copy.
    pub copy_offset: RegionOffset,
    /// Offset of the journal.
    pub journal_offset: RegionOffset,
    /// Length of the journal, bytes.
    pub journal_len: u64,
    /// Number of journal lanes.
    pub lanes: u32,
    /// Size of a record slot, bytes.
    pub slot_size: u64,
    /// See [`inodes_max`](Self::inodes_max).
    inodes_max: Grows,
    /// See [`reserve_blocks`](Self::reserve_blocks).
    reserve_blocks: Grows,
    /// Whether file maps may have 2 MiB leaves.
    pub huge_leaves: bool,
    /// Whether each block of file data has a checksum ([`sums`](super::sums)).
    pub data_sums: bool,
    /// Whether the names are replaced by others
    /// ([`SCRAMBLED`](super::features::SCRAMBLED)).
    pub scrambled: bool,
    /// Shape of htree leaves.
    pub leaf: LeafShape,
    /// First block and end block (exclusive) of both superblock pages and of the
    /// journal. See [`is_fixed`](Self::is_fixed).
    fixed: [(u64, u64); 3],
    /// Blocks that no pointer may lead to, because their pages have failed. Only fsck has any.
    bad: Vec<BlockRun>,
}

/// log2 of the default block size, the only one with 2 MiB leaves.
pub const DEFAULT_BLOCK_LOG2: u32 = 12;

/// Size of a lane's line, which holds its `retired` word, bytes.
pub const LANE_LINE: u64 = 64;

impl Geometry {
    /// Computes the geometry from a validated superblock.
    pub fn new(sb: &SuperStatic) -> Geometry {
        let block_size = 1u64 << sb.block_size_log2;
        let blocks = |at: u64, len: u64| {
            let end = at.saturating_add(len).div_ceil(block_size);
            (at >> sb.block_size_log2, end)
        };
        let word = |b: &[u8]| b.iter().rev().fold(0u64, |a, &x| a << 8 | u64::from(x));
        Geometry {
            block_log2: sb.block_size_log2,
            block_size,
            blocks: Grows::new(sb.blocks),
            fan_log2: sb.block_size_log2 - 3,
            seed: mix64(word(&sb.uuid[..8]) ^ mix64(word(&sb.uuid[8..]))),
            hash_keys: (word(&sb.hash_seed[..8]), word(&sb.hash_seed[8..])),
            copy_offset: RegionOffset(sb.copy_offset),
            journal_offset: RegionOffset(sb.journal_offset),
            journal_len: sb.journal_len,
            lanes: sb.lanes,
            slot_size: u64::from(sb.slot_size),
            inodes_max: Grows::new(sb.inodes_max),
            reserve_blocks: Grows::new(sb.reserve_blocks),
            // With other blocks, a map has no pointer that could be a leaf.
            huge_leaves: sb.incompat & super::features::HUGE_LEAVES != 0
                && 1 << DEFAULT_BLOCK_LOG2 == block_size,
            data_sums: sb.ro_compat & super::features::DATA_CHECKSUMS != 0,
            scrambled: sb.ro_compat & super::features::SCRAMBLED != 0,
            leaf: LeafShape::new(block_size as usize),
            fixed: [
                blocks(0, PAGE),
                blocks(sb.copy_offset, PAGE),
                blocks(sb.journal_offset, sb.journal_len),
            ],
            bad: Vec::new(),
        }
    }

    /// Takes over the sizes of a superblock that a grow has made durable.
    pub fn grow(&self, sb: &SuperStatic) {
        self.blocks.raise(sb.blocks);
        self.inodes_max.raise(sb.inodes_max);
        self.reserve_blocks.raise(sb.reserve_blocks);
    }

    /// Returns the number of blocks in the file system.
    #[inline]
    pub fn blocks(&self) -> u64 {
        self.blocks.get()
    }

    /// Returns the upper bound of inode numbers, exclusive.
    #[inline]
    pub fn inodes_max(&self) -> u64 {
        self.inodes_max.get()
    }

    /// Returns the number of blocks kept for unlink and truncate.
    #[inline]
    pub fn reserve_blocks(&self) -> u64 {
        self.reserve_blocks.get()
    }

    /// Returns the byte offset of a block.
    #[inline]
    pub fn offset(&self, b: Bno) -> RegionOffset {
        RegionOffset(self.bytes(b.0))
    }

    /// Returns the size of a number of blocks in bytes.
    #[inline]
    pub fn bytes(&self, blocks: u64) -> u64 {
        blocks << self.block_log2
    }

    /// Returns the number of bytes in the region.
    #[inline]
    pub fn region_bytes(&self) -> u64 {
        self.bytes(self.blocks())
    }

    /// Returns how many whole blocks `bytes` bytes fill.
    #[inline]
    pub fn whole_blocks(&self, bytes: u64) -> u64 {
        bytes >> self.block_log2
    }

    /// Returns the number of blocks that hold a number of bytes, rounded up.
    #[inline]
    pub fn blocks_for(&self, bytes: u64) -> u64 {
        // As `div_ceil`, without a division.
        (bytes >> self.block_log2) + u64::from(self.within_block(bytes) != 0)
    }

    /// Returns the distance of an offset in a file from the start of its block.
    #[inline]
    pub fn within_block(&self, offset: u64) -> u64 {
        offset & (self.block_size - 1)
    }

    /// Returns the block that holds the byte at an offset of the region.
    #[inline]
    pub fn block_at(&self, offset: RegionOffset) -> Bno {
        Bno(offset.0 >> self.block_log2)
    }

    /// Tells whether a pointer of level 1 may be a 2 MiB leaf.
    #[inline]
    pub fn allows_huge_leaves(&self) -> bool {
        self.huge_leaves && self.has_default_shape()
    }

    /// Returns the block of a file that holds the byte at an offset.
    #[inline]
    pub fn file_block(&self, offset: u64) -> FileBlock {
        FileBlock(self.whole_blocks(offset))
    }

    /// Returns the block of a file that begins at an offset, or after it.
    #[inline]
    pub fn file_block_from(&self, offset: u64) -> FileBlock {
        FileBlock(self.blocks_for(offset))
    }

    /// Returns the number of blocks of a file that hold the bytes `start..end`, at least one.
    #[inline]
    pub fn blocks_of(&self, start: u64, end: u64) -> u64 {
        self.file_block(end - 1) - self.file_block(start) + 1
    }

    /// Whether the block size is the default one, so that [`MapShape::DEFAULT`] applies.
    #[inline]
    pub fn has_default_shape(&self) -> bool {
        self.block_log2 == DEFAULT_BLOCK_LOG2
    }

    /// Returns the shape of file maps.
    #[inline]
    pub fn map_shape(&self) -> MapShape {
        MapShape {
            block_log2: self.block_log2,
            fan_log2: self.fan_log2,
        }
    }

    /// Returns the number of words of 8 bytes in a block.
    #[inline]
    pub fn words_per_block(&self) -> u64 {
        self.fan()
    }

    /// Returns the number of pointers in a pointer block, and of blocks in a huge leaf.
    #[inline]
    pub fn fan(&self) -> u64 {
        1 << self.fan_log2
    }

    /// Returns the slot of a block's pointer in its pointer block.
    #[inline]
    pub fn slot_of(&self, block: FileBlock) -> u64 {
        block.0 & (self.fan() - 1)
    }

    /// Returns the slot, in its pointer block, of the pointer of a level that covers a block.
    #[inline]
    pub fn slot_at(&self, level: u32, block: FileBlock) -> u64 {
        self.index_at(level, block) & (self.fan() - 1)
    }

    /// Returns the index, among all pointers of a level, of the one that covers a block.
    #[inline]
    pub fn index_at(&self, level: u32, block: FileBlock) -> u64 {
        block.0 >> (self.fan_log2 * level)
    }

    /// Returns the number of blocks that a pointer of a level covers.
    #[inline]
    pub fn span(&self, level: u32) -> u64 {
        1 << (self.fan_log2 * level)
    }

    /// Returns the first of the blocks that the pointer of a level over a block covers.
    #[inline]
    pub fn first_under(&self, level: u32, block: FileBlock) -> FileBlock {
        let shift = self.fan_log2 * level;
        FileBlock(block.0 >> shift << shift)
    }

    /// Returns the end of the blocks that the pointer of a level over a block covers.
    #[inline]
    pub fn end_under(&self, level: u32, block: FileBlock) -> FileBlock {
        self.first_under(level, block) + self.span(level)
    }

    /// Returns the offset of the first byte of a block of a file.
    #[inline]
    pub fn file_offset(&self, block: FileBlock) -> u64 {
        self.bytes(block.0)
    }

    /// Returns the places of both superblock pages.
    #[inline]
    pub fn pages(&self) -> [RegionOffset; 2] {
        [RegionOffset::START, self.copy_offset]
    }

    /// Returns the blocks with a fixed use: both superblock pages and the journal.
    pub fn fixed_blocks(&self) -> [Range<u64>; 3] {
        self.fixed.map(|(first, end)| first..end)
    }

    /// As [`fixed_blocks`](Self::fixed_blocks), sorted and without overlaps: blocks of less than a
    /// page may be shared by two.
    pub fn fixed_runs(&self) -> Vec<Range<u64>> {
        let mut runs = self.fixed_blocks();
        runs.sort_by_key(|run| run.start);
        let mut out: Vec<Range<u64>> = Vec::new();
        for run in runs {
            match out.last_mut() {
                Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
                _ => out.push(run),
            }
        }
        out
    }

    /// Tells whether no pointer of an object may lead to `count` blocks from `first` on: one of
    /// them [is the format's](Self::is_of_format), or is [bad](Self::set_bad).
    #[inline]
    pub fn is_fixed(&self, first: u64, count: u64) -> bool {
        self.is_of_format(first, count) || !self.bad.is_empty() && self.is_bad(first, count)
    }

    /// From now on, pointers to these blocks count as damaged.
    pub fn set_bad(&mut self, runs: Vec<BlockRun>) {
        self.bad = runs;
    }

    /// Returns the blocks of [`set_bad`](Self::set_bad).
    pub fn bad(&self) -> &[BlockRun] {
        &self.bad
    }

    /// Tells whether one of `count` blocks from `first` on is bad.
    #[cold]
    pub fn is_bad(&self, first: u64, count: u64) -> bool {
        let meets = |run: &BlockRun| first < run.end().0 && first + count > run.start.0;
        self.bad.iter().any(meets)
    }

    /// Tells whether one of `count` blocks from `first` on belongs to a superblock
    /// page or the journal. Block 0 is one of them.
    #[inline]
    pub fn is_of_format(&self, first: u64, count: u64) -> bool {
        let [page, copy, journal] = self.fixed;
        let meets = |(from, end): (u64, u64)| first < end && first + count > from;
        meets(page) | meets(copy) | meets(journal)
    }

    /// Returns how many blocks of a block group, the last ones when it is made, hold its bitmap
    /// and the sums of its data.
    #[inline]
    pub fn tail_blocks(&self) -> u64 {
        match self.data_sums {
            true => super::sums::SUM_BLOCKS + 1,
            false => 1,
        }
    }

    /// Returns the blocks that hold the sums and the bitmap of a block group, by the place of
    /// its bitmap.
    #[inline]
    pub fn tail_of(&self, bitmap: Bno) -> Range<u64> {
        (bitmap.0 + 1).saturating_sub(self.tail_blocks())..bitmap.0 + 1
    }

    /// Returns the number of bits in a bitmap block.
    #[inline]
    pub fn bits_per_group(&self) -> u64 {
        self.block_size * 8
    }

    /// Returns the number of inodes in a block of the inode table.
    #[inline]
    pub fn inodes_per_block(&self) -> u64 {
        self.block_size / super::inode::INODE_SIZE
    }

    /// Returns the length of a journal with `lanes` lanes, bytes.
    pub fn journal_bytes(lanes: u64, slot_size: u64) -> u64 {
        (lanes * LANE_LINE).next_multiple_of(4096) + lanes * 2 * slot_size
    }

    /// Returns the offset of a lane's `retired` word. Its copy is the next word.
    /// [`retired_seed`](Self::retired_seed) gives the seeds of their checks.
    pub fn retired_offset(&self, lane: u32) -> RegionOffset {
        self.journal_offset + u64::from(lane) * LANE_LINE
    }

    /// Returns the seed of the check of a lane's `retired` word (0) or of its
    /// copy (1). The seeds differ, so that identical damage to both words is detected.
    pub fn retired_seed(&self, copy: u64) -> u64 {
        self.seed ^ copy.wrapping_neg()
    }

    /// Returns the offset of a record slot.
    pub fn slot_offset(&self, lane: u32, slot: u32) -> RegionOffset {
        self.journal_offset
            + (u64::from(self.lanes) * LANE_LINE).next_multiple_of(4096)
            + (u64::from(lane) * 2 + u64::from(slot)) * self.slot_size
    }

    /// Returns the largest size of a file, bytes.
    pub fn max_file_size(&self) -> u64 {
        i64::MAX as u64
    }

    /// Returns the largest number of pointer-block levels in a file map.
    pub fn max_height(&self) -> u32 {
        (63 - self.block_log2).div_ceil(self.fan_log2)
    }
}
