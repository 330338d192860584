//! Reports on the paths available here.

use super::*;
use crate::pmem::RegionOptions;
use crate::pmem::tests::{disk, shm};

#[test]
fn missing_path_is_judged_by_its_directory() {
    let dir = shm();
    let path = dir.path().join("to-be");
    let report = probe(&path).unwrap();
    assert!(!report.exists);
    assert_eq!(report.subject, dir.path());
    assert_eq!(report.kind, Some(SourceKind::Tmpfs));
    assert_eq!(report.granularity, Some(Granularity::CacheLine));
    assert_eq!(report.persistence, Some(Persistence::Machine));
    assert_eq!(report.size, None);
    assert!(report.free.is_some());
    assert!(!report.is_persistent_memory());
    assert!(
        report.warnings.iter().any(|w| w.contains("lost at reboot")),
        "{:?}",
        report.warnings
    );
    assert_eq!(report.filesystem.as_ref().unwrap().fs_type, "tmpfs");
    assert!(!path.exists());
    // A bare name lies in the current directory.
    assert_eq!(probe("no-such-name").unwrap().subject, Path::new("."));
    assert_eq!(
        probe(dir.path().join("no/such")).unwrap_err().errno(),
        libc::ENOENT
    );
}

#[test]
fn missing_device_is_not_created_as_file() {
    let path = "/dev/pmem-that-is-not-there";
    let report = probe(path).unwrap();
    assert!(!report.exists && report.kind.is_none());
    let why = report.problem.unwrap();
    assert!(why.contains("no such device"), "{why}");
    assert!(report.advice.is_empty(), "{:?}", report.advice);
    // A file is not created either.
    let e = RegionOptions::new().create(path, 1 << 20).unwrap_err();
    assert_eq!(e.errno(), libc::ENODEV, "{e}");
    assert!(!Path::new(path).exists());
    // A path that is memory by its name is not treated as a device.
    let memory = probe("/dev/shm/no-such-name").unwrap();
    assert_eq!(memory.problem, None);
}

#[test]
fn probe_reports_ordinary_file() {
    let dir = disk();
    let path = dir.path().join("r");
    let region = RegionOptions::new().create(&path, 4 << 20).unwrap();
    let report = probe(&path).unwrap();
    assert_eq!(report.kind, Some(SourceKind::File));
    assert_eq!((report.size, report.alignment), (Some(4 << 20), 4096));
    assert!(report.allocated.unwrap() < 1 << 20);
    assert_eq!(
        (report.granularity, report.persistence),
        (Some(Granularity::Page), Some(Persistence::Power))
    );
    assert_eq!(report.map_sync, Some(false));
    assert!(
        report
            .in_use
            .as_ref()
            .unwrap()
            .contains(&std::process::id().to_string())
    );
    assert!(
        report
            .warnings
            .iter()
            .any(|w| w.contains("durability=process"))
    );
    assert!(
        report
            .advice
            .iter()
            .any(|a| a.starts_with("fallocate -l 4194304 "))
    );
    assert!(report.backends.contains(&"native"));
    drop(region);
    // Another test may have forked meanwhile. Until its child calls exec, the child holds a
    // copy of the locked descriptor. The limit is long enough for any machine.
    let is_free = || probe(&path).unwrap().in_use.is_none();
    let pause = || std::thread::sleep(std::time::Duration::from_millis(10));
    assert!((0..6000).any(|_| is_free() || {
        pause();
        false
    }));
    // Its directory gives the same report, and no file remains there. Tried only if the
    // file system supports unnamed files (a mount of this file system does not).
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let tried = rustix::fs::open(dir.path(), flags, Mode::RUSR).map(|_| false);
    let report = probe(dir.path()).unwrap();
    assert_eq!(
        (report.kind, report.map_sync),
        (Some(SourceKind::File), tried.ok())
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn probe_names_problem_of_unusable_path() {
    let report = probe("/dev/null").unwrap();
    assert_eq!(report.kind, None);
    assert!(report.problem.unwrap().contains("devdax"));
    assert!(
        report.warnings[0].contains("/dev/null cannot hold a region: it is a character device")
    );
}

#[test]
fn probe_warns_of_odd_lengths() {
    let dir = shm();
    let path = dir.path().join("r");
    let with = |len| {
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        probe(&path).unwrap()
    };
    assert!(with(0).warnings.iter().any(|w| w.contains("empty")));
    assert!(
        with(4096)
            .warnings
            .iter()
            .any(|w| w.contains("at least 262144"))
    );
    assert!(
        with(1_000_000)
            .advice
            .iter()
            .any(|a| a.starts_with("truncate -s 1003520 "))
    );
    assert!(with(1 << 50).warnings.iter().any(|w| w.contains("sparse")));
}

#[test]
fn probe_reports_hugetlbfs_pool() {
    let Some(pool) = crate::pmem::huge_pool::HugePool::borrow(1) else {
        return;
    };
    let report = probe(pool.dir().join("r")).unwrap();
    assert_eq!(report.kind, Some(SourceKind::Hugetlbfs));
    assert_eq!(
        (report.alignment, &report.page_sizes[..]),
        (2 << 20, &[2 << 20][..])
    );
    assert!(report.huge_pool.unwrap().1 >= 1);
    assert!(
        report
            .advice
            .iter()
            .any(|a| a.contains("hugepages-2048kB/nr_hugepages"))
    );
}

#[test]
fn probe_of_tmpfs_advises_huge_pages() {
    let report = probe("/dev/shm").unwrap();
    match report.huge_policy {
        Some(HugePolicy::Never) => {
            assert_eq!(report.page_sizes, [4096]);
            assert!(report.advice.iter().any(|a| a.contains("huge=always")));
        }
        Some(_) => assert_eq!(report.page_sizes, [4096, 2 << 20]),
        None => assert!(report.shmem_enabled.is_none()),
    }
}
