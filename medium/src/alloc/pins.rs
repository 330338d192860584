//! Pins of direct mappings. A pinned block is not reused until the mapping is gone, even if
//! its file is truncated or removed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Run;
use crate::sync::Mutex;

#[derive(Debug, Default)]
struct State {
    /// Start of a pinned run -> (length, id). Runs may overlap, so the id is part of the
    /// key.
    pinned: BTreeMap<(u64, u64), u64>,
    /// Longest run ever pinned: the distance to search back for an overlap.
    longest: u64,
    /// Freed while pinned.
    parked: Vec<Run>,
    next_id: u64,
}

/// The pinned runs of a file system.
#[derive(Debug, Default)]
pub struct BlockPins {
    count: AtomicUsize,
    state: Mutex<State>,
}

impl BlockPins {
    /// Pins runs and returns the id for [`unpin`](Self::unpin).
    pub fn pin(&self, runs: &[Run]) -> u64 {
        let mut st = self.state.lock();
        let id = st.next_id;
        st.next_id += 1;
        for r in runs {
            st.longest = st.longest.max(r.len);
            st.pinned.insert((r.start, id), r.len);
        }
        self.count.store(st.pinned.len(), Ordering::Release);
        id
    }

    /// Removes a pin. Returns the parked runs that no other pin covers.
    pub fn unpin(&self, id: u64) -> Vec<Run> {
        let mut st = self.state.lock();
        st.pinned.retain(|(_, i), _| *i != id);
        self.count.store(st.pinned.len(), Ordering::Release);
        let parked = std::mem::take(&mut st.parked);
        let (held, free) = parked.into_iter().partition(|r| Self::overlaps(&st, *r));
        st.parked = held;
        free
    }

    /// Whether no run is pinned. Sees every pin that was taken under a lock the caller now
    /// holds.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether the run may be freed now. Otherwise parks it.
    pub fn free_or_park(&self, run: Run) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return true;
        }
        let mut st = self.state.lock();
        if Self::overlaps(&st, run) {
            st.parked.push(run);
            return false;
        }
        true
    }

    fn overlaps(st: &State, run: Run) -> bool {
        let from = run.start.saturating_sub(st.longest);
        st.pinned
            .range((from, 0)..(run.start + run.len, 0))
            .any(|((start, _), len)| start + len > run.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_run_is_parked_until_last_unpin() {
        let pins = BlockPins::default();
        let run = |start, len| Run { start, len };
        let a = pins.pin(&[run(10, 5), run(100, 1)]);
        let b = pins.pin(&[run(12, 1)]);
        assert!(pins.free_or_park(run(15, 3)) && pins.free_or_park(run(5, 5)));
        assert!(!pins.free_or_park(run(12, 1)) && !pins.free_or_park(run(100, 1)));
        assert_eq!(pins.unpin(a), vec![run(100, 1)]);
        assert_eq!(pins.unpin(b), vec![run(12, 1)]);
        assert!(pins.free_or_park(run(12, 1)));
    }
}
