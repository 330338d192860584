//! Rows: fio, unchanged, on files of a live mount under the preload library.
//!
//! A side is one run of fio for a fixed time. Its result is the mean time of an operation, as
//! fio counts them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::fixture::{MIB, Mounted, debian_program, filled_file};
use crate::harness::{Context, Group, Huge, Ops, Report, Row, Side, interleave_rounds};
use crate::reproductions::sites::{EXT4, TMPFS};

const ROWS: &[Row] = &[
    row(
        "preload-mmap-huge",
        "fio randread, mmap, preload, 10 jobs",
        "tmpfs, huge pages",
        0.97,
    ),
    row(
        "preload-mmap-ext4",
        "fio randread, mmap, preload, 10 jobs",
        "ext4 on a RAM disk",
        1.0,
    ),
    row(
        "preload-mmap-tmpfs",
        "fio randread, mmap, preload, 10 jobs",
        "tmpfs (4 KiB pages)",
        1.0,
    ),
    row(
        "preload-read-tmpfs",
        "fio randread, psync, preload",
        "tmpfs (not durable)",
        1.15,
    ),
    row(
        "preload-write-tmpfs",
        "fio randwrite, psync, preload",
        "tmpfs (not durable)",
        1.25,
    ),
    row(
        "preload-read-cached",
        "fio randread, psync, preload",
        "the mount without, cached",
        1.15,
    ),
    row(
        "preload-read-direct",
        "fio randread, psync, preload",
        "the mount without, O_DIRECT",
        4.0,
    ),
];

/// Makes a row that is met at its floor.
pub(super) const fn row(
    id: &'static str,
    work: &'static str,
    against: &'static str,
    floor: f64,
) -> Row {
    Row {
        id,
        work,
        against,
        floor,
        strictly: false,
    }
}

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

/// Files, one for each job.
const JOBS: usize = 10;
/// Bytes of each.
const FILE: u64 = 32 * MIB;
const ROUNDS: u32 = 7;
/// The preload library.
pub(super) const LIBRARY: &str = "libpramfs_preload.so";

/// One way to run fio.
#[derive(Debug, Clone)]
struct Fio {
    program: PathBuf,
    directory: PathBuf,
    preload: Option<PathBuf>,
    arguments: Vec<String>,
    time: Duration,
}

impl Fio {
    fn with(&self, arguments: &[&str]) -> Fio {
        let mut new = self.clone();
        new.arguments
            .extend(arguments.iter().map(|a| (*a).to_owned()));
        new
    }

    fn on(&self, directory: &Path) -> Fio {
        Fio {
            directory: directory.to_owned(),
            preload: None,
            ..self.clone()
        }
    }

    /// Returns the mean time from one operation to the next, of all jobs together.
    fn run(&self) -> Result<Duration> {
        let mut command = Command::new(&self.program);
        command
            .args([
                "--name=file",
                "--bs=4k",
                "--time_based",
                "--group_reporting",
            ])
            .args(["--fallocate=none", "--fadvise_hint=0", "--invalidate=0"])
            .args(["--filename_format=file.$jobnum", "--output-format=json"])
            .arg(format!("--directory={}", self.directory.display()))
            .arg(format!("--size={FILE}"))
            .arg(format!("--runtime={}ms", self.time.as_millis()))
            .args(&self.arguments)
            .current_dir(&self.directory);
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
        }
        let done = command.output()?;
        let said = String::from_utf8_lossy(&done.stdout);
        ensure!(
            done.status.success(),
            "fio: {}{said}",
            String::from_utf8_lossy(&done.stderr)
        );
        let json = said.find('{').map_or("", |start| &said[start..]);
        let json: serde_json::Value =
            serde_json::from_str(json).context("the answer of fio is no JSON")?;
        let job = &json["jobs"][0];
        let rate = ["read", "write"]
            .iter()
            .filter_map(|way| job[way]["iops"].as_f64())
            .sum::<f64>();
        ensure!(rate > 0.0, "fio has done nothing: {said}");
        Ok(Duration::from_secs_f64(1.0 / rate))
    }

    fn side(self, name: &str) -> Side<'static> {
        Side::timed(name, move |_, _| self.run())
    }
}

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    let program = debian_program("fio", "fio")?;
    let library = cx.programs.join(LIBRARY);
    ensure!(
        library.is_file(),
        "{LIBRARY} is not built: cargo build --release -p pramfs-preload"
    );
    let mount = Mounted::for_clients(cx, JOBS as u64 * FILE + 128 * MIB)?;
    let ours = mount.daemon.path().to_owned();
    make_files(&ours)?;
    let fio = Fio {
        program,
        directory: ours.clone(),
        preload: Some(library),
        arguments: Vec::new(),
        time: if cx.quick {
            Duration::from_millis(200)
        } else {
            Duration::from_secs(1)
        },
    };
    let tmpfs = TMPFS.with_files(cx, JOBS, FILE)?;
    let [huge, ext4, small, read, write, cached, direct] = ROWS else {
        unreachable!("there are seven rows");
    };
    if [huge, ext4, small].iter().any(|row| out.wants(row.id)) {
        let mmap = fio.with(&[
            "--rw=randread",
            "--ioengine=mmap",
            &format!("--numjobs={JOBS}"),
        ]);
        let space = JOBS as u64 * FILE + 64 * MIB;
        let huge_tmpfs = cx.scratch.tmpfs("preload-huge", space, Huge::Always)?;
        make_files(huge_tmpfs.path())?;
        let disk = EXT4.with_files(cx, JOBS, FILE)?;
        let m = interleave_rounds(
            cx,
            ROUNDS,
            Ops::Fixed(1),
            &mut [
                mmap.clone().side("preload"),
                mmap.on(huge_tmpfs.path()).side("tmpfs, huge pages"),
                mmap.on(&disk.dir).side("ext4"),
                mmap.on(&tmpfs.dir).side("tmpfs"),
            ],
        )?;
        for (theirs, row) in [(1, huge), (2, ext4), (3, small)] {
            out.record(row, &m, (0, theirs), &[]);
        }
    }
    let null = fio
        .on(&tmpfs.dir)
        .with(&["--rw=randread", "--ioengine=null"])
        .run()?;
    let null = format!("fio alone (ioengine=null): {} ns", null.as_nanos());
    if [read, cached, direct].iter().any(|row| out.wants(row.id)) {
        let psync = fio.with(&["--rw=randread", "--ioengine=psync"]);
        let m = interleave_rounds(
            cx,
            ROUNDS,
            Ops::Fixed(1),
            &mut [
                psync.clone().side("preload"),
                psync.on(&tmpfs.dir).side("tmpfs"),
                psync.on(&ours).side("the mount, cached"),
                psync
                    .on(&ours)
                    .with(&["--direct=1"])
                    .side("the mount, O_DIRECT"),
            ],
        )?;
        for (theirs, row) in [(1, read), (2, cached), (3, direct)] {
            out.record(row, &m, (0, theirs), std::slice::from_ref(&null));
        }
    }
    if out.wants(write.id) {
        let psync = fio.with(&["--rw=randwrite", "--ioengine=psync"]);
        let m = interleave_rounds(
            cx,
            ROUNDS,
            Ops::Fixed(1),
            &mut [
                psync.clone().side("preload"),
                psync.on(&tmpfs.dir).side("tmpfs"),
            ],
        )?;
        out.record(write, &m, (0, 1), &[null]);
    }
    Ok(())
}

fn make_files(directory: &Path) -> Result<()> {
    for job in 0..JOBS {
        drop(filled_file(&directory.join(format!("file.{job}")), FILE)?);
    }
    Ok(())
}
