//! Checksums of file data.

use super::clean::{assert_clean, options, quiet, run};
use crate::{Issue, Policy, RepairOptions, repair};
use pramfs::inode::{Credentials, Fs};
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::media::features::RANGED_MARKS;
use pramfs_medium::media::inode::{ALL_BLOCKS, FL_UNSUMMED, INODE_SIZE};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::sums::SUM_BLOCKS;
use pramfs_medium::media::{DiskInode, SuperStatic, probe_superblock};
use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess};
use pramfs_medium::types::{FileBlock, Ino};
use zerocopy::IntoBytes;

const CX: Credentials<'_> = Credentials::ROOT;

/// A region with a file of 20 blocks and a bit, and the place of its block 3.
pub(super) fn summed(block_size: u32) -> (Region, Ino, u64) {
    let region = Region::new("test", HeapBackend::boxed(8 << 20));
    let options = FormatOptions {
        features: vec![("data_checksums".to_owned(), true)],
        ..options(block_size)
    };
    format(&region, &options).unwrap();
    set_thread_lane(0);
    let fs = Fs::open(region, quiet()).unwrap();
    let ino = fs.create(&CX, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let size = block_size as usize;
    fs.write(&CX, ino, 0, &vec![0x77; 20 * size + 9]).unwrap();
    let extents = fs.file_extents(ino, 3 * size as u64, 1).unwrap();
    let at = extents[0].region_offset.unwrap() + 3 * size as u64 - extents[0].file_offset;
    let (region, _) = fs.close_with(|_| ()).unwrap();
    let region = region.unwrap();
    assert_clean(&region);
    (region, ino, at)
}

pub(super) fn flip(region: &Region, at: u64) {
    let mut byte = [0];
    region.read(at, &mut byte).unwrap();
    region.window().store_unflushed(at, &[byte[0] ^ 4]).unwrap();
}

#[test]
fn wrong_data_are_found_with_their_file_and_offset() {
    for block_size in [512, 4096] {
        let (region, ino, at) = summed(block_size);
        let size = u64::from(block_size);
        flip(&region, at + 17);
        flip(&region, at + size);
        let expected = Issue::DataSum {
            ino,
            offset: 3 * size,
            len: 2 * size,
        };
        let report = run(&region);
        assert_eq!(report.issues().collect::<Vec<_>>(), [&expected]);
        // Nothing tells what the bytes were.
        let report = repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
        assert!(!report.is_sound(), "{report}");
        assert_eq!(run(&region).issues().collect::<Vec<_>>(), [&expected]);
    }
}

#[test]
fn damaged_sum_is_found_like_wrong_data() {
    let (region, ino, at) = summed(4096);
    let geo = probe_superblock(&region).unwrap().geometry();
    let bitmap = geo.blocks() - 1;
    flip(&region, geo.bytes(bitmap - SUM_BLOCKS) + at / 4096 * 8 + 6);
    let report = run(&region);
    let expected = Issue::DataSum {
        ino,
        offset: 3 * 4096,
        len: 4096,
    };
    assert_eq!(report.issues().collect::<Vec<_>>(), [&expected]);
}

/// The blocks of the sums belong to their group, also after a repair of its bitmap.
#[test]
fn repaired_bitmap_keeps_sums() {
    let (region, _, _) = summed(4096);
    let geo = probe_superblock(&region).unwrap().geometry();
    let bitmap = geo.bytes(geo.blocks() - 1);
    for bit in [5, 60, 700] {
        flip(&region, bitmap + bit);
    }
    assert!(!run(&region).is_clean());
    let report = repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_clean(&region);
}

/// A file system with the file of [`summed`], whose mark is a range that `f` changes.
fn marked(f: impl FnOnce(&mut DiskInode)) -> (Region, Ino) {
    let (region, ino, _) = summed(4096);
    set_features(&region, |fixed| fixed.ro_compat |= RANGED_MARKS);
    let home = home_of(&region, ino);
    let mut d: DiskInode = region.read_pod(home).unwrap();
    d.set_unsummed(FileBlock(3)..FileBlock(5));
    f(&mut d);
    let seed = probe_superblock(&region).unwrap().geometry().seed;
    d.seal(seed, ino);
    region.window().store_unflushed(home, d.as_bytes()).unwrap();
    (region, ino)
}

fn home_of(region: &Region, ino: Ino) -> u64 {
    let geo = probe_superblock(region).unwrap().geometry();
    let found = (0..region.len() / INODE_SIZE)
        .map(|i| i * INODE_SIZE)
        .find(|at| {
            let d: DiskInode = region.read_pod(*at).unwrap();
            d.ino == ino.0 && d.crc == d.expected_crc(geo.seed, ino)
        });
    found.expect("the inode")
}

fn set_features(region: &Region, f: impl Fn(&mut SuperStatic)) {
    let geo = probe_superblock(region).unwrap().geometry();
    for page in geo.pages() {
        let mut fixed: SuperStatic = region.read_pod(page.0).unwrap();
        f(&mut fixed);
        fixed.seal();
        region
            .window()
            .store_unflushed(page.0, fixed.as_bytes())
            .unwrap();
    }
}

fn unsummed(region: &Region, ino: Ino) -> std::ops::Range<FileBlock> {
    let d: DiskInode = region.read_pod(home_of(region, ino)).unwrap();
    d.unsummed()
}

#[test]
fn blocks_beside_marked_range_are_compared() {
    let (region, ino) = marked(|_| {});
    assert_clean(&region);
    let (at, size) = (block_3(&region, ino), 4096);
    flip(&region, at);
    flip(&region, at + size);
    assert_clean(&region);
    flip(&region, at - size + 5);
    flip(&region, at + 2 * size + 5);
    let report = run(&region);
    let wrong = [2, 5].map(|block| Issue::DataSum {
        ino,
        offset: block * size,
        len: size,
    });
    assert!(report.issues().eq(&wrong), "{report}");
    assert_eq!(unsummed(&region, ino), FileBlock(3)..FileBlock(5));
}

/// Returns the place of block 3 of the file, whose blocks follow each other.
fn block_3(region: &Region, ino: Ino) -> u64 {
    let geo = probe_superblock(region).unwrap().geometry();
    let d: DiskInode = region.read_pod(home_of(region, ino)).unwrap();
    assert_eq!(d.height, 1);
    let table = geo.bytes(Ptr(d.root).block().0);
    geo.bytes(Ptr(region.load_u64(table + 3 * 8).unwrap()).block().0)
}

#[test]
fn impossible_marked_range_is_repaired_to_whole_file() {
    for (from, to, what) in [
        (5, 5, "it is empty"),
        (6, 5, "it is empty"),
        (u64::MAX, 1, "it is empty"),
        (0, 22, "it ends past the end of the file"),
        (30, 40, "it ends past the end of the file"),
        (3, u64::MAX, "it ends past the end of the file"),
    ] {
        let (region, ino) = marked(|d| (d.unsummed_from, d.unsummed_to) = (from, to));
        let expected = Issue::MarkedRange {
            ino,
            is_flagged: true,
            what,
        };
        let report = run(&region);
        assert!(report.issues().eq([&expected]), "{from} to {to}: {report}");
        let report = repair(&region, &RepairOptions::new(Policy::Preen)).unwrap();
        assert!(report.is_sound(), "{report}");
        assert_clean(&region);
        assert_eq!(unsummed(&region, ino), ALL_BLOCKS);
    }
}

#[test]
fn marked_range_without_flag_is_cleared() {
    let (region, ino) = marked(|d| d.flags &= !FL_UNSUMMED);
    let expected = Issue::MarkedRange {
        ino,
        is_flagged: false,
        what: "its flag is clear",
    };
    let report = run(&region);
    assert!(report.issues().eq([&expected]), "{report}");
    let report = repair(&region, &RepairOptions::new(Policy::Preen)).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_clean(&region);
    assert!(unsummed(&region, ino).is_empty());
}

/// A version without the feature may have changed the file since.
#[test]
fn marked_range_without_feature_is_repaired_to_whole_file() {
    let (region, ino) = marked(|_| {});
    set_features(&region, |fixed| fixed.ro_compat &= !RANGED_MARKS);
    let expected = Issue::MarkedRange {
        ino,
        is_flagged: true,
        what: "the superblock lacks the feature ranged_marks",
    };
    let report = run(&region);
    assert!(report.issues().eq([&expected]), "{report}");
    let report = repair(&region, &RepairOptions::new(Policy::Preen)).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_clean(&region);
    assert_eq!(unsummed(&region, ino), ALL_BLOCKS);
}

/// Neither a mount nor its summing trusts the values.
#[test]
fn mount_of_impossible_marked_range_sums_file() {
    for (from, to) in [(6, 5), (u64::MAX, 1), (0, 22), (30, 40), (3, u64::MAX)] {
        let (region, ino) = marked(|d| (d.unsummed_from, d.unsummed_to) = (from, to));
        let fs = Fs::open(region, quiet()).unwrap();
        let mut into = vec![0; 20 * 4096 + 9];
        assert_eq!(fs.read(ino, 0, &mut into).unwrap(), into.len());
        let end = 21 * 4096;
        fs.write(&CX, ino, 4 * 4096 + 5, b"part").unwrap();
        fs.write(&CX, ino, end, b"longer").unwrap();
        // The unmount sums what is marked.
        let (region, _) = fs.close_with(|_| ()).unwrap();
        let fs = Fs::open(region.unwrap(), quiet()).unwrap();
        let verified = fs.verify_data(ino, 0..u64::MAX).unwrap();
        assert!(verified.wrong.is_empty() && !verified.is_marked);
        let (region, _) = fs.close_with(|_| ()).unwrap();
        assert_clean(&region.unwrap());
    }
}
