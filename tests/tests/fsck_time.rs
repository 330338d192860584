//! The time of a check and of a repair grows with what the file system holds:
//! 1,000,000 files in under 5 seconds in a release build, and a
//! tenth of them in the development build, whose bound is the same.

use std::time::Instant;

use pramfs::format::{FormatOptions, format};
use pramfs::fsck::{CheckOptions, Policy, RepairOptions, check, repair};
use pramfs::pmem::{Region, RegionOptions};
use pramfs::{Ctx, Fs, Ino, MountOptions};

const FILES: u64 = if cfg!(debug_assertions) {
    100_000
} else {
    1_000_000
};
/// Seconds.
const BOUND: f64 = 5.0;

/// Half of the files in one directory, half in directories of 100; each tenth
/// has a block.
fn filled(files: u64) -> Region {
    let options = RegionOptions::new();
    let region = options.memfd("fsck", files * 4096 + (64 << 20)).unwrap();
    let what = FormatOptions {
        max_inodes: Some(files * 11 / 10 + 1000),
        ..FormatOptions::default()
    };
    format(&region, &what).unwrap();
    let fs = Fs::open(region, MountOptions::default()).unwrap();
    let cx = Ctx::default();
    let big = fs.mkdir(&cx, Ino::ROOT, b"big", 0o755).unwrap().ino;
    let mut dir = big;
    for i in 0..files {
        if i >= files / 2 && i % 100 == 0 {
            let name = format!("dir {i}");
            dir = fs
                .mkdir(&cx, Ino::ROOT, name.as_bytes(), 0o755)
                .unwrap()
                .ino;
        }
        let ino = fs
            .create(&cx, dir, format!("file {i}").as_bytes(), 0o644)
            .unwrap()
            .ino;
        if i % 10 == 0 {
            fs.write(ino, 0, b"something").unwrap();
        }
    }
    let (region, report) = pramfs::fsck::check_fs(fs, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{report}");
    assert!(report.counts.files == files);
    region.unwrap()
}

#[test]
fn a_million_files_are_checked_and_repaired_in_seconds() {
    let region = filled(FILES);
    let start = Instant::now();
    let report = check(&region, &CheckOptions::default());
    let checked = start.elapsed().as_secs_f64();
    assert!(report.is_clean(), "{report}");

    // A byte of every seventeenth page, the first from 1000 on that is not
    // zero: leaves, inodes, bitmaps.
    let mut damaged = 0;
    let mut page = vec![0; 3096];
    for at in (0..region.len() / 4096).step_by(17).skip(2) {
        let at = at * 4096 + 1000;
        region.read(at, &mut page).unwrap();
        if let Some(i) = page.iter().position(|b| *b != 0) {
            let byte = page[i] ^ 0x10;
            region
                .window()
                .store_unflushed(at + i as u64, &[byte])
                .unwrap();
            damaged += 1;
        }
    }
    let start = Instant::now();
    let report = repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
    let repaired = start.elapsed().as_secs_f64();
    println!(
        "{FILES} files: checked in {checked:.2} s; {damaged} pages damaged, {} findings, repaired in {repaired:.2} s",
        report.findings.len()
    );
    assert!(damaged > FILES / 1000, "hardly anything was damaged");
    let left: Vec<_> = report.left().collect();
    assert!(report.is_sound(), "{left:#?}");
    assert!(check(&region, &CheckOptions::default()).is_clean());
    assert!(checked < BOUND, "the check took {checked:.2} s");
    // Rounds of checks.
    assert!(repaired < 6.0 * BOUND, "the repair took {repaired:.2} s");
}
