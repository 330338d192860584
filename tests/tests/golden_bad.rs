//! An image with a list of bad blocks, from the version that introduced the feature
//! `bad_blocks`: no later version allocates them.
//!
//! `golden/bad.img` was written by `PRAMFS_WRITE_GOLDEN=1 cargo test -p pramfs-tests --test
//! golden_bad`, and is never rewritten. The list has more extents than one of its blocks holds.
//! One bad block was in a file, whose bytes are lost.

use std::path::PathBuf;
use std::sync::Arc;

use pramfs::inode::{Credentials, Fs, Ino, Time};
use pramfs::{Clock, MountOptions};
use pramfs_fsck::{CheckOptions, check};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::media::bad_blocks::read_list_of;
use pramfs_medium::media::features::BAD_BLOCKS;
use pramfs_medium::media::{Medium, probe_superblock};
use pramfs_medium::pmem::SimBackend;
use pramfs_medium::types::{BlockRun, Bno};
use pramfs_tests::region::{formatted, mount, quiet, region_of, repeatable};

const CX: Credentials<'_> = Credentials::ROOT;
const LEN: usize = 512 << 10;
/// Pages that have failed: of 8 blocks each, none beside another.
const PAGES: std::ops::Range<usize> = 40..80;

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
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/bad.img"))
}

fn text() -> Vec<u8> {
    (0..20 * 512u32).map(|i| (i * 7 % 251) as u8).collect()
}

/// The pages that the kernel names, as ranges of bytes: every other one.
fn bad() -> Vec<std::ops::Range<u64>> {
    PAGES
        .step_by(2)
        .flat_map(|page| {
            [
                page * 4096..page * 4096 + 512,
                page * 4096 + 1024..page * 4096 + 1536,
            ]
        })
        .map(|range| range.start as u64..range.end as u64)
        .collect()
}

/// Makes the image.
fn made() -> Vec<u8> {
    set_thread_lane(0);
    let sim = formatted(LEN, &repeatable(512)).unwrap();
    let fs = mount(&sim, options()).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    fs.write(&CX, file, 0, &text()).unwrap();
    let extents = fs.file_extents(file, 5 * 512, 512).unwrap();
    let at = extents[0].region_offset.unwrap();
    fs.close().unwrap();
    let mut ranges = bad();
    ranges.push(at..at + 512);
    sim.set_kernel_bad(ranges);
    let fs = mount(&sim, options()).unwrap();
    // A part of a block cannot be written: the block is taken out of the file.
    fs.write(&CX, file, 5 * 512 + 1, b"part").unwrap_err();
    fs.close().unwrap();
    sim.image()
}

fn image() -> Vec<u8> {
    if std::env::var_os("PRAMFS_WRITE_GOLDEN").is_some() {
        std::fs::write(path(), made()).unwrap();
    }
    std::fs::read(path()).expect("the golden image is part of the repository")
}

fn listed(sim: &SimBackend) -> (usize, Vec<BlockRun>) {
    let region = region_of(sim);
    let info = probe_superblock(&region).unwrap();
    assert_ne!(info.fixed.ro_compat & BAD_BLOCKS, 0);
    let geo = info.geometry();
    let medium = Medium {
        region: &region,
        geo: &geo,
    };
    let list = read_list_of(medium, info.fixed.badblock_root).unwrap();
    (
        list.len(),
        list.into_iter().flat_map(|block| block.extents).collect(),
    )
}

fn check_file(fs: &Fs) {
    let file = fs.lookup(Ino::ROOT, b"file").unwrap().ino;
    assert_eq!(
        fs.lost_ranges(file).unwrap(),
        std::slice::from_ref(&(5 * 512..6 * 512))
    );
    for (i, want) in text().chunks(512).enumerate() {
        let mut bytes = [0; 512];
        match fs.read(file, i as u64 * 512, &mut bytes) {
            Ok(_) => assert!(i != 5 && bytes == *want, "block {i}"),
            Err(e) => assert!(i == 5 && e.errno() == libc::EIO, "block {i}: {e}"),
        }
    }
}

#[test]
fn golden_image_with_bad_blocks_never_allocates_them() {
    let sim = SimBackend::from_image(&image()).unwrap();
    let (blocks, runs) = listed(&sim);
    assert!(blocks > 1 && runs.len() > 30, "{blocks}, {runs:?}");
    for range in bad() {
        let block = Bno(range.start / 512);
        assert!(runs.iter().any(|run| run.contains(block)), "{block:?}");
    }
    let fs = mount(&sim, quiet()).unwrap();
    check_file(&fs);
    // The whole file system is filled; the bad blocks are not among what it takes.
    let fill = fs.create(&CX, Ino::ROOT, b"fill", 0o600).unwrap().ino;
    let mut at = 0;
    while let Ok(n) = fs.write(&CX, fill, at, &[0xf1; 8192])
        && n > 0
    {
        at += n as u64;
    }
    for extent in fs.file_extents(fill, 0, at).unwrap() {
        let first = extent.region_offset.unwrap() / 512;
        for block in first..first + extent.len.div_ceil(512) {
            assert!(!runs.iter().any(|run| run.contains(Bno(block))), "{block}");
        }
    }
    fs.unlink(Ino::ROOT, b"fill").unwrap();
    check_file(&fs);
    fs.close().unwrap();
    let report = check(&region_of(&sim), &CheckOptions::default());
    // The error of the write that made the image is recorded.
    assert!(report.is_sound() && report.findings.len() <= 1, "{report}");
    assert_eq!(listed(&sim), (blocks, runs));
}
