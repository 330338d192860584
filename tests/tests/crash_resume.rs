//! A killed run of the crash explorer continues where it was.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PART: &str = "one operation, blocks of 512";

fn explorer(progress: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_crash-explorer"))
        .args(["--quick", "--length", "1", "--lines", "2", "--only", PART])
        .arg("--resume")
        .arg(progress)
        .args(more)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .expect("the explorer can be started")
}

/// Workloads, crash points and images of a part. The number of distinct images depends on
/// the cache that the killed process has lost.
fn counts(run: Output) -> Vec<u64> {
    let text = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success(), "{text}");
    let row = text.lines().find(|l| l.starts_with(&format!("| {PART} |")));
    let cells = row.expect("a row of the table").split('|').skip(2).take(3);
    cells.map(|c| c.trim().parse().unwrap()).collect()
}

/// Completed workloads according to the file.
fn done(progress: &Path) -> u64 {
    let text = std::fs::read_to_string(progress).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["done"][0][1].as_u64().unwrap()
}

#[test]
fn resume_after_kill_reaches_same_counts() {
    let dir = tempfile::tempdir().unwrap();
    let whole = counts(explorer(&dir.path().join("whole"), &[]));
    assert!(whole[0] > 50, "{whole:?}");

    let progress = dir.path().join("killed");
    let killed = explorer(&progress, &["--die-after", "1"]);
    assert_eq!(killed.status.signal(), Some(libc::SIGKILL), "{killed:?}");
    let half = done(&progress);
    assert!(0 < half && half < whole[0], "{half} of {}", whole[0]);
    assert_eq!(
        counts(explorer(&progress, &[])),
        whole,
        "killed after {half}"
    );
}
