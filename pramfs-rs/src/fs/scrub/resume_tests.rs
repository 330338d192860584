//! Interruptions, and the record on the medium.

use super::finding::ScrubFinding;
use super::position::{Part, Phase, Position};
use super::run::{Order, Progress, ScrubHost, ScrubOptions};
use super::support_tests::*;
use super::verify::Checksums;
use crate::fs::{Fs, MountOptions};
use pramfs_medium::error::Damage;
use pramfs_medium::media::scrub::{
    CANCELLED, FINISHED, NEVER, SCRUB_OFFSET, ScrubRecord, ScrubSlots, UNDER_WAY,
};
use pramfs_medium::pmem::{Region, SimBackend};
use std::cell::RefCell;
use std::time::Duration;
use zerocopy::IntoBytes;

#[test]
fn interrupted_scrub_goes_on_after_a_crash_and_finds_all() {
    let p = planted();
    let at = state(&p.fs, p.dir, |s| to(&p.fs, s.disk.root)) + 32;
    flip(&p.fs, at);
    let (whole, found) = scrub(&p.fs);
    assert!(!found.is_empty());
    let (mut after, mut interrupted) = (1, 0);
    loop {
        // Each run goes a little further, in another mount, after a crash.
        let fs = open(&SimBackend::from_image(&p.sim.image()).unwrap());
        let (mut steps, mut all) = (0, Vec::new());
        let mut resume = false;
        let record = loop {
            let host = Host::stopping(after, Order::Interrupt);
            let record = scrub_with(&fs, &host, resume);
            all.extend(host.kinds());
            steps += 1;
            resume = true;
            if record.state == FINISHED {
                break record;
            }
            assert_eq!(record.state, UNDER_WAY);
            interrupted += 1;
        };
        let kinds: Vec<_> = found.iter().map(|found| found.kind).collect();
        assert_eq!(all, kinds, "interrupted after each {after} steps");
        // Pointer blocks on the path to the position are read again.
        assert!(record.done >= whole.done);
        assert_eq!(record.found, whole.found);
        assert_eq!(record.findings, 2 * whole.found);
        drop(fs);
        if steps == 1 {
            break;
        }
        after *= 5;
    }
    assert!(interrupted > 100, "{interrupted}");
    drop(p.fs);
}

/// A killed server leaves the last record that was kept.
#[test]
fn killed_scrub_repeats_what_it_read_since_the_last_record() {
    let p = planted();
    let image = RefCell::new(Vec::new());
    struct Copying<'a>(&'a Host, &'a SimBackend, &'a RefCell<Vec<u8>>);
    impl ScrubHost for Copying<'_> {
        fn now(&self) -> Duration {
            self.0.now()
        }
        fn wait(&self, at_most: Option<Duration>) -> Order {
            if self.0.left.get() == 1 {
                *self.2.borrow_mut() = self.1.image();
            }
            self.0.wait(at_most)
        }
        fn show(&self, progress: &Progress, found: &[ScrubFinding]) {
            self.0.show(progress, found);
        }
    }
    let mut repeats = 0;
    for stop in (60..480).step_by(17) {
        let mut host = Host::stopping(stop, Order::Interrupt);
        // A record each 50 steps.
        host.step = Duration::from_millis(100);
        let copying = Copying(&host, &p.sim, &image);
        p.fs.run_scrub(ScrubOptions::default(), &Checksums, &copying)
            .unwrap();
        let done = host.last.get().unwrap().record.done;
        let fs = open(&SimBackend::from_image(&image.borrow()).unwrap());
        let kept = fs.scrub_record().unwrap();
        assert_eq!(kept.state, UNDER_WAY, "{stop}");
        assert!(
            kept.done > 0 && kept.done <= done,
            "{} of {done}",
            kept.done
        );
        repeats += u32::from(kept.done < done);
    }
    assert!(repeats > 0);
    let fs = open(&SimBackend::from_image(&image.borrow()).unwrap());
    let record = scrub_with(&fs, &Host::new(), true);
    assert_eq!((record.state, record.found), (FINISHED, 0));
    let status = fs.scrub_status();
    assert!(!status.running && status.kept);
    assert_eq!((status.state, status.completed), (FINISHED, 1));
    fs.close().unwrap();
    p.fs.close().unwrap();
}

#[test]
fn cancelled_scrub_goes_on_only_if_asked_to() {
    let p = planted();
    let host = Host::stopping(50, Order::Cancel);
    assert_eq!(scrub_with(&p.fs, &host, false).state, CANCELLED);
    let some = host.last.get().unwrap().record.done;
    let host = Host::new();
    let record = scrub_with(&p.fs, &host, true);
    assert_eq!(record.state, FINISHED);
    let run = host.last.get().unwrap().run_done;
    assert!(
        run < record.done && run + some >= record.done,
        "{run}, {some}"
    );
    assert_eq!(
        scrub_with(&p.fs, &Host::stopping(50, Order::Cancel), false).done,
        some
    );
    let (again, _) = scrub(&p.fs);
    assert_eq!(again.found, 0);
    assert!(again.done > some, "it began anew and read all");
    // A finished one has no rest.
    assert_eq!(scrub_with(&p.fs, &Host::new(), true).done, again.done);
    p.fs.close().unwrap();
}

#[test]
fn read_only_mount_is_scrubbed_and_not_changed() {
    let p = planted();
    scrub_with(&p.fs, &Host::stopping(30, Order::Interrupt), false);
    p.fs.close().unwrap();
    let before = p.sim.image();
    let options = MountOptions {
        read_only: true,
        ..quiet()
    };
    let region = Region::new("scrub", Box::new(p.sim.clone()));
    let fs = Fs::open(region, options).unwrap();
    flip(&fs, 0x38);
    let host = Host::new();
    let record = scrub_with(&fs, &host, false);
    assert_eq!(host.kinds(), [Damage::SuperblockDamaged]);
    assert_eq!((record.state, record.found), (FINISHED, 1));
    assert!(!fs.scrub_status().kept);
    flip(&fs, 0x38);
    drop(fs);
    assert!(p.sim.image() == before, "a read-only scrub has stored");
}

#[test]
fn damaged_records_are_ignored_and_a_torn_one_is_no_loss() {
    let p = planted();
    scrub_with(&p.fs, &Host::stopping(30, Order::Interrupt), false);
    let kept = p.fs.scrub_record().unwrap();
    let copy = p.fs.vol.geo.copy_offset.0;
    let places = [SCRUB_OFFSET, SCRUB_OFFSET + 256].map(|at| [at, copy + at]);
    let newest = places[(kept.sequence % 2) as usize];
    // One of the slots of the newest is torn: the other has it.
    for at in newest {
        flip(&p.fs, at + 0x20);
        let slots = ScrubSlots::read(&p.fs.vol.region, &p.fs.vol.geo);
        assert_eq!(
            slots.newest.map(|record| record.sequence),
            Some(kept.sequence)
        );
        assert!(!slots.is_damaged());
        flip(&p.fs, at + 0x20);
    }
    // Both are: the one before holds.
    newest.into_iter().for_each(|at| flip(&p.fs, at + 0x20));
    let slots = ScrubSlots::read(&p.fs.vol.region, &p.fs.vol.geo);
    assert_eq!(
        slots.newest.map(|record| record.sequence),
        Some(kept.sequence - 1)
    );
    assert!(slots.is_damaged());
    // All are: none holds, and a scrub works.
    for at in places.iter().flatten() {
        flip(&p.fs, at + 0x48);
    }
    assert_eq!(p.fs.scrub_record(), None);
    assert_eq!(p.fs.scrub_status().state, NEVER);
    let host = Host::new();
    let record = scrub_with(&p.fs, &host, true);
    assert_eq!((record.state, record.findings), (FINISHED, 1));
    assert_eq!(host.kinds(), [Damage::ScrubRecordDamaged]);
    assert!(ScrubSlots::read(&p.fs.vol.region, &p.fs.vol.geo).newest == Some(record));
    let (record, found) = scrub(&p.fs);
    assert_eq!((found, record.findings), (Vec::new(), 1));
    p.fs.close().unwrap();
}

/// Any bytes in the record, with a right checksum, are a place to go on from.
#[test]
fn hostile_position_is_gone_on_from() {
    let p = planted();
    let geo = &p.fs.vol.geo;
    let values = [0, 1, 5, 77, 4096, 1 << 40, 1 << 62, u64::MAX - 1, u64::MAX];
    for phase in 0..9 {
        for part in 0..5 {
            for object in values {
                for offset in values {
                    let mut record = ScrubRecord {
                        state: UNDER_WAY,
                        sequence: 1,
                        done: offset,
                        phase,
                        part,
                        object,
                        offset,
                        findings: u64::MAX,
                        found: u64::MAX,
                        ..zerocopy::FromZeros::new_zeroed()
                    };
                    record.crc = record.expected_crc(geo.seed);
                    let at = Position::from_record(&record);
                    let mut scrubber = super::unit::Scrubber::new(&p.fs, &Checksums, at);
                    for _ in 0..4 {
                        let stepped = scrubber.step().unwrap();
                        assert!(stepped.is_none_or(|s| s.found.is_empty()), "{record:?}");
                    }
                }
            }
        }
    }
    p.fs.close().unwrap();
}

#[test]
fn positions_survive_the_medium() {
    let mut record: ScrubRecord = zerocopy::FromZeros::new_zeroed();
    assert_eq!(record.as_bytes().len(), 256);
    for phase in [Phase::Pages, Phase::Tables, Phase::Inodes, Phase::End] {
        for part in [Part::Inode, Part::Contents, Part::Xattrs, Part::Counts] {
            let at = Position {
                phase,
                object: 3,
                part,
                offset: 4,
            };
            at.to_record(&mut record);
            assert_eq!(Position::from_record(&record), at);
        }
    }
}
