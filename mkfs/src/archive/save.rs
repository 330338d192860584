//! Saves the blocks of a region that are in use.
//!
//! Invariant: the region is only read. Records of its journal are replayed in private memory
//! before, so what is saved is the state after a recovery. The time depends on the bitmaps and
//! on the blocks in use, not on the size of the region.

use std::io;
use std::ops::Range;

use pramfs::pmem::Region;
use pramfs_medium::media::bad_blocks::read_list;
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::media::{Geometry, probe_superblock};
use pramfs_medium::pmem::RegionView;
use pramfs_medium::types::{Bno, RegionOffset};

use super::format::{Header, Kind};
use super::writer::{Contents, Stop, outside, runs_of};
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
        let mut source = Source {
            region: region.into(),
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

    fn read_blocks(&self, first: u64, into: &mut [u8]) -> io::Result<()> {
        let other = |e: &dyn std::fmt::Display| io::Error::other(e.to_string());
        let Err(failed) = self.region.read(self.geo.bytes(first), into) else {
            return Ok(());
        };
        let root = probe_superblock(self.region).map_err(|e| other(&e))?;
        let root = root.fixed.badblock_root;
        let read = &mut |at: RegionOffset, into: &mut [u8]| Ok(self.region.read(at.0, into)?);
        let list = read_list(&self.geo, root, read).map_err(|_| other(&failed))?;
        let is_listed = |block| {
            let mut runs = list.iter().flat_map(|of| &of.extents);
            runs.any(|run| run.contains(Bno(block)))
        };
        let blocks = into.chunks_mut(self.geo.block_size as usize);
        for (block, into) in (first..).zip(blocks) {
            match self.region.read(self.geo.bytes(block), into) {
                Err(_) if is_listed(block) => into.fill(0),
                read => read.map_err(|e| other(&e))?,
            }
        }
        Ok(())
    }
}

fn bad_sum(group: u64, stopped: &mut Result<(), Stop>) {
    *stopped = Err(Stop::Damage(format!(
        "the sum of the bitmap of block group {group} is wrong"
    )));
}
