//! An image with marks of ranges of files, from the version that introduced the feature
//! `ranged_marks`, as a crash left it: a mount sums what is marked, and a repair leaves it.
//!
//! `golden/marks.img` was written by `PRAMFS_WRITE_GOLDEN=1 cargo test -p pramfs-tests --test
//! golden_marks`, and is never rewritten. Two views for writing existed when the power failed,
//! and stores through them had arrived that no checksum has. Of a third file only the flag is
//! set, as older versions did it.

use std::path::PathBuf;
use std::sync::Arc;

use pramfs::inode::{Fs, Ino, LeaseMode, Time};
use pramfs::{Access, Clock, MountOptions, OpenOptions};
use pramfs_fsck::{CheckOptions, Policy, RepairOptions, check, repair};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::media::features::RANGED_MARKS;
use pramfs_medium::media::probe_superblock;
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{formatted, mount, quiet, region_of};
use pramfs_tests::sums::{file, forge, is_wrong, place, summed};

const LEN: usize = 768 << 10;
const FILE: usize = 9 * 4096 + 100;
const BLOCK: u64 = 4096;
/// Two views of a file, which has one range.
const VIEWS: [std::ops::Range<u64>; 2] = [3 * BLOCK..4 * BLOCK, 5 * BLOCK..6 * BLOCK];
const MARKED: std::ops::Range<u64> = 3 * BLOCK..6 * BLOCK;

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
        "/tests/golden/marks.img"
    ))
}

fn text() -> Vec<u8> {
    (0..FILE).map(|i| (i * 7 % 251) as u8).collect()
}

/// Makes the image.
fn crashed() -> Vec<u8> {
    set_thread_lane(0);
    let format = pramfs::format::FormatOptions {
        lanes: Some(2),
        ..summed(4096)
    };
    let sim = formatted(LEN, &format).unwrap();
    let fs = mount(&sim, options()).unwrap();
    for name in ["ranged", "whole", "other"] {
        file(&fs, name, &text());
    }
    let whole = fs.lookup(Ino::ROOT, b"whole").unwrap().ino;
    let generation = fs.getattr(whole).unwrap().generation;
    drop(fs.grant_lease(whole, generation, LeaseMode::Write, 1, 0));
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/ranged");
    let open = open.unwrap();
    let views = VIEWS.map(|range| open.map(range, Access::Write).unwrap());
    for view in &views {
        view.store(0, 0x0101_0101_0101_0101u64).unwrap();
    }
    let image = sim.image();
    std::mem::forget((views, open, fs));
    image
}

fn image() -> SimBackend {
    if std::env::var_os("PRAMFS_WRITE_GOLDEN").is_some() {
        std::fs::write(path(), crashed()).unwrap();
    }
    let image = std::fs::read(path()).expect("the golden image is part of the repository");
    SimBackend::from_image(&image).unwrap()
}

fn ino(fs: &Fs, name: &[u8]) -> Ino {
    fs.lookup(Ino::ROOT, name).unwrap().ino
}

fn check_contents(fs: &Fs, marked: bool) {
    let mut expected = text();
    for name in [&b"other"[..], b"whole", b"ranged"] {
        if name == b"ranged" {
            for view in VIEWS {
                expected[view.start as usize..][..8].fill(1);
            }
        }
        let mut found = vec![0; FILE];
        assert_eq!(fs.read(ino(fs, name), 0, &mut found).unwrap(), FILE);
        assert!(found == expected, "{}", name.escape_ascii());
        let verified = fs.verify_data(ino(fs, name), 0..u64::MAX).unwrap();
        assert!(verified.wrong.is_empty(), "{verified:?}");
        let unsummed = match name {
            b"whole" if marked => Some(0..FILE as u64),
            b"ranged" if marked => Some(MARKED),
            _ => None,
        };
        assert_eq!(verified.unsummed, Vec::from_iter(unsummed));
    }
}

fn has_feature(sim: &SimBackend) -> bool {
    let info = probe_superblock(&region_of(sim)).unwrap();
    info.fixed.ro_compat & RANGED_MARKS != 0
}

#[test]
fn golden_image_with_marks_is_mounted_and_summed() {
    let sim = image();
    assert!(has_feature(&sim));
    let fs = mount(&sim, options()).unwrap();
    check_contents(&fs, true);
    forge(&fs, place(&fs, ino(&fs, b"ranged"), 7 * BLOCK));
    let mut into = [0; 8];
    let read = fs.read(ino(&fs, b"ranged"), 7 * BLOCK, &mut into);
    assert!(is_wrong(&read, ino(&fs, b"ranged"), 7 * BLOCK));
    forge(&fs, place(&fs, ino(&fs, b"ranged"), 7 * BLOCK));
    fs.close().unwrap();
    assert!(!has_feature(&sim));
    check_contents(&mount(&sim, quiet()).unwrap(), false);
}

#[test]
fn golden_image_with_marks_is_repaired() {
    let sim = image();
    let options = RepairOptions::new(Policy::Yes);
    let report = repair(&region_of(&sim), &options).expect("repaired");
    assert!(report.is_sound(), "{report}");
    let report = check(&region_of(&sim), &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
    check_contents(&mount(&sim, quiet()).unwrap(), true);
}
