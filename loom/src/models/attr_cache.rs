//! `fs/cache/attr_cache.rs` and `fs/cache/dcache.rs`: look-ups without a lock.

use std::sync::Arc;

use loom::thread;

use super::{Model, explore, explore_bounded, promise};
use crate::fs::cache::attr_cache::{AttrCache, AttrSlot};
use crate::fs::cache::dcache::Dcache;
use crate::fs::cache::probe::Probe;
use crate::fs::inode::lock::InodeLock;
use crate::fs::inode::state::InodeState;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::types::{Attr, Ino};

pub const MODELS: &[Model] = &[
    Model {
        name: "stat_during_change_is_of_one_moment",
        run: stat_during_change_is_of_one_moment,
        needs: &["attr-read-end", "attr-begin-fence"],
    },
    Model {
        name: "stat_after_data_of_a_writer_shows_no_older_inode",
        run: stat_after_data_of_a_writer_shows_no_older_inode,
        // Each of the two fences suffices.
        needs: &["inode-locked+attr-begin-fence"],
    },
    Model {
        name: "find_while_slot_changes_inode_is_of_the_name",
        run: find_while_slot_changes_inode_is_of_the_name,
        needs: &[
            "attr-read-begin",
            "attr-read-end",
            "attr-begin-fence",
            "attr-end",
        ],
    },
    Model {
        name: "find_after_two_writers_is_of_the_second",
        run: find_after_two_writers_is_of_the_second,
        needs: &["attr-begin"],
    },
];

const KEY: u64 = 0x1234_5678_9abc_def1;
const DIR: Ino = Ino(2);

fn attr(ino: u64, n: u64) -> Attr {
    Attr {
        ino: Ino(ino),
        size: n,
        change: n,
    }
}

fn probe(name: &[u8]) -> Probe {
    Probe::new(KEY, DIR, name).unwrap()
}

fn stat_during_change_is_of_one_moment() {
    explore(|| {
        let cache = Arc::new(AttrCache::new(1));
        cache.publish(&attr(5, 1), None);
        let writer = {
            let cache = cache.clone();
            thread::spawn(move || {
                let slot = AttrSlot::new(&cache, Ino(5));
                slot.invalidate();
                cache.publish(&attr(5, 2), Some(&probe(b"a")));
                std::mem::forget(slot);
            })
        };
        if let Some(a) = cache.get(Ino(5)) {
            promise!(a.size == a.change, "torn attributes: {a:?}");
        }
        writer.join().unwrap();
    });
}

/// A thread that has seen a store of a writer, even one to the medium, finds nothing older
/// in the cache.
fn stat_after_data_of_a_writer_shows_no_older_inode() {
    explore(|| {
        let cache = Arc::new(AttrCache::new(1));
        let data = Arc::new(AtomicU64::new(0));
        let lock = Arc::new(InodeLock::new(Ino(5), InodeState::default()));
        lock.set_attr_slot(|| AttrSlot::new(&cache, Ino(5)));
        cache.publish(&attr(5, 0), None);
        let writer = {
            let (lock, data) = (lock.clone(), data.clone());
            thread::spawn(move || {
                let guard = lock.write();
                data.store(1, Ordering::Relaxed);
                drop(guard);
            })
        };
        let seen = data.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let shown = cache.get(Ino(5));
        promise!(
            seen == 0 || shown.is_none(),
            "shows an older inode: {shown:?}"
        );
        writer.join().unwrap();
    });
}

fn find_while_slot_changes_inode_is_of_the_name() {
    explore(|| {
        // Both inodes share the only slot.
        let names = Arc::new(Dcache::new(1, KEY));
        names.publish(&attr(5, 5), Some(&probe(b"a")));
        let writer = {
            let names = names.clone();
            thread::spawn(move || names.publish(&attr(6, 6), Some(&probe(b"b"))))
        };
        if let Some((a, _)) = names.find(&probe(b"b")) {
            promise!(a == attr(6, 6), "leads to {a:?}");
        }
        writer.join().unwrap();
    });
}

/// Two inodes share a slot. No lock orders their threads, only the slot does.
fn find_after_two_writers_is_of_the_second() {
    explore_bounded(Some(2), || {
        let cache = Arc::new(AttrCache::new(1));
        let writers = [5, 6].map(|ino| {
            let cache = cache.clone();
            thread::spawn(move || cache.publish(&attr(ino, ino), None))
        });
        if let Some(a) = cache.get(Ino(6)) {
            promise!(a == attr(6, 6), "attributes of two inodes: {a:?}");
        }
        for writer in writers {
            writer.join().unwrap();
        }
    });
}
