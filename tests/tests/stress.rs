//! Threads of mixed operations over one small tree, and invariants during and after the
//! run: every byte read can be explained, link counts match the names, fsck finds
//! nothing, a remount shows the same, all space is freed, nothing hangs.
//!
//! `PRAMFS_STRESS_SECONDS` is the time of each test, `PRAMFS_STRESS_SEED` repeats the
//! operations of a run (not their interleaving).

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{Region, RegionOptions};
use pramfs::{AtimePolicy, MountOptions, inode::Fs};
use pramfs_fsck::{self as fsck, CheckOptions};
use pramfs_tests::mounted::{Mounted, available, program};
use pramfs_tests::random::Random;
use pramfs_tests::stress::{
    EngineAccess, MountAccess, Plan, Target, Totals, assert_same, populate, remove_all, run, walk,
};
use pramfs_tests::watchdog::Watchdog;

const SEED: &str = "PRAMFS_STRESS_SEED";
const TIMEOUT: Duration = Duration::from_secs(30);

fn time() -> Duration {
    let asked = std::env::var("PRAMFS_STRESS_SECONDS").ok();
    Duration::from_secs_f64(asked.and_then(|s| s.parse().ok()).unwrap_or(5.0))
}

fn watch(test: &str, seed: u64) -> Watchdog {
    Watchdog::new(&format!("{test}, {SEED}={seed}"), TIMEOUT)
}

fn print(totals: &Totals) {
    println!(
        "{} operations, {} of them met a full region; done: {:?}",
        totals.operations, totals.full, totals.done
    );
}

fn check(region: &Region) {
    let report = fsck::check(region, &CheckOptions::default());
    assert!(report.is_clean(), "fsck: {report}");
}

fn mount_options() -> MountOptions {
    MountOptions {
        // The minimum: a thousand inodes.
        cache_bytes: 1,
        // Reads change inodes too.
        atime: AtimePolicy::StrictAtime,
        ..MountOptions::default()
    }
}

/// Creates the maximum of everything and removes it, so that tables and bitmaps have
/// reached their size.
fn grow_tables(fs: &Fs) -> u64 {
    let access = EngineAccess(fs);
    let (root, mut made, mut open) = (access.root().unwrap(), 0, Vec::new());
    while let Ok(node) = access.create(&root, format!("{made}").as_bytes()) {
        made += 1;
        if open.len() < 500 {
            open.push(node);
        }
    }
    assert!(made > 100, "{made} inodes");
    // With hundreds of unlinked inodes.
    remove_all(&access).unwrap();
    drop(open);
    let all = access.create(&root, b"all").unwrap();
    let mut at = 0;
    while let Ok(n) = access.write(&all, at, &[1; 1 << 16]) {
        at += n as u64;
    }
    drop(all);
    remove_all(&access).unwrap();
    drop(root);
    access.sync().unwrap()
}

struct Engine {
    region: u64,
    inodes: u64,
    plan: Plan,
}

fn engine(test: &str, make: impl Fn(u64) -> Engine) {
    let seed = Random::seed_from_env(SEED);
    let Engine {
        region: len,
        inodes,
        plan,
    } = make(seed);
    let dog = watch(test, seed);
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    let dir = tempfile::Builder::new()
        .prefix("pramfs-test-")
        .tempdir_in(base)
        .unwrap();
    let path = dir.path().join("region");
    let region = RegionOptions::new().create(&path, len).unwrap();
    let options = FormatOptions {
        max_inodes: Some(inodes),
        ..FormatOptions::default()
    };
    format(&region, &options).unwrap();
    let fs = Fs::open(region, mount_options()).unwrap();
    let free = grow_tables(&fs);
    let access = EngineAccess(&fs);
    populate(&access, plan.cold).unwrap();
    let totals = run(&access, &plan, &dog).unwrap_or_else(|e| panic!("{e}\n{SEED}={seed}"));
    print(&totals);
    for what in ["rename EXCHANGE", "store", "truncate", "setxattr", "rmdir"] {
        assert!(totals.done.contains_key(what), "no {what} was done");
    }
    dog.touch();
    let memory = fs.memory();
    println!("{memory:?}");
    assert_eq!(memory.referenced, 0, "references are left");
    if plan.cold > 2000 {
        let all = plan.cold as usize;
        assert!(memory.inodes < all, "nothing was evicted: {memory:?}");
    } else {
        assert!(totals.full > 0, "the region was never full");
    }
    let before = walk(&access).unwrap();
    println!("{} names at the end", before.len());
    fs.close().unwrap();
    let open = || RegionOptions::new().open(&path).unwrap();
    check(&open());
    dog.touch();
    let fs = Fs::open(open(), mount_options()).unwrap();
    let access = EngineAccess(&fs);
    assert!(fs.recovery().was_clean);
    assert_same(&before, &walk(&access).unwrap(), "a remount");
    remove_all(&access).unwrap();
    assert_eq!(
        access.sync().unwrap(),
        free,
        "free blocks, at the end and before"
    );
    fs.close().unwrap();
    check(&open());
}

#[test]
fn concurrent_work_with_free_space_keeps_every_byte_explained() {
    engine("stress of the engine", |seed| Engine {
        region: 384 << 20,
        inodes: 8192,
        plan: Plan {
            seed,
            threads: 9,
            first_writer: 1,
            names: 8,
            time: time(),
            units: 160,
            own: 5 << 20,
            cold: 4000,
        },
    });
}

#[test]
fn concurrent_work_on_full_region_keeps_every_byte_explained() {
    engine("stress of a full engine", |seed| Engine {
        region: 4 << 20,
        inodes: 1024,
        plan: Plan {
            seed,
            threads: 8,
            first_writer: 1,
            names: 8,
            time: time(),
            units: 160,
            own: 128 << 10,
            cold: 50,
        },
    });
}

/// Two names, so that views, truncations and punches of one file meet.
#[test]
fn concurrent_work_on_two_names_keeps_every_byte_explained() {
    engine("stress of few files", |seed| Engine {
        region: 8 << 20,
        inodes: 1024,
        plan: Plan {
            seed,
            threads: 8,
            first_writer: 1,
            names: 2,
            time: time(),
            units: 64,
            own: 2 << 20,
            cold: 50,
        },
    });
}

/// The mount point, the first writer and the seed of a process.
const CHILD: &str = "PRAMFS_TEST_STRESS_CHILD";

fn on_a_mount(test: &str, name: &str, options: &str, len: u64) {
    let plan = |seed, first_writer, cold| Plan {
        seed,
        threads: 4,
        first_writer,
        names: 6,
        time: time() * 4 / 5,
        units: 160,
        own: 128 << 10,
        cold,
    };
    if let Some(child) = std::env::var_os(CHILD) {
        let child = child.into_string().unwrap();
        let mut parts = child.splitn(3, ' ');
        let mut number = || parts.next().unwrap().parse::<u64>().unwrap();
        let (first, seed) = (number(), number());
        let dog = watch(test, seed);
        let access = MountAccess(parts.next().unwrap().into());
        match run(&access, &plan(seed, first, 200), &dog) {
            Ok(totals) => print(&totals),
            Err(e) => panic!("{e}\n{SEED}={seed}"),
        }
        return;
    }
    if !available(test) {
        return;
    }
    let seed = Random::seed_from_env(SEED);
    let mount = Mounted::new(&program(), len, options);
    let access = MountAccess(mount.path());
    populate(&access, 200).unwrap();
    let children: Vec<_> = [1, 21]
        .map(|first| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .env(CHILD, format!("{first} {seed} {}", mount.path().display()))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .into_iter()
        .collect();
    for child in children {
        let out = child.wait_with_output().unwrap();
        let said = [&out.stdout[..], &out.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(out.status.success(), "{}:\n{said}", out.status);
        let totals = said.lines().find(|l| l.contains("operations"));
        let totals = totals.expect("what the process has done");
        println!("{totals}");
        assert!(
            options.is_empty() || !totals.contains(" 0 of them"),
            "the region was never full"
        );
    }
    let dog = watch(test, seed);
    let before = walk(&access).unwrap();
    println!("{} names at the end", before.len());
    mount.unmount();
    let open = || RegionOptions::new().open(mount.region()).unwrap();
    check(&open());
    dog.touch();
    mount.mount(options);
    assert_same(&before, &walk(&access).unwrap(), "a remount");
    remove_all(&access).unwrap();
    mount.unmount();
    check(&open());
    // The root and the tables remain.
    let fs = Fs::open(open(), MountOptions::default()).unwrap();
    assert!(walk(&EngineAccess(&fs)).unwrap().is_empty());
    let s = fs.statfs().unwrap();
    assert!(s.free * 10 > s.blocks * 6, "space has not come back: {s:?}");
}

#[test]
fn concurrent_work_on_mount_keeps_every_byte_explained() {
    let name = "concurrent_work_on_mount_keeps_every_byte_explained";
    on_a_mount("stress of a mount", name, "", 64 << 20);
}

#[test]
fn concurrent_work_on_full_mount_keeps_every_byte_explained() {
    let name = "concurrent_work_on_full_mount_keeps_every_byte_explained";
    on_a_mount(
        "stress of a mount with cache=none",
        name,
        "cache=none",
        3 << 20,
    );
}
