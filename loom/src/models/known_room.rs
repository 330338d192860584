//! `pmem/known_room.rs`: the pages that exist on the host.

use std::sync::Arc;

use loom::thread;

use super::{Model, explore, promise};
use crate::known_room::{KnownRoom, PAGE};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{RwLock, rank};

pub const MODELS: &[Model] = &[
    Model {
        name: "has_after_query_of_another_thread_finds_its_pages",
        run: has_after_query_of_another_thread_finds_its_pages,
        needs: &["room-asked", "room-was-asked"],
    },
    Model {
        name: "query_during_discard_notes_no_page_that_is_gone",
        run: query_during_discard_notes_no_page_that_is_gone,
        // The lock that excludes them orders them.
        needs: &[],
    },
];

/// The second page exists, the others do not.
fn has_after_query_of_another_thread_finds_its_pages() {
    explore(|| {
        let known = Arc::new(KnownRoom::new(4 * PAGE, false).unwrap());
        let query = {
            let known = known.clone();
            thread::spawn(move || {
                known.note(PAGE, 2 * PAGE);
                known.note_asked(0);
            })
        };
        if known.was_asked(0) {
            promise!(
                known.has(PAGE, PAGE),
                "an existing page is missing after the query"
            );
        }
        promise!(!known.has(0, 2 * PAGE), "a missing page is known");
        query.join().unwrap();
    });
}

/// Same steps as `HostRoom::ask` and `HostRoom::discard`. Fails without the lock.
fn query_during_discard_notes_no_page_that_is_gone() {
    explore(|| {
        let known = Arc::new(KnownRoom::new(4 * PAGE, false).unwrap());
        let on_host = Arc::new(AtomicU64::new(1));
        let changing = Arc::new(RwLock::<_, rank::HostRoom>::new(()));
        known.note(0, PAGE);
        let query = {
            let (known, on_host, changing) = (known.clone(), on_host.clone(), changing.clone());
            thread::spawn(move || {
                if known.was_asked(0) {
                    return;
                }
                let _still = changing.read();
                if on_host.load(Ordering::Relaxed) == 1 {
                    known.note(0, PAGE);
                }
                known.note_asked(0);
            })
        };
        {
            let _alone = changing.write();
            known.forget(0, PAGE);
            on_host.store(0, Ordering::Relaxed);
        }
        promise!(!known.has(0, PAGE), "a discarded page is known");
        query.join().unwrap();
        promise!(!known.has(0, PAGE), "a discarded page is known again");
    });
}
