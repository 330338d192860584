//! A gathered file has the same bytes, in one run, and the space has no leak.

use crate::credentials::Credentials;
use crate::fs::Fs;
use crate::fs::ops::file_tests::{check_blocks, mount, mount_with, new_file};
use crate::{Access, MountOptions};
use pramfs_medium::error::Error;
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::media::inode::FL_IMMUTABLE;
use pramfs_medium::pmem::{Gathered, HeapBackend, RegionAccess as _, RegionOptions, SimBackend};
use pramfs_medium::types::{Ino, LeaseMode, SetAttr};

const CX: Credentials<'_> = Credentials::ROOT;

/// Bytes that tell their place.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i / 7 + i / 4096 * 31 + seed) as u8)
        .collect()
}

/// Two files whose blocks alternate, of `len` bytes each.
fn scattered(fs: &Fs, len: usize) -> [Ino; 2] {
    let files = [new_file(fs, b"a"), new_file(fs, b"b")];
    let size = fs.vol.geo.block_size as usize;
    let bytes = [pattern(len, 0), pattern(len, 1)];
    for at in (0..len).step_by(size) {
        for (ino, bytes) in files.iter().zip(&bytes) {
            let end = len.min(at + size);
            fs.write(&CX, *ino, at as u64, &bytes[at..end]).unwrap();
        }
    }
    files
}

fn contents(fs: &Fs, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn extents(fs: &Fs, ino: Ino) -> usize {
    fs.file_extents(ino, 0, u64::MAX).unwrap().len()
}

#[test]
fn gathered_file_has_leaves_and_the_same_bytes_also_after_remount() {
    let sim = SimBackend::new(48 << 20).unwrap();
    let fs = mount(Box::new(sim.clone()), 4096);
    let len = (5 << 20) + 1234;
    let [a, b] = scattered(&fs, len);
    assert!(extents(&fs, a) > 1000);
    let before = fs.getattr(a).unwrap();
    let free = fs.statfs().unwrap().free;
    let unit = fs.gather_unit();
    assert_eq!(unit, 2 << 20);
    assert_eq!(fs.gather(a, 100).unwrap(), Gathered::Moved);
    assert_eq!(fs.gather(a, unit + 1).unwrap(), Gathered::Moved);
    assert_eq!(fs.gather(a, 0).unwrap(), Gathered::Whole);
    // The rest is shorter than a leaf.
    assert_eq!(fs.gather(a, 2 * unit).unwrap(), Gathered::Holes);
    assert_eq!(fs.gather(a, 1 << 40).unwrap(), Gathered::Holes);
    assert_eq!(contents(&fs, a), pattern(len, 0));
    assert_eq!(contents(&fs, b), pattern(len, 1));
    check_blocks(&fs, a);
    let after = fs.getattr(a).unwrap();
    assert_eq!(
        (after.mtime, after.ctime, after.size),
        (before.mtime, before.ctime, before.size)
    );
    // Two pointer blocks have gone.
    assert_eq!(fs.statfs().unwrap().free, free + 2);
    fs.close().unwrap();
    let region = pramfs_medium::pmem::Region::new("test", Box::new(sim));
    let fs = Fs::open(region, MountOptions::default()).unwrap();
    assert_eq!(contents(&fs, a), pattern(len, 0));
    assert_eq!(contents(&fs, b), pattern(len, 1));
}

#[test]
fn small_blocks_are_gathered_into_one_run() {
    for block_size in [512, 1024, 2048] {
        let fs = mount(HeapBackend::boxed(8 << 20), block_size);
        let [a, _] = scattered(&fs, 20_000);
        let before = extents(&fs, a);
        assert_eq!(fs.gather(a, 0).unwrap(), Gathered::Moved, "{block_size}");
        assert!(extents(&fs, a) < before);
        assert_eq!(fs.gather(a, 0).unwrap(), Gathered::Whole);
        assert_eq!(contents(&fs, a), pattern(20_000, 0));
        assert_eq!(fs.free_space().unwrap().leaves, None);
        check_blocks(&fs, a);
    }
}

#[test]
fn file_that_others_reach_is_left() {
    // A view takes a region that can be mapped.
    let region = RegionOptions::new().memfd("gather", 48 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let fs = Fs::open(region, MountOptions::default()).unwrap();
    let [a, b] = scattered(&fs, 2 << 20);
    let before = fs.file_extents(a, 0, u64::MAX).unwrap();
    let file = fs.open_file(a).unwrap();
    let view = file.map(0..4096, Access::Write).unwrap();
    assert_eq!(fs.gather(a, 0).unwrap(), Gathered::Mapped);
    drop((view, file));
    let generation = fs.getattr(a).unwrap().generation;
    let lease = fs
        .grant_lease(a, generation, LeaseMode::Read, 1, 1)
        .unwrap();
    assert_eq!(fs.gather(a, 0).unwrap(), Gathered::Leased);
    drop(lease);
    fs.end_released_leases().unwrap();
    assert!(fs.leases().is_empty());
    let flags = SetAttr {
        flags: Some(FL_IMMUTABLE),
        ..SetAttr::default()
    };
    fs.setattr(&CX, b, &flags).unwrap();
    assert_eq!(fs.gather(b, 0).unwrap(), Gathered::Immutable);
    assert_eq!(fs.file_extents(a, 0, u64::MAX).unwrap(), before);
    assert!(matches!(fs.gather(Ino::ROOT, 0), Err(Error::IsDirectory)));
    let sparse = new_file(&fs, b"sparse");
    fs.write(&CX, sparse, 4 << 20, b"x").unwrap();
    assert_eq!(fs.gather(sparse, 0).unwrap(), Gathered::Holes);
}

#[test]
fn without_a_free_leaf_nothing_changes() {
    let fs = mount(HeapBackend::boxed(12 << 20), 4096);
    let [a, b] = scattered(&fs, 2 << 20);
    let rest = new_file(&fs, b"rest");
    let mut at = 0;
    while fs
        .write(&CX, rest, at, &[3; 65_536])
        .is_ok_and(|n| n == 65_536)
    {
        at += 65_536;
    }
    let before = fs.file_extents(a, 0, u64::MAX).unwrap();
    let free = fs.free_space().unwrap();
    assert_eq!(free.leaves, Some(0));
    assert_eq!(fs.gather(a, 0).unwrap(), Gathered::NoSpace);
    assert_eq!(fs.file_extents(a, 0, u64::MAX).unwrap(), before);
    assert_eq!(fs.free_space().unwrap(), free);
    fs.unlink(Ino::ROOT, b"rest").unwrap();
    assert!(fs.free_space().unwrap().leaves > Some(0));
    assert_eq!(fs.gather(a, 0).unwrap(), Gathered::Moved);
    assert_eq!(contents(&fs, b), pattern(2 << 20, 1));
}

#[test]
fn wrong_data_are_not_moved_and_right_ones_keep_their_sums() {
    let sim = SimBackend::new(48 << 20).unwrap();
    let fs = mount_with(Box::new(sim.clone()), 4096, &["data_checksums"]);
    let [a, b] = scattered(&fs, 2 << 20);
    assert_eq!(fs.gather(a, 0).unwrap(), Gathered::Moved);
    assert!(fs.verify_data(a, 0..u64::MAX).unwrap().wrong.is_empty());
    let place = fs.file_extents(b, 0, 1).unwrap()[0].region_offset.unwrap();
    fs.region_to_damage()
        .window()
        .store_unflushed(place + 9, &[0xee; 3])
        .unwrap();
    let before = fs.file_extents(b, 0, u64::MAX).unwrap();
    assert!(matches!(fs.gather(b, 0), Err(Error::WrongSum { .. })));
    assert_eq!(fs.file_extents(b, 0, u64::MAX).unwrap(), before);
}
