//! Kills processes with SIGKILL at random moments, and compares the file system with logs
//! that the writers keep outside of it. In one run, the writers use a mount and its
//! server is killed; in the other, they link the library and are killed themselves. In a
//! third one, some writers have leases beside the mount, and work on without the server.
//!
//! `PRAMFS_TEST_KILLS` is the number of kills in each of the first two runs, by default 100;
//! the third has a fifth of it.
//! `PRAMFS_TEST_KILLS_SEED` repeats the operations of a run and the chosen moments, which
//! are numbers of operations and up to a millisecond more.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{MountOptions, inode::Fs};
use pramfs_fsck::{self as fsck, CheckOptions};
use pramfs_tests::kill::{Outcome, Record, Work};
use pramfs_tests::mounted::{Mounted, available, program};
use pramfs_tests::random::Random;
use pramfs_tests::region::quiet;
use pramfs_tests::stress::{ClientAccess, EngineAccess, Leased, MountAccess, Target, remove_all};
use pramfs_tests::watchdog::Watchdog;

const SEED: &str = "PRAMFS_TEST_KILLS_SEED";
const TIMEOUT: Duration = Duration::from_secs(60);
const WRITERS: u32 = 3;
/// Kills of one file system.
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

/// The format and size of a file system. Some have little space, so that operations fail.
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

/// One test at a time: a process started by one test briefly holds all descriptors of the
/// other, and with them its region and its mount.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One file system and its record.
struct Fixture {
    record: Record,
    logs: tempfile::TempDir,
    region: PathBuf,
}

impl Fixture {
    fn new(region: PathBuf, seed: u64) -> Fixture {
        Fixture::of(region, &[Work::Everything; WRITERS as usize], seed)
    }

    fn of(region: PathBuf, works: &[Work], seed: u64) -> Fixture {
        let logs = directory();
        let record = Record::of(logs.path(), works, seed);
        let fs = open(&region);
        record.begin(&EngineAccess(&fs)).unwrap();
        fs.close().unwrap();
        Fixture {
            record,
            logs,
            region,
        }
    }

    /// The state after the kill, seen by a program that links the library.
    fn check(&self) -> Result<Outcome, String> {
        let fs = open(&self.region);
        let outcome = self.record.check(&EngineAccess(&fs));
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

    /// Asserts that the kill met writers at work.
    fn add(&mut self, outcome: Outcome, moment: &Moment) {
        assert!(
            outcome.returned >= moment.returned,
            "{} operations were found, {} had returned",
            outcome.returned,
            moment.returned
        );
        self.deaths += 1;
        self.total += outcome;
    }

    /// Prints the counts.
    fn end(self, what: &str) {
        println!(
            "{what}: {} deaths in {:.1} s: {:?}",
            self.deaths,
            self.started.elapsed().as_secs_f64(),
            self.total
        );
    }
}

/// The moment of a kill.
struct Moment {
    /// Operations that have returned by then, at least.
    returned: u64,
    /// The time after that, less than an operation may take.
    more: Duration,
}

impl Moment {
    /// Some kills hit the start, most hit the work.
    fn random(random: &mut Random) -> Moment {
        let most = if random.one_in(5) { 10 } else { 250 };
        Moment {
            returned: random.below(most),
            more: Duration::from_micros(random.below(1000)),
        }
    }

    /// Waits for the moment, or until the writers have ended.
    fn wait(&self, record: &Record, mut have_ended: impl FnMut() -> bool) {
        while record.returned() < self.returned && !have_ended() {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(self.more);
    }
}

#[test]
fn completed_ops_survive_sigkill_of_server() {
    let test = "the server of a mount is killed";
    if !available(test) {
        return;
    }
    let _alone = alone();
    let seed = Random::seed_from_env(SEED);
    let dog = Watchdog::new(&format!("{test}, {SEED}={seed}"), TIMEOUT);
    let mut random = Random::new(seed);
    let mut summary = Summary::new();
    while summary.deaths < deaths() {
        let (len, options) = a_format(&mut random);
        let mount = Mounted::formatted(&program(), len, &options);
        let fixture = Fixture::new(mount.region(), random.word());
        let options = ["", "cache=none", "cache_mem=1M"][random.below(3) as usize];
        let context = format!("{SEED}={seed}, {len} bytes, options \"{options}\"");
        for _ in 0..LIVES.min(deaths() - summary.deaths) {
            dog.touch();
            mount.mount(options);
            let moment = Moment::random(&mut random);
            let access = MountAccess(mount.path());
            let (record, access) = (&fixture.record, &access);
            std::thread::scope(|scope| {
                let writers: Vec<_> = (0..WRITERS)
                    .map(|w| scope.spawn(move || record.live(access, w, u64::MAX)))
                    .collect();
                moment.wait(record, || writers.iter().any(|w| w.is_finished()));
                mount.crash();
                for writer in writers {
                    let lived = writer.join().unwrap();
                    lived.unwrap_or_else(|e| panic!("{context}: {e}"));
                }
            });
            // Through the mount, or with the library.
            let outcome = if random.one_in(2) {
                mount.mount(options);
                let outcome = record.check(access);
                mount.unmount();
                fixture.fsck();
                outcome
            } else {
                while mount.is_mounted() {
                    mount.detach();
                }
                fixture.check()
            };
            let outcome = outcome.unwrap_or_else(|e| panic!("{context}: {e}"));
            summary.add(outcome, &moment);
        }
        leave_nothing(&fixture);
    }
    summary.end(test);
}

/// A writer through the mount, and two clients that store to their files and append to them
/// for a while after the death of the server.
#[test]
fn completed_ops_of_clients_survive_sigkill_of_server() {
    const CLIENTS: [Work; 3] = [Work::Everything, Work::Overwrites, Work::Appends];
    let test = "the server of a mount with clients is killed";
    if !available(test) {
        return;
    }
    let _alone = alone();
    let seed = Random::seed_from_env(SEED);
    let dog = Watchdog::new(&format!("{test}, {SEED}={seed}"), TIMEOUT);
    let mut random = Random::new(seed.rotate_left(1));
    let mut summary = Summary::new();
    let (mut without_call, mut appends) = (0, 0);
    while summary.deaths < deaths().div_ceil(5) {
        let options = FormatOptions {
            block_size: 4096,
            ..FormatOptions::default()
        };
        let mount = Mounted::formatted(&program(), 48 << 20, &options);
        let fixture = Fixture::of(mount.region(), &CLIENTS, random.word());
        let context = format!("{SEED}={seed}");
        for _ in 0..LIVES.min(deaths().div_ceil(5) - summary.deaths) {
            dog.touch();
            mount.mount("direct=owner");
            let moment = Moment::random(&mut random);
            let (record, plain) = (&fixture.record, &MountAccess(mount.path()));
            let clients = [(); 2].map(|()| ClientAccess::<Leased>::new(mount.path()));
            let stop = &AtomicBool::new(false);
            std::thread::scope(|scope| {
                let go_on = |_| !stop.load(Ordering::Relaxed);
                let mut writers = vec![scope.spawn(move || record.live(plain, 0, u64::MAX))];
                for (w, client) in (1..).zip(&clients) {
                    writers.push(scope.spawn(move || record.live_while(client, w, go_on)));
                }
                moment.wait(record, || writers.iter().any(|w| w.is_finished()));
                mount.crash();
                // Nothing else ends one that only stores to blocks that it knows.
                std::thread::sleep(moment.more);
                stop.store(true, Ordering::Relaxed);
                for writer in writers {
                    let lived = writer.join().unwrap();
                    lived.unwrap_or_else(|e| panic!("{context}: {e}"));
                }
            });
            let [window, all] = clients[1].appends();
            (without_call, appends) = (without_call + window, appends + all);
            // The end of their leases.
            drop(clients);
            let outcome = if random.one_in(2) {
                mount.mount("direct=owner");
                let outcome = record.check(plain);
                mount.unmount();
                fixture.fsck();
                outcome
            } else {
                while mount.is_mounted() {
                    mount.detach();
                }
                fixture.check()
            };
            let outcome = outcome.unwrap_or_else(|e| panic!("{context}: {e}"));
            summary.add(outcome, &moment);
        }
        leave_nothing(&fixture);
    }
    println!("{without_call} of {appends} appends without a call");
    summary.end(test);
}

/// The last append is not in the log, and one byte of it is missing.
#[test]
fn part_of_append_is_found_only_where_it_may_be_left() {
    let _alone = alone();
    for (work, is_allowed) in [(Work::Both, true), (Work::Appends, false)] {
        let dir = directory();
        let path = dir.path().join("region");
        let region = RegionOptions::new().create(&path, 16 << 20).unwrap();
        format(&region, &FormatOptions::default()).unwrap();
        drop(region);
        let fixture = Fixture::of(path.clone(), &[work], 7);
        let fs = open(&path);
        let access = EngineAccess(&fs);
        let size = || {
            let own = access.lookup(&access.root().unwrap(), b"w0").unwrap();
            let file = access.lookup(&own, b"file").ok()?;
            let size = access.about(&file).unwrap().size;
            Some((file, size))
        };
        // The first append makes the file longer; later operations may overwrite it.
        fixture.record.live(&access, 0, 2).unwrap();
        let (file, long) = size().unwrap();
        assert!(long > 1);
        access.truncate(&file, long - 1).unwrap();
        drop(file);
        fs.close().unwrap();
        let log = fixture.logs.path().join("w0.log");
        let log = std::fs::File::options().write(true).open(log).unwrap();
        log.set_len(8).unwrap();
        let found = fixture.check();
        match is_allowed {
            true => assert_eq!(found.unwrap().part, 1),
            false => assert!(found.unwrap_err().contains("neither the state before")),
        }
    }
}

/// Everything can be removed, and then the file system is empty.
fn leave_nothing(fixture: &Fixture) {
    let fs = open(&fixture.region);
    remove_all(&EngineAccess(&fs)).unwrap();
    fs.close().unwrap();
    fixture.fsck();
}

/// Region, logs and seed of a process to be killed.
const CHILD: &str = "PRAMFS_TEST_KILLS_CHILD";

/// Helper process: the work of the process to be killed.
fn live_as_child(child: &str) {
    let parts: Vec<&str> = child.split('\n').collect();
    let [region, logs, seed] = parts[..] else {
        panic!("{CHILD}: {child}");
    };
    let record = Record::new(Path::new(logs), WRITERS, seed.parse().unwrap());
    let region = RegionOptions::new().open(region).unwrap();
    // With its timer, unlike `quiet`.
    let fs = Fs::open(region, MountOptions::default()).unwrap();
    let access = EngineAccess(&fs);
    std::thread::scope(|scope| {
        for w in 0..WRITERS {
            let (record, access) = (&record, &access);
            scope.spawn(move || {
                // A failure ends the process; otherwise it would be mistaken for work.
                if let Err(e) = record.live(access, w, u64::MAX) {
                    eprintln!("{e}");
                    std::process::exit(3);
                }
            });
        }
    });
}

#[test]
fn completed_ops_survive_sigkill_of_library_user() {
    let name = "completed_ops_survive_sigkill_of_library_user";
    if let Ok(child) = std::env::var(CHILD) {
        return live_as_child(&child);
    }
    let _alone = alone();
    let seed = Random::seed_from_env(SEED);
    let dog = Watchdog::new(&format!("{name}, {SEED}={seed}"), TIMEOUT);
    let mut random = Random::new(!seed);
    let mut summary = Summary::new();
    while summary.deaths < deaths() {
        let (len, options) = a_format(&mut random);
        // Views need blocks of the page size.
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
        let fixture = Fixture::new(path, life_seed);
        let context = format!("{SEED}={seed}, {len} bytes");
        for _ in 0..LIVES.min(deaths() - summary.deaths) {
            dog.touch();
            let moment = Moment::random(&mut random);
            let (region, logs) = (fixture.region.display(), fixture.logs.path().display());
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture", "--test-threads=1"])
                .env(CHILD, format!("{region}\n{logs}\n{life_seed}"))
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            moment.wait(&fixture.record, || child.try_wait().unwrap().is_some());
            child.kill().unwrap();
            let status = child.wait().unwrap();
            assert!(
                std::os::unix::process::ExitStatusExt::signal(&status) == Some(libc::SIGKILL),
                "{context}: the process ended by itself: {status}"
            );
            let outcome = fixture.check();
            let outcome = outcome.unwrap_or_else(|e| panic!("{context}: {e}"));
            summary.add(outcome, &moment);
        }
        leave_nothing(&fixture);
    }
    summary.end(name);
}

/// The check detects errors: an older version of the region, a changed byte, a lost name,
/// a foreign file.
#[test]
fn kill_check_detects_missing_and_extra_state() {
    let _alone = alone();
    let dir = directory();
    let path = dir.path().join("region");
    let region = RegionOptions::new().create(&path, 16 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    drop(region);
    let fixture = Fixture::new(path.clone(), 7);
    let live = |most| {
        let fs = open(&path);
        for w in 0..WRITERS {
            fixture.record.live(&EngineAccess(&fs), w, most).unwrap();
        }
        fs.close().unwrap();
    };
    live(300);
    let outcome = fixture.check().unwrap();
    assert_eq!((outcome.returned, outcome.before), (900, 3));
    let earlier = std::fs::read(&path).unwrap();
    live(40);
    let now = std::fs::read(&path).unwrap();
    std::fs::write(&path, &earlier).unwrap();
    let lost = fixture.check().unwrap_err();
    assert!(lost.contains("neither the state before"), "{lost}");

    type Harm = fn(&EngineAccess<'_>);
    let harms: [(&str, Harm); 4] = [
        ("bytes 5..6 differ", |access| {
            let root = access.root().unwrap();
            let own = access.lookup(&root, b"w1").unwrap();
            let file = access.list(&own).unwrap().into_iter().find_map(|name| {
                let node = access.lookup(&own, &name).unwrap();
                let mut byte = [0; 6];
                (access.read(&node, 0, &mut byte) == Ok(6)).then_some((node, byte[5]))
            });
            let (node, byte) = file.expect("a file of six bytes");
            access.write(&node, 5, &[!byte]).unwrap();
        }),
        ("is missing", |access| {
            let own = access.lookup(&access.root().unwrap(), b"w2").unwrap();
            let names = access.list(&own).unwrap();
            let removed = names.iter().any(|name| access.unlink(&own, name).is_ok());
            assert!(removed);
        }),
        ("nobody has made these", |access| {
            access.create(&access.root().unwrap(), b"stranger").unwrap();
        }),
        ("is there", |access| {
            let own = access.lookup(&access.root().unwrap(), b"w0").unwrap();
            access.mkdir(&own, b"more").unwrap();
        }),
    ];
    for (expected, harm) in harms {
        std::fs::write(&path, &now).unwrap();
        let fs = open(&path);
        harm(&EngineAccess(&fs));
        fs.close().unwrap();
        let found = fixture.check().unwrap_err();
        assert!(found.contains(expected), "{expected}: {found}");
    }
    std::fs::write(&path, &now).unwrap();
    assert_eq!(fixture.check().unwrap().returned, 120);
}
