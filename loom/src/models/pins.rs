//! `alloc/pins.rs`: blocks shown by a direct mapping are not reused.

use std::sync::Arc;

use loom::thread;

use super::{Model, explore, promise};
use crate::pins::BlockPins;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, rank};
use crate::types::{BlockRun, Bno};

pub const MODELS: &[Model] = &[
    Model {
        name: "free_during_unpin_is_once_and_after_stores_of_the_mapping",
        run: free_during_unpin_is_once_and_after_stores_of_the_mapping,
        needs: &["pins-free", "pins-unpinned"],
    },
    Model {
        name: "free_after_pin_of_a_hole_is_after_stores_of_the_mapping_before",
        run: free_after_pin_of_a_hole_is_after_stores_of_the_mapping_before,
        needs: &["pins-free", "pins-pinned"],
    },
    Model {
        name: "is_empty_during_unpin_is_after_stores_of_the_mapping",
        run: is_empty_during_unpin_is_after_stores_of_the_mapping,
        needs: &["pins-empty", "pins-unpinned"],
    },
    Model {
        name: "free_during_pin_parks_what_is_pinned",
        run: free_during_pin_parks_what_is_pinned,
        // The lock of the inode orders them.
        needs: &[],
    },
];

const RUN: BlockRun = BlockRun {
    start: Bno(10),
    len: 4,
};

fn free_during_unpin_is_once_and_after_stores_of_the_mapping() {
    explore(|| {
        let pins = Arc::new(BlockPins::default());
        let data = Arc::new(AtomicU64::new(0));
        let id = pins.pin(&[RUN]);
        let mapping = {
            let (pins, data) = (pins.clone(), data.clone());
            thread::spawn(move || {
                data.store(1, Ordering::Relaxed);
                !pins.unpin(id).is_empty()
            })
        };
        let freed = pins.free_or_park(RUN);
        if freed {
            let stored = data.load(Ordering::Relaxed);
            promise!(stored == 1, "a store through the mapping follows the free");
        }
        let freed_late = mapping.join().unwrap();
        promise!(
            freed != freed_late,
            "freed at once: {freed}, later: {freed_late}"
        );
    });
}

/// A mapping of a hole pins no block, so that the count stays 0.
fn free_after_pin_of_a_hole_is_after_stores_of_the_mapping_before() {
    explore(|| {
        let pins = Arc::new(BlockPins::default());
        let data = Arc::new(AtomicU64::new(0));
        let id = pins.pin(&[RUN]);
        let mapping = {
            let (pins, data) = (pins.clone(), data.clone());
            thread::spawn(move || {
                data.store(1, Ordering::Relaxed);
                pins.unpin(id);
            })
        };
        let of_hole = {
            let pins = pins.clone();
            thread::spawn(move || {
                pins.pin(&[]);
            })
        };
        if pins.free_or_park(RUN) {
            let stored = data.load(Ordering::Relaxed);
            promise!(stored == 1, "a store through the mapping follows the free");
        }
        mapping.join().unwrap();
        of_hole.join().unwrap();
    });
}

/// A reader lends the bytes as a slice, which must not change.
fn is_empty_during_unpin_is_after_stores_of_the_mapping() {
    explore(|| {
        let pins = Arc::new(BlockPins::default());
        let data = Arc::new(AtomicU64::new(0));
        let id = pins.pin(&[RUN]);
        let mapping = {
            let (pins, data) = (pins.clone(), data.clone());
            thread::spawn(move || {
                data.store(1, Ordering::Relaxed);
                pins.unpin(id);
            })
        };
        if pins.is_empty() {
            let stored = data.load(Ordering::Relaxed);
            promise!(stored == 1, "a store through the mapping changes a slice");
        }
        mapping.join().unwrap();
    });
}

/// A mapping is made under the lock of the inode, and the file is truncated under it. The
/// truncation frees the blocks after it has unlocked the inode. Fails without the count of
/// pins.
fn free_during_pin_parks_what_is_pinned() {
    explore(|| {
        let pins = Arc::new(BlockPins::default());
        let has_block = Arc::new(Mutex::<_, rank::Inode>::new(true));
        let truncation = {
            let (pins, has_block) = (pins.clone(), has_block.clone());
            thread::spawn(move || {
                *has_block.lock() = false;
                pins.free_or_park(RUN)
            })
        };
        let pin = {
            let has_block = has_block.lock();
            has_block.then(|| pins.pin(&[RUN]))
        };
        let freed = truncation.join().unwrap();
        promise!(!(freed && pin.is_some()), "a pinned block is freed");
        let parked = pin.map_or(0, |id| pins.unpin(id).len());
        promise!(
            freed == (parked == 0),
            "{parked} parked runs, freed: {freed}"
        );
    });
}
