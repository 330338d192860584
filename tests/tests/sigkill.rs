//! Real deaths: processes that are killed with SIGKILL at random moments, and
//! the file system they leave, against the logs that the writers kept outside
//! of it. In one run the writers go through a mount and its server is killed,
//! in the other they link the library and are killed themselves.
//!
//! `PRAMFS_TEST_KILLS` is the number of deaths in each of the two, 100 where
//! it is not set; `PRAMFS_TEST_KILLS_SEED` repeats the operations of a run
//! and the moments that were chosen (what is done by then depends on the
//! machine).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{MountOptions, inode::Fs};
use pramfs_fsck::{self as fsck, CheckOptions};
use pramfs_tests::kill::{Outcome, Record};
use pramfs_tests::mounted::{Mounted, available, program};
use pramfs_tests::random::Random;
use pramfs_tests::region::quiet;
use pramfs_tests::stress::{EngineDoor, MountDoor, remove_all};
use pramfs_tests::watchdog::Watchdog;

const SEED: &str = "PRAMFS_TEST_KILLS_SEED";
const PATIENCE: Duration = Duration::from_secs(60);
const WRITERS: u32 = 3;
/// Deaths of one file system.
const LIVES: u64 = 20;

fn deaths() -> u64 {
    let asked = std::env::var("PRAMFS_TEST_KILLS").ok();
    asked.and_then(|s| s.parse().ok()).unwrap_or(100)
}

fn directory() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let base = if shm.is_dir() {
        shm.to_owned()
    } else {
        std::env::temp_dir()
    };
    tempfile::Builder::new()
        .prefix("pramfs-test-")
        .tempdir_in(base)
        .unwrap()
}

/// The format of a file system, and its bytes: among them ones with little
/// room, so that operations are refused.
fn a_format(random: &mut Random) -> (u64, FormatOptions) {
    let len = [2 << 20, 6 << 20, 48 << 20][random.below(3) as usize];
    let block_size = [512, 1024, 4096, 4096][random.below(4) as usize];
    // As many lanes as writers, or fewer.
    let lanes = 1 + random.below(4) as u32;
    let options = FormatOptions {
        block_size,
        lanes: Some(lanes),
        ..FormatOptions::default()
    };
    (len, options)
}

/// One test at a time: a process that one of them starts has, for a moment, all
/// descriptors of the other, and with them its region and its mount.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One file system and its record.
struct Bed {
    record: Record,
    logs: tempfile::TempDir,
    region: PathBuf,
}

impl Bed {
    fn new(region: PathBuf, seed: u64) -> Bed {
        let logs = directory();
        let record = Record::new(logs.path(), WRITERS, seed);
        let fs = open(&region);
        record.begin(&EngineDoor(&fs)).unwrap();
        fs.close().unwrap();
        Bed {
            record,
            logs,
            region,
        }
    }

    /// What the death has left, seen by a program that links the library.
    fn check(&self) -> Result<Outcome, String> {
        let fs = open(&self.region);
        let outcome = self.record.check(&EngineDoor(&fs));
        fs.close().unwrap();
        self.fsck();
        outcome
    }

    fn fsck(&self) {
        let region = RegionOptions::new().open(&self.region).unwrap();
        let report = fsck::check(&region, &CheckOptions::default());
        assert!(report.is_clean(), "fsck: {report}");
    }
}

fn open(region: &Path) -> Fs {
    let region = RegionOptions::new().open(region).unwrap();
    Fs::open(region, quiet()).unwrap()
}

struct Summary {
    deaths: u64,
    total: Outcome,
    started: Instant,
}

impl Summary {
    fn new() -> Summary {
        Summary {
            deaths: 0,
            total: Outcome::default(),
            started: Instant::now(),
        }
    }

    fn add(&mut self, outcome: Outcome) {
        self.deaths += 1;
        self.total += outcome;
    }

    /// Prints it, and makes sure that the deaths met writers at work.
    fn end(self, what: &str) {
        println!(
            "{what}: {} deaths in {:.1} s: {:?}",
            self.deaths,
            self.started.elapsed().as_secs_f64(),
            self.total
        );
        let returned = self.total.returned;
        assert!(
            returned > 100 * self.deaths,
            "{returned} operations in {} lives",
            self.deaths
        );
    }
}

/// Waits so long that some deaths meet the start and most the work.
fn moment(random: &mut Random) -> Duration {
    let most = if random.one_in(5) { 10_000 } else { 120_000 };
    Duration::from_micros(random.below(most))
}

#[test]
fn what_had_returned_is_there_when_the_server_of_a_mount_is_killed() {
    let test = "the server of a mount is killed";
    if !available(test) {
        return;
    }
    let _alone = alone();
    let seed = Random::seed_from_env(SEED);
    let dog = Watchdog::new(&format!("{test}, {SEED}={seed}"), PATIENCE);
    let mut random = Random::new(seed);
    let mut summary = Summary::new();
    while summary.deaths < deaths() {
        let (len, options) = a_format(&mut random);
        let mount = Mounted::formatted(&program(), len, &options);
        let bed = Bed::new(mount.region(), random.word());
        let options = ["", "cache=none", "cache_mem=1M"][random.below(3) as usize];
        let context = format!("{SEED}={seed}, {len} bytes, options \"{options}\"");
        for _ in 0..LIVES.min(deaths() - summary.deaths) {
            dog.touch();
            mount.mount(options);
            let wait = moment(&mut random);
            let door = MountDoor(mount.path());
            let (record, door) = (&bed.record, &door);
            std::thread::scope(|scope| {
                let writers: Vec<_> = (0..WRITERS)
                    .map(|w| scope.spawn(move || record.live(door, w, u64::MAX)))
                    .collect();
                std::thread::sleep(wait);
                mount.crash();
                for writer in writers {
                    let lived = writer.join().unwrap();
                    lived.unwrap_or_else(|e| panic!("{context}: {e}"));
                }
            });
            // Through the mount, or by the library.
            let outcome = if random.one_in(2) {
                mount.mount(options);
                let outcome = record.check(door);
                mount.unmount();
                bed.fsck();
                outcome
            } else {
                while mount.is_mounted() {
                    mount.detach();
                }
                bed.check()
            };
            summary.add(outcome.unwrap_or_else(|e| panic!("{context}: {e}")));
        }
        leave_nothing(&bed);
    }
    summary.end(test);
}

/// Everything can be removed, and then there is nothing.
fn leave_nothing(bed: &Bed) {
    let fs = open(&bed.region);
    remove_all(&EngineDoor(&fs)).unwrap();
    fs.close().unwrap();
    bed.fsck();
}

/// Region, logs and seed of a process that is to be killed.
const CHILD: &str = "PRAMFS_TEST_KILLS_CHILD";

/// Not a test by itself: what the killed process does.
fn live_as_child(child: &str) {
    let parts: Vec<&str> = child.split('\n').collect();
    let [region, logs, seed] = parts[..] else {
        panic!("{CHILD}: {child}");
    };
    let record = Record::new(Path::new(logs), WRITERS, seed.parse().unwrap());
    let region = RegionOptions::new().open(region).unwrap();
    // With its timer, unlike `quiet`.
    let fs = Fs::open(region, MountOptions::default()).unwrap();
    let door = EngineDoor(&fs);
    std::thread::scope(|scope| {
        for w in 0..WRITERS {
            let (record, door) = (&record, &door);
            scope.spawn(move || {
                // A failure ends the process, or it would be taken for work.
                if let Err(e) = record.live(door, w, u64::MAX) {
                    eprintln!("{e}");
                    std::process::exit(3);
                }
            });
        }
    });
}

#[test]
fn what_had_returned_is_there_when_a_program_that_links_the_library_is_killed() {
    let name = "what_had_returned_is_there_when_a_program_that_links_the_library_is_killed";
    if let Ok(child) = std::env::var(CHILD) {
        return live_as_child(&child);
    }
    let _alone = alone();
    let seed = Random::seed_from_env(SEED);
    let dog = Watchdog::new(&format!("{name}, {SEED}={seed}"), PATIENCE);
    let mut random = Random::new(!seed);
    let mut summary = Summary::new();
    while summary.deaths < deaths() {
        let (len, options) = a_format(&mut random);
        // Views need blocks of a page.
        let options = FormatOptions {
            block_size: 4096,
            ..options
        };
        let dir = directory();
        let path = dir.path().join("region");
        let region = RegionOptions::new().create(&path, len).unwrap();
        format(&region, &options).unwrap();
        drop(region);
        let life_seed = random.word();
        let bed = Bed::new(path, life_seed);
        let context = format!("{SEED}={seed}, {len} bytes");
        for _ in 0..LIVES.min(deaths() - summary.deaths) {
            dog.touch();
            let wait = moment(&mut random);
            let (region, logs) = (bed.region.display(), bed.logs.path().display());
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture", "--test-threads=1"])
                .env(CHILD, format!("{region}\n{logs}\n{life_seed}"))
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(wait);
            child.kill().unwrap();
            let status = child.wait().unwrap();
            assert!(
                std::os::unix::process::ExitStatusExt::signal(&status) == Some(libc::SIGKILL),
                "{context}: the process ended by itself: {status}"
            );
            let outcome = bed.check();
            summary.add(outcome.unwrap_or_else(|e| panic!("{context}: {e}")));
        }
        leave_nothing(&bed);
    }
    summary.end(name);
}

/// The check is no formality: of a region as it was a little earlier, of one
/// with a changed byte, a lost name or a stranger it says so.
#[test]
fn the_check_finds_what_is_missing_and_what_is_too_much() {
    let _alone = alone();
    let dir = directory();
    let path = dir.path().join("region");
    let region = RegionOptions::new().create(&path, 16 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    drop(region);
    let bed = Bed::new(path.clone(), 7);
    let live = |most| {
        let fs = open(&path);
        for w in 0..WRITERS {
            bed.record.live(&EngineDoor(&fs), w, most).unwrap();
        }
        fs.close().unwrap();
    };
    live(300);
    let outcome = bed.check().unwrap();
    assert_eq!((outcome.returned, outcome.before), (900, 3));
    let earlier = std::fs::read(&path).unwrap();
    live(40);
    let now = std::fs::read(&path).unwrap();
    std::fs::write(&path, &earlier).unwrap();
    let lost = bed.check().unwrap_err();
    assert!(lost.contains("neither the state before"), "{lost}");

    use pramfs_tests::stress::Target;
    type Harm = fn(&EngineDoor<'_>);
    let harms: [(&str, Harm); 4] = [
        ("data differ from byte 5 on", |door| {
            let root = door.root().unwrap();
            let own = door.lookup(&root, b"w1").unwrap();
            let file = door.list(&own).unwrap().into_iter().find_map(|name| {
                let node = door.lookup(&own, &name).unwrap();
                let mut byte = [0; 6];
                (door.read(&node, 0, &mut byte) == Ok(6)).then_some((node, byte[5]))
            });
            let (node, byte) = file.expect("a file of six bytes");
            door.write(&node, 5, &[!byte]).unwrap();
        }),
        ("is missing", |door| {
            let own = door.lookup(&door.root().unwrap(), b"w2").unwrap();
            let names = door.list(&own).unwrap();
            let removed = names.iter().any(|name| door.unlink(&own, name).is_ok());
            assert!(removed);
        }),
        ("nobody has made these", |door| {
            door.create(&door.root().unwrap(), b"stranger").unwrap();
        }),
        ("is there", |door| {
            let own = door.lookup(&door.root().unwrap(), b"w0").unwrap();
            door.mkdir(&own, b"more").unwrap();
        }),
    ];
    for (expected, harm) in harms {
        std::fs::write(&path, &now).unwrap();
        let fs = open(&path);
        harm(&EngineDoor(&fs));
        fs.close().unwrap();
        let found = bed.check().unwrap_err();
        assert!(found.contains(expected), "{expected}: {found}");
    }
    std::fs::write(&path, &now).unwrap();
    assert_eq!(bed.check().unwrap().returned, 120);
}
