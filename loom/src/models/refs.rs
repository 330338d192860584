//! `fs/inode/refs.rs` and `fs/cache/attr_cache.rs`: a reference taken by a look-up without a lock.

use std::sync::Arc;

use loom::thread;

use super::{Model, explore, promise};
use crate::fs::cache::attr_cache::{AttrCache, AttrSlot};
use crate::fs::cache::probe::Probe;
use crate::fs::inode::lock::InodeLock;
use crate::fs::inode::refs::{By, Refs};
use crate::fs::inode::state::InodeState;
use crate::types::{Attr, Ino};

pub const MODELS: &[Model] = &[Model {
    name: "lookup_during_removal_is_seen_or_fails",
    run: lookup_during_removal_is_seen_or_fails,
    needs: &["refs-add", "refs-has"],
}];

/// The look-up adds its reference and then checks whether the inode is still published. The
/// removal invalidates the inode and then checks for references.
fn lookup_during_removal_is_seen_or_fails() {
    explore(|| {
        let ino = Ino(5);
        let cache = Arc::new(AttrCache::new(1));
        let refs = Arc::new(Refs::default());
        let lock = Arc::new(InodeLock::new(Ino(5), InodeState::default()));
        lock.set_attr_slot(|| AttrSlot::new(&cache, ino));
        let probe = || Probe::new(1, Ino(2), b"a").unwrap();
        let attr = Attr {
            ino,
            size: 1,
            change: 1,
        };
        cache.publish(&attr, Some(&probe()));
        let removal = {
            let (refs, lock) = (refs.clone(), lock.clone());
            thread::spawn(move || {
                let mut state = lock.write();
                state.gone = !refs.has(ino);
                state.gone
            })
        };
        let held = cache.find(ino, &probe()).is_some_and(|(_, seen)| {
            refs.add(ino, 1, By::Guard);
            cache.is_current(&seen)
        });
        let freed = removal.join().unwrap();
        promise!(!(held && freed), "the inode of a reference is freed");
    });
}
