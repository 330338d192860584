//! What atomic writes promise: `chattr +j`, `write_atomic`, and the mount option.

use pramfs::inode::{Credentials, Fs, Ino, LeaseMode, SetAttr};
use pramfs::pmem::RegionOptions;
use pramfs::{Access, DataMode, Error, Fallocate, MountOptions};
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::journal::Rules;
use pramfs_medium::media::features::ATOMIC_DATA;
use pramfs_medium::media::inode::FL_ATOMIC;
use pramfs_medium::media::probe_superblock;
use pramfs_medium::pmem::{EventKind, HeapBackend, Region, RegionAccess as _, SimBackend};
use pramfs_tests::random::Random;
use pramfs_tests::recorded::{Recorded, recover};
use pramfs_tests::region::{mount, quiet, region_of, repeatable};

use crate::support::library::{
    MIB, ROOT, after_a_crash, contents, errno, file, fill, find, remount, small,
};

const CX: Credentials<'_> = Credentials::ROOT;

fn set_atomic(fs: &Fs, ino: Ino) {
    let set = SetAttr {
        flags: Some(FL_ATOMIC),
        ..SetAttr::default()
    };
    fs.setattr(&CX, ino, &set).unwrap();
}

fn atomic_mount() -> MountOptions {
    MountOptions {
        data: DataMode::Atomic,
        ..quiet()
    }
}

/// Fails the power at each fence of what `run` does, with all that is in flight, without it, and
/// with a random half of it. Returns what the file holds then.
fn crashes(rec: &mut Recorded, ino: Ino, run: impl FnOnce(&Fs)) -> Vec<Vec<u8>> {
    let from = rec.now();
    run(&rec.fs);
    let to = rec.now();
    let is_fence = |e: &pramfs_medium::pmem::Event| e.kind == EventKind::Fence;
    let fences: Vec<usize> = (from..to).filter(|i| is_fence(&rec.events()[*i])).collect();
    let mut found = Vec::new();
    let mut random = Random::new(7);
    for moment in fences.into_iter().chain([to]) {
        let machine = rec.at(moment);
        for image in [machine.least(), machine.most(), machine.random(&mut random)] {
            let fs = recover(&image).unwrap();
            found.push(contents(&fs, ino));
        }
    }
    found
}

#[test]
fn flag_makes_writes_of_one_file_atomic() {
    let mut rec = Recorded::new(2 * MIB, &repeatable(4096), Rules::default());
    let (atomic, plain) = (file(&rec.fs, "atomic"), file(&rec.fs, "plain"));
    for ino in [atomic, plain] {
        rec.fs.write(&CX, ino, 0, &[1; 9000]).unwrap();
    }
    set_atomic(&rec.fs, atomic);
    let overwrite =
        |ino| move |fs: &Fs| assert_eq!(fs.write(&CX, ino, 100, &[2; 8500]).unwrap(), 8500);
    let whole = |bytes: &[u8]| {
        let new = bytes[100..8600].iter().filter(|b| **b == 2).count();
        new == 0 || new == 8500
    };
    let found = crashes(&mut rec, atomic, overwrite(atomic));
    assert!(found.iter().all(|bytes| whole(bytes)));
    assert!(found.last().unwrap()[100..8600] == [2; 8500]);
    let found = crashes(&mut rec, plain, overwrite(plain));
    assert!(
        !found.iter().all(|bytes| whole(bytes)),
        "in place, a crash tears it"
    );
}

#[test]
fn long_atomic_write_is_done_in_aligned_parts() {
    let mut rec = Recorded::new(16 * MIB, &repeatable(4096), Rules::default());
    let ino = file(&rec.fs, "f");
    rec.fs.write(&CX, ino, 0, &vec![1; 4 * MIB]).unwrap();
    set_atomic(&rec.fs, ino);
    let (start, len) = (MIB / 2 + 100, 3 * MIB);
    let found = crashes(&mut rec, ino, |fs| {
        assert_eq!(
            fs.write(&CX, ino, start as u64, &vec![2; len]).unwrap(),
            len
        );
    });
    let mut ends = std::collections::BTreeSet::new();
    for bytes in &found {
        let end = bytes
            .iter()
            .rposition(|b| *b == 2)
            .map_or(start, |at| at + 1);
        assert!(
            bytes[start..end].iter().all(|b| *b == 2),
            "a part is torn before {end}"
        );
        assert!(bytes[..start].iter().all(|b| *b == 1));
        ends.insert(end);
    }
    let expected = [start, MIB, 2 * MIB, 3 * MIB, start + len];
    assert!(ends.into_iter().eq(expected));
}

#[test]
fn write_atomic_of_4_mib_is_all_or_nothing() {
    let mut rec = Recorded::new(24 * MIB, &repeatable(4096), Rules::default());
    let ino = file(&rec.fs, "f");
    // Written blocks, a hole, unwritten blocks, and growth.
    rec.fs.write(&CX, ino, 0, &vec![1; MIB]).unwrap();
    let ahead = Fallocate::Allocate { keep_size: false };
    rec.fs
        .fallocate(&CX, ino, ahead, 2 * MIB as u64, MIB as u64)
        .unwrap();
    let before = contents(&rec.fs, ino);
    let found = crashes(&mut rec, ino, |fs| {
        let file = fs.open_file(ino).unwrap();
        file.write_atomic(&vec![2; 4 * MIB], 5000).unwrap();
    });
    let mut after = before.clone();
    after.resize(5000 + 4 * MIB, 0);
    after[5000..].fill(2);
    for bytes in &found {
        assert!(*bytes == before || *bytes == after);
    }
    assert!(*found.last().unwrap() == after && found[0] == before);
}

#[test]
fn atomic_overwrite_on_full_region_fails_with_enospc_unchanged() {
    let (sim, fs) = small();
    let fs = remount(&sim, fs, atomic_mount());
    let ino = file(&fs, "kept");
    fs.write(&CX, ino, 0, &[3; 9000]).unwrap();
    fill(&fs);
    let free = fs.statfs().unwrap().available;
    let large = vec![4; 9000.max(free as usize * 4096 + 4096)];
    let before = (contents(&fs, ino), fs.getattr(ino).unwrap().blocks);
    assert_eq!(errno(fs.write(&CX, ino, 0, &large)), libc::ENOSPC);
    assert_eq!(
        errno(fs.open_file(ino).unwrap().write_atomic(&large, 0)),
        libc::ENOSPC
    );
    assert!(before == (contents(&fs, ino), fs.getattr(ino).unwrap().blocks));
    // The flag and the mount option ask for it, not the file.
    let fs = remount(&sim, fs, quiet());
    assert_eq!(fs.write(&CX, ino, 0, &[5; 9000]).unwrap(), 9000);
    let fs = remount(&sim, fs, atomic_mount());
    let some = find(&fs, "full-262144-0").unwrap();
    fs.unlink(Ino::ROOT, b"full-262144-0").unwrap();
    assert!(matches!(fs.getattr(some), Err(Error::Stale(_))));
    assert_eq!(fs.write(&CX, ino, 0, &[6; 9000]).unwrap(), 9000);
    assert_eq!(contents(&fs, ino), [6; 9000]);
}

#[test]
fn long_atomic_zero_range_on_full_region_fails_unchanged() {
    let region = Region::new("full", HeapBackend::boxed(4 * MIB));
    format(&region, &FormatOptions::default()).unwrap();
    let fs = Fs::open(region, atomic_mount()).unwrap();
    let ino = file(&fs, "f");
    fs.write(&CX, ino, 0, &vec![1; MIB]).unwrap();
    let larger = SetAttr {
        size: Some(4 * MIB as u64),
        ..SetAttr::default()
    };
    fs.setattr(&CX, ino, &larger).unwrap();
    let before = (contents(&fs, ino), fs.getattr(ino).unwrap().blocks);
    // Enough for the first parts.
    assert!(fs.statfs().unwrap().available > 300);
    let zero = Fallocate::ZeroRange { keep_size: false };
    let done = fs.fallocate(&CX, ino, zero, 0, 4 * MIB as u64);
    assert_eq!(errno(done), libc::ENOSPC);
    assert!(before == (contents(&fs, ino), fs.getattr(ino).unwrap().blocks));
}

/// `PRAMFS_TEST_OVERWRITES=1000000` makes a million.
#[test]
fn leaves_of_2_mib_survive_random_atomic_overwrites() {
    const LEN: usize = 8 * MIB;
    let count = std::env::var("PRAMFS_TEST_OVERWRITES").map_or(20_000, |n| n.parse().unwrap());
    let region = Region::new("leaves", HeapBackend::boxed(32 * MIB));
    format(&region, &FormatOptions::default()).unwrap();
    let fs = Fs::open(region, atomic_mount()).unwrap();
    let ino = file(&fs, "f");
    let mut expected = vec![1; LEN];
    fs.write(&CX, ino, 0, &expected).unwrap();
    let extents = || fs.file_extents(ino, 0, LEN as u64).unwrap();
    let before = extents();
    assert!(before.iter().all(|e| {
        let aligned = |n: u64| n.is_multiple_of(2 * MIB as u64);
        aligned(e.file_offset) && aligned(e.len) && e.region_offset.is_some_and(aligned)
    }));
    let file = fs.open_file(ino).unwrap();
    let mut random = Random::new(1);
    for i in 0..count {
        let len = match i % 8 {
            0 => 1 + random.below(9000) as usize,
            _ => 4096,
        };
        let at = random.below((LEN - len) as u64) as usize;
        let at = if i % 8 < 4 { at } else { at / 4096 * 4096 };
        let bytes = vec![i as u8; len];
        assert_eq!(file.write_at(&bytes, at as u64).unwrap(), len);
        expected[at..at + len].fill(i as u8);
    }
    assert_eq!(extents(), before);
    assert!(contents(&fs, ino) == expected);
    drop(file);
    let options = pramfs_fsck::CheckOptions::default();
    let (_, report) = fs.close_with(|r| pramfs_fsck::check(r, &options)).unwrap();
    assert!(report.is_clean(), "{report}");
}

#[test]
fn store_through_view_after_atomic_write_survives_crash() {
    for maps_first in [false, true] {
        let (sim, fs) = small();
        let ino = file(&fs, "f");
        fs.write(&CX, ino, 0, &[1; 8192]).unwrap();
        let file = fs.open_file(ino).unwrap();
        let early = maps_first.then(|| file.map(0..8192, Access::Write).unwrap());
        file.write_atomic(&[2; 5000], 0).unwrap();
        let view = early.unwrap_or_else(|| file.map(0..8192, Access::Write).unwrap());
        view.write(100, &[3; 200]).unwrap();
        view.persist(100..300).unwrap();
        let (_, after) = after_a_crash(&sim);
        let bytes = contents(&after, ino);
        assert!(
            bytes[..100] == [2; 100] && bytes[100..300] == [3; 200],
            "{maps_first}"
        );
        assert!(bytes[300..5000].iter().all(|b| *b == 2));
    }
}

fn first_byte(fs: &Fs, ino: Ino) -> u64 {
    fs.file_extents(ino, 0, 1).unwrap()[0]
        .region_offset
        .unwrap()
}

#[test]
fn store_of_lease_holder_after_atomic_write_survives_crash() {
    for leases_first in [false, true] {
        let (sim, fs) = small();
        let ino = file(&fs, "f");
        fs.write(&CX, ino, 0, &[1; 4096]).unwrap();
        set_atomic(&fs, ino);
        let lease = || {
            let generation = fs.getattr(ino).unwrap().generation;
            let grant = fs
                .grant_lease(ino, generation, LeaseMode::Write, 1, 1)
                .unwrap();
            let slot = grant.lease().slot;
            fs.region_to_damage().pretend_lease(slot, true);
        };
        if leases_first {
            lease();
        }
        fs.write(&CX, ino, 0, &[2; 4096]).unwrap();
        if !leases_first {
            lease();
        }
        let w = fs.region_to_damage().window();
        let _ = w.fence(w.store(first_byte(&fs, ino) + 64, &[3; 64]).unwrap());
        let (_, after) = after_a_crash(&sim);
        let bytes = contents(&after, ino);
        assert!(
            bytes[64..128] == [3; 64] && bytes[..64] == [2; 64],
            "{leases_first}"
        );
    }
}

#[test]
fn atomic_write_to_leased_file_keeps_its_blocks() {
    let (sim, fs) = small();
    let fs = remount(&sim, fs, atomic_mount());
    let ino = file(&fs, "f");
    fs.write(&CX, ino, 0, &vec![1; 3 * 4096]).unwrap();
    let generation = fs.getattr(ino).unwrap().generation;
    let grant = fs
        .grant_lease(ino, generation, LeaseMode::Write, 1, 1)
        .unwrap();
    fs.region_to_damage()
        .pretend_lease(grant.lease().slot, true);
    let before = fs.file_extents(ino, 0, u64::MAX).unwrap();
    fs.write(&CX, ino, 50, &[2; 9000]).unwrap();
    fs.fallocate(&CX, ino, Fallocate::PunchHole, 4000, 5000)
        .unwrap();
    assert_eq!(fs.file_extents(ino, 0, u64::MAX).unwrap(), before);
    // The holder sees the bytes in the blocks that it has mapped.
    let mut seen = [0; 100];
    fs.region().read(first_byte(&fs, ino), &mut seen).unwrap();
    assert!(seen[..50] == [1; 50] && seen[50..] == [2; 50]);
    let bytes = contents(&fs, ino);
    assert!(bytes[50..4000].iter().all(|b| *b == 2) && bytes[4000..9000].iter().all(|b| *b == 0));
    assert!(bytes[9000..9050].iter().all(|b| *b == 2));
}

#[test]
fn feature_is_set_by_first_atomic_write_and_cleared_by_unmount() {
    let (sim, fs) = small();
    let is_set = |sim: &SimBackend| {
        let info = probe_superblock(&region_of(sim)).unwrap();
        info.fixed.incompat & ATOMIC_DATA != 0
    };
    let ino = file(&fs, "f");
    fs.write(&CX, ino, 0, &[1; 100]).unwrap();
    let fs = remount(&sim, fs, atomic_mount());
    assert!(!is_set(&sim));
    fs.write(&ROOT, ino, 0, &[2; 100]).unwrap();
    assert!(is_set(&sim));
    let (crashed, after) = after_a_crash(&sim);
    assert!(
        is_set(&crashed),
        "the recovered mount may be older than its journal"
    );
    after.close().unwrap();
    assert!(!is_set(&crashed));
    fs.close().unwrap();
    assert!(!is_set(&sim));
    mount(&sim, quiet()).unwrap().close().unwrap();
}

#[test]
fn ranges_of_view_are_overwritten_together_or_refused() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    fs.write(&CX, ino, 0, &vec![1; 20_000]).unwrap();
    let file = fs.open_file(ino).unwrap();
    let view = file.map(4096..16_384, Access::Write).unwrap();
    view.write_atomic(&[(5000, &[2; 10]), (0, &[3; 2]), (7, &[])])
        .unwrap();
    let mut expected = vec![1; 20_000];
    expected[4096 + 5000..][..10].fill(2);
    expected[4096..][..2].fill(3);
    assert!(contents(&fs, ino) == expected);
    let refused: [&[(u64, &[u8])]; 4] = [
        &[(0, &[9; 10]), (9, &[9; 10])],
        &[(0, &[9; 10]), (12_280, &[9; 9])],
        &[(0, &[9; 10]), (u64::MAX, &[9; 2])],
        &[(100, &[9; 10]), (0, &[9; 101])],
    ];
    for changes in refused {
        assert_eq!(errno(view.write_atomic(changes)), libc::EINVAL);
    }
    let reader = file.map(0..4096, Access::Read).unwrap();
    assert_eq!(errno(reader.write_atomic(&[(0, &[9])])), libc::EBADF);
    assert!(contents(&fs, ino) == expected);
}

#[test]
fn commit_of_staged_ranges_is_all_or_nothing() {
    const LEN: usize = 3 * MIB;
    let mut rec = Recorded::new(16 * MIB, &repeatable(4096), Rules::default());
    let ino = file(&rec.fs, "f");
    rec.fs.write(&CX, ino, 0, &vec![1; LEN]).unwrap();
    // From 8 bytes to more than 1 MiB.
    let ranges = [
        8..16,
        5000..5100,
        5050..5110,
        8192..MIB as u64 + 20_000,
        LEN as u64 - 3..LEN as u64,
    ];
    let found = crashes(&mut rec, ino, |fs| {
        let view = fs
            .open_file(ino)
            .unwrap()
            .map(0..LEN as u64, Access::Write)
            .unwrap();
        let mut staged = view.stage().unwrap();
        staged.fill(2);
        staged.commit(&ranges).unwrap();
    });
    let before = vec![1; LEN];
    let mut after = before.clone();
    for range in &ranges {
        after[range.start as usize..range.end as usize].fill(2);
    }
    assert!(
        found
            .iter()
            .all(|bytes| *bytes == before || *bytes == after)
    );
    assert!(*found.last().unwrap() == after && found[0] == before);
}

/// `PRAMFS_TEST_COMMIT` is the length in MiB: 1024 takes 3 GiB of memory.
#[test]
fn commit_of_as_much_as_space_allows_survives_crash_and_more_changes_nothing() {
    let asked = std::env::var("PRAMFS_TEST_COMMIT").ok();
    let mib = asked.map_or(24, |mib| mib.parse().expect("a number of MiB"));
    let len = mib * MIB;
    for features in [&[][..], &["data_checksums"]] {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (path, copy) = (dir.path().join("region"), dir.path().join("copy"));
        let region = RegionOptions::new().create(&path, (3 * len + 16 * MIB) as u64);
        let region = region.unwrap();
        let options = FormatOptions {
            features: features
                .iter()
                .map(|name| ((*name).to_owned(), true))
                .collect(),
            ..FormatOptions::default()
        };
        format(&region, &options).unwrap();
        let fs = Fs::open(region, quiet()).unwrap();
        let ino = file(&fs, "f");
        fs.write(&CX, ino, 0, &vec![1; len]).unwrap();
        let open = fs.open_file(ino).unwrap();
        let view = open.map(0..len as u64, Access::Write).unwrap();
        let mut staged = view.stage().unwrap();
        staged.fill(2);
        let all = 0..len as u64;
        staged.commit(std::slice::from_ref(&all)).unwrap();
        std::fs::copy(&path, &copy).unwrap();
        let again = RegionOptions::new().open(&copy).unwrap();
        let again = Fs::open(again, quiet()).unwrap();
        assert!(contents(&again, ino).iter().all(|byte| *byte == 2));
        again.close().unwrap();
        std::fs::remove_file(&copy).unwrap();
        // Now there is too little room for the bytes until they are home.
        fill(&fs);
        staged.fill(3);
        let refused = staged.commit(std::slice::from_ref(&all));
        assert_eq!(errno(refused), libc::ENOSPC);
        assert!(contents(&fs, ino).iter().all(|byte| *byte == 2));
        drop(staged);
        drop((view, open));
        fs.close().unwrap();
    }
}

#[test]
fn staged_changes_are_private_until_commit() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    fs.write(&CX, ino, 0, &[1; 8192]).unwrap();
    let file = fs.open_file(ino).unwrap();
    let view = file.map(100..8192, Access::Write).unwrap();
    let mut staged = view.stage().unwrap();
    staged.fill(2);
    assert!(contents(&fs, ino) == [1; 8192]);
    staged.commit(std::slice::from_ref(&(0..8))).unwrap();
    let bytes = contents(&fs, ino);
    assert!(bytes[100..108] == [2; 8] && bytes[108..] == [1; 8084]);
    staged.reset().unwrap();
    assert!(staged[..8] == [2; 8] && staged[8..] == [1; 8084]);
    // A hole that somebody punches meanwhile gets a block again.
    fs.fallocate(&CX, ino, Fallocate::PunchHole, 4096, 4096)
        .unwrap();
    staged.fill(3);
    staged.commit(std::slice::from_ref(&(4000..4010))).unwrap();
    assert_eq!(
        contents(&fs, ino)[4099..4111],
        [0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0]
    );
    // Refused as a whole.
    assert_eq!(errno(staged.commit(&[0..8, 8092..8093])), libc::EINVAL);
    fs.setattr(
        &CX,
        ino,
        &SetAttr {
            size: Some(5000),
            ..SetAttr::default()
        },
    )
    .unwrap();
    assert_eq!(errno(staged.commit(&[0..8, 6000..6008])), libc::EINVAL);
    assert!(contents(&fs, ino)[100..108] == [2; 8]);
    let look = file.map(0..10, Access::Read).unwrap();
    assert_eq!(errno(look.stage()), libc::EBADF);
}
