//! `journal/dead.rs`: a hand-over between lanes that needs no retirement.

use std::sync::Arc;

use loom::thread;

use super::{Model, explore, promise};
use crate::dead::DeadLsn;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, rank};

pub const MODELS: &[Model] = &[Model {
    name: "hand_over_from_dead_record_is_after_its_fences",
    run: hand_over_from_dead_record_is_after_its_fences,
    needs: &["dead-covers", "dead-raise"],
}];

/// One thread commits the next records of a lane, which makes the first two dead. Another
/// thread has a record for the place that the first record changed.
fn hand_over_from_dead_record_is_after_its_fences() {
    explore(|| {
        let lane = Arc::new((Mutex::<_, rank::Lane>::new(()), DeadLsn::new(0)));
        let fenced = Arc::new(AtomicU64::new(0));
        let committer = {
            let (lane, fenced) = (lane.clone(), fenced.clone());
            thread::spawn(move || {
                for lsn in [1, 2] {
                    let _locked = lane.0.lock();
                    fenced.store(lsn, Ordering::Relaxed);
                    if lsn > lane.1.get() {
                        lane.1.raise(lsn);
                    }
                }
            })
        };
        for lsn in [1, 2] {
            if lane.1.covers(lsn) {
                let fenced = fenced.load(Ordering::Relaxed);
                promise!(
                    fenced >= lsn,
                    "record {lsn} is dead, homes are fenced up to {fenced}"
                );
            }
        }
        committer.join().unwrap();
        promise!(lane.1.get() == 2, "dead up to {}", lane.1.get());
    });
}
