//! The examples do what they say: they are compiled in here and run, and the
//! log is killed on the way.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[path = "../examples/log_and_counters.rs"]
#[expect(dead_code, reason = "its main is not called")]
mod log_and_counters;
#[path = "../examples/send_mapped.rs"]
#[expect(dead_code, reason = "its main is not called")]
mod send_mapped;
#[path = "../examples/twenty_lines.rs"]
mod twenty_lines;

const SIZE: u64 = 32 << 20;

/// A process that is being started holds our descriptors for a moment, and
/// with them the lock of a region that we have just closed.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn place() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        tempfile::tempdir_in(shm)
    } else {
        tempfile::tempdir()
    }
    .unwrap()
}

#[test]
fn counts_go_on_from_run_to_run() {
    let _one = one_at_a_time();
    let dir = place();
    let path = dir.path().join("region");
    let first = log_and_counters::run(&path, SIZE, 100).unwrap();
    assert_eq!((first.runs, first.before.records, first.counted), (1, 0, 0));
    let second = log_and_counters::run(&path, SIZE, 0).unwrap();
    assert_eq!(
        (second.runs, second.before.records, second.counted),
        (2, 100, 100)
    );
    assert_eq!(second.before.torn, 0);
}

const CHILD: &str = "PRAMFS_TEST_EXAMPLE_REGION";

/// Not a test of its own: what the next one kills.
#[test]
fn child_that_appends() {
    if let Some(path) = std::env::var_os(CHILD) {
        log_and_counters::run(Path::new(&path), SIZE, u64::MAX).unwrap();
    }
}

fn start(path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_appends", "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Killed again and again: the log only grows, and a count is at most the one
/// record behind that the kill came between.
#[test]
fn killed_and_run_again() {
    let _one = one_at_a_time();
    let dir = place();
    let path: PathBuf = dir.path().join("region");
    let mut records = 0;
    for round in 1..=5u64 {
        let mut child = start(&path);
        let out = BufReader::new(child.stdout.take().unwrap());
        // Its third line says that the log is open and appending begins.
        let began = out
            .lines()
            .map_while(Result::ok)
            .any(|l| l.starts_with("log: "));
        std::thread::sleep(Duration::from_millis(20 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            began,
            "round {round}: the child did not get as far as the log"
        );

        let found = log_and_counters::run(&path, SIZE, 0).unwrap();
        let now = found.before;
        assert_eq!(found.runs, 2 * round);
        assert_eq!(now.torn, 0);
        assert!(
            now.records > records,
            "round {round}: {} after {records}",
            now.records
        );
        let behind = now.records - found.counted;
        assert!(behind <= 1, "round {round}: {behind} records not counted");
        records = now.records;
    }
}

#[test]
fn mapped_bytes_go_to_sockets() {
    let _one = one_at_a_time();
    send_mapped::run(None).unwrap();
    let dir = place();
    let path = dir.path().join("region");
    log_and_counters::run(&path, SIZE, 1).unwrap();
    // Twice: the file exists the second time.
    for _ in 0..2 {
        send_mapped::run(Some(&path)).unwrap();
    }
}

#[test]
fn the_twenty_lines_run() {
    twenty_lines::main().unwrap();
}
