//! A vacated file has the same bytes, nothing in the leaf, and the space has no leak.

use crate::credentials::Credentials;
use crate::fs::Fs;
use crate::fs::ops::file_tests::{check_blocks, mount, mount_with, new_file};
use crate::{Access, MountOptions};
use pramfs_medium::error::Error;
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::media::inode::FL_IMMUTABLE;
use pramfs_medium::pmem::{
    Gathered, HeapBackend, RegionAccess as _, RegionOptions, SimBackend, Vacated,
};
use pramfs_medium::types::{Fallocate, FileExtent, Ino, LeaseMode, SetAttr};

const CX: Credentials<'_> = Credentials::ROOT;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i / 7 + i / 4096 * 31 + seed) as u8)
        .collect()
}

/// A file that others lie between: each block is followed by one of another file, which is
/// removed.
fn loose(fs: &Fs, name: &[u8], len: usize, seed: usize) -> Ino {
    let files = [new_file(fs, name), new_file(fs, b"other")];
    let size = fs.vol.geo.block_size as usize;
    let bytes = pattern(len, seed);
    for at in (0..len).step_by(size) {
        for ino in files {
            let part = &bytes[at..len.min(at + size)];
            fs.write(&CX, ino, at as u64, part).unwrap();
        }
    }
    fs.unlink(Ino::ROOT, b"other").unwrap();
    fs.vol.retire_pending().unwrap();
    files[0]
}

fn extents(fs: &Fs, ino: Ino) -> Vec<FileExtent> {
    fs.file_extents(ino, 0, u64::MAX).unwrap()
}

fn contents(fs: &Fs, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// The leaf of the region that a byte of a file lies in.
fn leaf_of(fs: &Fs, ino: Ino, offset: u64) -> u64 {
    let extent = fs.file_extents(ino, offset, 1).unwrap()[0];
    let place = extent.region_offset.unwrap();
    place - place % fs.gather_unit()
}

/// Whether a file, or a pointer block of it, has a block in a leaf.
fn is_in(fs: &Fs, ino: Ino, leaf: u64) -> bool {
    let end = leaf + fs.gather_unit();
    let data = extents(fs, ino).into_iter().any(|e| {
        e.region_offset
            .is_some_and(|place| place < end && place + e.len > leaf)
    });
    let (tables, _) = fs.pointer_blocks(ino, 0, usize::MAX).unwrap();
    data || tables
        .iter()
        .any(|table| (leaf..end).contains(&table.region_offset))
}

/// Vacates a leaf from all parts of a file.
fn vacate_all(fs: &Fs, ino: Ino, leaf: u64) -> Vec<Vacated> {
    let (size, unit) = (fs.getattr(ino).unwrap().size, fs.gather_unit());
    (0..size)
        .step_by(unit as usize)
        .map(|offset| fs.vacate(ino, offset, leaf).unwrap())
        .collect()
}

fn used(fs: &Fs, leaf: u64) -> u16 {
    fs.leaf_use(leaf / fs.gather_unit(), 1).unwrap()[0]
}

#[test]
fn vacated_leaf_is_empty_and_is_what_a_gather_takes_also_after_remount() {
    let sim = SimBackend::new(48 << 20).unwrap();
    let fs = mount(Box::new(sim.clone()), 4096);
    let len = (3 << 20) + 1234;
    let a = loose(&fs, b"a", len, 0);
    let leaf = leaf_of(&fs, a, 2 << 20);
    assert!(is_in(&fs, a, leaf));
    let before = (fs.getattr(a).unwrap(), fs.statfs().unwrap());
    let leaves = fs.free_space().unwrap().leaves;
    let done = vacate_all(&fs, a, leaf);
    assert!(done.contains(&Vacated::Moved), "{done:?}");
    assert!(!is_in(&fs, a, leaf));
    assert_eq!(used(&fs, leaf), 0);
    assert!(
        vacate_all(&fs, a, leaf)
            .iter()
            .all(|d| *d == Vacated::Nothing)
    );
    assert_eq!(contents(&fs, a), pattern(len, 0));
    check_blocks(&fs, a);
    let after = (fs.getattr(a).unwrap(), fs.statfs().unwrap());
    assert_eq!(
        (after.0.mtime, after.0.ctime, after.0.size, after.0.blocks),
        (
            before.0.mtime,
            before.0.ctime,
            before.0.size,
            before.0.blocks
        )
    );
    // Held blocks count as free.
    assert_eq!(
        (after.1.free, after.1.available),
        (before.1.free, before.1.available)
    );
    assert_eq!(fs.free_space().unwrap().leaves, leaves.map(|n| n + 1));
    // The leaf is kept for a gather.
    assert_eq!(fs.gather(a, 0).unwrap(), Gathered::Moved);
    assert_eq!(leaf_of(&fs, a, 0), leaf);
    assert_eq!(contents(&fs, a), pattern(len, 0));
    check_blocks(&fs, a);
    fs.close().unwrap();
    let region = pramfs_medium::pmem::Region::new("test", Box::new(sim));
    let fs = Fs::open(region, MountOptions::default()).unwrap();
    assert_eq!(contents(&fs, a), pattern(len, 0));
}

#[test]
fn pointer_blocks_of_each_level_are_moved() {
    for block_size in [512, 1024, 4096] {
        let fs = mount(HeapBackend::boxed(24 << 20), block_size);
        let a = loose(&fs, b"a", 300_000, 3);
        let (tables, end) = fs.pointer_blocks(a, 0, usize::MAX).unwrap();
        assert_eq!(end, 300_000);
        let fan = u64::from(block_size) / 8;
        let parts = 300_000u64.div_ceil(fs.gather_unit());
        // With one level more above several parts.
        assert_eq!(
            tables.len() as u64,
            parts + u64::from(parts > 1),
            "{block_size}"
        );
        assert!(tables.len() as u64 <= fan);
        let mut leaves: Vec<u64> = tables
            .iter()
            .map(|t| t.region_offset - t.region_offset % fs.gather_unit())
            .collect();
        leaves.dedup();
        let mut moved = 0;
        for leaf in leaves {
            let done = vacate_all(&fs, a, leaf);
            if !done.contains(&Vacated::NoSpace) {
                assert!(!is_in(&fs, a, leaf), "{block_size}: {leaf:#x}");
                moved += 1;
            }
        }
        assert!(moved > 0, "{block_size}");
        assert_eq!(contents(&fs, a), pattern(300_000, 3));
        check_blocks(&fs, a);
        // In answers of one row.
        let (mut rows, mut at) = (Vec::new(), 0);
        while at < end {
            let (more, next) = fs.pointer_blocks(a, at, 1).unwrap();
            rows.extend(more);
            assert!(next > at);
            at = next;
        }
        assert_eq!(rows, fs.pointer_blocks(a, 0, usize::MAX).unwrap().0);
    }
}

#[test]
fn file_that_others_reach_is_left() {
    let region = RegionOptions::new().memfd("vacate", 48 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let fs = Fs::open(region, MountOptions::default()).unwrap();
    let a = loose(&fs, b"a", 1 << 20, 0);
    let leaf = leaf_of(&fs, a, 0);
    let before = extents(&fs, a);
    let file = fs.open_file(a).unwrap();
    let view = file.map(0..4096, Access::Write).unwrap();
    assert_eq!(fs.vacate(a, 0, leaf).unwrap(), Vacated::Mapped);
    drop((view, file));
    let generation = fs.getattr(a).unwrap().generation;
    let lease = fs
        .grant_lease(a, generation, LeaseMode::Read, 1, 1)
        .unwrap();
    assert_eq!(fs.vacate(a, 0, leaf).unwrap(), Vacated::Leased);
    drop(lease);
    fs.end_released_leases().unwrap();
    let flags = |flags| SetAttr {
        flags: Some(flags),
        ..SetAttr::default()
    };
    fs.setattr(&CX, a, &flags(FL_IMMUTABLE)).unwrap();
    assert_eq!(fs.vacate(a, 0, leaf).unwrap(), Vacated::Immutable);
    fs.setattr(&CX, a, &flags(0)).unwrap();
    let large = new_file(&fs, b"large");
    fs.write(&CX, large, 0, &pattern(2 << 20, 4)).unwrap();
    let its = leaf_of(&fs, large, 0);
    assert_eq!(fs.vacate(large, 0, its).unwrap(), Vacated::Whole);
    let ahead = new_file(&fs, b"ahead");
    let allocate = Fallocate::Allocate { keep_size: false };
    fs.fallocate(&CX, ahead, allocate, 0, 8192).unwrap();
    let its = leaf_of(&fs, ahead, 0);
    assert_eq!(fs.vacate(ahead, 0, its).unwrap(), Vacated::Unwritten);
    assert_eq!(extents(&fs, a), before);
    assert!(matches!(
        fs.vacate(Ino::ROOT, 0, 0),
        Err(Error::IsDirectory)
    ));
}

#[test]
fn place_that_is_no_leaf_is_refused() {
    let fs = mount(HeapBackend::boxed((12 << 20) + 4096), 4096);
    let a = loose(&fs, b"a", 100_000, 0);
    let before = extents(&fs, a);
    let unit = fs.gather_unit();
    for place in [
        1,
        4096,
        unit - 1,
        unit + 512,
        12 << 20,
        u64::MAX,
        u64::MAX - unit + 1,
        1 << 63,
    ] {
        let refused = fs.vacate(a, 0, place);
        assert!(
            matches!(refused, Err(Error::Invalid(_))),
            "{place:#x}: {refused:?}"
        );
    }
    assert!(!fs.vol.is_holding());
    for offset in [100_000, 1 << 40, u64::MAX] {
        assert_eq!(fs.vacate(a, offset, 0).unwrap(), Vacated::Nothing);
    }
    assert!(fs.vol.is_holding());
    assert_eq!(extents(&fs, a), before);
}

#[test]
fn without_room_elsewhere_nothing_changes_and_held_blocks_are_used_when_needed() {
    let fs = mount(HeapBackend::boxed(12 << 20), 4096);
    let a = loose(&fs, b"a", 1 << 20, 0);
    let leaf = leaf_of(&fs, a, 0);
    let rest = new_file(&fs, b"rest");
    let fill = |mut at: u64| {
        while fs.write(&CX, rest, at, &[3; 4096]).is_ok_and(|n| n == 4096) {
            at += 4096;
        }
        at
    };
    let full = fill(0);
    fs.setattr(
        &CX,
        rest,
        &SetAttr {
            size: Some(full - 8 * 4096),
            ..SetAttr::default()
        },
    )
    .unwrap();
    let before = (
        extents(&fs, a),
        fs.statfs().unwrap().free,
        fs.free_space().unwrap(),
    );
    assert_eq!(fs.vacate(a, 0, leaf).unwrap(), Vacated::NoSpace);
    let after = (
        extents(&fs, a),
        fs.statfs().unwrap().free,
        fs.free_space().unwrap(),
    );
    assert_eq!(after, before);
    assert!(fs.vol.is_holding());
    // Whatever is held is there for others, if they find nothing else.
    assert_eq!(fill(full - 8 * 4096), full);
    assert!(!fs.vol.is_holding());
    assert_eq!(contents(&fs, a), pattern(1 << 20, 0));
}

#[test]
fn blocks_of_a_leaf_that_is_vacated_go_to_no_other_file() {
    let fs = mount(HeapBackend::boxed(24 << 20), 4096);
    let a = loose(&fs, b"a", 1 << 20, 0);
    let b = loose(&fs, b"b", 1 << 20, 1);
    let leaf = leaf_of(&fs, a, 0);
    assert_eq!(fs.vacate(a, 0, leaf).unwrap(), Vacated::Moved);
    let others: Vec<_> = (0..200)
        .map(|i| {
            let ino = new_file(&fs, format!("new {i}").as_bytes());
            fs.write(&CX, ino, 0, &pattern(4096, i)).unwrap();
            ino
        })
        .collect();
    assert!(others.iter().all(|ino| !is_in(&fs, *ino, leaf)));
    vacate_all(&fs, b, leaf);
    assert!(!is_in(&fs, b, leaf));
    fs.vol.end_hold();
    assert!(!fs.vol.is_holding());
    assert_eq!(contents(&fs, a), pattern(1 << 20, 0));
    assert_eq!(contents(&fs, b), pattern(1 << 20, 1));
}

#[test]
fn wrong_data_are_not_moved_and_right_ones_keep_their_sums() {
    let sim = SimBackend::new(48 << 20).unwrap();
    let fs = mount_with(Box::new(sim.clone()), 4096, &["data_checksums"]);
    let a = loose(&fs, b"a", (1 << 20) + 99, 0);
    assert_eq!(fs.vacate(a, 0, leaf_of(&fs, a, 0)).unwrap(), Vacated::Moved);
    assert!(fs.verify_data(a, 0..u64::MAX).unwrap().wrong.is_empty());
    assert_eq!(contents(&fs, a), pattern((1 << 20) + 99, 0));
    let place = extents(&fs, a)[0].region_offset.unwrap();
    fs.region_to_damage()
        .window()
        .store_unflushed(place + 9, &[0xee; 3])
        .unwrap();
    let (before, leaf) = (extents(&fs, a), leaf_of(&fs, a, 0));
    assert!(matches!(fs.vacate(a, 0, leaf), Err(Error::WrongSum { .. })));
    assert_eq!(extents(&fs, a), before);
}

#[test]
fn file_without_sums_yet_is_left() {
    let region = RegionOptions::new().memfd("unsummed", 48 << 20).unwrap();
    let options = FormatOptions {
        features: vec![("data_checksums".to_owned(), true)],
        ..FormatOptions::default()
    };
    format(&region, &options).unwrap();
    let options = MountOptions {
        background: false,
        ..MountOptions::default()
    };
    let fs = Fs::open(region, options).unwrap();
    let a = loose(&fs, b"a", 100_000, 0);
    let leaf = leaf_of(&fs, a, 0);
    let file = fs.open_file(a).unwrap();
    drop(file.map(0..4096, Access::Write).unwrap());
    assert_eq!(fs.vacate(a, 0, leaf).unwrap(), Vacated::Unsummed);
}
