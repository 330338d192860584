//! Every backend on every source available here.

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(in crate::pmem) use super::huge_pool::skipped;
use super::*;

fn native() -> RegionOptions {
    RegionOptions::new().backend(BackendKind::Native)
}

/// Whether the libpmem2 backend can be tested: it is in this build, and the library installed.
#[cfg(feature = "libpmem2")]
fn has_libpmem2() -> bool {
    match super::libpmem2::missing() {
        None => true,
        Some(why) => {
            skipped(format!("the libpmem2 backend: {why}"));
            assert!(std::env::var_os("CI").is_none(), "a skipped test in CI");
            false
        }
    }
}

#[cfg(not(feature = "libpmem2"))]
fn has_libpmem2() -> bool {
    false
}

/// The backends of this machine, with the names they report.
fn backends() -> Vec<(RegionOptions, &'static str)> {
    let mut all = vec![(native(), "native")];
    if has_libpmem2() {
        all.push((
            RegionOptions::new().backend(BackendKind::Libpmem2),
            "libpmem2",
        ));
    }
    all
}

/// A new directory on storage that is not memory, if any exists.
pub(super) fn disk() -> tempfile::TempDir {
    let exe = std::env::current_exe().unwrap();
    let places = [
        exe.parent().unwrap(),
        env!("CARGO_MANIFEST_DIR").as_ref(),
        "/var/tmp".as_ref(),
    ];
    for place in places {
        let Ok(dir) = tempfile::tempdir_in(place) else {
            continue;
        };
        let probe = native().create(dir.path().join("probe"), 4096).unwrap();
        if probe.info().kind == Some(SourceKind::File) {
            std::fs::remove_file(dir.path().join("probe")).unwrap();
            return dir;
        }
    }
    panic!("none of {places:?} is an ordinary file system, and these tests need one");
}

/// A new directory on tmpfs.
pub(super) fn shm() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// Longer than anything takes on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

/// Opens a source that was closed a moment ago. A child that another test has just forked holds
/// all descriptors of the process until its exec, and a locked file counts as in use until then.
pub(crate) fn when_free<T>(open: impl Fn() -> Result<T, PmemError>) -> T {
    let begun = Instant::now();
    loop {
        match open() {
            Err(e) if e.errno() == libc::EBUSY && begun.elapsed() < LONG => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened.unwrap(),
        }
    }
}

/// Whether something becomes so in time. For what ends with the last copy of a descriptor: see
/// [`when_free`].
pub(super) fn in_time(mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if begun.elapsed() > LONG {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs the same operations on a region and on plain memory.
fn exercise(region: &Region) {
    let len = region.len().min(1 << 20) as usize;
    let mut model = vec![0u8; len];
    region.read(0, &mut model).unwrap();
    let w = region.window();
    let bytes: Vec<u8> = (0..5000).map(|i| (i % 251) as u8).collect();
    for i in 0..300usize {
        let at = (i * 7919) % (len - 5000);
        let n = (i * 37) % 4999 + 1;
        match i % 4 {
            0 => w.fence(w.store(at as u64, &bytes[..n]).unwrap()),
            1 | 2 => w.fence(w.nt_store(at as u64, &bytes[..n]).unwrap()),
            _ => w.fence(w.nt_zero(at as u64, n as u64).unwrap()),
        };
        if i % 4 == 3 {
            model[at..at + n].fill(0);
        } else {
            model[at..at + n].copy_from_slice(&bytes[..n]);
        }
    }
    w.store_u64_unflushed(4096, 0x0102).unwrap();
    let p = w.flush(4096, 8).unwrap();
    w.fence(p);
    model[4096..4104].copy_from_slice(&0x0102u64.to_le_bytes());
    region.sync_all().unwrap();
    let mut got = vec![0; len];
    region.read(0, &mut got).unwrap();
    assert!(got == model);
    assert_eq!(region.faults(), 0);
}

fn survives_reopening(options: &RegionOptions, path: &PathBuf, len: u64) {
    let region = options.create(path, len).unwrap();
    exercise(&region);
    let mut before = vec![0; len as usize];
    region.read(0, &mut before).unwrap();
    drop(region);
    let region = when_free(|| options.open(path));
    let mut after = vec![0; len as usize];
    region.read(0, &mut after).unwrap();
    assert!(before == after);
    assert!(std::fs::read(path).unwrap() == before);
}

#[test]
fn tmpfs_is_cache_line_granular() {
    for (options, name) in backends() {
        let dir = shm();
        let path = dir.path().join("region");
        survives_reopening(&options, &path, 4 << 20);
        let info = when_free(|| options.open(&path)).info();
        assert_eq!(info.backend, name);
        assert_eq!(info.kind, Some(SourceKind::Tmpfs));
        assert_eq!(info.granularity, Granularity::CacheLine);
        assert_eq!(info.persistence, Persistence::Machine);
        // The page cache is the medium, so nothing ever needs write-back.
        let options = options.durability(Durability::Process);
        let info = when_free(|| options.open(&path)).info();
        assert_eq!(info.durability, Durability::Power);
    }
}

#[test]
fn memfd_ends_with_process() {
    for (options, _) in backends() {
        let region = options.memfd("t", 1 << 20).unwrap();
        exercise(&region);
        let info = region.info();
        assert_eq!(
            (info.kind, info.persistence),
            (Some(SourceKind::Memfd), Persistence::Process)
        );
        let (fd, offset) = region.backend().source_fd().unwrap();
        assert_eq!(offset, 0);
        let mut byte = [0];
        region.window().store_unflushed(5, &[9]).unwrap();
        rustix::io::pread(fd, &mut byte, 5).unwrap();
        assert_eq!(byte, [9]);
    }
}

#[test]
fn ordinary_file_fences_survive_power_failure() {
    for (options, name) in backends() {
        let dir = disk();
        let path = dir.path().join("region");
        survives_reopening(&options, &path, 1 << 20);
        let info = when_free(|| options.open(&path)).info();
        assert_eq!((info.backend, info.kind), (name, Some(SourceKind::File)));
        assert_eq!(
            (info.granularity, info.durability),
            (Granularity::Page, Durability::Power)
        );
        assert_eq!(info.persistence, Persistence::Power);
    }
}

#[test]
fn ordinary_file_process_fences_only_order() {
    for (options, _) in backends() {
        let dir = disk();
        let path = dir.path().join("region");
        let options = options.durability(Durability::Process);
        survives_reopening(&options, &path, 1 << 20);
        let info = when_free(|| options.open(&path)).info();
        assert_eq!(
            (info.granularity, info.durability),
            (Granularity::Page, Durability::Process)
        );
    }
}

/// The default choice of backend is the one that is reported.
#[test]
fn auto_backend_reports_its_choice() {
    let info = RegionOptions::new().memfd("t", 1 << 20).unwrap().info();
    assert_eq!(
        info.backend,
        if has_libpmem2() { "libpmem2" } else { "native" }
    );
    if !has_libpmem2() {
        let e = RegionOptions::new()
            .backend(BackendKind::Libpmem2)
            .memfd("t", 1 << 20)
            .unwrap_err();
        assert_eq!(e.errno(), libc::EOPNOTSUPP);
    }
}

/// Each offset and length around the lines of a region, compared with heap memory.
#[test]
fn copies_at_every_placement_match_heap() {
    for (options, name) in backends() {
        let region = options.memfd("t", 1 << 16).unwrap();
        let heap = Region::new("heap", HeapBackend::boxed(1 << 16));
        let sim = Region::new("sim", Box::new(SimBackend::new(1 << 16).unwrap()));
        let bytes: Vec<u8> = (0..1200).map(|i| (i % 253 + 1) as u8).collect();
        for at in 4090..=4162u64 {
            for len in (0..=200)
                .step_by(9)
                .chain([1, 2, 4, 8, 64, 128])
                .chain((250..1100).step_by(61))
            {
                for r in [&region, &heap, &sim] {
                    let w = r.window();
                    let p = w.nt_zero(4032, 1300).unwrap();
                    let p = p.join(w.store(at, &bytes[..len.min(70)]).unwrap());
                    let p = p.join(w.nt_store(at, &bytes[..len]).unwrap());
                    w.fence(p.join(w.nt_zero(at + len as u64 / 2, len as u64 / 4).unwrap()));
                }
                let [mut a, mut b, mut c] = [[0; 1500]; 3];
                region.read(4000, &mut a).unwrap();
                heap.read(4000, &mut b).unwrap();
                sim.read(4000, &mut c).unwrap();
                assert!(a == b && b == c, "{name}: at {at}, len {len}");
            }
        }
    }
}

/// A fence also covers the earlier flushes of other threads.
#[test]
fn page_fences_cover_flushes_of_other_threads() {
    let dir = disk();
    let region = native().create(dir.path().join("region"), 1 << 20).unwrap();
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let region = &region;
            s.spawn(move || {
                let w = region.window();
                for i in 0..20 {
                    let p = w.store(t * 65536 + i * 4096, &[t as u8 + 1; 100]).unwrap();
                    w.fence(p);
                }
            });
        }
    });
    assert_eq!(region.faults(), 0);
    assert_eq!(
        region.read_pod::<u8>(3 * 65536 + 19 * 4096 + 99).unwrap(),
        4
    );
}

#[test]
fn read_only_never_writes_medium() {
    for (dir, (options, _)) in [shm as fn() -> _, disk]
        .into_iter()
        .flat_map(|d| backends().into_iter().map(move |b| (d(), b)))
    {
        let path = dir.path().join("region");
        drop(native().create(&path, 256 << 10).unwrap());
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o400))
            .unwrap();
        let options = options.read_only(true);
        let region = when_free(|| options.open(&path));
        assert!(region.info().read_only);
        exercise(&region);
        let refused = region.window().discard(0, 65536).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported);
        assert!(std::fs::read(&path).unwrap().iter().all(|b| *b == 0));
    }
}

#[test]
fn addresses_allow_huge_pages() {
    let region = native().memfd("t", 8 << 20).unwrap();
    assert_eq!(region.backend().base() as usize % (2 << 20), 0);
    let region = native().memfd("t", 3 << 30).unwrap();
    assert_eq!(region.backend().base() as usize % (1 << 30), 0);
}

#[test]
fn sparse_tebibyte_region_opens() {
    let dir = shm();
    let path = dir.path().join("region");
    let region = native().create(&path, 1 << 40).unwrap();
    let p = region.window().store((1 << 40) - 8, &[5; 8]).unwrap();
    region.window().fence(p);
    drop(region);
    // A private mapping works too, though less memory exists.
    let region = when_free(|| native().read_only(true).open(&path));
    assert_eq!(
        region.load_u64((1 << 40) - 8).unwrap(),
        0x0505_0505_0505_0505
    );
}

#[test]
fn discarded_pages_return_to_host() {
    use std::os::unix::fs::MetadataExt;
    for dir in [shm(), disk()] {
        let path = dir.path().join("region");
        let region = native().preallocate(true).create(&path, 8 << 20).unwrap();
        let blocks = || std::fs::metadata(&path).unwrap().blocks();
        assert!(blocks() >= (8 << 20) / 512);
        let before = blocks();
        region.window().discard(1 << 20, 6 << 20).unwrap();
        assert!(blocks() <= before - (4 << 20) / 512);
        // Partial pages stay.
        region.window().store_unflushed(100, &[1; 100]).unwrap();
        region.window().discard(0, 300).unwrap();
        assert_eq!(region.read_pod::<u8>(100).unwrap(), 1);
    }
}

#[test]
fn dax_can_be_required() {
    for dir in [shm(), disk()] {
        let path = dir.path().join("region");
        let e = native()
            .require_dax(true)
            .create(&path, 1 << 20)
            .unwrap_err();
        assert_eq!(e.errno(), libc::EOPNOTSUPP);
        assert!(!path.exists(), "a file that became no region is removed");
    }
}

/// Needs a huge page of the pool; reports it if none is available.
#[test]
fn hugetlbfs_region_uses_huge_pages() {
    let Some(pool) = super::huge_pool::HugePool::borrow(2) else {
        return;
    };
    let path = pool.dir().join("region");
    let e = native().create(&path, 3 << 20).unwrap_err();
    assert_eq!(e.errno(), libc::EINVAL);
    assert!(e.to_string().contains("2097152 and 4194304"), "{e}");
    for (options, _) in backends() {
        let region = when_free(|| options.create(&path, 4 << 20));
        exercise(&region);
        assert_eq!(region.info().kind, Some(SourceKind::Hugetlbfs));
        assert_eq!(region.info().granularity, Granularity::CacheLine);
    }
    // More pages than the pool has.
    let e = native()
        .create(pool.dir().join("large"), 1 << 40)
        .unwrap_err();
    assert_eq!(e.errno(), libc::ENOMEM);
    assert!(e.to_string().contains("nr_hugepages"), "{e}");
    assert!(!pool.dir().join("large").exists());
}
