//! Repairs bitmaps: damaged descriptors, sums, and bits of inodes that cannot be
//! verified elsewhere.

use std::collections::HashSet;

use zerocopy::IntoBytes;

use super::edit::place;
use super::{GroupBits, Repairer};
use crate::outcome::Done;
use pramfs_medium::error::Result;
use pramfs_medium::htree::TreeRef;
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc, GroupState};
use pramfs_medium::media::correct;
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::types::{Bno, FileType, Ino};

/// Returns a block number and all others that one damaged byte can turn into it.
fn near(word: u64) -> impl Iterator<Item = u64> {
    let bytes = (0..6).flat_map(move |byte| (1..256u64).map(move |x| word ^ x << (byte * 8)));
    std::iter::once(word).chain(bytes)
}

impl Repairer<'_, '_> {
    /// Repairs the checksum mismatch of a bitmap. Corrects one wrong byte.
    /// Otherwise the bits stay, and the next round compares them with what is in
    /// use. In an inode bitmap, inodes reachable from the root are in use.
    pub(super) fn repair_sum(&mut self, kind: BitmapKind, group: u64) -> Result<bool> {
        let Some(desc_at) = self.desc_at(kind, group) else {
            return Ok(false);
        };
        let mut desc: GroupDesc = self.view.read_pod(desc_at)?;
        match GroupDesc::state(self.geo, kind, group, desc.bitmap) {
            GroupState::Unused => desc = GroupDesc::unused(self.geo, kind, group),
            GroupState::Bitmap(block) => {
                let at = self.geo.offset(block);
                let mut words = self.words(at)?;
                if correct::bitmap(&mut words, desc.sum, self.geo.seed) {
                    self.did(Done::Corrected);
                } else if kind == BitmapKind::Inodes {
                    self.mark_reachable(group, &mut words)?;
                } else if self.known.hidden_blocks {
                    if self.skips_guess() {
                        return Ok(false);
                    }
                    self.mark_nonempty(group, &mut words)?;
                }
                desc.sum = self.sum_of(&words);
                self.view.store(at, words.as_bytes())?;
            }
            GroupState::Damaged => return Ok(false),
        }
        self.view.store(desc_at, desc.as_bytes())?;
        Ok(true)
    }

    /// Clears bits past the end.
    pub(super) fn repair_past_end(&mut self, kind: BitmapKind, group: u64) -> Result<bool> {
        let (Some(desc_at), Some(GroupBits::At(at))) = (
            self.desc_at(kind, group),
            self.known.groups[place(kind)].get(group as usize).copied(),
        ) else {
            return Ok(false);
        };
        let first = group * self.geo.bits_per_group();
        let mut words = self.words(at)?;
        let before = self.sum_of(&words);
        for bit in self.bits(kind).saturating_sub(first)..self.geo.bits_per_group() {
            words[bit as usize / 64] &= !(1 << (bit % 64));
        }
        self.view.store(at, words.as_bytes())?;
        // A sum that did not match must not match now: other bits are damaged.
        let sum = self.view.load_u64(desc_at + 8)?;
        let sum = sum.wrapping_sub(before).wrapping_add(self.sum_of(&words));
        self.view.store_u64(desc_at + 8, sum)?;
        Ok(true)
    }

    /// Repairs the pointer to a bitmap. Searches for the bitmap with the sum in the
    /// descriptor. If it is not found, rebuilds it from the blocks in use.
    pub(super) fn repair_bitmap_pointer(&mut self, kind: BitmapKind, group: u64) -> Result<bool> {
        let Some(desc_at) = self.desc_at(kind, group) else {
            return Ok(false);
        };
        let mut desc: GroupDesc = self.view.read_pod(desc_at)?;
        let low = desc.bitmap & ((1 << 40) - 1);
        let last = ((group + 1) * self.geo.bits_per_group()).min(self.geo.blocks()) - 1;
        let mut found = None;
        for block in std::iter::once(last).chain(near(low)) {
            if block == 0 || block >= self.geo.blocks() || desc.sum == 0 {
                continue;
            }
            if self.known.claims.word(block / 64 * 64) >> (block % 64) & 1 != 0 {
                continue;
            }
            let words = self.words(self.geo.offset(Bno(block)))?;
            if self.sum_of(&words) == desc.sum {
                found = Some((block, words));
                break;
            }
        }
        let unused = GroupDesc::unused(self.geo, kind, group);
        if found.is_none() && desc.sum == 0 && one_byte_off(desc.bitmap, unused.bitmap) {
            self.did(Done::Corrected);
            self.view.store(desc_at, unused.as_bytes())?;
            return Ok(true);
        }
        let (block, words) = match found {
            Some(found) => {
                self.did(Done::Corrected);
                found
            }
            None => {
                let guess = kind == BitmapKind::Blocks && self.known.hidden_blocks;
                if guess && self.skips_guess() {
                    return Ok(false);
                }
                let block = self.bitmap_block(kind, group)?.0;
                let mut words = vec![0; self.geo.words_per_block() as usize];
                if kind == BitmapKind::Inodes {
                    self.mark_reachable(group, &mut words)?;
                } else {
                    let first = group * self.geo.bits_per_group();
                    for (i, word) in words.iter_mut().enumerate() {
                        *word = self.known.claims.word(first + i as u64 * 64);
                    }
                    if guess {
                        self.mark_nonempty(group, &mut words)?;
                    }
                }
                (block, words)
            }
        };
        desc = GroupDesc {
            bitmap: Ptr::new(Bno(block), 0, kind.bitmap_at(self.geo, group)).0,
            sum: self.sum_of(&words),
            ..GroupDesc::default()
        };
        if kind == BitmapKind::Blocks {
            let tail = self.geo.tail_of(Bno(block));
            self.known.claims.claim(tail.start, tail.end - tail.start);
        } else {
            self.known.claims.claim(block, 1);
        }
        self.view
            .store(self.geo.offset(Bno(block)), words.as_bytes())?;
        self.view.store(desc_at, desc.as_bytes())?;
        Ok(true)
    }

    /// Whether the policy leaves a bitmap that would need a guess: with blocks
    /// hidden behind damage, it would free those of zeros.
    fn skips_guess(&mut self) -> bool {
        self.left = self.preen;
        self.left
    }

    /// Marks all blocks that are not empty as in use. While blocks may be hidden
    /// behind damage, no later repair may allocate them. Blocks that then turn out
    /// to have no owner are freed or kept.
    fn mark_nonempty(&self, group: u64, words: &mut [u64]) -> Result<()> {
        let per_group = self.geo.bits_per_group();
        let first = group * per_group;
        let mut bytes = vec![0; self.geo.block_size as usize];
        for block in first..(first + per_group).min(self.geo.blocks()) {
            let (word, bit) = ((block - first) as usize / 64, 1u64 << (block % 64));
            if words[word] & bit == 0 {
                self.view.read(self.geo.offset(Bno(block)), &mut bytes)?;
                if bytes.iter().any(|b| *b != 0) {
                    words[word] |= bit;
                }
            }
        }
        Ok(())
    }

    /// Sets the bits of a group for the inodes that names lead to. Clears bits
    /// whose inodes cannot be read.
    fn mark_reachable(&mut self, group: u64, words: &mut [u64]) -> Result<()> {
        let per_group = self.geo.bits_per_group();
        let first = group * per_group;
        let range = first..(first + per_group).min(self.geo.inodes_max());
        let reached = self.reachable()?;
        for ino in range {
            let (word, bit) = ((ino - first) as usize / 64, 1u64 << (ino % 64));
            let reserved = ino < Ino::FIRST_FREE.0;
            let named = reached.contains(&ino);
            if reserved || named {
                words[word] |= bit;
            } else if words[word] & bit != 0 && self.inode(Ino(ino))?.is_none() {
                words[word] &= !bit;
            }
        }
        Ok(())
    }

    /// Returns the readable inodes that names lead to from the root, and orphans,
    /// regardless of the bitmap.
    fn reachable(&mut self) -> Result<HashSet<u64>> {
        let mut seen = HashSet::from([Ino::ROOT.0]);
        let mut dirs = vec![Ino::ROOT];
        while let Some(dir) = dirs.pop() {
            let Some(d) = self.inode(dir)? else {
                continue;
            };
            let tree = TreeRef::directory(&d);
            for item in self.gather(&tree)?.items {
                let ino = item.ino();
                let Some(child) = self.inode(ino)? else {
                    continue;
                };
                let kind = FileType::from_mode(child.mode);
                let fits = (child.mode >> 12 & 15) as u8 == item.kind;
                let new = ino >= Ino::FIRST_FREE && fits && seen.insert(ino.0);
                if new && kind == Some(FileType::Directory) {
                    dirs.push(ino);
                }
            }
        }
        for (_, ino) in self.orphan_slots()? {
            if self.inode(ino)?.is_some() {
                seen.insert(ino.0);
            }
        }
        Ok(seen)
    }
}

/// Whether words differ in at most one byte.
pub(super) fn one_byte_off(a: u64, b: u64) -> bool {
    let x = a ^ b;
    x == 0 || x.trailing_zeros() / 8 == 7 - x.leading_zeros() / 8
}
