//! An image with the findings of a scrub, from a version that keeps them: first, last and number
//! are shown, added to, reported by the check and cleared by a repair.
//!
//! `golden/scrub.img` was written by `PRAMFS_WRITE_GOLDEN=1 cargo test -p pramfs-tests --test
//! golden_scrub`, and is never rewritten. A bit of two files had changed behind the back of the
//! engine. A scrub found both, and the region was unmounted.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pramfs::inode::{Credentials, Fs, Ino, ScrubOptions, ScrubStatus, Time};
use pramfs::{Clock, MountOptions};
use pramfs_fsck::{CheckOptions, Issue, Policy, RepairOptions, check, repair};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::media::probe_superblock;
use pramfs_medium::media::scrub::{FINISHED, ScrubSlots};
use pramfs_medium::pmem::SimBackend;
use pramfs_tests::region::{formatted, mount, quiet, region_of};
use pramfs_tests::sums::{file, forge, place, summed, text};

const LEN: usize = 768 << 10;
const FILE: usize = 5 * 4096 + 100;
const NOW: i64 = 1_700_000_123;
/// The files, and where a block does not fit its sum.
const WRONG: [(&str, u64); 2] = [("early", 2 * 4096), ("late", 5 * 4096)];

#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Time {
        Time {
            sec: NOW,
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
        "/tests/golden/scrub.img"
    ))
}

fn scrub(fs: &Fs) -> ScrubStatus {
    fs.start_scrub(ScrubOptions::default()).unwrap();
    while fs.wait_for_scrub(Duration::from_secs(10)).running {}
    fs.scrub_status()
}

/// Makes the image.
fn scrubbed() -> Vec<u8> {
    set_thread_lane(0);
    let format = pramfs::format::FormatOptions {
        lanes: Some(2),
        ..summed(4096)
    };
    let sim = formatted(LEN, &format).unwrap();
    let fs = mount(&sim, options()).unwrap();
    for (name, at) in WRONG {
        let ino = file(&fs, name, &text(FILE));
        forge(&fs, place(&fs, ino, at));
    }
    assert_eq!(scrub(&fs).findings, 2);
    fs.close().unwrap();
    sim.image()
}

fn image() -> SimBackend {
    if std::env::var_os("PRAMFS_WRITE_GOLDEN").is_some() {
        std::fs::write(path(), scrubbed()).unwrap();
    }
    let image = std::fs::read(path()).expect("the golden image is part of the repository");
    SimBackend::from_image(&image).unwrap()
}

fn ino(fs: &Fs, name: &str) -> Ino {
    fs.lookup(Ino::ROOT, name.as_bytes()).unwrap().ino
}

/// The first and the last finding are those of the image.
fn check_marks(fs: &Fs, status: &ScrubStatus) {
    let marks = [&status.first, &status.last];
    for (mark, (name, at)) in marks.into_iter().zip(WRONG) {
        assert_eq!((mark.ino, mark.place), (ino(fs, name).0, at), "{name}");
        assert_eq!(mark.time_sec, NOW);
        assert!(mark.kind.starts_with(b"data-sum\0"), "{status:?}");
    }
}

/// Gives the wrong blocks other bytes, with sums.
fn write_anew(fs: &Fs) {
    for (name, at) in WRONG {
        let bytes = &text(FILE)[at as usize..FILE.min(at as usize + 4096)];
        fs.write(&Credentials::ROOT, ino(fs, name), at, bytes)
            .unwrap();
    }
}

#[test]
fn golden_image_shows_first_and_last_finding_and_their_number() {
    let fs = mount(&image(), options()).unwrap();
    let status = fs.scrub_status();
    assert_eq!((status.state, status.completed), (FINISHED, 1));
    assert_eq!((status.found, status.findings), (2, 2));
    assert_eq!((status.started_sec, status.completed_sec), (NOW, NOW));
    check_marks(&fs, &status);
}

#[test]
fn scrub_of_golden_image_adds_to_its_findings() {
    let sim = image();
    let fs = mount(&sim, options()).unwrap();
    let status = scrub(&fs);
    assert_eq!((status.found, status.findings), (2, 4));
    assert_eq!(status.completed, 2);
    check_marks(&fs, &status);
    write_anew(&fs);
    let status = scrub(&fs);
    assert_eq!((status.found, status.findings), (0, 4));
    fs.close().unwrap();
    let fs = mount(&sim, options()).unwrap();
    assert_eq!(fs.scrub_status().completed, 3);
    check_marks(&fs, &fs.scrub_status());
}

#[test]
fn repair_of_golden_image_clears_findings_once_the_files_are_whole() {
    let sim = image();
    let fs = mount(&sim, options()).unwrap();
    let files = WRONG.map(|(name, at)| (ino(&fs, name), at));
    drop(fs);
    let found = check(&region_of(&sim), &CheckOptions::default());
    let issues: Vec<_> = found.issues().collect();
    assert!(
        issues.contains(&&Issue::ScrubFindings { count: 2 }),
        "{found}"
    );
    for (ino, at) in files {
        let len = (FILE as u64 - at).min(4096);
        let wrong = Issue::DataSum {
            ino,
            offset: at,
            len,
        };
        assert!(issues.contains(&&wrong), "{found}");
    }
    assert_eq!(issues.len(), 3, "{found}");
    let fs = mount(&sim, options()).unwrap();
    write_anew(&fs);
    fs.close().unwrap();
    let report = repair(&region_of(&sim), &RepairOptions::new(Policy::Yes)).expect("repaired");
    assert!(report.is_sound(), "{report}");
    let found = check(&region_of(&sim), &CheckOptions::default());
    assert!(found.is_clean(), "{found}");
    let fs = mount(&sim, options()).unwrap();
    assert_eq!(fs.scrub_status().findings, 0);
    assert_eq!(fs.scrub_status().first.time_sec, 0);
}

/// The image holds the record that an unmodified version of this file makes.
#[test]
fn record_of_golden_image_is_whole() {
    let region = region_of(&image());
    let geo = probe_superblock(&region).unwrap().geometry();
    let slots = ScrubSlots::read(&region, &geo);
    assert_eq!(slots.damaged, 0);
    let newest = slots.newest.expect("a record");
    assert_eq!(newest.crc, newest.expected_crc(geo.seed));
    assert_eq!((newest.found, newest.findings), (2, 2));
}
