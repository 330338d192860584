//! Writes the file of a saved region: its blocks in use, in order.

use std::io::{self, Write};
use std::ops::Range;

use pramfs_medium::types::BlockRun;
use serde::Serialize;

use super::format::{CHUNK_DATA, CHUNK_HEADER, ChunkHeader, End, Header};

/// Runs of blocks that a report names.
const NAMED: usize = 64;

/// Blocks that are zeros in the file, because the medium has failed there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Zeroed {
    /// Number of them.
    pub blocks: u64,
    /// The first runs of them.
    pub runs: Vec<Range<u64>>,
}

impl Zeroed {
    /// Adds blocks, at most once each.
    pub(crate) fn add(&mut self, run: Range<u64>) {
        self.blocks += run.end - run.start;
        let is_whole = self.unnamed() == run.end - run.start;
        let count = self.runs.len();
        match self.runs.last_mut() {
            Some(last) if is_whole && last.end == run.start => last.end = run.end,
            _ if count < NAMED => self.runs.push(run),
            _ => {}
        }
    }

    /// Returns the runs as arguments of `pramfs owner`.
    pub(crate) fn arguments(&self) -> String {
        let runs = self.runs.iter().map(|run| match run.end - run.start {
            1 => run.start.to_string(),
            _ => format!("{}-{}", run.start, run.end - 1),
        });
        runs.collect::<Vec<_>>().join(" ")
    }

    /// Number of blocks that no run has.
    pub(crate) fn unnamed(&self) -> u64 {
        let named: u64 = self.runs.iter().map(|run| run.end - run.start).sum();
        self.blocks - named
    }
}

/// Returns runs as ascending ranges that do not touch each other.
pub(super) fn joined<'r>(runs: impl Iterator<Item = &'r BlockRun>) -> Vec<Range<u64>> {
    let mut runs: Vec<_> = runs.map(|run| run.start.0..run.end().0).collect();
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    runs
}

/// What was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Saved {
    /// Blocks in use.
    pub blocks: u64,
    /// Bytes of the file.
    pub len: u64,
    pub zeroed: Zeroed,
}

/// What is to be saved.
pub(crate) trait Contents {
    /// What the region is.
    fn header(&self) -> &Header;

    /// Blocks in use.
    fn blocks(&self) -> u64;

    /// Calls `f` for the runs of blocks in use, which it reads at once. Those with fixed places,
    /// the superblock pages and the journal, come first, the others in ascending order.
    ///
    /// # Errors
    /// Those of `f`; the bitmaps are damaged.
    fn runs(&self, f: &mut dyn FnMut(Range<u64>) -> io::Result<()>) -> Result<(), Stop>;

    /// Reads blocks in use. Those of the list of bad blocks that are not read become zeros, and are
    /// added to `zeroed`: a file may still have them.
    ///
    /// # Errors
    /// They cannot be read.
    fn read_blocks(&self, first: u64, into: &mut [u8], zeroed: &mut Zeroed) -> io::Result<()>;
}

/// Why the blocks in use are not known, or not read.
pub(crate) enum Stop {
    Damage(String),
    Io(io::Error),
}

/// Writes the file, compressed at a level of zstd.
///
/// # Errors
/// Those of writing, and of reading the region.
pub(crate) fn write_save(
    source: &dyn Contents,
    out: impl Write,
    level: i32,
    progress: &dyn Fn(u64),
) -> io::Result<Saved> {
    let mut file = Output {
        out,
        len: 0,
        crc: 0,
    };
    let header = source.header();
    file.put(&header.encode())?;
    let mut writer = Writer {
        source,
        block_size: header.block_size(),
        file,
        seed: header.seed(),
        compressor: zstd::bulk::Compressor::new(level)?,
        runs: Vec::new(),
        data: Vec::with_capacity(CHUNK_DATA),
        chunks: 0,
        blocks: 0,
        zeroed: Zeroed::default(),
        progress,
    };
    source
        .runs(&mut |run| writer.add(run))
        .map_err(|e| match e {
            Stop::Io(e) => e,
            // It was sound when this value was made.
            Stop::Damage(e) => io::Error::other(e),
        })?;
    writer.end()
}

/// Calls `f` for the runs of set bits.
pub(super) fn runs_of(
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
pub(super) fn outside(
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
    source: &'a dyn Contents,
    block_size: u64,
    file: Output<W>,
    seed: u32,
    compressor: zstd::bulk::Compressor<'static>,
    /// Of the next chunk.
    runs: Vec<(u64, u64)>,
    data: Vec<u8>,
    chunks: u64,
    blocks: u64,
    zeroed: Zeroed,
    progress: &'a dyn Fn(u64),
}

impl<W: Write> Writer<'_, W> {
    fn add(&mut self, mut run: Range<u64>) -> io::Result<()> {
        let size = self.block_size;
        while !run.is_empty() {
            let room = (CHUNK_DATA - self.data.len()) as u64 / size;
            let count = room.min(run.end - run.start);
            let at = self.data.len();
            self.data.resize(at + (count * size) as usize, 0);
            let into = &mut self.data[at..];
            self.source.read_blocks(run.start, into, &mut self.zeroed)?;
            match self.runs.last_mut() {
                Some((first, so_far)) if *first + *so_far == run.start => *so_far += count,
                _ => self.runs.push((run.start, count)),
            }
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
            zeroed: self.zeroed,
        })
    }
}
