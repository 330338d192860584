//! Changes a leaf in place. Each write puts the changed words of a line into the
//! record. The header with the new sum follows at the end.

use std::mem::offset_of;

use zerocopy::IntoBytes;

use super::TreeRef;
use super::leaf::{LINE, TAG_BYTES};
use crate::error::Result;
use crate::media::checksum::{line_base_change, line_base_of, line_sum_of, mix64};
use crate::media::htree::{LeafHeader, LeafShape};
use crate::media::record::EntryKind;
use crate::pmem::mutants::has_bug;
use crate::types::{Bno, RegionOffset};
use crate::volume::Record;

/// Words of a line.
type Line = [u64; LINE / 8];

/// A pending change of one leaf.
pub(super) struct LeafEdit<'a, 'v> {
    tx: &'a mut Record<'v>,
    base: RegionOffset,
    seed: u64,
    /// The header before the change.
    old: Line,
    /// The sum after the changes put so far.
    sum: u64,
    /// Number of items after the change.
    pub items: u16,
    /// Number of slots in use after the change.
    pub used_slots: u16,
}

impl<'a, 'v> LeafEdit<'a, 'v> {
    /// Begins a change of a leaf in its current state in the transaction. Takes no
    /// blocks.
    ///
    /// # Errors
    /// Errors of the region.
    #[inline]
    pub(super) fn begin(
        tx: &'a mut Record<'v>,
        tree: &TreeRef,
        block: Bno,
    ) -> Result<LeafEdit<'a, 'v>> {
        let geo = &tx.volume().geo;
        let (base, seed) = (geo.offset(block), tree.leaf_seed(geo, block));
        let mut old = Line::default();
        tx.read(base, old.as_mut_bytes())?;
        Ok(LeafEdit {
            tx,
            base,
            seed,
            sum: old[SUM_WORD],
            items: (old[COUNTS] >> ITEMS_SHIFT) as u16,
            used_slots: old[USED] as u16,
            old,
        })
    }

    /// Changes bytes at an offset in the leaf, after its header.
    ///
    /// # Errors
    /// Errors of the region; a full record.
    pub(super) fn write(&mut self, mut at: usize, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let within = at % LINE;
            let (now, rest) = bytes.split_at(bytes.len().min(LINE - within));
            self.change(at, now.len(), |line| match now.as_chunks::<8>() {
                // Items are whole words. Storing words makes later loads of
                // words fastest.
                (words, []) if within.is_multiple_of(8) => {
                    for (to, from) in line[within / 8..].iter_mut().zip(words) {
                        *to = u64::from_le_bytes(*from);
                    }
                }
                _ => line.as_mut_bytes()[within..within + now.len()].copy_from_slice(now),
            })?;
            at += now.len();
            bytes = rest;
        }
        Ok(())
    }

    /// Sets the tags of `count` slots: `first` for the first slot, `next` for the
    /// others.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    #[inline]
    pub(super) fn set_tags(
        &mut self,
        slot: usize,
        count: usize,
        first: u8,
        next: u8,
    ) -> Result<()> {
        let at = LeafShape::TAGS_AT + slot;
        let (word, byte) = (at % LINE / 8, at % 8);
        if count == 0 || count > 8 || word == 7 && byte + count > 8 {
            let mut tags = [next; TAG_BYTES];
            tags[0] = first;
            return self.write(at, &tags[..count]);
        }
        let tags = u64::from(first) | (u64::MAX / 255 * u64::from(next)) << 8;
        let mask = u128::from(u64::MAX >> (64 - count * 8)) << (byte * 8);
        let tags = u128::from(tags) << (byte * 8) & mask;
        self.change(at, count, |line| {
            line[word] = line[word] & !(mask as u64) | tags as u64;
            if let Some(second) = line.get_mut(word + 1) {
                *second = *second & !((mask >> 64) as u64) | (tags >> 64) as u64;
            }
        })
    }

    /// Applies `f` to `n` bytes of one line and puts the changed words into the record.
    #[inline]
    fn change(&mut self, at: usize, n: usize, f: impl FnOnce(&mut Line)) -> Result<()> {
        let (index, within) = (at / LINE, at % LINE);
        let place = self.base + (index * LINE) as u64;
        let mut line = Line::default();
        self.tx.read(place, line.as_mut_bytes())?;
        let sum = |line| line_sum_of(self.seed, index as u64, line);
        let before = sum(line);
        f(&mut line);
        self.sum = self.sum.wrapping_sub(before).wrapping_add(sum(line));
        let (first, end) = (within / 8, (within + n).div_ceil(8));
        self.tx.put(
            EntryKind::Leaf,
            place.word(first as u64),
            line[first..end].as_bytes(),
        )
    }

    /// Updates the sum and puts the header into the record.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    #[inline]
    pub(super) fn finish(self) -> Result<()> {
        // The sum is computed with its own field as zero.
        let mut old = self.old;
        old[SUM_WORD] = 0;
        let mut new = old;
        new[COUNTS] = old[COUNTS] & !(0xffff << ITEMS_SHIFT) | u64::from(self.items) << ITEMS_SHIFT;
        new[USED] = old[USED] & !0xffff | u64::from(self.used_slots);
        let before = line_base_of(self.seed, 0, old);
        let after = [COUNTS, USED].map(|i| line_base_change(i, old[i], new[i]));
        let after = after.into_iter().fold(before, u64::wrapping_add);
        new[SUM_WORD] = self
            .sum
            .wrapping_sub(mix64(before))
            .wrapping_add(mix64(after));
        if has_bug!(EntryBeforeName) {
            drop(
                self.tx
                    .volume()
                    .region
                    .window()
                    .store(self.base.0, new.as_bytes())?,
            );
        }
        // Owner and prefix lie between the changed words and stay the same. A rename
        // changes a leaf twice, but only this function writes the header.
        let header = new[..=USED].as_bytes();
        self.tx.put_anew(EntryKind::Leaf, self.base, header)
    }
}

/// Index of the header word with the sum.
const SUM_WORD: usize = super::leaf::SUM_AT / 8;
/// Indices of the other header words that change: number of items, slots in use.
const COUNTS: usize = offset_of!(LeafHeader, items) / 8;
const USED: usize = offset_of!(LeafHeader, used_slots) / 8;
/// Shift of the number of items in its word. The number of slots has shift 0.
const ITEMS_SHIFT: usize = offset_of!(LeafHeader, items) % 8 * 8;
const _: () = assert!(offset_of!(LeafHeader, used_slots).is_multiple_of(8));
