//! Salvages as much of a hash tree as possible: undamaged leaves, leaves with one
//! wrong byte, pointers that can be corrected, and single items of leaves that
//! cannot be.
//!
//! The hash proves a name. The inode number in an item of a damaged leaf counts
//! only if the inode exists and has the type in the item; a directory must also
//! name this directory as its parent.

use std::collections::HashSet;

use super::Repairer;
use super::bitmaps::one_byte_off;
use crate::outcome::Done;
use pramfs_medium::error::Result;
use pramfs_medium::htree::{
    HASH_BITS, Image, LeafAt, TIE_MASK, TreeKind, TreeRef, item_parts, name_hash,
};
use pramfs_medium::media::correct;
use pramfs_medium::media::htree::{LEAF_MAGIC, LeafHeader, LeafShape, SLOT, TAG_FREE};
use pramfs_medium::media::pointer::{LEAF, Ptr, PtrAt};
use pramfs_medium::types::{Bno, Ino, RegionOffset};

/// Offset of the sum in a leaf.
pub(super) const SUM_AT: usize = std::mem::offset_of!(LeafHeader, sum);

/// A salvaged item.
#[derive(Debug, Clone)]
pub(super) struct SalvagedEntry {
    pub hash: u64,
    pub kind: u8,
    pub value: Vec<u8>,
    pub name: Vec<u8>,
}

impl SalvagedEntry {
    /// Returns the inode that an entry names.
    pub(super) fn ino(&self) -> Ino {
        Ino(self
            .value
            .first_chunk()
            .map_or(0, |b| u64::from_le_bytes(*b)))
    }
}

/// The salvaged parts of a tree.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// Items, those of undamaged leaves first.
    pub items: Vec<SalvagedEntry>,
    /// Corrected pointers: offset (`None` for the root) and word.
    pub pointers: Vec<(Option<RegionOffset>, u64)>,
    /// Corrected leaves: block and bytes.
    pub leaves: Vec<(u64, Vec<u8>)>,
    /// A part could not be read and cannot be corrected in place.
    pub lost: bool,
    /// Leaves were rewritten with their verified items, so counts change.
    pub renewed: bool,
    /// Slots with pointers past correction.
    pub broken: Vec<Option<RegionOffset>>,
    /// An index block without pointers was found. Its pointer is cleared.
    pub empty: bool,
    visited: HashSet<u64>,
    doubtful: Vec<SalvagedEntry>,
}

impl Gathered {
    /// Returns the action on a tree that was repaired in place.
    pub(super) fn in_place(&self) -> Done {
        match (self.renewed, self.empty) {
            (true, _) => Done::Rebuilt,
            (_, true) => Done::Cleared,
            _ => Done::Corrected,
        }
    }
}

/// Returns the level of the root of a kind of tree, as the checks of pointers
/// count it.
pub(super) fn first_level(kind: TreeKind) -> u32 {
    match kind {
        TreeKind::Directory => 16,
        TreeKind::Xattrs => 32,
    }
}

/// The slots that lead to one leaf.
#[derive(Debug, Clone, Copy)]
struct LeafSlots {
    /// Place of the first; `None` for the root.
    first: Option<RegionOffset>,
    count: usize,
}

impl Repairer<'_, '_> {
    /// Salvages a tree.
    pub(super) fn gather(&mut self, t: &TreeRef) -> Result<Gathered> {
        let mut g = Gathered::default();
        self.gather_slots(t, &mut g, &[t.root.0], None, 0, 0)?;
        if g.lost || g.empty || self.lacks_leaves(t, &g)? {
            self.gather_lost(t, &mut g)?;
        }
        let doubtful = std::mem::take(&mut g.doubtful);
        for item in doubtful {
            if self.is_plausible(t, &item)? {
                g.items.push(item);
            }
        }
        Ok(g)
    }

    /// Salvages below the slots of the index block at `base`, or below the root.
    fn gather_slots(
        &mut self,
        t: &TreeRef,
        g: &mut Gathered,
        words: &[u64],
        base: Option<RegionOffset>,
        level: u32,
        first: u64,
    ) -> Result<()> {
        let mut slot = 0;
        // Slots before this one belong to a leaf that was already read.
        let mut done = 0;
        let mut broken = Vec::new();
        while slot < words.len() {
            let (word, index) = (words[slot], first + slot as u64);
            let own = base.map(|b| b + slot as u64 * 8);
            slot += 1;
            if word == 0 || slot - 1 < done {
                continue;
            }
            let mut ptr = Ptr(word);
            if t.open(self.geo, ptr, level, index).is_err() {
                match self.correct_pointer(t, word, level, index)? {
                    Some(right) => {
                        g.pointers.push((own, right.0));
                        ptr = right;
                    }
                    None => {
                        broken.push(slot - 1);
                        continue;
                    }
                }
            }
            let block = ptr.block();
            if !ptr.is_leaf() {
                if (level + 1) * self.geo.fan_log2 > HASH_BITS || !g.visited.insert(block.0) {
                    g.lost = true;
                    continue;
                }
                let at = self.geo.offset(block);
                let below = self.words(at)?;
                if below.iter().all(|w| *w == 0) {
                    g.empty = true;
                    g.pointers.push((own, 0));
                    continue;
                }
                let first = index << self.geo.fan_log2;
                self.gather_slots(t, g, &below, Some(at), level + 1, first)?;
                continue;
            }
            if !g.visited.insert(block.0) {
                // Another slot of the previous leaf: handled there.
                continue;
            }
            if let Some(depth) = self.gather_leaf(t, g, block, level, index)? {
                let run = 1usize << (level * self.geo.fan_log2 - depth);
                let start = (slot - 1) & !(run - 1);
                let end = (start + run).min(words.len());
                for (i, word) in (start..).zip(&words[start..end]) {
                    let index = first + i as u64;
                    let right = self.tree_pointer(t, block, LEAF, level, index);
                    let corrected = g.pointers.iter().any(|(_, w)| *w == right.0);
                    if *word != right.0 && !corrected {
                        g.pointers.push((base.map(|b| b + i as u64 * 8), right.0));
                    }
                }
                broken.retain(|b| *b < start);
                done = done.max(start + run);
            } else {
                let rest = &words[slot - 1..];
                let same = |w: &&u64| Ptr(**w).is_leaf() && Ptr(**w).block() == block;
                let run = rest.iter().take_while(same).count();
                let whole = run.is_power_of_two() && (slot - 1).is_multiple_of(run);
                if whole && !self.known.shared.contains(&block.0) {
                    let first = base.map(|b| b.word((slot - 1) as u64));
                    let at = LeafSlots { first, count: run };
                    self.renew_leaf(t, g, block, level, index, at)?;
                } else {
                    g.lost = true;
                    let image = self.image(block)?;
                    g.doubtful.extend(self.single_items(t, &image));
                }
                done = done.max(slot - 1 + run);
            }
        }
        for slot in broken {
            // A leaf without an owner may belong here.
            let (index, at) = (first + slot as u64, base.map(|b| b + slot as u64 * 8));
            let Some(block) = self.leaf_for(t, g, level, index)? else {
                g.lost = true;
                g.broken.push(at);
                continue;
            };
            let ptr = self.tree_pointer(t, block, LEAF, level, index);
            g.pointers.push((at, ptr.0));
            if g.visited.insert(block.0) {
                self.gather_leaf(t, g, block, level, index)?;
            }
        }
        Ok(())
    }

    /// Finds a leaf for a slot among the blocks in use without an owner.
    fn leaf_for(
        &mut self,
        t: &TreeRef,
        g: &Gathered,
        level: u32,
        index: u64,
    ) -> Result<Option<Bno>> {
        let bits = level * self.geo.fan_log2;
        let hash = index.checked_shl(HASH_BITS - bits).unwrap_or(0);
        let taken = |b: &u64| {
            g.visited.contains(b) && !g.pointers.iter().any(|(_, w)| Ptr(*w).block().0 == *b)
        };
        let leaves = self.scan()?.leaves_of(t);
        for block in leaves.into_iter().filter(|b| !taken(b)) {
            let image = self.image(Bno(block))?;
            let place = LeafAt {
                block: Bno(block),
                level,
                hash,
            };
            if image.check(t, self.geo, place, true).is_ok() {
                return Ok(Some(Bno(block)));
            }
        }
        Ok(None)
    }

    /// Rewrites in place a leaf that cannot be corrected, with its verified items.
    /// A leaf without any is removed.
    fn renew_leaf(
        &mut self,
        t: &TreeRef,
        g: &mut Gathered,
        block: Bno,
        level: u32,
        index: u64,
        at: LeafSlots,
    ) -> Result<()> {
        let bits = level * self.geo.fan_log2;
        let depth = bits - at.count.trailing_zeros();
        let hash = index.checked_shl(HASH_BITS - bits).unwrap_or(0);
        let width = (1u64 << (HASH_BITS - depth)) - 1;
        let image = self.image(block)?;
        let mut items: Vec<SalvagedEntry> = Vec::new();
        for item in self.single_items(t, &image) {
            let here = item.hash & !width == hash & !width;
            let twin = items.iter().any(|i| i.name == item.name);
            if here && !twin && self.is_plausible(t, &item)? {
                items.push(item);
            }
        }
        super::build::rehash(&mut items)?;
        g.renewed = true;
        let used = items.iter().map(super::build::slots_for).sum();
        let deep = level > 0 && depth <= (level - 1) * self.geo.fan_log2;
        if items.is_empty() || used > self.geo.leaf.slots || deep {
            // Only overlapping slots can yield more items than fit.
            g.doubtful.extend(items);
            g.lost |= !g.doubtful.is_empty();
            for i in 0..at.count as u64 {
                g.pointers.push((at.first.map(|a| a.word(i)), 0));
            }
            return Ok(());
        }
        let bytes = self.leaf_bytes(t, &items, depth, used, block);
        g.leaves.push((block.0, bytes));
        g.items.extend(items);
        Ok(())
    }

    /// Reads the items of a leaf, corrected if necessary. Returns its depth; `None`
    /// if it cannot be corrected.
    fn gather_leaf(
        &mut self,
        t: &TreeRef,
        g: &mut Gathered,
        block: Bno,
        level: u32,
        index: u64,
    ) -> Result<Option<u32>> {
        let mut image = self.image(block)?;
        let bits = level * self.geo.fan_log2;
        let hash = index.checked_shl(HASH_BITS - bits).unwrap_or(0);
        let place = LeafAt { block, level, hash };
        if image.check(t, self.geo, place, true).is_err() {
            match self.correct_leaf(t, &image, place)? {
                Some(right) => {
                    g.leaves.push((block.0, right.bytes.clone()));
                    image = right;
                }
                None => return Ok(None),
            }
        }
        g.items.extend(self.raw_items(t, &image));
        Ok(image.depth(self.geo, level, hash).ok())
    }

    pub(super) fn image(&self, block: Bno) -> Result<Image> {
        let mut bytes = vec![0; self.geo.leaf.block_size];
        self.view.read(self.geo.offset(block), &mut bytes)?;
        Ok(Image { bytes })
    }

    pub(super) fn raw_items(&self, t: &TreeRef, image: &Image) -> Vec<SalvagedEntry> {
        let items = image.items(t, &self.geo.leaf).unwrap_or_default();
        let parts = items.iter().filter_map(|i| item_parts(&image.bytes, i.at));
        parts
            .map(|(head, value, name)| SalvagedEntry {
                hash: head.hash(),
                kind: head.kind,
                value: value.to_vec(),
                name: name.to_vec(),
            })
            .collect()
    }

    /// Returns the leaf with one byte corrected. If several corrections match its
    /// sum, it must be the only one that makes all items plausible.
    fn correct_leaf(&mut self, t: &TreeRef, image: &Image, place: LeafAt) -> Result<Option<Image>> {
        let seed = t.leaf_seed(self.geo, place.block);
        let mut found: Option<(Image, Vec<u8>)> = None;
        for (at, word) in correct::leaf(&image.bytes, SUM_AT, seed) {
            let mut right = Image {
                bytes: image.bytes.clone(),
            };
            right.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            if right.check(t, self.geo, place, true).is_err() {
                continue;
            }
            let items = self.raw_items(t, &right);
            let mut all = true;
            for item in &items {
                all &= self.is_plausible(t, item)?;
            }
            if !all {
                continue;
            }
            let text: Vec<u8> = format!("{items:?}").into_bytes();
            match &found {
                // They differ only in unused bytes.
                Some((_, other)) if *other == text => {}
                Some(_) => return Ok(None),
                None => found = Some((right, text)),
            }
        }
        Ok(found.map(|f| f.0))
    }

    /// Returns the items of a damaged leaf that are valid by themselves.
    pub(super) fn single_items(&self, t: &TreeRef, image: &Image) -> Vec<SalvagedEntry> {
        let shape = &self.geo.leaf;
        let mut out = Vec::new();
        let mut slot = 0;
        while slot < shape.slots {
            let (tag, at) = (
                image.bytes[LeafShape::TAGS_AT + slot],
                shape.slots_at + slot * SLOT,
            );
            slot += 1;
            if tag == TAG_FREE {
                continue;
            }
            let Some((head, value, name)) = item_parts(&image.bytes, at) else {
                continue;
            };
            let named = !name.is_empty()
                && !name.contains(&0)
                && name_hash(self.geo, name) == head.hash() & !TIE_MASK;
            let entry = !matches!(name, b"." | b"..") && !name.contains(&b'/') && value.len() == 8;
            if named && (t.kind == TreeKind::Xattrs || entry) {
                slot += (12 + value.len() + name.len()).div_ceil(SLOT) - 1;
                out.push(SalvagedEntry {
                    hash: head.hash(),
                    kind: head.kind,
                    value: value.to_vec(),
                    name: name.to_vec(),
                });
            }
        }
        out
    }

    /// Whether the content of an item is plausible.
    pub(super) fn is_plausible(&mut self, t: &TreeRef, item: &SalvagedEntry) -> Result<bool> {
        if t.kind == TreeKind::Xattrs {
            return Ok(matches!(item.kind, 1 | 2));
        }
        let ino = item.ino();
        let Some(info) = self.known.inodes.get(ino).copied() else {
            return Ok(false);
        };
        let kind_fits = info.kind == 0 || info.kind == item.kind;
        let parent_fits = match self.known.inodes.dirs.get(info.dir as usize) {
            Some(dir) => dir.parent == t.ino.0,
            None => true,
        };
        Ok(ino >= Ino::FIRST_FREE && kind_fits && parent_fits)
    }

    /// Builds a pointer of a tree to a block.
    pub(super) fn tree_pointer(
        &self,
        t: &TreeRef,
        block: Bno,
        flags: u64,
        level: u32,
        index: u64,
    ) -> Ptr {
        let place = PtrAt {
            fs_seed: self.geo.seed,
            ino: t.ino,
            level: first_level(t.kind) + level,
            index,
        };
        Ptr::new(block, flags, place)
    }

    /// Returns the original of a damaged pointer, if one byte of it is wrong and the
    /// content of the block proves it.
    fn correct_pointer(
        &mut self,
        t: &TreeRef,
        word: u64,
        level: u32,
        index: u64,
    ) -> Result<Option<Ptr>> {
        let low = word & ((1 << 48) - 1);
        let candidates = (0..6u32)
            .flat_map(|byte| (0..256u64).map(move |x| (byte, x)))
            .map(|(byte, x)| low & !(0xff << (byte * 8)) | x << (byte * 8));
        let mut found = None;
        for low in candidates {
            let (block, flags) = (Bno(low & ((1 << 40) - 1)), low & !((1 << 40) - 1));
            if flags & !LEAF != 0 || block.0 == 0 || block.0 >= self.geo.blocks() {
                continue;
            }
            let ptr = self.tree_pointer(t, block, flags, level, index);
            if !one_byte_off(ptr.0, word) || found == Some(ptr) {
                continue;
            }
            let proven = if ptr.is_leaf() {
                let image = self.image(block)?;
                let h = image.header();
                h.magic == LEAF_MAGIC
                    && h.owner == t.ino.0
                    && h.sum == image.sum(t.leaf_seed(self.geo, block))
            } else {
                self.is_index(t, block, level + 1, index)?
            };
            if proven && found.replace(ptr).is_some() {
                return Ok(None);
            }
        }
        Ok(found)
    }

    /// Whether a block is the index block below a pointer.
    fn is_index(&self, t: &TreeRef, block: Bno, level: u32, above: u64) -> Result<bool> {
        if level * self.geo.fan_log2 > HASH_BITS {
            return Ok(false);
        }
        let words = self.words(self.geo.offset(block))?;
        let first = above << self.geo.fan_log2;
        let fits = |(i, w): (u64, &u64)| t.open(self.geo, Ptr(*w), level, first + i).is_ok();
        let used: Vec<_> = (0..).zip(&words).filter(|(_, w)| **w != 0).collect();
        Ok(!used.is_empty() && used.into_iter().all(fits))
    }

    /// Whether leaves of a tree are missing behind null pointers, judged by the
    /// entry count of a directory or by the block count.
    fn lacks_leaves(&mut self, t: &TreeRef, g: &Gathered) -> Result<bool> {
        let Some(d) = self.inode(t.ino)? else {
            return Ok(false);
        };
        let entries = t.kind == TreeKind::Directory && d.size > g.items.len() as u64;
        Ok(entries || self.notes.searched.contains(&t.ino.0))
    }

    /// Salvages leaves of a tree that no pointer leads to.
    fn gather_lost(&mut self, t: &TreeRef, g: &mut Gathered) -> Result<()> {
        let leaves = self.scan()?.leaves_of(t);
        let mut names: HashSet<Vec<u8>> = match leaves.is_empty() {
            true => return Ok(()),
            false => g.items.iter().map(|i| i.name.clone()).collect(),
        };
        for block in leaves {
            if g.visited.insert(block) {
                let image = self.image(Bno(block))?;
                for item in self.single_items(t, &image) {
                    if !names.contains(&item.name) && self.is_plausible(t, &item)? {
                        names.insert(item.name.clone());
                        g.items.push(item);
                        g.lost = true;
                    }
                }
            }
        }
        Ok(())
    }
}
