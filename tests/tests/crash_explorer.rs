//! The crash explorer over all workloads of one operation, and a part of those of two: every
//! possible image after a power failure must be explained. `PRAMFS_EXPLORE=all` explores all of
//! two operations, and more images of one.
//!
//! `make crash` goes further: more lines, three operations.

use std::sync::Arc;
use std::time::Duration;

use pramfs_medium::journal::Rules;
use pramfs_tests::crash::concurrent;
use pramfs_tests::crash::explorer::{Job, Settings, run};
use pramfs_tests::crash::fixture::Fixture;
use pramfs_tests::crash::images::Limits;
use pramfs_tests::crash::known::Known;
use pramfs_tests::crash::leased::{grants_or_ends, lease_ops, matters_beside_leases};
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::crash::operations::{Op, ops};
use pramfs_tests::crash::report::Summary;
use pramfs_tests::crash::sample::{asked_for_all, sample};
use pramfs_tests::crash::workload::{Workload, sequences};
use pramfs_tests::watchdog::Watchdog;

const LIMITS: Limits = Limits {
    lines: 6,
    pairs: 2000,
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

/// The smallest region, in pages, that has room for the tree.
fn fixture(block_size: u32) -> Fixture {
    let len = if block_size > 1024 { 512 } else { 256 } << 10;
    Fixture::new(block_size, len).unwrap()
}

/// The same with leases.
fn leased_fixture(block_size: u32) -> Fixture {
    let len = if block_size > 1024 { 512 } else { 256 } << 10;
    Fixture::leased(block_size, len, None).unwrap()
}

fn explore(
    name: &str,
    settings: &Settings,
    fixture: &Fixture,
    ops: &[Op],
    workloads: &[Workload],
) -> Summary {
    let watchdog = Watchdog::new(name, Duration::from_secs(120));
    let known = Arc::new(Known::default());
    let job = Job {
        fixture,
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
fn crash_images_of_one_operation_are_valid() {
    let (ops, mut settings) = (ops(), settings());
    for block_size in [512, 1024, 4096] {
        // Recovers each distinct image, not only each kind.
        settings.every_recovery = (block_size == 1024 || asked_for_all()).then_some(AGAIN);
        if block_size == 512 {
            // Every subset of the words of a line that non-temporal stores fill.
            settings.limits.torn = Torn::Words;
            settings.recovery = Some(LIMITS);
        } else {
            (settings.limits, settings.recovery) = (LIMITS, Some(AGAIN));
        }
        let all = sequences(&ops, 1, false, &|op| !op.map || block_size == 4096);
        let name = format!("one operation, blocks of {block_size}");
        let summary = explore(&name, &settings, &fixture(block_size), &ops, &all);
        assert_eq!(summary.workloads, all.len() as u64);
        assert!(summary.images > 10_000, "{summary}");
        assert!(summary.recoveries > 100, "{summary}");
    }
}

#[test]
fn crash_images_of_two_operations_are_valid() {
    let ops = ops();
    let all = sample(sequences(&ops, 2, true, &|op| !op.map && !op.wide), 25);
    let summary = explore("two operations", &settings(), &fixture(512), &ops, &all);
    assert!(summary.workloads > 250, "{summary}");
    assert!(summary.images > 150_000, "{summary}");
}

#[test]
fn crash_images_of_view_and_operation_are_valid() {
    let ops = ops();
    let mut all = sequences(&ops, 2, true, &|op| !op.lossy && !op.wide);
    all.retain(|w| w.steps.iter().any(|(op, _)| ops[*op].map));
    let summary = explore(
        "a view and another",
        &settings(),
        &fixture(4096),
        &ops,
        &all,
    );
    assert!(summary.workloads > 200, "{summary}");
}

/// The explorer detects mistakes: with each rule of the journal switched off, it finds an
/// image that it rejects.
#[test]
fn explorer_detects_each_broken_journal_rule() {
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
    // Lane 1's change of /foo is replayed after lane 0 has changed it again.
    let later = named("chmod /foo [lane 1]; chown /foo; create /A/new; mkdir /A/dir");
    // The first record changes a leaf that the second frees. It is one of the few free
    // blocks, so it is reused, and the replay of the first record overwrites the new
    // contents.
    let freed = named(
        "setfacl -b /foo; removexattr /foo small; removexattr /foo large; \
         create /A/new [lane 1]; fallocate /A/bar [lane 1]",
    );
    let (usual, full) = (fixture(512), Fixture::full(512, 256 << 10, 0).unwrap());
    for (name, rules) in broken {
        let (fixture, all) = match (rules.hand_over, rules.delayed_release) {
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
                fixture,
                ops: &ops,
                workloads: all,
            };
            run(&settings, &Arc::new(Known::default()), &job, &|_| ())
        };
        match explore(rules) {
            Ok(summary) => panic!("without {name} every image is explained: {summary}"),
            Err(e) => println!("without {name}:\n{e}\n"),
        }
        // The rule is the cause, not the workload.
        if all.len() == 1
            && let Err(e) = explore(on)
        {
            panic!("with all rules:\n{e}");
        }
    }
}

/// Each operation with so few blocks left that its first allocation fails, then its
/// second, and so on; with a crash in it.
#[test]
fn crash_images_on_full_region_are_valid() {
    let ops = ops();
    let all = sequences(&ops, 1, false, &|op| !op.map);
    let mut sum = Summary::default();
    for free in 0..6 {
        let fixture = Fixture::full(512, 256 << 10, free).unwrap();
        let name = format!("{free} blocks left");
        sum += explore(&name, &settings(), &fixture, &ops, &all);
    }
    println!("{}", sum.row("one operation in a full region"));
    assert_eq!(sum.workloads, 6 * all.len() as u64);
    assert!(sum.refused > 30, "{sum}");
}

/// With no free inode, and with one: each operation that creates an inode fails, or takes
/// the last one, even if it was freed just before.
#[test]
fn crash_images_without_free_inodes_are_valid() {
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
        let fixture = Fixture::few_inodes(512, 256 << 10, left).unwrap();
        let all = if left == 0 { &one } else { &two };
        sum += explore(
            &format!("{left} inodes left"),
            &settings(),
            &fixture,
            &ops,
            all,
        );
    }
    println!("{}", sum.row("few inodes left"));
    assert!(sum.refused > 50 && sum.workloads > 250, "{sum}");
}

/// Two concurrent operations, on two threads and two lanes.
#[test]
fn crash_images_of_concurrent_operations_are_valid() {
    let watchdog = Watchdog::new("two operations in flight", Duration::from_secs(120));
    let (ops, known) = (ops(), Arc::new(Known::default()));
    let touch = |_: &Summary| watchdog.touch();
    match concurrent::run(&settings(), &known, (&fixture(512), &ops), 1, &touch) {
        Ok(sum) => {
            println!("in flight: {sum}\n{}", sum.row("two in flight"));
            assert!(sum.workloads > 800, "{sum}");
        }
        Err(e) => panic!("an image that no order explains\n{e}"),
    }
}

/// Limits of the runs beside leases, which recover each image twice: while processes hold the
/// leases, and without the processes.
const TWICE: Limits = Limits {
    lines: 4,
    pairs: 60,
    random: 8,
    torn: Torn::Half,
};

fn beside_leases(limits: Limits) -> Settings {
    Settings {
        limits,
        recovery: Some(Limits {
            lines: 2,
            pairs: 4,
            random: 2,
            torn: Torn::Half,
        }),
        ..settings()
    }
}

/// Processes hold a lease of each file.
#[test]
fn crash_images_of_one_operation_beside_leases_are_valid() {
    let ops = lease_ops();
    let mut sum = Summary::default();
    let mut explore = |block_size, limits, pick: &dyn Fn(&Op) -> bool| {
        let all = sequences(&ops, 1, false, pick);
        let name = format!("one operation beside leases, blocks of {block_size}");
        let settings = beside_leases(limits);
        sum += explore(&name, &settings, &leased_fixture(block_size), &ops, &all);
    };
    let limits = if asked_for_all() { LIMITS } else { TWICE };
    explore(512, limits, &|op| !op.map && !op.wide);
    explore(512, AGAIN, &|op| op.wide);
    let limits = if asked_for_all() { TWICE } else { AGAIN };
    explore(4096, limits, &|op| op.map || matters_beside_leases(op));
    println!("{}", sum.row("one operation beside leases"));
    assert!(sum.workloads > 90 && sum.images > 40_000, "{sum}");
    assert!(sum.recoveries > 1000, "{sum}");
}

#[test]
fn crash_images_of_two_operations_beside_leases_are_valid() {
    let ops = lease_ops();
    let all = sample(sequences(&ops, 2, true, &matters_beside_leases), 3);
    let settings = Settings {
        recovery: None,
        ..beside_leases(TWICE)
    };
    let name = "two operations beside leases";
    let sum = explore(name, &settings, &leased_fixture(512), &ops, &all);
    assert!(sum.workloads > 400 && sum.images > 50_000, "{sum}");
}

/// From a tree without leases: the feature, the table and its growth, the slot, and the end.
#[test]
fn crash_images_of_grant_and_end_of_leases_are_valid() {
    let ops = lease_ops();
    let (settings, fixture) = (beside_leases(TWICE), fixture(512));
    let all = [1, 2, 3].map(|length| sequences(&ops, length, true, &grants_or_ends));
    let name = "grant and end of leases";
    let sum = explore(name, &settings, &fixture, &ops, &all.concat());
    assert!(sum.workloads > 500 && sum.images > 50_000, "{sum}");
    assert!(sum.recoveries > 1000, "{sum}");
}

/// The first lease of the slot was granted in another lane, or has ended there. Its record must
/// not be replayed over the new lease.
#[test]
fn crash_images_of_slot_used_again_are_valid() {
    let ops = lease_ops();
    let names = [
        "lease /foo; end lease /foo [lane 1]; chmod /A [lane 1]; setfacl -d /A [lane 1]; \
         lease /A/foo [lane 1]; truncate /A/foo 0 [lane 1]; create /A/new [lane 1]; \
         mkdir /A/dir [lane 1]",
        "lease /foo; end lease /foo; lease /A/foo [lane 1]; truncate /A/foo 0 [lane 1]; \
         create /A/new [lane 1]; mkdir /A/dir [lane 1]",
    ];
    let all = names.map(|name| Workload::parse(name, &ops).unwrap());
    let settings = beside_leases(LIMITS);
    let sum = explore("a slot used again", &settings, &fixture(512), &ops, &all);
    assert_eq!(sum.workloads, 2, "{sum}");
}

/// Without rule 6, a truncation and a punch take blocks away that processes map.
#[test]
fn explorer_detects_missing_rule_of_leased_blocks() {
    let (ops, fixture) = (lease_ops(), leased_fixture(512));
    for name in ["truncate /A/foo 0", "truncate and chmod /foo", "punch /foo"] {
        let workloads = &[Workload::parse(name, &ops).unwrap()];
        let explore = |leased_blocks| {
            let mut settings = beside_leases(TWICE);
            settings.rules.leased_blocks = leased_blocks;
            let job = Job {
                fixture: &fixture,
                ops: &ops,
                workloads,
            };
            run(&settings, &Arc::new(Known::default()), &job, &|_| ())
        };
        let found = explore(false).expect_err(name).to_string();
        println!("{found}\n");
        assert!(found.contains("before fence"), "{found}");
        assert!(found.contains("a process maps block"), "{found}");
        if let Err(e) = explore(true) {
            panic!("with the rule:\n{e}");
        }
    }
}

/// A full region: truncations, removals and the end of leases need no space. What needs some
/// is refused, and leaves nothing behind.
#[test]
fn crash_images_beside_leases_on_full_region_are_valid() {
    let ops = lease_ops();
    let all = sequences(&ops, 1, false, &|op| !op.map && !op.wide);
    let mut sum = Summary::default();
    for free in 0..2 {
        let fixture = Fixture::leased(512, 256 << 10, Some(free)).unwrap();
        let name = format!("beside leases, {free} blocks left");
        sum += explore(&name, &beside_leases(TWICE), &fixture, &ops, &all);
    }
    println!("{}", sum.row("beside leases in a full region"));
    assert!(sum.refused > 20 && sum.images > 10_000, "{sum}");
}
