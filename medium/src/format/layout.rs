//! Places the initial contents of a new file system.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::media::Geometry;
use crate::media::bitmap::GroupDesc;
use crate::media::superblock::PAGE;
use crate::types::{BlockRun, Bno, Ino, RegionOffset};

/// A file with consecutive blocks, and its pointer blocks.
#[derive(Debug)]
pub(super) struct Tree {
    pub data: Bno,
    pub count: u64,
    /// First block and number of blocks of each level, lowest first.
    pub levels: Vec<(Bno, u64)>,
}

/// All blocks that a new file system uses.
#[derive(Debug)]
pub(super) struct Plan {
    pub block_descs: Tree,
    pub inode_descs: Tree,
    pub inode_table: Tree,
    pub inode_bitmap: Bno,
    pub orphans: Bno,
    /// Block groups that get a bitmap.
    pub groups: Vec<u64>,
    pub used: Vec<BlockRun>,
}

struct Bump<'a> {
    geo: &'a Geometry,
    next: u64,
    used: Vec<BlockRun>,
}

impl Bump<'_> {
    /// Takes `count` consecutive blocks. They exclude the superblock copy, the journal
    /// and the last blocks of each group, which hold its bitmap and its sums.
    fn take(&mut self, count: u64) -> Result<Bno> {
        let per_group = self.geo.bits_per_group();
        let geo = self.geo;
        let fixed = [
            (geo.copy_offset, PAGE),
            (geo.journal_offset, geo.journal_len),
        ]
        .map(|(at, len)| (geo.block_at(at).0, geo.block_at(at + len).0));
        loop {
            let end = self.next + count;
            if end > self.geo.blocks() {
                return Err(Error::NotMountable(format!(
                    "the region of {} bytes is too small for its own metadata; use fewer inodes (-N) or a larger region",
                    geo.region_bytes()
                )));
            }
            if let Some((_, to)) = fixed
                .iter()
                .find(|(from, to)| self.next < *to && end > *from)
            {
                self.next = *to;
                continue;
            }
            // A run may cross the end of a group only if it is longer than a group.
            // `tree` refuses such tables.
            let group_end = ((self.next / per_group + 1) * per_group).min(self.geo.blocks());
            if end > group_end.saturating_sub(geo.tail_blocks()) {
                self.next = group_end;
                continue;
            }
            self.next = end;
            let start = Bno(end - count);
            self.used.push(BlockRun { start, len: count });
            return Ok(start);
        }
    }

    fn tree(&mut self, count: u64) -> Result<Tree> {
        if count + self.geo.tail_blocks() > self.geo.bits_per_group() {
            return Err(Error::NotMountable(format!(
                "a table of {count} blocks does not fit in one group; use larger blocks (-b) or fewer inodes (-N)"
            )));
        }
        let data = self.take(count)?;
        let (mut levels, mut n) = (Vec::new(), count);
        while n > 1 {
            n = n.div_ceil(1 << self.geo.fan_log2);
            levels.push((self.take(n)?, n));
        }
        Ok(Tree {
            data,
            count,
            levels,
        })
    }
}

impl Plan {
    /// Places everything. `inodes` is the number of preallocated inodes in the inode
    /// table.
    pub(super) fn new(geo: &Geometry, inodes: u64) -> Result<Plan> {
        let pages = [
            (RegionOffset::START, PAGE),
            (geo.copy_offset, PAGE),
            (geo.journal_offset, geo.journal_len),
        ];
        let used = pages
            .iter()
            .map(|(at, len)| BlockRun {
                start: geo.block_at(*at),
                len: geo.whole_blocks(*len),
            })
            .collect();
        let mut bump = Bump {
            geo,
            next: geo.whole_blocks(PAGE),
            used,
        };
        let desc_blocks = |bits: u64| {
            geo.blocks_for(bits.div_ceil(geo.bits_per_group()) * GroupDesc::SIZE as u64)
        };
        let inodes = inodes.max(Ino::FIRST_FREE.0);
        let inode_table = bump.tree(inodes.div_ceil(geo.inodes_per_block()))?;
        let orphans = bump.take(1)?;
        let inode_bitmap = bump.take(1)?;
        let block_descs = bump.tree(desc_blocks(geo.blocks()))?;
        let inode_descs = bump.tree(desc_blocks(geo.inodes_max()))?;
        let mut used = bump.used;
        let per_group = geo.bits_per_group();
        let groups: BTreeSet<u64> = used
            .iter()
            .flat_map(|r| r.start.0 / per_group..=(r.end().0 - 1) / per_group)
            .collect();
        for g in &groups {
            let last = ((g + 1) * per_group).min(geo.blocks()) - 1;
            let tail = geo.tail_of(Bno(last));
            let meets = |r: &BlockRun| r.start.0 < tail.end && r.end().0 > tail.start;
            if tail.start < g * per_group || used.iter().any(meets) {
                return Err(Error::NotMountable(
                    "the region is too small for its own metadata".into(),
                ));
            }
            used.push(BlockRun {
                start: Bno(tail.start),
                len: tail.end - tail.start,
            });
        }
        Ok(Plan {
            block_descs,
            inode_descs,
            inode_table,
            inode_bitmap,
            orphans,
            groups: groups.into_iter().collect(),
            used,
        })
    }
}
