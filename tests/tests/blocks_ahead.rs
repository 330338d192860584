//! Blocks ahead: past the end of a file, for a holder that maps more than the file has. The
//! file grows into them, its mapping shows that, and a crash at any moment leaks none.

use pramfs::Fallocate;
use pramfs::inode::{Credentials, Fs, Ino, LeaseMode};
use pramfs_medium::pmem::RegionAccess;
use pramfs_tests::appender::{Appended, Appender};
use pramfs_tests::crash::sweep::{file, ino, pattern, sweep_all};
use pramfs_tests::leased_file::{case, lease, leased, set_size};
use pramfs_tests::region::fresh;

const CX: Credentials<'_> = Credentials::ROOT;
/// Not a whole number of blocks.
const SIZE: usize = 700;
/// Bytes of the mapping of the holder.
const MAPPED: u64 = 16 << 10;

fn fill_ahead(fs: &Fs) -> pramfs::Result<u64> {
    let lease = fs.leases()[0];
    fs.fill_ahead(lease.slot, lease.id, 0..MAPPED)
}

/// A file of which a process has a lease to write.
fn held(fs: &Fs) {
    file(fs, "f", &pattern(SIZE, 1));
    file(fs, "other", &pattern(600, 9));
    lease(fs, LeaseMode::Write);
}

/// The same, with blocks ahead.
fn ahead(fs: &Fs) {
    held(fs);
    assert_eq!(fill_ahead(fs).unwrap(), MAPPED);
}

/// What the mapping of the holder shows: the bytes of the places that it knew at first.
fn shown(fs: &Fs, places: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, len) in places {
        let from = bytes.len();
        bytes.resize(from + *len as usize, 0);
        let region = fs.region_to_damage();
        region.read(*at, &mut bytes[from..]).unwrap();
    }
    bytes
}

fn places(fs: &Fs) -> Vec<(u64, u64)> {
    let lease = fs.leases()[0];
    let found = fs
        .leased_extents(lease.slot, lease.id, 0, usize::MAX)
        .unwrap();
    assert!(found.end >= MAPPED);
    let extents = found.extents.iter().filter(|e| e.file_offset < MAPPED);
    let len = |e: &pramfs::FileExtent| e.len.min(MAPPED - e.file_offset);
    let places: Vec<_> = extents
        .map(|e| (e.region_offset.unwrap(), len(e)))
        .collect();
    assert_eq!(places.iter().map(|(_, len)| len).sum::<u64>(), MAPPED);
    places
}

/// Stores garbage through the mapping, from an offset on.
fn garble(fs: &Fs, places: &[(u64, u64)], from: u64) {
    let (window, mut start) = (fs.region_to_damage().window(), 0);
    for (at, len) in places {
        let skip = from.saturating_sub(start).min(*len);
        let garbage = vec![0xcd; (len - skip) as usize];
        let stored = window.nt_store(at + skip, &garbage).unwrap();
        let _ = window.fence(stored);
        start += len;
    }
}

/// Stores garbage past the end of the file, in the block that holds it.
fn garble_past_end(fs: &Fs, size: u64) {
    let lease = fs.leases()[0];
    let found = fs
        .leased_extents(lease.slot, lease.id, 0, usize::MAX)
        .unwrap();
    let places: Vec<_> = (found.extents.iter())
        .map(|e| (e.region_offset.unwrap(), e.len))
        .collect();
    garble(fs, &places, size);
}

fn small(test: impl FnOnce(&Fs)) {
    let (_sim, fs) = fresh(8 << 20, 512).unwrap();
    test(&fs);
}

/// Reads the file, and compares it with the mapping, and what lies past its end in the same
/// block with zeros.
#[track_caller]
fn same(fs: &Fs, places: &[(u64, u64)], what: &str) {
    let size = fs.getattr(leased(fs)).unwrap().size as usize;
    let mut bytes = vec![0; size];
    assert_eq!(fs.read(leased(fs), 0, &mut bytes).unwrap(), size);
    let shown = shown(fs, places);
    assert!(shown[..size] == bytes[..], "{what}");
    let rest = &shown[size..size.next_multiple_of(512)];
    assert!(rest.iter().all(|byte| *byte == 0), "{what}: {rest:?}");
}

#[test]
fn growth_of_any_kind_shows_in_mapping_past_end() {
    small(|fs| {
        ahead(fs);
        let places = places(fs);
        same(fs, &places, "at first");
        // What other files have left in the blocks.
        garble(fs, &places, 1024);
        fs.append(&CX, leased(fs), &pattern(300, 2)).unwrap();
        same(fs, &places, "append");
        fs.write(&CX, leased(fs), 900, &pattern(777, 3)).unwrap();
        same(fs, &places, "write across the end");
        fs.write(&CX, leased(fs), 4321, &pattern(1000, 4)).unwrap();
        same(fs, &places, "write behind a gap");
        set_size(fs, 7000);
        same(fs, &places, "truncation to a longer file");
        let allocate = Fallocate::Allocate { keep_size: false };
        fs.fallocate(&CX, leased(fs), allocate, 6000, 2003).unwrap();
        same(fs, &places, "fallocate");
        let from = ino(fs, "/other");
        fs.copy_range(&CX, (from, 0), (leased(fs), 8100), 600)
            .unwrap();
        same(fs, &places, "copy_file_range");
        let holder = Appender::of(fs, leased(fs)).unwrap();
        // To the end of a block: the client zeroes the rest, not this holder.
        holder.open(fs, 516).unwrap();
        assert_eq!(holder.append(fs, &pattern(516, 5)).unwrap(), Appended::Yes);
        same(fs, &places, "append window");
        fs.append(&CX, leased(fs), &pattern(10, 2)).unwrap();
        same(fs, &places, "append after the window");
        set_size(fs, 1001);
        same(fs, &places, "a shorter file");
        set_size(fs, 9000);
        same(fs, &places, "a longer file after a shorter one");
        fs.unlink(Ino::ROOT, b"f").unwrap();
        fs.write(&CX, leased(fs), 9500, &pattern(100, 6)).unwrap();
        same(fs, &places, "write to an unlinked file");
    });
}

/// A holder that has learned a hole would read zeros there when the file has grown into it: it is
/// not told, since nothing below the size changes.
#[test]
fn holder_learns_no_hole_past_end() {
    small(|fs| {
        held(fs);
        let lease = fs.leases()[0];
        let known = || {
            let found = fs
                .leased_extents(lease.slot, lease.id, 0, usize::MAX)
                .unwrap();
            let len: u64 = found.extents.iter().map(|e| e.len).sum();
            assert_eq!(len, found.end, "{:?}", found.extents);
            found.end
        };
        assert_eq!(known(), 1024);
        // Preallocated blocks are unwritten.
        let keep = Fallocate::Allocate { keep_size: true };
        fs.fallocate(&CX, lease.ino, keep, 2048, 1024).unwrap();
        assert_eq!(known(), 1024);
        // A mapping that begins behind them.
        let end = fs.fill_ahead(lease.slot, lease.id, 8192..MAPPED).unwrap();
        assert_eq!((end, known()), (MAPPED, MAPPED));
        let places = places(fs);
        fs.write(&CX, lease.ino, 1024, &pattern(1024, 7)).unwrap();
        same(fs, &places, "growth into what was a hole");
        // One that does not fit leaves none either.
        let refused = fs.fill_ahead(lease.slot, lease.id, 8192..6 << 20);
        assert_eq!(refused.map_err(|e| e.errno()), Err(libc::ENOSPC));
        assert_eq!(known(), MAPPED);
    });
}

/// A window's blocks are not zeroed, and the next server does not know what is mapped.
#[test]
fn rest_of_last_block_is_zeros_in_mapping_made_after_restart_or_cut() {
    let (sim, fs) = fresh(8 << 20, 512).unwrap();
    held(&fs);
    let slot = fs.leases()[0].slot;
    let holder = Appender::of(&fs, leased(&fs)).unwrap();
    holder.open(&fs, 1000).unwrap();
    assert_eq!(holder.append(&fs, &pattern(900, 5)).unwrap(), Appended::Yes);
    garble_past_end(&fs, 1600);
    drop(fs);
    let region = pramfs_tests::region::region_of(&sim);
    region.pretend_lease(slot, true);
    let fs = Fs::open(region, pramfs::MountOptions::default()).unwrap();
    assert_eq!(fill_ahead(&fs).unwrap(), MAPPED);
    let places = places(&fs);
    same(&fs, &places, "after a restart");
    set_size(&fs, 1000);
    same(&fs, &places, "after a cut");
    garble(&fs, &places, 1000);
    assert_eq!(fill_ahead(&fs).unwrap(), MAPPED);
    same(&fs, &places, "mapped again");
}

/// With the size that the file has, the window stays open, so the holder may be storing.
#[test]
fn truncation_to_same_size_leaves_append_under_way_alone() {
    small(|fs| {
        ahead(fs);
        let places = places(fs);
        let holder = Appender::of(fs, leased(fs)).unwrap();
        holder.open(fs, 1000).unwrap();
        garble(fs, &places, SIZE as u64);
        set_size(fs, SIZE as u64);
        assert!(shown(fs, &places)[SIZE..].iter().all(|byte| *byte == 0xcd));
        assert!(holder.window(fs).unwrap().is_some());
    });
}

#[test]
fn blocks_ahead_are_freed_with_last_lease() {
    small(|fs| {
        held(fs);
        let before = fs.getattr(leased(fs)).unwrap();
        assert_eq!(fill_ahead(fs).unwrap(), MAPPED);
        let after = fs.getattr(leased(fs)).unwrap();
        assert_eq!((after.size, after.mtime), (before.size, before.mtime));
        assert!(after.blocks > before.blocks);
        let slot = fs.leases()[0].slot;
        fs.region_to_damage().pretend_lease(slot, false);
        assert_eq!(fs.end_released_leases().unwrap(), 1);
        let after = fs.getattr(ino(fs, "/f")).unwrap();
        assert_eq!(after.blocks, before.blocks);
    });
}

#[test]
fn blocks_ahead_are_refused_to_readers_and_beyond_a_quarter_of_free_space() {
    small(|fs| {
        held(fs);
        let lease = fs.leases()[0];
        let ask = |id, end| fs.fill_ahead(lease.slot, id, 0..end).map_err(|e| e.errno());
        assert_eq!(ask(lease.id + 1, MAPPED), Err(libc::ESTALE));
        assert_eq!(ask(lease.id, u64::MAX), Err(libc::EFBIG));
        let blocks = || fs.getattr(leased(fs)).unwrap().blocks;
        let before = blocks();
        assert_eq!(ask(lease.id, 4 << 20), Err(libc::ENOSPC));
        assert_eq!(blocks(), before);
        assert_eq!(ask(lease.id, 1 << 20), Ok(1 << 20));
        fs.region_to_damage().pretend_lease(lease.slot, false);
        assert_eq!(fs.end_released_leases().unwrap(), 1);
        pramfs_tests::leased_file::lease(fs, LeaseMode::Read);
        assert_eq!(fill_ahead(fs).map_err(|e| e.errno()), Err(libc::EPERM));
    });
}

#[test]
fn crash_beside_blocks_ahead_leaves_old_or_new_state() {
    sweep_all(&[
        case("blocks ahead", held, |fs| {
            fill_ahead(fs).unwrap();
        }),
        case("append", ahead, |fs| {
            fs.append(&CX, leased(fs), &pattern(200, 4)).unwrap();
        }),
        case("append over a block", ahead, |fs| {
            fs.append(&CX, leased(fs), &pattern(900, 4)).unwrap();
        }),
        case("write behind a gap", ahead, |fs| {
            fs.write(&CX, leased(fs), 2900, &pattern(200, 4)).unwrap();
        }),
        case("truncate longer", ahead, |fs| set_size(fs, 2600)),
        case("truncate shorter", ahead, |fs| set_size(fs, 100)),
        case(
            "truncate longer again",
            |fs| {
                ahead(fs);
                set_size(fs, 100);
            },
            |fs| set_size(fs, 2600),
        ),
        case("window", ahead, |fs| {
            let holder = Appender::of(fs, leased(fs)).unwrap();
            holder.open(fs, 3000).unwrap();
        }),
        case("unlink", ahead, |fs| {
            fs.unlink(Ino::ROOT, b"f").unwrap();
        }),
        case("end of the lease", ahead, |fs| {
            let slot = fs.leases()[0].slot;
            fs.region_to_damage().pretend_lease(slot, false);
            assert_eq!(fs.end_released_leases().unwrap(), 1);
        }),
        case(
            "end of the lease of an unlinked file",
            |fs| {
                ahead(fs);
                fs.unlink(Ino::ROOT, b"f").unwrap();
            },
            |fs| {
                let slot = fs.leases()[0].slot;
                fs.region_to_damage().pretend_lease(slot, false);
                assert_eq!(fs.end_released_leases().unwrap(), 1);
            },
        ),
    ]);
}
