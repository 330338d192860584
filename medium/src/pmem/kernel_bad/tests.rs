use super::*;
use crate::pmem::{HeapBackend, PmemError, Region, Unfenced};
use std::ops::Range;

/// A sysfs with one pmem disk and its partition, and a DAX device in a region.
struct Fake(tempfile::TempDir);

/// As the kernel encodes device numbers below 256.
const fn device(major: u64, minor: u64) -> u64 {
    (major & 0xfff) << 8 | minor
}

const PMEM: u64 = device(259, 0);
const PART: u64 = device(259, 1);
const DAX: u64 = device(252, 7);

impl Fake {
    fn new() -> Fake {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake(dir);
        let link = |name: &str, to: &str| {
            let at = fake.path(name);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(fake.path(to), at).unwrap();
        };
        let region = "devices/ndbus0/region3";
        fake.put("devices/ndbus0/region3/pfn3.0/block/pmem3/badblocks", "");
        fake.put(
            "devices/ndbus0/region3/pfn3.0/block/pmem3/pmem3p1/partition",
            "1\n",
        );
        fake.put(
            "devices/ndbus0/region3/pfn3.0/block/pmem3/pmem3p1/start",
            "2048\n",
        );
        fake.put(
            "devices/ndbus0/region3/dax3.1/dax/dax3.0/resource",
            "0x240200000\n",
        );
        fake.put(&format!("{region}/resource"), "0x240000000\n");
        fake.put(&format!("{region}/badblocks"), "");
        link(
            "dev/block/259:0",
            "devices/ndbus0/region3/pfn3.0/block/pmem3",
        );
        link(
            "dev/block/259:1",
            "devices/ndbus0/region3/pfn3.0/block/pmem3/pmem3p1",
        );
        link("dev/char/252:7", "devices/ndbus0/region3/dax3.1/dax/dax3.0");
        fake
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        let at = self.path(name);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, text).unwrap();
    }
}

#[test]
fn list_of_block_device_is_read_in_sectors() {
    let fake = Fake::new();
    assert!(
        of_block_device(fake.0.path(), PMEM)
            .unwrap()
            .ranges
            .is_empty()
    );
    fake.put("dev/block/259:0/badblocks", "8 1\n16 8\n24 2\n");
    let found = of_block_device(fake.0.path(), PMEM).unwrap();
    assert_eq!(found.ranges, [4096..4608, 8192..13312]);
    assert_eq!(found.bytes(), 512 + 5120);
    assert!(found.list.is_some() && found.notice.is_none());
}

#[test]
fn list_of_partition_is_that_of_its_disk_from_its_start() {
    let fake = Fake::new();
    fake.put("dev/block/259:0/badblocks", "8 1\n2047 2\n2056 8\n");
    let found = of_block_device(fake.0.path(), PART).unwrap();
    assert_eq!(found.ranges, [0..512, 4096..8192]);
    std::fs::remove_file(fake.path("dev/block/259:1/start")).unwrap();
    let found = of_block_device(fake.0.path(), PART).unwrap();
    assert!(found.ranges.is_empty() && found.notice.is_some());
}

#[test]
fn list_of_dax_device_is_that_of_its_region_from_its_resource() {
    let fake = Fake::new();
    // 2 MiB into the region, 4096 sectors.
    fake.put("devices/ndbus0/region3/badblocks", "0 8\n4096 8\n4200 1\n");
    let found = of_dax_device(fake.0.path(), DAX).unwrap();
    assert_eq!(found.ranges, [0..4096, 104 * 512..105 * 512]);
    fake.put("devices/ndbus0/region3/resource", "0x0\n");
    let found = of_dax_device(fake.0.path(), DAX).unwrap();
    assert!(found.ranges.is_empty());
    assert!(found.notice.unwrap().contains("run as root"));
}

#[test]
fn device_without_list_has_no_bad_ranges() {
    let fake = Fake::new();
    let none = KernelBad::default();
    let other = device(7, 7);
    assert_eq!(of_block_device(fake.0.path(), other).unwrap(), none);
    assert_eq!(of_dax_device(fake.0.path(), other).unwrap(), none);
    let file = tempfile::tempfile().unwrap();
    assert_eq!(
        KernelBad::of(file.as_fd(), 0, 1 << 20, fake.0.path()).unwrap(),
        none
    );
}

#[test]
fn hostile_text_of_list_is_left_out() {
    let max = u64::MAX;
    let text = format!(
        "1 1\n-1 5\n{max} 1\n1 {max}\n{} 1\n7\n1 2 3\nx y\n\n 9 0\n9  1 \n\0\n",
        max / 512
    );
    let (ranges, wrong) = parse(&text);
    assert_eq!(ranges, [512..1024, 9 * 512..10 * 512]);
    assert_eq!(wrong, 9);
    let fake = Fake::new();
    std::fs::write(
        fake.path("dev/block/259:0/badblocks"),
        [0xff, 0xfe, b'\n', b'3', b' ', b'1'],
    )
    .unwrap();
    let found = of_block_device(fake.0.path(), PMEM).unwrap();
    assert_eq!(
        found.ranges,
        vec![Range {
            start: 1536,
            end: 2048
        }]
    );
    assert!(found.notice.unwrap().contains("1 lines"));
}

#[test]
fn ranges_outside_of_source_are_cut() {
    assert_eq!(merged(vec![5..9, 0..3, 2..5, 20..21]), [0..9, 20..21]);
    assert_eq!(
        shifted(&[0..512, 1024..2048, 512..1025], 1024),
        [0..1024, 0..1]
    );
}

#[test]
fn ranges_of_device_are_translated_to_those_of_file() {
    let extent = |logical, physical, len| FileExtent {
        logical,
        physical,
        len,
    };
    let extents = [
        extent(0, 8192, 4096),
        extent(4096, 0, 4096),
        extent(1 << 20, u64::MAX - 4095, 4096),
    ];
    assert_eq!(
        merged(translated(
            &[4000..8704, u64::MAX - 511..u64::MAX],
            &extents
        )),
        [0..512, 8096..8192, (1 << 20) + 3584..(1 << 20) + 4095]
    );
}

#[test]
fn extents_of_written_file_cover_it() {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &[7; 64 << 10]).unwrap();
    file.sync_all().unwrap();
    // A file system may not know the request.
    if let Ok(found) = file_extents(file.as_fd(), &(0..64 << 10)) {
        let len: u64 = found.iter().map(|extent| extent.len).sum();
        assert!(len >= 64 << 10, "{found:?}");
    }
}

#[test]
fn marked_range_refuses_loads_and_stores_and_nothing_else_does() {
    let region = Region::new("marked", HeapBackend::boxed(1 << 16));
    region.mark_bad(4096..4608);
    let fails = |e: Result<Unfenced, PmemError>| matches!(e, Err(PmemError::Faulted { .. }));
    assert!(region.load_u64(4088).is_ok() && region.load_u64(4608).is_ok());
    assert!(region.load_u64(4096).is_err() && region.load_u64(4600).is_err());
    assert!(region.read(0, &mut [0; 4097]).is_err());
    assert!(fails(region.window().store(4600, &[0; 16])));
    assert!(!fails(region.window().store(4608, &[0; 16])));
    assert!(region.is_faulted(0, 8192) && !region.is_faulted(0, 4096));
}
