//! The crash explorer over operations that change bytes of files, on a mount with
//! `data=atomic`: after any crash, each is there as a whole or not at all.

use std::sync::Arc;
use std::time::Duration;

use pramfs_medium::journal::Rules;
use pramfs_tests::crash::atomic::{atomic_ops, changes_bytes, commit_in_parts};
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
    pairs: 500,
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

fn len_for(block_size: u32) -> usize {
    if block_size > 1024 {
        512 << 10
    } else {
        256 << 10
    }
}

fn fixture(block_size: u32) -> Fixture {
    let fixture = Fixture::new(block_size, len_for(block_size)).unwrap();
    fixture.atomic()
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
    match run(settings, &Arc::new(Known::default()), &job, &|_| {
        watchdog.touch()
    }) {
        Ok(summary) => {
            println!("{name}: {summary}\n{}", summary.row(name));
            summary
        }
        Err(e) => panic!("an image that nothing explains\n{e}"),
    }
}

#[test]
fn crash_images_of_one_atomic_operation_are_valid() {
    let ops = atomic_ops();
    for block_size in [512, 1024, 4096] {
        let all = sequences(&ops, 1, false, &|op| {
            changes_bytes(op) || op.map && block_size == 4096
        });
        let name = format!("one atomic operation, blocks of {block_size}");
        let summary = explore(&name, &settings(), &fixture(block_size), &ops, &all);
        assert!(summary.workloads > 20 && summary.images > 2000, "{summary}");
    }
}

#[test]
fn crash_images_of_two_atomic_operations_are_valid() {
    let ops = atomic_ops();
    let all = sample(sequences(&ops, 2, true, &changes_bytes), 13);
    let settings = Settings {
        recovery: None,
        ..settings()
    };
    let name = "two atomic operations";
    let summary = explore(name, &settings, &fixture(512), &ops, &all);
    assert!(summary.workloads > 50, "{summary}");
    assert!(summary.images > 8_000, "{summary}");
}

/// Calls that are atomic on any mount, before and after writes in place.
#[test]
fn crash_images_of_atomic_calls_on_mount_in_place_are_valid() {
    let ops = atomic_ops();
    let is_call = |op: &Op| op.name.starts_with("write atomic") || op.name.starts_with("commit");
    for block_size in [512, 4096] {
        let in_place = Fixture::new(block_size, len_for(block_size)).unwrap();
        let picked = |op: &Op| match block_size {
            512 => changes_bytes(op),
            _ => is_call(op) || op.map || op.name.starts_with("write /foo"),
        };
        let mut all = sequences(&ops, 1, false, &|op| picked(op) && is_call(op));
        let mut two = sequences(&ops, 2, true, &picked);
        two.retain(|w| w.steps.iter().any(|(op, _)| is_call(&ops[*op])));
        // A commit after each kind of write in place, on both lanes.
        let ends_in_commit = |w: &Workload| ops[w.steps[1].0].name.starts_with("commit");
        let (commits, others) = two.into_iter().partition(ends_in_commit);
        all.extend(sample(commits, 3));
        all.extend(sample(others, 15));
        let name = format!("atomic calls, blocks of {block_size}");
        let settings = Settings {
            recovery: None,
            ..settings()
        };
        let summary = explore(&name, &settings, &in_place, &ops, &all);
        assert!(summary.workloads > 5 && summary.images > 1000, "{summary}");
    }
}

/// A file in pieces needs several copies in one record.
#[test]
fn crash_images_of_atomic_write_to_scattered_file_are_valid() {
    let ops = atomic_ops();
    let names = [
        "make /A/one, scattered; write /A/one 1300 at 100 (scattered)",
        "make /A/one, scattered; write /A/one 1300 at 100 (scattered); \
         write /A/one 1300 at 100 (scattered) [lane 1]",
    ];
    let all = names.map(|name| Workload::parse(name, &ops).unwrap());
    let name = "atomic writes to a scattered file";
    let summary = explore(name, &settings(), &fixture(512), &ops, &all);
    assert_eq!(summary.workloads, 2, "{summary}");
}

/// A view stores to the bytes that an atomic write has just copied, and the other way round.
#[test]
fn crash_images_of_view_beside_atomic_write_are_valid() {
    let ops = atomic_ops();
    let mut all = sequences(&ops, 2, true, &|op| changes_bytes(op) || op.map);
    all.retain(|w| {
        let maps = w.steps.iter().filter(|(op, _)| ops[*op].map).count();
        maps == 1
    });
    // A commit takes a view and copies: such a pair has many images.
    let commit = |(op, _): &(usize, u32)| ops[*op].name.starts_with("commit");
    let (commits, mut all): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|w| w.steps.iter().any(commit));
    all.extend(sample(commits, 9));
    let summary = explore("a view", &settings(), &fixture(4096), &ops, &all);
    assert!(summary.workloads > 50, "{summary}");
}

/// So few blocks are left that the staging fails, or the rest of the write does.
#[test]
fn crash_images_of_atomic_operations_on_full_region_are_valid() {
    let ops = atomic_ops();
    let all = sequences(&ops, 1, false, &changes_bytes);
    let mut sum = Summary::default();
    for free in 0..6 {
        let fixture = Fixture::full(512, 256 << 10, free).unwrap().atomic();
        let name = format!("atomic, {free} blocks left");
        sum += explore(&name, &settings(), &fixture, &ops, &all);
    }
    assert!(sum.refused > 20, "{sum}");
}

/// Processes hold a lease of each file, store to it, and the mount writes.
#[test]
fn crash_images_of_atomic_operations_beside_leases_are_valid() {
    let ops = atomic_ops();
    let fixture = Fixture::leased(512, 256 << 10, None).unwrap().atomic();
    let settings = Settings {
        limits: Limits {
            lines: 4,
            pairs: 60,
            random: 8,
            torn: Torn::Half,
        },
        recovery: None,
        ..settings()
    };
    let one = sequences(&ops, 1, false, &changes_bytes);
    let mut two = sequences(&ops, 2, true, &|op| {
        changes_bytes(op) || op.name.starts_with("store")
    });
    two.retain(|w| {
        let stores = |(op, _): &&(usize, u32)| ops[*op].name.starts_with("store");
        w.steps.iter().filter(stores).count() == 1
    });
    let sum = explore(
        "atomic, leases",
        &settings,
        &fixture,
        &ops,
        &[one, two].concat(),
    );
    assert!(sum.workloads > 100, "{sum}");
}

/// Explores a workload with and without a rule: the explorer finds what the rule prevents.
fn finds(fixture: &Fixture, name: &str, off: fn(&mut Rules)) {
    let ops = atomic_ops();
    let workloads = &[Workload::parse(name, &ops).unwrap()];
    let explore = |break_it: bool| {
        let mut settings = settings();
        if break_it {
            off(&mut settings.rules);
        }
        let job = Job {
            fixture,
            ops: &ops,
            workloads,
        };
        run(&settings, &Arc::new(Known::default()), &job, &|_| ())
    };
    match explore(true) {
        Ok(summary) => panic!("{name}: without the rule every image is explained: {summary}"),
        Err(e) => println!("{name}:\n{e}\n"),
    }
    if let Err(e) = explore(false) {
        panic!("with all rules:\n{e}");
    }
}

#[test]
fn explorer_detects_staged_bytes_that_are_not_fenced() {
    let off = |rules: &mut Rules| rules.data_fence = false;
    finds(&fixture(512), "write /foo 300 at 411 (unaligned)", off);
}

#[test]
fn explorer_detects_staging_blocks_that_are_reused_too_early() {
    let off = |rules: &mut Rules| rules.delayed_release = false;
    let name = "write /foo 300 at 411 (unaligned); write /A/bar 600 (empty) [lane 1]";
    finds(&fixture(512), name, off);
}

#[test]
fn explorer_detects_copies_that_are_not_retired() {
    let off = |rules: &mut Rules| rules.copies_retired = false;
    let in_place = Fixture::new(512, 256 << 10).unwrap();
    // The last record overwrites the one that copies: from then on, what was stored in place
    // shows again.
    let name = "chattr +j /foo; write /foo 300 at 411 (unaligned); chattr -j /foo; \
                write /foo 8 at 512; create /A/new";
    finds(&in_place, name, off);
    let leased = Fixture::leased(512, 256 << 10, None).unwrap().atomic();
    let name = "write /foo 700 at 1000 (spanning); store /foo 700 at 900 (spanning); \
                chmod /A; create /A/new";
    finds(&leased, name, off);
}

/// On a mount that writes in place, the promise of `write_atomic` needs the same rules.
#[test]
fn explorer_detects_torn_write_atomic() {
    let in_place = Fixture::new(512, 256 << 10).unwrap();
    let off = |rules: &mut Rules| rules.data_fence = false;
    finds(&in_place, "write atomic /foo 900 at 211", off);
    let off = |rules: &mut Rules| rules.copies_retired = false;
    let name = "write atomic /foo 900 at 211; write /foo 8 at 512; create /A/new";
    finds(&in_place, name, off);
}

#[test]
fn explorer_detects_commit_whose_bytes_are_not_fenced() {
    let in_place = Fixture::new(4096, len_for(4096)).unwrap();
    let off = |rules: &mut Rules| rules.data_fence = false;
    finds(&in_place, "commit /foo, three ranges", off);
}

/// Explores one workload, in which an image shows a part of what is promised as a whole.
fn finds_part(fixture: &Fixture, ops: &[Op], name: &str) {
    let workloads = &[Workload::parse(name, ops).unwrap()];
    let job = Job {
        fixture,
        ops,
        workloads,
    };
    let torn = run(&settings(), &Arc::new(Known::default()), &job, &|_| ());
    let torn = torn.expect_err("a part is there").to_string();
    println!("{torn}");
    for state in ["before", "after"] {
        let differs = format!("--- against the state {state}");
        assert!(
            torn.contains(&differs),
            "it does not differ from the state {state}"
        );
    }
}

/// Each range is whole, but not all of them are there.
#[test]
fn explorer_detects_commit_of_one_range_after_the_other() {
    let ops = [commit_in_parts()];
    let fixture = Fixture::new(4096, len_for(4096)).unwrap();
    finds_part(&fixture, &ops, ops[0].name);
}

/// In place, the same crash leaves a part of the write.
#[test]
fn explorer_detects_torn_write_in_place() {
    let in_place = Fixture::new(512, 256 << 10).unwrap();
    // The promise of an atomic write, and a mount that does not keep it.
    let mut fixture = in_place.clone().atomic();
    fixture.keeps_data = false;
    finds_part(&fixture, &atomic_ops(), "write /foo 300 at 411 (unaligned)");
}
