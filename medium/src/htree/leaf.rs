//! Reads, checks and searches leaves.
//!
//! The first use of a leaf after a mount checks all of it. Later uses read only the
//! lines they need, but still check every length against its bounds.

use std::cell::Cell;

use smallvec::SmallVec;
use zerocopy::FromBytes;

use super::scramble::scrambled;
use super::walk::BlockSource;
use super::{SPLIT_BITS, TIE_MASK, TreeKind, TreeRef, name_hash, prefix_of};
use crate::error::Result;
use crate::media::Geometry;
use crate::media::checksum::line_sum;
use crate::media::htree::{
    ItemHeader, LEAF_MAGIC, LeafHeader, LeafShape, SLOT, TAG_FREE, TAG_NEXT, equal_tags,
};
use crate::types::{Bno, RegionOffset};
use crate::volume::Volume;

/// Size of a line, bytes.
pub(super) const LINE: usize = 64;
/// Offset of the sum in a leaf.
pub(super) const SUM_AT: usize = std::mem::offset_of!(LeafHeader, sum);
/// Space for the tags of a leaf of any supported size, bytes.
pub(super) const TAG_BYTES: usize = 128;

const _: () = assert!(LeafShape::new(4096).slots_at - LeafShape::TAGS_AT <= TAG_BYTES);

/// Returns the number of slots that an item takes.
pub(super) const fn slots_for(value_len: usize, name_len: usize) -> usize {
    (ItemHeader::SIZE + value_len + name_len).div_ceil(SLOT)
}

/// Returns the tag of an item with this hash.
#[inline]
pub(super) fn tag_of(hash: u64) -> u8 {
    // 254 values, from the bits that the path to the leaf uses last.
    (2 + ((((hash >> 8) & 0xffff) * 254) >> 16)) as u8
}

/// Returns the preferred slot of an item with this hash, the first in a line. A
/// look-up fetches that line together with the tags. Correctness does not depend on
/// this slot.
#[inline]
pub(super) fn home_of(hash: u64, shape: &LeafShape) -> usize {
    // Bits that the tag does not use.
    (((hash >> 24) & 0xffff) as usize * shape.slots) >> 16 & !1
}

/// The tags of a leaf.
#[derive(Debug)]
pub(super) struct Tags([u8; TAG_BYTES]);

impl Tags {
    /// The tags of a leaf without items.
    pub(super) const FREE: Tags = Tags([TAG_FREE; TAG_BYTES]);

    /// Reads the tags of the leaf at region offset `base`.
    #[inline(always)]
    pub(super) fn read<S: BlockSource>(
        &mut self,
        s: &S,
        shape: &LeafShape,
        base: RegionOffset,
    ) -> Result<()> {
        let at = base + LeafShape::TAGS_AT as u64;
        match shape.slots_at - LeafShape::TAGS_AT {
            TAG_BYTES => s.bytes(at, &mut self.0),
            n => s.bytes(at, &mut self.0[..n.min(TAG_BYTES)]),
        }
    }

    /// Returns a mask of the slots with this tag.
    #[inline]
    pub(super) fn matching(&self, tag: u8, shape: &LeafShape) -> u128 {
        let mut mask = 0u128;
        for (i, part) in self.0.as_chunks::<16>().0.iter().enumerate() {
            mask |= u128::from(equal_tags(part, tag)) << (i * 16);
        }
        mask & ((1 << shape.slots) - 1)
    }

    /// Finds `need` consecutive free slots, at or after `home` or else anywhere.
    /// Returns the first of them.
    pub(super) fn find_free(&self, need: usize, home: usize, shape: &LeafShape) -> Option<usize> {
        find_run(self.matching(TAG_FREE, shape), need, home)
    }
}

/// Finds `need` consecutive bits, at or after `home` or else anywhere. Returns the
/// first of them.
pub(super) fn find_run(mut mask: u128, need: usize, home: usize) -> Option<usize> {
    let mut have = 1;
    while have < need {
        let step = have.min(need - have);
        mask &= mask >> step;
        have += step;
    }
    let behind = mask & u128::MAX << home;
    let mask = if behind != 0 { behind } else { mask };
    (mask != 0).then(|| mask.trailing_zeros() as usize)
}

/// The result of a look-up: an item.
#[derive(Debug, Clone, Copy)]
pub(super) struct ItemPos {
    /// First slot.
    pub slot: usize,
    /// Head.
    pub head: ItemHeader,
    /// Region offset of the item.
    pub at: RegionOffset,
}

/// Returns the number of slots of an item according to its head. Fails if they
/// extend past the end of the leaf.
fn slots_of(
    tree: &TreeRef,
    shape: &LeafShape,
    block: Bno,
    slot: usize,
    head: &ItemHeader,
) -> Result<usize> {
    let n = slots_for(head.value_len.into(), head.name_len.into());
    if slot + n > shape.slots {
        return Err(tree.bad_leaf(block, "an item leaves the block"));
    }
    Ok(n)
}

impl ItemPos {
    /// Returns the number of its slots, which all lie in the leaf.
    pub(super) fn slots(&self) -> usize {
        slots_for(self.head.value_len.into(), self.head.name_len.into())
    }
}

/// Looks for a name among the items of a leaf. Calls `ties` with the tie-breaker of
/// each item that has the same hash.
#[inline]
pub(super) fn look_up<S: BlockSource>(
    s: &S,
    tree: &TreeRef,
    block: Bno,
    tags: &Tags,
    hash: u64,
    name: &[u8],
    mut ties: impl FnMut(u8),
) -> Result<Option<ItemPos>> {
    let geo = &s.volume().geo;
    let shape = &geo.leaf;
    let mut mask = tags.matching(tag_of(hash), shape);
    while mask != 0 {
        let slot = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        let at = geo.offset(block) + (shape.slots_at + slot * SLOT) as u64;
        let [stored, second]: [u64; 2] = s.pod(at)?;
        if (stored ^ hash) > TIE_MASK {
            continue;
        }
        ties((stored & TIE_MASK) as u8);
        let head = ItemHeader {
            hash_low: stored as u32,
            hash_high: (stored >> 32) as u32,
            value_len: second as u16,
            name_len: (second >> 16) as u8,
            kind: (second >> 24) as u8,
        };
        slots_of(tree, shape, block, slot, &head)?;
        if usize::from(head.name_len) == name.len() && name_is(s, at, &head, name)? {
            return Ok(Some(ItemPos { slot, head, at }));
        }
    }
    Ok(None)
}

/// Tells whether the item at region offset `at` has this name. Its slots lie in the
/// leaf.
#[inline(always)]
fn name_is<S: BlockSource>(
    s: &S,
    at: RegionOffset,
    head: &ItemHeader,
    mut name: &[u8],
) -> Result<bool> {
    let mut from = ItemHeader::SIZE + usize::from(head.value_len);
    while !name.is_empty() {
        let mut slot = [0; SLOT];
        s.bytes(at + (from / SLOT * SLOT) as u64, &mut slot)?;
        let part = &slot[from % SLOT..];
        let n = part.len().min(name.len());
        if part[..n] != name[..n] {
            return Ok(false);
        }
        from += n;
        name = &name[n..];
    }
    Ok(true)
}

/// An item in a copy of a leaf.
#[derive(Debug, Clone, Copy)]
pub struct Item {
    /// Hash with its tie-breaker.
    pub hash: u64,
    /// Offset of its first byte in the copy.
    pub at: usize,
    /// Number of slots.
    pub slots: usize,
}

/// A copy of a leaf.
#[derive(Debug)]
pub struct Image {
    /// The bytes of the block. Items that are not stored yet may follow them.
    pub bytes: Vec<u8>,
}

thread_local! {
    /// Memory of dropped images, for reuse: one for reading, one for building.
    static SPARE: Cell<[Vec<u8>; 2]> = const { Cell::new([Vec::new(), Vec::new()]) };
}

impl Drop for Image {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        // Fails only when the thread ends, when the memory is no longer needed.
        let _ = SPARE.try_with(|s| {
            let [a, b] = s.take();
            s.set(if a.capacity() == 0 {
                [bytes, b]
            } else {
                [a, bytes]
            });
        });
    }
}

/// Returns head, value and name of the item at `at`, or `None` if they extend past
/// the end of the bytes.
pub fn item_parts(bytes: &[u8], at: usize) -> Option<(ItemHeader, &[u8], &[u8])> {
    let (head, rest) = ItemHeader::read_from_prefix(bytes.get(at..)?).ok()?;
    let value = rest.get(..head.value_len.into())?;
    let name = rest.get(value.len()..value.len() + usize::from(head.name_len))?;
    Some((head, value, name))
}

impl Image {
    /// Makes an image of `len` bytes with arbitrary contents.
    fn any(len: usize) -> Image {
        let mut bytes = SPARE
            .try_with(|s| {
                let [a, b] = s.take();
                s.set([b, Vec::new()]);
                a
            })
            .unwrap_or_default();
        bytes.resize(len, 0);
        Image { bytes }
    }

    /// Makes an image of zeros.
    pub fn zeroed(len: usize) -> Image {
        let mut image = Image::any(len);
        image.bytes.fill(0);
        image
    }

    /// Reads a copy of a leaf.
    pub fn read<S: BlockSource>(s: &S, block: Bno) -> Result<Image> {
        let geo = &s.volume().geo;
        let mut image = Image::any(geo.leaf.block_size);
        s.bytes(geo.offset(block), &mut image.bytes)?;
        Ok(image)
    }

    /// Returns the header.
    pub fn header(&self) -> LeafHeader {
        LeafHeader::read_from_prefix(&self.bytes)
            .map(|(h, _)| h)
            .unwrap_or_default()
    }

    /// Computes the sum over the lines.
    pub fn sum(&self, seed: u64) -> u64 {
        let Some((first, rest)) = self.bytes.as_chunks::<LINE>().0.split_first() else {
            return 0;
        };
        let mut sum = plain_line_sum(seed, 0, first);
        for (line, i) in rest.iter().zip(1..) {
            sum = sum.wrapping_add(line_sum(seed, i, line));
        }
        sum
    }

    /// Returns the items in the order of their slots. Any inconsistency is an error.
    pub fn items(&self, tree: &TreeRef, shape: &LeafShape) -> Result<Vec<Item>, &'static str> {
        let mut items = Vec::with_capacity(shape.slots);
        let tags = &self.bytes[LeafShape::TAGS_AT..shape.slots_at];
        let mut slot = 0;
        while slot < shape.slots {
            match tags[slot] {
                TAG_FREE => slot += 1,
                TAG_NEXT => return Err("a continuation slot without an item"),
                tag => {
                    let at = shape.slots_at + slot * SLOT;
                    let (head, value, name) = item_parts(&self.bytes[..shape.block_size], at)
                        .ok_or("an item leaves the block")?;
                    let n = slots_for(value.len(), name.len());
                    if slot + n > shape.slots
                        || tags[slot + 1..slot + n]
                            .iter()
                            .any(|&tree| tree != TAG_NEXT)
                    {
                        return Err("an item is longer than its slots");
                    }
                    if tag != tag_of(head.hash())
                        || head.hash() > u64::MAX >> 1
                        || head.hash() <= TIE_MASK
                    {
                        return Err("a hash does not fit its tag");
                    }
                    if !good_name(tree.kind, name)
                        || (tree.kind == TreeKind::Directory && value.len() != 8)
                    {
                        return Err("a name or value that cannot be");
                    }
                    items.push(Item {
                        hash: head.hash(),
                        at,
                        slots: n,
                    });
                    slot += n;
                }
            }
        }
        if tags[shape.slots..].iter().any(|&tree| tree != TAG_FREE) {
            return Err("a tag in use past the last slot");
        }
        Ok(items)
    }

    /// Returns the items in the order of their slots, if the sum fits. A leaf with a
    /// correct sum is unchanged since it was stored and was checked before. This
    /// function therefore checks only that no item exceeds its own slots.
    pub fn whole_items(
        &self,
        shape: &LeafShape,
        seed: u64,
    ) -> Result<SmallVec<[Item; TAG_BYTES]>, &'static str> {
        if self.sum(seed) != self.header().sum {
            return Err("its checksum does not fit");
        }
        let mut items = SmallVec::new();
        let tags = &self.bytes[LeafShape::TAGS_AT..shape.slots_at];
        let mut slot = 0;
        while slot < shape.slots {
            if tags[slot] == TAG_FREE {
                slot += 1;
                continue;
            }
            let at = shape.slots_at + slot * SLOT;
            let head = ItemHeader::read_from_prefix(&self.bytes[at..shape.block_size]);
            let (head, _) = head.map_err(|_| "an item leaves the block")?;
            let n = slots_for(head.value_len.into(), head.name_len.into());
            let more = tags.get(slot + 1..slot + n);
            if slot + n > shape.slots || more.is_none_or(|m| m.iter().any(|&tree| tree != TAG_NEXT))
            {
                return Err("an item is longer than its slots");
            }
            items.push(Item {
                hash: head.hash(),
                at,
                slots: n,
            });
            slot += n;
        }
        Ok(items)
    }

    /// Returns the depth if it is possible for a leaf at `level` on the path of
    /// `hash`.
    pub fn depth(&self, geo: &Geometry, level: u32, hash: u64) -> Result<u32, &'static str> {
        depth_of(&self.header(), geo, level, hash)
    }

    /// Checks all of a leaf. If `deep`, also checks
    /// that each hash is unique and matches its name.
    pub fn check(
        &self,
        tree: &TreeRef,
        geo: &Geometry,
        at: LeafAt,
        deep: bool,
    ) -> Result<(), &'static str> {
        let LeafAt { block, level, hash } = at;
        let h = self.header();
        if h.magic != LEAF_MAGIC {
            return Err("it is not a leaf");
        }
        if h.owner != tree.ino.0 {
            return Err("it belongs to another inode");
        }
        if self.sum(tree.leaf_seed(geo, block)) != h.sum {
            return Err("its checksum does not fit");
        }
        let depth = self.depth(geo, level, hash)?;
        let items = self.items(tree, &geo.leaf)?;
        // Only the root leaf of a directory may be empty: see `remove`.
        let may_be_empty = level == 0 && tree.kind == TreeKind::Directory;
        if items.len() != usize::from(h.items) || items.is_empty() && !may_be_empty {
            return Err("the number of items is wrong");
        }
        if items.iter().map(|i| i.slots).sum::<usize>() != usize::from(h.used_slots) {
            return Err("the number of slots in use is wrong");
        }
        if items.iter().any(|i| prefix_of(i.hash, depth) != h.prefix) {
            return Err("an item belongs in another leaf");
        }
        if deep {
            let mut hashes: Vec<_> = items.iter().map(|i| i.hash).collect();
            hashes.sort_unstable();
            if hashes.windows(2).any(|w| w[0] == w[1]) {
                return Err("two items have the same hash");
            }
            let fits = |i: &Item| {
                item_parts(&self.bytes, i.at).is_some_and(|(_, _, name)| match geo.scrambled {
                    false => name_hash(geo, name) == i.hash & !TIE_MASK,
                    true => name == scrambled(tree.kind, i.hash, name),
                })
            };
            if !items.iter().all(fits) {
                return Err("a hash is not that of its name");
            }
        }
        Ok(())
    }
}

/// A leaf, and where in its tree it is.
#[derive(Debug, Clone, Copy)]
pub struct LeafAt {
    /// The leaf.
    pub block: Bno,
    /// Number of index blocks above it.
    pub level: u32,
    /// A hash that leads to it.
    pub hash: u64,
}

/// Returns the depth of a leaf with this header; see [`Image::depth`].
pub(super) fn depth_of(
    h: &LeafHeader,
    geo: &Geometry,
    level: u32,
    hash: u64,
) -> Result<u32, &'static str> {
    let depth = u32::from(h.depth);
    let possible = match level {
        0 => depth == 0,
        _ => depth > (level - 1) * geo.fan_log2 && depth <= (level * geo.fan_log2).min(SPLIT_BITS),
    };
    if !possible || h.prefix != prefix_of(hash, depth) {
        return Err("it is in the wrong place");
    }
    Ok(depth)
}

fn good_name(kind: TreeKind, name: &[u8]) -> bool {
    match kind {
        TreeKind::Directory => {
            !matches!(name, b"" | b"." | b"..") && !name.iter().any(|&b| b == 0 || b == b'/')
        }
        TreeKind::Xattrs => !name.is_empty() && !name.contains(&0),
    }
}

/// Returns the contribution of a line to the sum of its leaf.
#[inline]
pub(super) fn plain_line_sum(seed: u64, index: usize, line: &[u8; LINE]) -> u64 {
    if index != 0 {
        return line_sum(seed, index as u64, line);
    }
    let mut first = *line;
    first[SUM_AT..SUM_AT + 8].fill(0);
    line_sum(seed, 0, &first)
}

/// Checks a leaf on the medium unless it has been checked before.
#[inline]
pub(super) fn verify(
    vol: &Volume,
    tree: &TreeRef,
    block: Bno,
    level: u32,
    hash: u64,
) -> Result<()> {
    if vol.verified.knows(block) {
        return Ok(());
    }
    verify_now(vol, tree, block, level, hash)
}

#[cold]
fn verify_now(vol: &Volume, tree: &TreeRef, block: Bno, level: u32, hash: u64) -> Result<()> {
    let image = Image::read(vol, block)?;
    image
        .check(tree, &vol.geo, LeafAt { block, level, hash }, false)
        .map_err(|what| tree.bad_leaf(block, what))?;
    vol.verified.note(block);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_free_returns_run_or_none() {
        let shape = LeafShape::new(4096);
        let mut tags = Tags([9; TAG_BYTES]);
        assert_eq!(tags.find_free(1, 0, &shape), None);
        tags.0[70] = 0;
        tags.0[100..109].fill(0);
        assert_eq!(tags.find_free(1, 0, &shape), Some(70));
        assert_eq!(tags.find_free(2, 0, &shape), Some(100));
        assert_eq!(tags.find_free(2, 104, &shape), Some(104));
        assert_eq!(tags.find_free(2, 108, &shape), Some(100));
        assert_eq!(tags.find_free(9, 0, &shape), Some(100));
        assert_eq!(tags.find_free(10, 0, &shape), None);
        tags.0[115..].fill(0);
        assert_eq!(tags.find_free(8, 0, &shape), Some(100));
        assert_eq!(tags.find_free(7, 0, &shape), Some(100));
        assert_eq!(Tags([0; TAG_BYTES]).find_free(122, 0, &shape), Some(0));
        assert_eq!(Tags([0; TAG_BYTES]).find_free(123, 0, &shape), None);
    }
}
