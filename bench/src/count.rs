//! `pramfs-bench count`: counts the instructions of one operation of the engine with
//! `valgrind --tool=callgrind`.
//!
//! Time varies from run to run and from machine to machine; the number of
//! instructions hardly does. One run repeats an operation `BASE_COUNT` times, another three
//! times as often. The difference, divided by the additional operations, is the cost of
//! one, without the start-up. Code for processors that valgrind does not support
//! (AVX-512) is not used under it. `compare` times the same operations.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{
    MountOptions, RenameFlags,
    inode::{Credentials, Fs, Ino, SetAttr},
};

use crate::harness::Table;
use crate::sys::Aligned;

/// Bytes of the region.
pub const REGION: u64 = 64 << 20;
const PAGE: usize = 4096;
const FILE: u64 = 16 << 20;
/// Pages that are appended before the file is truncated to zero.
const APPENDS: u64 = 4 * BASE_COUNT;
/// Operations of the shorter run.
const BASE_COUNT: u64 = 1024;
/// Number of different names.
const NAMES: u64 = 1000;

/// Repeats an operation; returns the time without the preparation.
pub type Work = fn(&Fs, u64) -> Result<Duration>;

/// The operations. A row of `compare` has the number of one of them.
pub const OPERATIONS: &[(&str, Work)] = &[
    ("read 4 KiB", read),
    ("write 4 KiB", write),
    ("append 4 KiB", append),
    ("create + unlink", create_unlink),
    ("rename", rename),
    ("mkdir + rmdir", mkdir_rmdir),
    ("lookup + getattr", lookup),
];

/// Operations that are only counted.
const VARIANTS: &[(&str, Work)] = &[("write 4 KiB, atomic", write_atomic), (SUMMED, read)];

/// The operation in a file system with checksums of data.
const SUMMED: &str = "read 4 KiB, compared with its checksum";

fn all() -> impl Iterator<Item = &'static (&'static str, Work)> {
    OPERATIONS.iter().chain(VARIANTS)
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Count only operations whose name contains this
    #[arg(long)]
    filter: Option<String>,
    /// Repeat the operation with this number, count nothing, and print the
    /// nanoseconds taken
    #[arg(long, hide = true, num_args = 2, value_names = ["NUMBER", "TIMES"])]
    only: Vec<u64>,
    /// Prefaulted file for the region [default: a new one]
    #[arg(long, hide = true, value_name = "PATH")]
    region: Option<PathBuf>,
}

/// Counts all operations, or repeats one of them.
///
/// # Errors
/// If valgrind is missing or fails; engine errors.
pub fn run(args: &Args, json: &Path) -> Result<()> {
    if let [number, times] = args.only[..] {
        let (name, work) = all()
            .nth(number as usize)
            .context("there is no operation with this number")?;
        let summed = *name == SUMMED;
        let fs = match &args.region {
            Some(path) => open(path, summed)?,
            None => engine(summed)?,
        };
        println!("{}", work(&fs, times)?.as_nanos());
        return Ok(());
    }
    let mut table = Table::new(20, &["operation", "instructions"]);
    for (number, (name, _)) in all().enumerate() {
        if args.filter.as_ref().is_some_and(|f| !name.contains(f)) {
            continue;
        }
        let each = each(&std::env::current_exe()?, number)?;
        table.row(vec![(*name).to_owned(), format!("{each:.0}")]);
    }
    if args.filter.is_some() {
        return Ok(());
    }
    table.write_json(json)
}

/// Counts the instructions of one operation in a build of this program.
///
/// # Errors
/// If valgrind is missing or fails.
pub fn each(program: &Path, number: usize) -> Result<f64> {
    let some = instructions(program, number, BASE_COUNT)?;
    let more = instructions(program, number, 3 * BASE_COUNT)?;
    Ok(more.saturating_sub(some) as f64 / (2 * BASE_COUNT) as f64)
}

/// Returns callgrind's count for a run of a program.
fn instructions(program: &Path, number: usize, times: u64) -> Result<u64> {
    let (number, times) = (number.to_string(), times.to_string());
    instructions_of(program, &["count", "--only", &number, &times])
}

/// Returns callgrind's count for a run of a program with these arguments.
///
/// # Errors
/// If valgrind is missing or fails.
pub fn instructions_of(program: &Path, arguments: &[&str]) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context("valgrind: apt-get install valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "valgrind: {said}");
    let count = said.lines().find_map(|line| {
        let (_, count) = line.split_once("Collected :")?;
        count.trim().parse().ok()
    });
    match count {
        Some(count) => Ok(count),
        None => bail!("valgrind printed no count: {said}"),
    }
}

/// Times an operation in a build of this program, repeated in a file of [`REGION`]
/// bytes.
///
/// # Errors
/// If the program is missing, or too old to print the time.
pub fn time_in(program: &Path, region: &Path, number: usize, times: u64) -> Result<Duration> {
    let output = Command::new(program)
        .args(["count", "--only", &number.to_string(), &times.to_string()])
        .arg("--region")
        .arg(region)
        .stdin(Stdio::null())
        .output()
        .with_context(|| program.display().to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", program.display());
    let printed = String::from_utf8_lossy(&output.stdout);
    let nanoseconds = printed.trim().parse().with_context(|| {
        let program = program.display();
        format!("{program} is too old: it does not print the time of an operation")
    })?;
    Ok(Duration::from_nanos(nanoseconds))
}

/// Makes a file system on prefaulted pages, without work in the background. Buffers
/// start at a cache line: otherwise their alignment depends on the build, and an
/// unaligned overwrite takes a tenth longer.
pub fn engine(summed: bool) -> Result<Fs> {
    let path = PathBuf::from(format!("/dev/shm/pramfs-count.{}", std::process::id()));
    let zeros = vec![0; REGION as usize];
    std::fs::write(&path, zeros).with_context(|| path.display().to_string())?;
    let opened = open(&path, summed);
    std::fs::remove_file(&path)?;
    opened
}

fn open(path: &Path, summed: bool) -> Result<Fs> {
    let region = RegionOptions::new().open(path)?;
    // Fixed, so that names have the same hashes in every run.
    let fixed = FormatOptions {
        uuid: Some([1; 16]),
        hash_seed: Some([2; 16]),
        features: summed
            .then(|| ("data_checksums".to_owned(), true))
            .into_iter()
            .collect(),
        ..FormatOptions::default()
    };
    format(&region, &fixed)?;
    region.populate(0, region.len())?;
    let options = MountOptions {
        background: false,
        ..MountOptions::default()
    };
    Ok(Fs::open(region, options)?)
}

fn file(fs: &Fs) -> Result<(Ino, pramfs::File)> {
    let ino = fs
        .create(&Credentials::ROOT, Ino::ROOT, b"file", 0o644)?
        .ino;
    let chunk = vec![0x5a; 1 << 20];
    for at in (0..FILE).step_by(chunk.len()) {
        fs.write(&Credentials::ROOT, ino, at, &chunk)?;
    }
    Ok((ino, fs.open_file(ino)?))
}

fn page(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9) % (FILE / PAGE as u64) * PAGE as u64
}

fn read(fs: &Fs, times: u64) -> Result<Duration> {
    let (_, file) = file(fs)?;
    let mut buffer = Aligned::filled(PAGE, 0)?;
    let start = Instant::now();
    for n in 0..times {
        file.read_at(buffer.bytes_mut(), page(n))?;
    }
    Ok(start.elapsed())
}

fn write(fs: &Fs, times: u64) -> Result<Duration> {
    let (_, file) = file(fs)?;
    let bytes = Aligned::filled(PAGE, 0xa5)?;
    let start = Instant::now();
    for n in 0..times {
        file.write_at(bytes.bytes(), page(n))?;
    }
    Ok(start.elapsed())
}

fn write_atomic(fs: &Fs, times: u64) -> Result<Duration> {
    let (_, file) = file(fs)?;
    let bytes = Aligned::filled(PAGE, 0xa5)?;
    let start = Instant::now();
    for n in 0..times {
        file.write_atomic(bytes.bytes(), page(n))?;
    }
    Ok(start.elapsed())
}

fn append(fs: &Fs, times: u64) -> Result<Duration> {
    let (ino, file) = file(fs)?;
    // Blocks that were written before.
    let empty = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    let bytes = Aligned::filled(PAGE, 0xa5)?;
    let (mut left, mut took) = (times, Duration::ZERO);
    while left > 0 {
        let some = left.min(APPENDS);
        fs.setattr(&Credentials::ROOT, ino, &empty)?;
        let start = Instant::now();
        for _ in 0..some {
            file.append(bytes.bytes())?;
        }
        took += start.elapsed();
        left -= some;
    }
    Ok(took)
}

/// Names that a loop uses in turn. Making a name takes 500 instructions, so no loop makes
/// one.
struct Names(Vec<Vec<u8>>);

impl Names {
    fn new() -> Names {
        let name = |n| format!("a name that is number {n}").into_bytes();
        Names((0..NAMES).map(name).collect())
    }

    fn get(&self, n: u64) -> &[u8] {
        &self.0[(n % NAMES) as usize]
    }
}

fn create_unlink(fs: &Fs, times: u64) -> Result<Duration> {
    let names = Names::new();
    let start = Instant::now();
    for n in 0..times {
        fs.create(&Credentials::ROOT, Ino::ROOT, names.get(n), 0o644)?;
        fs.unlink(Ino::ROOT, names.get(n))?;
    }
    Ok(start.elapsed())
}

fn rename(fs: &Fs, times: u64) -> Result<Duration> {
    let (cx, root) = (Credentials::ROOT, Ino::ROOT);
    let names = Names::new();
    fs.create(&cx, root, names.get(0), 0o644)?;
    let start = Instant::now();
    for n in 0..times {
        let (from, to) = (names.get(n), names.get(n + 1));
        fs.rename(&cx, root, from, root, to, RenameFlags::default())?;
    }
    Ok(start.elapsed())
}

fn mkdir_rmdir(fs: &Fs, times: u64) -> Result<Duration> {
    let names = Names::new();
    let start = Instant::now();
    for n in 0..times {
        fs.mkdir(&Credentials::ROOT, Ino::ROOT, names.get(n), 0o755)?;
        fs.rmdir(Ino::ROOT, names.get(n))?;
    }
    Ok(start.elapsed())
}

fn lookup(fs: &Fs, times: u64) -> Result<Duration> {
    let names = Names::new();
    for n in 0..NAMES {
        fs.create(&Credentials::ROOT, Ino::ROOT, names.get(n), 0o644)?;
    }
    let start = Instant::now();
    for n in 0..times {
        fs.lookup(Ino::ROOT, names.get(n))?;
    }
    Ok(start.elapsed())
}
