//! Repairs trees of entries and of attributes: corrects them in place if
//! possible, else rebuilds them from the readable parts. Also repairs single
//! entries.

use std::collections::HashSet;

use zerocopy::IntoBytes;

use super::Repairer;
use super::build::FileBlocks;
use super::gather::{Gathered, SUM_AT, SalvagedEntry, first_level};
use crate::findings::Part;
use crate::outcome::{Done, Lost};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::htree::{HASH_BITS, Image, TreeKind, TreeRef, item_parts, name_hash};
use pramfs_medium::media::checksum::crc;
use pramfs_medium::media::htree::{
    ItemHeader, LargeValue, LeafHeader, LeafShape, SLOT, TAG_FREE, VALUE_IN_BLOCKS, VALUE_INLINE,
    VALUE_MAX,
};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::media::{DiskInode, acl};
use pramfs_medium::types::{Bno, FileBlock, Ino};

impl Repairer<'_, '_> {
    pub(super) fn rebuild(&mut self, ino: Ino, part: Part) -> Result<bool> {
        match part {
            Part::Entries => self.rebuild_directory(ino, None),
            Part::Xattrs | Part::XattrValue => self.rebuild_xattrs(ino),
            Part::Contents => Ok(false),
        }
    }

    /// Stores corrections in place.
    fn correct_in_place(&mut self, g: &Gathered, root: &mut u64) -> Result<()> {
        for (block, bytes) in &g.leaves {
            self.view.store(self.geo.offset(Bno(*block)), bytes)?;
        }
        for (at, word) in &g.pointers {
            match at {
                Some(at) => self.view.store_u64(*at, *word)?,
                None => *root = *word,
            }
        }
        Ok(())
    }

    /// Repairs the tree of a directory. With `but`, removes this entry and all
    /// others to be removed in this round: a rebuild takes time in proportion to
    /// the directory, so one rebuild removes all of them.
    pub(super) fn rebuild_directory(&mut self, dir: Ino, but: Option<&[u8]>) -> Result<bool> {
        let Some(mut d) = self.inode(dir)? else {
            return Ok(false);
        };
        let key = (dir.0, first_level(TreeKind::Directory));
        if but.is_none() && self.rebuilt.contains(&key) {
            return Ok(true);
        }
        if but.is_some() && self.stuck.contains(&dir.0) {
            return Err(Error::NoSpace("no free block to rebuild a directory"));
        }
        let t = TreeRef::directory(&d);
        let g = self.gather(&t)?;
        let count = d.size.saturating_sub(g.items.len() as u64);
        let mut names = HashSet::new();
        let unique = g.items.iter().all(|i| names.insert(i.name.clone()));
        if but.is_none() && unique && !g.lost && !(g.leaves.is_empty() && g.pointers.is_empty()) {
            self.correct_in_place(&g, &mut d.root)?;
            if g.renewed || g.empty || count > 0 {
                d.size = g.items.len() as u64;
                self.recount(dir);
            }
            self.fate(key, g.in_place());
        } else {
            self.fate(key, Done::Rebuilt);
            let mut names = HashSet::new();
            let mut items = Vec::new();
            let to_remove = self.to_remove.get(&dir.0).cloned().unwrap_or_default();
            for item in g.items.iter().cloned() {
                let goes = but.is_some_and(|b| item.name == b || to_remove.contains(&item.name));
                let kept = !goes && names.insert(item.name.clone());
                if kept {
                    items.push(item);
                } else {
                    self.recount(item.ino());
                }
            }
            d.size = items.len() as u64;
            self.recount(dir);
            match self.build_tree(&t, items) {
                Ok(root) => d.root = root.0,
                // Without space, repair in place: clear pointers past correction.
                Err(Error::NoSpace(_)) if but.is_none() && unique => {
                    self.correct_in_place(&g, &mut d.root)?;
                    for at in &g.broken {
                        match at {
                            Some(at) => self.view.store_u64(*at, 0)?,
                            None => d.root = 0,
                        }
                    }
                }
                Err(e) => {
                    self.stuck.insert(dir.0);
                    return Err(e);
                }
            }
        }
        if count > 0 {
            self.lose(Some(dir), Lost::Names { count });
        }
        self.rebuilt.insert(key);
        self.put_inode(dir, d)
    }

    /// Repairs a directory that holds fewer entries than it counts: searches for
    /// leaves that no pointer leads to. Entries not found are lost.
    pub(super) fn repair_entries(&mut self, dir: Ino, found: u64) -> Result<bool> {
        let Some(d) = self.inode(dir)? else {
            return Ok(false);
        };
        if self.gather(&TreeRef::directory(&d))?.lost {
            return self.rebuild_directory(dir, None);
        }
        let key = (dir.0, first_level(TreeKind::Directory));
        if self.rebuilt.contains(&key) {
            return Ok(true);
        }
        let count = d.size.saturating_sub(found);
        self.lose(Some(dir), Lost::Names { count });
        self.fate(key, Done::Set);
        self.recount(dir);
        self.edit(dir, |d| d.size = found)
    }

    /// Adds entries to a directory with an undamaged tree.
    pub(super) fn add_entries(&mut self, dir: Ino, new: Vec<SalvagedEntry>) -> Result<bool> {
        let Some(mut d) = self.inode(dir)? else {
            return Ok(false);
        };
        let t = TreeRef::directory(&d);
        let mut items = self.gather(&t)?.items;
        items.extend(new);
        d.size = items.len() as u64;
        d.root = self.build_tree(&t, items)?.0;
        self.recount(dir);
        self.put_inode(dir, d)
    }

    /// Notes that a repair changed the counts of an inode.
    pub(super) fn recount(&mut self, ino: Ino) {
        self.notes.recount.insert(ino.0);
    }

    /// Finds an entry by name. Returns the block of its leaf, the leaf, and the
    /// offset of the item in it.
    fn find_entry(&self, d: &DiskInode, name: &[u8]) -> Result<Option<(Bno, Image, usize)>> {
        let t = TreeRef::directory(d);
        let hash = name_hash(self.geo, name);
        let (mut ptr, mut level) = (t.root, 0);
        loop {
            let bits = level * self.geo.fan_log2;
            if ptr.is_hole() || bits > HASH_BITS {
                return Ok(None);
            }
            let index = hash.checked_shr(HASH_BITS - bits).unwrap_or(0);
            let Ok(block) = t.open(self.geo, ptr, level, index) else {
                return Ok(None);
            };
            if ptr.is_leaf() {
                let image = self.image(block)?;
                let items = image.items(&t, &self.geo.leaf).unwrap_or_default();
                let at = items.iter().map(|i| i.at).find(|at| {
                    item_parts(&image.bytes, *at).is_some_and(|(.., found)| found == name)
                });
                return Ok(at.map(|at| (block, image, at)));
            }
            level += 1;
            let below = hash >> (HASH_BITS - level * self.geo.fan_log2);
            let slot = below & ((1 << self.geo.fan_log2) - 1);
            ptr = Ptr(self.view.load_u64(self.geo.offset(block) + slot * 8)?);
        }
    }

    fn put_leaf(&mut self, dir: Ino, block: Bno, mut image: Image) -> Result<()> {
        let t = TreeRef {
            ino: dir,
            kind: TreeKind::Directory,
            root: Ptr::HOLE,
            blocks: 0,
        };
        let sum = image.sum(t.leaf_seed(self.geo, block));
        image.bytes[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        self.view.store(self.geo.offset(block), &image.bytes)?;
        Ok(())
    }

    /// Removes an entry: in place, unless that empties its leaf.
    pub(super) fn remove_entry(&mut self, dir: Ino, name: &[u8]) -> Result<bool> {
        let Some(mut d) = self.inode(dir)? else {
            return Ok(false);
        };
        let Some((block, mut image, at)) = self.find_entry(&d, name)? else {
            // Already removed.
            return Ok(true);
        };
        let mut header = image.header();
        let Some((head, value, _)) = item_parts(&image.bytes, at) else {
            return Ok(false);
        };
        let named = value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        if header.items <= 1 && Ptr(d.root).block() != block {
            return self.rebuild_directory(dir, Some(name));
        }
        let bytes = ItemHeader::SIZE + usize::from(head.value_len) + usize::from(head.name_len);
        let n = bytes.div_ceil(SLOT);
        let slot = (at - self.geo.leaf.slots_at) / SLOT;
        let tags = LeafShape::TAGS_AT + slot;
        image.bytes[tags..tags + n].fill(TAG_FREE);
        header.items = header.items.saturating_sub(1);
        header.used_slots = header.used_slots.saturating_sub(n as u16);
        image.bytes[..LeafHeader::SIZE].copy_from_slice(header.as_bytes());
        self.put_leaf(dir, block, image)?;
        d.size = d.size.saturating_sub(1);
        self.recount(dir);
        self.recount(Ino(named));
        self.put_inode(dir, d)
    }

    /// Sets the type of an entry to that of its inode.
    pub(super) fn repair_entry_type(&mut self, dir: Ino, name: &[u8], ino: Ino) -> Result<bool> {
        let (Some(d), Some(target)) = (self.inode(dir)?, self.inode(ino)?) else {
            return Ok(false);
        };
        let Some((block, mut image, at)) = self.find_entry(&d, name)? else {
            return Ok(false);
        };
        image.bytes[at + std::mem::offset_of!(ItemHeader, kind)] = (target.mode >> 12 & 15) as u8;
        self.put_leaf(dir, block, image)?;
        Ok(true)
    }

    // ---- attributes

    /// Repairs the attributes of an inode. Intact ones stay.
    pub(super) fn rebuild_xattrs(&mut self, ino: Ino) -> Result<bool> {
        let Some(mut d) = self.inode(ino)? else {
            return Ok(false);
        };
        let key = (ino.0, first_level(TreeKind::Xattrs));
        if !self.rebuilt.insert(key) {
            return Ok(true);
        }
        let t = TreeRef {
            ino,
            kind: TreeKind::Xattrs,
            root: Ptr(d.xattr_root),
            blocks: 0,
        };
        let g = self.gather(&t)?;
        let (mut names, mut kept) = (HashSet::new(), Vec::new());
        let mut all = !g.lost;
        for item in &g.items {
            let fits = match item.kind {
                _ if acl::fault(d.mode, item.kind, &item.name, &item.value) => {
                    // The ACL masked the group permissions.
                    if item.name == acl::ACCESS {
                        d.mode &= !0o070;
                    }
                    None
                }
                VALUE_INLINE => Some(item.clone()),
                VALUE_IN_BLOCKS => self.whole_value(ino, item)?,
                // The engine reads an unknown kind as inline: make it inline.
                _ => Some(SalvagedEntry {
                    kind: VALUE_INLINE,
                    ..item.clone()
                }),
            };
            match fits {
                Some(whole) if names.insert(whole.name.clone()) => {
                    all &= whole.value == item.value && whole.kind == item.kind;
                    kept.push(whole);
                }
                _ => {
                    all = false;
                    self.fate(key, Done::Removed);
                    let name = item.name.clone();
                    self.lose(Some(ino), Lost::Attribute { name });
                }
            }
        }
        let gone = g.lost || g.renewed || g.empty;
        if gone {
            self.lose(Some(ino), Lost::Attributes);
        }
        if gone && !names.contains(acl::ACCESS) {
            // The lost attributes may include an ACL; then these bits were its
            // mask.
            d.mode &= !0o070;
        }
        if all {
            self.correct_in_place(&g, &mut d.xattr_root)?;
            self.fate(key, g.in_place());
            if gone {
                self.recount(ino);
            }
        } else {
            if !self.fates.contains_key(&key) {
                self.fate(key, Done::Rebuilt);
            }
            d.xattr_root = self.build_tree(&t, kept)?.0;
            self.recount(ino);
        }
        self.put_inode(ino, d)
    }

    /// Returns a large attribute with an intact value and blocks of its own;
    /// `None` if the value is damaged.
    fn whole_value(&mut self, ino: Ino, item: &SalvagedEntry) -> Result<Option<SalvagedEntry>> {
        let Some(large) = LargeValue::parse(&item.value) else {
            return Ok(None);
        };
        let len = large.len as usize;
        if len > VALUE_MAX {
            return Ok(None);
        }
        let map = large.map(ino, name_hash(self.geo, &item.name));
        let found = self.walk_small(&map)?;
        let needed = self.geo.blocks_for(u64::from(large.len));
        let mut whole = !found.damaged && found.data.len() as u64 == needed;
        let mut bytes = Vec::with_capacity(len);
        for i in 0..needed {
            let mut block = found.data.get(&FileBlock(i)).copied();
            if block.is_none()
                && let Some(f) = self.find_pointer(&map, 0, FileBlock(i))?
                && !f.ptr.is_hole()
            {
                block = self.correct_map_pointer(&map, &f)?.map(Ptr::block);
                whole = false;
            }
            let Some(block) = block else {
                return Ok(None);
            };
            let mut part = vec![0; self.geo.block_size as usize];
            self.view.read(self.geo.offset(block), &mut part)?;
            bytes.extend_from_slice(&part);
        }
        bytes.truncate(len);
        if crc(self.geo.seed, &bytes) != large.crc {
            return Ok(None);
        }
        whole &= found.blocks.iter().all(|b| !self.known.shared.contains(b));
        if whole {
            return Ok(Some(item.clone()));
        }
        // It has surplus or multiply-claimed blocks: make a copy.
        let mut copy = FileBlocks::new();
        for (i, part) in (0..).zip(bytes.chunks(self.geo.block_size as usize)) {
            let block = self.alloc_zeroed()?;
            self.view.store(self.geo.offset(block), part)?;
            copy.insert(FileBlock(i), block);
        }
        let (root, height, _) = self.build_map(map.ino, &copy)?;
        let value = LargeValue::new(Ptr(root), height, large.len, large.crc);
        Ok(Some(SalvagedEntry {
            value: value.as_bytes().to_vec(),
            ..item.clone()
        }))
    }

    /// Returns the written data blocks of a small map; `None` if it is damaged.
    pub(super) fn map_blocks(&self, map: &MapRoot) -> Result<Option<FileBlocks>> {
        let found = self.walk_small(map)?;
        Ok((!found.damaged).then_some(found.data))
    }

    /// Reads a small map, as far as possible.
    fn walk_small(&self, map: &MapRoot) -> Result<SmallMap> {
        let mut out = SmallMap::default();
        if map.height > 3 {
            out.damaged = true;
            return Ok(out);
        }
        let mut rest = vec![(map.root_at(self.geo), map.root)];
        while let Some((place, ptr)) = rest.pop() {
            if ptr.is_hole() {
                continue;
            }
            let block = match map.open(self.geo, ptr, place) {
                Ok(block) if ptr.flags() == 0 && out.blocks.len() < 1 << 12 => block,
                _ => {
                    out.damaged = true;
                    continue;
                }
            };
            out.blocks.push(block.0);
            if place.level == 0 {
                out.data.insert(place.first(self.geo), block);
                continue;
            }
            let words = self.words(self.geo.offset(block))?;
            let below = (0..).zip(words);
            rest.extend(below.map(|(i, w)| (place.below(self.geo, i), Ptr(w))));
        }
        Ok(out)
    }
}

/// The readable part of a small map.
#[derive(Debug, Default)]
struct SmallMap {
    /// Data blocks by their number.
    data: FileBlocks,
    /// All its blocks.
    blocks: Vec<u64>,
    damaged: bool,
}
