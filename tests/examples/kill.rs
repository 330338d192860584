//! Writers that keep a log outside of the file system, and the check of what
//! they leave, as a program: see `pramfs_tests::kill`. The virtual machine of
//! `tests/vm` runs it.
//!
//! ```text
//! kill begin   PLACE RECORD SEED        makes their directories, in an empty file system
//! kill live    PLACE RECORD SEED [OPS]  works until killed, or OPS operations each
//! kill clients PLACE RECORD SEED [OPS]  as live, those that have leases beside a mount
//! kill calls   PLACE RECORD SEED [OPS]  as live, the one for the preload library
//! kill check   PLACE RECORD SEED        compares, and prints what was counted
//! kill refused PLACE                    succeeds if a device has no leases, and prints why
//! ```
//! `PLACE` is a directory, on which a file system is mounted, or a region.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;

use pramfs::pmem::RegionOptions;
use pramfs::{MountOptions, inode::Fs};
use pramfs_tests::kill::{Record, Work};
use pramfs_tests::stress::{ClientAccess, EngineAccess, Leased, MountAccess, Synced, Target};

/// All writers. Each has one number in every record.
const WORKS: [Work; 6] = [
    Work::Everything,
    Work::Everything,
    Work::Everything,
    Work::Overwrites,
    Work::Appends,
    Work::Both,
];
/// Those of the mount or the library.
const PLAIN: Range<u32> = 0..3;
/// Those with the client library.
const CLIENTS: Range<u32> = 3..5;
/// That for the preload library.
const CALLS: u32 = 5;

/// Runs writers, each in a thread, until the first error or the end of all.
fn live<D: Target>(record: &Record, writers: &[(u32, &D)], most: u64) -> Result<(), String> {
    std::thread::scope(|scope| {
        let lives: Vec<_> = writers
            .iter()
            .map(|(w, access)| {
                scope.spawn(move || {
                    let lived = record.live(*access, *w, most);
                    // The others would work on, and hide it until the power cut.
                    if let (Err(error), true) = (&lived, most == u64::MAX) {
                        eprintln!("{error}");
                        std::process::exit(1);
                    }
                    lived
                })
            })
            .collect();
        let lived = lives.into_iter().map(|l| l.join().expect("a writer"));
        lived.collect()
    })
}

fn run<D: Target>(access: &D, what: &str, record: &Record, most: u64) -> Result<(), String> {
    match what {
        "begin" => record.begin(access),
        "live" => {
            let writers: Vec<_> = PLAIN.map(|w| (w, access)).collect();
            live(record, &writers, most)
        }
        "check" => {
            let outcome = record.check(access)?;
            println!("{outcome:?}");
            Ok(())
        }
        _ => Err(format!("kill: {what}: see the head of the source")),
    }
}

/// The writers with leases. Appends in windows need no call; how many, depends on how soon the
/// kernel reports closes.
fn clients(directory: &Path, record: &Record, most: u64) -> Result<(), String> {
    let accesses: Vec<ClientAccess<Leased>> = CLIENTS
        .map(|_| ClientAccess::new(directory.to_owned()))
        .collect();
    let writers: Vec<_> = CLIENTS.zip(&accesses).collect();
    live(record, &writers, most)?;
    for (w, access) in writers {
        let [without_call, all] = access.appends();
        println!("writer {w}: {without_call} of {all} appends without a call");
        // A refused window is not asked for again for 64 appends, unless the file is a new one.
        if WORKS[w as usize] == Work::Appends && without_call == 0 {
            return Err(format!("writer {w}: no append without a call"));
        }
    }
    Ok(())
}

/// Asks for a lease of a file on a device, which must be refused in clear words.
fn refused(directory: &Path) -> Result<(), String> {
    let path = directory.join("refused");
    std::fs::write(&path, [1; 100]).map_err(|e| format!("{}: {e}", path.display()))?;
    let opened = pramfs_client::OpenOptions::new().write(true).open(&path);
    let removed = std::fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()));
    match opened {
        Ok(_) => Err("a lease was granted".into()),
        Err(error) => {
            let said = error.to_string();
            match error.errno() == libc::EOPNOTSUPP && said.contains("a region on a device") {
                true => {
                    println!("{said}");
                    removed
                }
                false => Err(format!("not the error for a device: {said}")),
            }
        }
    }
}

fn work(args: &[String]) -> Result<(), String> {
    let (what, access, record, seed, most) = match args {
        [what, access] if what == "refused" => return refused(Path::new(access)),
        [what, access, record, seed] => (what, access, record, seed, u64::MAX),
        [what, access, record, seed, most] => {
            let most = most.parse().map_err(|e| format!("{most}: {e}"))?;
            (what, access, record, seed, most)
        }
        _ => return Err("usage: kill WHAT PLACE RECORD SEED [OPS]".into()),
    };
    let seed = seed.parse().map_err(|e| format!("{seed}: {e}"))?;
    let record = Record::of(Path::new(record), &WORKS, seed);
    let place = Path::new(access);
    if place.is_dir() {
        return match what.as_str() {
            "clients" => clients(place, &record, most),
            "calls" => {
                if most < u64::MAX
                    && std::env::var_os("PRAMFS_PRELOAD_PROTECT").is_some_and(|v| v == "pkey")
                {
                    has_key(place)?;
                }
                let access = ClientAccess::<Synced>::new(place.to_owned());
                live(&record, &[(CALLS, &access)], most)
            }
            _ => run(&MountAccess(place.to_owned()), what, &record, most),
        };
    }
    let region = RegionOptions::new()
        .open(access)
        .map_err(|e| e.to_string())?;
    let fs = Fs::open(region, MountOptions::default()).map_err(|e| e.to_string())?;
    let done = run(&EngineAccess(&fs), what, &record, most);
    fs.close().map_err(|e| e.to_string()).and(done)
}

/// Whether a leased file of the preload library gives the process a mapping with a protection key.
fn has_key(place: &Path) -> Result<(), String> {
    let path = place.join("has-key");
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .and_then(|file| file.write_all_at(&[1; 8192], 0))
        // A file that is not empty gets its lease when it is opened.
        .and_then(|()| File::options().read(true).write(true).open(&path))
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let written = file.write_all_at(&[2; 4096], 0);
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let keys = maps
        .lines()
        .filter_map(|l| l.strip_prefix("ProtectionKey:"));
    let found = keys.filter(|key| key.trim() != "0").count();
    drop(file);
    let removed = std::fs::remove_file(&path);
    written
        .and(removed)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    match found {
        0 => Err("no mapping of this process has a protection key".into()),
        _ => Ok(()),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match work(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
