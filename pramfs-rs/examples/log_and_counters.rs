//! A small append-only log and a table of counters, on persistent memory,
//! without system calls on the way.
//!
//! ```sh
//! cargo run --release -p pramfs --example log_and_counters -- REGION [SIZE [RECORDS]]
//! ```
//! makes the region (SIZE: 64M) when there is none, recovers what the last run
//! left, appends RECORDS records (10000) and counts each. Kill it at any moment
//! and run it again: no record that was acknowledged is missing, and the
//! counters go on where they stood.
//!
//! Two ways to use the medium stand side by side here. The log is written by
//! `File::append`, which is atomic and durable when it returns. The counters
//! are loads and stores: one aligned word each, changed in place through a
//! `MappedFile` and made durable by `persist`.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{Access, File, FileSystem, MappedFile, MountOptions, OpenOptions};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// A record in the log: length and CRC32C of the payload, four bytes each,
/// then the payload.
const HEADER: usize = 8;
/// A length beyond this is no record.
const PAYLOAD_MAX: usize = 1 << 16;

struct Log {
    file: File,
}

/// What the scan at the start has found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    /// Whole records.
    pub records: u64,
    /// Their payloads, bytes.
    pub bytes: u64,
    /// Bytes after the last whole record, cut off.
    pub torn: u64,
}

impl Log {
    /// Opens the log and reads it from its beginning. What follows the last
    /// whole record is cut off: an append is atomic, so there is nothing
    /// unless somebody else wrote to the file.
    fn open(fs: &FileSystem) -> Result<(Log, Scan)> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(fs, "/log")?;
        let size = file.metadata()?.len();
        let (mut at, mut scan) = (0, Scan::default());
        let mut payload = Vec::new();
        while let Some(len) = Self::check(&file, at, size, &mut payload)? {
            at += (HEADER + len) as u64;
            scan.records += 1;
            scan.bytes += len as u64;
        }
        if at < size {
            scan.torn = size - at;
            file.set_len(at)?;
        }
        Ok((Log { file }, scan))
    }

    /// The length of the payload of the record at `at`, if that is whole.
    fn check(file: &File, at: u64, size: u64, payload: &mut Vec<u8>) -> Result<Option<usize>> {
        let mut head = [0; HEADER];
        if size - at < HEADER as u64 {
            return Ok(None);
        }
        file.read_at(&mut head, at)?;
        let [len, crc] =
            [0, 4].map(|i| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]));
        let len = len as usize;
        if len == 0 || len > PAYLOAD_MAX || (HEADER + len) as u64 > size - at {
            return Ok(None);
        }
        payload.resize(len, 0);
        file.read_at(payload, at + HEADER as u64)?;
        Ok((crc32c::crc32c(payload) == crc).then_some(len))
    }

    /// Appends a record; it is in the log, whole, when this returns.
    fn append(&self, payload: &[u8], buffer: &mut Vec<u8>) -> Result<()> {
        buffer.clear();
        buffer.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        buffer.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
        buffer.extend_from_slice(payload);
        self.file.append(buffer)?;
        Ok(())
    }
}

/// Counters of 8 bytes, a cache line apart so that each is flushed alone.
struct Counters {
    view: MappedFile,
}

/// Which counter.
#[derive(Debug, Clone, Copy)]
enum Counter {
    Runs = 0,
    Records = 1,
    Bytes = 2,
}

impl Counters {
    const LINE: u64 = 64;
    const LEN: u64 = 4096;

    /// The table; a new one is zeros, which is what it starts with.
    fn open(fs: &FileSystem) -> Result<Counters> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(fs, "/counters")?;
        if file.metadata()?.len() < Self::LEN {
            file.set_len(Self::LEN)?;
        }
        // The view keeps the file's blocks: `file` itself may go.
        let view = file.map(0..Self::LEN, Access::Write)?;
        Ok(Counters { view })
    }

    fn get(&self, which: Counter) -> Result<u64> {
        Ok(self.view.load::<u64>(which as u64 * Self::LINE)?)
    }

    /// Durable when it returns. A crash leaves the old number or the new one.
    fn add(&self, which: Counter, n: u64) -> Result<()> {
        let at = which as u64 * Self::LINE;
        self.view.fetch_add::<u64>(at, n)?;
        Ok(self.view.persist(at..at + 8)?)
    }

    fn set(&self, which: Counter, value: u64) -> Result<()> {
        let at = which as u64 * Self::LINE;
        self.view.store::<u64>(at, value)?;
        Ok(self.view.persist(at..at + 8)?)
    }
}

/// Opens the region, or makes it. A region that is made has its name only when
/// it is whole, so that a kill in between leaves nothing half made.
fn region(path: &Path, size: u64) -> Result<FileSystem> {
    if !path.exists() {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".unfinished");
        let _ = std::fs::remove_file(&unfinished);
        let region = RegionOptions::new().create(&unfinished, size)?;
        format(&region, &FormatOptions::default())?;
        drop(region);
        std::fs::rename(&unfinished, path)?;
        println!("made {}, {size} bytes", path.display());
    }
    let region = RegionOptions::new().open(path)?;
    let info = region.info();
    println!(
        "{}: {}; the contents {}",
        info.name,
        info.backend,
        info.persistence.describe()
    );
    Ok(FileSystem::mount(region, MountOptions::default())?)
}

/// What a run has found and done.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// What was in the log before.
    pub before: Scan,
    /// What the counter of records said then.
    pub counted: u64,
    /// How many runs there have been, this one included.
    pub runs: u64,
}

/// One run.
///
/// # Errors
/// Those of the region and of the file system.
pub fn run(path: &Path, size: u64, records: u64) -> Result<Outcome> {
    let fs = region(path, size)?;
    let recovery = fs.recovery();
    println!(
        "the last unmount was {}; {} journal records replayed in {:?}",
        if recovery.was_clean {
            "clean"
        } else {
            "a crash"
        },
        recovery.records,
        recovery.time,
    );
    let (log, before) = Log::open(&fs)?;
    let counters = Counters::open(&fs)?;
    let counted = counters.get(Counter::Records)?;
    println!(
        "log: {} records, {} bytes, {} torn; counted: {counted}",
        before.records, before.bytes, before.torn
    );
    // A record is appended first and counted then: a crash in between leaves
    // the count one behind, and the log knows better.
    if counted != before.records {
        println!(
            "the counters lag behind the log: {counted} becomes {}",
            before.records
        );
        counters.set(Counter::Records, before.records)?;
    }
    counters.set(Counter::Bytes, before.bytes)?;
    counters.add(Counter::Runs, 1)?;
    let runs = counters.get(Counter::Runs)?;

    let (mut appending, mut counting) = (Duration::ZERO, Duration::ZERO);
    let mut buffer = Vec::new();
    for i in 0..records {
        let payload = format!(
            "record {} of run {runs}: {}",
            before.records + i,
            "x".repeat((i % 50) as usize)
        );
        let start = Instant::now();
        log.append(payload.as_bytes(), &mut buffer)?;
        let appended = Instant::now();
        counters.add(Counter::Records, 1)?;
        counters.add(Counter::Bytes, payload.len() as u64)?;
        appending += appended - start;
        counting += appended.elapsed();
        if i == 0 {
            println!("run {runs}: the first record is in the log");
        }
    }
    let each = |total: Duration| total.as_nanos() / u128::from(records.max(1));
    println!(
        "run {runs}: {records} records appended, {} ns each; two counters each, {} ns; now {} records, {} bytes",
        each(appending),
        each(counting),
        counters.get(Counter::Records)?,
        counters.get(Counter::Bytes)?,
    );
    drop((log, counters));
    fs.unmount()?;
    Ok(Outcome {
        before,
        counted,
        runs,
    })
}

/// `64M` and the like.
fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let bytes = args.get(1).map_or(Some(64 << 20), |s| size(s));
    let records = args.get(2).map_or(Some(10_000), |s| s.parse().ok());
    match (args.first(), bytes, records) {
        (Some(path), Some(bytes), Some(records)) if args.len() <= 3 => {
            run(Path::new(path), bytes, records)?;
            Ok(())
        }
        _ => Err("usage: log_and_counters REGION [SIZE [RECORDS]], for example: log_and_counters ./region 64M".into()),
    }
}
