//! The crash explorer over operations that change bytes of files, in a file system with checksums
//! of file data: after any crash, each block fits its sum, or its file is marked.

use std::sync::Arc;
use std::time::Duration;

use pramfs_medium::journal::Rules;
use pramfs_tests::crash::atomic::{atomic_ops, changes_bytes, range_ops};
use pramfs_tests::crash::explorer::{Job, Settings, run};
use pramfs_tests::crash::fixture::Fixture;
use pramfs_tests::crash::images::Limits;
use pramfs_tests::crash::known::Known;
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::crash::operations::Op;
use pramfs_tests::crash::report::Summary;
use pramfs_tests::crash::sample::sample;
use pramfs_tests::crash::workload::{Workload, sequences};
use pramfs_tests::watchdog::Watchdog;

const LIMITS: Limits = Limits {
    lines: 6,
    pairs: 300,
    random: 32,
    torn: Torn::Edges,
};

/// Limits of a crash within a recovery.
const AGAIN: Limits = Limits {
    lines: 3,
    pairs: 10,
    random: 4,
    torn: Torn::Half,
};

fn settings() -> Settings {
    Settings {
        limits: LIMITS,
        recovery: Some(AGAIN),
        every_recovery: None,
        rules: Rules::default(),
        seed: 1,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
    }
}

fn fixture(block_size: u32) -> Fixture {
    let len = if block_size > 1024 {
        1 << 20
    } else {
        384 << 10
    };
    Fixture::summed(block_size, len).unwrap()
}

fn explore(name: &str, fixture: &Fixture, ops: &[Op], workloads: &[Workload]) -> Summary {
    let watchdog = Watchdog::new(name, Duration::from_secs(120));
    let job = Job {
        fixture,
        ops,
        workloads,
    };
    let known = Arc::new(Known::default());
    match run(&settings(), &known, &job, &|_| watchdog.touch()) {
        Ok(summary) => {
            println!("{name}: {summary}\n{}", summary.row(name));
            summary
        }
        Err(e) => panic!("an image that nothing explains\n{e}"),
    }
}

#[test]
fn crash_images_of_one_operation_with_sums_are_valid() {
    let ops = atomic_ops();
    for block_size in [512, 4096] {
        let all = sequences(&ops, 1, false, &|op| {
            changes_bytes(op) || op.map && block_size == 4096
        });
        let name = format!("one operation with sums, blocks of {block_size}");
        let summary = explore(&name, &fixture(block_size), &ops, &all);
        assert!(summary.workloads > 20 && summary.images > 2000, "{summary}");
    }
}

#[test]
fn crash_images_of_two_operations_with_sums_are_valid() {
    let ops = atomic_ops();
    let all = sample(sequences(&ops, 2, true, &changes_bytes), 25);
    let summary = explore("two operations with sums", &fixture(512), &ops, &all);
    assert!(summary.workloads > 25, "{summary}");
}

/// A view stores beside writes of the engine, and the file is summed at the unmount.
#[test]
fn crash_images_of_view_with_sums_are_valid() {
    let ops = atomic_ops();
    let mut all = sequences(&ops, 2, true, &|op| changes_bytes(op) || op.map);
    all.retain(|w| {
        let maps = w.steps.iter().filter(|(op, _)| ops[*op].map).count();
        maps == 1
    });
    let all = sample(all, 7);
    let summary = explore("a view of a file with sums", &fixture(4096), &ops, &all);
    assert!(summary.workloads > 10, "{summary}");
}

/// A view marks its blocks, another one more of them; operations change bytes in and beside them;
/// the unmount sums them.
#[test]
fn crash_images_of_views_of_ranges_are_valid() {
    let ops = range_ops();
    let index = |name: &str| ops.iter().position(|op| op.name == name).unwrap();
    let (make, first) = (index("make long"), index("map block 1"));
    let few = |steps: &[usize]| Workload {
        steps: steps.iter().map(|op| (*op, 0)).collect(),
    };
    let mut all = Vec::new();
    for second in 1..ops.len() {
        for third in (1..ops.len()).filter(|third| *third != second) {
            all.push(few(&[make, first, second, third]));
        }
    }
    all = sample(all, 7);
    all.push(few(&[make, first]));
    all.extend((1..ops.len()).map(|second| few(&[make, first, second])));
    let summary = explore("views of ranges", &fixture(4096), &ops, &all);
    assert!(summary.workloads > 20, "{summary}");
}
