//! The command that a counterexample of the crash explorer prints finds the same image again.

use std::process::Command;
use std::sync::Arc;

use pramfs_medium::journal::Rules;
use pramfs_tests::crash::atomic::{atomic_ops, range_ops};
use pramfs_tests::crash::explorer::{Job, Settings, run};
use pramfs_tests::crash::fixture::Fixture;
use pramfs_tests::crash::images::Limits;
use pramfs_tests::crash::known::Known;
use pramfs_tests::crash::machine::Torn;
use pramfs_tests::crash::operations::Op;
use pramfs_tests::crash::workload::Workload;

fn settings(rules: Rules) -> Settings {
    let limits = |lines, torn| Limits {
        lines,
        pairs: 20,
        random: 3,
        torn,
    };
    Settings {
        limits: limits(4, Torn::Half),
        recovery: Some(limits(2, Torn::Edges)),
        every_recovery: None,
        rules,
        seed: 5,
        threads: 1,
    }
}

/// Runs a workload that has an image that nothing explains, and then the command of the report:
/// its report is the same.
fn repeats(fixture: &Fixture, settings: &Settings, ops: &[Op], name: &str) {
    let job = Job {
        fixture,
        ops,
        workloads: &[Workload::parse(name, ops).unwrap()],
    };
    let found = run(settings, &Arc::new(Known::default()), &job, &|_| ());
    let found = found.expect_err(name).to_string();
    let (_, options) = found.split_once("--bin crash-explorer -- ").unwrap();
    let again = Command::new("sh")
        .arg("-c")
        .arg(format!("exec \"$0\" {options}"))
        .arg(env!("CARGO_BIN_EXE_crash-explorer"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&again.stdout);
    assert!(told.contains(&found), "{found}\nagain: {again:?}");
    assert_eq!(again.status.code(), Some(1));
}

#[test]
fn counterexample_with_sums_on_full_region_is_found_again_by_its_command() {
    let rules = Rules {
        marks: false,
        ..Rules::default()
    };
    let fixture = Fixture::summed_and_full(512, 320 << 10, 3).unwrap();
    repeats(&fixture, &settings(rules), &atomic_ops(), "lease /foo");
    let fixture = Fixture::summed(4096, 1 << 20).unwrap();
    let name = "make long; map block 1";
    repeats(&fixture, &settings(rules), &range_ops(), name);
}

#[test]
fn counterexample_beside_leases_is_found_again_by_its_command() {
    let rules = Rules {
        leased_blocks: false,
        ..Rules::default()
    };
    let fixture = Fixture::summed_and_leased(512, 320 << 10, Some(1)).unwrap();
    let settings = Settings {
        recovery: None,
        ..settings(rules)
    };
    repeats(&fixture, &settings, &atomic_ops(), "punch /foo");
}

#[test]
fn counterexample_of_torn_write_is_found_again_by_its_command() {
    let mut fixture = Fixture::new(512, 256 << 10).unwrap().atomic();
    fixture.keeps_data = false;
    let name = "write /foo 300 at 411 (unaligned)";
    let settings = settings(Rules::default());
    repeats(&fixture, &settings, &atomic_ops(), name);
}
