//! Time and memory of a check and of a repair grow with the contents of the file system:
//! 1,000,000 files take less than 5 seconds in a release build. The development build
//! uses a tenth of the files with the same limit.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{Region, RegionOptions};
use pramfs::{
    MountOptions,
    inode::{Credentials, Fs, Ino},
};
use pramfs_fsck::{CheckOptions, Policy, RepairOptions, check, repair};
use pramfs_medium::pmem::RegionAccess;

/// Counts allocated bytes, and their maximum.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system allocator and only keeps counters.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The additional memory that `f` has allocated at its peak.
fn most<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let result = run();
    (result, MOST.load(Ordering::Relaxed).saturating_sub(before))
}

const FILES: u64 = if cfg!(debug_assertions) {
    100_000
} else {
    1_000_000
};
/// Seconds.
const BOUND: f64 = 5.0;

/// Half of the files in one directory, half in directories of 100; every tenth file has a
/// block.
fn filled(files: u64) -> Region {
    let options = RegionOptions::new();
    let region = options.memfd("fsck", files * 4096 + (64 << 20)).unwrap();
    let what = FormatOptions {
        max_inodes: Some(files * 11 / 10 + 1000),
        ..FormatOptions::default()
    };
    format(&region, &what).unwrap();
    let fs = Fs::open(region, MountOptions::default()).unwrap();
    let ctx = Credentials::ROOT;
    let big = fs.mkdir(&ctx, Ino::ROOT, b"big", 0o755).unwrap().ino;
    let mut dir = big;
    for i in 0..files {
        if i >= files / 2 && i % 100 == 0 {
            let name = format!("dir {i}");
            dir = fs
                .mkdir(&ctx, Ino::ROOT, name.as_bytes(), 0o755)
                .unwrap()
                .ino;
        }
        let ino = fs
            .create(&ctx, dir, format!("file {i}").as_bytes(), 0o644)
            .unwrap()
            .ino;
        if i % 10 == 0 {
            fs.write(&Credentials::ROOT, ino, 0, b"something").unwrap();
        }
    }
    let (region, report) = pramfs_fsck::check_fs(fs, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{report}");
    assert!(report.counts.files == files);
    region.unwrap()
}

/// Damages a byte of every seventeenth page, the first nonzero one from 1000 on: leaves,
/// inodes, bitmaps. Returns the number of damaged pages.
fn damage(region: &Region) -> u64 {
    let mut damaged = 0;
    let mut page = vec![0; 3096];
    for at in (0..region.len() / 4096).step_by(17).skip(2) {
        let at = at * 4096 + 1000;
        region.read(at, &mut page).unwrap();
        if let Some(i) = page.iter().position(|b| *b != 0) {
            let byte = [page[i] ^ 0x10];
            let w = region.window();
            w.store_unflushed(at + i as u64, &byte).unwrap();
            damaged += 1;
        }
    }
    damaged
}

#[test]
fn fsck_of_million_files_takes_seconds() {
    // A tenth of them, for comparison.
    let few = filled(FILES / 10);
    let (_, few_checked) = most(|| check(&few, &CheckOptions::default()));
    damage(&few);
    let yes = || RepairOptions::new(Policy::Yes);
    let (_, few_repaired) = most(|| repair(&few, &yes()).unwrap());
    drop(few);

    let region = filled(FILES);
    let start = Instant::now();
    let (report, checked_in) = most(|| check(&region, &CheckOptions::default()));
    let checked = start.elapsed().as_secs_f64();
    assert!(report.is_clean(), "{report}");
    let damaged = damage(&region);
    let start = Instant::now();
    let (report, repaired_in) = most(|| repair(&region, &yes()).unwrap());
    let repaired = start.elapsed().as_secs_f64();
    println!(
        "{FILES} files: checked in {checked:.2} s and {} KiB; {damaged} pages damaged, {} findings, \
         repaired in {repaired:.2} s and {} KiB",
        checked_in >> 10,
        report.findings.len(),
        repaired_in >> 10
    );
    println!(
        "a tenth of them: checked in {} KiB, repaired in {} KiB",
        few_checked >> 10,
        few_repaired >> 10
    );
    assert!(damaged > FILES / 1000, "hardly anything was damaged");
    let left: Vec<_> = report.left().collect();
    assert!(report.is_sound(), "{left:#?}");
    assert!(check(&region, &CheckOptions::default()).is_clean());
    assert!(checked < BOUND, "the check took {checked:.2} s");
    // Repeated checks.
    assert!(repaired < 6.0 * BOUND, "the repair took {repaired:.2} s");
    // Tables that grow by doubling may just have grown.
    for (few, all) in [(few_checked, checked_in), (few_repaired, repaired_in)] {
        assert!(all < 20 * few, "{all} bytes, and {few} for a tenth");
    }
    // 16 bytes for each inode, 48 for each directory, and a constant part.
    let bound = FILES as usize * 40 + (1 << 20);
    assert!(checked_in < bound, "{checked_in} bytes for {FILES} files");
}
