//! SQLite: two writers with the library and one without, on the same database, until they are
//! killed. All that they have committed is there.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use pramfs_tests::mounted::wait_until;
use pramfs_tests::suite::say;

use crate::{Both, PYTHON, Place, full};

/// Of the tests without the library.
const SCRIPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/tests/programs/sqlite.py"
);

fn log(place: &Place<'_>, writer: usize) -> PathBuf {
    place.dir.join(format!("log{writer}"))
}

fn writer(place: &Place<'_>, mode: &str, number: usize) -> Child {
    fs::write(log(place, number), "").unwrap();
    place
        .command(PYTHON)
        .args([SCRIPT, "write", "db", mode, &number.to_string()])
        .arg(log(place, number))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Kills a writer. Returns what it had said: something only if it had ended by itself.
fn end(mut child: Child) -> String {
    // It may have ended.
    let _ = child.kill();
    let out = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn writers_share(mode: &str) {
    let test = format!("SQLite with two writers and one outside, {mode}");
    let Some(both) = Both::new(&test, &[PYTHON], 256) else {
        return;
    };
    let place = both.on_mount("place");
    let outside = Place {
        dir: place.dir.clone(),
        library: None,
    };
    let run = |place: &Place<'_>, what: &str| {
        let run = place
            .run("sqlite.py", PYTHON)
            .args([SCRIPT, what, "db", mode]);
        let logs = (0..3).filter(|_| what == "check");
        run.args(logs.map(|n| log(place, n))).succeed().text
    };
    run(&place, "make");
    let has_begun = |number| fs::metadata(log(&place, number)).is_ok_and(|m| m.len() > 0);
    for round in 0..if full() { 6 } else { 2 } {
        let mut inside = vec![writer(&place, mode, 0), writer(&place, mode, 1)];
        // All at the same time, too: the first open decides who has the page cache.
        let begun = round % 2 == 1 || (0..6).any(|_| wait_until(|| has_begun(0) && has_begun(1)));
        let alone = writer(&outside, mode, 2);
        std::thread::sleep(Duration::from_secs(2));
        for child in &mut inside {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "a writer has ended: {ended:?}");
        }
        let said: Vec<String> = inside.into_iter().map(end).collect();
        assert!(begun, "no transaction in time: {said:?}");
        let said = end(alone);
        let last = said.lines().last().unwrap_or_default();
        let fits = last.is_empty() || last.starts_with("sqlite3.OperationalError: ");
        assert!(fits && !last.contains("malformed"), "{said}");
        let committed = [run(&outside, "check"), run(&place, "check")];
        assert_eq!(committed[0], committed[1]);
        let lines = |n| fs::read_to_string(log(&place, n)).unwrap().lines().count();
        say(format_args!(
            "{test}: {} and {} transactions, outside {} {last}",
            lines(0),
            lines(1),
            lines(2)
        ));
    }
    both.end();
}

#[test]
fn sqlite_writers_with_and_without_library_share_wal() {
    writers_share("wal");
}

#[test]
fn sqlite_writers_with_and_without_library_share_journal() {
    writers_share("delete");
}

/// From the first checkpoint on, the journal is overwritten in place.
#[test]
fn sqlite_changes_in_wal_mode_are_served() {
    let test = "SQLite, changes in WAL mode";
    let Some(both) = Both::new(test, &[PYTHON], 256) else {
        return;
    };
    let place = both.on_mount("place");
    let script = r#"
import sqlite3
db = sqlite3.connect("db", isolation_level=None)
db.execute("pragma journal_mode=wal")
db.execute("pragma synchronous=full")
db.execute("create table t(a integer primary key, b blob)")
db.executemany("insert into t values (?, randomblob(100))", [(i,) for i in range(200)])
for i in range(60000):
    db.execute("update t set b = randomblob(100) where a = ?", (i * 37 % 200,))
print(db.execute("pragma integrity_check").fetchone()[0])
"#;
    let mut shares = (0..3).map(|_| {
        fs::remove_file(place.dir.join("db")).ok();
        let out = place.run(test, PYTHON).args(["-c", script]).succeed();
        assert_eq!(out.text, "ok\n");
        let share = both.library.share();
        say(format_args!("{test}: {share} served"));
        share
    });
    // A file may be found busy, on a machine under load.
    let is_enough = shares.any(|share| share.percent() >= 95.0);
    drop(shares);
    assert!(is_enough, "less than 95 % of the data calls are served");
    both.end();
}
