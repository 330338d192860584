//! Builds a hash tree or a file map in free blocks. Nothing refers to these blocks
//! until the root in the inode changes.

use std::collections::BTreeMap;

use zerocopy::IntoBytes;

use super::Repairer;
use super::gather::{SUM_AT, SalvagedEntry};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::htree::{HASH_BITS, Image, TIE_MASK, TreeRef};
use pramfs_medium::media::htree::{ItemHeader, LEAF_MAGIC, LeafHeader, LeafShape, SLOT, TAG_NEXT};
use pramfs_medium::media::pointer::{LEAF, Ptr, PtrAt};
use pramfs_medium::types::{Bno, FileBlock, Ino};

/// Blocks of a file, by their place in it.
pub(super) type FileBlocks = BTreeMap<FileBlock, Bno>;

/// Number of hash bits that can separate leaves.
const SPLIT_BITS: u32 = 55;

/// Slots of one level that share `depth` hash bits.
#[derive(Debug, Clone, Copy)]
struct SlotRange {
    level: u32,
    first: u64,
    depth: u32,
}

pub(super) fn slots_for(item: &SalvagedEntry) -> usize {
    (ItemHeader::SIZE + item.value.len() + item.name.len()).div_ceil(SLOT)
}

fn tag_of(hash: u64) -> u8 {
    (2 + ((((hash >> 8) & 0xffff) * 254) >> 16)) as u8
}

impl Repairer<'_, '_> {
    /// Builds a tree of items and returns its root. A hash that occurs twice gets
    /// another tie-breaker.
    pub(super) fn build_tree(&mut self, t: &TreeRef, mut items: Vec<SalvagedEntry>) -> Result<Ptr> {
        items.sort_by_key(|i| i.hash);
        rehash(&mut items)?;
        if items.is_empty() {
            return Ok(Ptr::HOLE);
        }
        let mut root = [0];
        let range = SlotRange {
            level: 0,
            first: 0,
            depth: 0,
        };
        self.fill(t, &items, range, &mut root)?;
        Ok(Ptr(root[0]))
    }

    fn fill(
        &mut self,
        t: &TreeRef,
        items: &[SalvagedEntry],
        range: SlotRange,
        out: &mut [u64],
    ) -> Result<()> {
        if items.is_empty() {
            out.fill(0);
            return Ok(());
        }
        let used: usize = items.iter().map(slots_for).sum();
        if used <= self.geo.leaf.slots {
            let block = self.build_leaf(t, items, range.depth, used)?;
            for (i, word) in (0..).zip(out) {
                *word = self
                    .tree_pointer(t, block, LEAF, range.level, range.first + i)
                    .0;
            }
            return Ok(());
        }
        if range.depth >= SPLIT_BITS {
            return Err(Error::NoSpace("too many names with the same hash"));
        }
        if out.len() > 1 {
            return self.halves(t, items, range, out);
        }
        let below_range = SlotRange {
            level: range.level + 1,
            first: range.first << self.geo.fan_log2,
            depth: range.depth,
        };
        let mut below = vec![0u64; 1 << self.geo.fan_log2];
        self.halves(t, items, below_range, &mut below)?;
        let block = self.alloc()?;
        self.view.store(self.geo.offset(block), below.as_bytes())?;
        out[0] = self.tree_pointer(t, block, 0, range.level, range.first).0;
        Ok(())
    }

    fn halves(
        &mut self,
        t: &TreeRef,
        items: &[SalvagedEntry],
        range: SlotRange,
        out: &mut [u64],
    ) -> Result<()> {
        let bit = 1u64 << (HASH_BITS - 1 - range.depth);
        let (low, high) = items.split_at(items.partition_point(|i| i.hash & bit == 0));
        let half = out.len() / 2;
        let (out_low, out_high) = out.split_at_mut(half);
        let depth = range.depth + 1;
        self.fill(t, low, SlotRange { depth, ..range }, out_low)?;
        let first = range.first + half as u64;
        self.fill(
            t,
            high,
            SlotRange {
                depth,
                first,
                ..range
            },
            out_high,
        )
    }

    fn build_leaf(
        &mut self,
        t: &TreeRef,
        items: &[SalvagedEntry],
        depth: u32,
        used: usize,
    ) -> Result<Bno> {
        let block = self.alloc()?;
        let bytes = self.leaf_bytes(t, items, depth, used, block);
        self.view.store(self.geo.offset(block), &bytes)?;
        Ok(block)
    }

    /// Builds a leaf of items that fit it.
    pub(super) fn leaf_bytes(
        &self,
        t: &TreeRef,
        items: &[SalvagedEntry],
        depth: u32,
        used: usize,
        block: Bno,
    ) -> Vec<u8> {
        let shape = &self.geo.leaf;
        let width = (1u64 << (HASH_BITS - depth)) - 1;
        let header = LeafHeader {
            magic: LEAF_MAGIC,
            depth: depth as u16,
            items: items.len() as u16,
            owner: t.ino.0,
            prefix: items.first().map_or(0, |i| i.hash & !width),
            used_slots: used as u16,
            ..LeafHeader::default()
        };
        let mut image = Image {
            bytes: vec![0; shape.block_size],
        };
        image.bytes[..LeafHeader::SIZE].copy_from_slice(header.as_bytes());
        let mut slot = 0;
        for item in items {
            let n = slots_for(item);
            let (tag, mut at) = (LeafShape::TAGS_AT + slot, shape.slots_at + slot * SLOT);
            image.bytes[tag..tag + n].fill(TAG_NEXT);
            image.bytes[tag] = tag_of(item.hash);
            let head = ItemHeader {
                hash_low: item.hash as u32,
                hash_high: (item.hash >> 32) as u32,
                value_len: item.value.len() as u16,
                name_len: item.name.len() as u8,
                kind: item.kind,
            };
            for part in [head.as_bytes(), &item.value, &item.name] {
                image.bytes[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            slot += n;
        }
        let sum = image.sum(t.leaf_seed(self.geo, block));
        image.bytes[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        std::mem::take(&mut image.bytes)
    }

    /// Builds a file map of data blocks by their number in the file. Returns its
    /// root, its height, and its number of blocks, including pointer blocks.
    pub(super) fn build_map(&mut self, ino: Ino, data: &FileBlocks) -> Result<(u64, u32, u64)> {
        let Some((&last, _)) = data.last_key_value() else {
            return Ok((0, 0, 0));
        };
        let place = |level: u32, index: u64| PtrAt {
            fs_seed: self.geo.seed,
            ino,
            level,
            index,
        };
        let mut level = 0;
        let mut blocks = data.len() as u64;
        let mut nodes: BTreeMap<u64, Bno> = data.iter().map(|(i, b)| (i.0, *b)).collect();
        while self.geo.index_at(level, last) > 0 {
            let mut above: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for (index, block) in nodes {
                let ptr = Ptr::new(block, 0, place(level, index));
                let words = above
                    .entry(index >> self.geo.fan_log2)
                    .or_insert_with(|| vec![0; self.geo.fan() as usize]);
                words[(index & (self.geo.fan() - 1)) as usize] = ptr.0;
            }
            nodes = BTreeMap::new();
            for (index, words) in above {
                let block = self.alloc()?;
                self.view.store(self.geo.offset(block), words.as_bytes())?;
                nodes.insert(index, block);
                blocks += 1;
            }
            level += 1;
        }
        let root = nodes.get(&0).copied().unwrap_or(Bno(0));
        let root = Ptr::new(root, 0, place(level, 0));
        Ok((root.0, level, blocks))
    }
}

/// Gives items with the same hash different tie-breakers. Keeps tie-breakers that
/// already differ.
pub(super) fn rehash(items: &mut [SalvagedEntry]) -> Result<()> {
    let mut start = 0;
    while start < items.len() {
        let base = items[start].hash & !TIE_MASK;
        let same = |i: &&SalvagedEntry| i.hash & !TIE_MASK == base;
        let end = start + items[start..].iter().take_while(same).count();
        let mut used = [false; 256];
        let mut again = Vec::new();
        for (i, item) in (start..).zip(&items[start..end]) {
            let tie = (item.hash & TIE_MASK) as usize;
            if std::mem::replace(&mut used[tie], true) {
                again.push(i);
            }
        }
        for i in again {
            let free = used.iter().position(|u| !u);
            let Some(tie) = free else {
                return Err(Error::NoSpace("too many names with the same hash"));
            };
            used[tie] = true;
            items[i].hash = base | tie as u64;
        }
        items[start..end].sort_by_key(|i| i.hash);
        start = end;
    }
    Ok(())
}
