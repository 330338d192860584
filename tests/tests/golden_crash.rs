//! Clean and crashed images from commit f312d33: the current engine recovers, repairs and
//! changes them, and must show the tree that f312d33 itself found in them.
//!
//! `golden/f312d33-*.img` were written by this file, compiled into that commit, with
//! `PRAMFS_WRITE_GOLDEN=1` (`setattr` took a context then). Beside each image stands, as
//! text, the tree that f312d33 showed after mounting it. The images are never rewritten:
//! an engine that cannot read them has changed the format or the journal.
//!
//! A crashed image holds the stores that were certainly durable at the crash (`least`),
//! or those and a seeded half of the words in flight (`torn`). It has live records in
//! several lanes, whose places hold old or partly new contents.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Once};

use pramfs::{
    Clock, Fallocate, MountOptions, RenameFlags, XattrMode,
    inode::{Credentials, Fs, Ino, SetAttr, Time},
};
use pramfs_fsck::{CheckOptions, Policy, RepairOptions, check, repair};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::crash::machine::Machine;
use pramfs_tests::random::Random;
use pramfs_tests::region::{SMALLEST, formatted, mount, quiet, region_of, repeatable};
use pramfs_tests::tree::{Node, Tree};

const OWNER: Credentials<'_> = Credentials::new(7, 8).with_umask(0o022);

#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Time {
        Time {
            sec: 1_700_000_123,
            nsec: 456_789_012,
        }
    }
}

fn options() -> MountOptions {
    MountOptions {
        clock: Arc::new(Stopped),
        ..quiet()
    }
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"))
}

fn text(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 % 251) as u8).collect()
}

type Step = fn(&Fs);

fn ino(fs: &Fs, name: &[u8]) -> Ino {
    fs.lookup(Ino::ROOT, name).unwrap().ino
}

/// The steps, each on the next lane. An image is taken after each.
const STEPS: &[(&str, Step)] = &[
    ("create", |fs| {
        let dir = fs.mkdir(&OWNER, Ino::ROOT, b"dir", 0o775).unwrap().ino;
        for i in 0..30 {
            let name = format!("file {i:02}");
            fs.create(&OWNER, dir, name.as_bytes(), 0o640).unwrap();
        }
    }),
    ("write", |fs| {
        let long = fs
            .create(&OWNER, Ino::ROOT, &[b'n'; 255], 0o600)
            .unwrap()
            .ino;
        fs.write(&Credentials::ROOT, long, 0, &text(10_000))
            .unwrap();
        fs.append(&Credentials::ROOT, long, &text(3000)).unwrap();
        fs.write(&Credentials::ROOT, long, 5000, &[0xee; 600])
            .unwrap();
    }),
    ("sparse", |fs| {
        let sparse = fs.create(&OWNER, Ino::ROOT, b"sparse", 0o644).unwrap().ino;
        fs.write(&Credentials::ROOT, sparse, 1 << 40, b"far out")
            .unwrap();
        let keep = Fallocate::Allocate { keep_size: true };
        fs.fallocate(&Credentials::ROOT, sparse, keep, 0, 2 * 4096)
            .unwrap();
        fs.fallocate(&Credentials::ROOT, sparse, Fallocate::PunchHole, 0, 4096)
            .unwrap();
    }),
    ("xattr", |fs| {
        let long = ino(fs, &[b'n'; 255]);
        fs.setxattr(
            &Credentials::ROOT,
            long,
            b"user.small",
            b"in line",
            XattrMode::Set,
        )
        .unwrap();
        fs.setxattr(
            &Credentials::ROOT,
            long,
            b"user.large",
            &text(5000),
            XattrMode::Set,
        )
        .unwrap();
        fs.removexattr(long, b"user.small").unwrap();
    }),
    ("rename", |fs| {
        let dir = ino(fs, b"dir");
        let other = fs.mkdir(&OWNER, Ino::ROOT, b"other", 0o755).unwrap().ino;
        fs.rename(
            &OWNER,
            dir,
            b"file 01",
            other,
            b"moved",
            RenameFlags::default(),
        )
        .unwrap();
        fs.rename(
            &OWNER,
            dir,
            b"file 02",
            dir,
            b"file 03",
            RenameFlags::default(),
        )
        .unwrap();
        fs.symlink(&OWNER, other, b"short", b"../dir").unwrap();
        fs.symlink(&OWNER, other, b"long", &[b'x'; 1000]).unwrap();
        fs.link(ino(fs, &[b'n'; 255]), other, b"another name")
            .unwrap();
    }),
    ("unlink", |fs| {
        let dir = ino(fs, b"dir");
        // Still open: an orphan.
        let file = fs.lookup(dir, b"file 05").unwrap().ino;
        fs.append(&Credentials::ROOT, file, &text(9000)).unwrap();
        fs.hold(file).into_count();
        fs.unlink(dir, b"file 05").unwrap();
        fs.unlink(dir, b"file 06").unwrap();
        let half = SetAttr {
            size: Some(4500),
            ..SetAttr::default()
        };
        fs.setattr(&Credentials::ROOT, ino(fs, &[b'n'; 255]), &half)
            .unwrap();
    }),
];

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
    })
}

fn line(path: &[u8], n: &Node) -> String {
    let Node {
        id,
        kind,
        perm,
        nlink,
        owner,
        rdev,
        size,
        blocks,
        times,
        flags,
        data,
        xattrs,
    } = n;
    let path = String::from_utf8_lossy(path);
    let mut line = format!(
        "{path} ino={} generation={} {kind:?} {perm:o} nlink={nlink} owner={}:{} rdev={rdev} \
         size={size} blocks={blocks} flags={flags:x} mtime={}.{:09} ctime={}.{:09} data={:016x}",
        id.0.0,
        id.1,
        owner.0,
        owner.1,
        times.0.sec,
        times.0.nsec,
        times.1.sec,
        times.1.nsec,
        hash(data),
    );
    for (name, value) in xattrs {
        let name = String::from_utf8_lossy(name);
        write!(line, " {name}={:016x}", hash(value)).unwrap();
    }
    line
}

/// The tree of a mounted image as lines of text.
fn listing(fs: &Fs) -> String {
    let tree = Tree::of(fs).unwrap();
    let mut out = String::new();
    for (path, node) in &tree.nodes {
        writeln!(out, "{}", line(path, node)).unwrap();
    }
    writeln!(out, "free blocks={} inodes={}", tree.free, tree.free_inodes).unwrap();
    out
}

/// Images by name: one clean, the others crashed.
fn make() -> Vec<(String, Vec<u8>)> {
    let sim = formatted(SMALLEST, &repeatable(4096)).unwrap();
    let mut machine = Machine::new(sim.image());
    sim.recording(true);
    let fs = mount(&sim, options()).unwrap();
    let mut random = Random::new(0x0f31_2d33);
    let mut images = Vec::new();
    for (i, (name, step)) in STEPS.iter().enumerate() {
        set_thread_lane(i as u32 % 3);
        step(&fs);
        machine.run_all(&sim.take_record());
        images.push((format!("{name}-least"), machine.least()));
        images.push((format!("{name}-torn"), machine.random(&mut random)));
    }
    fs.release(ino_of_orphan(&fs), 1);
    fs.close().unwrap();
    images.push(("clean".to_owned(), sim.image()));
    images
}

/// The inode that the last step has left without a name.
fn ino_of_orphan(fs: &Fs) -> Ino {
    let named = Tree::of(fs).unwrap();
    let highest = named.nodes.values().map(|n| n.id.0.0).max().unwrap();
    let is_named = |ino: u64| named.nodes.values().any(|n| n.id.0.0 == ino);
    let mut all = (Ino::FIRST_FREE.0..=highest).filter(|ino| !is_named(*ino));
    let found = all.find(|ino| fs.getattr(Ino(*ino)).is_ok_and(|a| a.nlink == 0));
    Ino(found.expect("an orphan"))
}

fn names() -> Vec<String> {
    let steps = STEPS.iter().map(|(name, _)| *name);
    let mut names: Vec<_> = steps
        .flat_map(|n| [format!("{n}-least"), format!("{n}-torn")])
        .collect();
    names.push("clean".to_owned());
    names
}

/// Only compiled in commit f312d33.
fn write_golden() {
    for (name, image) in make() {
        let sim = SimBackend::from_image(&image).unwrap();
        let fs = mount(&sim, options()).unwrap();
        let shown = listing(&fs);
        fs.close().unwrap();
        std::fs::write(folder().join(format!("f312d33-{name}.img")), &image).unwrap();
        std::fs::write(folder().join(format!("f312d33-{name}.txt")), shown).unwrap();
    }
}

fn golden(name: &str) -> (SimBackend, String) {
    static WRITTEN: Once = Once::new();
    if std::env::var_os("PRAMFS_WRITE_GOLDEN").is_some() {
        WRITTEN.call_once(write_golden);
    }
    let at = |ending| folder().join(format!("f312d33-{name}.{ending}"));
    let image = std::fs::read(at("img")).expect("the image is part of the repository");
    let shown = std::fs::read_to_string(at("txt")).expect("its listing, too");
    (SimBackend::from_image(&image).unwrap(), shown)
}

fn assert_clean(sim: &SimBackend, name: &str) {
    let report = check(&region_of(sim), &CheckOptions::default());
    assert!(report.is_clean(), "{name}: {report}");
}

#[test]
fn mount_of_f312d33_images_shows_recorded_state() {
    for name in names() {
        let (sim, shown) = golden(&name);
        let fs = mount(&sim, options()).unwrap();
        let found = listing(&fs);
        assert_eq!(found, shown, "{name}");
        // The recovered file system is usable.
        let file = fs.create(&OWNER, Ino::ROOT, b"new", 0o644).unwrap().ino;
        fs.append(&Credentials::ROOT, file, &text(5000)).unwrap();
        fs.close().unwrap();
        assert_clean(&sim, &name);
    }
}

#[test]
fn fsck_of_f312d33_images_keeps_mount_view() {
    for name in names() {
        let (sim, shown) = golden(&name);
        // Without questions: only the replay of the journal may be needed.
        let report = repair(&region_of(&sim), &RepairOptions::new(Policy::Preen)).unwrap();
        // Except for "not unmounted".
        assert!(report.is_sound(), "{name}: {report}");
        let fs = mount(&sim, options()).unwrap();
        assert_eq!(listing(&fs), shown, "{name}");
        fs.close().unwrap();
        assert_clean(&sim, &name);
    }
}

/// Most images have records to replay; otherwise they would test nothing.
#[test]
fn crashed_images_of_f312d33_have_live_records() {
    let mut replayed = 0;
    for name in names() {
        let (sim, _) = golden(&name);
        let fs = mount(&sim, options()).unwrap();
        replayed += usize::from(fs.recovery().records > 0);
        fs.close().unwrap();
    }
    assert_eq!(replayed, names().len() - 1);
}
