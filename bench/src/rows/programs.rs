//! Rows: programs, unchanged, under the preload library: SQLite, a bare loop of pread(2), and
//! programs that use no file of a mount.
//!
//! A side is one run of a program in a process of its own.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::preload::row;
use crate::fio::preload_library;
use crate::fixture::{MIB, Mounted, debian_program, filled_file};
use crate::harness::{Context, Group, Ops, Report, Rng, Row, Side, interleave_rounds};
use crate::reproductions::sites::TMPFS;
use crate::sys::{Aligned, PAGE};

const ROWS: &[Row] = &[
    row(
        "preload-sqlite-tmpfs",
        "SQLite, WAL, synchronous=FULL, preload",
        "tmpfs (not durable)",
        0.9,
    ),
    row(
        "preload-sqlite-mount",
        "SQLite, WAL, synchronous=FULL, preload",
        "the mount without",
        2.0,
    ),
    row(
        "preload-loop",
        "bare loop of pread 4 KiB random, preload",
        "the mount without, O_DIRECT",
        7.0,
    ),
    row(
        "preload-start",
        "start of a program, preload",
        "without, and 0.4 ms",
        1.0,
    ),
    row(
        "preload-open",
        "system calls of open + close on tmpfs, preload",
        "without, and one fstat",
        1.0,
    ),
    row(
        "preload-others",
        "bare loop of pread on tmpfs, preload",
        "without",
        0.99,
    ),
];

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

const ROUNDS: u32 = 7;
/// Bytes of the file that is read at random.
const FILE: u64 = 64 * MIB;
/// What the start of a program may take longer.
const START: Duration = Duration::from_micros(400);
/// Starts in one round.
const STARTS: u32 = 20;
/// Opens whose system calls are counted.
const OPENS: u32 = 1000;

/// Programs, and the library to run them with.
#[derive(Debug, Clone)]
struct Setting {
    sqlite: PathBuf,
    inserts: u32,
    time: Duration,
    library: PathBuf,
}

impl Setting {
    fn command(&self, program: impl AsRef<std::ffi::OsStr>, preload: bool) -> Command {
        let mut command = Command::new(program);
        if preload {
            command.env("LD_PRELOAD", &self.library);
        }
        command
    }

    /// Inserts rows, each in its own transaction, and counts them.
    fn insert(&self, database: &Path, preload: bool) -> Result<Duration> {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            let mut name = database.as_os_str().to_owned();
            name.push(suffix);
            match std::fs::remove_file(&name) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
                _ => {}
            }
        }
        let mut script = String::from(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;\n\
             CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT);\n",
        );
        for i in 0..self.inserts {
            script += &format!("INSERT INTO t(v) VALUES('{i:064}');\n");
        }
        script += "SELECT count(*) FROM t;\n";
        let start = Instant::now();
        let mut child = self
            .command(&self.sqlite, preload)
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().context("no standard input")?;
        stdin.write_all(script.as_bytes())?;
        drop(stdin);
        let done = child.wait_with_output()?;
        let took = start.elapsed();
        let said = String::from_utf8_lossy(&done.stdout);
        ensure!(
            done.status.success() && said.lines().last() == Some(&self.inserts.to_string()),
            "sqlite3: {said}"
        );
        Ok(took)
    }

    /// Reads a file at random in another process. Returns the time of one read.
    fn read(&self, file: &Path, direct: bool, preload: bool) -> Result<Duration> {
        let mut command = self.command(std::env::current_exe()?, preload);
        command.arg("pread-loop").arg(file);
        command.arg(self.time.as_millis().to_string());
        if direct {
            command.arg("--direct");
        }
        let done = command.output()?;
        let said = String::from_utf8_lossy(&done.stdout);
        let errors = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "the loop: {said}{errors}");
        let ns: f64 = said.trim().parse().context("the loop prints a number")?;
        Ok(Duration::from_secs_f64(ns / 1e9))
    }

    /// Counts the system calls of one open and close of a file: all, and those to fstat.
    fn opens(&self, strace: &Path, file: &Path, preload: bool) -> Result<(f64, f64)> {
        let count = |opens: u32| -> Result<(f64, f64)> {
            let counted = file.with_extension("counted");
            let mut command = Command::new(strace);
            command.args(["-f", "-c", "-U", "name,calls", "-o"]);
            command.arg(&counted);
            if preload {
                // Into the program alone, and not into strace.
                command.arg(format!("-ELD_PRELOAD={}", self.library.display()));
            }
            command.arg(std::env::current_exe()?).arg("open-loop");
            command.arg(file).arg(opens.to_string());
            let done = command.output()?;
            let errors = String::from_utf8_lossy(&done.stderr);
            ensure!(done.status.success(), "strace: {errors}");
            let text = std::fs::read_to_string(&counted)?;
            std::fs::remove_file(&counted)?;
            let calls = |names: &[&str]| -> f64 {
                let rows = text.lines().filter_map(|l| l.trim().split_once(' '));
                let named = rows.filter(|(name, _)| names.contains(name));
                named
                    .filter_map(|(_, n)| n.trim().parse::<f64>().ok())
                    .sum()
            };
            Ok((calls(&["total"]), calls(&["fstat", "newfstatat"])))
        };
        // What start and end of the program make, and the first open on a file system, do not
        // count.
        let (few, many) = (count(1)?, count(1 + OPENS)?);
        let each = |few: f64, many: f64| (many - few) / f64::from(OPENS);
        Ok((each(few.0, many.0), each(few.1, many.1)))
    }

    /// Starts a program that does nothing. Returns the time until it has ended.
    fn start(&self, preload: bool) -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..STARTS {
            let status = self.command("/bin/true", preload).status()?;
            ensure!(status.success(), "true: {status}");
        }
        Ok(start.elapsed() / STARTS)
    }
}

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let setting = Setting {
        sqlite: debian_program("sqlite3", "sqlite3")?,
        inserts: if cx.quick { 2000 } else { 100_000 },
        time: Duration::from_millis(if cx.quick { 100 } else { 500 }),
        library: preload_library(cx)?,
    };
    let [sqlite_tmpfs, sqlite_mount, bare, start, open, others] = ROWS else {
        unreachable!("there are six rows");
    };
    let mount = Mounted::for_clients(cx, 512 * MIB)?;
    let ours = mount.daemon.path().to_owned();
    let tmpfs = TMPFS.with_files(cx, 1, FILE)?;
    let s = &setting;
    if [sqlite_tmpfs, sqlite_mount]
        .iter()
        .any(|row| out.wants(row.id))
    {
        let (here, there) = (ours.join("database"), tmpfs.dir.join("database"));
        let memory = s.insert(Path::new(":memory:"), false)?;
        let m = interleave_rounds(
            cx,
            ROUNDS,
            Ops::Fixed(1),
            &mut [
                Side::timed("preload", |_, _| s.insert(&here, true)),
                Side::timed("tmpfs", |_, _| s.insert(&there, false)),
                Side::timed("the mount", |_, _| s.insert(&here, false)),
            ],
        )?;
        let notes = [format!(
            "{} inserts, each its own transaction; in memory (:memory:): {} ms",
            s.inserts,
            memory.as_millis()
        )];
        for (theirs, row) in [(1, sqlite_tmpfs), (2, sqlite_mount)] {
            out.record(row, &m, (0, theirs), &notes);
        }
    }
    let (here, there) = (ours.join("file"), tmpfs.file(0));
    drop(filled_file(&here, FILE)?);
    if out.wants(bare.id) {
        let m = interleave_rounds(
            cx,
            ROUNDS,
            Ops::Fixed(1),
            &mut [
                Side::timed("preload", |_, _| s.read(&here, false, true)),
                Side::timed("the mount, O_DIRECT", |_, _| s.read(&here, true, false)),
            ],
        )?;
        out.record(bare, &m, (0, 1), &[]);
    }
    if out.wants(start.id) {
        let m = interleave_rounds(
            cx,
            ROUNDS,
            Ops::Fixed(1),
            &mut [
                Side::timed("preload", |_, _| s.start(true)),
                Side::timed("without", |_, _| Ok(s.start(false)? + START)),
            ],
        )?;
        out.record(start, &m, (0, 1), &[]);
    }
    if out.wants(open.id) {
        let strace = debian_program("strace", "strace")?;
        let (ours, our_fstats) = s.opens(&strace, &there, true)?;
        let (theirs, their_fstats) = s.opens(&strace, &there, false)?;
        let notes = [format!(
            "fstat calls for each open: {our_fstats:.3}, without {their_fstats:.3}"
        )];
        out.record_count(open, (ours, theirs + 1.0), "calls", &notes);
    }
    if out.wants(others.id) {
        let m = interleave_rounds(
            cx,
            ROUNDS,
            Ops::Fixed(1),
            &mut [
                Side::timed("preload", |_, _| s.read(&there, false, true)),
                Side::timed("without", |_, _| s.read(&there, false, false)),
            ],
        )?;
        out.record(others, &m, (0, 1), &[]);
    }
    Ok(())
}

/// Reads 4 KiB of a file at random offsets, and prints the nanoseconds of one read.
///
/// # Errors
/// Those of the file.
pub fn pread_loop(path: &Path, time: Duration, direct: bool) -> Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if direct {
        options.custom_flags(libc::O_DIRECT);
    }
    let file = options.open(path)?;
    let pages = file.metadata()?.len() / PAGE as u64;
    ensure!(pages > 0, "the file is shorter than a page");
    let (mut buf, mut rng) = (Aligned::filled(PAGE, 0)?, Rng::new(1));
    let mut reads = |n: u32| -> Result<()> {
        for _ in 0..n {
            let at = rng.below(pages) * PAGE as u64;
            file.read_exact_at(buf.bytes_mut(), at)?;
        }
        Ok(())
    };
    // What is learned at first.
    reads(1000)?;
    let (start, mut done) = (Instant::now(), 0u64);
    while start.elapsed() < time {
        reads(256)?;
        done += 256;
    }
    let ns = start.elapsed().as_nanos() as f64 / done as f64;
    writeln!(std::io::stdout(), "{ns:.1}")?;
    Ok(())
}

/// Opens and closes a file again and again.
///
/// # Errors
/// Those of the file.
pub fn open_loop(path: &Path, opens: u32) -> Result<()> {
    for _ in 0..opens {
        drop(std::fs::File::open(path)?);
    }
    Ok(())
}
