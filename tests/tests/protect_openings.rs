//! How often an operation opens a protected region: twice at most if it writes, never if it
//! reads. And after each, the region is closed.
//!
//! The list has every operation of the engine (`pramfs-rs/src/fs/ops`); a new one fails the
//! test until it is here.
#![cfg(all(target_arch = "x86_64", feature = "testing"))]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use pramfs::format::format;
use pramfs::inode::{Credentials, Engine, Fs, Ino, LeaseMode, SetAttr, SetTime};
use pramfs::pmem::{Protect, Region, RegionOptions, free_protection_keys};
use pramfs::{Fallocate, RenameFlags, Result, SeekWhence, XattrMode};
use pramfs_fsck::{CheckOptions, Policy, RepairOptions, check, check_fs, repair};
use pramfs_medium::pmem::{RegionAccess, openings, refuse_openings};
use pramfs_tests::region::{quiet, repeatable};
use pramfs_tests::skip::skipped;
use pramfs_tests::wild;

/// Directory and name, before and after.
type Move<'n> = (Ino, &'n [u8], Ino, &'n [u8], RenameFlags);

const LEN: u64 = 256 << 20;
const CTX: Credentials<'static> = Credentials::ROOT;
/// The most openings of an operation that writes.
const BUDGET: u64 = 2;

/// Operations without a row, with the reason.
const WITHOUT: &[(&str, &str)] = &[
    ("lease", "of a grant: tells what it has"),
    ("descriptor", "of a grant: opens a file"),
    ("try_lease_lock", "locks a file"),
    ("watch_leases", "notes a function"),
    ("grow", "opens the region for each of its steps"),
];

/// A protected region in use, and what its operations have cost.
struct Counted {
    fs: Fs,
    stores_at: usize,
    /// The most openings of each operation.
    worst: RefCell<BTreeMap<&'static str, u64>>,
}

impl Counted {
    fn new(protect: Protect, name: &str) -> Counted {
        let region = RegionOptions::new()
            .protect(protect)
            .memfd(name, LEN)
            .unwrap();
        assert_eq!(region.info().protect, protect);
        format(&region, &repeatable(4096)).unwrap();
        let loads = region.raw_range(0, 8).unwrap().addr();
        let all = wild::mappings(&format!("memfd:{name}"));
        let stores_at = all.iter().find(|range| range.start != loads).unwrap().start;
        Counted {
            fs: Fs::open(region, quiet()).unwrap(),
            stores_at,
            worst: RefCell::default(),
        }
    }

    /// Does an operation, and counts.
    fn count<T>(&self, name: &'static str, op: impl FnOnce(&Engine) -> T) -> T {
        let before = openings();
        let done = op(&self.fs);
        let opened = openings() - before;
        let mut worst = self.worst.borrow_mut();
        let most = worst.entry(name).or_default();
        *most = opened.max(*most);
        // The last bytes of the region are free.
        let place = self.stores_at + LEN as usize - 8;
        // SAFETY: a place of the region, which holds no object of the language.
        let refused = unsafe { wild::store(place, 1) };
        assert!(refused.is_err(), "{name} leaves the region open");
        done
    }

    fn read<T>(&self, name: &'static str, op: impl FnOnce(&Engine) -> Result<T>) -> T {
        let before = openings();
        let done = self
            .count(name, op)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(openings(), before, "{name} only reads");
        done
    }

    fn write<T>(&self, name: &'static str, op: impl FnOnce(&Engine) -> Result<T>) -> T {
        let before = openings();
        let done = self
            .count(name, op)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let opened = openings() - before;
        assert!(opened <= BUDGET, "{name} opens the region {opened} times");
        done
    }
}

fn size(bytes: u64) -> SetAttr {
    SetAttr {
        size: Some(bytes),
        ..SetAttr::default()
    }
}

/// Names: enough for a directory of several blocks.
fn names(c: &Counted) -> Ino {
    let dir = c
        .write("mkdir", |fs| fs.mkdir(&CTX, Ino::ROOT, b"dir", 0o755))
        .ino;
    let other = c
        .write("mkdir", |fs| fs.mkdir(&CTX, Ino::ROOT, b"other", 0o2755))
        .ino;
    for i in 0..600 {
        let name = format!("a rather long name of a file, number {i:06}");
        c.write("create", |fs| fs.create(&CTX, dir, name.as_bytes(), 0o644));
    }
    c.write("mknod", |fs| {
        fs.mknod(&CTX, dir, b"fifo", libc::S_IFIFO | 0o600, 0)
    });
    for len in [10, 60, 4000] {
        let (name, target) = (format!("link-{len}"), vec![b'x'; len]);
        let link = c.write("symlink", |fs| {
            fs.symlink(&CTX, dir, name.as_bytes(), &target)
        });
        assert_eq!(c.read("readlink", |fs| fs.readlink(link.ino)), target);
    }
    let file = c.read("lookup", |fs| fs.lookup(dir, b"fifo")).ino;
    c.write("link", |fs| fs.link(file, other, b"second"));
    let moves: [Move<'_>; 4] = [
        (dir, b"link-10", dir, b"moved", RenameFlags::default()),
        (dir, b"moved", other, b"moved", RenameFlags::default()),
        (other, b"moved", dir, b"link-60", RenameFlags::default()),
        (
            dir,
            b"fifo",
            dir,
            b"link-4000",
            RenameFlags {
                exchange: true,
                ..RenameFlags::default()
            },
        ),
    ];
    for (from, name, to, new, flags) in moves {
        c.write("rename", |fs| fs.rename(&CTX, from, name, to, new, flags));
    }
    let sub = c
        .write("mkdir", |fs| fs.mkdir(&CTX, dir, b"sub", 0o755))
        .ino;
    c.write("rename", |fs| {
        fs.rename(&CTX, dir, b"sub", other, b"sub", RenameFlags::default())
    });
    assert_eq!(c.read("getattr", |fs| fs.getattr(sub)).ino, sub);
    c.write("rmdir", |fs| fs.rmdir(other, b"sub"));
    let mut seen = 0;
    c.read("readdir", |fs| {
        fs.readdir(dir, 0, &mut |_| {
            seen += 1;
            ControlFlow::Continue(())
        })
    });
    assert!(seen > 600);
    for i in 0..300 {
        let name = format!("a rather long name of a file, number {i:06}");
        c.write("unlink", |fs| fs.unlink(dir, name.as_bytes()));
    }
    assert!(
        c.count("lookup", |fs| fs.lookup(dir, b"no such name"))
            .is_err()
    );
    assert!(
        c.count("create", |fs| fs.create(&CTX, dir, b"fifo", 0o644))
            .is_err()
    );
    dir
}

fn attributes(c: &Counted, dir: Ino) {
    let file = c
        .write("create", |fs| fs.create(&CTX, dir, b"attributes", 0o644))
        .ino;
    for (i, len) in [(0, 5), (1, 500), (2, 20_000), (3, 60_000)] {
        let name = format!("user.number-{i}");
        let value = vec![7; len];
        c.write("setxattr", |fs| {
            fs.setxattr(&CTX, file, name.as_bytes(), &value, XattrMode::Set)
        });
        assert_eq!(
            c.read("getxattr", |fs| fs.getxattr(file, name.as_bytes())),
            value
        );
    }
    assert!(!c.read("listxattr", |fs| fs.listxattr(file)).is_empty());
    c.write("removexattr", |fs| fs.removexattr(file, b"user.number-2"));
    let mut set = SetAttr {
        perm: Some(0o4755),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    c.write("setattr", |fs| fs.setattr(&CTX, file, &set));
    set.uid = Some(77);
    c.write("setattr", |fs| fs.setattr(&CTX, file, &set));
    c.write("strip_suid", |fs| fs.strip_suid(file));
    c.write("strip_capability", |fs| fs.strip_capability(file));
    c.write("strip_attribute", |fs| {
        fs.strip_attribute(file, b"user.number-3")
    });
    c.write("set_label", |fs| fs.set_label("counted"));
    c.write("set_default_options", |fs| {
        fs.set_default_options(fs.default_options())
    });
    c.write("set_reserve", |fs| fs.set_reserve(2));
    assert_eq!(c.count("label", Engine::label), "counted");
    assert_eq!(
        c.count("default_options", Engine::default_options).bits(),
        0
    );
}

fn contents(c: &Counted, dir: Ino) {
    let file = c
        .write("create", |fs| fs.create(&CTX, dir, b"contents", 0o644))
        .ino;
    let big = vec![3; 5 << 20];
    c.write("write", |fs| fs.write(&CTX, file, 0, &big));
    // Scattered: every second block of another file lies between.
    let holes = c
        .write("create", |fs| fs.create(&CTX, dir, b"holes", 0o644))
        .ino;
    for i in 0..400 {
        c.write("write", |fs| fs.write(&CTX, holes, i * 8192, &[1; 4096]));
        c.write("append", |fs| fs.append(&CTX, file, &[2; 3000]));
    }
    // Some of them end the last block, and find no room for the next one.
    let log = c
        .write("create", |fs| fs.create(&CTX, dir, b"log", 0o644))
        .ino;
    for _ in 0..4000 {
        c.write("append", |fs| fs.append(&CTX, log, &[2; 3000]));
    }
    c.write("write", |fs| fs.write(&CTX, holes, 100, &big[..300 * 8192]));
    c.write("write", |fs| fs.write(&CTX, file, 5, &big[..1 << 20]));
    c.write("write", |fs| fs.write(&CTX, file, 5 << 20, &big[..1 << 20]));
    let end = c.read("getattr", |fs| fs.getattr(file)).size;
    c.write("append_chunk", |fs| {
        fs.append_chunk(&CTX, file, end, &[9; 5000])
    });
    c.write("write_back", |fs| fs.write_back(file, 4096, &[8; 10_000]));
    let mut bytes = vec![0; 1 << 20];
    c.read("read", |fs| fs.read(file, 0, &mut bytes));
    c.read("with_contiguous", |fs| {
        fs.with_contiguous(file, 0, 4096, &mut |_| {})
    });
    c.read("seek", |fs| fs.seek(holes, 0, SeekWhence::Hole));
    c.read("file_extents", |fs| fs.file_extents(holes, 0, 1 << 20));
    c.read("first_extents", |fs| fs.first_extents(holes, 0, 8));
    c.read("lost_ranges", |fs| fs.lost_ranges(holes));
    c.read("verify_data", |fs| fs.verify_data(holes, 0..1 << 20));
    c.read("statfs", |fs| fs.statfs());
    c.read("state", |fs| Ok(fs.state()));
    c.count("memory", Engine::memory);
    c.write("copy_range", |fs| {
        fs.copy_range(&CTX, (file, 100), (holes, 300), 2 << 20)
    });
    for (what, offset, len) in [
        (Fallocate::Allocate { keep_size: true }, 8 << 20, 6 << 20),
        (Fallocate::Allocate { keep_size: false }, 0, 20 << 20),
        (Fallocate::PunchHole, 5000, 3 << 20),
        (Fallocate::ZeroRange { keep_size: true }, 7000, 2 << 20),
    ] {
        c.write("fallocate", |fs| {
            fs.fallocate(&CTX, holes, what, offset, len)
        });
    }
    c.write("fill", |fs| fs.fill(holes, 0, 12 << 20));
    c.write("gather", |fs| fs.gather(file, 0));
    c.write("vacate", |fs| fs.vacate(file, 0, 0));
    c.count("gather_unit", Engine::gather_unit);
    c.count("leaf_use", |fs| fs.leaf_use(0, 9)).unwrap();
    c.read("pointer_blocks", |fs| fs.pointer_blocks(file, 0, 9));
    c.count("free_space", Engine::free_space).unwrap();
    c.write("persist_stores", |fs| fs.persist_stores(file, 0..1 << 20));
    c.read("flush_stores", |fs| fs.flush_stores(file, 0..1 << 20));
    c.write("fsync", |fs| fs.fsync(file, false));
    c.write("settle", Engine::settle);
    c.write("sync", Engine::sync);
    // Long chains of records.
    c.write("setattr", |fs| fs.setattr(&CTX, holes, &size(4097)));
    c.write("setattr", |fs| fs.setattr(&CTX, holes, &size(1 << 30)));
    c.write("unlink", |fs| fs.unlink(dir, b"contents"));
    c.write("sync", Engine::sync);
    c.write("trim", |fs| fs.trim(0, u64::MAX, 0));
}

fn leases(c: &Counted, dir: Ino) {
    let file = c
        .write("create", |fs| fs.create(&CTX, dir, b"leased", 0o644))
        .ino;
    c.write("append", |fs| fs.append(&CTX, file, &[1; 50_000]));
    let generation = c.read("getattr", |fs| fs.getattr(file)).generation;
    let (slot, id) = c.write("grant_lease", |fs| {
        let grant = fs.grant_lease(file, generation, LeaseMode::Write, 1, 1)?;
        let lease = (grant.lease().slot, grant.lease().id);
        fs.region_to_damage().pretend_lease(lease.0, true);
        Ok(lease)
    });
    assert_eq!(c.count("leases", Engine::leases).len(), 1);
    c.count("has_unknown_lease", Engine::has_unknown_lease);
    c.read("leased_extents", |fs| fs.leased_extents(slot, id, 0, 100));
    c.write("fill_ahead", |fs| fs.fill_ahead(slot, id, 0..65536));
    c.write("fill_ahead_zeroed", |fs| {
        fs.fill_ahead_zeroed(slot, id, 0..131_072)
    });
    c.write("note_stores", |fs| fs.note_stores(file));
    c.write("recall_leases", |fs| fs.recall_leases(file));
    c.write("open_window", |fs| fs.open_window(slot, id, 1 << 20));
    c.write("close_file_window", |fs| fs.close_file_window(file));
    c.write("open_window", |fs| fs.open_window(slot, id, 1 << 20));
    c.write("close_lease_window", |fs| fs.close_lease_window(slot, id));
    c.fs.region_to_damage().pretend_lease(slot, false);
    c.write("end_released_leases", Engine::end_released_leases);
}

/// The operations of the engine, by their sources.
fn operations() -> BTreeSet<String> {
    let ops = concat!(env!("CARGO_MANIFEST_DIR"), "/../pramfs-rs/src/fs/ops");
    let mut found = BTreeSet::new();
    for file in std::fs::read_dir(ops).unwrap() {
        let path = file.unwrap().path();
        if path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .contains("tests")
            || !path.is_file()
        {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("    pub fn ") {
                let end = rest.find(['(', '<']).unwrap();
                found.insert(rest[..end].to_owned());
            }
        }
    }
    found
}

fn openings_of_every_operation(protect: Protect, name: &str) {
    let c = Counted::new(protect, name);
    let dir = names(&c);
    attributes(&c, dir);
    contents(&c, dir);
    leases(&c, dir);
    let worst = c.worst.take();
    println!("protect={protect}: the most openings of each operation");
    for (name, openings) in &worst {
        println!("  {name:<20} {openings}");
    }
    let mut missing = operations();
    assert!(missing.len() > 40, "{missing:?}");
    missing.retain(|op| {
        !worst.contains_key(op.as_str()) && !WITHOUT.iter().any(|(name, _)| name == op)
    });
    assert!(missing.is_empty(), "without a row: {missing:?}");

    let (_, report) = check_fs(c.fs, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{report}");
}

/// A region in memory, with a descriptor beside it.
fn region_of(image: &[u8], protect: Protect) -> (File, Region) {
    let fd = rustix::fs::memfd_create("recovered", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(fd);
    file.write_all_at(image, 0).unwrap();
    let options = RegionOptions::new().protect(protect);
    let region = options.from_fd(file.try_clone().unwrap().into(), "recovered");
    (file, region.unwrap())
}

/// mkfs, recovery, check and repair store through windows of their own.
fn recovers_and_repairs(protect: Protect) {
    let (file, region) = region_of(&[0; 4 << 20], protect);
    format(&region, &repeatable(4096)).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    let made = fs.create(&CTX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    fs.append(&CTX, made, b"bytes").unwrap();
    // The process dies.
    let mut image = vec![0; 4 << 20];
    file.read_exact_at(&mut image, 0).unwrap();
    drop(fs);
    let (_file, region) = region_of(&image, protect);
    assert_eq!(region.info().protect, protect);
    let fs = Fs::open(region, quiet()).unwrap();
    assert!(!fs.recovery().was_clean);
    assert_eq!(fs.lookup(Ino::ROOT, b"file").unwrap().size, 5);
    let (region, report) = check_fs(fs, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{report}");
    let region = region.unwrap();
    let window = region.window();
    let _ = window.fence(window.store(0x60, &[0xff]).unwrap());
    drop(window);
    let report = repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
    assert!(report.is_sound() && report.findings.len() == 1, "{report}");
    assert!(check(&region, &CheckOptions::default()).is_clean());
}

#[test]
fn protected_region_is_made_recovered_and_repaired() {
    recovers_and_repairs(Protect::Mprotect);
    match free_protection_keys() {
        Ok(_) => recovers_and_repairs(Protect::Pkey),
        Err(why) => skipped(format_args!("recovery with protect=pkey: {why}")),
    }
}

#[test]
fn operations_open_mprotect_twice_at_most() {
    openings_of_every_operation(Protect::Mprotect, "openings-mprotect");
}

#[test]
fn operations_open_pkey_twice_at_most() {
    if let Err(why) = free_protection_keys() {
        return skipped(format_args!("openings with protect=pkey: {why}"));
    }
    openings_of_every_operation(Protect::Pkey, "openings-pkey");
}

/// The mount goes on when the system has memory again.
#[test]
fn change_refused_by_mprotect_fails_alone() {
    let region = RegionOptions::new()
        .protect(Protect::Mprotect)
        .memfd("refused-change", LEN)
        .unwrap();
    format(&region, &repeatable(4096)).unwrap();
    let fs = Fs::open(region, quiet()).unwrap();
    let file = fs.create(&CTX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    refuse_openings(true);
    let refused = [
        fs.create(&CTX, Ino::ROOT, b"other", 0o644).map(drop),
        fs.write(&CTX, file, 0, b"bytes").map(drop),
        fs.setattr(&CTX, file, &size(5000)).map(drop),
        fs.unlink(Ino::ROOT, b"file").map(drop),
    ];
    refuse_openings(false);
    for result in refused {
        assert_eq!(result.unwrap_err().errno(), libc::EIO);
    }
    fs.create(&CTX, Ino::ROOT, b"other", 0o644).unwrap();
    assert_eq!(fs.write(&CTX, file, 0, b"bytes").unwrap(), 5);
    fs.unlink(Ino::ROOT, b"file").unwrap();
    let (_, report) = check_fs(fs, &CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}
