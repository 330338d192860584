//! LMDB, plain and with a writable map: a writer and a reader in two processes, growth, reuse
//! of pages, copies, and SIGKILL. The contents are those of a database on tmpfs.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use pramfs_tests::suite::{Run, missing, say};

use crate::support::{Share, best_share};
use crate::{Both, PYTHON, Place, TIMEOUT, full, same};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/use_lmdb.py");

/// The share of changes that is required, in percent. With `writemap`, changes are stores and
/// no calls; the few calls are maps and file sizes.
const LEAST: f64 = 95.0;

/// What LMDB's tools say of the database in `db` and of its copies.
const VIEW: &str = r#"
mdb_stat -a db
mdb_dump -a db
mdb_copy db copy; mdb_dump -a copy | cmp - <(mdb_dump -a db)
mdb_copy -c db compact; mdb_dump -a compact | cmp - <(mdb_dump -a db)
mdb_dump -a compact > dump; mdb_load -f dump loaded; mdb_dump -a loaded | cmp - dump
"#;

fn python(place: &Place<'_>, action: &str, mode: &str, rounds: u64) -> String {
    let run = place.run("use_lmdb.py", PYTHON).arg(SCRIPT);
    let run = run.args([action, "db", mode, &rounds.to_string()]);
    run.succeed().text
}

fn view(place: &Place<'_>) -> String {
    let script = format!("mkdir copy compact loaded; {VIEW}");
    let text = place.script("LMDB's tools", &script).succeed().text;
    let changing = ["mapsize=", "Map size"];
    text.lines()
        .filter(|line| !changing.iter().any(|word| line.contains(word)))
        .fold(String::new(), |text, line| text + line + "\n")
}

/// Kills a writer. Returns how many transactions it had acknowledged, and how many there are.
fn life(place: &Place<'_>, mode: &str, least: u64) -> (u64, u64) {
    let mut child = place
        .command(PYTHON)
        .arg(SCRIPT)
        .args(["acknowledge", "db", mode, "0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut acknowledged = 0;
    let answers = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in answers.map_while(Result::ok) {
        assert_eq!(line, acknowledged.to_string());
        acknowledged += 1;
        if acknowledged == least {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    let there = python(place, "count", mode, 0);
    (acknowledged, there.trim().parse().unwrap())
}

#[test]
fn lmdb_contents_are_those_of_tmpfs() {
    let test = "LMDB with the preload library";
    let programs = ["mdb_copy", "mdb_dump", "mdb_load", "mdb_stat"];
    let Some(both) = Both::new(test, &programs, 1024) else {
        return;
    };
    let probe = Run::new("python3", PYTHON, TIMEOUT).args(["-c", "import lmdb"]);
    if !probe.output().status.success() {
        return missing(test, "no module lmdb (python3-lmdb)");
    }
    let rounds = if full() { 1500 } else { 120 };
    for mode in ["plain", "writemap"] {
        let on_tmpfs = both.on_tmpfs(mode);
        python(&on_tmpfs, "change", mode, rounds);
        let expected = view(&on_tmpfs);
        let required = if mode == "writemap" { 0.0 } else { LEAST };
        let (mut changes, mut tools) = (Share::default(), Share::default());
        let mut attempt = 0;
        let best = best_share(required, || {
            let on_mount = both.on_mount(&format!("{mode}-{attempt}"));
            attempt += 1;
            python(&on_mount, "change", mode, rounds);
            changes = both.library.share();
            same(mode, &view(&on_mount), &expected);
            tools = both.library.share();
            // There may be no calls.
            if required > 0.0 {
                changes.percent()
            } else {
                0.0
            }
        });
        assert!(best >= required, "{mode}: changes {changes}");
        let least = if full() { 20_000 } else { 1000 };
        let (acknowledged, kept) = life(&both.on_mount(&format!("killed-{mode}")), mode, least);
        assert!(
            acknowledged >= least && kept >= acknowledged,
            "{kept} of {acknowledged}"
        );
        let _other = both.library.share();
        say(format_args!(
            "{test}, {mode}: {} lines the same, served: changes {changes}, tools {tools}; {kept} transactions kept over SIGKILL",
            expected.lines().count()
        ));
    }
    say(format_args!("{test}: fsck: {}", both.end()));
}
