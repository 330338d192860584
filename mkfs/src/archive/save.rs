//! Saves the blocks of a region that are in use.
//!
//! Invariant: the region is only read. Records of its journal are replayed in private memory
//! before, so what is saved is the state after a recovery. The time depends on the bitmaps and
//! on the blocks in use, not on the size of the region.

use std::io::{self, Write};
use std::ops::Range;

use pramfs::pmem::Region;
use pramfs_medium::media::bad_blocks::read_list;
use pramfs_medium::media::bitmap::BitmapKind;
use pramfs_medium::media::{Geometry, probe_superblock};
use pramfs_medium::pmem::RegionView;
use pramfs_medium::types::{Bno, RegionOffset};

use super::format::{CHUNK_DATA, CHUNK_HEADER, ChunkHeader, End, Header};
use crate::Failure;
use crate::image::Image;

/// What was saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Saved {
    /// Blocks in use.
    pub blocks: u64,
    /// Bytes of the file.
    pub len: u64,
}

/// A region that can be saved: its bitmaps are sound.
pub(crate) struct Source<'a> {
    region: RegionView<'a>,
    geo: Geometry,
    image: Image<'a>,
    pub header: Header,
    /// Blocks in use.
    pub blocks: u64,
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

    /// Calls `f` for the runs of blocks in use. Those with fixed places, the superblock pages
    /// and the journal, come first.
    fn runs(&self, f: &mut dyn FnMut(Range<u64>) -> io::Result<()>) -> Result<(), Stop> {
        let fixed = merged(self.geo.fixed_blocks());
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

    /// Reads blocks in use. Those that have failed and are in the list of bad blocks, which hold
    /// nothing, read as zeros.
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

    /// Writes the file, compressed at a level of zstd.
    ///
    /// # Errors
    /// Those of writing, and of reading the region.
    pub(crate) fn write(
        &self,
        out: impl Write,
        level: i32,
        progress: &dyn Fn(u64),
    ) -> io::Result<Saved> {
        let mut file = Output {
            out,
            len: 0,
            crc: 0,
        };
        file.put(&self.header.encode())?;
        let mut writer = Writer {
            source: self,
            file,
            seed: self.header.seed(),
            compressor: zstd::bulk::Compressor::new(level)?,
            runs: Vec::new(),
            data: Vec::with_capacity(CHUNK_DATA),
            chunks: 0,
            blocks: 0,
            progress,
        };
        self.runs(&mut |run| writer.add(run)).map_err(|e| match e {
            Stop::Io(e) => e,
            // It was sound when this value was made.
            Stop::Damage(e) => io::Error::other(e),
        })?;
        writer.end()
    }
}

enum Stop {
    Damage(String),
    Io(io::Error),
}

fn bad_sum(group: u64, stopped: &mut Result<(), Stop>) {
    *stopped = Err(Stop::Damage(format!(
        "the sum of the bitmap of block group {group} is wrong"
    )));
}

/// Sorted, without overlaps: blocks of less than a page may be shared by two.
fn merged(mut ranges: [Range<u64>; 3]) -> Vec<Range<u64>> {
    ranges.sort_by_key(|r| r.start);
    let mut out: Vec<Range<u64>> = Vec::new();
    for r in ranges {
        match out.last_mut() {
            Some(last) if r.start <= last.end => last.end = last.end.max(r.end),
            _ => out.push(r),
        }
    }
    out
}

/// Calls `f` for the runs of set bits.
fn runs_of(
    words: &[u64],
    bits: u64,
    mut f: impl FnMut(u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    let is_set = |bit: u64| words[bit as usize / 64] >> (bit % 64) & 1 != 0;
    let mut bit = 0;
    while bit < bits {
        if bit.is_multiple_of(64) && words[bit as usize / 64] == 0 {
            bit += 64;
            continue;
        }
        if !is_set(bit) {
            bit += 1;
            continue;
        }
        let start = bit;
        while bit < bits && is_set(bit) {
            bit += 1;
        }
        f(start, bit)?;
    }
    Ok(())
}

/// Calls `f` for the parts of a run outside of the fixed ranges.
fn outside(
    run: Range<u64>,
    fixed: &[Range<u64>],
    f: &mut dyn FnMut(Range<u64>) -> io::Result<()>,
) -> io::Result<()> {
    let mut at = run.start;
    for hole in fixed {
        if hole.end <= at || hole.start >= run.end {
            continue;
        }
        if at < hole.start {
            f(at..hole.start)?;
        }
        at = hole.end;
    }
    match at < run.end {
        true => f(at..run.end),
        false => Ok(()),
    }
}

/// Counts and sums what is written.
struct Output<W> {
    out: W,
    len: u64,
    crc: u32,
}

impl<W: Write> Output<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.len += bytes.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        Ok(())
    }
}

struct Writer<'a, W> {
    source: &'a Source<'a>,
    file: Output<W>,
    seed: u32,
    compressor: zstd::bulk::Compressor<'static>,
    /// Of the next chunk.
    runs: Vec<(u64, u64)>,
    data: Vec<u8>,
    chunks: u64,
    blocks: u64,
    progress: &'a dyn Fn(u64),
}

impl<W: Write> Writer<'_, W> {
    fn add(&mut self, mut run: Range<u64>) -> io::Result<()> {
        let geo = &self.source.geo;
        while !run.is_empty() {
            let room = geo.whole_blocks((CHUNK_DATA - self.data.len()) as u64);
            let count = room.min(run.end - run.start);
            let at = self.data.len();
            self.data.resize(at + geo.bytes(count) as usize, 0);
            self.source.read_blocks(run.start, &mut self.data[at..])?;
            self.runs.push((run.start, count));
            self.blocks += count;
            run.start += count;
            if self.data.len() == CHUNK_DATA {
                self.chunk()?;
            }
        }
        Ok(())
    }

    /// Writes what was collected.
    fn chunk(&mut self) -> io::Result<()> {
        if self.runs.is_empty() {
            return Ok(());
        }
        let mut payload = Vec::with_capacity(self.runs.len() * 16 + self.data.len());
        for (first, count) in &self.runs {
            payload.extend(first.to_le_bytes());
            payload.extend(count.to_le_bytes());
        }
        payload.extend(&self.data);
        let stored = self.compressor.compress(&payload)?;
        let head = ChunkHeader {
            stored: stored.len() as u32,
            payload: payload.len() as u32,
            runs: self.runs.len() as u32,
            number: self.chunks,
        };
        let head: [u8; CHUNK_HEADER] = head.encode(self.seed, &stored);
        self.file.put(&head)?;
        self.file.put(&stored)?;
        (self.progress)(self.data.len() as u64);
        self.chunks += 1;
        self.runs.clear();
        self.data.clear();
        Ok(())
    }

    fn end(mut self) -> io::Result<Saved> {
        self.chunk()?;
        let len = self.file.len + super::format::END as u64;
        let end = End {
            chunks: self.chunks,
            blocks: self.blocks,
            len,
            crc_of_all: self.file.crc,
        };
        self.file.put(&end.encode(self.seed))?;
        self.file.out.flush()?;
        Ok(Saved {
            blocks: self.blocks,
            len,
        })
    }
}
