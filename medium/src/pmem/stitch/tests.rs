//! Views of scattered pieces, on every kind of region available here.

use super::*;
use crate::pmem::mapping::{HUGE_2M, Mapping, Share};
use crate::pmem::tests::{disk, shm, when_free};
use crate::pmem::{BackendKind, Durability, RegionOptions, SimBackend};

const P: u64 = 4096;

/// Pieces 20, 3, hole, 4-5 of a region, as one view.
fn view(region: &Region, writable: bool) -> StitchedMap {
    let source = StitchSource::of_region(region).unwrap();
    let mut s = Stitcher::new(5 * P, 20 * P).unwrap();
    s.stitch(&source, 0, 20 * P, P, writable).unwrap();
    s.stitch(&source, P, 3 * P, P, writable).unwrap();
    s.stitch(&source, 3 * P, 4 * P, P, writable).unwrap();
    s.stitch(&source, 4 * P, 5 * P, P, writable).unwrap();
    s.finish().unwrap()
}

fn regions() -> Vec<(tempfile::TempDir, Region)> {
    let mut all = Vec::new();
    for backend in [BackendKind::Auto, BackendKind::Native] {
        for place in [shm as fn() -> _, disk] {
            for durability in [Durability::Power, Durability::Process] {
                let dir = place();
                let options = RegionOptions::new().backend(backend).durability(durability);
                let region = options.create(dir.path().join("r"), 1 << 20).unwrap();
                all.push((dir, region));
            }
        }
    }
    all
}

#[test]
fn write_through_view_is_on_medium() {
    for (_dir, region) in regions() {
        let map = view(&region, true);
        assert_eq!(map.len(), 5 * P);
        let base = map.as_ptr() as u64;
        assert_eq!(base % HUGE_2M as u64, 20 * P);
        // Across the boundary of two pieces that are not adjacent on the medium.
        map.write(P - 3, b"across").unwrap();
        map.persist(&region, P - 3, 6).unwrap();
        assert_eq!(region.read_pod::<[u8; 3]>(21 * P - 3).unwrap(), *b"acr");
        assert_eq!(region.read_pod::<[u8; 3]>(3 * P).unwrap(), *b"oss");
        // And back.
        let p = region
            .window()
            .store(5 * P + 8, &77u64.to_le_bytes())
            .unwrap();
        region.window().fence(p);
        assert_eq!(map.load::<u64>(4 * P + 8).unwrap(), 77);
        assert_eq!(map.fetch_add::<u64>(4 * P + 8, 3).unwrap(), 77);
        assert_eq!(region.load_u64(5 * P + 8).unwrap(), 80);
        // Persisting a range with a hole in it.
        map.persist(&region, 0, 5 * P).unwrap();
        assert_eq!((map.faults(), region.faults()), (0, 0));
    }
}

#[test]
fn holes_read_zero_and_reject_stores() {
    let region = RegionOptions::new().memfd("t", 1 << 20).unwrap();
    let map = view(&region, true);
    let mut bytes = [1; 64];
    map.read(2 * P + 100, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
    assert!(!map.is_writable());
    for (at, len) in [(2 * P, 8), (2 * P - 4, 8), (3 * P - 1, 2)] {
        let e = map.write(at, &vec![1; len]).unwrap_err();
        assert_eq!(e.errno(), libc::EACCES);
    }
    assert_eq!(
        map.store::<u64>(2 * P, 1).unwrap_err().errno(),
        libc::EACCES
    );
    map.write(2 * P - 8, &[1; 8]).unwrap();
    // A map that is only a hole.
    let map = Stitcher::new(1, 0).unwrap().finish().unwrap();
    assert_eq!((map.len(), map.load::<u64>(0).unwrap()), (P, 0));
}

#[test]
fn store_to_read_only_map_fails() {
    let region = RegionOptions::new().memfd("t", 1 << 20).unwrap();
    let map = view(&region, false);
    assert_eq!(map.write(0, &[1]).unwrap_err().errno(), libc::EACCES);
    region.window().store_unflushed(20 * P, &[5]).unwrap();
    let mut byte = [0];
    map.read(0, &mut byte).unwrap();
    assert_eq!(byte, [5]);
}

#[test]
fn stitch_checks_bounds_order_and_alignment() {
    let region = RegionOptions::new().memfd("t", 1 << 20).unwrap();
    let source = StitchSource::of_region(&region).unwrap();
    let mut s = Stitcher::new(4 * P, 0).unwrap();
    for (at, from, len) in [(0, 0, 100), (7, 0, P), (0, 512, P)] {
        let e = s.stitch(&source, at, from, len, true).unwrap_err();
        assert!(
            matches!(e, PmemError::Misaligned { align: 4096, .. }),
            "{e}"
        );
    }
    s.stitch(&source, P, 0, P, true).unwrap();
    for (at, len) in [
        (0, P),
        (P, P),
        (2 * P, 3 * P),
        (4 * P, P),
        (u64::MAX - P + 1, P),
        (2 * P, 0),
    ] {
        assert!(s.stitch(&source, at, 0, len, true).is_err());
    }
    // Past the end of the region.
    for from in [1 << 20, (1 << 20) - P, u64::MAX - P + 1] {
        assert!(s.stitch(&source, 2 * P, from, 2 * P, true).is_err());
    }
    let map = s.finish().unwrap();
    assert!(map.load::<u64>(4 * P).is_err() && map.load::<u64>(u64::MAX - 7).is_err());
    assert!(matches!(
        map.load::<u64>(P + 4),
        Err(PmemError::Misaligned { .. })
    ));
    assert!(map.flush(&region, 3 * P, 2 * P).is_err());
    assert!(map.read(4 * P - 1, &mut [0; 2]).is_err());
    assert_eq!(Stitcher::new(0, 0).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(
        Stitcher::new(u64::MAX, 0).unwrap_err().errno(),
        libc::ENOMEM
    );
    let heap = Region::new("heap", crate::pmem::HeapBackend::boxed(4096));
    assert_eq!(
        StitchSource::of_region(&heap).unwrap_err().errno(),
        libc::EOPNOTSUPP
    );
}

#[test]
fn addresses_are_congruent_to_offsets() {
    let region = RegionOptions::new().memfd("t", 8 << 20).unwrap();
    let source = StitchSource::of_region(&region).unwrap();
    for congruent in [0, 3 * P, (2 << 20) - P, (2 << 20) + 7 * P] {
        let mut s = Stitcher::new(4 << 20, congruent).unwrap();
        s.stitch(&source, 0, congruent, 4 << 20, true).unwrap();
        let map = s.finish().unwrap();
        assert!(map.is_writable());
        assert_eq!(map.as_ptr() as u64 % (2 << 20), congruent % (2 << 20));
        map.populate().unwrap();
    }
    let s = Stitcher::new(3 << 30, 5 << 20).unwrap();
    assert_eq!(s.range.base() as u64 % (1 << 30), 5 << 20);
}

#[test]
fn sim_records_flush_but_not_store_of_view() {
    let sim = SimBackend::new(1 << 20).unwrap();
    let region = Region::new("sim", Box::new(sim.clone()));
    let map = view(&region, true);
    sim.recording(true);
    map.write(P + 10, b"direct").unwrap();
    map.persist(&region, P + 10, 6).unwrap();
    let events = sim.take_record();
    assert_eq!(events.len(), 2);
    assert_eq!(
        (events[0].offset, &events[0].bytes[10..16]),
        (3 * P, &b"direct"[..])
    );
    assert_eq!(sim.counters().flushes, 1);
}

/// Shows what recovery has replayed into a read-only region. Stores do not reach the
/// medium.
#[test]
fn view_of_read_only_region_shows_replay() {
    for backend in [BackendKind::Auto, BackendKind::Native] {
        let dir = shm();
        let path = dir.path().join("r");
        let options = RegionOptions::new().backend(backend);
        let region = options.create(&path, 1 << 20).unwrap();
        region.window().store_unflushed(20 * P, b"medium").unwrap();
        drop(region);
        let options = options.read_only(true);
        let region = when_free(|| options.open(&path));
        region
            .window()
            .store_unflushed(5 * P + 1, b"replayed")
            .unwrap();
        let map = view(&region, false);
        let mut bytes = [0; 8];
        map.read(4 * P + 1, &mut bytes).unwrap();
        assert_eq!(bytes, *b"replayed");
        map.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, *b"medium\0\0");
        assert_eq!(std::fs::read(&path).unwrap()[5 * P as usize + 1], 0);
        let source = StitchSource::of_region(&region).unwrap();
        let e = Stitcher::new(P, 0)
            .unwrap()
            .stitch(&source, 0, 0, P, true)
            .unwrap_err();
        assert_eq!(e.errno(), libc::EROFS);
    }
}

#[test]
fn faults_in_view_are_counted_by_view() {
    crate::pmem::install_fault_guard().unwrap();
    let dir = shm();
    let path = dir.path().join("r");
    let region = RegionOptions::new().create(&path, 1 << 20).unwrap();
    let map = view(&region, true);
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(4 * P)
        .unwrap();
    assert_eq!(map.load::<u64>(0).unwrap(), 0);
    assert_eq!((map.faults(), region.faults()), (1, 0));
    assert!(map.is_faulted(0, 1) && !map.is_faulted(P, P));
    assert_eq!(map.load::<u64>(P).unwrap(), 0);
    assert_eq!(map.faults(), 1);
}

#[test]
fn huge_pages_require_their_alignment() {
    let Some(pool) = crate::pmem::huge_pool::HugePool::borrow(2) else {
        return;
    };
    let region = RegionOptions::new()
        .create(pool.dir().join("r"), 4 << 20)
        .unwrap();
    let source = StitchSource::of_region(&region).unwrap();
    let mut s = Stitcher::new(4 << 20, 0).unwrap();
    let e = s.stitch(&source, 0, 4096, 2 << 20, true).unwrap_err();
    assert!(
        matches!(
            e,
            PmemError::Misaligned {
                align: 0x20_0000,
                ..
            }
        ),
        "{e}"
    );
    s.stitch(&source, 0, 2 << 20, 2 << 20, true).unwrap();
    s.stitch(&source, 2 << 20, 0, 2 << 20, true).unwrap();
    let map = s.finish().unwrap();
    map.store::<u64>(0, 9).unwrap();
    map.persist(&region, 0, 8).unwrap();
    assert_eq!(region.load_u64(2 << 20).unwrap(), 9);
}

/// Returns the KiB of huge pages of shared memory in the mapping that begins at an address, and
/// its entry in smaps.
fn huge_kib(at: *const u8) -> (u64, String) {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let header = format!("{:x}-", at as usize);
    let lines = smaps.lines().skip_while(|line| !line.starts_with(&header));
    let is_last = |line: &&str| line.starts_with("VmFlags:");
    let end = lines.clone().position(|line| is_last(&line)).unwrap_or(0);
    let entry: Vec<&str> = lines.take(end + 1).collect();
    let kib = entry
        .iter()
        .find_map(|line| line.strip_prefix("ShmemPmdMapped:"))
        .and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok());
    (kib.unwrap_or(0), entry.join("\n"))
}

/// With `huge=always` a view is mapped in 2 MiB pages, according to smaps, where an ordinary
/// mapping of the same bytes is. The kernel gives a huge page to each 2 MiB of a file or not, as
/// its memory allows, and splits those of a file when memory is short.
#[test]
fn huge_pages_of_tmpfs_are_mapped() {
    use rustix::mount as m;
    use std::os::fd::AsRawFd;
    const HUGE: u64 = HUGE_2M as u64;
    let mount = || -> rustix::io::Result<std::os::fd::OwnedFd> {
        let fs = m::fsopen("tmpfs", m::FsOpenFlags::FSOPEN_CLOEXEC)?;
        m::fsconfig_set_string(&fs, "huge", "always")?;
        m::fsconfig_create(&fs)?;
        m::fsmount(
            &fs,
            m::FsMountFlags::FSMOUNT_CLOEXEC,
            m::MountAttrFlags::empty(),
        )
    };
    let mount = match mount() {
        Ok(mount) => mount,
        Err(e) => {
            return crate::pmem::tests::skipped(format_args!(
                "tmpfs of huge pages: {e} (run as root)"
            ));
        }
    };
    let path = format!("/proc/self/fd/{}/r", mount.as_raw_fd());
    let region = RegionOptions::new().create(&path, 8 * HUGE).unwrap();
    region.populate(0, 8 * HUGE).unwrap();
    let source = StitchSource::of_region(&region).unwrap();
    let (fd, _) = region.backend().source_fd().unwrap();
    let ordinary = |from: u64| {
        let map = Mapping::with_room(fd, from, HUGE_2M, HUGE_2M, Share::Shared).unwrap();
        mapping::populate(map.base(), HUGE_2M, true).unwrap();
        huge_kib(map.base())
    };
    let (mut last, mut refused) = (String::new(), 0);
    // A page may be split and made whole again between two looks, but not each time.
    for from in (0..7 * HUGE).step_by(HUGE_2M).cycle().take(3 * 7) {
        let before = ordinary(from);
        if before.0 != HUGE >> 10 {
            last = before.1;
            continue;
        }
        let mut s = Stitcher::new(2 * HUGE, 0).unwrap();
        s.stitch(&source, 0, from, HUGE, true).unwrap();
        // Not adjacent, so a mapping of its own.
        let second = (from + 3 * HUGE) % (8 * HUGE);
        s.stitch(&source, HUGE, second, HUGE, true).unwrap();
        let map = s.finish().unwrap();
        map.populate().unwrap();
        let (kib, entry) = huge_kib(map.as_ptr());
        if kib == HUGE >> 10 {
            return;
        }
        let after = ordinary(from);
        last = format!(
            "the view:\n{entry}\nan ordinary mapping, before and after:\n{}\n{}",
            before.1, after.1
        );
        refused += u32::from(after.0 == HUGE >> 10);
        assert!(
            refused < 3,
            "offset {from:#x}: a view has no huge page where an ordinary mapping has one; {last}"
        );
    }
    crate::pmem::tests::skipped(format_args!(
        "huge pages in a view: the kernel has none for the region; {last}"
    ));
}

#[test]
fn failed_extend_keeps_view_and_can_be_repeated() {
    let region = RegionOptions::new().memfd("test", 1 << 20).unwrap();
    let source = StitchSource::of_region(&region).unwrap();
    let mut stitcher = Stitcher::reserving(P, 64 * P, 0, P).unwrap();
    stitcher.stitch(&source, 0, 8 * P, P, true).unwrap();
    let mut map = stitcher.finish().unwrap();
    let address = map.as_ptr();
    assert_eq!((map.len(), map.reserved()), (P, 64 * P));
    // The second piece overlaps the first, lies behind the end, is not whole pages.
    for second in [(2 * P, 0, P), (5 * P, 0, P), (3 * P, 1, P)] {
        let pieces = [(P, 20 * P, 2 * P), second];
        map.extend(&source, 5 * P, pieces, true).unwrap_err();
        assert_eq!((map.len(), map.is_writable()), (P, true));
        assert!(map.load::<u64>(P).is_err());
    }
    for len in [65 * P, u64::MAX] {
        map.extend(&source, len, [], true).unwrap_err();
    }
    map.extend(&source, 4 * P, [(P, 20 * P, 2 * P)], true)
        .unwrap();
    assert_eq!((map.len(), map.as_ptr()), (4 * P, address));
    map.store(2 * P, 7u64).unwrap();
    assert_eq!(region.load_u64(21 * P).unwrap(), 7);
    // The last page is a hole.
    assert_eq!(map.load::<u64>(3 * P).unwrap(), 0);
    assert_eq!(map.store(3 * P, 1u64).unwrap_err().errno(), libc::EACCES);
    assert!(!map.is_writable());
}

#[test]
fn source_without_private_pages_shows_stores_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let written = RegionOptions::new().create(&path, 1 << 20).unwrap();
    let options = RegionOptions::new().read_only(true).lock(false).clone();
    let region = options.open(&path).unwrap();
    let source = StitchSource::of_region(&region).unwrap();
    let source = source.without_private_pages();
    let mut s = Stitcher::new(2 * P, 0).unwrap();
    let refused = s.stitch(&source, 0, 4 * P, P, true).unwrap_err();
    assert_eq!(refused.errno(), libc::EROFS);
    s.stitch(&source, 0, 4 * P, P, false).unwrap();
    let map = s.finish().unwrap();
    written.window().store_unflushed(4 * P, &[9; 8]).unwrap();
    assert_eq!(map.load::<u64>(0).unwrap(), 0x0909_0909_0909_0909);
    assert!(map.write(0, &[1]).is_err());
}
