//! Bits for what is done once: a lock for the first, a load for all others.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::order::{acquire, release};
use crate::sync::{Mutex, rank};

/// A bit for each of a number of tasks, set once the task is done.
#[derive(Debug)]
pub(super) struct OnceBits {
    done: Box<[AtomicU64]>,
    busy: Mutex<(), rank::Leaf>,
}

impl OnceBits {
    pub(super) fn new(tasks: usize) -> OnceBits {
        OnceBits {
            done: (0..tasks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            busy: Mutex::new(()),
        }
    }

    /// Does a task unless it is done, and tells whether it is now. A caller that gets `true`
    /// comes after the task. If `task` returns false, the next caller tries again.
    pub(super) fn once(&self, i: usize, task: impl FnOnce() -> bool) -> bool {
        let (word, bit) = (&self.done[i / 64], 1u64 << (i % 64));
        if word.load(acquire("once-done")) & bit != 0 {
            return true;
        }
        let _busy = self.busy.lock();
        // Bits are set under the lock, which therefore orders this load.
        if word.load(Ordering::Relaxed) & bit != 0 {
            return true;
        }
        let done = task();
        if done {
            word.fetch_or(bit, release("once-set"));
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_task_is_tried_again_and_others_are_apart() {
        let bits = OnceBits::new(65);
        assert!(!bits.once(64, || false));
        assert!(bits.once(64, || true) && bits.once(64, || unreachable!()));
        assert!(!bits.once(0, || false) && !bits.once(63, || false));
    }
}
