//! Deaths at the moments that matter, without processes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pramfs::MountOptions;
use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs};
use pramfs::pmem::{Region, RegionOptions};
use pramfs_tests::region;

use super::*;

const INODES: u64 = 1000;
const FILE: Ino = Ino(40);

fn memory() -> Memory {
    let memory = Memory::create().unwrap();
    memory.prepare(INODES).unwrap();
    memory
}

/// What the next server finds when this one is killed.
fn killed(memory: &Memory) -> Memory {
    SERVED.set(0);
    let next = adopted(memory);
    next.prepare(INODES).unwrap();
    next
}

/// The same memory, for a server that adopts it.
fn adopted(memory: &Memory) -> Memory {
    let [requests, references] = memory.descriptors().unwrap();
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
    Memory::adopt(copy(requests), copy(references)).unwrap()
}

fn record(lsn: u64) -> RecordId {
    RecordId { lane: 3, lsn }
}

#[test]
fn request_is_done_only_if_its_record_is_durable() {
    for durable in [false, true] {
        let memory = memory();
        let serving = memory.begin(10);
        memory.decided_by(record(7), Some(FILE));
        let next = killed(&memory);
        std::mem::forget(serving);
        next.settle(&|asked| asked == record(7) && durable);
        let serving = next.begin(10 | UNIQUE_RESEND);
        let expect = match durable {
            true => Outcome::Done(Some(FILE)),
            false => Outcome::Open,
        };
        assert_eq!(serving.outcome, expect);
    }
}

#[test]
fn note_of_settled_record_survives_further_deaths() {
    let first = memory();
    let serving = first.begin(10);
    first.decided_by(record(7), None);
    let second = killed(&first);
    second.settle(&|_| true);
    // It dies before it is asked again, and its records have new numbers.
    let third = killed(&second);
    third.settle(&|_| false);
    let again = third.begin(10 | UNIQUE_RESEND);
    assert_eq!(again.outcome, Outcome::Done(None));
    // And it dies before the reply.
    let fourth = killed(&third);
    fourth.settle(&|_| false);
    assert_eq!(
        fourth.begin(10 | UNIQUE_RESEND).outcome,
        Outcome::Done(None)
    );
    std::mem::forget((serving, again));
}

#[test]
fn answered_request_leaves_no_slot() {
    let memory = memory();
    for unique in 1..3 * SLOTS as u64 {
        let serving = memory.begin(unique);
        memory.decided_by(record(unique), None);
        drop(serving);
    }
    assert_eq!(killed(&memory).old.lock().len(), 0);
    assert_eq!(memory.free.lock().len(), SLOTS);
}

#[test]
fn replaced_server_is_no_death() {
    let first = memory();
    std::mem::forget(first.begin(10));
    first.will_be_replaced();
    let second = killed(&first);
    std::mem::forget(second.begin(10 | UNIQUE_RESEND));
    second.will_be_replaced();
    let third = killed(&second);
    let again = third.begin(10 | UNIQUE_RESEND);
    assert_eq!(again.outcome, Outcome::Open);
    // This one dies, for the first time.
    std::mem::forget(again);
    let fourth = killed(&third);
    assert_eq!(fourth.begin(10 | UNIQUE_RESEND).outcome, Outcome::Open);
}

#[test]
fn server_that_stays_dies_as_any_other() {
    let first = memory();
    std::mem::forget(first.begin(10));
    first.will_be_replaced();
    first.will_not_be_replaced();
    let second = killed(&first);
    std::mem::forget(second.begin(10 | UNIQUE_RESEND));
    let third = killed(&second);
    let again = third.begin(10 | UNIQUE_RESEND);
    assert_eq!(again.outcome, Outcome::Deadly);
    std::mem::forget(again);
}

#[test]
fn inode_made_by_settled_request_is_kept_until_the_reply() {
    let first = memory();
    let serving = first.begin(10);
    first.decided_by(record(7), Some(FILE));
    let second = killed(&first);
    second.settle(&|_| true);
    assert_eq!(second.references(FILE), 1);
    let again = second.begin(10 | UNIQUE_RESEND);
    assert_eq!(again.raised, Some((FILE, 1)));
    // It dies after it has counted for the reply.
    second.add_references(FILE, 2);
    let third = killed(&second);
    third.settle(&|_| true);
    assert_eq!(third.references(FILE), 3);
    let last = third.begin(10 | UNIQUE_RESEND);
    assert_eq!(last.outcome, Outcome::Done(Some(FILE)));
    assert_eq!(last.raised, Some((FILE, 3)));
    third.add_references(FILE, 2);
    third.sub_references(FILE, 3);
    drop(last);
    assert_eq!(third.references(FILE), 2);
    std::mem::forget((serving, again));
}

#[test]
fn times_that_are_not_written_outlive_deaths() {
    let time = |sec| Time {
        sec,
        nsec: 999_999_999,
    };
    let first = memory();
    first.note_times(FILE, time(5));
    first.list_lazy(FILE);
    let second = killed(&first);
    assert_eq!(second.listed_lazy(), [(FILE, time(5))]);
    let end = second.end_of_lazy();
    second.note_times(Ino(41), time(6));
    second.list_lazy(Ino(41));
    second.lazy_are_written(end);
    assert_eq!(killed(&second).listed_lazy(), [(Ino(41), time(6))]);
    for _ in 0..2 * LIST_LEN {
        second.list_lazy(FILE);
    }
    assert_eq!(killed(&second).listed_lazy(), [(FILE, time(5))]);
    // Before 1970 there is no place for it.
    second.note_times(FILE, time(-5));
    assert_eq!(second.listed_lazy(), []);
}

#[test]
fn second_death_over_a_request_is_its_last() {
    let first = memory();
    let serving = first.begin(10);
    let second = killed(&first);
    let again = second.begin(10 | UNIQUE_RESEND);
    assert_eq!(again.outcome, Outcome::Open);
    let third = killed(&second);
    let last = third.begin(10 | UNIQUE_RESEND);
    assert_eq!(last.outcome, Outcome::Deadly);
    drop(last);
    assert_eq!(killed(&third).old.lock().len(), 0);
    std::mem::forget((serving, again));
}

#[test]
fn death_before_a_request_is_read_again_does_not_count() {
    let first = memory();
    let serving = first.begin(10);
    let second = killed(&first);
    let third = killed(&second);
    let fourth = killed(&third);
    assert_eq!(fourth.deaths(), 3);
    assert_eq!(fourth.begin(10 | UNIQUE_RESEND).outcome, Outcome::Open);
    std::mem::forget(serving);
}

#[test]
fn request_that_happens_once_is_not_begun_again() {
    let first = memory();
    let serving = first.begin(10);
    serving.happens_once();
    let second = killed(&first);
    assert_eq!(second.begin(10 | UNIQUE_RESEND).outcome, Outcome::Begun);
    std::mem::forget(serving);
}

#[test]
fn references_of_unsent_reply_are_told_once() {
    let first = memory();
    let serving = first.begin(10);
    first.add_references(FILE, 1);
    first.add_references(FILE, 1);
    let second = killed(&first);
    assert_eq!(second.references(FILE), 2);
    let again = second.begin(10 | UNIQUE_RESEND);
    assert_eq!(again.raised, Some((FILE, 2)));
    let third = killed(&second);
    assert_eq!(third.begin(10 | UNIQUE_RESEND).raised, None);
    std::mem::forget((serving, again));
}

#[test]
fn references_of_a_listing_are_not_given_back() {
    let first = memory();
    let serving = first.begin(10);
    for ino in 40..45 {
        first.add_references(Ino(ino), 1);
    }
    let second = killed(&first);
    assert_eq!(second.begin(10 | UNIQUE_RESEND).raised, None);
    assert!((40..45).all(|ino| second.references(Ino(ino)) == 1));
    std::mem::forget(serving);
}

#[test]
fn count_is_never_below_zero_nor_out_of_range() {
    let memory = memory();
    memory.add_references(FILE, 2);
    assert_eq!(memory.sub_references(FILE, 5), 0);
    // There is room for more inodes than the file system has: it may grow.
    let most = memory.inodes().unwrap();
    memory.add_references(Ino(most), 1);
    memory.add_references(Ino(u64::MAX), 1);
    assert_eq!(memory.references(Ino(most)), 0);
    assert_eq!(memory.sub_references(Ino(u64::MAX), 1), 0);
}

#[test]
fn slots_of_answered_requests_are_freed_after_the_last_resend() {
    let first = memory();
    let many: Vec<_> = (1..=SLOTS as u64)
        .map(|unique| first.begin(unique))
        .collect();
    // None is left, and the request is served nevertheless.
    assert_eq!(first.begin(5000).outcome, Outcome::Open);
    let second = killed(&first);
    drop(second.begin(1 | UNIQUE_RESEND));
    second.forget_old();
    assert_eq!(second.free.lock().len(), SLOTS);
    assert_eq!(second.begin(2 | UNIQUE_RESEND).outcome, Outcome::Open);
    std::mem::forget(many);
}

/// Opens a region that was closed a moment ago. A child that another test has just forked holds
/// all descriptors of the process until its exec, and the region counts as in use until then.
fn open_when_free(path: &Path) -> Region {
    let begun = Instant::now();
    loop {
        match RegionOptions::new().open(path) {
            Err(error) if error.errno() == libc::EBUSY && begun.elapsed().as_secs() < 60 => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened.unwrap(),
        }
    }
}

/// A server of a region, with this memory.
fn serve(region: &Path, memory: Memory) -> (Arc<Memory>, Fs) {
    let memory = Arc::new(memory);
    let options = MountOptions {
        survivor: Some(Arc::clone(&memory) as Arc<dyn Survivor>),
        ..region::quiet()
    };
    let region = open_when_free(region);
    (memory, Fs::open(region, options).unwrap())
}

/// The kernel sends no FORGET twice, and does not say what it has released.
#[test]
fn orphan_of_lost_forget_stays_until_unmount_and_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let path = |n: u32| dir.path().join(format!("region{n}"));
    let region = RegionOptions::new().create(path(0), 8 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let root = &Credentials::ROOT;
    let left = |fs: &Fs| fs.statfs().unwrap().free;
    let make = |fs: &Fs, name: &[u8]| {
        let ino = fs.create(root, Ino::ROOT, name, 0o644).unwrap().ino;
        fs.write(root, ino, 0, &[7; 100_000]).unwrap();
        ino
    };
    let fs = Fs::open(region, region::quiet()).unwrap();
    // Tables have grown afterwards.
    make(&fs, b"first");
    fs.unlink(Ino::ROOT, b"first").unwrap();
    fs.sync().unwrap();
    let free = left(&fs);
    fs.close().unwrap();

    let (mut memory, mut fs) = serve(&path(0), Memory::create().unwrap());
    let file = make(&fs, b"file");
    let (found, _) = fs.holding().lookup(Ino::ROOT, b"file").unwrap();
    found.into_count();
    fs.unlink(Ino::ROOT, b"file").unwrap();
    fs.sync().unwrap();
    // It has read FORGET, and dies before it does anything. So do two more, which have nothing to
    // forget. A copy is what their deaths leave: the old ones still have their locks here.
    let mut dead = Vec::new();
    for n in 0..3 {
        std::fs::copy(path(n), path(n + 1)).unwrap();
        let next = serve(&path(n + 1), adopted(&memory));
        dead.push(std::mem::replace(&mut fs, next.1));
        memory = next.0;
        assert_eq!(memory.references(file), 1);
        fs.sync().unwrap();
        assert_eq!(fs.getattr(file).unwrap().nlink, 0);
        assert!(left(&fs) < free);
    }
    fs.close().unwrap();
    let region = open_when_free(&path(3));
    let fs = Fs::open(region, region::quiet()).unwrap();
    assert!(fs.getattr(file).is_err());
    fs.sync().unwrap();
    assert_eq!(left(&fs), free);
    fs.close().unwrap();
}

#[test]
fn memory_of_another_version_is_refused() {
    let [one, other] = [c"a", c"b"].map(|name| SharedWords::create(name, 64).unwrap());
    let copy = |words: &SharedWords| words.descriptor().try_clone_to_owned().unwrap();
    let refused = Memory::adopt(copy(&one), copy(&other)).unwrap_err();
    assert!(refused.to_string().contains("another version"), "{refused}");
    let memory = memory();
    let most = memory.inodes().unwrap();
    assert!(most > INODES, "room for a file system that grows");
    memory.prepare(most).unwrap();
    assert!(memory.prepare(most + 1).is_err());
}
