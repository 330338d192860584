//! The engine against the reference model: the same operations on both must give the same
//! results and the same tree.
//!
//! Each test runs for some seconds; `PRAMFS_TEST_CASES` sets a number of cases instead.

use std::cell::Cell;
use std::time::{Duration, Instant};

use pramfs_tests::model::{Op, Options, Pick, Runner, Who, ops_and_growth};
use pramfs_tests::region::show_messages;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestError, TestRunner};

/// Time of one test if no number of cases is given.
const USUAL: Duration = Duration::from_secs(5);

fn cases_asked_for() -> Option<u32> {
    std::env::var("PRAMFS_TEST_CASES").ok()?.parse().ok()
}

fn run_one(options: Options, list: &[Op]) -> Result<[usize; 5], TestCaseError> {
    let mut runner = Runner::new(options).map_err(TestCaseError::fail)?;
    for (i, op) in list.iter().enumerate() {
        runner
            .step(op)
            .map_err(|e| TestCaseError::fail(format!("operation {i}, {op:?}: {e}")))?;
    }
    runner.finish().map_err(TestCaseError::fail)?;
    let Runner {
        calls,
        full,
        gathered,
        vacated,
        grown,
        ..
    } = runner;
    Ok([calls, full, gathered, vacated, grown])
}

fn run(options: Options, len: usize) {
    show_messages();
    let (asked, start) = (cases_asked_for(), Instant::now());
    let config = Config {
        cases: asked.unwrap_or(10_000),
        max_shrink_iters: 1000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    let (counts, failed) = (Cell::new([0; 5]), Cell::new(false));
    let result = runner.run(&ops_and_growth(len), |list| {
        // After a failure, the case is minimized without a time limit.
        if asked.is_none() && !failed.get() && start.elapsed() > USUAL {
            return Ok(());
        }
        let more = run_one(options, &list).inspect_err(|_| failed.set(true))?;
        let now = counts.get();
        counts.set(std::array::from_fn(|i| now[i] + more[i]));
        Ok(())
    });
    let [calls, full, gathered, vacated, grown] = counts.get();
    println!(
        "{calls} calls, {full} of them met a full region; {gathered} parts gathered, {vacated} vacated, grown {grown} times"
    );
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, list)) => {
            let list: Vec<_> = list.iter().map(|op| format!("    {op:?}\n")).collect();
            panic!("{why}\nminimal list of operations:\n{}", list.concat());
        }
        Err(e) => panic!("{e}"),
    }
}

const SMALL: Options = Options {
    region: 256 << 10,
    block_size: 512,
    compare_every: 20,
    huge: false,
};
const LARGE: Options = Options {
    region: 16 << 20,
    block_size: 4096,
    compare_every: 25,
    huge: true,
};

#[test]
fn model_matches_smallest_region_with_512_byte_blocks() {
    run(SMALL, 120);
}

#[test]
fn model_matches_smallest_region_with_1024_byte_blocks() {
    run(
        Options {
            block_size: 1024,
            ..SMALL
        },
        120,
    );
}

#[test]
fn model_matches_smallest_region_with_2048_byte_blocks() {
    run(
        Options {
            block_size: 2048,
            ..SMALL
        },
        120,
    );
}

#[test]
fn model_matches_smallest_region_with_4096_byte_blocks() {
    run(
        Options {
            block_size: 4096,
            ..SMALL
        },
        120,
    );
}

#[test]
fn model_matches_large_region_with_4096_byte_blocks() {
    run(LARGE, 150);
}

#[test]
fn model_matches_large_region_with_512_byte_blocks() {
    run(
        Options {
            block_size: 512,
            huge: false,
            ..LARGE
        },
        150,
    );
}

#[test]
fn model_matches_large_region_with_1024_byte_blocks() {
    run(
        Options {
            block_size: 1024,
            ..LARGE
        },
        150,
    );
}

/// What a random list may or may not come to.
#[test]
fn model_follows_gather_vacate_and_grow() {
    let file = Pick { n: 0, any: false };
    let other = Pick { n: 1, any: false };
    let create = |name| Op::Create(Who(0), file, name, 0o644, false);
    let mut list = vec![create(0), create(1)];
    for seed in 0..40 {
        // In turn, so that the blocks of one file lie between those of the other.
        list.extend([file, other].map(|p| Op::Append(p, 0xa001, seed)));
    }
    // A leaf that both have blocks in, and one that none begins at.
    list.extend([Op::Vacate(file, 1, 0), Op::Vacate(file, 0, 0)]);
    list.extend([Op::Gather(file, 0), Op::Grow(3), Op::Crash, Op::Grow(8)]);
    let counts = run_one(SMALL, &list).unwrap();
    assert!(
        counts[2] > 0 && counts[3] > 0 && counts[4] == 1,
        "{counts:?}"
    );
}
