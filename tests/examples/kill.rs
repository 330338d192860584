//! Writers that keep a log outside of the file system, and the check of what
//! they leave, as a program: see `pramfs_tests::kill`. The virtual machine of
//! `tests/vm` runs it.
//!
//! ```text
//! life begin PLACE RECORD SEED        makes their directories, in an empty file system
//! life live  PLACE RECORD SEED [OPS]  works until killed, or OPS operations each
//! life check PLACE RECORD SEED        compares, and prints what was counted
//! ```
//! `PLACE` is a directory, on which a file system is mounted, or a region.

use std::path::Path;
use std::process::ExitCode;

use pramfs::pmem::RegionOptions;
use pramfs::{MountOptions, inode::Fs};
use pramfs_tests::kill::Record;
use pramfs_tests::stress::{EngineAccess, MountAccess, Target};

const WRITERS: u32 = 3;

fn run<D: Target>(access: &D, what: &str, record: &Record, most: u64) -> Result<(), String> {
    match what {
        "begin" => record.begin(access),
        "live" => std::thread::scope(|scope| {
            let lives: Vec<_> = (0..WRITERS)
                .map(|w| scope.spawn(move || record.live(access, w, most)))
                .collect();
            let lived = lives.into_iter().map(|l| l.join().expect("a writer"));
            lived.collect()
        }),
        "check" => {
            let outcome = record.check(access)?;
            println!("{outcome:?}");
            Ok(())
        }
        _ => Err(format!("life: {what}: not one of begin, live, check")),
    }
}

fn work(args: &[String]) -> Result<(), String> {
    let (what, access, record, seed, most) = match args {
        [what, access, record, seed] => (what, access, record, seed, u64::MAX),
        [what, access, record, seed, most] => {
            let most = most.parse().map_err(|e| format!("{most}: {e}"))?;
            (what, access, record, seed, most)
        }
        _ => return Err("usage: life begin|live|check PLACE RECORD SEED [OPS]".into()),
    };
    let seed = seed.parse().map_err(|e| format!("{seed}: {e}"))?;
    let record = Record::new(Path::new(record), WRITERS, seed);
    if Path::new(access).is_dir() {
        return run(&MountAccess(access.into()), what, &record, most);
    }
    let region = RegionOptions::new()
        .open(access)
        .map_err(|e| e.to_string())?;
    let fs = Fs::open(region, MountOptions::default()).map_err(|e| e.to_string())?;
    let done = run(&EngineAccess(&fs), what, &record, most);
    fs.close().map_err(|e| e.to_string()).and(done)
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
