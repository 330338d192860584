//! The crash explorer over all workloads of one and two operations: no image
//! that a power failure could leave is unexplained.
//!
//! `make crash` goes further: more lines, three operations.

use std::sync::Arc;
use std::time::Duration;

use pramfs_medium::journal::Rules;
use pramfs_tests::crash::concurrent;
use pramfs_tests::crash::explorer::{Job, Settings, run};
use pramfs_tests::crash::images::Limits;
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::crash::oracle::Known;
use pramfs_tests::crash::report::Summary;
use pramfs_tests::crash::workload::{Bed, Op, Workload, ops, sequences};
use pramfs_tests::watchdog::Watchdog;

const LIMITS: Limits = Limits {
    lines: 6,
    pairs: 2000,
    random: 32,
    torn: Torn::Edges,
};

/// Of a crash within a recovery.
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

/// A region that has room for the tree, in the least number of pages.
fn bed(block_size: u32) -> Bed {
    let len = if block_size > 1024 { 512 } else { 256 } << 10;
    Bed::new(block_size, len).unwrap()
}

fn explore(
    name: &str,
    settings: &Settings,
    bed: &Bed,
    ops: &[Op],
    workloads: &[Workload],
) -> Summary {
    let watchdog = Watchdog::new(name, Duration::from_secs(120));
    let known = Arc::new(Known::default());
    let job = Job {
        bed,
        ops,
        workloads,
    };
    match run(settings, &known, &job, &|_| watchdog.touch()) {
        Ok(summary) => {
            println!("{name}: {summary}\n{}", summary.row(name));
            summary
        }
        Err(e) => panic!("an image that nothing explains\n{e}"),
    }
}

#[test]
fn every_image_of_one_operation_is_explained() {
    let (ops, mut settings) = (ops(), settings());
    // The recovery of each distinct image, not only of each kind.
    settings.every_recovery = Some(AGAIN);
    for block_size in [512, 1024, 4096] {
        if block_size == 512 {
            // Every subset of the words of a line that non-temporal stores fill.
            settings.limits.torn = Torn::Words;
            settings.recovery = Some(LIMITS);
        } else {
            (settings.limits, settings.recovery) = (LIMITS, Some(AGAIN));
        }
        let all = sequences(&ops, 1, false, &|op| !op.map || block_size == 4096);
        let name = format!("one operation, blocks of {block_size}");
        let summary = explore(&name, &settings, &bed(block_size), &ops, &all);
        assert_eq!(summary.workloads, all.len() as u64);
        assert!(summary.images > 10_000, "{summary}");
        assert!(summary.recoveries > 100, "{summary}");
    }
}

#[test]
fn every_image_of_two_operations_is_explained() {
    let ops = ops();
    let all = sequences(&ops, 2, true, &|op| !op.map && !op.wide);
    let summary = explore("two operations", &settings(), &bed(512), &ops, &all);
    assert!(summary.workloads > 5000, "{summary}");
    assert!(summary.images > 1_000_000, "{summary}");
}

#[test]
fn every_image_of_a_view_and_another_operation_is_explained() {
    let ops = ops();
    let mut all = sequences(&ops, 2, true, &|op| !op.lossy && !op.wide);
    all.retain(|w| w.steps.iter().any(|(op, _)| ops[*op].map));
    let summary = explore("a view and another", &settings(), &bed(4096), &ops, &all);
    assert!(summary.workloads > 200, "{summary}");
}

/// The explorer explains nothing away: with any rule of the journal switched
/// off there is an image that it does not accept.
#[test]
fn a_broken_rule_leaves_an_image_that_nothing_explains() {
    let on = Rules::default();
    let broken = [
        (
            "two slots",
            Rules {
                two_slots: false,
                ..on
            },
        ),
        (
            "data before its record",
            Rules {
                data_fence: false,
                ..on
            },
        ),
        (
            "orphan slots",
            Rules {
                orphan_chain: false,
                ..on
            },
        ),
        (
            "hand-over",
            Rules {
                hand_over: false,
                ..on
            },
        ),
        (
            "bits by masks",
            Rules {
                bit_masks: false,
                ..on
            },
        ),
    ];
    let broken = broken.into_iter().chain([(
        "delayed release",
        Rules {
            delayed_release: false,
            ..on
        },
    )]);
    let ops = ops();
    let named = |name: &str| vec![Workload::parse(name, &ops).unwrap()];
    let two = sequences(&ops, 2, true, &|op| !op.map && !op.wide);
    // What lane 1 left of /foo comes back once lane 0 has gone on from it.
    let later = named("chmod /foo [lane 1]; chown /foo; create /A/new; mkdir /A/dir");
    // The leaf that the first record changes and the second frees is among the
    // few blocks that others find free: the replay of the first writes over
    // what they have put there.
    let freed = named(
        "setfacl -b /foo; removexattr /foo small; removexattr /foo large; \
         create /A/new [lane 1]; fallocate /A/bar [lane 1]",
    );
    let (usual, full) = (bed(512), Bed::full(512, 256 << 10, 0).unwrap());
    for (name, rules) in broken {
        let (bed, all) = match (rules.hand_over, rules.delayed_release) {
            (false, _) => (&usual, &later),
            (_, false) => (&full, &freed),
            _ => (&usual, &two),
        };
        let explore = |rules| {
            let settings = Settings {
                rules,
                ..settings()
            };
            let job = Job {
                bed,
                ops: &ops,
                workloads: all,
            };
            run(&settings, &Arc::new(Known::default()), &job, &|_| ())
        };
        match explore(rules) {
            Ok(summary) => panic!("without {name} every image is explained: {summary}"),
            Err(e) => println!("without {name}:\n{e}\n"),
        }
        // It is the rule, and not the workload.
        if all.len() == 1
            && let Err(e) = explore(on)
        {
            panic!("with all rules:\n{e}");
        }
    }
}

/// Each operation with so few blocks left that it is refused at the first
/// allocation, the second, and so on; and then a crash in it.
#[test]
fn every_image_of_an_operation_in_a_full_region_is_explained() {
    let ops = ops();
    let all = sequences(&ops, 1, false, &|op| !op.map);
    let mut sum = Summary::default();
    for free in 0..6 {
        let bed = Bed::full(512, 256 << 10, free).unwrap();
        let name = format!("{free} blocks left");
        sum += explore(&name, &settings(), &bed, &ops, &all);
    }
    println!("{}", sum.row("one operation in a full region"));
    assert_eq!(sum.workloads, 6 * all.len() as u64);
    assert!(sum.refused > 30, "{sum}");
}

/// With no inode left, and with one: whatever makes an inode is refused, or
/// takes the last one, be it one that was just freed.
#[test]
fn every_image_of_an_operation_without_inodes_is_explained() {
    let ops = ops();
    let one = sequences(&ops, 1, false, &|op| !op.map);
    let names = [
        "create",
        "mk",
        "symlink",
        "rename whiteout",
        "unlink",
        "rmdir",
    ];
    let about_inodes = |op: &Op| names.iter().any(|n| op.name.starts_with(n));
    let two = sequences(&ops, 2, true, &about_inodes);
    let mut sum = Summary::default();
    for left in 0..2 {
        let bed = Bed::few_inodes(512, 256 << 10, left).unwrap();
        let all = if left == 0 { &one } else { &two };
        sum += explore(&format!("{left} inodes left"), &settings(), &bed, &ops, all);
    }
    println!("{}", sum.row("few inodes left"));
    assert!(sum.refused > 50 && sum.workloads > 250, "{sum}");
}

/// Two operations at the same time, on two threads and two lanes.
#[test]
fn every_image_of_two_operations_in_flight_is_explained() {
    let watchdog = Watchdog::new("two operations in flight", Duration::from_secs(120));
    let (ops, known) = (ops(), Arc::new(Known::default()));
    let touch = |_: &Summary| watchdog.touch();
    match concurrent::run(&settings(), &known, (&bed(512), &ops), 1, &touch) {
        Ok(sum) => {
            println!("in flight: {sum}\n{}", sum.row("two in flight"));
            assert!(sum.workloads > 800, "{sum}");
        }
        Err(e) => panic!("an image that no order explains\n{e}"),
    }
}
