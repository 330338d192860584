//! The communication between the SIGBUS handler and the interrupted threads, without a
//! lock. [`fault`](super::fault) uses it.

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use crate::sync::order::{acquire, release};

/// A consistent copy of a guarded range.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guarded {
    pub start: usize,
    pub len: usize,
    pub unit: usize,
}

impl Guarded {
    pub(super) fn holds(&self, addr: usize) -> bool {
        addr >= self.start && addr - self.start < self.len
    }

    /// Returns the index of the unit that contains an address, or of the next unit.
    pub(super) fn index(&self, addr: usize) -> usize {
        (addr / self.unit).saturating_sub(self.start / self.unit)
    }

    /// Returns the number of words in a bitmap of the units. The first and last word may be
    /// partial.
    pub(super) fn words(&self) -> usize {
        (self.len / self.unit + 2).div_ceil(64)
    }
}

/// A guarded range under a sequence number. Its owner changes it, any thread reads it.
#[derive(Debug, Default)]
pub(super) struct RangeCell {
    /// Odd while the three fields below change.
    version: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
    unit: AtomicUsize,
}

impl RangeCell {
    #[cfg(not(loom))]
    pub(super) const fn new() -> RangeCell {
        RangeCell {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            unit: AtomicUsize::new(0),
        }
    }

    /// Only the owner may call this.
    pub(super) fn set(&self, range: Guarded) {
        self.version.fetch_add(1, Ordering::Relaxed);
        // A reader that sees a store below also sees the odd number.
        fence(release("fault-range-odd"));
        self.start.store(range.start, Ordering::Relaxed);
        self.len.store(range.len, Ordering::Relaxed);
        self.unit.store(range.unit, Ordering::Relaxed);
        self.version.fetch_add(1, release("fault-range-even"));
    }

    /// Returns the range, if any. A cell that is being changed names none; the guard of a
    /// mapping that has just faulted does not change.
    pub(super) fn get(&self) -> Option<Guarded> {
        let before = self.version.load(acquire("fault-range-begin"));
        let range = Guarded {
            start: self.start.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            unit: self.unit.load(Ordering::Relaxed),
        };
        fence(acquire("fault-range-end"));
        let same = before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before;
        (same && range.start != 0).then_some(range)
    }
}

/// Whether any guarded page has faulted.
#[derive(Debug, Default)]
pub(super) struct Happened(AtomicBool);

impl Happened {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Happened {
        Happened(AtomicBool::new(false))
    }

    /// Called before zeros replace the page, or after a failure was counted.
    pub(super) fn set(&self) {
        // The system call that maps the zeros orders the flag before them. Release has no
        // model, because no reader acquires by the flag itself. It costs nothing here, and lets a
        // reader that has seen the flag see the count from its next call on.
        self.0.store(true, Ordering::Release);
    }

    /// Called after a load of the medium. If the load saw zeros that replace a page, this
    /// returns true.
    #[inline]
    pub(super) fn is_set_after_load(&self) -> bool {
        fence(acquire("fault-after-load"));
        self.0.load(Ordering::Relaxed)
    }
}
