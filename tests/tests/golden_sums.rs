//! An image with checksums of file data, from the version that introduced the feature
//! `data_checksums`, as a crash left it in an atomic write: recovery and repair finish the write,
//! and each block then fits its sum.
//!
//! `golden/sums.img` was written by `PRAMFS_WRITE_GOLDEN=1 cargo test -p pramfs-tests --test
//! golden_sums`, and is never rewritten. The power failed after the record was durable and before
//! a byte was copied. Another file is marked: a view for writing existed.

use std::path::PathBuf;
use std::sync::Arc;

use pramfs::format::FormatOptions;
use pramfs::inode::{Credentials, Fs, Ino, Time};
use pramfs::{Access, Clock, MountOptions, OpenOptions};
use pramfs_fsck::{CheckOptions, Policy, RepairOptions, check, repair};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::media::features::DATA_CHECKSUMS;
use pramfs_medium::media::probe_superblock;
use pramfs_medium::media::record::{ENTRIES_AT, EntryKind};
use pramfs_medium::pmem::{EventKind, SimBackend};
use pramfs_tests::crash::machine::Machine;
use pramfs_tests::region::{formatted, mount, quiet, region_of, repeatable};

const CX: Credentials<'_> = Credentials::ROOT;
const LEN: usize = 768 << 10;
const FILE: usize = 5 * 4096 + 100;

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

fn path() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/sums.img"
    ))
}

fn text(seed: usize) -> Vec<u8> {
    (0..FILE).map(|i| ((i + seed) * 7 % 251) as u8).collect()
}

/// Makes the image.
fn crashed() -> Vec<u8> {
    set_thread_lane(0);
    let format = FormatOptions {
        lanes: Some(2),
        features: vec![("data_checksums".to_owned(), true)],
        ..repeatable(4096)
    };
    let sim = formatted(LEN, &format).unwrap();
    let fs = mount(&sim, options()).unwrap();
    for name in [&b"written"[..], b"marked"] {
        let ino = fs.create(&CX, Ino::ROOT, name, 0o644).unwrap().ino;
        fs.write(&CX, ino, 0, &text(0)).unwrap();
    }
    // No older record is live.
    fs.close().unwrap();
    let fs = mount(&sim, options()).unwrap();
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/marked")
        .unwrap();
    let view = open.map(0..4096, Access::Write).unwrap();
    view.store(0, 0x0101_0101_0101_0101u64).unwrap();
    view.persist(0..8).unwrap();
    let start = sim.image();
    sim.recording(true);
    let ino = fs.lookup(Ino::ROOT, b"written").unwrap().ino;
    fs.write(&CX, ino, 100, &text(1)[100..]).unwrap();
    let events = sim.take_record();
    let fences: Vec<_> = (events.iter().enumerate())
        .filter(|(_, e)| e.kind == EventKind::Fence)
        .map(|(i, _)| i)
        .collect();
    // The last two retire the record, since a view exists. The one before completes the copies.
    let copied = fences[fences.len() - 3];
    let mut machine = Machine::new(start);
    machine.run_all(&events[..copied]);
    let image = machine.least();
    std::mem::forget((view, open, fs));
    image
}

fn image() -> Vec<u8> {
    if std::env::var_os("PRAMFS_WRITE_GOLDEN").is_some() {
        std::fs::write(path(), crashed()).unwrap();
    }
    std::fs::read(path()).expect("the golden image is part of the repository")
}

fn check_contents(fs: &Fs, marked: bool) {
    let ino = |name: &[u8]| fs.lookup(Ino::ROOT, name).unwrap().ino;
    let mut found = vec![0; FILE];
    assert_eq!(fs.read(ino(b"written"), 0, &mut found).unwrap(), FILE);
    assert!(found[..100] == text(0)[..100] && found[100..] == text(1)[100..]);
    assert_eq!(fs.read(ino(b"marked"), 0, &mut found).unwrap(), FILE);
    assert!(found[..8] == [1; 8] && found[8..] == text(0)[8..]);
    for (name, marked) in [(&b"written"[..], false), (b"marked", marked)] {
        let verified = fs.verify_data(ino(name), 0..u64::MAX).unwrap();
        assert!(verified.wrong.is_empty(), "{verified:?}");
        assert_eq!(verified.is_marked, marked);
        assert_eq!(verified.compared, if marked { 0 } else { FILE as u64 });
    }
}

#[test]
fn golden_image_with_sums_is_recovered() {
    let sim = SimBackend::from_image(&image()).unwrap();
    let info = probe_superblock(&region_of(&sim)).unwrap();
    assert!(info.fixed.ro_compat & DATA_CHECKSUMS != 0);
    let fs = mount(&sim, options()).unwrap();
    assert!(fs.recovery().records > 0);
    check_contents(&fs, true);
    // The unmount sums what the mount has found marked.
    fs.close().unwrap();
    let report = check(&region_of(&sim), &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
    check_contents(&mount(&sim, quiet()).unwrap(), false);
}

#[test]
fn golden_image_with_sums_is_repaired() {
    let sim = SimBackend::from_image(&image()).unwrap();
    let options = RepairOptions::new(Policy::Yes);
    let report = repair(&region_of(&sim), &options).expect("repaired");
    assert!(report.is_sound(), "{report}");
    check_contents(&mount(&sim, quiet()).unwrap(), true);
}

/// What the image is for: the record that an unmodified version of this file makes.
#[test]
fn record_of_golden_image_has_sums() {
    let sim = SimBackend::from_image(&image()).unwrap();
    let region = region_of(&sim);
    let geo = probe_superblock(&region).unwrap().geometry();
    let slots = (0..geo.lanes).flat_map(|lane| [(lane, 0), (lane, 1)]);
    let mut kinds = Vec::new();
    for (lane, slot) in slots {
        use pramfs_medium::journal::{parse, records};
        let (_, bytes) = records::read_slot(&region, &geo, lane, slot).unwrap();
        if bytes.len() < geo.slot_size as usize {
            kinds.extend(parse(&bytes[ENTRIES_AT..]).map(|e| e.kind));
        }
    }
    assert!(kinds.contains(&EntryKind::Copy) && kinds.contains(&EntryKind::Sum));
}
