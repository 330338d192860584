//! `pmem/once_bits.rs`: a unit of a read-only region is copied once.

use std::sync::Arc;

use loom::thread;

use super::{Model, explore, promise};
use crate::once_bits::OnceBits;
use crate::sync::atomic::{AtomicU64, Ordering};

pub const MODELS: &[Model] = &[Model {
    name: "store_by_two_threads_is_after_one_copy",
    run: store_by_two_threads_is_after_one_copy,
    needs: &["once-done", "once-set"],
}];

/// The second thread may find the unit copied, or copy it, or wait for the copy. A second
/// copy would drop a store of the first thread.
fn store_by_two_threads_is_after_one_copy() {
    explore(|| {
        let copied = Arc::new(OnceBits::new(2));
        let copies = Arc::new(AtomicU64::new(0));
        let store = |copied: &OnceBits, copies: &AtomicU64| {
            let done = copied.once(1, || {
                copies.store(copies.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                true
            });
            let n = copies.load(Ordering::Relaxed);
            promise!(done && n == 1, "a store after {n} copies");
        };
        let other = {
            let (copied, copies) = (copied.clone(), copies.clone());
            thread::spawn(move || store(&copied, &copies))
        };
        // Shares the word with the unit in question.
        copied.once(0, || true);
        store(&copied, &copies);
        other.join().unwrap();
    });
}
