//! Which blocks have had their checksum checked since they were last given
//! out: a fixed table that forgets. A block that is not in it is checked again.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pmem;
use crate::types::Bno;

const SLOTS: usize = 1 << 16;

/// 512 KiB, whatever the size of the region.
#[derive(Debug)]
pub struct Verified {
    slots: Box<[AtomicU64]>,
}

impl Verified {
    pub(super) fn new() -> Verified {
        Verified {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn slot(&self, b: Bno) -> &AtomicU64 {
        &self.slots[b.0 as usize % SLOTS]
    }

    /// Has fetched what [`knows`](Self::knows) will look at.
    #[inline]
    pub fn prefetch(&self, b: Bno) {
        pmem::prefetch_object(self.slot(b));
    }

    /// Whether the block is known to be good.
    #[inline]
    pub fn knows(&self, b: Bno) -> bool {
        self.slot(b).load(Ordering::Relaxed) == b.0
    }

    /// Notes a block as good.
    #[inline]
    pub fn note(&self, b: Bno) {
        self.slot(b).store(b.0, Ordering::Relaxed);
    }

    /// Forgets a block that is given back.
    #[inline]
    pub fn forget(&self, b: Bno) {
        let slot = self.slot(b);
        if slot.load(Ordering::Relaxed) == b.0 {
            slot.store(0, Ordering::Relaxed);
        }
    }
}
