//! Blocks of file maps.

use crate::fs::inode::state::InodeState;
use crate::fs::scrub::unit::{Scrubber, Unit};
use crate::fs::scrub::verify::{BlockSum, DataBlock};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::map::{self, MapRef};
use pramfs_medium::types::{Bno, FileBlock, Ino};

/// Bytes that a step reads of a file at most.
const CHUNK: u64 = 64 << 10;
/// Bytes that are copied at a time: they stay in the nearest cache.
const PIECE: usize = 8 << 10;

/// What the blocks of a map are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Contents<'s> {
    /// Data of a file, with their sums.
    Data(&'s [Option<BlockSum>]),
    /// Something else, which is checked elsewhere.
    Metadata,
}

/// A part of a file map.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Where the map goes on; `None` at its end.
    pub next: Option<FileBlock>,
    /// Bytes of the pointer blocks that were read.
    pub bytes: u64,
    /// Written blocks: the first in the file, the first in the region, how many.
    pub run: Option<(FileBlock, Bno, u64)>,
    /// A damaged pointer. What it covers is skipped.
    pub bad: Option<Error>,
}

impl Scrubber<'_> {
    /// Checks the pointers of the part of a map that begins at a file block.
    pub(super) fn chunk(&mut self, map: &MapRef, index: FileBlock) -> Chunk {
        let vol = &self.engine.vol;
        let geo = &vol.geo;
        let mut chunk = Chunk {
            next: None,
            bytes: 0,
            run: None,
            bad: None,
        };
        let end = map.root().end(geo);
        if index >= end {
            // The position of a record may be any number.
            return chunk;
        }
        let step = map::step(vol, map, index, &mut self.counted.tables);
        self.counted.blocks += step.tables;
        chunk.bytes = geo.bytes(step.tables);
        let behind = step.first.saturating_add(step.count).max(index + 1);
        let mut next = behind;
        match step.leaf {
            Err(e) => chunk.bad = Some(e),
            Ok(leaf) => {
                if leaf.block.is_some() {
                    let most = match leaf.unwritten {
                        true => behind - index,
                        false => geo.blocks_for(CHUNK).max(1),
                    };
                    match map::run(vol, map, index, most) {
                        Err(e) => chunk.bad = Some(e),
                        Ok(extent) => {
                            next = index + extent.count.max(1);
                            if let Some(block) = extent.block {
                                self.counted.blocks += extent.count;
                                let run = (index, block, extent.count);
                                chunk.run = (!extent.unwritten).then_some(run);
                            }
                        }
                    }
                }
            }
        }
        chunk.next = (next < end).then_some(next);
        chunk
    }

    /// Returns the sums of the blocks of a part of a locked file, and adds what is wrong with
    /// them to the step.
    pub(super) fn sums_of(
        &self,
        chunk: &Chunk,
        unit: &mut Unit,
        state: &InodeState,
    ) -> Result<Vec<Option<BlockSum>>> {
        let Some((index, block, count)) = chunk.run else {
            return Ok(Vec::new());
        };
        let ino = Ino(state.disk.ino);
        let first = DataBlock { ino, index, block };
        match self.verify.sums(self.engine, state, first, count) {
            Ok(sums) => Ok(sums),
            Err(e) => {
                unit.add(e, Some(ino), None)?;
                Ok(Vec::new())
            }
        }
    }

    /// Reads the blocks of a part of a map, and adds what is wrong to the step.
    pub(super) fn read_chunk(
        &mut self,
        chunk: Chunk,
        unit: &mut Unit,
        ino: Ino,
        kind: Contents<'_>,
    ) -> Result<()> {
        if let Some(e) = chunk.bad {
            unit.add(e, Some(ino), None)?;
        }
        let Some((first, block, count)) = chunk.run else {
            return Ok(());
        };
        let geo = &self.engine.vol.geo;
        unit.bytes += geo.bytes(count);
        let piece = (PIECE as u64 / geo.block_size).max(1);
        let mut done = 0;
        while done < count {
            let blocks = piece.min(count - done);
            let of = DataBlock {
                ino,
                index: first + done,
                block: Bno(block.0 + done),
            };
            let kind = match kind {
                Contents::Metadata => Contents::Metadata,
                Contents::Data(sums) => Contents::Data(sums.get(done as usize..).unwrap_or(&[])),
            };
            self.read_piece(unit, of, blocks, kind)?;
            done += blocks;
        }
        Ok(())
    }

    fn read_piece(
        &mut self,
        unit: &mut Unit,
        start: DataBlock,
        count: u64,
        kind: Contents<'_>,
    ) -> Result<()> {
        let (vol, size) = (&self.engine.vol, self.engine.vol.geo.block_size as usize);
        self.buffer.resize(count as usize * size, 0);
        let whole = vol
            .medium()
            .read(vol.geo.offset(start.block), &mut self.buffer);
        let sums = match kind {
            Contents::Data(sums) => sums,
            Contents::Metadata => &[],
        };
        if whole.is_ok() && sums.is_empty() {
            return Ok(());
        }
        for (bytes, i) in self.buffer.chunks_exact_mut(size).zip(0..) {
            let of = DataBlock {
                index: start.index + i,
                block: Bno(start.block.0 + i),
                ..start
            };
            let read = match &whole {
                Ok(()) => Ok(()),
                // Which of them failed.
                Err(_) => vol.medium().read(vol.geo.offset(of.block), bytes),
            };
            let right = match (read, sums.get(i as usize)) {
                (Err(e), _) => Err(e.into()),
                (Ok(()), Some(Some(sum))) => self.verify.check(self.engine, of, *sum, bytes),
                (Ok(()), _) => Ok(()),
            };
            if let Err(e) = right {
                let offset = match kind {
                    Contents::Data(_) => Some(vol.geo.file_offset(of.index)),
                    Contents::Metadata => None,
                };
                unit.add(e, Some(of.ino), offset)?;
            }
        }
        Ok(())
    }
}
