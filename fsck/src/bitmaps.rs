//! Checks the bitmaps: descriptors, sums, and the block bitmap against the
//! blocks found in use.

use super::maps::place_of;
use super::owners::Owner;
use super::{Checker, Extent, Issue, Step};
use pramfs_medium::error::Result;
use pramfs_medium::media::bitmap::{BitmapKind, GroupDesc, GroupState};
use pramfs_medium::media::checksum::word_sum;
use pramfs_medium::types::{Bno, RegionOffset};
use std::ops::Range;

/// Where the bits of a group are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupBits {
    /// The group has no bitmap: every bit is clear.
    Clear,
    /// Offset of the bitmap block.
    At(RegionOffset),
    /// Descriptor or pointer is damaged.
    Unknown,
}

impl Checker<'_> {
    /// Returns the number of bits of a bitmap.
    fn bits(&self, kind: BitmapKind) -> u64 {
        match kind {
            BitmapKind::Blocks => self.geo.blocks(),
            BitmapKind::Inodes => self.geo.inodes_max(),
        }
    }

    /// Checks all descriptors of a bitmap and the sums of its groups.
    pub(super) fn load_groups(
        &mut self,
        kind: BitmapKind,
        descs: &[Extent],
    ) -> Result<Vec<GroupBits>> {
        let per_group = self.geo.bits_per_group();
        let groups = self.bits(kind).div_ceil(per_group);
        let mut out = Vec::with_capacity(groups as usize);
        for group in 0..groups {
            let at = group * GroupDesc::SIZE as u64;
            let bits = match place_of(&self.geo, descs, at) {
                None => {
                    self.add(Issue::DescriptorMissing { kind, group });
                    GroupBits::Unknown
                }
                Some(at) => self.load_group(kind, group, self.region.read_pod(at)?)?,
            };
            if bits == GroupBits::Unknown {
                // Blocks of such a group are not compared.
                self.unknown_groups |= kind == BitmapKind::Blocks;
                self.hidden_blocks |= kind == BitmapKind::Inodes;
                self.hidden_names |= kind == BitmapKind::Inodes;
            }
            out.push(bits);
            if group % 256 == 0 {
                self.progress(Step::Format, group, groups);
            }
        }
        Ok(out)
    }

    fn load_group(&mut self, kind: BitmapKind, group: u64, desc: GroupDesc) -> Result<GroupBits> {
        let block = match GroupDesc::state(&self.geo, kind, group, desc.bitmap) {
            GroupState::Unused => {
                if desc.sum != 0 {
                    self.add(Issue::BitmapSum { kind, group });
                }
                return Ok(GroupBits::Clear);
            }
            GroupState::Damaged => {
                self.add(Issue::BitmapPointer { kind, group });
                return Ok(GroupBits::Unknown);
            }
            GroupState::Bitmap(block) => block,
        };
        let own = self.own_blocks(kind, block);
        for at in own.clone() {
            let owner = match kind {
                BitmapKind::Inodes => Owner::InodeBitmap { group },
                BitmapKind::Blocks if at == block.0 => Owner::BlockBitmap { group },
                BitmapKind::Blocks => Owner::DataSums { group },
            };
            self.note_owner(at, 1, owner);
        }
        self.claim_run(kind.owner(), own.start, own.end - own.start);
        let words = self.pointers(block)?;
        let sum = words.iter().enumerate().fold(0u64, |sum, (i, w)| {
            sum.wrapping_add(word_sum(self.geo.seed, i as u64, *w))
        });
        if sum != desc.sum {
            self.bad_sums.insert((kind.code(), group));
            self.add(Issue::BitmapSum { kind, group });
        }
        let len =
            (self.bits(kind) - group * self.geo.bits_per_group()).min(self.geo.bits_per_group());
        let past =
            (len..self.geo.bits_per_group()).any(|b| words[b as usize / 64] >> (b % 64) & 1 != 0);
        if past {
            self.add(Issue::BitsPastEnd { kind, group });
        }
        Ok(GroupBits::At(self.geo.offset(block)))
    }

    /// Returns the blocks that belong to a bitmap: its own and, in a block group, those of the
    /// sums.
    fn own_blocks(&self, kind: BitmapKind, bitmap: Bno) -> Range<u64> {
        match kind {
            BitmapKind::Blocks => self.geo.tail_of(bitmap),
            BitmapKind::Inodes => bitmap.0..bitmap.0 + 1,
        }
    }

    /// Compares the block bitmap with the blocks found in use.
    pub(super) fn compare_blocks(&mut self, groups: &[GroupBits]) -> Result<()> {
        let per_group = self.geo.bits_per_group();
        let mut leaked = Run::default();
        let mut free = Run::default();
        for (group, bits) in groups.iter().enumerate() {
            if group % 256 == 0 {
                self.progress(Step::Blocks, group as u64, groups.len() as u64);
            }
            if *bits == GroupBits::Unknown {
                continue;
            }
            let first = group as u64 * per_group;
            let end = (first + per_group).min(self.geo.blocks());
            for start in (first..end).step_by(64) {
                let mut word = match bits {
                    GroupBits::At(at) => self.region.load_u64(*at + (start - first) / 8)?,
                    _ => 0,
                };
                if end - start < 64 {
                    word &= (1 << (end - start)) - 1;
                }
                let mut differ = word ^ self.claims.word(start);
                while differ != 0 {
                    let bit = u64::from(differ.trailing_zeros());
                    differ &= differ - 1;
                    if word >> bit & 1 == 0 {
                        let block = Bno(start + bit);
                        if self.unlisted.iter().any(|run| run.contains(block)) {
                            continue;
                        }
                        if let Some((start, len)) = free.add(start + bit) {
                            self.add(Issue::BlocksFree { start, len });
                        }
                    } else if let Some(run) = leaked.add(start + bit) {
                        self.leaked(run);
                    }
                }
            }
        }
        if let Some((start, len)) = free.end() {
            self.add(Issue::BlocksFree { start, len });
        }
        if let Some(run) = leaked.end() {
            self.leaked(run);
        }
        Ok(())
    }

    fn leaked(&mut self, (start, len): (u64, u64)) {
        if self.hidden_blocks || self.unknown_groups {
            self.report.counts.hidden_blocks += len;
        } else {
            self.add(Issue::BlocksLeaked { start, len });
        }
    }
}

/// A run of blocks under construction.
#[derive(Debug, Default)]
struct Run {
    start: u64,
    len: u64,
}

impl Run {
    /// Adds a block. If the block does not continue the run, returns the run and
    /// starts a new one.
    fn add(&mut self, block: u64) -> Option<(u64, u64)> {
        if self.len > 0 && self.start + self.len == block {
            self.len += 1;
            return None;
        }
        let before = self.end();
        *self = Run {
            start: block,
            len: 1,
        };
        before
    }

    fn end(&mut self) -> Option<(u64, u64)> {
        let run = (self.len > 0).then_some((self.start, self.len));
        *self = Run::default();
        run
    }
}
