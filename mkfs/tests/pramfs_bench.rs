//! `pramfs bench`, on tmpfs.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::*;
use pramfs_tests::mounted::wait_until;
use pramfs_tests::watchdog::Watchdog;
use rustix::process::{Pid, Signal, kill_process};

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn bench_measures_each_operation_and_leaves_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().to_str().unwrap();
    let a = pramfs(["bench", "--time", "0.02", "--size", "2M", "--json", path]).ok();
    let report: serde_json::Value = serde_json::from_str(&a.out).unwrap();
    assert_eq!(report["file_system"], "tmpfs");
    assert_eq!(report["file_bytes"], 2 << 20);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 7);
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(
            number("count") >= 1.0 && number("per_second") > 0.0,
            "{row}"
        );
        assert!(number("median") <= number("p99"), "{row}");
    }
    assert!(is_empty(dir.path()));
    let a = pramfs(["bench", "--time", "0.02", "--size", "2M", path]).ok();
    assert!(a.out.contains("(file system: tmpfs)") && a.out.contains("read 4 KiB, random"));
    assert_eq!(
        a.out
            .lines()
            .filter(|l| l.contains(" us ") || l.contains(" ns ") || l.contains(" ms "))
            .count(),
        7,
        "{}",
        a.out
    );
}

#[test]
fn bench_refuses_what_it_cannot_measure() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().to_str().unwrap();
    let a = pramfs(["bench", "--size", "4096T", path]);
    assert_eq!(a.status, 1);
    assert!(
        a.err
            .contains("would take more than half of it; give a smaller --size"),
        "{}",
        a.err
    );
    for (name, what) in [
        ("file", "cannot open the directory"),
        ("missing", "cannot open the directory"),
    ] {
        let place = dir.path().join(name);
        if name == "file" {
            std::fs::write(&place, b"").unwrap();
        }
        let a = pramfs(["bench", "--size", "1M", place.to_str().unwrap()]);
        assert_eq!(a.status, 1);
        assert!(a.err.contains(what) && a.err.contains(name), "{}", a.err);
    }
    for wrong in [["--size", "5K"], ["--time", "0"]] {
        assert_eq!(pramfs(["bench", wrong[0], wrong[1], path]).status, 2);
    }
}

#[test]
fn interrupted_bench_leaves_nothing() {
    let _dog = Watchdog::new("interrupted bench", Duration::from_secs(60));
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_pramfs"))
        .args(["bench", "--time", "3600", "--size", "1M"])
        .arg(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert!(wait_until(|| !is_empty(dir.path())));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    assert!(is_empty(dir.path()));
}
