//! Programs that work while servers die: fsx, SQLite and PostgreSQL.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use pramfs_tests::mounted::{Mounted, wait_until};
use pramfs_tests::postgres::{self, Server};
use pramfs_tests::suite::{Run, find, missing, say};

const LIMIT: Duration = Duration::from_secs(600);
const PYTHON: &str = "/usr/bin/python3";
const MODE: &str = "wal";
const FSX_OPERATIONS: &str = "2000";

/// The programs that are installed here, ready to begin.
pub struct Programs {
    fsx: Option<(PathBuf, PathBuf)>,
    database: Option<(PathBuf, tempfile::TempDir)>,
    postgres: Mutex<Option<Server>>,
}

/// Programs at work.
pub struct Running<'scope> {
    fsx: Option<ScopedJoinHandle<'scope, u64>>,
    sqlite: Option<Child>,
    postgres: Option<Child>,
}

fn sqlite(what: &str) -> Run {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sqlite.py");
    Run::new("sqlite.py", PYTHON, LIMIT).arg(program).arg(what)
}

/// Prepares the programs.
pub fn begin(test: &str, mount: &Mounted) -> Programs {
    let fsx = find("fsx").map(|program| (program, mount.at("fsx")));
    if fsx.is_none() {
        missing(test, "no program fsx");
    }
    let database = find("python3").map(|_| {
        let path = mount.at("database");
        sqlite("make").arg(&path).arg(MODE).succeed();
        (path, tempfile::tempdir().unwrap())
    });
    let server = postgres::programs(test).map(|bin| {
        let data = crate::fresh(&mount.at("postgres")).to_owned();
        let mut server = Server::new(bin, data);
        server.initialize();
        server.start();
        server.run("pgbench -i", "pgbench -i -q -s 1").succeed();
        server
    });
    Programs {
        fsx,
        database,
        postgres: Mutex::new(server),
    }
}

impl Programs {
    /// Starts them. They work until [`Running::end`], fsx until `done`.
    pub fn run<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        done: &'scope AtomicBool,
    ) -> Running<'scope> {
        let fsx = self.fsx.as_ref().map(|(program, file)| {
            scope.spawn(move || {
                let dir = tempfile::tempdir().unwrap();
                let mut runs = 0;
                while !done.load(Ordering::Relaxed) {
                    runs += 1;
                    let out = Run::new("fsx", program, LIMIT)
                        .arg("-P")
                        .arg(dir.path())
                        .args(["-N", FSX_OPERATIONS, "-S", &runs.to_string()])
                        .arg(file)
                        .output();
                    let passed = out.text.contains("All operations completed");
                    assert!(out.status.success() && passed, "{}", out.text);
                }
                runs
            })
        });
        let sqlite = self.database.as_ref().map(|(path, dir)| {
            let mut run = sqlite("write").arg(path).arg(MODE).arg("0");
            run.command
                .arg(dir.path().join("log"))
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            run.command.spawn().unwrap()
        });
        let postgres = self.postgres.lock().unwrap();
        // Ended before that.
        let postgres = postgres.as_ref().map(|server| server.load(100_000));
        Running {
            fsx,
            sqlite,
            postgres,
        }
    }

    /// Checks what they have written.
    pub fn check(self) {
        if let Some((path, dir)) = &self.database {
            let log = dir.path().join("log");
            let out = sqlite("check").arg(path).arg(MODE).arg(log).succeed();
            say(format_args!("SQLite: {} transactions", out.text.trim()));
        }
        if let Some(mut server) = self.postgres.into_inner().unwrap() {
            say(format_args!("PostgreSQL: {} transactions", server.check()));
            let log = server.log();
            // The end of pgbench is in it, too.
            let of_files = |line: &&str| !line.contains("client");
            for line in log.lines().filter(of_files) {
                let failed = ["PANIC", "ERROR", "could not"];
                assert!(!failed.iter().any(|word| line.contains(word)), "{log}");
            }
            server.stop();
        }
    }
}

/// Ends a program that works for ever. It must not have ended by itself.
fn end(mut child: Child, signal: &str) {
    assert!(child.try_wait().unwrap().is_none(), "{}", said(child));
    let id = child.id().to_string();
    Command::new("kill").args([signal, &id]).status().unwrap();
    assert!(wait_until(|| child.try_wait().unwrap().is_some()));
}

fn said(child: Child) -> String {
    let out = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&out.stderr).into_owned()
}

impl Running<'_> {
    /// Ends them.
    pub fn end(self) {
        if let Some(writer) = self.sqlite {
            end(writer, "-KILL");
        }
        if let Some(pgbench) = self.postgres {
            // Not SIGINT, which a shell may have ignored for its jobs.
            end(pgbench, "-TERM");
        }
        if let Some(fsx) = self.fsx {
            say(format_args!("fsx: {} runs", fsx.join().unwrap()));
        }
    }
}
