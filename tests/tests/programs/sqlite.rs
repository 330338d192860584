//! SQLite, with a write-ahead log and with rollback journals: several processes write to
//! a database; they or the server of the mount are killed during the writes. Committed
//! transactions must be there.
//!
//! (No Debian package contains `speedtest1` of the SQLite sources; the writers of
//! `sqlite.py` replace it.)

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pramfs_tests::mounted::{Mounted, wait_until};
use pramfs_tests::random::Random;
use pramfs_tests::suite::{Run, mount_for, say, unmount_and_check};

use crate::{PYTHON, TIMEOUT, alone, full};

const WRITERS: usize = 3;

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs/sqlite.py")
}

fn python(what: &str, database: &Path, mode: &str) -> Run {
    Run::new("sqlite.py", PYTHON, TIMEOUT)
        .arg(program())
        .arg(what)
        .arg(database)
        .arg(mode)
}

fn log(dir: &Path, writer: usize) -> PathBuf {
    dir.join(format!("log{writer}"))
}

fn write(database: &Path, mode: &str, writer: usize, log: &Path) -> Child {
    Command::new(PYTHON)
        .arg(program())
        .arg("write")
        .arg(database)
        .arg(mode)
        .arg(writer.to_string())
        .arg(log)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap()
}

/// The output of the writer after its end.
fn end(mut child: Child) -> String {
    assert!(
        wait_until(|| child.try_wait().unwrap().is_some()),
        "a writer hangs"
    );
    let out = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// One run of a database: its writers, a kill, and the check.
fn life(
    mount: &Mounted,
    options: &str,
    mode: &str,
    dir: &Path,
    random: &mut Random,
    server: bool,
) -> u64 {
    let database = mount.at(format!("{mode}.db"));
    let mut writers: Vec<Child> = (0..WRITERS)
        .map(|w| write(&database, mode, w, &log(dir, w)))
        .collect();
    // All of them have started. SQLite retries for the lock in no fair order, so on a
    // busy machine the last may wait long.
    let begun = |w| std::fs::metadata(log(dir, w)).is_ok_and(|m| m.len() > 0);
    let all_begun = (0..12).any(|_| wait_until(|| (0..WRITERS).all(begun)));
    std::thread::sleep(Duration::from_millis(300 + random.below(1200)));
    if server {
        mount.crash();
    } else {
        for writer in &mut writers {
            assert!(
                writer.try_wait().unwrap().is_none(),
                "a writer has ended by itself"
            );
            writer.kill().unwrap();
        }
    }
    let said: Vec<String> = writers.into_iter().map(end).collect();
    assert!(all_begun, "no transaction in time: {said:?}");
    if server {
        // They have met an error of the file system, and found no damage.
        for said in said {
            let last = said.lines().last().unwrap_or_default();
            let fits = last.is_empty()
                || last.starts_with("sqlite3.OperationalError: ")
                || last.starts_with("OSError: ");
            assert!(fits && !last.contains("malformed"), "{said}");
        }
        mount.mount(options);
    }
    let out = python("check", &database, mode)
        .args((0..WRITERS).map(|w| log(dir, w)))
        .succeed();
    out.text
        .trim()
        .parse()
        .unwrap_or_else(|e| panic!("{e}: {}", out.text))
}

fn sqlite(mode: &str, options: &str) {
    let test = format!("SQLite, {mode}, {options}");
    let _alone = alone();
    let Some(mount) = mount_for(&test, &[PYTHON], 512, options) else {
        return;
    };
    let seed = Random::seed_from_env("PRAMFS_SQLITE_SEED");
    let mut random = Random::new(seed);
    let dir = tempfile::tempdir().unwrap();
    python("make", &mount.at(format!("{mode}.db")), mode).succeed();
    let lives = if full() { 8 } else { 2 };
    let mut committed = 0;
    for round in 0..lives {
        committed = life(
            &mount,
            options,
            mode,
            dir.path(),
            &mut random,
            round % 2 == 1,
        );
    }
    let check = unmount_and_check(&mount);
    say(format_args!(
        "{test}: {committed} transactions in {lives} lives, all there; fsck: {check}"
    ));
    assert!(committed > 10 * lives, "{committed} transactions");
}

#[test]
fn sqlite_works_with_write_ahead_log() {
    sqlite("wal", "cache=auto");
    if full() {
        sqlite("wal", "cache=none");
    }
}

#[test]
fn sqlite_works_with_rollback_journal() {
    sqlite("delete", "cache=auto");
    if full() {
        sqlite("truncate", "cache=none");
        sqlite("persist", "cache=auto");
    }
}

/// A write is durable when it returns, so that the syncs of SQLite add nothing.
#[test]
fn sqlite_without_syncs_keeps_what_it_has_committed() {
    sqlite("wal+off", "cache=auto");
    sqlite("delete+off", "cache=auto");
}
