//! Scans the blocks that are in use and have no known owner. Blocks behind a
//! damaged pointer are among them, and their content tells what they are.
//!
//! Only blocks in use by the bitmap are scanned: free blocks may hold stale
//! contents.

use std::collections::{HashMap, HashSet};

use zerocopy::FromBytes;

use super::build::FileBlocks;
use super::gather::first_level;
use super::{GroupBits, Repairer};
use pramfs_medium::error::Result;
use pramfs_medium::htree::{Image, TreeKind, TreeRef};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc};
use pramfs_medium::media::htree::LEAF_MAGIC;
use pramfs_medium::media::inode::INODE_SIZE;
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::types::{Bno, FileBlock, Ino};

/// The result of a scan.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Undamaged leaves, by owner and kind.
    leaves: HashMap<(u64, u32), Vec<u64>>,
    /// Possible pointer blocks.
    pub tables: Vec<u64>,
    /// Blocks of the inode table, by their number in it.
    pub table: FileBlocks,
    /// Blocks of group descriptors, by their number: blocks, inodes.
    pub descs: [FileBlocks; 2],
    /// Numbers that several blocks claim, so that the right one is unknown: owning
    /// inode and number.
    doubtful: HashSet<(Ino, FileBlock)>,
}

impl Scan {
    /// Returns the leaves of a tree.
    pub(super) fn leaves_of(&self, t: &TreeRef) -> Vec<u64> {
        let key = (t.ino.0, first_level(t.kind));
        self.leaves.get(&key).cloned().unwrap_or_default()
    }
}

impl Repairer<'_, '_> {
    /// Scans all of these blocks, once a round.
    pub(super) fn scan(&mut self) -> Result<&Scan> {
        if self.scanned.is_none() {
            let mut scan = Scan::default();
            let per_group = self.geo.bits_per_group();
            for group in 0..self.known.groups[0].len() as u64 {
                // If the bits are unknown, scan all blocks, but only for content
                // that cannot be stale.
                let (words, known) = match self.known.groups[0][group as usize] {
                    GroupBits::At(base) => (self.words(base)?, true),
                    GroupBits::Unknown => (vec![u64::MAX; per_group as usize / 64], false),
                    GroupBits::Clear => continue,
                };
                for (i, word) in (0..).zip(words) {
                    let first = group * per_group + i * 64;
                    let mut lost = word & !self.known.claims.word(first);
                    while lost != 0 {
                        let block = first + u64::from(lost.trailing_zeros());
                        lost &= lost - 1;
                        if block < self.geo.blocks() {
                            self.classify(Bno(block), known, &mut scan)?;
                        }
                    }
                }
            }
            for (ino, number) in std::mem::take(&mut scan.doubtful) {
                let [blocks, inodes] = &mut scan.descs;
                let found = match ino {
                    Ino::INODE_TABLE => &mut scan.table,
                    Ino::INODE_GROUPS => inodes,
                    _ => blocks,
                };
                found.remove(&number);
            }
            self.scanned = Some(scan);
        }
        Ok(self.scanned.get_or_insert_default())
    }

    fn classify(&self, block: Bno, known: bool, scan: &mut Scan) -> Result<()> {
        let image = self.image(block)?;
        let header = image.header();
        if known && header.magic == LEAF_MAGIC {
            for kind in [TreeKind::Directory, TreeKind::Xattrs] {
                let t = TreeRef {
                    ino: Ino(header.owner),
                    kind,
                    root: Ptr::HOLE,
                    blocks: 0,
                };
                if header.sum == image.sum(t.leaf_seed(self.geo, block)) {
                    let key = (header.owner, first_level(kind));
                    scan.leaves.entry(key).or_default().push(block.0);
                    return Ok(());
                }
            }
        }
        if let Some(number) = self.table_number(&image) {
            if scan.table.insert(number, block).is_some() {
                scan.doubtful.insert((Ino::INODE_TABLE, number));
            }
            return Ok(());
        }
        for (kind, found) in [BitmapKind::Blocks, BitmapKind::Inodes]
            .into_iter()
            .zip(&mut scan.descs)
        {
            if let Some(number) = self.desc_number(kind, &image) {
                if found.insert(number, block).is_some() {
                    scan.doubtful.insert((kind.owner(), number));
                }
                return Ok(());
            }
        }
        if known && self.looks_like_pointers(&image.bytes) {
            scan.tables.push(block.0);
        }
        Ok(())
    }

    /// Returns the number of an inode-table block. All slots in use must belong to
    /// it, except one damaged inode. A single inode is not proof: a user may have
    /// copied it.
    pub(super) fn table_number(&self, image: &Image) -> Option<FileBlock> {
        let slots = self.inodes_in(image);
        let number = slots.iter().copied().flatten().next()?;
        let good = slots.iter().filter(|n| **n == Some(number)).count();
        (good + 1 >= slots.len()).then_some(number)
    }

    /// For each slot in use of an inode-table block, returns the block number that
    /// its inode implies, if the checksum matches.
    pub(super) fn inodes_in(&self, image: &Image) -> Vec<Option<FileBlock>> {
        let per_block = self.geo.inodes_per_block();
        let slots = image.bytes.chunks(INODE_SIZE as usize);
        let used = (0..).zip(slots).filter(|(_, b)| b.iter().any(|b| *b != 0));
        used.map(|(i, bytes)| {
            let d = DiskInode::read_from_bytes(bytes).ok()?;
            let fits = d.ino < self.geo.inodes_max()
                && d.ino % per_block == i
                && d.crc == d.expected_crc(self.geo.seed, Ino(d.ino));
            fits.then_some(FileBlock(d.ino / per_block))
        })
        .collect()
    }

    /// Returns the number of a block of group descriptors. All descriptors must
    /// match.
    pub(super) fn desc_number(&self, kind: BitmapKind, image: &Image) -> Option<FileBlock> {
        let per_block = self.geo.block_size / GroupDesc::SIZE as u64;
        let groups = self.bits(kind).div_ceil(self.geo.bits_per_group());
        let mut numbers = (0..groups.div_ceil(per_block)).map(FileBlock);
        numbers.find(|number| {
            let first = number.0 * per_block;
            (first..groups.min(first + per_block)).all(|group| {
                let at = ((group - first) * GroupDesc::SIZE as u64) as usize;
                let word = image
                    .bytes
                    .get(at..at + 8)
                    .map_or(0, |b| b.iter().rev().fold(0, |w, x| w << 8 | u64::from(*x)));
                Ptr(word).fits(kind.bitmap_at(self.geo, group))
            })
        })
    }
}
