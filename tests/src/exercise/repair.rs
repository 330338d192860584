//! Renews the checksums of an image, whatever is in it.
//!
//! Nearly every change of a random byte ends at a checksum. A hostile image has
//! them right, and so has one that a bug of the engine wrote; what stands
//! behind them must cope with anything, too. This walks an image from the
//! definitions of the format alone, believes all it finds within the bounds of
//! the region, and stores each checksum, sum, check and seal as it should be
//! for what is there. A sound image is left as it is.

use std::collections::{BTreeMap, BTreeSet};

use pramfs::pmem::{PmemError, Region};
use pramfs::{
    FileType,
    inode::{Bno, Ino},
};
use pramfs_medium::media::bitmap::GroupDesc;
use pramfs_medium::media::checksum::{SEALED_BITS, crc, line_sum, mix64, seal, word_sum};
use pramfs_medium::media::htree::{
    ItemHeader, LargeValue, LeafHeader, LeafShape, SLOT, TAG_FREE, TAG_NEXT, VALUE_IN_BLOCKS,
};
use pramfs_medium::media::inode::{INLINE_TARGET, INODE_SIZE};
use pramfs_medium::media::lease::{END_OFFSET, LeaseSlot, WINDOW_OFFSET};
use pramfs_medium::media::pointer::{LEAF, SHARED, UNWRITTEN};
use pramfs_medium::media::record::{RECORD_MAGIC, RecordHeader};
use pramfs_medium::media::superblock::{
    BLOCK_GROUPS_OFFSET, COPY_OFFSET, DYNAMIC_OFFSET, INODE_GROUPS_OFFSET, INODE_TABLE_OFFSET,
};
use pramfs_medium::media::{DiskInode, Geometry, Ptr, PtrAt, SuperStatic, probe_superblock};
use pramfs_medium::pmem::RegionAccess;
use zerocopy::{FromBytes, IntoBytes};

/// Which checksums are renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repair(pub u8);

impl Repair {
    /// None.
    pub const NONE: Repair = Repair(0);
    /// CRC of the static superblocks.
    pub const SUPERBLOCK: u8 = 1;
    /// Seals: checkpoint, `retired` words, orphan slots.
    pub const SEALS: u8 = 2;
    /// CRC of journal records.
    pub const JOURNAL: u8 = 4;
    /// CRC of inodes, of long symbolic links and of large attributes.
    pub const INODES: u8 = 8;
    /// Checks of pointers.
    pub const POINTERS: u8 = 16;
    /// Sums of bitmap groups.
    pub const BITMAPS: u8 = 32;
    /// Sums of leaves of hash trees.
    pub const LEAVES: u8 = 64;
    /// Checks of slots of the lease table, of their append windows, and of what was appended.
    pub const LEASES: u8 = 128;
    /// All of them.
    pub const ALL: Repair = Repair(0xff);

    fn has(self, what: u8) -> bool {
        self.0 & what != 0
    }
}

/// Blocks of pointers and leaves that are looked at, at most: more than any
/// image of the corpus has.
const BUDGET: usize = 1 << 14;

/// Renews what `what` says.
pub fn repair(region: &Region, what: Repair) {
    if what.has(Repair::SUPERBLOCK) {
        for page in [0, COPY_OFFSET] {
            let Ok(mut sb) = region.read_pod::<SuperStatic>(page) else {
                return;
            };
            sb.crc = crc(0, &sb.as_bytes()[..SuperStatic::SIZE - 4]);
            store(region, page, sb.as_bytes());
        }
    }
    let Ok(info) = probe_superblock(region) else {
        return;
    };
    let mut walk = Walk {
        region,
        geo: info.geometry(),
        what,
        seen: BTreeSet::new(),
    };
    // An end before the end: the image names something outside the region.
    let _ = walk.run();
}

fn store(region: &Region, at: u64, bytes: &[u8]) {
    // A place outside the region is left alone, as everything else there.
    let _ = region.window().store_unflushed(at, bytes);
}

struct Walk<'a> {
    region: &'a Region,
    geo: Geometry,
    what: Repair,
    /// Blocks of pointers, and leaves, that were walked.
    seen: BTreeSet<u64>,
}

type Step<T = ()> = Result<T, PmemError>;

impl Walk<'_> {
    fn run(&mut self) -> Step {
        self.journal()?;
        let table = self.internal(INODE_TABLE_OFFSET, Ino::INODE_TABLE)?;
        let inode_descs = self.internal(INODE_GROUPS_OFFSET, Ino::INODE_GROUPS)?;
        let block_descs = self.internal(BLOCK_GROUPS_OFFSET, Ino::BLOCK_GROUPS)?;
        self.bitmap(Ino::BLOCK_GROUPS, &block_descs)?;
        let exist = self.bitmap(Ino::INODE_GROUPS, &inode_descs)?;
        let per_block = self.geo.inodes_per_block();
        // Of the other numbers that no user's file has the bytes mean nothing.
        let used =
            |ino: &u64| *ino >= Ino::FIRST_FREE.0 || (Ino::ROOT.0..=Ino::LEASES.0).contains(ino);
        for ino in exist.into_iter().filter(used) {
            if let Some(block) = table.get(&(ino / per_block)) {
                self.inode(
                    Ino(ino),
                    self.geo.bytes(*block) + ino % per_block * INODE_SIZE,
                )?;
            }
        }
        Ok(())
    }

    fn reseal(&self, at: u64, seed: u64) -> Step {
        let word = self.region.load_u64(at)?;
        if self.what.has(Repair::SEALS) && word != 0 {
            let right = seal(seed, word & ((1 << SEALED_BITS) - 1));
            store(self.region, at, &right.to_le_bytes());
        }
        Ok(())
    }

    fn journal(&self) -> Step {
        for page in [0, self.geo.copy_offset.0] {
            self.reseal(page + DYNAMIC_OFFSET + 0x10, self.geo.seed)?;
        }
        for lane in 0..self.geo.lanes {
            let at = self.geo.retired_offset(lane).0;
            for copy in 0..2 {
                self.reseal(at + copy * 8, self.geo.retired_seed(copy))?;
            }
            for slot in 0..2 {
                let at = self.geo.slot_offset(lane, slot).0;
                let head: RecordHeader = self.region.read_pod(at)?;
                let fits =
                    (RecordHeader::SIZE as u64..=self.geo.slot_size).contains(&u64::from(head.len));
                if self.what.has(Repair::JOURNAL) && head.magic == RECORD_MAGIC && fits {
                    let mut record = vec![0; head.len as usize];
                    self.region.read(at, &mut record)?;
                    let sum = RecordHeader::crc_of(self.geo.seed, &record);
                    store(self.region, at + 4, &sum.to_le_bytes());
                }
            }
        }
        Ok(())
    }

    /// An internal inode in both pages; its data blocks by index.
    fn internal(&mut self, at: u64, ino: Ino) -> Step<BTreeMap<u64, u64>> {
        let mut blocks = BTreeMap::new();
        for page in [self.geo.copy_offset.0, 0] {
            let mut d: DiskInode = self.region.read_pod(page + at)?;
            let level = u32::from(d.height);
            d.root = self.map(d.root, ino, level, 0, &mut blocks)?;
            self.put_inode(page + at, ino, d);
        }
        Ok(blocks)
    }

    fn put_inode(&self, at: u64, ino: Ino, mut d: DiskInode) {
        if self.what.has(Repair::INODES) {
            d.seal(self.geo.seed, ino);
        }
        store(self.region, at, d.as_bytes());
    }

    /// A pointer with the check that belongs to its place.
    fn pointer(&self, word: u64, ino: Ino, level: u32, index: u64) -> Ptr {
        let at = PtrAt {
            fs_seed: self.geo.seed,
            ino,
            level,
            index,
        };
        let ptr = Ptr(word);
        if word == 0 || ptr.fits(at) || !self.what.has(Repair::POINTERS) {
            return ptr;
        }
        Ptr::new(ptr.block(), word & (LEAF | UNWRITTEN | SHARED), at)
    }

    /// Whether a block is to be walked: it lies in the region and was not yet.
    fn enter(&mut self, block: Bno) -> bool {
        (1..self.geo.blocks()).contains(&block.0)
            && self.seen.len() < BUDGET
            && self.seen.insert(block.0)
    }

    /// The pointers of a block and where each stands.
    fn slots(&self, block: Bno) -> Step<Vec<(u64, u64)>> {
        let base = self.geo.offset(block).0;
        (0..self.geo.block_size / 8)
            .map(|i| Ok((base + i * 8, self.region.load_u64(base + i * 8)?)))
            .collect()
    }

    /// A file map below the pointer `word`; gives what the word should be.
    fn map(
        &mut self,
        word: u64,
        ino: Ino,
        level: u32,
        index: u64,
        data: &mut BTreeMap<u64, u64>,
    ) -> Step<u64> {
        let ptr = self.pointer(word, ino, level, index);
        if ptr.is_hole() || level > self.geo.max_height() {
            return Ok(ptr.0);
        }
        if level == 0 {
            if ptr.block().0 < self.geo.blocks() {
                data.insert(index, ptr.block().0);
            }
        } else if !ptr.is_leaf() && self.enter(ptr.block()) {
            for (i, (at, below)) in self.slots(ptr.block())?.into_iter().enumerate() {
                if below != 0 {
                    let index = index << self.geo.fan_log2 | i as u64;
                    let right = self.map(below, ino, level - 1, index, data)?;
                    store(self.region, at, &right.to_le_bytes());
                }
            }
        }
        Ok(ptr.0)
    }

    /// A bitmap from the blocks of its descriptors; gives the bits that are set.
    fn bitmap(&mut self, ino: Ino, descs: &BTreeMap<u64, u64>) -> Step<Vec<u64>> {
        let mut set = Vec::new();
        let in_block = self.geo.block_size / GroupDesc::SIZE as u64;
        for (&index, &block) in descs {
            for i in 0..in_block {
                let group = index.wrapping_mul(in_block).wrapping_add(i);
                let at = self.geo.offset(Bno(block)).0 + i * GroupDesc::SIZE as u64;
                let mut desc: GroupDesc = self.region.read_pod(at)?;
                let bits = self.pointer(desc.bitmap, ino, 0, group | 1 << 62);
                if bits.is_hole() || !self.enter(bits.block()) {
                    continue;
                }
                let words = self.slots(bits.block())?;
                if self.what.has(Repair::BITMAPS) {
                    let part =
                        |(i, (_, w)): (usize, &(u64, u64))| word_sum(self.geo.seed, i as u64, *w);
                    desc.sum = words
                        .iter()
                        .enumerate()
                        .map(part)
                        .fold(0, u64::wrapping_add);
                }
                desc.bitmap = bits.0;
                store(self.region, at, desc.as_bytes());
                for (i, (_, word)) in words.iter().enumerate() {
                    let first = group
                        .wrapping_mul(self.geo.bits_per_group())
                        .wrapping_add(i as u64 * 64);
                    let is_set = |bit: &u64| word >> bit & 1 != 0;
                    set.extend((0..64).filter(is_set).map(|bit| first.wrapping_add(bit)));
                }
            }
        }
        Ok(set)
    }

    fn inode(&mut self, ino: Ino, at: u64) -> Step {
        let mut d: DiskInode = self.region.read_pod(at)?;
        let kind = FileType::from_mode(d.mode);
        if kind == Some(FileType::Directory) {
            d.root = self.tree(d.root, ino, DIRECTORY, 0, 0)?;
        } else if d.root != 0 {
            let mut blocks = BTreeMap::new();
            d.root = self.map(d.root, ino, d.height.into(), 0, &mut blocks)?;
            if ino == Ino::ORPHANS {
                self.orphans(&blocks)?;
            }
            if ino == Ino::LEASES && self.what.has(Repair::LEASES) {
                self.leases(&blocks)?;
            }
            let long = INLINE_TARGET as u64..=4095;
            if kind == Some(FileType::Symlink) && long.contains(&d.size) {
                let sum = self.crc_of(&blocks, d.size as usize)?;
                d.target[..4].copy_from_slice(&sum.to_le_bytes());
            }
        }
        d.xattr_root = self.tree(d.xattr_root, ino, XATTRS, 0, 0)?;
        self.put_inode(at, ino, d);
        Ok(())
    }

    /// CRC of the first bytes of a map; holes are zeros.
    fn crc_of(&self, blocks: &BTreeMap<u64, u64>, len: usize) -> Step<u32> {
        let size = self.geo.block_size as usize;
        let mut bytes = vec![0; len.next_multiple_of(size)];
        for (i, part) in bytes.chunks_mut(size).enumerate() {
            if let Some(b) = blocks.get(&(i as u64)) {
                self.region.read(self.geo.offset(Bno(*b)).0, part)?;
            }
        }
        Ok(crc(self.geo.seed, &bytes[..len]))
    }

    fn orphans(&self, blocks: &BTreeMap<u64, u64>) -> Step {
        let in_block = self.geo.block_size / 8;
        for (&index, &block) in blocks {
            for i in 0..in_block {
                let slot = index.wrapping_mul(in_block).wrapping_add(i);
                self.reseal(
                    self.geo.offset(Bno(block)).0 + i * 8,
                    self.geo.seed ^ slot << 32,
                )?;
            }
        }
        Ok(())
    }

    fn leases(&self, blocks: &BTreeMap<u64, u64>) -> Step {
        let in_block = self.geo.block_size / LeaseSlot::SIZE as u64;
        for (&index, &block) in blocks {
            for i in 0..in_block {
                let slot = index.wrapping_mul(in_block).wrapping_add(i) as u32;
                let at = self.geo.offset(Bno(block)).0 + i * LeaseSlot::SIZE as u64;
                let mut home: LeaseSlot = self.region.read_pod(at)?;
                if home.recorded().iter().any(|byte| *byte != 0) {
                    home.check = home.expected_check(self.geo.seed, slot);
                    store(self.region, at, home.recorded());
                }
                if home.recorded_window().iter().any(|byte| *byte != 0) {
                    home.window_check = home.expected_window_check(self.geo.seed, slot);
                    store(self.region, at + WINDOW_OFFSET, home.recorded_window());
                }
                // The low half says how much was appended.
                if let Ok(Some(window)) = home.append_window(self.geo.seed, slot)
                    && home.end != 0
                {
                    let end = window.start.wrapping_add(home.end & u64::from(u32::MAX));
                    store(
                        self.region,
                        at + END_OFFSET,
                        &window.word_of(end).to_le_bytes(),
                    );
                }
            }
        }
        Ok(())
    }

    /// A hash tree below the pointer `word`, `depth` index blocks down.
    fn tree(&mut self, word: u64, ino: Ino, kind: u32, depth: u32, index: u64) -> Step<u64> {
        let ptr = self.pointer(word, ino, kind + depth, index);
        if ptr.is_hole() || self.geo.fan_log2 * depth > 63 || !self.enter(ptr.block()) {
            return Ok(ptr.0);
        }
        if ptr.is_leaf() {
            self.leaf(ino, kind, ptr.block())?;
        } else {
            for (i, (at, below)) in self.slots(ptr.block())?.into_iter().enumerate() {
                if below != 0 {
                    let index = index << self.geo.fan_log2 | i as u64;
                    let right = self.tree(below, ino, kind, depth + 1, index)?;
                    store(self.region, at, &right.to_le_bytes());
                }
            }
        }
        Ok(ptr.0)
    }

    fn leaf(&mut self, ino: Ino, kind: u32, block: Bno) -> Step {
        let at = self.geo.offset(block).0;
        let mut bytes = vec![0; self.geo.block_size as usize];
        self.region.read(at, &mut bytes)?;
        if kind == XATTRS {
            self.large_values(ino, &mut bytes)?;
        }
        if self.what.has(Repair::LEAVES) {
            let owner = mix64(ino.0 ^ u64::from(kind) << 58);
            let seed = mix64(self.geo.seed ^ owner).wrapping_add(mix64(block.0));
            bytes[8..16].fill(0);
            let (lines, _) = bytes.as_chunks::<64>();
            let sum = lines.iter().enumerate().fold(0u64, |sum, (i, line)| {
                sum.wrapping_add(line_sum(seed, i as u64, line))
            });
            bytes[8..16].copy_from_slice(&sum.to_le_bytes());
        }
        store(self.region, at, &bytes);
        Ok(())
    }

    /// Attributes of a leaf that have blocks of their own.
    fn large_values(&mut self, ino: Ino, bytes: &mut [u8]) -> Step {
        let shape = self.geo.leaf;
        for slot in 0..shape.slots {
            let item = shape.slots_at + slot * SLOT;
            let tag = bytes[LeafShape::TAGS_AT + slot];
            let value = item + ItemHeader::SIZE;
            let Some(place) = bytes.get(value..value + LargeValue::SIZE) else {
                continue;
            };
            let head = ItemHeader::read_from_prefix(&bytes[item..]);
            let (Some(large), Ok((head, _))) = (LargeValue::parse(place), head) else {
                continue;
            };
            if tag == TAG_FREE || tag == TAG_NEXT || head.kind != VALUE_IN_BLOCKS {
                continue;
            }
            let map = large.map(ino, head.hash() & !0xff);
            let mut blocks = BTreeMap::new();
            let root = self.map(map.root.0, map.ino, large.height, 0, &mut blocks)?;
            let mut sum = large.crc;
            if self.what.has(Repair::INODES) && large.len <= 65_536 {
                sum = self.crc_of(&blocks, large.len as usize)?;
            }
            let right = LargeValue::new(Ptr(root), large.height, large.len, sum);
            bytes[value..value + LargeValue::SIZE].copy_from_slice(right.as_bytes());
        }
        Ok(())
    }
}

/// Levels of the pointers of a hash tree begin here.
const DIRECTORY: u32 = 16;
const XATTRS: u32 = 32;

const _: () = assert!(LeafHeader::SIZE == LeafShape::TAGS_AT);
