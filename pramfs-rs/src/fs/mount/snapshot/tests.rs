use super::*;
use crate::fs::MountOptions;
use crate::inode::Credentials;
use crate::{FileSystem, OpenOptions};
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::media::lease::END_OFFSET;
use pramfs_medium::pmem::{HeapBackend, Region, RegionOptions};
use pramfs_medium::types::{Access, Fallocate, LeaseMode};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

const ROOT: Credentials<'static> = Credentials::ROOT;
const MOST: u64 = 64 << 20;

fn region() -> Region {
    let region = Region::new("region", HeapBackend::boxed(16 << 20));
    format(&region, &FormatOptions::default()).unwrap();
    region
}

fn mounted(region: Region) -> Fs {
    let options = MountOptions {
        background: false,
        ..MountOptions::default()
    };
    Fs::open(region, options).unwrap()
}

/// A region with what the snapshot has in use.
fn restored(snapshot: &Snapshot) -> Region {
    let region = Region::new("restored", HeapBackend::boxed(16 << 20));
    let size = snapshot.block_size();
    let mut block = vec![0; size as usize];
    let mut copy = |at: u64| {
        snapshot.read(at, &mut block).unwrap();
        let stored = region.window().store_unflushed(at * size, &block);
        stored.unwrap();
    };
    snapshot
        .fixed()
        .iter()
        .cloned()
        .flatten()
        .for_each(&mut copy);
    for (group, bitmap) in snapshot.bitmaps().iter().enumerate() {
        let Some(bitmap) = bitmap else { continue };
        let mut bits = vec![0; size as usize];
        snapshot.read(*bitmap, &mut bits).unwrap();
        for bit in 0..snapshot.blocks_per_group() {
            if bits[bit as usize / 8] >> (bit % 8) & 1 != 0 {
                copy(group as u64 * snapshot.blocks_per_group() + bit);
            }
        }
    }
    region
}

#[test]
fn snapshot_has_files_as_they_were_and_mounts() {
    let fs = mounted(region());
    let file = fs.create(&ROOT, Ino::ROOT, b"file", 0o644).unwrap();
    fs.write(&ROOT, file.ino, 0, &[1; 50_000]).unwrap();
    fs.create(&ROOT, Ino::ROOT, b"removed later", 0o644)
        .unwrap();
    let snapshot = fs.snapshot(MOST).unwrap();
    fs.write(&ROOT, file.ino, 100, &[2; 70_000]).unwrap();
    fs.unlink(Ino::ROOT, b"removed later").unwrap();
    fs.create(&ROOT, Ino::ROOT, b"later", 0o644).unwrap();
    let other = mounted(restored(&snapshot));
    let found = other.lookup(Ino::ROOT, b"file").unwrap();
    assert_eq!(found.size, 50_000);
    let mut bytes = vec![0; 50_000];
    assert_eq!(other.read(found.ino, 0, &mut bytes).unwrap(), 50_000);
    assert!(bytes.iter().all(|byte| *byte == 1));
    other.lookup(Ino::ROOT, b"removed later").unwrap();
    assert!(other.lookup(Ino::ROOT, b"later").is_err());
    assert!(snapshot.held_bytes() > 0);
    assert!(snapshot.mapped_files().unwrap().is_empty());
    drop(snapshot);
    fs.close().unwrap();
    other.close().unwrap();
}

#[test]
fn second_snapshot_is_refused_until_first_is_dropped() {
    let fs = mounted(region());
    let first = fs.snapshot(MOST).unwrap();
    assert_eq!(fs.snapshot(MOST).unwrap_err().errno(), libc::EBUSY);
    drop(first);
    drop(fs.snapshot(MOST).unwrap());
    fs.close().unwrap();
}

#[test]
fn read_after_unmount_says_that_it_is_unmounted() {
    let fs = mounted(region());
    let snapshot = fs.snapshot(MOST).unwrap();
    fs.close().unwrap();
    assert_eq!(snapshot.end(), Some(SnapshotEnd::Closed));
    let mut block = vec![0; snapshot.block_size() as usize];
    let failed = snapshot.read(0, &mut block).unwrap_err();
    assert!(failed.to_string().contains("unmounted"), "{failed}");
    assert!(snapshot.mapped_files().is_err());
    snapshot.release_fixed();
    drop(snapshot);
}

#[test]
fn read_of_part_of_block_or_past_the_end_is_refused() {
    let fs = mounted(region());
    let snapshot = fs.snapshot(MOST).unwrap();
    let blocks = fs.vol.geo.blocks();
    let mut block = vec![0; snapshot.block_size() as usize];
    for (first, len) in [(0, 100), (blocks, block.len()), (u64::MAX, block.len())] {
        let failed = snapshot.read(first, &mut block[..len]).unwrap_err();
        assert_eq!(failed.errno(), libc::EINVAL, "block {first}, {len} bytes");
    }
    snapshot.read(blocks - 1, &mut block).unwrap();
}

#[test]
fn files_mapped_for_writing_are_named() {
    let region = RegionOptions::new().memfd("region", 16 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    let made = |path: &str| {
        let file = fs.create(path).unwrap();
        file.set_len(8192).unwrap();
        file
    };
    let (before, read, during) = (made("/before"), made("/read"), made("/during"));
    let ended = made("/ended");
    drop(ended.map(0..4096, Access::Write).unwrap());
    let _views = (
        before.map(0..4096, Access::Write).unwrap(),
        read.map(0..4096, Access::Read).unwrap(),
    );
    let snapshot = fs.inodes().snapshot(MOST).unwrap();
    drop(during.map(0..4096, Access::Write).unwrap());
    let named: Vec<Ino> = snapshot
        .mapped_files()
        .unwrap()
        .into_iter()
        .map(|(ino, _)| ino)
        .collect();
    let inode = |path: &str| {
        let file = OpenOptions::new().read(true).open(fs.inodes(), path);
        file.unwrap().metadata().unwrap().ino()
    };
    assert_eq!(named, [inode("/before"), inode("/during")]);
}

#[test]
fn new_snapshot_ends_one_whose_reader_was_too_slow() {
    let fs = mounted(region());
    let first = fs.snapshot(MOST).unwrap();
    let region = &fs.vol.region;
    region.end_aside(&first.state.aside, AsideEnd::Slow);
    assert_eq!(first.end(), Some(SnapshotEnd::Slow));
    let second = fs.snapshot(MOST).unwrap();
    // Its end ends nothing of the second.
    drop(first);
    assert_eq!(second.end(), None);
    assert!(second.mapped_files().unwrap().is_empty());
    drop(second);
    fs.close().unwrap();
}

#[test]
fn writer_that_waits_goes_on_when_reader_is_dropped() {
    let fs = mounted(region());
    let file = fs.create(&ROOT, Ino::ROOT, b"file", 0o644).unwrap();
    fs.write(&ROOT, file.ino, 0, &[1; 100_000]).unwrap();
    let snapshot = fs.snapshot(4096).unwrap();
    // More than the limit, so that the next one waits.
    fs.write(&ROOT, file.ino, 0, &[2; 100_000]).unwrap();
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fs.write(&ROOT, file.ino, 0, &[3; 100_000]));
        drop(snapshot);
        assert_eq!(writer.join().unwrap().unwrap(), 100_000);
    });
    assert!(start.elapsed() < std::time::Duration::from_secs(10));
    fs.close().unwrap();
}

/// A holder stores through a descriptor of its own, so the snapshot sees none of it. `change` gives
/// a second file a lease, and blocks that a removed file had at the moment.
fn stores_of_holder_change_no_removed_file(change: impl Fn(&Fs, Ino)) {
    let region = RegionOptions::new().memfd("region", 16 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let fs = mounted(region);
    let other = fs.create(&ROOT, Ino::ROOT, b"other", 0o644).unwrap().ino;
    let removed = fs.create(&ROOT, Ino::ROOT, b"removed", 0o644).unwrap().ino;
    let mut blocks = std::collections::BTreeSet::new();
    let mut len = 0;
    // Until the region is full.
    while let Ok(n) = fs.write(&ROOT, removed, len, &[0xa1; 1 << 20]) {
        len += n as u64;
    }
    let size = fs.vol.geo.block_size;
    for extent in fs.file_extents(removed, 0, len).unwrap() {
        let place = extent.region_offset.unwrap();
        blocks.extend((0..extent.len / size).map(|n| place / size + n));
    }
    let snapshot = fs.snapshot(MOST).unwrap();
    fs.unlink(Ino::ROOT, b"removed").unwrap();
    fs.free_forgotten();
    fs.vol.retire_all().unwrap();
    change(&fs, other);
    let lease = fs.leases()[0];
    let holder = (fs.vol.region).lease_descriptor(lease.slot, LeaseMode::Write);
    let file = File::from(holder.unwrap());
    let found = fs.leased_extents(lease.slot, lease.id, 0, 1024).unwrap();
    let end = fs.getattr(other).unwrap().size;
    let mut stored = 0;
    for extent in &found.extents {
        let place = extent.region_offset.unwrap();
        for at in (0..extent.len).step_by(size as usize) {
            let block = (place + at) / size;
            if extent.file_offset + at < end || !blocks.contains(&block) {
                continue;
            }
            file.write_all_at(&[0xb2; 64], block * size).unwrap();
            let mut bytes = vec![0; size as usize];
            snapshot.read(block, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0xa1), "block {block}");
            stored += 1;
        }
    }
    assert!(stored > 0, "{found:?}");
}

#[test]
fn stores_to_an_append_window_change_no_removed_file() {
    stores_of_holder_change_no_removed_file(|fs, ino| {
        let (slot, id) = leased(fs, ino);
        fs.open_window(slot, id, 1 << 20).unwrap();
    });
}

#[test]
fn stores_to_blocks_ahead_change_no_removed_file() {
    stores_of_holder_change_no_removed_file(|fs, ino| {
        let (slot, id) = leased(fs, ino);
        fs.fill_ahead(slot, id, 0..3 << 20).unwrap();
    });
}

#[test]
fn stores_to_preallocated_blocks_change_no_removed_file() {
    stores_of_holder_change_no_removed_file(|fs, ino| {
        let what = Fallocate::Allocate { keep_size: true };
        fs.fallocate(&ROOT, ino, what, 0, 3 << 20).unwrap();
        let (slot, id) = leased(fs, ino);
        fs.open_window(slot, id, 2 << 20).unwrap();
    });
}

#[test]
fn stores_to_the_tail_of_a_leaf_change_no_removed_file() {
    stores_of_holder_change_no_removed_file(|fs, ino| {
        // A leaf of 2 MiB, half of which the write does not store.
        fs.write(&ROOT, ino, 0, &[1; 1 << 20]).unwrap();
        let (slot, id) = leased(fs, ino);
        fs.fill_ahead(slot, id, 0..2 << 20).unwrap();
    });
}

fn leased(fs: &Fs, ino: Ino) -> (u32, u64) {
    let generation = fs.getattr(ino).unwrap().generation;
    let grant = fs.grant_lease(ino, generation, LeaseMode::Write, 1, 0);
    let lease = *grant.unwrap().lease();
    (lease.slot, lease.id)
}

/// The holder appends while the region is read. Its end goes past no engine.
#[test]
fn append_during_snapshot_leaves_the_size_of_the_moment() {
    let region = RegionOptions::new().memfd("region", 16 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let fs = mounted(region);
    let ino = fs.create(&ROOT, Ino::ROOT, b"file", 0o644).unwrap().ino;
    fs.write(&ROOT, ino, 0, &[1; 5000]).unwrap();
    let (slot, id) = leased(&fs, ino);
    let window = fs.open_window(slot, id, 1 << 16).unwrap();
    let at = fs.leases()[0].at + END_OFFSET;
    let holder = (fs.vol.region).lease_descriptor(slot, LeaseMode::Write);
    let file = File::from(holder.unwrap());
    let append_to = |end: u64| {
        let word = window.word_of(end).to_le_bytes();
        file.write_all_at(&word, at.0).unwrap();
    };
    append_to(6000);
    let snapshot = fs.snapshot(MOST).unwrap();
    append_to(60_000);
    let other = mounted(restored(&snapshot));
    assert_eq!(other.lookup(Ino::ROOT, b"file").unwrap().size, 6000);
    drop(snapshot);
    assert_eq!(fs.getattr(ino).unwrap().size, 60_000);
    fs.close().unwrap();
    other.close().unwrap();
}

/// To copy what is discarded would need more memory than there may be.
#[test]
fn discards_during_snapshot_do_not_end_it() {
    let region = RegionOptions::new().memfd("region", 128 << 20).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let options = MountOptions {
        background: false,
        discard: true,
        ..MountOptions::default()
    };
    let fs = Fs::open(region, options).unwrap();
    let ino = fs.create(&ROOT, Ino::ROOT, b"file", 0o644).unwrap().ino;
    let len = 80 << 20;
    for at in (0..len).step_by(1 << 20) {
        fs.write(&ROOT, ino, at, &[0xa1; 1 << 20]).unwrap();
    }
    let extents = fs.file_extents(ino, 0, 1).unwrap();
    let size = fs.vol.geo.block_size;
    let block = extents[0].region_offset.unwrap() / size;
    let before = fs.trim(0, u64::MAX, 0).unwrap();
    let snapshot = fs.snapshot(1 << 20).unwrap();
    fs.unlink(Ino::ROOT, b"file").unwrap();
    let mut free = fs.trim(0, u64::MAX, 0).unwrap();
    // Blocks of the file wait for its reader; what was free before does not.
    assert!(free <= before + (1 << 20), "{free} bytes, {before} before");
    assert_eq!(snapshot.end(), None);
    let mut bytes = vec![0; size as usize];
    snapshot.read(block, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0xa1));
    drop(snapshot);
    free = fs.trim(0, u64::MAX, 0).unwrap() - free;
    assert!(free >= len, "{free} bytes are discarded after it");
    fs.close().unwrap();
}

#[test]
fn snapshot_with_memory_without_limit_copies() {
    let fs = mounted(region());
    let file = fs.create(&ROOT, Ino::ROOT, b"file", 0o644).unwrap();
    fs.write(&ROOT, file.ino, 0, &[1; 50_000]).unwrap();
    let snapshot = fs.snapshot(u64::MAX).unwrap();
    fs.write(&ROOT, file.ino, 0, &[2; 50_000]).unwrap();
    assert_eq!(snapshot.end(), None);
    assert!(snapshot.held_bytes() > 0);
}
