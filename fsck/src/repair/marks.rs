//! Marks ranges of a file as lost. A range that cannot be recovered does not
//! become a hole: reading it is EIO until it is written, and a flag of the inode
//! records that such ranges exist.
//!
//! A mark replaces the lost pointer and covers the same range, but nothing past
//! the end of the file: a file that is extended later reads zeros there.

use zerocopy::IntoBytes;

use super::Repairer;
use super::maps::LocatedPtr;
use crate::inodes::can_be_marked;
use crate::outcome::{Done, Lost};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::inode::FL_LOST;
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::walk::MapRoot;
use pramfs_medium::types::{FileBlock, FileRun, FileType, Ino};

/// Most holes of a file that are examined.
const HOLES: usize = 1 << 16;

impl Repairer<'_, '_> {
    /// Marks the range of a pointer as lost. In anything but a regular file the
    /// pointer becomes a hole, which a later round repairs.
    pub(super) fn mark(&mut self, ino: Ino, f: &LocatedPtr) -> Result<bool> {
        let mut ptr = Ptr::HOLE;
        if let Some(d) = self.inode(ino)?
            && can_be_marked(ino, FileType::from_mode(d.mode))
        {
            let first = f.place.first(self.geo);
            ptr = self.mark_of(&MapRoot::of(&d), self.end(&d), f.place.level, first)?;
        }
        self.put_pointer(ino, f, ptr)?;
        if ptr.is_hole() || f.place.level > 0 {
            self.recount(ino);
        }
        if !ptr.is_hole() {
            self.did(Done::MarkedLost);
            // A pointer to a data block accounts for one block.
            let one = u64::from(f.place.level == 0 && !f.ptr.is_hole());
            self.edit(ino, |d| {
                d.flags |= FL_LOST;
                d.blocks = d.blocks.saturating_sub(one);
            })?;
        }
        Ok(true)
    }

    /// Marks a whole file as lost. The caller stores the inode.
    pub(super) fn mark_whole(&mut self, d: &mut DiskInode) -> Result<()> {
        (d.root, d.height) = (0, 0);
        let end = self.end(d);
        if d.size == 0 || !can_be_marked(Ino(d.ino), FileType::from_mode(d.mode)) {
            return Ok(());
        }
        let mut map = MapRoot::of(d);
        let last = self.geo.file_block(d.size - 1);
        while self.geo.index_at(map.height, last) != 0 {
            map.height += 1;
        }
        d.root = self.mark_of(&map, end, map.height, FileBlock(0))?.0;
        d.height = map.height as u8;
        d.flags |= FL_LOST;
        self.did(Done::MarkedLost);
        Ok(())
    }

    /// Returns the file block after the last of a file.
    fn end(&self, d: &DiskInode) -> FileBlock {
        self.geo.file_block_from(d.size)
    }

    /// Builds the mark for a pointer. If the file ends inside its range, it is a
    /// pointer block with marks up to the end; without a free block for that, one
    /// mark covers the whole range.
    fn mark_of(
        &mut self,
        map: &MapRoot,
        end: FileBlock,
        level: u32,
        first: FileBlock,
    ) -> Result<Ptr> {
        if first >= end {
            return Ok(Ptr::HOLE);
        }
        let place = map.at(self.geo, level, first);
        let span = self.geo.span(level);
        if level == 0 || end - first >= span {
            return Ok(Ptr::lost(place));
        }
        let below = self.geo.span(level - 1);
        let mut words = vec![0u64; self.geo.fan() as usize];
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

    /// Marks all holes of a file as lost if they account for the `missing` blocks:
    /// then the file had no holes before. Returns false if it may have had some.
    pub(super) fn mark_gaps(&mut self, ino: Ino, d: &DiskInode, missing: u64) -> Result<bool> {
        if missing == 0 || !can_be_marked(ino, FileType::from_mode(d.mode)) {
            return Ok(false);
        }
        let (map, end) = (MapRoot::of(d), self.end(d));
        if d.root == 0 && (1..=missing).contains(&end.0) {
            let mut d = *d;
            self.lose_all(&d);
            self.mark_whole(&mut d)?;
            return self.put_inode(ino, d);
        }
        let mut holes = Vec::new();
        if d.root != 0 && map.height <= self.geo.max_height() {
            let root = LocatedPtr {
                at: None,
                place: map.root_at(self.geo),
                ptr: map.root,
            };
            self.holes(&map, root, end, &mut holes)?;
        }
        let (mut data, mut tables) = (0, 0);
        let mut ranges: Vec<FileRun> = Vec::new();
        for hole in &holes {
            let run = self.covered(hole, end);
            data += run.len;
            tables += (1..=hole.place.level)
                .map(|level| run.len.div_ceil(self.geo.span(level)))
                .sum::<u64>();
            match ranges.last_mut() {
                Some(last) if last.end() == run.start => last.len += run.len,
                _ => ranges.push(run),
            }
        }
        if data == 0 || holes.len() >= HOLES || data > missing || missing > data + tables {
            return Ok(false);
        }
        for hole in &holes {
            self.mark(ino, hole)?;
        }
        for run in ranges {
            let at = self.geo.file_offset(run.start);
            let end = self.geo.file_offset(run.end());
            let len = end.min(d.size) - at;
            self.lose(Some(ino), Lost::Bytes { at, len });
        }
        Ok(true)
    }

    /// Returns the file blocks that a pointer covers, up to the end of the file.
    fn covered(&self, f: &LocatedPtr, end: FileBlock) -> FileRun {
        let start = f.place.first(self.geo);
        let len = (start + self.geo.span(f.place.level)).min(end) - start;
        FileRun { start, len }
    }

    /// Collects null pointers below a pointer, up to the end of the file and at
    /// most [`HOLES`].
    fn holes(
        &self,
        map: &MapRoot,
        f: LocatedPtr,
        end: FileBlock,
        out: &mut Vec<LocatedPtr>,
    ) -> Result<()> {
        if f.place.level == 0 || f.ptr.is_leaf() {
            return Ok(());
        }
        // A mark is not a hole. A damaged pointer has its own finding.
        let Ok(block) = map.open(self.geo, f.ptr, f.place) else {
            return Ok(());
        };
        let base = self.geo.offset(block);
        for (i, word) in (0..).zip(self.words(base)?) {
            let place = f.place.below(self.geo, i);
            if place.first(self.geo) >= end || out.len() >= HOLES {
                break;
            }
            let below = LocatedPtr {
                at: Some(base + i * 8),
                place,
                ptr: Ptr(word),
            };
            match word {
                0 => out.push(below),
                _ => self.holes(map, below, end, out)?,
            }
        }
        Ok(())
    }

    /// Records the loss of all bytes of a file.
    pub(super) fn lose_all(&mut self, d: &DiskInode) {
        if d.size > 0 {
            let (at, len) = (0, d.size);
            self.lose(Some(Ino(d.ino)), Lost::Bytes { at, len });
        }
    }
}
