//! Blocks kept in reserve so that a full region can still be emptied: splitting a 2 MiB
//! leaf on truncate takes a block.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::grows::Grows;
use crate::sync::{Mutex, rank};
use crate::types::{BlockRun, Bno};

#[derive(Debug)]
pub(super) struct Reserve {
    want: Grows,
    held: Mutex<Vec<Bno>, rank::Leaf>,
    /// Number of blocks that `held` lacks; changed under its lock.
    missing: AtomicU64,
}

impl Reserve {
    pub(super) fn new(want: u64) -> Reserve {
        Reserve {
            want: Grows::new(want),
            held: Mutex::new(Vec::new()),
            missing: AtomicU64::new(want),
        }
    }

    /// Reserves more blocks from now on.
    pub(super) fn grow(&self, want: u64) {
        let held = self.held.lock();
        self.want.raise(want);
        self.note(&held);
    }

    /// Number of blocks still to reserve. Takes no lock, because every allocation asks.
    #[inline]
    pub(super) fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    pub(super) fn held(&self) -> u64 {
        self.held.lock().len() as u64
    }

    /// Adds blocks to the reserve; false if it is full. A run longer than the missing
    /// number is left to the caller whole.
    pub(super) fn refill(&self, run: BlockRun) -> bool {
        let mut held = self.held.lock();
        if held.len() as u64 + run.len > self.want.get() {
            return false;
        }
        held.extend(run.blocks());
        self.note(&held);
        true
    }

    /// Gives up the blocks that lie in a run.
    pub(super) fn give_up(&self, run: BlockRun) -> Vec<Bno> {
        let mut held = self.held.lock();
        let (given, kept) = held.drain(..).partition(|block| run.contains(*block));
        *held = kept;
        self.note(&held);
        given
    }

    /// Takes one block, for an operation that will free more.
    pub(super) fn take(&self) -> Option<Bno> {
        let mut held = self.held.lock();
        let block = held.pop();
        self.note(&held);
        block
    }

    fn note(&self, held: &[Bno]) {
        let missing = self.want.get().saturating_sub(held.len() as u64);
        self.missing.store(missing, Ordering::Relaxed);
    }
}
