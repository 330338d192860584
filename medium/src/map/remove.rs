//! Taking blocks out of a file.
//!
//! A call frees from the start of the range on, as much as one record holds,
//! and says where to go on: after each record the range up to there is a hole
//! and the rest is as it was. Pointer blocks go with their last pointer.

use zerocopy::IntoBytes;

use super::insert::{cut, cut_lost, lost_tables};
use super::{BIT_WORD, MapRef, ONE_WORD, RESERVED_BYTES, fan, slot};
use crate::alloc::Run;
use crate::error::Result;
use crate::media::pointer::Ptr;
use crate::media::walk::EMPTY_TABLE;
use crate::types::Bno;
use crate::volume::Tx;

/// Data blocks that are freed after one look at the room: two words of bits.
const CHUNK: u64 = 64;

struct Removal<'t, 'v> {
    tx: &'t mut Tx<'v>,
    map: &'t mut MapRef,
    /// The range that becomes a hole.
    from: u64,
    to: u64,
    /// Run of data blocks that is being gathered.
    run: Run,
    /// Room that is kept for the tables above.
    keep: usize,
}

/// What became of a pointer block.
struct Outcome {
    /// First index that has not been looked at; the end of the block's range,
    /// or of the removal's, when it has been done.
    next: u64,
    /// No pointer is left in it.
    empty: bool,
}

/// Makes a hole of the blocks `from..to` and frees them, as many as fit the
/// record. A large leaf, or a mark of loss, that is covered in part is cut. None of the blocks, and
/// none of the tables, was taken by this very transaction. Returns the index to go on from: `to` when
/// all is done.
///
/// # Errors
/// [`crate::Error::Corrupt`]; [`crate::Error::NoSpace`] where a leaf is to be
/// cut and even the reserve is used up.
pub fn remove(tx: &mut Tx<'_>, map: &mut MapRef, from: u64, to: u64) -> Result<u64> {
    let geo = &tx.volume().geo;
    let root = map.checked(geo)?;
    let end = to.min(root.capacity(geo));
    if from >= end || map.root.is_hole() {
        if map.root.is_hole() {
            map.height = 0;
        }
        return Ok(to);
    }
    // At each level one range of zeros, and the block of a table that goes.
    let keep = RESERVED_BYTES + map.height as usize * (ONE_WORD + BIT_WORD);
    let (ptr, level) = (map.root, map.height);
    let mut r = Removal {
        tx,
        map,
        from,
        to: end,
        run: Run { start: 0, len: 0 },
        keep,
    };
    let (next, left) = r.entry(ptr, level, 0)?;
    r.flush()?;
    map.root = left;
    if left.is_hole() {
        map.height = 0;
    }
    Ok(if next >= end { to } else { next })
}

impl Removal<'_, '_> {
    /// Handles one pointer, of level `level`, whose first index is `first`;
    /// returns where to go on and what the pointer becomes.
    fn entry(&mut self, ptr: Ptr, level: u32, first: u64) -> Result<(u64, Ptr)> {
        let geo = &self.tx.volume().geo;
        let span = 1u64 << (geo.fan_log2 * level);
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
        self.tx.free_blocks(Run {
            start: block.0,
            len: 1,
        })?;
        self.map.blocks -= 1;
        // An empty table is a hole to its end.
        Ok((out.next.max((first + span).min(self.to)), Ptr::HOLE))
    }

    /// A mark of loss, which owns nothing: goes whole, or is cut.
    #[cold]
    fn lost(&mut self, ptr: Ptr, level: u32, first: u64) -> Result<(u64, Ptr)> {
        let geo = &self.tx.volume().geo;
        let span = 1u64 << (geo.fan_log2 * level);
        let (from, to) = (self.from.max(first), self.to.min(first + span));
        if to - from < span {
            self.flush()?;
            let need = lost_tables(level) * BIT_WORD + ONE_WORD;
            if self.tx.room() < self.keep + need {
                return Ok((from, ptr));
            }
            let left = cut_lost(self.tx, self.map, (level, first), (from, to))?;
            self.map.healed = true;
            return Ok((to, left));
        }
        self.map.healed = true;
        Ok((to, Ptr::HOLE))
    }

    /// A leaf of 2 MiB: goes whole, or is cut.
    fn large(&mut self, ptr: Ptr, block: Bno, first: u64) -> Result<(u64, Ptr)> {
        let span = fan(&self.tx.volume().geo);
        self.flush()?;
        // Its bits, those of a new table, and the pointer.
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
        self.tx.free_blocks(Run {
            start: block.0 + a,
            len: b - a,
        })?;
        self.map.blocks -= (b - a) as i64;
        Ok((first + b, left))
    }

    /// Handles the pointers, of level `level`, of a pointer block whose first
    /// index is `first`.
    fn table(&mut self, block: Bno, level: u32, first: u64) -> Result<Outcome> {
        let geo = &self.tx.volume().geo;
        let (shift, slots) = (geo.fan_log2 * level, fan(geo) as usize);
        let place = geo.offset(block);
        let mut words = [0u64; 512];
        let words = &mut words[..slots];
        self.tx.read(place, words.as_mut_bytes())?;
        if words.iter().all(|w| *w == 0) {
            return Err(self.map.damaged(first, EMPTY_TABLE));
        }
        let a = if self.from > first {
            slot(geo, level, self.from) as usize
        } else {
            0
        };
        let mut next = self.from.max(first);
        // Slots whose word changes.
        let (mut low, mut high) = (usize::MAX, 0);
        let mut changed = None;
        for (i, word) in words.iter_mut().enumerate().skip(a) {
            let start = first + ((i as u64) << shift);
            if start >= self.to {
                break;
            }
            let end = (start + (1 << shift)).min(self.to);
            if *word != 0 {
                let old = Ptr(*word);
                let (at, left) = self.entry(old, level, start)?;
                *word = left.0;
                if left.is_hole() {
                    (low, high) = (low.min(i), i + 1);
                } else if left != old {
                    // A cut leaf; the range begins or ends in it.
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
            let (at, n) = (place + low as u64 * 8, (high - low) as u64);
            self.tx.put_zeros(at, n)?;
        }
        Ok(Outcome { next, empty })
    }

    fn tx_put(&mut self, block: Bno, slot: usize, ptr: Ptr) -> Result<()> {
        super::put_slots(self.tx, block, slot as u64, &[ptr.0])
    }

    /// Frees a data block, with others that lie beside it; false when the
    /// record is full.
    fn free(&mut self, block: Bno) -> Result<bool> {
        if self.run.len > 0 && self.run.len < CHUNK && block.0 == self.run.start + self.run.len {
            self.run.len += 1;
            return Ok(true);
        }
        self.flush()?;
        if self.tx.room() < self.keep + 2 * BIT_WORD {
            return Ok(false);
        }
        self.run = Run {
            start: block.0,
            len: 1,
        };
        Ok(true)
    }

    /// Hands the gathered run to the transaction. Its room was looked at when
    /// it was begun.
    fn flush(&mut self) -> Result<()> {
        let run = std::mem::replace(&mut self.run, Run { start: 0, len: 0 });
        if run.len > 0 {
            self.tx.free_blocks(run)?;
            self.map.blocks -= run.len as i64;
        }
        Ok(())
    }
}
