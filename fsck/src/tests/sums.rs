//! Checksums of file data.

use super::clean::{assert_clean, options, quiet, run};
use crate::{Issue, Policy, RepairOptions, repair};
use pramfs::inode::{Credentials, Fs};
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::media::probe_superblock;
use pramfs_medium::media::sums::SUM_BLOCKS;
use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess};
use pramfs_medium::types::Ino;

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
