//! Marks of loss: what cannot be brought back of a file's contents is no hole.
//! It reads as EIO until it is written, and a flag of the inode tells of it.
//!
//! A mark stands in place of the pointer that is gone, and covers what that did,
//! but nothing past the end of the file: who makes a file longer gets zeros.

use zerocopy::IntoBytes;

use super::Repairer;
use super::maps::Found;
use crate::error::{Error, Result};
use crate::fsck::inodes::can_be_marked;
use crate::fsck::outcome::{Done, Lost};
use crate::media::DiskInode;
use crate::media::inode::FL_LOST;
use crate::media::pointer::Ptr;
use crate::media::walk::MapRoot;
use crate::types::{FileType, Ino};

/// Most holes of a file that are looked at.
const HOLES: usize = 1 << 16;

impl Repairer<'_, '_> {
    /// Marks what a pointer covers; of anything but a regular file it becomes a
    /// hole, which a later round acts on.
    pub(super) fn mark(&mut self, ino: Ino, f: &Found) -> Result<bool> {
        let mut ptr = Ptr::HOLE;
        if let Some(d) = self.inode(ino)?
            && can_be_marked(ino, FileType::from_mode(d.mode))
        {
            let first = f.place.index << (self.geo.fan_log2 * f.place.level);
            ptr = self.mark_of(&Self::map_of(&d), self.end(&d), f.place.level, first)?;
        }
        self.put_pointer(ino, f, ptr)?;
        if ptr.is_hole() || f.place.level > 0 {
            self.recount(ino);
        }
        if !ptr.is_hole() {
            self.did(Done::MarkedLost);
            // A pointer to a block of data counts for one.
            let one = u64::from(f.place.level == 0 && !f.ptr.is_hole());
            self.edit(ino, |d| {
                d.flags |= FL_LOST;
                d.blocks = d.blocks.saturating_sub(one);
            })?;
        }
        Ok(true)
    }

    /// Marks all of a file, whose inode is put by the caller.
    pub(super) fn mark_whole(&mut self, d: &mut DiskInode) -> Result<()> {
        (d.root, d.height) = (0, 0);
        let end = self.end(d);
        if end == 0 || !can_be_marked(Ino(d.ino), FileType::from_mode(d.mode)) {
            return Ok(());
        }
        let mut map = Self::map_of(d);
        while (end - 1) >> (self.geo.fan_log2 * map.height) != 0 {
            map.height += 1;
        }
        d.root = self.mark_of(&map, end, map.height, 0)?.0;
        d.height = map.height as u8;
        d.flags |= FL_LOST;
        self.did(Done::MarkedLost);
        Ok(())
    }

    /// File blocks up to the end of a file.
    fn end(&self, d: &DiskInode) -> u64 {
        d.size.div_ceil(self.geo.block_size)
    }

    /// The mark of a pointer. Where the file ends in the middle of what it covers,
    /// a block of pointers with the marks of what comes before that; without a
    /// free block for it, the mark covers all.
    fn mark_of(&mut self, map: &MapRoot, end: u64, level: u32, first: u64) -> Result<Ptr> {
        if first >= end {
            return Ok(Ptr::HOLE);
        }
        let place = self.place(map, level, first);
        let span = 1u64 << (self.geo.fan_log2 * level);
        if level == 0 || end - first >= span {
            return Ok(Ptr::lost(place));
        }
        let below = span >> self.geo.fan_log2;
        let mut words = vec![0u64; 1 << self.geo.fan_log2];
        for (i, word) in (0..).zip(&mut words) {
            *word = self.mark_of(map, end, level - 1, first + i * below)?.0;
        }
        match self.alloc() {
            Ok(block) => {
                self.view.store(self.geo.offset(block), words.as_bytes())?;
                Ok(Ptr::new(block, 0, place))
            }
            Err(Error::NoSpace(_)) => Ok(Ptr::lost(place)),
            Err(e) => Err(e),
        }
    }

    /// Marks the holes of a file that lost so many blocks, where those are all of
    /// its holes: in a file that was written from end to end nothing else was
    /// one. False where nobody can say which are.
    pub(super) fn mark_gaps(&mut self, ino: Ino, d: &DiskInode, missing: u64) -> Result<bool> {
        if missing == 0 || !can_be_marked(ino, FileType::from_mode(d.mode)) {
            return Ok(false);
        }
        let (map, end) = (Self::map_of(d), self.end(d));
        if d.root == 0 && (1..=missing).contains(&end) {
            let mut d = *d;
            self.lose_all(&d);
            self.mark_whole(&mut d)?;
            return self.put_inode(ino, d);
        }
        let mut holes = Vec::new();
        if d.root != 0 && map.height <= self.geo.max_height() {
            let root = Found {
                at: None,
                place: map.root_at(self.geo),
                ptr: map.root,
            };
            self.holes(&map, root, end, &mut holes)?;
        }
        let (mut data, mut tables) = (0, 0);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for hole in &holes {
            let (first, last) = self.covered(hole, end);
            data += last - first;
            tables += (1..=hole.place.level)
                .map(|level| (last - first).div_ceil(1 << (self.geo.fan_log2 * level)))
                .sum::<u64>();
            match ranges.last_mut() {
                Some((_, end)) if *end == first => *end = last,
                _ => ranges.push((first, last)),
            }
        }
        if data == 0 || holes.len() >= HOLES || data > missing || missing > data + tables {
            return Ok(false);
        }
        for hole in &holes {
            self.mark(ino, hole)?;
        }
        for (first, last) in ranges {
            let (at, end) = (first * self.geo.block_size, last * self.geo.block_size);
            let len = end.min(d.size) - at;
            self.lose(Some(ino), Lost::Bytes { at, len });
        }
        Ok(true)
    }

    /// File blocks that a pointer covers up to the end of the file.
    fn covered(&self, f: &Found, end: u64) -> (u64, u64) {
        let shift = self.geo.fan_log2 * f.place.level;
        let first = f.place.index << shift;
        (first, (first + (1 << shift)).min(end))
    }

    /// Null pointers below one, up to the end of the file and to a number.
    fn holes(&self, map: &MapRoot, f: Found, end: u64, out: &mut Vec<Found>) -> Result<()> {
        if f.place.level == 0 || f.ptr.is_leaf() {
            return Ok(());
        }
        // A mark is none, and what is damaged is another finding's.
        let Ok(block) = map.open(self.geo, f.ptr, f.place) else {
            return Ok(());
        };
        let base = self.geo.offset(block);
        let level = f.place.level - 1;
        for (i, word) in (0..).zip(self.words(base)?) {
            let index = f.place.index << self.geo.fan_log2 | i;
            if index << (self.geo.fan_log2 * level) >= end || out.len() >= HOLES {
                break;
            }
            let below = Found {
                at: Some(base + i * 8),
                place: self.place(map, level, index << (self.geo.fan_log2 * level)),
                ptr: Ptr(word),
            };
            match word {
                0 => out.push(below),
                _ => self.holes(map, below, end, out)?,
            }
        }
        Ok(())
    }

    /// All bytes of a file are lost.
    pub(super) fn lose_all(&mut self, d: &DiskInode) {
        if d.size > 0 {
            let (at, len) = (0, d.size);
            self.lose(Some(Ino(d.ino)), Lost::Bytes { at, len });
        }
    }
}
