//! Compares file data with their checksums (feature `data_checksums`).

use super::bitmaps::GroupBits;
use super::{Checker, Extent, Issue};
use pramfs_medium::error::Result;
use pramfs_medium::media::DiskInode;
use pramfs_medium::media::inode::FL_UNSUMMED;
use pramfs_medium::media::sums::{SUM_BLOCKS, SumState, check_word, data_crc};
use pramfs_medium::types::{Bno, Ino, RegionOffset};

impl Checker<'_> {
    /// Whether the data of a regular file have sums that hold.
    pub(super) fn is_summed(&self, d: &DiskInode) -> bool {
        self.geo.data_sums && d.flags & FL_UNSUMMED == 0
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
        for extent in extents.iter().filter(|e| !e.unwritten) {
            for (index, block) in extent.blocks() {
                let offset = index.0.saturating_mul(self.geo.block_size);
                if offset >= d.size {
                    break;
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
