//! [`Hold`]: leaves that are being vacated keep their free blocks, so that no allocation fills
//! them again.
//!
//! A held block is taken in ordinary memory alone: on the medium its bit stays clear, and a crash
//! frees it. An allocation therefore pays nothing for the hold. It ends by itself:
//!
//! - a leaf that is free as a whole goes to the first caller of [`Plan::alloc_held`];
//! - an allocation that finds no other block ends the hold of all leaves;
//! - so does the timer, some seconds after the last leaf was held.
//!
//! Not handled here: blocks that return from a record go through `Volume::free_run`, which asks
//! [`Hold::keep`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Plan, Volume};
use crate::alloc::for_words;
use crate::error::{Error, Result};
use crate::media::bitmap::BitmapKind;
use crate::sync::{Mutex, rank};
use crate::types::{BlockRun, Bno};

/// Time after which nobody is vacating leaves any more.
const IDLE: Duration = Duration::from_secs(30);
/// Leaves that are held at once, 32 GiB of leaves of 2 MiB.
const LEAVES_MAX: usize = 1 << 14;

#[derive(Debug, Default)]
struct State {
    /// The held blocks of each leaf, by its number.
    leaves: BTreeMap<u64, Box<[u64]>>,
    /// When the last leaf was held.
    since: Option<Instant>,
}

/// The held leaves, see the module.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Number of leaves; changed under the lock.
    count: AtomicUsize,
    state: Mutex<State, rank::Leaf>,
}

impl Hold {
    /// Whether any leaf is held. Takes no lock, because every record that frees blocks asks.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    fn has(&self, leaf: u64) -> bool {
        self.is_active() && self.state.lock().leaves.contains_key(&leaf)
    }

    /// Number of blocks that are held.
    pub(super) fn blocks(&self) -> u64 {
        if !self.is_active() {
            return 0;
        }
        let state = self.state.lock();
        let words = state.leaves.values().flat_map(|words| words.iter());
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// Begins to hold a leaf of so many words. False if there are too many leaves.
    fn begin(&self, leaf: u64, words: usize) -> bool {
        let mut state = self.state.lock();
        if state.leaves.len() >= LEAVES_MAX && !state.leaves.contains_key(&leaf) {
            return false;
        }
        state.since = Some(Instant::now());
        state
            .leaves
            .entry(leaf)
            .or_insert_with(|| vec![0; words].into());
        self.count.store(state.leaves.len(), Ordering::Relaxed);
        true
    }

    /// Holds blocks of a leaf that are set in memory. False if the leaf is not held.
    fn keep(&self, leaf: u64, first: u32, len: u32) -> bool {
        let mut state = self.state.lock();
        let Some(words) = state.leaves.get_mut(&leaf) else {
            return false;
        };
        for_words(first, len, |word, mask| {
            if let Some(word) = words.get_mut(word) {
                *word |= mask;
            }
        });
        true
    }

    /// Ends the hold of one leaf that is free as a whole.
    fn take_whole(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let is_whole = |words: &[u64]| words.iter().all(|word| *word == u64::MAX);
        let (&leaf, _) = state.leaves.iter().find(|(_, words)| is_whole(words))?;
        state.leaves.remove(&leaf);
        self.count.store(state.leaves.len(), Ordering::Relaxed);
        Some(leaf)
    }

    /// Ends the hold of all leaves.
    fn take_all(&self) -> BTreeMap<u64, Box<[u64]>> {
        let mut state = self.state.lock();
        self.count.store(0, Ordering::Relaxed);
        state.since = None;
        std::mem::take(&mut state.leaves)
    }

    fn is_idle(&self) -> bool {
        let since = self.state.lock().since;
        since.is_none_or(|since| since.elapsed() >= IDLE)
    }
}

/// The runs of set bits.
fn runs(words: &[u64]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let is_set = |i: &u64| words[*i as usize / 64] >> (i % 64) & 1 != 0;
    for i in (0..words.len() as u64 * 64).filter(is_set) {
        match runs.last_mut() {
            Some(last) if last.end == i => last.end += 1,
            _ => runs.push(i..i + 1),
        }
    }
    runs
}

impl Volume {
    fn leaf_run(&self, leaf: u64) -> BlockRun {
        let len = self.geo.fan();
        BlockRun {
            start: Bno(leaf * len),
            len,
        }
    }

    /// Holds the free blocks of an aligned run that is as long as a leaf, and those that become
    /// free in it. The hold ends by itself, see the module. `leaf` is the run's number.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged bitmap; errors of the region.
    pub fn hold_leaf(&self, leaf: u64) -> Result<()> {
        let run = self.leaf_run(leaf);
        // What is on its way from the bitmap to the hold still counts as free.
        let _on_their_way = self.blocks.trim_lock();
        // Blocks that return from now on are kept.
        if !self.hold.begin(leaf, (run.len / 64) as usize) {
            return Ok(());
        }
        let free = self.blocks.take_free(self.medium(), run.into())?;
        for run in runs(&free) {
            self.keep_or_free(run.start, run.end - run.start, leaf);
        }
        for block in self.reserve.give_up(run) {
            self.keep_or_free(block.0 - run.start.0, 1, leaf);
        }
        Ok(())
    }

    /// Whether any leaf is held.
    pub fn is_holding(&self) -> bool {
        self.hold.is_active()
    }

    fn keep_or_free(&self, first: u64, len: u64, leaf: u64) {
        if !self.hold.keep(leaf, first as u32, len as u32) {
            let start = self.leaf_run(leaf).start.after(first);
            self.free_unheld(BlockRun { start, len }, false);
        }
    }

    /// As `free_run`, while leaves are held.
    #[cold]
    pub(super) fn free_or_hold(&self, run: BlockRun, discard: bool) {
        let fan = self.geo.fan();
        let (mut at, end) = (run.start.0, run.end().0);
        while at < end {
            let (leaf, first) = (at / fan, at % fan);
            let len = (end - at).min(fan - first);
            if !self.hold.keep(leaf, first as u32, len as u32) {
                let start = Bno(at);
                self.free_unheld(BlockRun { start, len }, discard);
            }
            at += len;
        }
    }

    /// Ends the hold of all leaves. Returns whether there were any. The caller has the
    /// [`trim_lock`](crate::alloc::BitmapSet::trim_lock) of the blocks: who finds no free block
    /// meanwhile waits for it, and looks again.
    ///
    /// The host keeps the room of the blocks, even if the mount discards what is freed: this comes
    /// where somebody needs them.
    pub(super) fn release_held(&self) -> bool {
        let leaves = match self.hold.is_active() {
            true => self.hold.take_all(),
            false => return false,
        };
        for (leaf, words) in &leaves {
            for held in runs(words) {
                // The reserve takes single blocks, and comes first.
                let single = self.reserve.missing().min(held.end - held.start);
                let free = |range: Range<u64>| {
                    let start = self.leaf_run(*leaf).start.after(range.start);
                    let len = range.end - range.start;
                    self.free_unheld(BlockRun { start, len }, false);
                };
                let rest = held.start + single;
                (held.start..rest).for_each(|i| free(i..i + 1));
                if rest < held.end {
                    free(rest..held.end);
                }
            }
        }
        !leaves.is_empty()
    }

    /// As [`release_held`](Self::release_held), for a caller without the lock.
    pub fn end_hold(&self) -> bool {
        let _on_their_way = self.blocks.trim_lock();
        self.release_held()
    }

    /// Ends the hold if nobody has held a leaf for some seconds. The timer calls this.
    pub fn end_idle_hold(&self) {
        if self.hold.is_active() && self.hold.is_idle() {
            let _on_their_way = self.blocks.trim_lock();
            self.release_held();
        }
    }
}

impl Plan<'_> {
    /// Takes a held leaf that is free as a whole, if there is one.
    ///
    /// # Errors
    /// Errors of the region and of the bitmap.
    pub fn alloc_held(&mut self) -> Result<Option<BlockRun>> {
        let vol = self.volume();
        if !vol.hold.is_active() {
            return Ok(None);
        }
        let leaf = match vol.hold.take_whole() {
            // Blocks of records that are not dead may be the last ones.
            None if vol.retire_pending()? => vol.hold.take_whole(),
            found => found,
        };
        let Some(leaf) = leaf else {
            return Ok(None);
        };
        let run = vol.leaf_run(leaf);
        let (at, len) = (vol.geo.offset(run.start), vol.geo.bytes(run.len));
        let found = match vol.region.has_room(at.0, len) {
            true => vol.blocks.taken(vol.medium(), run.into()),
            false => Err(Error::NoSpace("the blocks have no room on the host")),
        };
        match found {
            Ok(found) => {
                self.record().note_reserved(BitmapKind::Blocks, found)?;
                Ok(Some(run))
            }
            Err(e) => {
                vol.free_unheld(run, false);
                match e {
                    Error::NoSpace(_) => Ok(None),
                    e => Err(e),
                }
            }
        }
    }

    /// Takes up to `want` consecutive blocks near `near` from aligned runs of a leaf's length
    /// that are in use in part, and are not held: a leaf that is free as a whole stays free.
    /// `None` if there are none.
    ///
    /// # Errors
    /// Errors of the region and of the bitmap.
    pub fn alloc_beside(&mut self, near: Bno, want: u32) -> Result<Option<BlockRun>> {
        let vol = self.volume();
        if vol.reserve.missing() > 0 {
            self.keep_reserve()?;
        }
        let part = vol.geo.fan() as u32;
        let find = || {
            let is_left_out = |leaf| vol.hold.has(leaf);
            vol.blocks
                .reserve_beside(vol.medium(), near.0, want, part, &is_left_out)
        };
        let mut retired = false;
        let found = loop {
            match find() {
                None if !retired && vol.retire_pending()? => retired = true,
                None => return Ok(None),
                Some(found) if vol.is_sound(BitmapKind::Blocks, found.run) => break found,
                Some(found) => vol.keep_failed(found.run),
            }
        };
        let run = self.record().note_reserved(BitmapKind::Blocks, found)?;
        let start = Bno(run.start);
        Ok(Some(BlockRun {
            start,
            len: run.len,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_bits_are_found_across_words() {
        assert_eq!(runs(&[0, 0]), []);
        assert_eq!(runs(&[u64::MAX, 1]), vec![0..65; 1]);
        assert_eq!(runs(&[0b1011, 1 << 63]), [0..2, 3..4, 127..128]);
    }

    #[test]
    fn leaf_is_whole_once_all_its_blocks_are_held() {
        let hold = Hold::default();
        assert!(!hold.is_active() && !hold.keep(7, 0, 1));
        assert!(hold.begin(7, 2) && hold.begin(9, 2));
        assert!(hold.keep(7, 0, 100) && hold.keep(7, 101, 27));
        assert_eq!((hold.take_whole(), hold.blocks()), (None, 127));
        assert!(hold.keep(7, 100, 1) && hold.begin(7, 2));
        assert_eq!((hold.take_whole(), hold.take_whole()), (Some(7), None));
        assert!(!hold.has(7) && hold.has(9) && !hold.is_idle());
        assert_eq!(hold.take_all().len(), 1);
        assert!(!hold.is_active() && hold.is_idle());
    }

    #[test]
    fn more_leaves_than_are_held_at_once_are_refused() {
        let hold = Hold::default();
        assert!((0..LEAVES_MAX as u64).all(|leaf| hold.begin(leaf, 1)));
        assert!(!hold.begin(LEAVES_MAX as u64, 1));
        assert!(hold.begin(3, 1), "it is held already");
    }
}
