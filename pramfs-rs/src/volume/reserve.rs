//! Blocks kept aside so that a full region can still be emptied: cutting a
//! 2 MiB leaf on truncate takes a block.

use parking_lot::Mutex;

use crate::alloc::Run;

#[derive(Debug)]
pub(super) struct Reserve {
    want: u64,
    held: Mutex<Vec<u64>>,
}

impl Reserve {
    pub(super) fn new(want: u64) -> Reserve {
        Reserve {
            want,
            held: Mutex::new(Vec::new()),
        }
    }

    /// Blocks still to be put aside.
    pub(super) fn missing(&self) -> u64 {
        self.want.saturating_sub(self.held.lock().len() as u64)
    }

    pub(super) fn held(&self) -> u64 {
        self.held.lock().len() as u64
    }

    /// Puts blocks aside; false when the reserve is full. A run longer than
    /// what is missing is left to the caller whole.
    pub(super) fn refill(&self, run: Run) -> bool {
        let mut held = self.held.lock();
        if held.len() as u64 + run.len > self.want {
            return false;
        }
        held.extend(run.start..run.start + run.len);
        true
    }

    /// Takes one block, for an operation that will free more.
    pub(super) fn take(&self) -> Option<u64> {
        self.held.lock().pop()
    }
}
