//! Repairs the internal inodes, which locate the inode table and the group
//! descriptors.

use std::collections::HashSet;
use std::collections::btree_map::Entry;

use zerocopy::{FromZeros, IntoBytes};

use super::Repairer;
use super::build::FileBlocks;
use super::maps::LocatedPtr;
use crate::maps::Extent;
use crate::outcome::Done;
use pramfs_medium::error::{Damage, Error, Result};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc};
use pramfs_medium::media::correct;
use pramfs_medium::media::pointer::{LEAF, Ptr, PtrAt};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{Bno, FileBlock, Ino, RegionOffset};

impl Repairer<'_, '_> {
    /// Repairs an internal inode and its map. `lost`: it is damaged in both pages.
    pub(super) fn repair_internal(&mut self, ino: Ino, lost: bool) -> Result<bool> {
        if lost {
            return self.correct_internal(ino);
        }
        if !self.rebuilt.insert((ino.0, 0)) {
            return Ok(true);
        }
        let Some(mut d) = self.internal(ino)? else {
            return Ok(false);
        };
        let map = MapRoot::of(&d);
        let mut data = self.known_blocks(ino);
        let corrected = self.correct_internal_pointers(&map)?;
        for (at, word) in &corrected {
            match at {
                Some(at) => self.view.store_u64(*at, *word)?,
                None => {
                    d.root = *word;
                    self.put_internal(ino, d)?;
                }
            }
        }
        // The next round sees what lies behind these, and what could not be
        // corrected.
        if !corrected.is_empty() {
            self.fate((ino.0, 0), Done::Corrected);
            return Ok(true);
        }
        // A multiply-claimed block belongs to it only if its content says so.
        let mut foreign = Vec::new();
        for (number, block) in &data {
            if self.known.shared.contains(&block.0) && !self.is_block_of(ino, *number, *block)? {
                foreign.push(*number);
            }
        }
        let (scanned, needed) = self.missing_blocks(ino)?;
        let own = self.pointer_blocks(ino)?;
        let shared = own.iter().any(|b| self.known.shared.contains(b));
        if foreign.is_empty()
            && !shared
            && needed
                .iter()
                .all(|n| data.contains_key(n) || scanned.contains_key(n))
        {
            let new = scanned.iter().filter(|(n, _)| !data.contains_key(n));
            let patches = self.patches(&map, new)?;
            if !patches.is_empty() {
                for (at, word) in patches {
                    self.view.store_u64(at, word)?;
                }
                self.fate((ino.0, 0), Done::Corrected);
                return Ok(true);
            }
        }
        for number in foreign {
            data.remove(&number);
        }
        for (number, block) in scanned {
            if let Entry::Vacant(v) = data.entry(number) {
                v.insert(block);
                self.known.claims.claim(block.0, 1);
            }
        }
        for number in needed {
            if let Entry::Vacant(v) = data.entry(number) {
                // Zeros are not valid descriptors: the next round rebuilds the
                // bitmaps from what is in use.
                v.insert(self.alloc_zeroed()?);
            }
        }
        self.fate((ino.0, 0), Done::Rebuilt);
        let (root, height, blocks) = self.build_map(ino, &data)?;
        (d.root, d.height, d.blocks) = (root, height as u8, blocks);
        self.put_internal(ino, d)
    }

    /// Returns the pointers to found blocks, if existing pointer blocks have a
    /// place for all of them: this takes no space. Otherwise returns none.
    fn patches<'n>(
        &self,
        map: &MapRoot,
        new: impl Iterator<Item = (&'n FileBlock, &'n Bno)>,
    ) -> Result<Vec<(RegionOffset, u64)>> {
        let mut out = Vec::new();
        for (number, block) in new {
            let found = self.find_pointer(map, 0, *number)?;
            let Some((at, f)) = found.and_then(|f| f.at.map(|at| (at, f))) else {
                return Ok(Vec::new());
            };
            out.push((at, Ptr::new(*block, 0, f.place).0));
        }
        Ok(out)
    }

    /// Whether the content of a block proves that it is this block of the map.
    pub(super) fn is_block_of(&self, ino: Ino, number: FileBlock, block: Bno) -> Result<bool> {
        let image = self.image(block)?;
        let says = match ino {
            // One inode suffices, because its own pointer says the same.
            Ino::INODE_TABLE => return Ok(self.inodes_in(&image).contains(&Some(number))),
            Ino::INODE_GROUPS => self.desc_number(BitmapKind::Inodes, &image),
            _ => self.desc_number(BitmapKind::Blocks, &image),
        };
        Ok(says == Some(number))
    }

    /// Reads an internal inode from the first page in which it is valid.
    pub(super) fn internal(&self, ino: Ino) -> Result<Option<DiskInode>> {
        for page in self.geo.pages() {
            let d: DiskInode = self.view.read_pod(page + Self::internal_at(ino))?;
            if self.internal_fits(ino, &d) {
                return Ok(Some(d));
            }
        }
        Ok(None)
    }

    /// Corrects an internal inode that is damaged in both pages, if one page has
    /// only one wrong byte.
    fn correct_internal(&mut self, ino: Ino) -> Result<bool> {
        for page in self.geo.pages() {
            let at = page + Self::internal_at(ino);
            let d: DiskInode = self.view.read_pod(at)?;
            let right = correct::inode(&d, self.geo.seed, ino);
            if let Some(right) = right.filter(|r| self.internal_fits(ino, r)) {
                self.view.store(at, right.as_bytes())?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn known_blocks(&self, ino: Ino) -> FileBlocks {
        let extents: &[Extent] = match ino {
            Ino::INODE_TABLE => &self.known.table,
            Ino::INODE_GROUPS => &self.known.descs[1],
            _ => &self.known.descs[0],
        };
        extents.iter().flat_map(|e| e.blocks()).collect()
    }

    /// Returns corrections of the damaged pointers of a map. It follows existing
    /// pointers, not block numbers: a forged map has 2^54 of those.
    fn correct_internal_pointers(&self, map: &MapRoot) -> Result<Vec<(Option<RegionOffset>, u64)>> {
        let mut corrected = Vec::new();
        let mut seen = HashSet::new();
        let mut rest = vec![LocatedPtr {
            at: None,
            place: map.root_at(self.geo),
            ptr: map.root,
        }];
        while let Some(f) = rest.pop() {
            if f.ptr.is_hole() {
                continue;
            }
            match map.open(self.geo, f.ptr, f.place) {
                Ok(block) if f.ptr.flags() & !LEAF == 0 => {
                    if f.place.level > 0 && !f.ptr.is_leaf() && seen.insert(block.0) {
                        rest.extend(self.pointers_in(block, &f.place)?);
                    }
                }
                _ => {
                    let right = self.correct_map_pointer(map, &f)?;
                    corrected.extend(right.filter(|p| p.flags() == 0).map(|p| (f.at, p.0)));
                }
            }
        }
        Ok(corrected)
    }

    /// Returns the pointers in a pointer block; `above` is its place.
    fn pointers_in(&self, block: Bno, above: &PtrAt) -> Result<Vec<LocatedPtr>> {
        let base = self.geo.offset(block);
        let found = |(i, word)| LocatedPtr {
            at: Some(base + i * 8),
            place: above.below(self.geo, i),
            ptr: Ptr(word),
        };
        let words = (0..).zip(self.words(base)?).filter(|(_, word)| *word != 0);
        Ok(words.map(found).collect())
    }

    /// Returns the blocks that its map uses as pointer blocks.
    fn pointer_blocks(&self, ino: Ino) -> Result<Vec<u64>> {
        let Some(d) = self.internal(ino)? else {
            return Ok(Vec::new());
        };
        let map = MapRoot::of(&d);
        let (mut out, mut seen) = (Vec::new(), HashSet::new());
        let mut rest = vec![(map.root, map.root_at(self.geo))];
        while let Some((ptr, place)) = rest.pop() {
            let Ok(block) = map.open(self.geo, ptr, place) else {
                continue;
            };
            if place.level == 0 || ptr.is_leaf() || !seen.insert(block.0) {
                continue;
            }
            out.push(block.0);
            let below = self.pointers_in(block, &place)?;
            rest.extend(below.iter().map(|f| (f.ptr, f.place)));
        }
        Ok(out)
    }

    /// Returns the blocks found for its map, and the numbers of those that it must
    /// have.
    fn missing_blocks(&mut self, ino: Ino) -> Result<(FileBlocks, Vec<FileBlock>)> {
        let per_block = self.geo.block_size / GroupDesc::SIZE as u64;
        let groups = |f: &Self, kind| f.bits(kind).div_ceil(f.geo.bits_per_group());
        let needed = match ino {
            // These hold the reserved inodes.
            Ino::INODE_TABLE => 16u64.div_ceil(self.geo.inodes_per_block()),
            Ino::INODE_GROUPS => groups(self, BitmapKind::Inodes).div_ceil(per_block),
            _ => groups(self, BitmapKind::Blocks).div_ceil(per_block),
        };
        let needed = (0..needed).map(FileBlock).collect();
        let own = self.pointer_blocks(ino)?;
        let scan = self.scan()?;
        let mut found = match ino {
            Ino::INODE_TABLE => scan.table.clone(),
            Ino::INODE_GROUPS => scan.descs[1].clone(),
            _ => scan.descs[0].clone(),
        };
        // A pointer may lead to one of these blocks as if it were a pointer block.
        for block in own {
            let image = self.image(Bno(block))?;
            let number = match ino {
                Ino::INODE_TABLE => self.table_number(&image),
                Ino::INODE_GROUPS => self.desc_number(BitmapKind::Inodes, &image),
                _ => self.desc_number(BitmapKind::Blocks, &image),
            };
            if let Some(number) = number {
                found.entry(number).or_insert(Bno(block));
            }
        }
        Ok((found, needed))
    }

    /// Adds a block to the inode table. Returns the first inode number in it.
    pub(super) fn grow_table(&mut self) -> Result<Ino> {
        let mut data = self.known_blocks(Ino::INODE_TABLE);
        let number = (0..).map(FileBlock).find(|n| !data.contains_key(n));
        let number = number.unwrap_or(FileBlock(0));
        let ino = Ino((number.0 * self.geo.inodes_per_block()).max(Ino::FIRST_FREE.0));
        let Some(mut d) = self.internal(Ino::INODE_TABLE)? else {
            return Err(Error::corrupt(
                Damage::InternalInodeDamaged,
                "the inode table",
                "it cannot be read",
            ));
        };
        if ino.0 >= self.geo.inodes_max() {
            return Err(Error::NoSpace("no free inode for lost+found"));
        }
        let block = self.alloc_zeroed()?;
        data.insert(number, block);
        let (root, height, blocks) = self.build_map(Ino::INODE_TABLE, &data)?;
        (d.root, d.height, d.blocks) = (root, height as u8, blocks);
        self.put_internal(Ino::INODE_TABLE, d)?;
        let extent = Extent {
            first: number,
            count: 1,
            block,
            unwritten: false,
        };
        let at = self.known.table.partition_point(|e| e.first < number);
        self.known.table.insert(at, extent);
        Ok(ino)
    }

    /// Returns a new inode with valid fields.
    pub(super) fn fresh_inode(mode: u32) -> DiskInode {
        let mut d = DiskInode::new_zeroed();
        d.mode = mode;
        d.nlink = 1;
        d.change = 1;
        d
    }
}
