//! `fs/inode/lock.rs`: reads of a file without a lock.

use std::sync::Arc;

use loom::thread;

use super::{Model, explore, promise};
use crate::fs::inode::lock::InodeLock;
use crate::fs::inode::state::InodeState;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::Ino;

pub const MODELS: &[Model] = &[
    Model {
        name: "snapshot_during_write_is_invalid_or_of_one_write",
        run: snapshot_during_write_is_invalid_or_of_one_write,
        needs: &[
            "inode-snapshot",
            "inode-validate-reads",
            "inode-validate-lock",
            "inode-locked",
            "inode-published",
        ],
    },
    Model {
        name: "size_snapshot_during_write_is_invalid_or_of_one_write",
        run: size_snapshot_during_write_is_invalid_or_of_one_write,
        needs: &[
            "inode-size-snapshot",
            "inode-validate-reads",
            "inode-validate-lock",
            "inode-locked",
            "inode-published",
        ],
    },
];

/// A write stores to the medium (here one word) and to the inode.
fn write(lock: &InodeLock, data: &AtomicU64, n: u64) {
    let mut state = lock.write();
    data.store(n, Ordering::Relaxed);
    state.disk.size = n;
    state.disk.root = n;
    state.records = n;
}

fn snapshot_during_write_is_invalid_or_of_one_write() {
    explore(|| {
        let lock = Arc::new(InodeLock::new(Ino(5), InodeState::default()));
        let data = Arc::new(AtomicU64::new(0));
        let writer = {
            let (lock, data) = (lock.clone(), data.clone());
            thread::spawn(move || write(&lock, &data, 1))
        };
        if let Some(s) = lock.snapshot(Ino(9)) {
            let data = data.load(Ordering::Relaxed);
            if lock.validate(s.changes) {
                let all = [s.size, s.map.root.0, s.records, data];
                promise!(
                    all == [all[0]; 4],
                    "a valid snapshot of two writes: {all:?}"
                );
                promise!(s.changes == all[0], "an old snapshot is valid: {s:?}");
            }
        }
        writer.join().unwrap();
    });
}

fn size_snapshot_during_write_is_invalid_or_of_one_write() {
    explore(|| {
        let lock = Arc::new(InodeLock::new(Ino(5), InodeState::default()));
        let data = Arc::new(AtomicU64::new(0));
        let writer = {
            let (lock, data) = (lock.clone(), data.clone());
            thread::spawn(move || write(&lock, &data, 1))
        };
        if let Some(s) = lock.size_snapshot() {
            let data = data.load(Ordering::Relaxed);
            if lock.validate(s.changes) {
                let all = [s.size, s.records, data];
                promise!(
                    all == [all[0]; 3],
                    "a valid snapshot of two writes: {all:?}"
                );
                promise!(s.changes == all[0], "an old snapshot is valid: {s:?}");
            }
        }
        writer.join().unwrap();
    });
}
