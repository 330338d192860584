//! Blocks that a direct mapping holds: they are not given away, whatever
//! becomes of the file, until the mapping is gone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Run;
use crate::sync::Mutex;

#[derive(Debug, Default)]
struct State {
    /// Start of a pinned run -> (length, id); runs may overlap, so the key has
    /// the id too.
    pinned: BTreeMap<(u64, u64), u64>,
    /// Longest run ever pinned: how far back an overlap can start.
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
    /// Pins runs; the id is for [`unpin`](Self::unpin).
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

    /// Lets go; gives what was parked and is free now.
    pub fn unpin(&self, id: u64) -> Vec<Run> {
        let mut st = self.state.lock();
        st.pinned.retain(|(_, i), _| *i != id);
        self.count.store(st.pinned.len(), Ordering::Release);
        let parked = std::mem::take(&mut st.parked);
        let (held, free) = parked.into_iter().partition(|r| Self::overlaps(&st, *r));
        st.parked = held;
        free
    }

    /// Whether no run is pinned. A pin taken under a lock that the caller holds
    /// by now is seen.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether the run may be given back now; parks it otherwise.
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
    fn a_pinned_run_is_parked_until_the_last_pin_goes() {
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
