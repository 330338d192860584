//! Changing a leaf in place: what changes of a line is put into the record as
//! it is written, and at the end the header with the renewed sum.

use zerocopy::{FromBytes, IntoBytes};

use super::TreeRef;
use super::leaf::LINE;
use crate::error::Result;
use crate::media::checksum::line_sum_of;
use crate::media::htree::{LeafHeader, LeafShape};
use crate::media::record::EntryKind;
use crate::pmem::mutants::has_bug;
use crate::types::Bno;
use crate::volume::Tx;

/// Words of a line.
type Line = [u64; LINE / 8];

/// A change of one leaf that is being made up.
pub struct LeafEdit<'a, 'v> {
    tx: &'a mut Tx<'v>,
    base: u64,
    seed: u64,
    /// The header's line as it was.
    old: Line,
    /// The header as it will be, its sum that of the lines put so far.
    pub header: LeafHeader,
}

impl<'a, 'v> LeafEdit<'a, 'v> {
    /// Begins a change of a leaf, as the transaction leaves it so far.
    ///
    /// # Errors
    /// Those of the region.
    pub fn begin(tx: &'a mut Tx<'v>, t: &TreeRef, block: Bno) -> Result<LeafEdit<'a, 'v>> {
        let geo = &tx.volume().geo;
        let (base, seed) = (geo.offset(block), t.leaf_seed(geo, block));
        let old: Line = tx.read_pod(base)?;
        let header = LeafHeader::read_from_bytes(old.as_bytes()).unwrap_or_default();
        Ok(LeafEdit {
            tx,
            base,
            seed,
            old,
            header,
        })
    }

    /// Changes bytes at an offset in the leaf, behind its header.
    ///
    /// # Errors
    /// Those of the region; a record that is full.
    pub fn write(&mut self, mut at: usize, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (index, within) = (at / LINE, at % LINE);
            let n = bytes.len().min(LINE - within);
            let place = self.base + (index * LINE) as u64;
            let old: Line = self.tx.read_pod(place)?;
            let mut new = old;
            new.as_mut_bytes()[within..within + n].copy_from_slice(&bytes[..n]);
            let sum = |line| line_sum_of(self.seed, index as u64, line);
            self.header.sum = self
                .header
                .sum
                .wrapping_sub(sum(old))
                .wrapping_add(sum(new));
            let (first, end) = (within / 8, (within + n).div_ceil(8));
            self.tx.put(
                EntryKind::Leaf,
                place + first as u64 * 8,
                new[first..end].as_bytes(),
            )?;
            at += n;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Changes the tags from a slot on.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn set_tags(&mut self, slot: usize, tags: &[u8]) -> Result<()> {
        self.write(LeafShape::TAGS_AT + slot, tags)
    }

    /// Renews the sum and puts the header into the record.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn finish(self) -> Result<()> {
        // The sum takes itself for zero.
        let sum = |line: &Line| {
            let mut line = *line;
            line[SUM_WORD] = 0;
            line_sum_of(self.seed, 0, line)
        };
        let mut new = Line::default();
        new.as_mut_bytes().copy_from_slice(self.header.as_bytes());
        new[SUM_WORD] = self
            .header
            .sum
            .wrapping_sub(sum(&self.old))
            .wrapping_add(sum(&new));
        if has_bug!(EntryBeforeName) {
            drop(
                self.tx
                    .volume()
                    .region
                    .window()
                    .store(self.base, new.as_bytes())?,
            );
        }
        // Counts and sum; owner and prefix between them stay.
        self.tx
            .put(EntryKind::Leaf, self.base, new[..CHANGING].as_bytes())
    }
}

/// Word of the header that is the sum.
const SUM_WORD: usize = super::leaf::SUM_AT / 8;
/// Words from the start of the header up to the last that changes.
const CHANGING: usize = std::mem::offset_of!(LeafHeader, used_slots) / 8 + 1;
