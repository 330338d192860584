//! Pins of direct mappings. A pinned block is not reused until the mapping is gone, even if
//! its file is truncated or removed.

use std::collections::BTreeMap;

use crate::sync::atomic::AtomicUsize;
use crate::sync::order::{acquire, release};
use crate::sync::{Mutex, rank};
use crate::types::BlockRun;

#[derive(Debug, Default)]
struct State {
    /// Start of a pinned run -> (length, id). Runs may overlap, so the id is part of the
    /// key.
    pinned: BTreeMap<(u64, u64), u64>,
    /// Longest run ever pinned: the distance to search back for an overlap.
    longest: u64,
    /// Freed while pinned.
    parked: Vec<BlockRun>,
    next_id: u64,
}

/// The pinned runs of a file system.
#[derive(Debug, Default)]
pub struct BlockPins {
    count: AtomicUsize,
    state: Mutex<State, rank::Leaf>,
}

impl BlockPins {
    /// Pins runs and returns the id for [`unpin`](Self::unpin).
    pub fn pin(&self, runs: &[BlockRun]) -> u64 {
        let mut st = self.state.lock();
        let id = st.next_id;
        st.next_id += 1;
        for r in runs {
            st.longest = st.longest.max(r.len);
            st.pinned.insert((r.start.0, id), r.len);
        }
        // The count may still be 0, if nothing is pinned. A caller that reads it then comes
        // after the previous unpin, whose stores are visible here through the lock.
        self.count.store(st.pinned.len(), release("pins-pinned"));
        id
    }

    /// Removes a pin. Returns the parked runs that no other pin covers.
    pub fn unpin(&self, id: u64) -> Vec<BlockRun> {
        let mut st = self.state.lock();
        st.pinned.retain(|(_, i), _| *i != id);
        // A reader of 0 comes after the stores through the mapping.
        self.count.store(st.pinned.len(), release("pins-unpinned"));
        let parked = std::mem::take(&mut st.parked);
        let (held, free) = parked.into_iter().partition(|r| Self::overlaps(&st, *r));
        st.parked = held;
        free
    }

    /// Whether no run is pinned. Sees every pin that was taken under a lock the caller now
    /// holds. If true, the caller comes after all stores through mappings that are gone.
    pub fn is_empty(&self) -> bool {
        self.count.load(acquire("pins-empty")) == 0
    }

    /// Whether the run may be freed now, and then comes after all stores to it through a
    /// mapping. Otherwise parks it.
    pub fn free_or_park(&self, run: BlockRun) -> bool {
        if self.count.load(acquire("pins-free")) == 0 {
            return true;
        }
        let mut st = self.state.lock();
        if Self::overlaps(&st, run) {
            st.parked.push(run);
            return false;
        }
        true
    }

    /// Whether a mapping has blocks of the run. If not, the caller, who keeps new ones away, comes
    /// after all stores to it through a mapping.
    pub fn has(&self, run: BlockRun) -> bool {
        !self.is_empty() && Self::overlaps(&self.state.lock(), run)
    }

    fn overlaps(st: &State, run: BlockRun) -> bool {
        let from = run.start.0.saturating_sub(st.longest);
        st.pinned
            .range((from, 0)..(run.end().0, 0))
            .any(|((start, _), len)| start + len > run.start.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_run_is_parked_until_last_unpin() {
        let pins = BlockPins::default();
        let run = |start, len| BlockRun {
            start: crate::types::Bno(start),
            len,
        };
        let a = pins.pin(&[run(10, 5), run(100, 1)]);
        let b = pins.pin(&[run(12, 1)]);
        assert!(pins.free_or_park(run(15, 3)) && pins.free_or_park(run(5, 5)));
        assert!(!pins.free_or_park(run(12, 1)) && !pins.free_or_park(run(100, 1)));
        assert_eq!(pins.unpin(a), vec![run(100, 1)]);
        assert_eq!(pins.unpin(b), vec![run(12, 1)]);
        assert!(pins.free_or_park(run(12, 1)));
    }
}
