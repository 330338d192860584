//! The order of locks is asserted in a debug build, and costs a release build nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::{rank, unshared};
use super::*;
use crate::types::Ino;

type Inode = RwLock<(), rank::Inode>;

/// What a thread says that takes a lock.
fn message<G>(take: impl FnOnce() -> G) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| drop(take()))).err()?;
    Some(panic.downcast_ref::<String>().expect("a message").clone())
}

/// Whether taking a lock is as it should be: a release build does not look.
fn is_refused<G>(take: impl FnOnce() -> G) -> bool {
    cfg!(not(debug_assertions)) || message(take).is_some()
}

#[test]
fn lock_above_held_rank_is_taken() {
    let (gate, rename) = (
        ShardedLock::<(), rank::Gate>::new(()),
        Mutex::<_, rank::Rename>::new(()),
    );
    let (lane, leaf) = (
        Mutex::<_, rank::Lane>::numbered(3, ()),
        Mutex::<_, rank::Leaf>::new(()),
    );
    let _gate = gate.read().unwrap();
    let _rename = rename.lock();
    let _lane = lane.lock();
    drop(leaf.lock());
    drop(leaf.lock());
}

#[cfg(debug_assertions)]
#[test]
fn lock_below_held_rank_panics() {
    let lane = Mutex::<_, rank::Lane>::numbered(3, ());
    let group = Mutex::<_, rank::Group>::numbered(7, ());
    let _group = group.lock();
    let said = message(|| lane.lock()).unwrap();
    for part in ["Group 7", "Lane 3", "docs/architecture.md"] {
        assert!(said.contains(part), "{said}");
    }
}

#[cfg(debug_assertions)]
#[test]
fn lock_of_held_rank_panics() {
    let lanes = [0, 1].map(|nth| Mutex::<_, rank::Lane>::numbered(nth, ()));
    let held = lanes[0].lock();
    assert!(is_refused(|| lanes[1].lock()));
    drop(held);
    let leaves = [(); 2].map(|()| Mutex::<_, rank::Leaf>::new(()));
    let _held = leaves[0].lock();
    assert!(is_refused(|| leaves[1].lock()));
}

#[cfg(debug_assertions)]
#[test]
fn gate_taken_twice_panics() {
    let gate = ShardedLock::<(), rank::Gate>::new(());
    let _held = gate.read().unwrap();
    assert!(is_refused(|| gate.read()));
}

#[test]
fn try_lock_below_held_rank_is_taken() {
    let lane = Mutex::<_, rank::Lane>::new(());
    let inode = Inode::numbered(20, ());
    let leaf = Mutex::<_, rank::Leaf>::new(());
    let _leaf = leaf.lock();
    drop(lane.try_lock().unwrap());
    drop(inode.try_read().unwrap());
    drop(inode.try_write().unwrap());
}

#[test]
fn lock_below_tried_rank_panics() {
    let (lane, group) = (
        Mutex::<_, rank::Lane>::new(()),
        Mutex::<_, rank::Group>::new(()),
    );
    let tried = group.try_lock().unwrap();
    assert!(is_refused(|| lane.lock()));
    drop(tried);
    drop(lane.lock());
}

#[test]
fn guards_dropped_in_any_order_are_released() {
    let inodes = [20, 21, 22].map(|ino| Inode::numbered(ino, ()));
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut held = [0, 1, 2].map(|at: usize| Some(inodes[at].write()));
        for at in order {
            held[at] = None;
        }
        // Nothing is held any more, so that the first may be taken again.
        drop(inodes[0].read());
    }
}

#[test]
fn held_lock_of_failed_attempt_is_forgotten() {
    let inode = Inode::numbered(20, ());
    let held = inode.write();
    assert!(inode.try_read().is_none() && inode.try_write().is_none());
    assert!(is_refused(|| inode.write()));
    drop(held);
    drop(inode.write());
}

#[test]
fn inodes_in_ascending_order_are_taken() {
    let inodes = [2, 16, 17].map(|ino| Inode::numbered(ino, ()));
    let _held = inodes.each_ref().map(|inode| inode.write());
}

#[cfg(debug_assertions)]
#[test]
fn inodes_in_descending_order_panic() {
    let (low, high) = (Inode::numbered(16, ()), Inode::numbered(17, ()));
    let _high = high.read();
    let said = message(|| low.read()).unwrap();
    assert!(said.contains("Inode 17") && said.contains("Inode 16"));
    assert!(is_refused(|| high.read()), "a writer may wait in between");
}

#[test]
fn unshared_inode_under_higher_inode_is_taken() {
    let (new, dir) = (Inode::numbered(16, ()), Inode::numbered(17, ()));
    let _dir = dir.write();
    drop(unshared(|| new.write()));
    assert!(is_refused(|| new.write()));
}

#[test]
fn orphan_table_under_higher_inode_is_taken() {
    let (inode, table) = (Inode::numbered(17, ()), Inode::numbered(Ino::ORPHANS.0, ()));
    let held = inode.write();
    drop(table.write());
    drop(held);
    let _table = table.read();
    assert!(is_refused(|| inode.read()));
}

#[test]
fn waiting_for_change_keeps_mutex_in_order() {
    let (standing, changed) = (Mutex::<_, rank::Leaf>::new(0), Condvar::new());
    let mut held = standing.lock();
    let waited = changed.wait_for(&mut held, std::time::Duration::from_millis(1));
    assert!(waited.timed_out() && *held == 0);
    changed.notify_all();
}

#[cfg(debug_assertions)]
#[test]
fn assert_none_held_under_later_rank_panics() {
    use super::super::assert_none_held;
    use rank::Rank;
    let mount = Mutex::<_, rank::Mount>::new(());
    let _mount = mount.lock();
    assert_none_held(Rank::Gate);
    let inode = Inode::numbered(16, ());
    let held = inode.read();
    assert!(message(|| assert_none_held(Rank::Gate)).is_some());
    drop(held);
    assert_none_held(Rank::Gate);
}
