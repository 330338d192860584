//! A PostgreSQL server of the user `postgres`, whose data is on a mount.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;

use crate::mounted::wait_until;
use crate::suite::{Run, find, missing};

/// Time limit of a step.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Where the programs of the newest installed server are; `None` has been said loudly.
///
/// # Panics
/// Where `CI` is set and there is none.
pub fn programs(test: &str) -> Option<PathBuf> {
    let newest = installed().filter(|_| find("psql").is_some());
    if newest.is_none() {
        missing(test, "no PostgreSQL in /usr/lib/postgresql");
    }
    newest
}

fn installed() -> Option<PathBuf> {
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
#[derive(Debug)]
pub struct Server {
    bin: PathBuf,
    /// Its data directory.
    pub data: PathBuf,
    /// For its socket and log.
    dir: tempfile::TempDir,
    child: Option<Child>,
    /// Variables of all its programs.
    pub variables: Vec<(&'static str, PathBuf)>,
    /// Settings beside those that every server here has, for the next start.
    pub settings: Vec<&'static str>,
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
    /// A server whose programs are in `bin`, with its data in an empty directory, which is
    /// given to the user `postgres`.
    ///
    /// # Panics
    /// Where that fails.
    pub fn new(bin: PathBuf, data: PathBuf) -> Server {
        let server = Server {
            bin,
            data,
            dir: tempfile::tempdir().expect("a directory for the socket"),
            child: None,
            variables: Vec::new(),
            settings: Vec::new(),
        };
        own(&server.data);
        own(server.dir.path());
        server
    }

    /// Creates the data directory, with checksums.
    ///
    /// # Panics
    /// Where that fails.
    pub fn initialize(&self) {
        self.run("initdb", "initdb -A trust -k -E UTF8 --locale=C")
            .succeed();
    }

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
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .stdin(Stdio::null());
        command
    }

    /// A script of the user `postgres`, whose steps must all succeed.
    pub fn run(&self, name: &str, script: &str) -> Run {
        let mut run = Run::new(name, "unused", TIMEOUT);
        run.command = self.command("bash");
        run.args(["-euo", "pipefail", "-c", script])
    }

    /// What the server has said.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Starts the server, and waits until it has recovered and answers.
    ///
    /// # Panics
    /// Where it does not.
    pub fn start(&mut self) {
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
            .args(
                OPTIONS
                    .iter()
                    .chain(&self.settings)
                    .flat_map(|option| ["-c", option]),
            )
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
        let script =
            "for i in $(seq 600); do psql -qAtc 'select 1' && exit 0; sleep 0.2; done; exit 1";
        let out = self.run("waiting for the server", script).output();
        assert!(out.status.success(), "{}: {}", out.text, self.log());
    }

    /// Ends it as an administrator does.
    ///
    /// # Panics
    /// Where that fails.
    pub fn stop(&mut self) {
        self.run("pg_ctl stop", "pg_ctl stop -w -m fast").succeed();
        self.child.take().unwrap().wait().unwrap();
    }

    /// Runs pgbench for some seconds, in the background.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub fn load(&self, seconds: u64) -> Child {
        self.command(self.bin.join("pgbench"))
            .args(["-n", "-c", "4", "-j", "2", "-T", &seconds.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Checks the invariant of pgbench, and every page of every table and index.
    /// Returns the number of transactions.
    ///
    /// # Panics
    /// Where something is wrong.
    pub fn check(&self) -> u64 {
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
    ///
    /// # Panics
    /// Where they do not.
    pub fn kill(&mut self) {
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
    pub fn kill_all(&mut self) {
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

fn own(path: &Path) {
    Run::new("chown", "chown", TIMEOUT)
        .arg("postgres:postgres")
        .arg(path)
        .succeed();
}
