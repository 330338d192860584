//! A run of the crash explorer that was killed goes on where it was.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PART: &str = "two operations, blocks of 512";

fn explorer(progress: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_crash-explorer"))
        .args(["--quick", "--length", "2", "--lines", "2", "--only", PART])
        .arg("--resume")
        .arg(progress)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the explorer can be started")
}

/// Workloads, crash points and images of the part. How many images are unlike
/// all others depends on what was forgotten with the killed process.
fn counts(run: Child) -> Vec<u64> {
    let done = run.wait_with_output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{text}");
    let row = text.lines().find(|l| l.starts_with(&format!("| {PART} |")));
    let cells = row.expect("a row of the table").split('|').skip(2).take(3);
    cells.map(|c| c.trim().parse().unwrap()).collect()
}

/// Workloads that are done, by the file.
fn done(progress: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(progress).ok()?;
    let value: serde_json::Value = serde_json::from_str(&text).ok()?;
    value["done"][0][1].as_u64()
}

#[test]
fn a_run_that_was_killed_goes_on_to_the_same_counts() {
    let dir = tempfile::tempdir().unwrap();
    let whole = counts(explorer(&dir.path().join("whole")));
    assert!(whole[0] > 250, "{whole:?}");

    let progress = dir.path().join("killed");
    let mut run = explorer(&progress);
    let start = Instant::now();
    while done(&progress).is_none_or(|n| n == 0) {
        assert!(start.elapsed() < Duration::from_secs(120), "no progress");
        std::thread::sleep(Duration::from_millis(2));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    let half = done(&progress).unwrap();
    assert!(half < 300, "it was through before it was killed");
    assert_eq!(counts(explorer(&progress)), whole, "killed after {half}");
}
