//! Removes blocks from a file.
//!
//! A call frees from the start of the range as much as one record holds and returns
//! where to continue. After each record the range up to that index is a hole, and
//! the rest is unchanged. A pointer block is freed with its last pointer.

use zerocopy::IntoBytes;

use super::insert::{cut, cut_lost, lost_tables};
use super::{BIT_WORD, MapRef, ONE_WORD, RESERVED_BYTES};
use crate::error::Result;
use crate::media::pointer::Ptr;
use crate::types::{BlockRun, Bno, FileBlock};
use crate::volume::Plan;

/// Maximum number of data blocks freed per check of the room: two words of bits.
const CHUNK: u64 = 64;

struct Removal<'t, 'v> {
    tx: &'t mut Plan<'v>,
    map: &'t mut MapRef,
    /// The range that becomes a hole.
    from: FileBlock,
    to: FileBlock,
    /// BlockRun of data blocks collected so far.
    run: BlockRun,
    /// Room reserved for the pointer blocks above.
    keep: usize,
}

/// The result for a pointer block.
struct Outcome {
    /// First index not processed. For a completed block: the end of its range or of
    /// the removal.
    next: FileBlock,
    /// The block has no pointers left.
    empty: bool,
}

/// Frees the blocks `from..to` and leaves a hole, as far as the record has room. A
/// huge leaf or a loss mark that is covered in part is split. This transaction must
/// not have taken any of the blocks or pointer blocks itself. Returns the index to
/// continue from, which is `to` when all is done.
///
/// # Errors
/// [`crate::Error::Corrupt`]; [`crate::Error::NoSpace`] if a leaf or loss mark must be
/// split and even the reserve is used up.
pub fn remove(
    tx: &mut Plan<'_>,
    map: &mut MapRef,
    from: FileBlock,
    to: FileBlock,
) -> Result<FileBlock> {
    let geo = &tx.volume().geo;
    let root = map.checked(geo)?;
    let end = to.min(root.end(geo));
    if from >= end || map.root.is_hole() {
        if map.root.is_hole() {
            map.height = 0;
        }
        return Ok(to);
    }
    // For each level: one range of zeros, and the bit of a freed pointer block.
    let keep = RESERVED_BYTES + map.height as usize * (ONE_WORD + BIT_WORD);
    let (ptr, level) = (map.root, map.height);
    let mut r = Removal {
        tx,
        map,
        from,
        to: end,
        run: BlockRun::EMPTY,
        keep,
    };
    let (next, left) = r.entry(ptr, level, FileBlock(0))?;
    r.flush()?;
    map.root = left;
    if left.is_hole() {
        map.height = 0;
    }
    Ok(if next >= end { to } else { next })
}

impl Removal<'_, '_> {
    /// Handles one pointer of level `level` with first index `first`. Returns where to
    /// continue and the new pointer.
    fn entry(&mut self, ptr: Ptr, level: u32, first: FileBlock) -> Result<(FileBlock, Ptr)> {
        let geo = &self.tx.volume().geo;
        let span = geo.span(level);
        let at = self.map.at(geo, level, first);
        let block = match self.map.root().open(geo, ptr, at) {
            Err(_) if ptr.is_lost(at) => return self.lost(ptr, level, first),
            opened => opened?,
        };
        if level == 0 {
            return Ok(if self.free(block)? {
                (first + 1, Ptr::HOLE)
            } else {
                (first, ptr)
            });
        }
        if ptr.is_leaf() {
            return self.large(ptr, block, first);
        }
        self.flush()?;
        if self.tx.room() < self.keep + 2 * BIT_WORD {
            return Ok((self.from.max(first), ptr));
        }
        let out = self.table(block, level - 1, first)?;
        if !out.empty {
            return Ok((out.next, ptr));
        }
        self.flush()?;
        self.tx.free_blocks(BlockRun {
            start: block,
            len: 1,
        })?;
        self.map.blocks -= 1;
        // An empty pointer block becomes a hole up to its end.
        Ok((out.next.max((first + span).min(self.to)), Ptr::HOLE))
    }

    /// Removes or splits a loss mark, which owns no blocks.
    #[cold]
    fn lost(&mut self, ptr: Ptr, level: u32, first: FileBlock) -> Result<(FileBlock, Ptr)> {
        let geo = &self.tx.volume().geo;
        let span = geo.span(level);
        let (from, to) = (self.from.max(first), self.to.min(first + span));
        if to - from < span {
            self.flush()?;
            let need = lost_tables(level) * BIT_WORD + ONE_WORD;
            if self.tx.room() < self.keep + need {
                return Ok((from, ptr));
            }
            let left = cut_lost(self.tx, self.map, level, first, &(from..to))?;
            self.map.healed = true;
            return Ok((to, left));
        }
        self.map.healed = true;
        Ok((to, Ptr::HOLE))
    }

    /// Removes or splits a leaf of 2 MiB.
    fn large(&mut self, ptr: Ptr, block: Bno, first: FileBlock) -> Result<(FileBlock, Ptr)> {
        let span = self.tx.volume().geo.fan();
        self.flush()?;
        // The bits of its blocks, the bit of a new pointer block, and the pointer.
        let need = (span as usize / 64 + 3) * BIT_WORD + ONE_WORD;
        if self.tx.room() < self.keep + need {
            return Ok((self.from.max(first), ptr));
        }
        let (a, b) = (
            self.from.max(first) - first,
            self.to.min(first + span) - first,
        );
        let left = if b - a == span {
            Ptr::HOLE
        } else {
            cut(self.tx, self.map, first, ptr, |i| i < a || i >= b)?
        };
        self.tx.free_blocks(BlockRun {
            start: block.after(a),
            len: b - a,
        })?;
        self.map.blocks -= (b - a) as i64;
        Ok((first + b, left))
    }

    /// Handles the pointers of level `level` in a pointer block with first index
    /// `first`.
    fn table(&mut self, block: Bno, level: u32, first: FileBlock) -> Result<Outcome> {
        let geo = &self.tx.volume().geo;
        let (span, slots) = (geo.span(level), geo.fan() as usize);
        let place = geo.offset(block);
        let mut words = [0u64; 512];
        let words = &mut words[..slots];
        self.tx.read(place, words.as_mut_bytes())?;
        if words.iter().all(|w| *w == 0) {
            return Err(self.map.empty_table(first));
        }
        let a = if self.from > first {
            geo.slot_at(level, self.from) as usize
        } else {
            0
        };
        let mut next = self.from.max(first);
        // Slots that become holes.
        let (mut low, mut high) = (usize::MAX, 0);
        let mut changed = None;
        for (i, word) in words.iter_mut().enumerate().skip(a) {
            let start = first + i as u64 * span;
            if start >= self.to {
                break;
            }
            let end = (start + span).min(self.to);
            if *word != 0 {
                let old = Ptr(*word);
                let (at, left) = self.entry(old, level, start)?;
                *word = left.0;
                if left.is_hole() {
                    (low, high) = (low.min(i), i + 1);
                } else if left != old {
                    // A split leaf or loss mark: the range begins or ends in it.
                    self.tx_put(block, i, left)?;
                    changed = Some(i);
                }
                next = at;
                if at < end {
                    break;
                }
            }
            next = end;
        }
        let empty = words.iter().all(|w| *w == 0);
        if !empty && low < high {
            debug_assert!(changed.is_none_or(|i| i < low || i >= high));
            let (at, n) = (place.word(low as u64), (high - low) as u64);
            self.tx.put_zeros(at, n)?;
        }
        Ok(Outcome { next, empty })
    }

    fn tx_put(&mut self, block: Bno, slot: usize, ptr: Ptr) -> Result<()> {
        super::put_slots(self.tx, block, slot as u64, &[ptr.0])
    }

    /// Frees a data block and collects adjacent ones. Returns false if the record is
    /// full.
    fn free(&mut self, block: Bno) -> Result<bool> {
        if self.run.len > 0 && self.run.len < CHUNK && block == self.run.end() {
            self.run.len += 1;
            return Ok(true);
        }
        self.flush()?;
        if self.tx.room() < self.keep + 2 * BIT_WORD {
            return Ok(false);
        }
        self.run = BlockRun {
            start: block,
            len: 1,
        };
        Ok(true)
    }

    /// Passes the collected run to the transaction. Its room was checked when the run
    /// began.
    fn flush(&mut self) -> Result<()> {
        let run = std::mem::replace(&mut self.run, BlockRun::EMPTY);
        if run.len > 0 {
            self.tx.free_blocks(run)?;
            self.map.blocks -= run.len as i64;
        }
        Ok(())
    }
}
