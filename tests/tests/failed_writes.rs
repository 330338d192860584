//! Writes that are the first to meet a failed page: under the file, where new bytes wait, in a
//! free block, under a checksum. The page costs its own bytes, and the write goes on elsewhere.
//!
//! The pages fail under one mapping only: after the next mount they are healthy, and the checker
//! reads all.

use std::fs::File;
use std::path::{Path, PathBuf};

use pramfs::format::{FormatOptions, format};
use pramfs::inode::{Credentials, Fs, Ino, SetAttr};
use pramfs::{DataMode, Fallocate, MountOptions, OpenOptions};
use pramfs_medium::media::inode::FL_APPEND;
use pramfs_medium::pmem::{BackendKind, Region, RegionOptions, install_fault_guard};
use pramfs_tests::poisoned::{PAGE, fail_page};
use pramfs_tests::region::{quiet, repeatable};
use pramfs_tests::sums::{place, sum_place};

const CX: &Credentials<'_> = &Credentials::ROOT;
const LEN: u64 = 8 << 20;
const BYTES: usize = PAGE as usize;

fn open(path: &Path) -> Region {
    let options = RegionOptions::new().backend(BackendKind::Native);
    options.open(path).expect("a region on tmpfs")
}

/// Formats a region, and keeps its directory.
fn make(block_size: u32, data_checksums: bool) -> (tempfile::TempDir, PathBuf) {
    install_fault_guard().expect("a handler for SIGBUS");
    let dir = tempfile::tempdir_in("/dev/shm").expect("tmpfs at /dev/shm");
    let path = dir.path().join("region");
    let file = File::create(&path).expect("a file on tmpfs");
    file.set_len(LEN).expect("room on tmpfs");
    let options = FormatOptions {
        features: vec![("data_checksums".into(), data_checksums)],
        ..repeatable(block_size)
    };
    format(&open(&path), &options).expect("formatted");
    (dir, path)
}

fn mount(path: &Path, data: DataMode) -> Fs {
    let options = MountOptions { data, ..quiet() };
    Fs::open(open(path), options).expect("mounted")
}

fn create(fs: &Fs, name: &str) -> Ino {
    let made = fs.create(CX, Ino::ROOT, name.as_bytes(), 0o644);
    made.expect("made").ino
}

fn page_of(fs: &Fs, ino: Ino, at: u64) -> [u8; BYTES] {
    let mut found = [0; BYTES];
    assert_eq!(fs.read(ino, at, &mut found).expect("read"), BYTES);
    found
}

/// The pages of the region that hold these bytes only.
fn pages_with(fs: &Fs, bytes: &[u8; BYTES]) -> Vec<u64> {
    let holds = |page: &u64| {
        let mut found = [0; BYTES];
        fs.region().read(page * PAGE, &mut found).is_ok() && found == *bytes
    };
    (0..LEN / PAGE).filter(holds).collect()
}

/// Unmounts, and checks the file system where all its pages are healthy.
fn close_and_check(fs: Fs, path: &Path) {
    fs.close().expect("unmounted");
    let fs = mount(path, DataMode::default());
    let (_, report) = pramfs_fsck::check_fs(fs, &Default::default()).expect("checked");
    let findings = report.findings.iter();
    let findings: Vec<_> = findings
        .filter(|f| f.issue.kind() != pramfs::Damage::ErrorsRecorded)
        .map(ToString::to_string)
        .collect();
    assert!(findings.is_empty(), "{findings:#?}");
}

/// Nothing reads a block that is replaced as a whole, so the copy of an atomic write is what
/// meets the failed page.
#[test]
fn atomic_overwrite_of_failed_page_gets_another_block() {
    for data_checksums in [false, true] {
        let (_dir, path) = make(4096, data_checksums);
        let fs = mount(&path, DataMode::Atomic);
        let (hit, other) = (create(&fs, "hit"), create(&fs, "other"));
        let old = [0x5a; BYTES];
        for i in 0..3 {
            fs.write(CX, hit, i * PAGE, &old).expect("written");
        }
        // The three of the file, and free blocks where its bytes have waited.
        let pages = pages_with(&fs, &old);
        assert!(pages.len() >= 3, "{pages:?}");
        for page in &pages {
            fail_page(fs.region_to_damage(), *page);
        }
        let new = [0xa5; BYTES];
        let written = fs.write(CX, hit, PAGE, &new);
        assert_eq!(written.expect("another block"), BYTES);
        assert!(fs.region().faults() > 0, "no page was met");
        fs.write(CX, other, 0, &new).expect("the volume is up");
        assert!(page_of(&fs, hit, PAGE) == new && page_of(&fs, other, 0) == new);
        let mut found = [0; BYTES];
        fs.read(hit, 0, &mut found).expect_err("this page failed");
        fs.close().expect("unmounted");
        let fs = mount(&path, DataMode::Atomic);
        assert!(page_of(&fs, hit, PAGE) == new);
        assert!(page_of(&fs, hit, 0) == old, "its page is healthy again");
        close_and_check(fs, &path);
    }
}

/// One page holds the sums of 512 blocks. None of these takes new bytes then.
#[test]
fn overwrite_with_failed_page_of_sums_gets_another_block() {
    for data in [DataMode::InPlace, DataMode::Atomic] {
        let (_dir, path) = make(4096, true);
        let fs = mount(&path, data);
        let (hit, other) = (create(&fs, "hit"), create(&fs, "other"));
        let old = [0x5a; BYTES];
        for i in 0..3 {
            fs.write(CX, hit, i * PAGE, &old).expect("written");
        }
        let before = place(&fs, hit, PAGE);
        fail_page(fs.region_to_damage(), sum_place(&fs, before) / PAGE);
        let new = [0xa5; BYTES];
        for ino in [hit, other] {
            let written = fs.write(CX, ino, PAGE, &new);
            assert_eq!(written.expect("another block"), BYTES, "{data:?}");
        }
        assert!(fs.region().faults() > 0, "the page was not met");
        assert!(page_of(&fs, hit, PAGE) == new && page_of(&fs, other, PAGE) == new);
        let group = |at: u64| at / PAGE / 512;
        assert_ne!(group(place(&fs, hit, PAGE)), group(before));
        let mut found = [0; BYTES];
        fs.read(hit, 0, &mut found)
            .expect_err("nothing tells whether these bytes are right");
        fs.close().expect("unmounted");
        let fs = mount(&path, data);
        assert!(page_of(&fs, hit, PAGE) == new && page_of(&fs, hit, 0) == old);
        close_and_check(fs, &path);
    }
}

/// Free pages behind that of the file, which the allocator gives out next.
fn free_pages_behind(fs: &Fs, page: u64, count: usize) -> Vec<u64> {
    let free = |page: &u64| {
        let mut bytes = [1; BYTES];
        fs.region().read(page * PAGE, &mut bytes).is_ok() && bytes == [0; BYTES]
    };
    let free: Vec<u64> = (page + 1..LEN / PAGE).filter(free).take(count).collect();
    assert_eq!(free.len(), count);
    free
}

/// How a page of 0x77 comes to the end of a file.
type Grow = fn(&Fs, Ino, u64, &[u8; BYTES]) -> pramfs::Result<()>;

/// Writes whole pages to a new file while `fail` free pages fail, and returns the number of writes
/// that fail. All bytes are there in the end, and the next mount has all blocks.
fn failed_writes(block_size: u32, fail: usize, grow: Grow) -> usize {
    let (_dir, path) = make(block_size, false);
    let fs = mount(&path, DataMode::InPlace);
    let source = create(&fs, "source");
    let block = [0x77; BYTES];
    fs.write(CX, source, 0, &block).expect("written");
    let ino = create(&fs, "grows");
    fs.write(CX, ino, 0, &block).expect("written");
    let page = place(&fs, ino, 0) / PAGE;
    for page in free_pages_behind(&fs, page, fail) {
        fail_page(fs.region_to_damage(), page);
    }
    let mut failed = 0;
    for i in 1..40 {
        while grow(&fs, ino, i * PAGE, &block).is_err() {
            failed += 1;
            assert!(failed <= fail, "the same page fails again");
        }
    }
    assert_eq!(fs.region().faults(), fail as u64, "each is met once");
    for i in 0..40 {
        assert!(page_of(&fs, ino, i * PAGE) == block, "page {i}");
    }
    let free = |fs: &Fs| fs.statfs().expect("sizes").free;
    let kept = free(&fs);
    fs.close().expect("unmounted");
    let fs = mount(&path, DataMode::InPlace);
    let per_page = PAGE / u64::from(block_size);
    let fail = fail as u64;
    assert!(
        (fail..=fail * per_page).contains(&(free(&fs) - kept)),
        "they do not count as free before the next mount"
    );
    close_and_check(fs, &path);
    failed
}

fn write(fs: &Fs, ino: Ino, at: u64, bytes: &[u8; BYTES]) -> pramfs::Result<()> {
    fs.write(CX, ino, at, bytes).map(drop)
}

/// The allocator would offer the same blocks again and again.
#[test]
fn write_past_free_blocks_that_fail_succeeds() {
    for block_size in [512, 4096] {
        let failed = failed_writes(block_size, 5, write);
        assert_eq!(failed, 0, "blocks of {block_size}");
    }
}

#[test]
fn append_past_free_blocks_that_fail_succeeds() {
    let ways: [Grow; 3] = [
        |fs, ino, at, bytes| {
            assert_eq!(fs.append(CX, ino, bytes)?, at);
            Ok(())
        },
        |fs, ino, at, bytes| fs.append_chunk(CX, ino, at, bytes),
        |fs, ino, at, bytes| {
            let names = ["/source", "/grows"];
            let file = names.into_iter().find_map(|name| {
                let file = OpenOptions::new().write(true).open(fs, name).ok()?;
                (file.metadata().ok()?.ino() == ino).then_some(file)
            });
            assert_eq!(file.expect("a file").append(bytes)?, at);
            Ok(())
        },
    ];
    for (way, grow) in ways.into_iter().enumerate() {
        for block_size in [512, 4096] {
            let failed = failed_writes(block_size, 5, grow);
            assert_eq!(failed, 0, "way {way}, blocks of {block_size}");
        }
    }
}

#[test]
fn copy_past_free_blocks_that_fail_succeeds() {
    let grow: Grow = |fs, ino, at, _| {
        let source = fs.lookup(Ino::ROOT, b"source")?.ino;
        let copied = fs.copy_range(CX, (source, 0), (ino, at), PAGE)?;
        assert_eq!(copied, PAGE);
        Ok(())
    };
    assert_eq!(failed_writes(4096, 5, grow), 0);
}

/// What replaces a page as a whole gets another block for it, and no other page is given up.
#[test]
fn zeros_and_copies_over_failed_page_get_another_block() {
    let zero = Fallocate::ZeroRange { keep_size: true };
    type Change<'a> = &'a dyn Fn(&Fs, Ino) -> pramfs::Result<()>;
    let changes: [(Change<'_>, u8); 2] = [
        (&|fs, ino| fs.fallocate(CX, ino, zero, PAGE, PAGE), 0),
        (
            // More than the source has.
            &|fs, ino| {
                let source = fs.lookup(Ino::ROOT, b"source")?.ino;
                let copied = fs.copy_range(CX, (source, 0), (ino, PAGE), 8 * PAGE)?;
                assert_eq!(copied, PAGE);
                Ok(())
            },
            0x77,
        ),
    ];
    for data in [DataMode::InPlace, DataMode::Atomic] {
        for (change, expected) in changes {
            let (_dir, path) = make(4096, false);
            let fs = mount(&path, data);
            let (source, ino) = (create(&fs, "source"), create(&fs, "file"));
            fs.write(CX, source, 0, &[0x77; BYTES]).expect("written");
            for i in 0..4 {
                fs.write(CX, ino, i * PAGE, &[0x5a; BYTES])
                    .expect("written");
            }
            for i in [1, 3] {
                fail_page(fs.region_to_damage(), place(&fs, ino, i * PAGE) / PAGE);
            }
            change(&fs, ino).expect("another block");
            assert!(page_of(&fs, ino, PAGE) == [expected; BYTES], "{data:?}");
            assert!(page_of(&fs, ino, 2 * PAGE) == [0x5a; BYTES]);
            fs.close().expect("unmounted");
            let fs = mount(&path, data);
            assert!(page_of(&fs, ino, PAGE) == [expected; BYTES], "{data:?}");
            assert!(
                page_of(&fs, ino, 3 * PAGE) == [0x5a; BYTES],
                "its page is healthy again"
            );
            close_and_check(fs, &path);
        }
    }
}

/// The blocks past its end are replaced, and nothing that it has.
#[test]
fn append_to_append_only_file_gets_past_failed_block() {
    let (_dir, path) = make(4096, false);
    let fs = mount(&path, DataMode::InPlace);
    let ino = create(&fs, "grows");
    fs.write(CX, ino, 0, &[0x5a; BYTES]).expect("written");
    // Blocks of the file past its end, behind its first one.
    let behind = free_pages_behind(&fs, place(&fs, ino, 0) / PAGE, 1)[0];
    let ahead = Fallocate::Allocate { keep_size: true };
    fs.fallocate(CX, ino, ahead, PAGE, 4 * PAGE)
        .expect("allocated");
    let append_only = SetAttr {
        flags: Some(FL_APPEND),
        ..SetAttr::default()
    };
    fs.setattr(CX, ino, &append_only).expect("chattr +a");
    fail_page(fs.region_to_damage(), behind);
    let block = [0x77; BYTES];
    for i in 1..4 {
        assert_eq!(fs.append(CX, ino, &block).expect("another block"), i * PAGE);
    }
    assert!(fs.region().faults() > 0, "the page was not met");
    for i in 1..4 {
        assert!(page_of(&fs, ino, i * PAGE) == block);
    }
    close_and_check(fs, &path);
}

/// A write looks for other blocks 16 times.
#[test]
fn write_into_many_failed_blocks_fails_once_and_goes_on() {
    assert_eq!(failed_writes(4096, 20, write), 1);
}
