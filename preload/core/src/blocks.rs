//! Which blocks of a chunk of memory are in use: a bit for each, without a lock. Who sets it
//! has the block.

use std::sync::atomic::{AtomicU64, Ordering};

/// Takes a block, of those from `first` to `blocks`. `None` if all are in use.
pub fn take(used: &[AtomicU64], first: usize, blocks: usize) -> Option<usize> {
    for (at, word) in used.iter().enumerate().take(blocks.div_ceil(64)) {
        let below = |n: usize| match n.saturating_sub(at * 64) {
            n if n < 64 => (1 << n) - 1,
            _ => u64::MAX,
        };
        let there: u64 = below(blocks) & !below(first);
        loop {
            let free = there & !word.load(Ordering::Relaxed);
            if free == 0 {
                break;
            }
            let bit = free & free.wrapping_neg();
            // After what its last owner has done with it.
            if word.fetch_or(bit, Ordering::Acquire) & bit == 0 {
                return Some(at * 64 + bit.trailing_zeros() as usize);
            }
        }
    }
    None
}

/// Gives a block back that [`take`] has returned.
pub fn give(used: &[AtomicU64], block: usize) {
    used[block / 64].fetch_and(!(1 << (block % 64)), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    fn bits<const N: usize>() -> [AtomicU64; N] {
        [const { AtomicU64::new(0) }; N]
    }

    #[test]
    fn each_block_is_taken_once() {
        for (first, blocks) in [(0, 64), (3, 65), (64, 100), (70, 191), (1, 2), (5, 5)] {
            let used = bits::<3>();
            let mut taken = BTreeSet::new();
            while let Some(block) = take(&used, first, blocks) {
                assert!(taken.insert(block));
            }
            assert_eq!(taken, (first..blocks).collect());
            if let Some(block) = taken.pop_last() {
                give(&used, block);
                assert_eq!(take(&used, first, blocks), Some(block));
            }
        }
    }

    /// Under Miri, the owner's plain stores would be a race if two had the block.
    #[test]
    fn block_has_one_owner_at_a_time() {
        let used = bits::<1>();
        let owned = [const { AtomicBool::new(false) }; 4];
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..if cfg!(miri) { 20 } else { 2000 } {
                        let Some(block) = take(&used, 2, 6) else {
                            continue;
                        };
                        assert!(!owned[block - 2].swap(true, Ordering::Relaxed));
                        thread::yield_now();
                        owned[block - 2].store(false, Ordering::Relaxed);
                        give(&used, block);
                    }
                });
            }
        });
        assert_eq!(used[0].load(Ordering::Relaxed), 0);
    }
}
