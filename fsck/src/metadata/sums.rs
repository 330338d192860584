//! The sums of file data in an image: right for zeros where they were right, and wrong where they
//! were wrong.
//!
//! Invariant: they are made when their blocks are read, from the runs of data. Kept in memory, the
//! sums of a region of 1 TiB would take gigabytes.

use std::ops::Range;

use super::View;
use crate::Checker;
use crate::owners::{DataOf, Owned, Owner};
use pramfs_medium::error::Result;
use pramfs_medium::media::sums::{SUM_BLOCKS, SumState, check_word, data_crc, sum_word};
use pramfs_medium::media::{DiskInode, Geometry};
use pramfs_medium::types::{BlockRun, Bno, FileBlock, Ino, RegionOffset};

/// A run of written data of a file with sums.
#[derive(Debug)]
struct Summed {
    blocks: BlockRun,
    /// Offset of the first of these blocks in the file.
    offset: u64,
    /// Bytes of the file.
    size: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// First block of the sums, and first block of the group that they are of; in ascending order.
    areas: Vec<(u64, u64)>,
    /// Disjoint, in ascending order.
    data: Vec<Summed>,
}

impl Sums {
    /// Finds the sums, and the data that they are of.
    pub(super) fn of(checker: &mut Checker<'_>, owned: &[Owned]) -> Result<Sums> {
        let geo = checker.geo.clone();
        let groups = (0..geo.blocks()).step_by(geo.bits_per_group() as usize);
        let area = |first: u64| Some((checker.sum_at(Bno(first))?.0 / geo.block_size, first));
        let mut areas: Vec<_> = groups.filter_map(area).collect();
        areas.sort_unstable();
        let mut data: Vec<Summed> = Vec::new();
        let mut known: Option<(Ino, Option<DiskInode>)> = None;
        for of in owned {
            let Owner::Data {
                ino,
                of: DataOf::File,
                first,
                unwritten: false,
            } = of.owner
            else {
                continue;
            };
            let inode = match known {
                Some((at, inode)) if at == ino => inode,
                _ => {
                    let home = checker.home(ino);
                    let inode = home.map(|home| checker.read_inode(home)).transpose()?;
                    known = Some((ino, inode));
                    inode
                }
            };
            let Some(inode) = inode.filter(|d| checker.is_summed(d)) else {
                continue;
            };
            // A block with two owners has the sum of the first.
            let from = data.last().map_or(0, |last| last.blocks.end().0);
            let skipped = from.saturating_sub(of.blocks.start.0).min(of.blocks.len);
            // Marked blocks have none.
            let marked = inode.unsummed();
            let within = |at: FileBlock| at.0.saturating_sub(first.0).clamp(skipped, of.blocks.len);
            let (start, end) = (within(marked.start), within(marked.end));
            for part in [skipped..start, end..of.blocks.len] {
                if part.is_empty() {
                    continue;
                }
                data.push(Summed {
                    blocks: BlockRun {
                        start: Bno(of.blocks.start.0 + part.start),
                        len: part.end - part.start,
                    },
                    offset: first
                        .0
                        .saturating_add(part.start)
                        .saturating_mul(geo.block_size),
                    size: inode.size,
                });
            }
        }
        Ok(Sums { areas, data })
    }

    /// Replaces those of the blocks of `into` that are sums. Sums of blocks without an owner become
    /// zeros: they would tell what was in them.
    pub(super) fn put(
        &self,
        view: &View<'_>,
        geo: &Geometry,
        first: u64,
        into: &mut [u8],
    ) -> Result<()> {
        for (block, bytes) in (first..).zip(into.chunks_exact_mut(geo.block_size as usize)) {
            let after = self.areas.partition_point(|area| area.0 <= block);
            let Some((start, group)) = after.checked_sub(1).map(|at| self.areas[at]) else {
                continue;
            };
            if block - start < SUM_BLOCKS {
                let words = geo.block_size / 8;
                let of = group + (block - start) * words;
                bytes.fill(0);
                self.put_words(view, geo, of..of + words, block, bytes)?;
            }
        }
        Ok(())
    }

    /// Makes the words of a block of sums, which are those of blocks of data.
    fn put_words(
        &self,
        view: &View<'_>,
        geo: &Geometry,
        of: Range<u64>,
        block: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let from = self
            .data
            .partition_point(|run| run.blocks.end().0 <= of.start);
        let runs = self.data[from..].iter();
        for run in runs.take_while(|run| run.blocks.start.0 < of.end) {
            let both = run.blocks.start.0.max(of.start)..run.blocks.end().0.min(of.end);
            for data in both {
                let skipped = (data - run.blocks.start.0).saturating_mul(geo.block_size);
                let offset = run.offset.saturating_add(skipped);
                let len = run.size.saturating_sub(offset).min(geo.block_size);
                if len > 0 {
                    let at = (data - of.start) * 8;
                    let there = RegionOffset(geo.bytes(block) + at);
                    let word = word(view, geo, Bno(data), len as usize, there)?;
                    bytes[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
                }
            }
        }
        Ok(())
    }
}

/// The word of a block whose first bytes, those of its file, have become zeros. A damaged word
/// stays.
fn word(
    view: &View<'_>,
    geo: &Geometry,
    block: Bno,
    len: usize,
    there: RegionOffset,
) -> Result<u64> {
    let mut bytes = vec![0; len];
    let zeros = data_crc(&bytes);
    view.read(geo.offset(block), &mut bytes)?;
    let word = view.load_u64(there)?;
    let sum = match check_word(geo.seed, block, word, data_crc(&bytes)) {
        SumState::Right => zeros,
        SumState::Wrong => !zeros,
        SumState::Damaged => return Ok(word),
    };
    Ok(sum_word(geo.seed, block, sum))
}
