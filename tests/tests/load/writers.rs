//! Twenty-four writers and readers on a mount. Twelve share one small tree, where every
//! byte read can be explained. Twelve keep logs, which are compared with the model at the
//! end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pramfs_tests::kill::Record;
use pramfs_tests::mounted::Mounted;
use pramfs_tests::random::Random;
use pramfs_tests::stress::{MountAccess, Plan, assert_same, populate, run, walk};
use pramfs_tests::suite::{mount_for, number, say, unmount_and_check};
use pramfs_tests::watchdog::Watchdog;
use rustix::process::Signal;

use crate::memory::Readings;
use crate::{alone, directory};

const SEED: &str = "PRAMFS_LOAD_SEED";
const TIMEOUT: Duration = Duration::from_secs(60);
const LIVES: u32 = 12;
const STRESS: u64 = 12;
const CACHE: u64 = 8 << 20;
/// Memory of the server besides its inode cache: buffers of the serving threads, bitmaps,
/// and memory that the allocator retains.
const BESIDE: u64 = 48 << 20;
/// Permitted growth of the memory after the first quarter of a long run.
const GROWTH: u64 = 6 << 20;

/// Called every 100 ms until it ends the run.
type Meanwhile<'m> = &'m mut dyn FnMut(Duration) -> bool;

/// Works until `meanwhile` ends the run, then compares everything.
fn load(test: &str, mount: &Mounted, options: &str, time: Duration, meanwhile: Meanwhile<'_>) {
    let seed = Random::seed_from_env(SEED);
    let context = format!("{test}, {SEED}={seed}");
    let dog = Watchdog::new(&context, TIMEOUT + time);
    let logs = directory();
    let (ours, theirs) = (mount.at("lives"), mount.at("stress"));
    for dir in [&ours, &theirs] {
        std::fs::create_dir(dir).unwrap();
    }
    let (ours, theirs) = (MountAccess(ours), MountAccess(theirs));
    let record = Record::new(logs.path(), LIVES, seed);
    record.begin(&ours).unwrap();
    populate(&theirs, 200).unwrap();
    let plan = Plan {
        seed,
        threads: STRESS,
        first_writer: 1,
        names: 6,
        time,
        units: 160,
        own: 128 << 10,
        cold: 200,
    };
    let (stop, started) = (AtomicBool::new(false), Instant::now());
    let totals = std::thread::scope(|scope| {
        let lives: Vec<_> = (0..LIVES)
            .map(|w| {
                let (record, ours, stop) = (&record, &ours, &stop);
                scope.spawn(move || record.live_while(ours, w, |_| !stop.load(Ordering::Relaxed)))
            })
            .collect();
        let stress = scope.spawn(|| run(&theirs, &plan, &dog));
        while meanwhile(started.elapsed()) && !stress.is_finished() {
            std::thread::sleep(Duration::from_millis(100));
        }
        stop.store(true, Ordering::Relaxed);
        for life in lives {
            life.join()
                .unwrap()
                .unwrap_or_else(|e| panic!("{context}: {e}"));
        }
        stress
            .join()
            .unwrap()
            .unwrap_or_else(|e| panic!("{context}: {e}"))
    });
    let outcome = record
        .check(&ours)
        .unwrap_or_else(|e| panic!("{context}: {e}"));
    let before = walk(&theirs).unwrap();
    mount.unmount();
    mount.mount(options);
    let after = walk(&theirs).unwrap();
    assert_same(&before, &after, &format!("{context}, a remount"));
    record
        .check(&ours)
        .unwrap_or_else(|e| panic!("{context}, after a remount: {e}"));
    let check = unmount_and_check(mount);
    say(format_args!(
        "{test}: {} operations whose bytes were explained, {} that the model has; fsck: {check}",
        totals.operations, outcome.returned
    ));
    assert!(
        totals.operations > 1000 && outcome.returned > 1000,
        "{context}: too few"
    );
}

#[test]
fn load_of_24_writers_and_readers_keeps_data() {
    let test = "24 writers and readers";
    let options = format!("cache_mem={CACHE}");
    let _alone = alone();
    let Some(mount) = mount_for(test, &[], 256, &options) else {
        return;
    };
    let time = Duration::from_secs(number("PRAMFS_LOAD_SECONDS", 10));
    let mut memory = Readings::of(mount.process());
    load(test, &mount, &options, time, &mut |passed| {
        memory.take();
        if passed >= time {
            say(format_args!("{test}: memory of the server: {memory}"));
        }
        passed < time
    });
    assert!(memory.most() < CACHE + BESIDE, "{memory}");
    if time >= Duration::from_secs(60) {
        let (early, late) = (memory.most_of_quarter(1), memory.most_of_quarter(3));
        assert!(late < early + GROWTH, "the memory grows: {memory}");
    }
}

#[test]
fn stopped_server_loses_no_data() {
    let test = "the server is stopped for 10 s";
    let _alone = alone();
    let Some(mount) = mount_for(test, &[], 256, "") else {
        return;
    };
    let (stopped, end) = (Duration::from_secs(2), Duration::from_secs(12));
    let mut is_stopped = false;
    // Two seconds of work, ten with a stopped server, three more of work.
    let time = Duration::from_secs(15);
    load(test, &mount, "", time, &mut |passed| {
        if !is_stopped && (stopped..end).contains(&passed) {
            mount.stop();
            is_stopped = true;
        } else if is_stopped && passed >= end {
            mount.signal(Signal::CONT);
            is_stopped = false;
        }
        passed < time
    });
}
