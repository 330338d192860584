//! Changing a leaf in place: the lines that change are copied, changed, and
//! put into the record, as far as their words differ, with the renewed sum.

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
        for l in self.lines.iter().filter(|l| l.old != l.new) {
            header.sum = header
                .sum
                .wrapping_sub(plain_line_sum(self.seed, l.index, &l.old))
                .wrapping_add(plain_line_sum(self.seed, l.index, &l.new));
        }
        self.set_header(tx, &header)?;
        self.lines.sort_unstable_by_key(|l| l.index);
        let mut run: SmallVec<[u8; 512]> = SmallVec::new();
        let mut start = 0;
        for l in &self.lines {
            let (old, new) = (l.old.as_chunks::<8>().0, l.new.as_chunks::<8>().0);
            for (w, (a, b)) in old.iter().zip(new).enumerate() {
                if a == b {
                    continue;
                }
                let at = (l.index * WORDS + w) * 8;
                let end = start + run.len();
                // An entry has a word of its own: one word between two changes
                // is as well put with them.
                if !run.is_empty() && at == end + 8 && w > 0 {
                    run.extend_from_slice(&new[w - 1]);
                } else if !run.is_empty() && at != end {
                    tx.put(EntryKind::Leaf, self.base + start as u64, &run)?;
                    run.clear();
                }
                if run.is_empty() {
                    start = at;
                }
                run.extend_from_slice(b);
            }
        }
        if !run.is_empty() {
            tx.put(EntryKind::Leaf, self.base + start as u64, &run)?;
        }
        Ok(())
    }
}
