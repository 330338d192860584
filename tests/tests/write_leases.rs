//! Leases to write, in the engine: the times of the file that their holders store to, and
//! what growth makes of blocks past the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use pramfs::inode::{Credentials, Fs, Ino, LeaseEvent, LeaseMode, SetAttr, SetTime, Time};
use pramfs::{Clock, MountOptions};
use pramfs_fsck::{self as fsck, CheckOptions};
use pramfs_medium::media::inode::{FL_APPEND, FL_IMMUTABLE};
use pramfs_medium::pmem::{RegionAccess, SimBackend};
use pramfs_tests::region::{fresh, quiet, region_of};

const CX: Credentials<'_> = Credentials::ROOT;
const LEN: usize = 4 << 20;
const BLOCK: u64 = 4096;

#[derive(Debug)]
struct Hand(AtomicI64);

impl Clock for Hand {
    fn now(&self) -> Time {
        Time {
            sec: self.0.load(Ordering::Relaxed),
            nsec: 0,
        }
    }
}

/// A file of three blocks, which a process has leased to write.
struct Written {
    sim: SimBackend,
    fs: Fs,
    clock: Arc<Hand>,
    file: Ino,
    slot: u32,
    id: u64,
}

fn options(clock: &Arc<Hand>) -> MountOptions {
    MountOptions {
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        ..quiet()
    }
}

fn written() -> Written {
    let (sim, fs) = fresh(LEN, BLOCK as u32).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    fs.write(&CX, file, 0, &[7; 3 * BLOCK as usize]).unwrap();
    fs.close().unwrap();
    let clock = Arc::new(Hand(AtomicI64::new(2000)));
    let fs = Fs::open(region_of(&sim), options(&clock)).unwrap();
    let generation = fs.getattr(file).unwrap().generation;
    let grant = fs.grant_lease(file, generation, LeaseMode::Write, 1, 1);
    let grant = grant.unwrap();
    let (slot, id) = (grant.lease().slot, grant.lease().id);
    fs.region_to_damage().pretend_lease(slot, true);
    drop(grant);
    Written {
        sim,
        fs,
        clock,
        file,
        slot,
        id,
    }
}

impl Written {
    /// Stores like the holder. Returns the place of the note.
    fn store(&self, offset: u64, byte: u8, note: bool) -> u64 {
        let found = self.fs.leased_extents(self.slot, self.id, 0, 100).unwrap();
        assert_eq!(found.extents.len(), 1);
        let at = found.extents[0].region_offset.unwrap() + offset;
        let w = self.fs.region_to_damage().window();
        let _ = w.fence(w.nt_store(at, &[byte; 8]).unwrap());
        if note {
            w.store_u64_unflushed(found.stored, 1).unwrap();
        }
        found.stored
    }

    fn mtime(&self) -> i64 {
        self.fs.getattr(self.file).unwrap().mtime.sec
    }

    fn at(&self, sec: i64) {
        self.clock.0.store(sec, Ordering::Relaxed);
    }
}

fn truncate(fs: &Fs, file: Ino, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(&CX, file, &set).unwrap();
}

fn assert_clean(sim: &SimBackend) {
    let report = fsck::check(&region_of(sim), &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
}

#[test]
fn noted_store_sets_times_once() {
    let w = written();
    let before = w.fs.getattr(w.file).unwrap();
    w.at(3000);
    w.store(0, 1, false);
    assert!(!w.fs.note_stores(w.file).unwrap());
    assert_eq!(w.fs.getattr(w.file).unwrap(), before);
    w.store(0, 2, true);
    assert!(w.fs.note_stores(w.file).unwrap());
    let after = w.fs.getattr(w.file).unwrap();
    assert_eq!((after.mtime.sec, after.ctime.sec), (3000, 3000));
    w.at(4000);
    assert!(!w.fs.note_stores(w.file).unwrap());
    assert_eq!(w.mtime(), 3000);
}

#[test]
fn times_that_are_set_after_store_stay() {
    let w = written();
    w.at(3000);
    w.store(0, 1, true);
    let set = SetAttr {
        mtime: Some(SetTime::At(Time { sec: 1234, nsec: 0 })),
        ..SetAttr::default()
    };
    w.fs.setattr(&CX, w.file, &set).unwrap();
    w.at(4000);
    assert!(!w.fs.note_stores(w.file).unwrap());
    assert_eq!(w.mtime(), 1234);
}

#[test]
fn store_noted_before_end_of_lease_sets_mtime() {
    let w = written();
    w.store(0, 1, true);
    w.at(3000);
    w.fs.region_to_damage().pretend_lease(w.slot, false);
    assert_eq!(w.fs.end_released_leases().unwrap(), 1);
    assert_eq!(w.mtime(), 3000);
    w.fs.close().unwrap();
    assert_clean(&w.sim);
}

#[test]
fn store_noted_without_server_sets_mtime_at_next_mount() {
    let w = written();
    w.store(0, 1, true);
    let sim = SimBackend::from_image(&w.sim.image()).unwrap();
    w.at(3000);
    let fs = Fs::open(region_of(&sim), options(&w.clock)).unwrap();
    // Nobody holds it any more.
    assert!(fs.leases().is_empty());
    assert_eq!(fs.getattr(w.file).unwrap().mtime.sec, 3000);
    fs.close().unwrap();
    assert_clean(&sim);
}

#[test]
fn note_in_free_slot_is_not_taken_for_next_lease() {
    let w = written();
    let note = w.store(0, 1, false);
    w.fs.region_to_damage().pretend_lease(w.slot, false);
    assert_eq!(w.fs.end_released_leases().unwrap(), 1);
    // In both slots that the next lease may get.
    let window = w.fs.region_to_damage().window();
    for slot in [note, note + 256] {
        window.store_u64_unflushed(slot, 1).unwrap();
    }
    w.at(3000);
    let generation = w.fs.getattr(w.file).unwrap().generation;
    let grant = w.fs.grant_lease(w.file, generation, LeaseMode::Write, 1, 1);
    assert!(grant.unwrap().lease().slot < 2);
    assert!(!w.fs.note_stores(w.file).unwrap());
    assert_ne!(w.mtime(), 3000);
}

#[test]
fn unmount_notes_stores() {
    let w = written();
    w.at(3000);
    let set = SetAttr {
        mtime: Some(SetTime::At(Time { sec: 1, nsec: 0 })),
        ..SetAttr::default()
    };
    w.fs.setattr(&CX, w.file, &set).unwrap();
    w.store(0, 1, true);
    w.fs.close().unwrap();
    let fs = Fs::open(region_of(&w.sim), options(&w.clock)).unwrap();
    assert_eq!(fs.getattr(w.file).unwrap().mtime.sec, 3000);
}

/// The holder still maps the blocks that a truncation has cut off.
#[test]
fn stores_past_end_are_zero_after_each_kind_of_growth() {
    type Grow = fn(&Fs, Ino);
    let growths: [(&str, Grow); 5] = [
        ("truncate", |fs, file| truncate(fs, file, 3 * BLOCK)),
        ("write", |fs, file| {
            fs.write(&CX, file, 3 * BLOCK - 1, &[0]).unwrap();
        }),
        ("append", |fs, file| {
            fs.append(&CX, file, &[0; 100]).unwrap();
            truncate(fs, file, 3 * BLOCK);
        }),
        ("fallocate", |fs, file| {
            let how = pramfs::Fallocate::Allocate { keep_size: false };
            fs.fallocate(&CX, file, how, BLOCK, 2 * BLOCK).unwrap();
        }),
        ("zero range", |fs, file| {
            let how = pramfs::Fallocate::ZeroRange { keep_size: false };
            fs.fallocate(&CX, file, how, 2 * BLOCK, BLOCK).unwrap();
        }),
    ];
    for (how, grow) in growths {
        let w = written();
        let found = w.fs.leased_extents(w.slot, w.id, 0, 100).unwrap();
        let at = found.extents[0].region_offset.unwrap();
        truncate(&w.fs, w.file, 100);
        let window = w.fs.region_to_damage().window();
        let garbage = vec![0xcd; 3 * BLOCK as usize - 100];
        let _ = window.fence(window.nt_store(at + 100, &garbage).unwrap());
        drop(window);
        grow(&w.fs, w.file);
        let mut bytes = vec![0xee; 3 * BLOCK as usize];
        assert_eq!(
            w.fs.read(w.file, 0, &mut bytes).unwrap(),
            bytes.len(),
            "{how}"
        );
        assert_eq!(bytes[..100], [7; 100], "{how}");
        let stale = bytes[100..].iter().position(|byte| *byte != 0);
        assert_eq!(stale, None, "{how}");
        w.fs.close().unwrap();
        assert_clean(&w.sim);
    }
}

#[test]
fn immutable_and_append_only_files_are_leased_to_read_only() {
    let (_sim, fs) = fresh(LEN, BLOCK as u32).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let generation = fs.getattr(file).unwrap().generation;
    for flags in [FL_IMMUTABLE, FL_APPEND] {
        let set = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        fs.setattr(&CX, file, &set).unwrap();
        let lease = |mode| fs.grant_lease(file, generation, mode, 1, 1).map(drop);
        assert_eq!(lease(LeaseMode::Write).unwrap_err().errno(), libc::EPERM);
        lease(LeaseMode::Read).unwrap();
    }
}

#[test]
fn end_of_each_lease_is_told_once() {
    let w = written();
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let id = w.id;
    w.fs.watch_leases(move |lease, event| {
        assert_eq!((lease.id, lease.mode), (id, LeaseMode::Write));
        assert_eq!(event, LeaseEvent::Ended);
        count.fetch_add(1, Ordering::Relaxed);
    });
    w.fs.end_released_leases().unwrap();
    assert_eq!(told.load(Ordering::Relaxed), 0);
    w.fs.region_to_damage().pretend_lease(w.slot, false);
    w.fs.end_released_leases().unwrap();
    w.fs.end_released_leases().unwrap();
    assert_eq!(told.load(Ordering::Relaxed), 1);
}
