//! Blocks whose checksum has been verified since they were last allocated: a fixed-size
//! table that may evict. A block not in the table is verified again.

use crate::pmem::{self, AtomicTable};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::Bno;

/// The model checker takes one set of two.
const SLOTS: usize = if cfg!(loom) { 2 } else { 1 << 16 };
/// Slots of a set, one cache line. A directory of a million entries has about twelve
/// thousand leaves; with one slot per set, every sixth leaf would collide with another.
const WAYS: usize = if cfg!(loom) { 2 } else { 8 };
const SETS: usize = SLOTS / WAYS;

/// A table of 512 KiB, whatever the size of the region.
#[derive(Debug)]
pub struct Verified {
    /// Page-aligned, so that each set is one cache line.
    slots: AtomicTable,
}

impl Verified {
    pub(super) fn new() -> Verified {
        Verified {
            slots: AtomicTable::new(SLOTS, "the table of checked leaves"),
        }
    }

    /// Returns the slots where a block can be, and the first to look at; `None` if the
    /// table could not be allocated.
    #[inline]
    fn place(&self, b: Bno) -> Option<(&[AtomicU64; WAYS], usize)> {
        let n = b.0 as usize;
        let set = self.slots.get(n % SETS * WAYS..)?.first_chunk()?;
        Some((set, n / SETS % WAYS))
    }

    /// Prefetches the line that [`knows`](Self::knows) will read.
    #[inline]
    pub fn prefetch(&self, b: Bno) {
        if let Some((set, _)) = self.place(b) {
            pmem::prefetch_object(set);
        }
    }

    /// Whether the block is known to be good.
    #[inline]
    pub fn knows(&self, b: Bno) -> bool {
        let Some((set, first)) = self.place(b) else {
            return false;
        };
        let is = |slot: &AtomicU64| slot.load(Ordering::Relaxed) == b.0;
        is(&set[first]) || set.iter().any(is)
    }

    /// Notes a block as good.
    #[inline]
    pub fn note(&self, b: Bno) {
        let Some((set, first)) = self.place(b) else {
            return;
        };
        let of = |slot: &AtomicU64| slot.load(Ordering::Relaxed);
        // Two threads may take the same slot; one of the blocks is then evicted.
        let free = || set.iter().find(|s| of(s) == 0);
        let slot = match of(&set[first]) {
            there if there == 0 || there == b.0 => &set[first],
            _ => free().unwrap_or(&set[first]),
        };
        slot.store(b.0, Ordering::Relaxed);
    }

    /// Removes a block that is being freed.
    #[inline]
    pub fn forget(&self, b: Bno) {
        // The block may be in two slots.
        for slot in self.place(b).map_or(&[][..], |(set, _)| &set[..]) {
            if slot.load(Ordering::Relaxed) == b.0 {
                slot.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_set_keeps_blocks_and_forgets_individually() {
        let verified = Verified::new();
        let block = |i: usize| Bno((77 + i * SETS) as u64);
        for i in 0..WAYS {
            verified.note(block(i));
            verified.note(block(i));
        }
        assert!((0..WAYS).all(|i| verified.knows(block(i))));
        verified.forget(block(3));
        for i in 0..WAYS {
            assert_eq!(verified.knows(block(i)), i != 3, "{i}");
        }
        // The block takes a free slot that is not its first choice.
        verified.note(block(WAYS));
        assert!(verified.knows(block(WAYS)) && verified.knows(block(0)));
        // If no slot is free, it replaces another block.
        verified.note(block(WAYS + 1));
        assert!(verified.knows(block(WAYS + 1)));
        let known = (0..2 * WAYS).filter(|i| verified.knows(block(*i)));
        assert_eq!(known.count(), WAYS);
    }

    /// Concurrent notes may put a block into two slots.
    #[test]
    fn block_noted_twice_is_forgotten() {
        let verified = Verified::new();
        let (a, b) = (Bno(5), Bno(5 + (SETS * WAYS) as u64));
        verified.note(b);
        verified.note(a);
        verified.forget(b);
        verified.note(a);
        let (set, _) = verified.place(a).unwrap();
        let slots = set.iter().filter(|s| s.load(Ordering::Relaxed) == a.0);
        assert_eq!(slots.count(), 2);
        verified.forget(a);
        assert!(!verified.knows(a) && !verified.knows(Bno(0x1234)));
    }
}
