//! The operations of the reference model by system calls, on a real mount and on a
//! directory of tmpfs: both must give the same answers and the same trees, also after an
//! unmount or a kill.
//!
//! Each test runs for some seconds; `PRAMFS_TEST_CASES` sets a number of cases instead.
//! All cases of a test share a mount, each in its own directory.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use pramfs::pmem::RegionOptions;
use pramfs_fsck::{self as fsck, CheckOptions};
use pramfs_tests::model::{Op, Pair, ops};
use pramfs_tests::mounted::{Mounted, available, program};
use pramfs_tests::watchdog::Watchdog;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestError, TestRunner};
use rustix::fs::XattrFlags;

/// Time of one test if no number of cases is given.
const USUAL: Duration = Duration::from_secs(8);
/// Operations of a case, at most.
const LEN: usize = 100;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A directory of tmpfs with user.* attributes (Linux 6.6), or `None` after reporting the
/// reason.
fn tmpfs(test: &str) -> Option<tempfile::TempDir> {
    let missing = |what: &str| {
        pramfs_tests::skip::skipped(format_args!("{what}: {test} has not been run"));
        None
    };
    let dir = tempfile::Builder::new()
        .prefix("pramfs-test-")
        .tempdir_in("/dev/shm");
    let Ok(dir) = dir else {
        return missing("no /dev/shm");
    };
    match rustix::fs::statfs(dir.path()) {
        Ok(s) if s.f_type as u64 == TMPFS_MAGIC => {}
        _ => return missing("/dev/shm is not tmpfs"),
    }
    match rustix::fs::setxattr(dir.path(), "user.test", b"x", XattrFlags::empty()) {
        Ok(()) => Some(dir),
        Err(_) => missing("no user.* attributes on tmpfs, which come with Linux 6.6"),
    }
}

fn run_one(
    mount: &Mounted,
    options: &str,
    tmpfs: &Path,
    case: usize,
    list: &[Op],
) -> Result<usize, TestCaseError> {
    let (ours, theirs) = (mount.at(format!("{case}")), tmpfs.join(format!("{case}")));
    let result = (|| -> Result<usize, String> {
        let mut pair = Pair::new(mount, options, &ours, &theirs)?;
        for (i, op) in list.iter().enumerate() {
            pair.step(op)
                .map_err(|e| format!("operation {i}, {op:?}: {e}"))?;
        }
        pair.finish()?;
        Ok(pair.calls)
    })();
    // After a failure, removes as much as possible.
    let removed = std::fs::remove_dir_all(&ours).and(std::fs::remove_dir_all(&theirs));
    let calls = result.map_err(TestCaseError::fail)?;
    removed.map_err(|e| TestCaseError::fail(format!("removing the case: {e}")))?;
    Ok(calls)
}

fn run(test: &str, options: &str) {
    if !available(test) {
        return;
    }
    let Some(tmpfs) = tmpfs(test) else { return };
    let dog = Watchdog::new(test, Duration::from_secs(60));
    let mount = Mounted::new(&program(), 256 << 20, options);
    let asked: Option<u32> = std::env::var("PRAMFS_TEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok());
    let start = Instant::now();
    let mut runner = TestRunner::new(Config {
        cases: asked.unwrap_or(10_000),
        max_shrink_iters: 1000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..Config::default()
    });
    let (cases, calls, failed) = (Cell::new(0), Cell::new(0), Cell::new(false));
    let result = runner.run(&ops(LEN), |list| {
        // After a failure, the case is minimized without a time limit.
        if asked.is_none() && !failed.get() && start.elapsed() > USUAL {
            return Ok(());
        }
        dog.touch();
        cases.set(cases.get() + 1);
        let n = run_one(&mount, options, tmpfs.path(), cases.get(), &list)
            .inspect_err(|_| failed.set(true))?;
        calls.set(calls.get() + n);
        Ok(())
    });
    println!("{} cases, {} calls on both sides", cases.get(), calls.get());
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, list)) => {
            let list: Vec<_> = list.iter().map(|op| format!("    {op:?}\n")).collect();
            panic!("{why}\nminimal list of operations:\n{}", list.concat());
        }
        Err(e) => panic!("{e}"),
    }
    mount.unmount();
    let region = RegionOptions::new().open(mount.region()).unwrap();
    let report = fsck::check(&region, &CheckOptions::default());
    assert!(report.is_clean(), "fsck after the unmount: {report}");
}

#[test]
fn mount_matches_tmpfs() {
    run("a mount beside tmpfs", "");
}

#[test]
fn mount_with_cache_none_matches_tmpfs() {
    run("a mount with cache=none beside tmpfs", "cache=none");
}
