//! One group of a bitmap, in ordinary memory.

use super::RunLen;
use crate::types::RegionOffset;

/// Bits of one group. A set bit is in use, reserved, or not yet reusable. Aligned as its cell is.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Group {
    /// `None`: no bit of the group is set, and the group has no bitmap block yet.
    bits: Option<Box<[u64]>>,
    /// Bits in the group. The last group may be short.
    len: u32,
    /// Clear bits.
    free: u32,
    /// Lower bound of the clear bits: no bit below this one is clear.
    low: u32,
    /// Offset of the bitmap block in the region; 0 if the group has none yet.
    pub bitmap_offset: RegionOffset,
    /// Offset of the descriptor.
    pub desc_offset: RegionOffset,
}

impl Group {
    /// A group that is not in use yet.
    pub(super) fn empty(len: u32, desc_offset: RegionOffset) -> Group {
        Group {
            bits: None,
            len,
            free: len,
            low: 0,
            bitmap_offset: RegionOffset(0),
            desc_offset,
        }
    }

    /// A group with the bits of its bitmap block.
    pub(super) fn loaded(
        mut bits: Box<[u64]>,
        len: u32,
        bitmap_offset: RegionOffset,
        desc_offset: RegionOffset,
    ) -> Group {
        // Bits past the end do not exist and count as used.
        let (whole, rest) = (len as usize / 64, len % 64);
        if let Some(word) = bits.get_mut(whole) {
            *word |= u64::MAX << rest;
        }
        bits.iter_mut().skip(whole + 1).for_each(|w| *w = u64::MAX);
        let free = bits.iter().map(|w| w.count_zeros()).sum();
        Group {
            bits: Some(bits),
            len,
            free,
            low: 0,
            bitmap_offset,
            desc_offset,
        }
    }

    /// Makes the group longer. The new bits are clear, on the medium as well.
    pub(super) fn grow(&mut self, len: u32) {
        let more = len.saturating_sub(self.len);
        let start = self.len;
        self.len += more;
        match &mut self.bits {
            None => self.free += more,
            // They counted as used.
            Some(_) => self.give(start, more),
        }
    }

    /// Clear bits.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Whether the group has a bitmap block.
    pub(super) fn is_initialised(&self) -> bool {
        self.bits.is_some()
    }

    /// Sets up the bits of an empty group.
    pub(super) fn initialise(&mut self, words: usize, bitmap_offset: RegionOffset) {
        if self.bits.is_none() {
            let fresh = Group::loaded(
                vec![0; words].into(),
                self.len,
                bitmap_offset,
                self.desc_offset,
            );
            *self = fresh;
        }
    }

    /// Sets a run of clear bits.
    pub(super) fn take(&mut self, start: u32, len: u32) {
        let Some(bits) = &mut self.bits else { return };
        for_words(start, len, |word, mask| {
            debug_assert_eq!(bits[word] & mask, 0);
            bits[word] |= mask;
        });
        self.free -= len;
        if start <= self.low {
            self.low = start + len;
        }
    }

    /// Sets the clear bits of a run, which begins and ends with a word. Returns them by the word.
    pub(super) fn take_free(&mut self, start: u32, len: u32) -> Vec<u64> {
        let Some(bits) = &mut self.bits else {
            return Vec::new();
        };
        let words = &mut bits[start as usize / 64..(start + len) as usize / 64];
        let taken: Vec<u64> = words.iter().map(|word| !*word).collect();
        words.fill(u64::MAX);
        self.free -= taken.iter().map(|word| word.count_ones()).sum::<u32>();
        taken
    }

    /// Clears a run of set bits. On a damaged medium two files may claim a block, so some
    /// bits may be clear already.
    pub(super) fn give(&mut self, start: u32, len: u32) {
        let Some(bits) = &mut self.bits else { return };
        let mut cleared = 0;
        for_words(start, len, |word, mask| {
            cleared += (bits[word] & mask).count_ones();
            bits[word] &= !mask;
        });
        self.free += cleared;
        self.low = self.low.min(start);
    }

    /// Sets a run of bits if all are clear and lie in one word.
    #[inline]
    pub(super) fn take_here(&mut self, start: u32, len: u32) -> bool {
        let Some(bits) = &mut self.bits else {
            return false;
        };
        let first = start % 64;
        if len == 0 || first + len > 64 || start + len > self.len {
            return false;
        }
        let mask = u64::MAX >> (64 - len) << first;
        let Some(word) = bits
            .get_mut(start as usize / 64)
            .filter(|w| **w & mask == 0)
        else {
            return false;
        };
        *word |= mask;
        self.free -= len;
        if start <= self.low {
            self.low = start + len;
        }
        true
    }

    /// Returns the first run of clear bits at or after `from`, at most `want` long.
    pub(super) fn find(&self, from: u32, want: u32) -> Option<(u32, u32)> {
        let bits = self.bits.as_ref()?;
        let mut at = from.max(self.low);
        while at < self.len {
            let w = !bits[at as usize / 64] >> (at % 64);
            if w == 0 {
                at = (at / 64 + 1) * 64;
                continue;
            }
            at += w.trailing_zeros();
            let mut end = at;
            while end < self.len && end - at < want {
                let used = bits[end as usize / 64] >> (end % 64);
                let run = if used == 0 {
                    64 - end % 64
                } else {
                    used.trailing_zeros()
                };
                if run == 0 {
                    break;
                }
                end += run;
            }
            return Some((at, (end - at).min(want)));
        }
        None
    }

    /// Returns the first run of clear bits within a range. Also works for a group without a
    /// bitmap block.
    pub(super) fn next_free(&self, from: u32, end: u32) -> Option<(u32, u32)> {
        let end = end.min(self.len);
        if self.bits.is_none() {
            return (from < end).then(|| (from, end - from));
        }
        let (start, len) = self.find(from, u32::MAX)?;
        (start < end).then(|| (start, len.min(end - start)))
    }

    /// As [`find`](Self::find), but returns only runs of the full length `want`.
    #[inline]
    pub(super) fn find_full(&mut self, mut from: u32, want: u32) -> Option<u32> {
        while let Some((start, len)) = self.find(from, want) {
            // Later searches skip the bits before this run.
            if from <= self.low {
                self.low = start;
            }
            if len == want {
                return Some(start);
            }
            from = start + len;
        }
        None
    }

    /// Returns a run of clear bits that has room, within an aligned run of `part` bits, a multiple
    /// of 64, that is not clear as a whole, and is not left out by its first bit. A longer run is
    /// cut.
    pub(super) fn find_beside(
        &self,
        part: u32,
        lengths: RunLen,
        is_left_out: impl Fn(u32) -> bool,
        has_room: impl Fn(u32, u32) -> bool,
    ) -> Option<(u32, u32)> {
        let bits = self.bits.as_ref()?;
        for first in (0..self.len).step_by(part as usize) {
            let end = self.len.min(first + part);
            let words = &bits[first as usize / 64..end.div_ceil(64) as usize];
            let is_clear = end - first == part && words.iter().all(|word| *word == 0);
            let is_full = words.iter().all(|word| *word == u64::MAX);
            if is_clear || is_full || is_left_out(first) {
                continue;
            }
            let mut from = first;
            while let Some((start, len)) = self.next_free(from, end) {
                let len = len.min(lengths.most);
                if len >= lengths.least && has_room(start, len) {
                    return Some((start, len));
                }
                from = start + len;
            }
        }
        None
    }

    /// Returns a run of `len` clear bits that `fits` accepts. Its number in the whole
    /// bitmap (`base` plus its index here) is a multiple of `len`, a power of two from 64.
    /// `base` is a multiple of 64.
    pub(super) fn find_aligned(
        &self,
        base: u64,
        len: u32,
        fits: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let bits = self.bits.as_ref()?;
        if self.free < len {
            return None;
        }
        let mut at = (base.next_multiple_of(u64::from(len)) - base) as u32;
        while at + len <= self.len {
            let words = &bits[at as usize / 64..(at + len) as usize / 64];
            if words.iter().all(|w| *w == 0) && fits(at) {
                return Some(at);
            }
            at += len;
        }
        None
    }
}

/// Calls `f` with each word index and mask that a run of bits touches.
#[inline]
pub(crate) fn for_words(start: u32, len: u32, mut f: impl FnMut(usize, u64)) {
    let (mut at, end) = (start, start + len);
    while at < end {
        let n = (64 - at % 64).min(end - at);
        let mask = if n == 64 {
            u64::MAX
        } else {
            ((1 << n) - 1) << (at % 64)
        };
        f(at as usize / 64, mask);
        at += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmap_finds_takes_and_frees_runs() {
        let mut g = Group::loaded(vec![0; 4].into(), 200, RegionOffset(4096), RegionOffset(0));
        assert_eq!(g.free(), 200);
        assert_eq!(g.find(0, 100), Some((0, 100)));
        g.take(0, 100);
        assert_eq!(g.find(0, 500), Some((100, 100)));
        g.give(10, 5);
        assert_eq!(g.find(0, 500), Some((10, 5)));
        assert_eq!(g.find_full(0, 6), Some(100));
        assert_eq!(g.find_full(0, 101), None);
        g.take(100, 100);
        g.take(10, 5);
        assert_eq!((g.free(), g.find(0, 1)), (0, None));
        g.give(20, 10);
        assert_eq!(g.next_free(0, 25), Some((20, 5)));
        assert_eq!(g.next_free(30, 200), None);
        assert_eq!(
            Group::empty(200, RegionOffset(0)).next_free(3, 500),
            Some((3, 197))
        );
    }

    #[test]
    fn longer_group_has_new_bits_free_and_keeps_others() {
        let fresh = |len| Group::loaded(vec![0; 4].into(), len, RegionOffset(1), RegionOffset(0));
        let mut g = fresh(100);
        g.take(90, 10);
        g.grow(200);
        assert_eq!((g.free(), g.find(90, 500)), (190, Some((100, 100))));
        g.grow(200);
        assert_eq!(g.free(), 190);
        let mut empty = Group::empty(100, RegionOffset(0));
        empty.grow(130);
        assert_eq!(
            (empty.free(), empty.next_free(0, 500)),
            (130, Some((0, 130)))
        );
        empty.initialise(4, RegionOffset(1));
        assert_eq!(empty.find(0, 500), Some((0, 130)));
    }

    #[test]
    fn aligned_runs_count_from_bitmap_start() {
        let mut g = Group::loaded(
            vec![0; 64].into(),
            4096,
            RegionOffset(4096),
            RegionOffset(0),
        );
        assert_eq!(g.find_aligned(0, 512, |_| true), Some(0));
        g.take(5, 1);
        assert_eq!(g.find_aligned(0, 512, |_| true), Some(512));
        assert_eq!(g.find_aligned(256, 512, |_| true), Some(256));
        assert_eq!(g.find_aligned(0, 512, |at| at > 512), Some(1024));
    }

    #[test]
    fn runs_beside_used_bits_leave_clear_parts_clear() {
        let mut g = Group::loaded(vec![0; 8].into(), 500, RegionOffset(4096), RegionOffset(0));
        let find = |g: &Group, least, most| {
            g.find_beside(128, RunLen { least, most }, |_| false, |_, _| true)
        };
        // The last part is not as long as the others.
        assert_eq!(find(&g, 1, 9), Some((384, 9)));
        g.take(130, 1);
        assert_eq!(find(&g, 1, 9), Some((128, 2)));
        assert_eq!(find(&g, 3, 9), Some((131, 9)));
        assert_eq!(find(&g, 200, 200), None);
        let lengths = RunLen { least: 1, most: 4 };
        let from_200 = g.find_beside(128, lengths, |_| false, |at, _| at >= 200);
        assert_eq!(from_200, Some((203, 4)));
        let without = g.find_beside(128, lengths, |first| first == 128, |_, _| true);
        assert_eq!(without, Some((384, 4)));
        let free = g.free();
        let taken = g.take_free(128, 128);
        assert_eq!(taken, [!0b100, u64::MAX]);
        assert_eq!(g.free(), free - 127);
        assert_eq!(find(&g, 1, 9), Some((384, 9)));
    }

    #[test]
    fn masks_cover_exactly_one_run() {
        for start in 0..130 {
            for len in 1..130 {
                let mut bits = [0u64; 5];
                for_words(start, len, |w, m| bits[w] |= m);
                let set: u32 = bits.iter().map(|w| w.count_ones()).sum();
                assert_eq!(set, len);
                assert!(bits[start as usize / 64] >> (start % 64) & 1 == 1);
            }
        }
    }
}
