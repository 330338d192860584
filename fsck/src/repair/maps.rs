//! Repairs file maps: damaged pointers, missing parts, targets of symbolic links.

use super::Repairer;
use super::bitmaps::one_byte_off;
use crate::findings::Part;
use crate::outcome::{Done, Lost};
use pramfs_medium::error::Result;
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::checksum::crc;
use pramfs_medium::media::inode::INLINE_TARGET;
use pramfs_medium::media::pointer::{LEAF, Ptr, PtrAt, UNWRITTEN};
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{Bno, FileBlock, FileType, Ino, RegionOffset};

/// A pointer of a map, and its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocatedPtr {
    /// Offset in the region; `None` for the root.
    pub at: Option<RegionOffset>,
    pub place: PtrAt,
    pub ptr: Ptr,
}

impl Repairer<'_, '_> {
    /// Finds the pointer of a level that covers a file block.
    pub(super) fn find_pointer(
        &self,
        map: &MapRoot,
        level: u32,
        first: FileBlock,
    ) -> Result<Option<LocatedPtr>> {
        if map.height > self.geo.max_height() || level > map.height {
            return Ok(None);
        }
        let mut found = LocatedPtr {
            at: None,
            place: map.at(self.geo, map.height, first),
            ptr: map.root,
        };
        while found.place.level > level {
            if found.ptr.is_hole() || found.ptr.is_leaf() {
                return Ok(None);
            }
            let Ok(block) = map.open(self.geo, found.ptr, found.place) else {
                return Ok(None);
            };
            let place = map.at(self.geo, found.place.level - 1, first);
            let slot = self.geo.slot_at(place.level, first);
            let at = self.geo.offset(block) + slot * 8;
            found = LocatedPtr {
                at: Some(at),
                place,
                ptr: Ptr(self.view.load_u64(at)?),
            };
        }
        Ok(Some(found))
    }

    /// Returns the original of a damaged pointer, if one byte of it is wrong and its block
    /// is in use without an owner. A pointer block is proven by its pointers.
    pub(super) fn correct_map_pointer(&self, map: &MapRoot, f: &LocatedPtr) -> Result<Option<Ptr>> {
        let word = f.ptr.0;
        let low = word & ((1 << 48) - 1);
        if f.ptr.fits(f.place) {
            // Only a flag is invalid.
            let flags = f.ptr.flags() & if f.place.level == 0 { UNWRITTEN } else { 0 };
            let ptr = Ptr::new(f.ptr.block(), flags, f.place);
            let good = f.place.level == 0 && map.open(self.geo, ptr, f.place).is_ok();
            return Ok((good && self.is_lost(ptr.block().0)?).then_some(ptr));
        }
        let candidates = (0..6u32)
            .flat_map(|byte| (0..256u64).map(move |x| (byte, x)))
            .map(|(byte, x)| low & !(0xff << (byte * 8)) | x << (byte * 8));
        let mut found = None;
        for low in candidates {
            let (block, flags) = (Bno(low & ((1 << 40) - 1)), low & !((1 << 40) - 1));
            let data = f.place.level == 0 || flags & LEAF != 0;
            let allowed = if data { LEAF | UNWRITTEN } else { 0 };
            if flags & !allowed != 0 || block.0 == 0 || block.0 >= self.geo.blocks() {
                continue;
            }
            let ptr = Ptr::new(block, flags, f.place);
            if !one_byte_off(ptr.0, word) || found == Some(ptr) {
                continue;
            }
            if map.open(self.geo, ptr, f.place).is_err() {
                continue;
            }
            let span = if data {
                self.geo.span(f.place.level)
            } else {
                1
            };
            let mut proven = self.is_lost(block.0)? && self.is_lost(block.0 + span - 1)?;
            // If no bitmap can be found before this map is repaired, the content
            // of the block must prove it.
            if map.ino >= Ino::INODE_TABLE && self.is_unknown(block.0) {
                proven = !data || self.is_block_of(map.ino, f.place.first(self.geo), block)?;
            }
            if proven && !data {
                proven = self.is_pointer_block(map, block, &f.place)?;
            }
            if proven && found.replace(ptr).is_some() {
                return Ok(None);
            }
        }
        Ok(found)
    }

    /// Whether a block holds only pointers of the level below.
    pub(super) fn is_pointer_block(
        &self,
        map: &MapRoot,
        block: Bno,
        above: &PtrAt,
    ) -> Result<bool> {
        let words = self.words(self.geo.offset(block))?;
        let used: Vec<_> = (0..).zip(&words).filter(|(_, w)| **w != 0).collect();
        let fits = |(i, w): (u64, &u64)| {
            let place = above.below(self.geo, i);
            map.open(self.geo, Ptr(*w), place).is_ok() || Ptr(*w).is_lost(place)
        };
        // One damaged pointer among others does not disprove it.
        let good = used.iter().filter(|(i, w)| fits((*i, w))).count();
        Ok(good > 0 && good + 1 >= used.len())
    }

    /// Repairs a damaged pointer of a file: corrects it, finds its pointer block,
    /// or else marks its range as lost.
    pub(super) fn repair_pointer(
        &mut self,
        ino: Ino,
        part: Part,
        level: u32,
        first: FileBlock,
    ) -> Result<bool> {
        if part != Part::Contents {
            return self.rebuild(ino, part);
        }
        let Some(mut d) = self.inode(ino)? else {
            return Ok(false);
        };
        let map = MapRoot::of(&d);
        let Some(found) = self.find_pointer(&map, level, first)? else {
            if map.height > self.geo.max_height() || level >= map.height {
                self.lose_range(&d, map.height, FileBlock(0));
                self.mark_whole(&mut d)?;
                self.recount(ino);
                return self.put_inode(ino, d);
            }
            // Below a pointer that was repaired in this round.
            return Ok(true);
        };
        if let Some(table) = self.divide_bad_leaf(&map, &found)? {
            return self.put_pointer(ino, &found, table);
        }
        let mut right = self.correct_map_pointer(&map, &found)?;
        if let Some(ptr) = right {
            self.known.claims.claim(ptr.block().0, 1);
            self.did(Done::Corrected);
        } else if level > 0 {
            right = self.find_table(&found)?;
            if right.is_some() {
                self.did(Done::Rebuilt);
            }
        }
        if right.is_none() {
            self.lose_range(&d, level, first);
        }
        match right {
            Some(ptr) => self.put_pointer(ino, &found, ptr),
            None => self.mark(ino, &found),
        }
    }

    /// Stores a pointer in a file's map.
    pub(super) fn put_pointer(&mut self, ino: Ino, f: &LocatedPtr, ptr: Ptr) -> Result<bool> {
        match f.at {
            Some(at) => {
                self.view.store_u64(at, ptr.0)?;
                Ok(true)
            }
            None => self.edit(ino, |d| {
                d.root = ptr.0;
                if ptr.is_hole() {
                    d.height = 0;
                }
            }),
        }
    }

    /// Repairs a hole in contents that must be whole.
    pub(super) fn repair_hole(&mut self, ino: Ino, part: Part) -> Result<bool> {
        match part {
            Part::Contents => self.repair_target(ino),
            _ => self.rebuild(ino, part),
        }
    }

    /// Repairs a symbolic link with a damaged target: corrects one wrong bit, and
    /// frees surplus blocks. Otherwise it removes the link, because a wrong target
    /// is worse than none.
    pub(super) fn repair_target(&mut self, ino: Ino) -> Result<bool> {
        let Some(mut d) = self.inode(ino)? else {
            return Ok(false);
        };
        if FileType::from_mode(d.mode) != Some(FileType::Symlink) {
            return Ok(false);
        }
        let len = d.size as usize;
        if (INLINE_TARGET + 1..=4095).contains(&len)
            && let Some(target) = self.long_target(&d)?
        {
            let wanted = u32::from_le_bytes([d.target[0], d.target[1], d.target[2], d.target[3]]);
            if crc(self.geo.seed, &target) == wanted {
                if !target.contains(&0) {
                    return self.shorten(ino, &mut d);
                }
            } else if let Some(bit) = self.wrong_bit(&target, wanted) {
                let map = MapRoot::of(&d);
                let blocks = self.map_blocks(&map)?.unwrap_or_default();
                let at = bit / 8;
                if let Some(block) = blocks.get(&self.geo.file_block(at as u64)) {
                    let offset = self.geo.offset(*block) + self.geo.within_block(at as u64);
                    self.view.store(offset, &[target[at] ^ 1 << (bit % 8)])?;
                    self.did(Done::Corrected);
                    return Ok(true);
                }
            }
        }
        self.lose(Some(ino), Lost::Link);
        self.did(Done::Removed);
        self.free_inode(ino)
    }

    fn long_target(&self, d: &DiskInode) -> Result<Option<Vec<u8>>> {
        let Some(blocks) = self.map_blocks(&MapRoot::of(d))? else {
            return Ok(None);
        };
        let mut target = Vec::new();
        for i in 0..self.geo.blocks_for(d.size) {
            let Some(block) = blocks.get(&FileBlock(i)) else {
                return Ok(None);
            };
            let mut part = vec![0; self.geo.block_size as usize];
            self.view.read(self.geo.offset(*block), &mut part)?;
            target.extend_from_slice(&part);
        }
        target.truncate(d.size as usize);
        Ok(Some(target))
    }

    /// Returns the bit whose flip makes the CRC match.
    fn wrong_bit(&self, target: &[u8], wanted: u32) -> Option<usize> {
        let mut target = target.to_vec();
        (0..target.len() * 8).find(|bit| {
            target[bit / 8] ^= 1 << (bit % 8);
            let fits = crc(self.geo.seed, &target) == wanted && !target.contains(&0);
            target[bit / 8] ^= 1 << (bit % 8);
            fits
        })
    }

    /// Frees all blocks of a link but those of its target.
    fn shorten(&mut self, ino: Ino, d: &mut DiskInode) -> Result<bool> {
        let end = self.geo.file_block_from(d.size);
        let Some(mut data) = self.map_blocks(&MapRoot::of(d))? else {
            return Ok(false);
        };
        data.retain(|i, _| *i < end);
        let (root, height, _) = self.build_map(ino, &data)?;
        (d.root, d.height) = (root, height as u8);
        self.recount(ino);
        self.did(Done::Corrected);
        let d = *d;
        self.put_inode(ino, d)
    }
}
