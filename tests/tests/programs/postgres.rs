//! PostgreSQL: initdb, pgbench, SIGKILL of the database server during the run, recovery;
//! the same with SIGKILL of the server of the mount.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pramfs_tests::mounted::{Mounted, wait_until};
use pramfs_tests::suite::{Run, find, missing, mount_for, say, unmount_and_check};
use rustix::process::Pid;

use crate::{TIMEOUT, alone, full, let_others_in};

/// The newest installed server.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut all: Vec<PathBuf> = versions
        .flatten()
        .map(|version| version.path().join("bin"))
        .filter(|bin| bin.join("initdb").is_file() && bin.join("postgres").is_file())
        .collect();
    all.sort();
    all.pop()
}

/// A server. It runs as a child of this process, so a killed one is reaped at once,
/// whatever process adopts orphans here.
struct Server {
    bin: PathBuf,
    data: PathBuf,
    /// For its socket and log.
    dir: tempfile::TempDir,
    child: Option<Child>,
}

const OPTIONS: [&str; 5] = [
    "listen_addresses=",
    "shared_buffers=16MB",
    "max_wal_size=64MB",
    "min_wal_size=32MB",
    // Otherwise a killed server leaves files in /dev/shm.
    "dynamic_shared_memory_type=mmap",
];

impl Server {
    /// A program run by the user `postgres`, the only one that may run a server, in a new
    /// process group.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(find("setpriv").unwrap());
        command
            .args([
                "--reuid",
                "postgres",
                "--regid",
                "postgres",
                "--init-groups",
            ])
            .arg(program)
            .current_dir(self.dir.path())
            .env("PATH", format!("{}:/usr/bin:/bin", self.bin.display()))
            .env("PGDATA", &self.data)
            .env("PGHOST", self.dir.path())
            .env("PGPORT", "5499")
            .env("PGDATABASE", "postgres")
            .env("LC_ALL", "C")
            .process_group(0)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, name: &str, script: &str) -> Run {
        let mut run = Run::new(name, "unused", TIMEOUT);
        run.command = self.command("bash");
        run.args(["-euo", "pipefail", "-c", script])
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Starts the server, and waits until it has recovered and answers.
    fn start(&mut self) {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"));
        let log = log.unwrap();
        // No TCP: it is not needed, and the port may be in use.
        let child = self
            .command(self.bin.join("postgres"))
            .arg("-k")
            .arg(self.dir.path())
            .args(OPTIONS.iter().flat_map(|option| ["-c", option]))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
        let script =
            "for i in $(seq 600); do psql -qAtc 'select 1' && exit 0; sleep 0.2; done; exit 1";
        let out = self.run("waiting for the server", script).output();
        assert!(out.status.success(), "{}: {}", out.text, self.log());
    }

    fn stop(&mut self) {
        self.run("pg_ctl stop", "pg_ctl stop -w -m fast").succeed();
        self.child.take().unwrap().wait().unwrap();
    }

    /// Runs pgbench for some seconds, in the background.
    fn load(&self, seconds: u64) -> Child {
        self.command(self.bin.join("pgbench"))
            .args(["-n", "-c", "4", "-j", "2", "-T", &seconds.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Checks the invariant of pgbench, and every page of every table and index.
    fn check(&self) -> u64 {
        let script = r#"
psql -qAtc "create extension if not exists amcheck"
psql -qAtc "select sum(abalance) = (select sum(bbalance) from pgbench_branches) and sum(abalance) = (select sum(tbalance) from pgbench_tellers) and sum(abalance) = (select coalesce(sum(delta), 0) from pgbench_history) from pgbench_accounts" | grep -qx t || { echo the balances differ; exit 1; }
pg_amcheck --heapallindexed -d postgres
psql -qAtc "select count(*) from pgbench_history"
"#;
        let out = self.run("the check of the database", script).succeed();
        let count = out.text.lines().last().and_then(|l| l.trim().parse().ok());
        count.unwrap_or_else(|| panic!("{}", out.text))
    }

    /// Kills the server's first process; the others end when they notice it.
    fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            wait_until(|| self.processes().is_empty()),
            "{:?} do not end",
            self.processes()
        );
    }

    /// Kills all of its processes.
    fn kill_all(&mut self) {
        for pid in self.processes() {
            // It may have ended together with another.
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        if let Some(mut child) = self.child.take() {
            child.wait().unwrap();
        }
    }

    /// The processes of the server: those of the child's group, and those in other groups
    /// whose working directory is the data directory.
    fn processes(&self) -> Vec<Pid> {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let ours = entries.filter(|entry| {
            fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == self.data)
        });
        let pid = |entry: fs::DirEntry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
        ours.filter_map(pid).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After a failed test, nothing may remain.
        self.kill_all();
    }
}

/// Works, kills, recovers and checks. Returns the committed work.
fn life(server: &mut Server, mount: &Mounted, of_mount: bool) -> u64 {
    let before = server.check();
    let mut load = server.load(60);
    std::thread::sleep(Duration::from_secs(if full() { 15 } else { 4 }));
    assert!(
        load.try_wait().unwrap().is_none(),
        "pgbench has ended early"
    );
    if of_mount {
        mount.crash();
        server.kill_all();
        mount.mount("");
    } else {
        server.kill();
    }
    assert!(
        wait_until(|| load.try_wait().unwrap().is_some()),
        "pgbench hangs"
    );
    server.start();
    let log = server.log();
    assert!(log.contains("automatic recovery in progress"), "{log}");
    let after = server.check();
    assert!(after > before + 50, "{after} transactions, {before} before");
    after
}

#[test]
fn postgresql_recovers_after_sigkill() {
    let test = "PostgreSQL";
    let _alone = alone();
    let Some(mount) = mount_for(test, &["setpriv"], 2048, "") else {
        return;
    };
    let Some(bin) = programs().filter(|_| find("psql").is_some()) else {
        return missing(test, "no PostgreSQL in /usr/lib/postgresql");
    };
    let_others_in(&mount);
    let data = mount.at("data");
    fs::create_dir(&data).unwrap();
    let mut server = Server {
        child: None,
        bin,
        data,
        dir: tempfile::tempdir().unwrap(),
    };
    let own = |path| {
        Run::new("chown", "chown", TIMEOUT)
            .arg("postgres:postgres")
            .arg(path)
            .succeed()
    };
    own(&server.data);
    own(&server.dir.path().to_owned());
    let scale = if full() { 10 } else { 1 };
    server
        .run("initdb", "initdb -A trust -k -E UTF8 --locale=C")
        .succeed();
    server.start();
    server
        .run("pgbench -i", &format!("pgbench -q -i -s {scale}"))
        .succeed();
    let mut lives = 0;
    let mut committed = 0;
    for _ in 0..if full() { 4 } else { 1 } {
        for of_mount in [false, true] {
            committed = life(&mut server, &mount, of_mount);
            lives += 1;
        }
    }
    server.stop();
    server.run("pg_checksums", "pg_checksums --check").succeed();
    let check = unmount_and_check(&mount);
    say(format_args!(
        "{test}: {committed} transactions, {lives} kills, balances and checksums right; fsck: {check}"
    ));
}
