//! The crash explorer in a file system with checksums of file data, beside leases and in a full
//! region.
//!
//! Bytes that the holder of a lease stores have no sum. So its file is marked from before the lease until
//! after it, and then summed. The oracle checks after each crash that each block fits its sum or is
//! marked, that no sum stands for a block to which a process may store, and that an unmount leaves
//! no mark without a lease.

use std::sync::Arc;
use std::time::Duration;

use pramfs_medium::journal::Rules;
use pramfs_tests::crash::atomic::{atomic_ops, changes_bytes};
use pramfs_tests::crash::explorer::{Job, Settings, run};
use pramfs_tests::crash::fixture::Fixture;
use pramfs_tests::crash::images::Limits;
use pramfs_tests::crash::known::Known;
use pramfs_tests::crash::leased::{grants_or_ends, matters_beside_leases};
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::crash::operations::Op;
use pramfs_tests::crash::report::Summary;
use pramfs_tests::crash::sample::sample;
use pramfs_tests::crash::workload::{Workload, sequences};
use pramfs_tests::watchdog::Watchdog;

/// Each image is recovered twice: while processes hold the leases, and without the processes.
const LIMITS: Limits = Limits {
    lines: 4,
    pairs: 60,
    random: 8,
    torn: Torn::Half,
};

/// Limits of a crash within a recovery.
const AGAIN: Limits = Limits {
    lines: 2,
    pairs: 4,
    random: 2,
    torn: Torn::Half,
};

fn settings(recovery: Option<Limits>) -> Settings {
    Settings {
        limits: LIMITS,
        recovery,
        every_recovery: None,
        rules: Rules::default(),
        seed: 1,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
    }
}

/// The smallest region, in pages, that has room for the tree, the sums and the lease table.
fn len_for(block_size: u32) -> usize {
    if block_size > 1024 {
        1 << 20
    } else {
        320 << 10
    }
}

fn leased(block_size: u32, free: Option<u64>) -> Fixture {
    Fixture::summed_and_leased(block_size, len_for(block_size), free).unwrap()
}

fn explore(
    name: &str,
    settings: &Settings,
    fixture: &Fixture,
    ops: &[Op],
    workloads: &[Workload],
) -> Summary {
    let watchdog = Watchdog::new(name, Duration::from_secs(120));
    let job = Job {
        fixture,
        ops,
        workloads,
    };
    let known = Arc::new(Known::default());
    match run(settings, &known, &job, &|_| watchdog.touch()) {
        Ok(summary) => {
            println!("{name}: {summary}\n{}", summary.row(name));
            summary
        }
        Err(e) => panic!("an image that nothing explains\n{e}"),
    }
}

#[test]
fn crash_images_of_one_operation_with_sums_beside_leases_are_valid() {
    let ops = atomic_ops();
    let mut sum = Summary::default();
    let mut explore = |block_size, recovery, pick: &dyn Fn(&Op) -> bool| {
        let all = sample(sequences(&ops, 1, false, pick), 2);
        let name = format!("one operation with sums beside leases, blocks of {block_size}");
        let settings = settings(recovery);
        sum += explore(&name, &settings, &leased(block_size, None), &ops, &all);
    };
    explore(512, Some(AGAIN), &|op| !op.map && !op.wide);
    explore(4096, None, &|op| op.map);
    println!("{}", sum.row("one operation with sums beside leases"));
    assert!(sum.workloads > 40 && sum.images > 5_000, "{sum}");
    assert!(sum.recoveries > 100, "{sum}");
}

#[test]
fn crash_images_of_two_operations_with_sums_beside_leases_are_valid() {
    let ops = atomic_ops();
    let all = sample(sequences(&ops, 2, true, &matters_beside_leases), 5);
    let name = "two operations with sums beside leases";
    let sum = explore(name, &settings(None), &leased(512, None), &ops, &all);
    assert!(sum.workloads > 150 && sum.images > 10_000, "{sum}");
}

/// From a tree without leases: the mark comes before a lease to write, and the sums after its end.
/// Between the two, the holder and the engine change the file.
#[test]
fn crash_images_of_grant_and_end_of_leases_with_sums_are_valid() {
    let ops = atomic_ops();
    let fixture = Fixture::summed(512, len_for(512)).unwrap();
    let all = [1, 2, 3].map(|length| sequences(&ops, length, true, &grants_or_ends));
    let mut all = sample(all.concat(), 3);
    for change in [
        "store /foo 300 at 50",
        "cut /foo, store past the end, grow",
        "window /foo, append 40",
        "append /foo 500",
        "write /foo 300 at 411 (unaligned)",
        "punch /foo",
        "truncate /foo 777",
    ] {
        for end in ["end lease /foo", "remount", "end lease /foo; remount"] {
            let name = format!("lease /foo; {change}; {end}");
            all.push(Workload::parse(&name, &ops).unwrap());
        }
    }
    let name = "grant and end of leases with sums";
    let sum = explore(name, &settings(Some(AGAIN)), &fixture, &ops, &all);
    assert!(sum.workloads > 150 && sum.images > 10_000, "{sum}");
}

/// Explores workloads without the rule of marks, which finds an image that it rejects for this
/// reason, and with it.
fn finds_missing_mark(fixture: &Fixture, name: &str, reason: &str) {
    let ops = atomic_ops();
    let workloads = &[Workload::parse(name, &ops).unwrap()];
    let explore = |marks| {
        let mut settings = settings(None);
        settings.rules.marks = marks;
        let job = Job {
            fixture,
            ops: &ops,
            workloads,
        };
        run(&settings, &Arc::new(Known::default()), &job, &|_| ())
    };
    match explore(false) {
        Ok(summary) => panic!("{name}: without marks every image is explained: {summary}"),
        Err(found) => {
            println!("{name}:\n{found}\n");
            assert!(found.to_string().contains(reason), "{found}");
        }
    }
    if let Err(e) = explore(true) {
        panic!("with marks:\n{e}");
    }
}

#[test]
fn explorer_detects_missing_mark_of_lease() {
    let fixture = Fixture::summed(512, len_for(512)).unwrap();
    let reason = "a process may store to blocks that have sums";
    finds_missing_mark(&fixture, "lease /foo", reason);
}

/// Without the rule, the mark comes when the view ends: a crash before leaves bytes that do not fit
/// their sum.
#[test]
fn explorer_detects_missing_mark_of_view() {
    let fixture = Fixture::summed(4096, len_for(4096)).unwrap();
    finds_missing_mark(&fixture, "map /foo, store, persist", "the checksum of");
}

/// So few blocks are left that the first allocation of an operation fails, then the second, and so
/// on: of new blocks, of staging blocks, of blocks for the rest of a record.
#[test]
fn crash_images_with_sums_on_full_region_are_valid() {
    let ops = atomic_ops();
    let about_leases = |op: &Op| {
        ["lease", "end", "store", "window", "remount"]
            .iter()
            .any(|n| op.name.starts_with(n))
    };
    let all = sequences(&ops, 1, false, &|op| {
        !op.map && !op.wide && !about_leases(op)
    });
    let mut sum = Summary::default();
    for free in 0..6 {
        let fixture = Fixture::summed_and_full(512, len_for(512), free).unwrap();
        let name = format!("with sums, {free} blocks left");
        sum += explore(&name, &settings(Some(AGAIN)), &fixture, &ops, &all);
    }
    println!("{}", sum.row("one operation with sums in a full region"));
    assert!(sum.refused > 30 && sum.workloads > 300, "{sum}");
}

/// In a full region, truncations, removals, the end of leases and the sums that come after it need
/// no space.
#[test]
fn crash_images_with_sums_beside_leases_on_full_region_are_valid() {
    let ops = atomic_ops();
    let all = sequences(&ops, 1, false, &|op| {
        matters_beside_leases(op) || changes_bytes(op)
    });
    let mut sum = Summary::default();
    for free in 0..2 {
        let name = format!("with sums beside leases, {free} blocks left");
        let fixture = leased(512, Some(free));
        sum += explore(&name, &settings(None), &fixture, &ops, &all);
    }
    println!(
        "{}",
        sum.row("one operation with sums beside leases in a full region")
    );
    assert!(sum.refused > 10 && sum.images > 5_000, "{sum}");
}
