//! Changing a leaf in place: the lines that change are copied, changed, and
//! put into the record, as far as their words differ, with the renewed sum.

use std::ops::Range;

use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

use super::TreeRef;
use super::leaf::{LINE, plain_line_sum};
use crate::error::Result;
use crate::media::htree::{LeafHeader, LeafShape};
use crate::media::record::EntryKind;
use crate::types::Bno;
use crate::volume::Tx;

/// Words in a line.
const WORDS: usize = LINE / 8;

#[derive(Debug, Clone, Copy)]
struct Line {
    index: usize,
    old: [u8; LINE],
    new: [u8; LINE],
}

impl Line {
    /// The words that differ, as bits.
    #[inline]
    fn changed_words(&self) -> u16 {
        let (old, new) = (self.old.as_chunks::<8>().0, self.new.as_chunks::<8>().0);
        let differs = |i: usize| u64::from_le_bytes(old[i]) != u64::from_le_bytes(new[i]);
        (0..WORDS).fold(0, |mask, i| mask | u16::from(differs(i)) << i)
    }
}

/// A change of one leaf that is being made up.
#[derive(Debug)]
pub struct LeafEdit {
    base: u64,
    seed: u64,
    lines: SmallVec<[Line; 8]>,
}

impl LeafEdit {
    /// Begins a change of a leaf, as the transaction leaves it so far.
    pub fn new(tx: &Tx<'_>, t: &TreeRef, block: Bno) -> LeafEdit {
        let geo = &tx.volume().geo;
        LeafEdit {
            base: geo.offset(block),
            seed: t.leaf_seed(geo, block),
            lines: SmallVec::new(),
        }
    }

    fn line(&mut self, tx: &Tx<'_>, index: usize) -> Result<&mut Line> {
        let found = self.lines.iter().position(|l| l.index == index);
        let i = match found {
            Some(i) => i,
            None => {
                let mut old = [0; LINE];
                tx.read(self.base + (index * LINE) as u64, &mut old)?;
                self.lines.push(Line {
                    index,
                    old,
                    new: old,
                });
                self.lines.len() - 1
            }
        };
        Ok(&mut self.lines[i])
    }

    /// Changes bytes at an offset in the leaf.
    pub fn write(&mut self, tx: &Tx<'_>, mut at: usize, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let n = bytes.len().min(LINE - at % LINE);
            self.line(tx, at / LINE)?.new[at % LINE..at % LINE + n].copy_from_slice(&bytes[..n]);
            at += n;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// The header as it is now.
    pub fn header(&mut self, tx: &Tx<'_>) -> Result<LeafHeader> {
        Ok(LeafHeader::read_from_bytes(&self.line(tx, 0)?.new).unwrap_or_default())
    }

    /// Changes the header.
    pub fn set_header(&mut self, tx: &Tx<'_>, header: &LeafHeader) -> Result<()> {
        self.line(tx, 0)?.new.copy_from_slice(header.as_bytes());
        Ok(())
    }

    /// Changes the tags from a slot on.
    pub fn set_tags(
        &mut self,
        tx: &Tx<'_>,
        slot: usize,
        tags: impl Iterator<Item = u8>,
    ) -> Result<()> {
        let tags: SmallVec<[u8; 16]> = tags.collect();
        self.write(tx, LeafShape::TAGS_AT + slot, &tags)
    }

    /// Renews the sum and puts what differs into the record.
    pub fn finish(mut self, tx: &mut Tx<'_>) -> Result<()> {
        let mut header = self.header(tx)?;
        for l in self.lines.iter().filter(|l| l.changed_words() != 0) {
            header.sum = header
                .sum
                .wrapping_sub(plain_line_sum(self.seed, l.index, &l.old))
                .wrapping_add(plain_line_sum(self.seed, l.index, &l.new));
        }
        self.set_header(tx, &header)?;
        self.lines.sort_unstable_by_key(|l| l.index);
        let mut run = Run::default();
        for l in &self.lines {
            let mut changed = l.changed_words();
            while changed != 0 {
                let first = changed.trailing_zeros() as usize;
                let count = (changed >> first).trailing_ones() as usize;
                changed &= !(((1u16 << count) - 1) << first);
                run.add(tx, self.base, l, first..first + count)?;
            }
        }
        run.put(tx, self.base)
    }
}

/// Neighbouring words that change, of one line or of several.
#[derive(Debug, Default)]
struct Run {
    /// Offset of the first in the leaf.
    start: usize,
    bytes: SmallVec<[u8; 512]>,
}

impl Run {
    /// Adds words of a line, or begins anew with them.
    fn add(&mut self, tx: &mut Tx<'_>, base: u64, l: &Line, mut words: Range<usize>) -> Result<()> {
        let at = l.index * LINE + words.start * 8;
        let end = self.start + self.bytes.len();
        // An entry has a word of its own: one word between two changes is as
        // well put with them.
        if !self.bytes.is_empty() && at == end + 8 && words.start > 0 {
            words.start -= 1;
        } else if self.bytes.is_empty() || at != end {
            self.put(tx, base)?;
            self.start = at;
        }
        self.bytes
            .extend_from_slice(&l.new[words.start * 8..words.end * 8]);
        Ok(())
    }

    /// Puts what there is into the record.
    fn put(&mut self, tx: &mut Tx<'_>, base: u64) -> Result<()> {
        if !self.bytes.is_empty() {
            tx.put(EntryKind::Leaf, base + self.start as u64, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}
