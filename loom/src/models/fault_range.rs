//! `pmem/fault_range.rs`: communication between the SIGBUS handler and other threads.

use std::sync::Arc;

use loom::thread;

use super::{Model, explore, promise};
use crate::fault_range::{Guarded, Happened, RangeCell};
use crate::sync::atomic::{AtomicU64, Ordering};

pub const MODELS: &[Model] = &[
    Model {
        name: "get_while_range_changes_is_none_or_of_one_mapping",
        run: get_while_range_changes_is_none_or_of_one_mapping,
        needs: &[
            "fault-range-begin",
            "fault-range-end",
            "fault-range-odd",
            "fault-range-even",
        ],
    },
    Model {
        name: "load_of_zeros_for_a_bad_page_is_reported",
        run: load_of_zeros_for_a_bad_page_is_reported,
        needs: &["fault-after-load"],
    },
];

fn range(n: usize) -> Guarded {
    Guarded {
        start: n,
        len: n,
        unit: n,
    }
}

/// The handler reads all ranges, including those that their owners are changing.
fn get_while_range_changes_is_none_or_of_one_mapping() {
    explore(|| {
        let cell = Arc::new(RangeCell::default());
        cell.set(range(1));
        let owner = {
            let cell = cell.clone();
            thread::spawn(move || cell.set(range(2)))
        };
        if let Some(r) = cell.get() {
            promise!(
                r.len == r.start && r.unit == r.start,
                "a range of two mappings: {r:?}"
            );
        }
        owner.join().unwrap();
        promise!(
            cell.get().is_some_and(|r| r.start == 2),
            "the range is lost"
        );
    });
}

/// Mapping zeros is a system call; a store with release ordering represents it.
fn load_of_zeros_for_a_bad_page_is_reported() {
    explore(|| {
        let happened = Arc::new(Happened::default());
        let faults = Arc::new(AtomicU64::new(0));
        let page = Arc::new(AtomicU64::new(7));
        let handler = {
            let (happened, faults, page) = (happened.clone(), faults.clone(), page.clone());
            thread::spawn(move || {
                faults.fetch_add(1, Ordering::Relaxed);
                happened.set();
                page.store(0, Ordering::Release);
            })
        };
        let read = page.load(Ordering::Relaxed);
        let reported = happened.is_set_after_load();
        promise!(read == 7 || reported, "zeros are returned as data");
        if read == 0 {
            let faults = faults.load(Ordering::Relaxed);
            promise!(faults == 1, "the fault of these zeros is not counted");
        }
        handler.join().unwrap();
    });
}
