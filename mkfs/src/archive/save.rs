//! Saves the blocks of a region that are in use.
//!
//! Invariant: the region is only read. Records of its journal are replayed in private memory
//! before, so what is saved is the state after a recovery. The time depends on the bitmaps and
//! on the blocks in use, not on the size of the region.

use std::cell::Cell;
use std::io;
use std::ops::Range;

use pramfs::pmem::Region;
use pramfs_medium::media::bad_blocks::read_list;
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::media::{Geometry, probe_superblock};
use pramfs_medium::pmem::{PmemError, RegionView};
use pramfs_medium::types::RegionOffset;

use super::format::{Header, Kind};
use super::writer::{Contents, Stop, Zeroed, joined, outside, runs_of};
use crate::Failure;
use crate::image::Image;

/// A region that can be saved: its bitmaps are sound.
pub(crate) struct Source<'a> {
    region: RegionView<'a>,
    geo: Geometry,
    image: Image<'a>,
    header: Header,
    /// Blocks in use.
    blocks: u64,
    /// Blocks of the list of bad blocks, in ascending order.
    listed: Vec<Range<u64>>,
    /// Pages of listed blocks that have failed while they were read.
    failed_listed: Cell<u64>,
}

impl<'a> Source<'a> {
    /// Reads superblock and bitmaps.
    ///
    /// # Errors
    /// They are damaged: then it is not known which blocks are in use.
    pub(crate) fn new(region: &'a Region, name: &str) -> Result<Source<'a>, Failure> {
        let about = |e| Failure::about(name, e);
        let found = probe_superblock(region).map_err(about)?;
        if found.from_copy || found.copy_damaged {
            return Err(Failure::new(
                "damaged",
                format!("{name}: a superblock page is damaged; run fsck.pramfs -p first"),
            ));
        }
        let fixed = found.fixed;
        let geo = Geometry::new(&fixed);
        let image = Image::new(region, geo.clone()).map_err(about)?;
        let view = RegionView::from(region);
        let read = &mut |at: RegionOffset, into: &mut [u8]| Ok(checked_read(view, at.0, into)?);
        // A damaged list says nothing: then each block must be readable.
        let listed = read_list(&geo, fixed.badblock_root, read).unwrap_or_default();
        let mut source = Source {
            region: view,
            geo,
            image,
            header: Header {
                block_size_log2: fixed.block_size_log2,
                region_len: fixed.region_len,
                blocks: fixed.blocks,
                uuid: fixed.uuid,
                label: fixed.label,
                copy_offset: fixed.copy_offset,
                kind: Kind::Save,
            },
            blocks: 0,
            listed: joined(listed.iter().flat_map(|of| &of.extents)),
            failed_listed: Cell::new(0),
        };
        let mut blocks = 0;
        source
            .runs(&mut |run| {
                blocks += run.end - run.start;
                Ok(())
            })
            .map_err(|e| match e {
                Stop::Damage(e) => Failure::new(
                    "damaged",
                    format!("{name}: {e}: its blocks in use are not known; run fsck.pramfs first"),
                ),
                Stop::Io(e) => Failure::os("cannot read", name, e),
            })?;
        source.blocks = blocks;
        Ok(source)
    }

    /// Number of pages that have failed, without those of listed blocks.
    pub(crate) fn faults(&self) -> u64 {
        self.region.faults() - self.failed_listed.get()
    }
}

impl Contents for Source<'_> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn runs(&self, f: &mut dyn FnMut(Range<u64>) -> io::Result<()>) -> Result<(), Stop> {
        let fixed = self.geo.fixed_runs();
        for run in &fixed {
            f(run.clone()).map_err(Stop::Io)?;
        }
        let per_group = self.geo.bits_per_group();
        let (mut damage, mut stopped) = (None, Ok(()));
        let walked = self.image.groups(
            BitmapKind::Blocks,
            &mut |e| {
                damage.get_or_insert(e.to_string());
            },
            &mut |group, words| {
                if !group.sum_fits {
                    bad_sum(group.group, &mut stopped);
                }
                if stopped.is_ok() {
                    let first = group.group * per_group;
                    stopped = runs_of(words, group.bits, |from, to| {
                        outside(first + from..first + to, &fixed, f)
                    })
                    .map_err(Stop::Io);
                }
            },
        );
        walked.map_err(|e| Stop::Damage(e.to_string()))?;
        match damage {
            Some(e) => Err(Stop::Damage(e)),
            None => stopped,
        }
    }

    fn read_blocks(&self, first: u64, into: &mut [u8], zeroed: &mut Zeroed) -> io::Result<()> {
        let size = self.geo.block_size;
        let (mut at, mut rest) = (first, into);
        while !rest.is_empty() {
            let end = at + rest.len() as u64 / size;
            let next = self.listed.partition_point(|run| run.end <= at);
            let (is_listed, part) = match self.listed.get(next) {
                Some(run) if run.start <= at => (true, at + 1),
                Some(run) => (false, end.min(run.start)),
                None => (false, end),
            };
            let (into, after) = rest.split_at_mut(((part - at) * size) as usize);
            let before = self.region.faults();
            match checked_read(self.region, self.geo.bytes(at), into) {
                Err(_) if is_listed => {
                    into.fill(0);
                    zeroed.add(at..part);
                }
                read => read.map_err(|e| io::Error::other(e.to_string()))?,
            }
            if is_listed {
                let failed = self.region.faults() - before;
                self.failed_listed.set(self.failed_listed.get() + failed);
            }
            (at, rest) = (part, after);
        }
        Ok(())
    }
}

/// Reads bytes, and touches nothing that is known to have failed.
fn checked_read(region: RegionView<'_>, offset: u64, into: &mut [u8]) -> Result<(), PmemError> {
    let len = into.len() as u64;
    match region.is_faulted(offset, len) {
        true => Err(PmemError::Faulted { offset, len }),
        false => region.read(offset, into),
    }
}

fn bad_sum(group: u64, stopped: &mut Result<(), Stop>) {
    *stopped = Err(Stop::Damage(format!(
        "the sum of the bitmap of block group {group} is wrong"
    )));
}
