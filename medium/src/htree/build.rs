//! Builds part of a tree from items, in blocks that no pointer names yet.

use smallvec::SmallVec;
use zerocopy::IntoBytes;

use super::leaf::{Image, Item, SUM_AT, TAG_BYTES, find_run, home_of, tag_of};
use super::walk::{LeafPath, read_index, slot_of};
use super::{CALLER_ROOM, HASH_BITS, SPLIT_BITS, TreeRef, prefix_of};
use crate::error::{Error, Result};
use crate::media::htree::{LEAF_MAGIC, LeafHeader, LeafShape, SLOT, TAG_NEXT};
use crate::media::pointer::{LEAF, Ptr};
use crate::media::record::EntryKind;
use crate::types::{BlockRun, Bno};
use crate::volume::Plan;

/// A range of slots to fill: slots of one level that share `depth` bits of the hash.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotRange {
    /// Level of the slots; 0 is the root.
    pub level: u32,
    /// Number of the first slot in its level.
    pub first: u64,
    /// Number of hash bits that their items share.
    pub depth: u32,
}

/// Builds subtrees and counts their blocks.
pub(super) struct Builder<'a, 'v> {
    pub tx: &'a mut Plan<'v>,
    pub tree: TreeRef,
    /// Bytes that items refer to, each rounded up to whole slots.
    pub arena: &'a [u8],
    /// Block to allocate near.
    pub goal: Option<Bno>,
    /// Blocks taken.
    pub taken: i64,
}

impl Builder<'_, '_> {
    fn take(&mut self) -> Result<Bno> {
        let run = self.tx.alloc_blocks(self.goal, 1, true)?;
        self.taken += 1;
        Ok(run.start)
    }

    /// Fills `out`, the pointers of the slots of a place, with leaves for `items`.
    /// Splits the items if they do not fit `most` slots.
    pub(super) fn fill(
        &mut self,
        items: &mut [Item],
        range: SlotRange,
        out: &mut [u64],
        most: usize,
    ) -> Result<()> {
        let (tx, tree) = (&*self.tx, self.tree);
        let geo = &tx.volume().geo;
        let used: usize = items.iter().map(|i| i.slots).sum();
        if items.is_empty() {
            out.fill(0);
            return Ok(());
        }
        if used <= most || (used <= geo.leaf.slots && range.depth == SPLIT_BITS) {
            let block = self.leaf(items, range.depth, used)?;
            for (i, word) in out.iter_mut().enumerate() {
                *word = Ptr::new(
                    block,
                    LEAF,
                    tree.at(geo, range.level, range.first + i as u64),
                )
                .0;
            }
            return Ok(());
        }
        if range.depth >= SPLIT_BITS {
            return Err(Error::NoSpace("too many names with the same hash"));
        }
        if out.len() > 1 {
            return self.halves(items, range, out);
        }
        // A single slot cannot be split: add a level.
        let level = range.level + 1;
        let mut below = vec![0; 1 << geo.fan_log2];
        let first = range.first << geo.fan_log2;
        self.halves(
            items,
            SlotRange {
                level,
                first,
                depth: range.depth,
            },
            &mut below,
        )?;
        let block = self.take()?;
        self.tx.write_new(geo.offset(block), below.as_bytes())?;
        out[0] = Ptr::new(block, 0, tree.at(geo, range.level, range.first)).0;
        Ok(())
    }

    fn halves(&mut self, items: &mut [Item], range: SlotRange, out: &mut [u64]) -> Result<()> {
        let most = self.tx.volume().geo.leaf.slots;
        let bit = 1u64 << (HASH_BITS - 1 - range.depth);
        let (low, high) = divide(items, bit);
        let half = out.len() / 2;
        let (out_low, out_high) = out.split_at_mut(half);
        let depth = range.depth + 1;
        self.fill(low, SlotRange { depth, ..range }, out_low, most)?;
        self.fill(
            high,
            SlotRange {
                depth,
                first: range.first + half as u64,
                ..range
            },
            out_high,
            most,
        )
    }

    /// Writes one leaf.
    fn leaf(&mut self, items: &[Item], depth: u32, used: usize) -> Result<Bno> {
        let block = self.take()?;
        let vol = self.tx.volume();
        let (geo, shape) = (&vol.geo, &vol.geo.leaf);
        let header = LeafHeader {
            magic: LEAF_MAGIC,
            depth: depth as u16,
            items: items.len() as u16,
            owner: self.tree.ino.0,
            prefix: items.first().map_or(0, |i| prefix_of(i.hash, depth)),
            used_slots: used as u16,
            ..LeafHeader::default()
        };
        let mut image = Image::zeroed(shape.block_size);
        let bytes = &mut image.bytes;
        bytes[..LeafHeader::SIZE].copy_from_slice(header.as_bytes());
        for (i, slot) in items.iter().zip(places(items, used, shape)) {
            let (tag, at) = (LeafShape::TAGS_AT + slot, shape.slots_at + slot * SLOT);
            // A few bytes each: the loop is cheaper than a call.
            for (n, tag) in bytes[tag..tag + i.slots].iter_mut().enumerate() {
                *tag = if n == 0 { tag_of(i.hash) } else { TAG_NEXT };
            }
            let len = i.slots * SLOT;
            let (to, _) = bytes[at..at + len].as_chunks_mut::<SLOT>();
            let (from, _) = self.arena[i.at..i.at + len].as_chunks::<SLOT>();
            for (to, from) in to.iter_mut().zip(from) {
                *to = *from;
            }
        }
        let sum = image.sum(self.tree.leaf_seed(geo, block));
        image.bytes[SUM_AT..SUM_AT + 8].copy_from_slice(sum.as_bytes());
        self.tx.write_new(geo.offset(block), &image.bytes)?;
        vol.verified.note(block);
        Ok(block)
    }
}

/// Partitions items into those with a hash bit clear and those with it set.
fn divide(items: &mut [Item], bit: u64) -> (&mut [Item], &mut [Item]) {
    let mut clear = 0;
    for i in 0..items.len() {
        if items[i].hash & bit == 0 {
            items.swap(i, clear);
            clear += 1;
        }
    }
    items.split_at_mut(clear)
}

/// Returns the first slots of items in a new leaf. A leaf with much room puts each
/// item where a look-up fetches first. A leaf with little room packs the items, so
/// that its free slots stay contiguous.
fn places(items: &[Item], used: usize, shape: &LeafShape) -> SmallVec<[usize; TAG_BYTES]> {
    let mut slots = SmallVec::new();
    if used <= shape.slots * 5 / 8 {
        let mut free = (1u128 << shape.slots) - 1;
        for i in items {
            let Some(slot) = find_run(free, i.slots, home_of(i.hash, shape)) else {
                break;
            };
            free &= !(((1 << i.slots) - 1) << slot);
            slots.push(slot);
        }
        if slots.len() == items.len() {
            return slots;
        }
        slots.clear();
    }
    let mut next = 0;
    for i in items {
        slots.push(next);
        next += i.slots;
    }
    slots
}

/// Puts new pointers into slots of the level where `spot` ended, starting at slot
/// `first` of that level.
pub(super) fn put_pointers(
    tx: &mut Plan<'_>,
    tree: &mut TreeRef,
    spot: &LeafPath,
    first: u64,
    new: &[u64],
) -> Result<()> {
    if spot.level == 0 {
        tree.root = Ptr(new[0]);
        return Ok(());
    }
    let geo = &tx.volume().geo;
    let index = spot.index_block(spot.level);
    let slot = slot_of(geo, first);
    if tx.room() >= new.len() * 8 + CALLER_ROOM || new.len() == 1 {
        return tx.put(
            EntryKind::Pointer,
            geo.offset(index).word(slot),
            new.as_bytes(),
        );
    }
    // Too many pointers for this record: write a new index block and put only the
    // pointer to it into the record.
    let mut slots = read_index(&**tx, index)?;
    slots[slot as usize..slot as usize + new.len()].copy_from_slice(new);
    let block = tx.alloc_blocks(Some(index), 1, true)?.start;
    tx.write_new(geo.offset(block), slots.as_bytes())?;
    tx.free_blocks(BlockRun::one(index))?;
    let above = first >> geo.fan_log2;
    let ptr = Ptr::new(block, 0, tree.at(geo, spot.level - 1, above));
    if spot.level == 1 {
        tree.root = ptr;
        return Ok(());
    }
    let at = geo
        .offset(spot.index_block(spot.level - 1))
        .word(slot_of(geo, above));
    tx.put(EntryKind::Pointer, at, ptr.0.as_bytes())
}
