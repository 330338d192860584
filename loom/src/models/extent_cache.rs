//! `fs/cache/extent_cache.rs`: cached extents of open files.

use std::sync::Arc;

use loom::thread;

use super::{Model, explore, explore_bounded, promise};
use crate::fs::cache::extent_cache::{CachedExtent, ExtentCache};
use crate::fs::inode::lock::InodeLock;
use crate::fs::inode::state::InodeState;
use crate::types::Bno;

pub const MODELS: &[Model] = &[
    Model {
        name: "get_while_part_is_replaced_is_of_its_record",
        run: get_while_part_is_replaced_is_of_its_record,
        needs: &["extent-valid", "extent-cleared"],
    },
    Model {
        name: "get_while_run_changes_is_of_the_block",
        run: get_while_run_changes_is_of_the_block,
        needs: &["extent-bit", "extent-bit-set"],
    },
    Model {
        name: "get_of_a_later_change_is_not_valid",
        run: get_of_a_later_change_is_not_valid,
        needs: &["extent-after-change"],
    },
];

const BLOCKS: usize = 4;

fn leaf(n: u64) -> CachedExtent {
    CachedExtent::Leaf(Bno(100 * (n + 1)))
}

fn block(n: u64) -> CachedExtent {
    CachedExtent::Block(Bno(n))
}

/// The reader knows from a lock that the number of records is the later one.
fn get_while_part_is_replaced_is_of_its_record() {
    explore(|| {
        let cache = Arc::new(ExtentCache::default());
        cache.put(0, 0, (0, BLOCKS), leaf(0), || true);
        let keeper = {
            let cache = cache.clone();
            thread::spawn(move || cache.put(1, 0, (0, BLOCKS), block(77), || true))
        };
        let known = cache.get(1, 0, 0);
        promise!(
            known.is_none() || known == Some(block(77)),
            "an outdated place: {known:?}"
        );
        keeper.join().unwrap();
    });
}

fn get_while_run_changes_is_of_the_block() {
    explore(|| {
        let cache = Arc::new(ExtentCache::default());
        cache.put(0, 0, (0, BLOCKS), block(10), || true);
        let keeper = {
            let cache = cache.clone();
            // The run of distance 1 becomes one of distance 2.
            thread::spawn(move || cache.put(0, 0, (2, BLOCKS), block(14), || true))
        };
        for (within, at) in [(2, 14), (0, 10)] {
            let known = cache.get(0, 0, within);
            promise!(
                known.is_none() || known == Some(block(at)),
                "block {within} at {known:?}"
            );
        }
        keeper.join().unwrap();
    });
}

/// One thread changes the inode, another caches its blocks after the change, a third reads.
fn get_of_a_later_change_is_not_valid() {
    explore_bounded(Some(2), || {
        let lock = Arc::new(InodeLock::new(crate::types::Ino(5), InodeState::default()));
        let cache = Arc::new(ExtentCache::default());
        cache.put(0, 0, (0, BLOCKS), leaf(0), || true);
        let writer = {
            let lock = lock.clone();
            thread::spawn(move || lock.write().records = 1)
        };
        let keeper = {
            let (lock, cache) = (lock.clone(), cache.clone());
            thread::spawn(move || {
                if let Some(s) = lock.size_snapshot()
                    && s.records == 1
                {
                    let still = || lock.validate(s.changes);
                    cache.put(1, 0, (0, BLOCKS), leaf(1), still);
                }
            })
        };
        if let Some(s) = lock.size_snapshot()
            && let Some(known) = cache.get(s.records, 0, 0)
            && lock.validate(s.changes)
        {
            promise!(
                known == leaf(s.records),
                "{known:?} with {} records",
                s.records
            );
        }
        writer.join().unwrap();
        keeper.join().unwrap();
    });
}
