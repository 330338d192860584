//! Databases that sync nothing: Redis, RocksDB, LMDB and DuckDB acknowledge writes one by one, and
//! the server of the mount is killed meanwhile. What was acknowledged is there afterwards, because
//! a write is durable when it returns.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pramfs_tests::mounted::{Mounted, wait_until};
use pramfs_tests::suite::{Run, find, missing, mount_for, say, unmount_and_check};

use crate::{PYTHON, TIMEOUT, alone, full};

/// Ends a process with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Gives command after command to a program, and kills the server of the mount after some
/// acknowledgements, which are lines that begin with a word. Returns the number of those before
/// the kill, and of all.
fn life(
    mount: &Mounted,
    program: &mut Command,
    command: impl Fn(u64) -> String + Send + 'static,
    word: &str,
) -> (u64, u64) {
    let least = if full() { 20_000 } else { 1000 };
    let child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut child = Killed(child);
    let mut commands = child.0.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        // The program is killed.
        for n in 0.. {
            if writeln!(commands, "{}", command(n)).is_err() {
                return;
            }
        }
    });
    let mut acknowledged = 0;
    let answers = BufReader::new(child.0.stdout.take().unwrap()).lines();
    for line in answers.map_while(Result::ok) {
        acknowledged += u64::from(line.starts_with(word));
        if acknowledged == least {
            mount.crash();
            child.0.kill().unwrap();
        }
    }
    drop(child);
    writer.join().unwrap();
    assert!(acknowledged >= least, "only {acknowledged} answers");
    (least, acknowledged)
}

fn report(test: &str, mount: &Mounted, acknowledged: u64, kept: u64) {
    assert!(kept >= acknowledged, "{test}: {kept} of {acknowledged}");
    let check = unmount_and_check(mount);
    say(format_args!(
        "{test}: {acknowledged} writes acknowledged, {kept} there after SIGKILL of the mount; fsck: {check}"
    ));
}

#[test]
fn lmdb_without_syncs_keeps_what_it_has_committed() {
    let test = "LMDB without syncs";
    let _alone = alone();
    let Some(mount) = mount_for(test, &[PYTHON], 512, "") else {
        return;
    };
    let probe = Run::new("python3", PYTHON, TIMEOUT).args(["-c", "import lmdb"]);
    if !probe.output().status.success() {
        return missing(test, "no module lmdb (python3-lmdb)");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/acknowledged.py");
    let mut writer = Command::new(PYTHON);
    writer.arg(&script).arg("write").arg(mount.at("db"));
    let (_, acknowledged) = life(&mount, &mut writer, |_| "next".to_owned(), "OK");
    mount.mount("");
    let count = Run::new("acknowledged.py", PYTHON, TIMEOUT).arg(&script);
    let out = count.arg("count").arg(mount.at("db")).succeed();
    report(test, &mount, acknowledged, out.text.trim().parse().unwrap());
}

/// The Python for which `scripts/deps.sh --programs` has installed DuckDB.
fn python_with_duckdb() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let python = test.ancestors().nth(3)?.join("programs/python/bin/python");
    let probe = Run::new("import duckdb", &python, TIMEOUT).args(["-c", "import duckdb"]);
    (python.is_file() && probe.output().status.success()).then_some(python)
}

#[test]
fn duckdb_without_syncs_keeps_what_it_has_committed() {
    let test = "DuckDB without syncs";
    let _alone = alone();
    let Some(python) = python_with_duckdb() else {
        return missing(test, "no module duckdb below target/programs");
    };
    let Some(mount) = mount_for(test, &[], 512, "") else {
        return;
    };
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/acknowledged_duckdb.py");
    let run = |what: &str| {
        Run::new("acknowledged_duckdb.py", &python, TIMEOUT)
            .args([script.as_os_str(), what.as_ref()])
    };
    let (database, log) = (mount.at("db"), mount.at("db.wal"));
    let (mut acknowledged, mut kept) = (0, 0);
    for _ in 0..2 {
        let mut writer = Command::new(&python);
        writer.arg(&script).arg("write").arg(&database);
        let (_, here) = life(&mount, &mut writer, |_| "next".to_owned(), "OK");
        acknowledged = kept + here;
        mount.mount("");
        let out = run("count").arg(&database).succeed();
        kept = out.text.trim().parse().unwrap();
        assert!(kept >= acknowledged, "{test}: {kept} of {acknowledged}");
        // Closed in order, it needs no log.
        assert!(!log.exists());
    }
    report(test, &mount, acknowledged, kept);
}

#[test]
fn rocksdb_without_syncs_keeps_what_it_has_acknowledged() {
    let test = "RocksDB without syncs";
    let _alone = alone();
    let Some(mount) = mount_for(test, &["ldb"], 512, "") else {
        return;
    };
    let db = format!("--db={}", mount.at("db").display());
    let make = format!("ldb {db} --create_if_missing put a first");
    Run::script("ldb put", &make, TIMEOUT).succeed();
    // Its writes have sync=false.
    let mut writer = Command::new(find("ldb").unwrap());
    writer
        .arg(&db)
        .args(["--write_buffer_size=1000000", "query"]);
    let put = |n: u64| format!("put k{n:08} {n}{}", "v".repeat(100 + n as usize % 300));
    let (_, acknowledged) = life(&mount, &mut writer, put, "Successfully put");
    mount.mount("");
    let scan = format!("ldb {db} scan; ldb {db} checkconsistency > /dev/null");
    let out = Run::script("ldb scan", &scan, TIMEOUT).succeed();
    let mut kept = 0;
    for line in out.text.lines().filter(|line| line.starts_with('k')) {
        let (key, value) = line.split_once(" : ").unwrap();
        assert_eq!(key, format!("k{kept:08}"), "a key is missing");
        assert!(value.starts_with(&kept.to_string()), "{line}");
        kept += 1;
    }
    report(test, &mount, acknowledged, kept);
}

/// A server of Redis that syncs nothing, with its data on the mount.
fn redis(mount: &Mounted, socket: &Path) -> Killed {
    let server = Command::new(find("redis-server").unwrap())
        .args(["--port", "0", "--unixsocket"])
        .arg(socket)
        .arg("--dir")
        .arg(mount.path())
        .args(["--appendonly", "yes", "--appendfsync", "no", "--save", ""])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let server = Killed(server.unwrap());
    let answers = || {
        let ping = client(socket).arg("ping").output();
        ping.is_ok_and(|answer| answer.stdout.starts_with(b"PONG"))
    };
    assert!(wait_until(answers), "redis-server does not answer");
    server
}

fn client(socket: &Path) -> Command {
    let mut client = Command::new(find("redis-cli").unwrap());
    client.arg("-s").arg(socket);
    client
}

#[test]
fn redis_without_syncs_keeps_what_it_has_acknowledged() {
    let test = "Redis without syncs";
    let _alone = alone();
    let Some(mount) = mount_for(test, &["redis-server", "redis-cli"], 512, "") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let server = redis(&mount, &socket);
    let set = |n: u64| format!("set k{n} {n}{}", "v".repeat(100 + n as usize % 300));
    // Without appendfsync=always, Redis answers also the write that it could not append.
    let (acknowledged, _) = life(&mount, &mut client(&socket), set, "OK");
    drop(server);
    mount.mount("");
    let server = redis(&mount, &socket);
    let size = client(&socket).arg("dbsize").output().unwrap();
    let kept = String::from_utf8_lossy(&size.stdout)
        .trim()
        .parse()
        .unwrap();
    // The last one that counts, whole.
    let last = acknowledged - 1;
    let value = client(&socket).arg("get").arg(format!("k{last}")).output();
    assert_eq!(
        String::from_utf8_lossy(&value.unwrap().stdout).trim(),
        set(last).rsplit(' ').next().unwrap()
    );
    drop(server);
    report(test, &mount, acknowledged, kept);
}
