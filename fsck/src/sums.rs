//! Compares file data with their checksums (feature `data_checksums`), and checks the marks of
//! files whose checksums do not hold.

use super::bitmaps::GroupBits;
use super::inodes::can_be_marked;
use super::{Checker, Extent, Issue};
use pramfs_medium::error::Result;
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::features::RANGED_MARKS;
use pramfs_medium::media::inode::{ALL_BLOCKS, FL_UNSUMMED};
use pramfs_medium::media::sums::{SUM_BLOCKS, SumState, check_word, data_crc};
use pramfs_medium::types::{Bno, FileBlock, FileType, Ino, RegionOffset};

impl Checker<'_> {
    /// Whether sums of a regular file hold: those of all blocks that are not marked.
    pub(super) fn is_summed(&self, d: &DiskInode) -> bool {
        self.geo.data_sums && d.unsummed() != ALL_BLOCKS
    }

    /// Whether the data of an inode can have sums, and a mark that they do not hold.
    pub(super) fn can_have_sums(&self, ino: Ino, kind: FileType) -> bool {
        self.geo.data_sums && can_be_marked(ino, Some(kind))
    }

    /// Checks the range of the mark of a regular file.
    pub(super) fn check_mark(&mut self, ino: Ino, d: &DiskInode) -> Result<()> {
        let (from, to) = (d.unsummed_from, d.unsummed_to);
        if !self.geo.data_sums || (from, to) == (0, 0) {
            return Ok(());
        }
        let what = if d.flags & FL_UNSUMMED == 0 {
            "its flag is clear"
        } else if from >= to {
            "it is empty"
        } else if FileBlock(to) > self.geo.file_block_from(d.size) {
            "it ends past the end of the file"
        } else if !self.has_ranged_marks()? {
            "the superblock lacks the feature ranged_marks"
        } else {
            return Ok(());
        };
        let is_flagged = d.flags & FL_UNSUMMED != 0;
        self.add(Issue::MarkedRange {
            ino,
            is_flagged,
            what,
        });
        Ok(())
    }

    fn has_ranged_marks(&self) -> Result<bool> {
        let fixed = self.valid_page()?;
        Ok(fixed.is_some_and(|fixed| fixed.ro_compat & RANGED_MARKS != 0))
    }

    /// Returns the place of a block's sum; `None` if its group is damaged or not in use, which
    /// is another finding.
    pub(super) fn sum_at(&self, block: Bno) -> Option<RegionOffset> {
        let per_group = self.geo.bits_per_group();
        match self.groups[0].get((block.0 / per_group) as usize)? {
            GroupBits::At(bitmap) => {
                let first = bitmap.0.checked_sub(self.geo.bytes(SUM_BLOCKS))?;
                Some(RegionOffset(first).word(block.0 % per_group))
            }
            _ => None,
        }
    }

    /// Compares the written blocks of a file, up to its end, with their sums.
    pub(super) fn check_sums(&mut self, ino: Ino, d: &DiskInode, extents: &[Extent]) -> Result<()> {
        let mut bytes = vec![0; self.geo.block_size as usize];
        let mut wrong: Option<(u64, u64)> = None;
        let marked = d.unsummed();
        for extent in extents.iter().filter(|e| !e.unwritten) {
            for (index, block) in extent.blocks() {
                let offset = index.0.saturating_mul(self.geo.block_size);
                if offset >= d.size {
                    break;
                }
                if marked.contains(&index) {
                    continue;
                }
                let Some(at) = self.sum_at(block) else {
                    continue;
                };
                let len = (d.size - offset).min(self.geo.block_size);
                let bytes = &mut bytes[..len as usize];
                self.region.read(self.geo.offset(block), bytes)?;
                let word = self.region.load_u64(at)?;
                let sum = data_crc(bytes);
                if check_word(self.geo.seed, block, word, sum) == SumState::Right {
                    continue;
                }
                wrong = match wrong {
                    Some((start, end)) if end == offset => Some((start, offset + len)),
                    before => {
                        self.wrong_sum(ino, before);
                        Some((offset, offset + len))
                    }
                };
            }
        }
        self.wrong_sum(ino, wrong);
        Ok(())
    }

    fn wrong_sum(&mut self, ino: Ino, wrong: Option<(u64, u64)>) {
        if let Some((offset, end)) = wrong {
            let len = end - offset;
            self.add(Issue::DataSum { ino, offset, len });
        }
    }
}
