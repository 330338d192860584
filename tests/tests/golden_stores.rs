//! Compares the stores, flushes and fences of some thousand operations, event by event,
//! with the record of an earlier engine.
//!
//! `golden/stores-*.tsv` has a line for each operation: number, kind, counts of stores,
//! flushes and fences, and a digest of all of them with their places and bytes. A change
//! of the engine that leaves the medium alone does not change these files. After any
//! other change, `PRAMFS_BLESS=1` rewrites them, and the commit message names the
//! operations that differ and the reason. A change of the generator of operations
//! (`model::ops`) is blessed in a separate commit.

use std::fmt::Write as _;
use std::path::PathBuf;

use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::pmem::{Event, EventKind};
use pramfs_tests::model::{Op, Options, Runner, ops};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Operations of a list, at most.
const OPS: usize = 1000;
/// Number of lists, each on its own file system.
const LISTS: usize = 6;

fn fnv(digest: &mut u64, bytes: &[u8]) {
    for b in bytes {
        *digest = (*digest ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    }
}

/// The columns of one operation.
fn summary(events: &[Event]) -> String {
    let count = |kinds: &[EventKind]| events.iter().filter(|e| kinds.contains(&e.kind)).count();
    let mut digest = 0xcbf2_9ce4_8422_2325;
    for e in events {
        fnv(&mut digest, &[e.kind as u8]);
        fnv(&mut digest, &e.offset.to_le_bytes());
        fnv(&mut digest, &e.bytes);
    }
    format!(
        "{}\t{}\t{}\t{digest:016x}",
        count(&[EventKind::Store, EventKind::NtStore]),
        count(&[EventKind::Flush]),
        count(&[EventKind::Fence, EventKind::SyncAll]),
    )
}

fn kind(op: &Op) -> String {
    let text = format!("{op:?}");
    let end = text.find(|c: char| !c.is_alphanumeric());
    text[..end.unwrap_or(text.len())].to_owned()
}

/// Lists of operations that are the same in every run.
fn lists() -> Vec<Vec<Op>> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[0x5a; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = ops(OPS);
    (0..LISTS)
        .map(|_| strategy.new_tree(&mut runner).expect("a list").current())
        .collect()
}

fn record(options: Options) -> String {
    let mut out = String::from("list\tnumber\toperation\tstores\tflushes\tfences\tdigest\n");
    for (n, list) in lists().iter().enumerate() {
        set_thread_lane(0);
        let mut runner = Runner::new(options).unwrap();
        runner.sim().recording(true);
        for (i, op) in list.iter().enumerate() {
            set_thread_lane(i as u32 / 8);
            runner.step(op).unwrap();
            let events = runner.sim().take_record();
            writeln!(out, "{n}\t{i}\t{}\t{}", kind(op), summary(&events)).unwrap();
        }
    }
    out
}

fn compare(name: &str, options: Options) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let path = path.join(format!("stores-{name}.tsv"));
    let found = record(options);
    if std::env::var_os("PRAMFS_BLESS").is_some() {
        std::fs::write(&path, &found).expect("the record can be written");
    }
    let expected = std::fs::read_to_string(&path).expect("the record is in the repository");
    let differ: Vec<_> = expected
        .lines()
        .zip(found.lines())
        .filter(|(a, b)| a != b)
        .map(|(a, b)| format!("was {a}\nis  {b}"))
        .collect();
    assert!(
        differ.is_empty() && expected.lines().count() == found.lines().count(),
        "{} of {} operations store something else than they did; the first:\n{}\n\
         PRAMFS_BLESS=1 writes {} anew",
        differ.len(),
        found.lines().count() - 1,
        differ[..differ.len().min(5)].join("\n"),
        path.display(),
    );
}

#[test]
fn stores_on_small_blocks_match_golden_record() {
    let options = Options {
        region: 1 << 20,
        block_size: 512,
        compare_every: 50,
        huge: false,
    };
    compare("512", options);
}

#[test]
fn stores_on_default_blocks_match_golden_record() {
    let options = Options {
        region: 16 << 20,
        block_size: 4096,
        compare_every: 50,
        huge: true,
    };
    compare("4096", options);
}
