//! An image that a crash left in an atomic write, from the version that introduced the feature
//! `atomic_data`: recovery and repair finish the write.
//!
//! `golden/atomic.img` was written by `PRAMFS_WRITE_GOLDEN=1 cargo test -p pramfs-tests --test
//! golden_atomic`, and is never rewritten. The power failed after the record was durable and
//! before a byte was copied. The record has entries of the kinds `Copy` and `More`, since the file
//! lies in many pieces.

use std::path::PathBuf;
use std::sync::Arc;

use pramfs::inode::{Credentials, Fs, Ino, Time};
use pramfs::{Clock, DataMode, MountOptions};
use pramfs_fsck::{CheckOptions, Policy, RepairOptions, check, repair};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::media::features::ATOMIC_DATA;
use pramfs_medium::media::probe_superblock;
use pramfs_medium::media::record::{ENTRIES_AT, EntryKind};
use pramfs_medium::pmem::{EventKind, SimBackend};
use pramfs_tests::crash::machine::Machine;
use pramfs_tests::region::{formatted, mount, quiet, region_of, repeatable};

const CX: Credentials<'_> = Credentials::ROOT;
const LEN: usize = 512 << 10;
/// Blocks of the file, each beside one of another file.
const PIECES: usize = 200;

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
        data: DataMode::Atomic,
        ..quiet()
    }
}

fn path() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/atomic.img"
    ))
}

fn text(seed: usize) -> Vec<u8> {
    (0..PIECES * 512)
        .map(|i| ((i + seed) * 7 % 251) as u8)
        .collect()
}

/// Makes the image.
fn crashed() -> Vec<u8> {
    set_thread_lane(0);
    let sim = formatted(LEN, &repeatable(512)).unwrap();
    let fs = mount(&sim, options()).unwrap();
    let make = |name: &[u8]| fs.create(&CX, Ino::ROOT, name, 0o644).unwrap().ino;
    let (pieces, between) = (make(b"pieces"), make(b"between"));
    for piece in text(0).chunks(512) {
        fs.append(&CX, pieces, piece).unwrap();
        fs.append(&CX, between, &[0xbb; 512]).unwrap();
    }
    // No older record is live.
    fs.close().unwrap();
    let fs = mount(&sim, options()).unwrap();
    let start = sim.image();
    sim.recording(true);
    fs.write(&CX, pieces, 100, &text(1)[100..]).unwrap();
    let events = sim.take_record();
    // The last fence completes the copies.
    let last = events
        .iter()
        .rposition(|e| e.kind == EventKind::Fence)
        .unwrap();
    let mut machine = Machine::new(start);
    machine.run_all(&events[..last]);
    let image = machine.least();
    std::mem::forget(fs);
    image
}

fn image() -> Vec<u8> {
    if std::env::var_os("PRAMFS_WRITE_GOLDEN").is_some() {
        std::fs::write(path(), crashed()).unwrap();
    }
    std::fs::read(path()).expect("the golden image is part of the repository")
}

fn check_contents(fs: &Fs) {
    let ino = |name: &[u8]| fs.lookup(Ino::ROOT, name).unwrap().ino;
    let mut found = vec![0; PIECES * 512];
    assert_eq!(fs.read(ino(b"pieces"), 0, &mut found).unwrap(), found.len());
    assert!(found[..100] == text(0)[..100] && found[100..] == text(1)[100..]);
    assert_eq!(
        fs.read(ino(b"between"), 0, &mut found).unwrap(),
        found.len()
    );
    assert!(found.iter().all(|b| *b == 0xbb));
}

fn has_feature(sim: &SimBackend) -> bool {
    let info = probe_superblock(&region_of(sim)).unwrap();
    info.fixed.incompat & ATOMIC_DATA != 0
}

#[test]
fn golden_image_of_crashed_atomic_write_is_recovered() {
    let sim = SimBackend::from_image(&image()).unwrap();
    assert!(has_feature(&sim));
    let fs = mount(&sim, options()).unwrap();
    assert!(fs.recovery().records > 0);
    check_contents(&fs);
    let ino = fs.lookup(Ino::ROOT, b"pieces").unwrap().ino;
    fs.write(&CX, ino, 0, &text(0)[..100]).unwrap();
    fs.close().unwrap();
    assert!(!has_feature(&sim));
    let report = check(&region_of(&sim), &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
    check_contents(&mount(&sim, quiet()).unwrap());
}

#[test]
fn golden_image_of_crashed_atomic_write_is_repaired() {
    let sim = SimBackend::from_image(&image()).unwrap();
    let options = RepairOptions::new(Policy::Yes);
    let report = repair(&region_of(&sim), &options).expect("repaired");
    assert!(report.is_sound(), "{report}");
    check_contents(&mount(&sim, quiet()).unwrap());
}

/// What the image is for: the record that an unmodified version of this file makes.
#[test]
fn record_of_golden_image_copies_and_continues() {
    let sim = SimBackend::from_image(&image()).unwrap();
    let region = region_of(&sim);
    let geo = probe_superblock(&region).unwrap().geometry();
    let slots = (0..geo.lanes).flat_map(|lane| [(lane, 0), (lane, 1)]);
    let mut kinds = Vec::new();
    for (lane, slot) in slots {
        use pramfs_medium::journal::{parse, records};
        let (_, mut bytes) = records::read_slot(&region, &geo, lane, slot).unwrap();
        if bytes.len() == geo.slot_size as usize {
            continue;
        }
        if records::expand(&region, &geo, &mut bytes, &mut records::InBlocks::default()).is_ok() {
            kinds.extend(parse(&bytes[ENTRIES_AT..]).map(|e| e.kind));
        }
    }
    assert!(kinds.contains(&EntryKind::More));
    assert!(
        kinds
            .iter()
            .filter(|kind| **kind == EntryKind::Copy)
            .count()
            >= PIECES
    );
}
