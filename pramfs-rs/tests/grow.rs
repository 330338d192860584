//! Growing a file system while it is in use, by the library.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{BackendKind, HeapBackend, Region, RegionOptions};
use pramfs::{Access, FileSystem, MountOptions};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A file that the test removes.
struct Temp(PathBuf);

impl Drop for Temp {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// A new file on tmpfs, if there is one.
fn temp(name: &str) -> Temp {
    let shm = PathBuf::from("/dev/shm");
    let dir = if shm.is_dir() {
        shm
    } else {
        std::env::temp_dir()
    };
    Temp(dir.join(format!("pramfs-grow-{name}-{}", std::process::id())))
}

fn made(temp: &Temp, len: u64) -> FileSystem {
    let region = RegionOptions::new().create_new(&temp.0, len).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    FileSystem::mount(region, MountOptions::default()).unwrap()
}

fn mounted(temp: &Temp) -> FileSystem {
    let region = RegionOptions::new().open(&temp.0).unwrap();
    FileSystem::mount(region, MountOptions::default()).unwrap()
}

#[test]
fn grow_of_live_file_system_keeps_files_and_views() {
    let temp = temp("live");
    let fs = made(&temp, 4 * MIB);
    fs.write("/file", vec![7; 100_000]).unwrap();
    let file = fs.create("/mapped").unwrap();
    file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    let view = file.map(0..1 << 20, Access::Write).unwrap();
    let address = view.as_ptr();
    let grown = fs.grow(Some(64 * MIB)).unwrap();
    assert_eq!((grown.from, grown.to), (4 * MIB, 64 * MIB));
    view.write(8, &[9; 8]).unwrap();
    view.persist(8..16).unwrap();
    assert_eq!(view.as_ptr(), address);
    // More than there was before.
    fs.write("/large", vec![3; 32 << 20]).unwrap();
    let again = fs.grow(Some(64 * MIB)).unwrap();
    assert_eq!(again.from, again.to, "the same size is no error");
    drop(view);
    drop(file);
    fs.unmount().unwrap();
    let fs = mounted(&temp);
    assert_eq!(fs.read("/file").unwrap(), vec![7; 100_000]);
    assert_eq!(fs.read("/mapped").unwrap()[8..16], [9; 8]);
    assert_eq!(fs.read("/large").unwrap(), vec![3; 32 << 20]);
    assert_eq!(fs.statfs().unwrap().blocks, 64 * MIB / 4096);
    fs.unmount().unwrap();
}

#[test]
fn grow_of_full_file_system_makes_room() {
    let temp = temp("full");
    let fs = made(&temp, MIB);
    let file = fs.create("/ballast").unwrap();
    for piece in [65_536, 4096] {
        let mut at = file.metadata().unwrap().len();
        while file.write_all_at(&vec![1; piece], at).is_ok() {
            at += piece as u64;
        }
    }
    assert!(
        fs.create("/none")
            .and_then(|f| f.write_all_at(&[1; 65_536], 0))
            .is_err()
    );
    fs.grow(Some(8 * GIB)).unwrap();
    fs.write("/more", vec![2; 4 << 20]).unwrap();
    drop(file);
    fs.unmount().unwrap();
    assert_eq!(mounted(&temp).read("/more").unwrap(), vec![2; 4 << 20]);
}

/// The number of inodes grows as the region does.
#[test]
fn grown_file_system_has_more_inodes() {
    let temp = temp("inodes");
    let fs = made(&temp, MIB);
    let before = fs.statfs().unwrap().inodes;
    let mut n = 0;
    while fs.write(format!("/before{n}"), "").is_ok() {
        n += 1;
    }
    assert!(n > 300);
    fs.grow(Some(16 * MIB)).unwrap();
    assert!(fs.statfs().unwrap().inodes >= before * 15);
    for n in 0..2000 {
        fs.write(format!("/after{n}"), "x").unwrap();
    }
    fs.unmount().unwrap();
    assert_eq!(mounted(&temp).read_to_string("/after1999").unwrap(), "x");
}

/// Ends the other threads.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Operations of other threads go on, and none fails. Groups of 2 MiB are added at each step, the
/// table of descriptors gets a level, and each step's part is filled before the next.
#[test]
fn grow_beside_running_operations_disturbs_none() {
    let temp = temp("threads");
    let region = RegionOptions::new().create_new(&temp.0, 4 * MIB).unwrap();
    let small = FormatOptions {
        block_size: 512,
        ..FormatOptions::default()
    };
    format(&region, &small).unwrap();
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    let ballast = fs.create("/ballast").unwrap();
    let stop = AtomicBool::new(false);
    let piece = vec![0x5a; 256 << 10];
    let mut filled = 0;
    std::thread::scope(|scope| {
        // Also if this thread fails.
        let _stops = Stops(&stop);
        for thread in 0..3 {
            let (fs, stop) = (&fs, &stop);
            scope.spawn(move || {
                let mut round = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    let name = format!("/file{thread}");
                    let data = vec![round as u8; 30_000];
                    fs.write(&name, &data).unwrap();
                    assert_eq!(fs.read(&name).unwrap(), data);
                    fs.remove_file(&name).unwrap();
                    let space = fs.statfs().unwrap();
                    assert!(space.free <= space.blocks);
                    round += 1;
                }
                assert!(round > 0);
            });
        }
        for step in 1..=24 {
            let size = (4 + step * 3) * MIB;
            assert_eq!(fs.grow(Some(size)).unwrap().to, size);
            // All but 2 MiB.
            while filled + 3 * MIB < size {
                ballast.write_all_at(&piece, filled).unwrap();
                filled += piece.len() as u64;
            }
        }
    });
    assert_eq!(fs.statfs().unwrap().blocks, 76 * MIB / 512);
    drop(ballast);
    fs.unmount().unwrap();
    let region = RegionOptions::new().open(&temp.0).unwrap();
    let report = pramfs_fsck::check(&region, &Default::default());
    assert!(report.is_clean(), "{report:?}");
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    let data = fs.read("/ballast").unwrap();
    assert!(data.len() as u64 == filled && data.iter().all(|byte| *byte == 0x5a));
    fs.unmount().unwrap();
}

/// Groups are made when they are used, so the time does not depend on the size.
#[test]
fn grow_from_gib_to_tib_takes_less_than_second() {
    let temp = temp("large");
    let fs = made(&temp, GIB);
    fs.write("/file", "there before").unwrap();
    let allocated = || {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(&temp.0).unwrap().blocks() * 512
    };
    let before = allocated();
    let start = Instant::now();
    let grown = match fs.grow(Some(1024 * GIB)) {
        Err(e) if e.errno() == libc::EFBIG => {
            println!("SKIPPED: {e}");
            return;
        }
        grown => grown.unwrap(),
    };
    let took = start.elapsed();
    println!(
        "1 GiB to 1 TiB: {took:?}, {} KiB more of the host",
        (allocated() - before) >> 10
    );
    assert_eq!(grown.to, 1024 * GIB);
    assert!(took < Duration::from_secs(1), "{took:?}");
    // Room comes in pieces of 2 MiB.
    assert!(allocated() - before < 32 * MIB);
    fs.write("/more", "there since").unwrap();
    fs.unmount().unwrap();
    let fs = mounted(&temp);
    assert_eq!(fs.read_to_string("/file").unwrap(), "there before");
    assert_eq!(fs.read_to_string("/more").unwrap(), "there since");
    let start = Instant::now();
    fs.unmount().unwrap();
    println!("unmount: {:?}", start.elapsed());
}

#[test]
fn impossible_grow_is_refused_with_errno() {
    let temp = temp("refused");
    let fs = made(&temp, 4 * MIB);
    let errno = |fs: &FileSystem, size| fs.grow(Some(size)).unwrap_err().errno();
    assert_eq!(errno(&fs, 2 * MIB), libc::EINVAL);
    assert!(
        fs.grow(Some(2 * MIB))
            .unwrap_err()
            .to_string()
            .contains("cannot shrink")
    );
    assert_eq!(errno(&fs, 4 * MIB + 100), libc::EINVAL);
    assert_eq!(errno(&fs, 1 << 53), libc::EFBIG);
    // Also in a region that has the bytes already.
    let file = std::fs::OpenOptions::new().write(true).open(&temp.0);
    file.as_ref().unwrap().set_len(16 * MIB).unwrap();
    assert_eq!(errno(&fs, 8 * MIB + 4095), libc::EINVAL);
    file.unwrap().set_len(4 * MIB).unwrap();
    assert_eq!(fs.statfs().unwrap().blocks, MIB / 1024);
    assert_eq!(std::fs::metadata(&temp.0).unwrap().len(), 4 * MIB);
    fs.unmount().unwrap();
    // A mount for reading.
    let region = RegionOptions::new().open(&temp.0).unwrap();
    let read_only = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let fs = FileSystem::mount(region, read_only).unwrap();
    assert_eq!(errno(&fs, 8 * MIB), libc::EROFS);
    drop(fs);
    // Memory of this process.
    let region = Region::new("heap", HeapBackend::boxed(1 << 20));
    format(&region, &FormatOptions::default()).unwrap();
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    assert_eq!(errno(&fs, 2 * MIB), libc::EOPNOTSUPP);
    assert_eq!(fs.grow(None).unwrap().to, MIB);
}

/// Without addresses behind it, a region does not move: it does not grow while it is open.
#[test]
fn grow_without_reserved_addresses_is_refused_and_changes_nothing() {
    let temp = temp("addresses");
    drop(made(&temp, 4 * MIB));
    for backend in [BackendKind::Auto, BackendKind::Native] {
        let options = RegionOptions::new().backend(backend).room_to_grow(6 * MIB);
        let region = options.open(&temp.0).unwrap();
        let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
        let e = fs.grow(Some(64 * GIB)).unwrap_err();
        assert_eq!(e.errno(), libc::EOPNOTSUPP, "{e}");
        assert!(e.to_string().contains("unmount it"), "{e}");
        let len = std::fs::metadata(&temp.0).unwrap().len();
        fs.unmount().unwrap();
        assert!(len <= 6 * MIB, "the file keeps its size");
    }
}

/// A file that others made longer mounts with the old size, and can be used up to its end.
#[test]
fn region_that_grew_mounts_with_old_size_until_grow() {
    let temp = temp("behind");
    let fs = made(&temp, 4 * MIB);
    fs.write("/file", "there before").unwrap();
    fs.unmount().unwrap();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&temp.0)
        .unwrap();
    file.set_len(16 * MIB).unwrap();
    let fs = mounted(&temp);
    assert_eq!(fs.statfs().unwrap().blocks, 4 * MIB / 4096);
    assert_eq!(fs.grow(Some(10 * MIB)).unwrap().to, 10 * MIB);
    // And while it is mounted.
    file.set_len(32 * MIB).unwrap();
    assert_eq!(fs.grow(None).unwrap().to, 32 * MIB);
    fs.write("/large", vec![5; 20 << 20]).unwrap();
    fs.unmount().unwrap();
    // One that shrank is refused, with both sizes.
    file.set_len(8 * MIB).unwrap();
    let region = RegionOptions::new().open(&temp.0).unwrap();
    let e = FileSystem::mount(region, MountOptions::default())
        .unwrap_err()
        .to_string();
    for part in [
        (32 * MIB).to_string(),
        (8 * MIB).to_string(),
        "truncate -s".into(),
    ] {
        assert!(e.contains(&part), "{e}");
    }
}

/// The file system uses the parts of a longer region that a size names, whatever the density
/// of inodes, and can be mounted again.
#[test]
fn unaligned_size_in_longer_region_is_refused_and_region_stays_mountable() {
    let temp = temp("unaligned");
    let region = RegionOptions::new().create_new(&temp.0, 16 * MIB).unwrap();
    let dense = FormatOptions {
        size: Some(4 * MIB),
        bytes_per_inode: Some(256),
        ..FormatOptions::default()
    };
    format(&region, &dense).unwrap();
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    assert_eq!(fs.grow(Some(8_392_703)).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(fs.grow(Some(8_392_704)).unwrap().to, 8_392_704);
    fs.unmount().unwrap();
    mounted(&temp).unmount().unwrap();
}

/// Grows a file system that was truncated behind its mount: nothing is published.
#[test]
fn grow_into_truncated_region_is_refused() {
    let temp = temp("truncated");
    let region = RegionOptions::new().create_new(&temp.0, 16 * MIB).unwrap();
    let small = FormatOptions {
        size: Some(4 * MIB),
        ..FormatOptions::default()
    };
    format(&region, &small).unwrap();
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&temp.0);
    file.unwrap().set_len(6 * MIB).unwrap();
    let e = fs.grow(Some(8 * MIB)).unwrap_err();
    assert!(e.to_string().contains("truncated"), "{e}");
    fs.unmount().unwrap();
    let fs = mounted(&temp);
    assert_eq!(fs.statfs().unwrap().blocks, 4 * MIB / 4096);
    fs.unmount().unwrap();
}

/// The page of the superblock copy has faulted: what is stored there is lost. A grow fails, and so
/// does the next one, which must not take the sizes for stored.
#[test]
fn grow_with_lost_superblock_page_fails_each_time() {
    let temp = temp("lost");
    let region = RegionOptions::new().create_new(&temp.0, 16 * MIB).unwrap();
    let small = FormatOptions {
        size: Some(4 * MIB),
        ..FormatOptions::default()
    };
    format(&region, &small).unwrap();
    let image = std::fs::read(&temp.0).unwrap();
    let copy = image[4096..]
        .chunks(4096)
        .position(|page| page[..64] == image[..64])
        .expect("the copy begins as the first page does") as u64;
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&temp.0);
    let file = file.unwrap();
    file.set_len(4096 * (copy + 1)).unwrap();
    // The page faults at this store, and the label in memory stays.
    let e = fs.inodes().set_label("label").unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
    assert_eq!(fs.inodes().label(), "");
    file.set_len(16 * MIB).unwrap();
    for _ in 0..2 {
        let e = fs.grow(Some(8 * MIB)).unwrap_err();
        assert_eq!(e.errno(), libc::EIO, "{e}");
        assert!(fs.statfs().is_err() || fs.statfs().unwrap().blocks == 4 * MIB / 4096);
    }
}

/// Grows a region of 4 MiB in a directory, in two steps, and uses the new part.
fn grow_in(dir: &std::path::Path, backend: BackendKind) {
    let temp = Temp(dir.join(format!("pramfs-grow-{}", std::process::id())));
    let options = RegionOptions::new().backend(backend);
    let region = options.create_new(&temp.0, 4 * MIB).unwrap();
    let about = format!("{:?}", region.info());
    format(&region, &FormatOptions::default()).unwrap();
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    fs.write("/before", vec![1; 1 << 20]).unwrap();
    for size in [6 * MIB, 16 * MIB] {
        fs.grow(Some(size))
            .unwrap_or_else(|e| panic!("{e}: {about}"));
    }
    let data: Vec<u8> = (0..10 << 20).map(|i| (i / 777) as u8).collect();
    fs.write("/after", &data).unwrap();
    let file = fs.open("/after").unwrap();
    let view = file.map(0..10 << 20, Access::Read).unwrap();
    let mut back = vec![0; data.len()];
    view.read(0, &mut back).unwrap();
    assert!(back == data, "{about}");
    drop((view, file));
    fs.unmount().unwrap();
    let region = options.open(&temp.0).unwrap();
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    assert!(fs.read("/after").unwrap() == data, "{about}");
    assert_eq!(fs.read("/before").unwrap(), vec![1; 1 << 20], "{about}");
    fs.unmount().unwrap();
}

#[test]
fn grow_works_on_memory_and_ordinary_files_with_each_backend() {
    let here = std::env::temp_dir();
    for dir in [std::path::Path::new("/dev/shm"), &here] {
        if dir.is_dir() {
            grow_in(dir, BackendKind::Auto);
            grow_in(dir, BackendKind::Native);
        }
    }
}

/// The size is a multiple of a huge page, and the pages must be free.
#[test]
fn grow_on_hugetlbfs_takes_free_huge_pages() {
    let Some(pool) = pramfs_medium::pmem::huge_pool::HugePool::borrow(10) else {
        return;
    };
    grow_in(pool.dir(), BackendKind::Auto);
    grow_in(pool.dir(), BackendKind::Native);
    let temp = Temp(pool.dir().join("region"));
    let region = RegionOptions::new().create_new(&temp.0, 4 * MIB).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let fs = FileSystem::mount(region, MountOptions::default()).unwrap();
    assert_eq!(fs.grow(Some(5 * MIB)).unwrap_err().errno(), libc::EINVAL);
    let e = fs.grow(Some(1 << 40)).unwrap_err();
    assert_eq!(e.errno(), libc::ENOMEM, "{e}");
    fs.write("/file", "goes on").unwrap();
    assert_eq!(fs.statfs().unwrap().blocks, MIB / 1024);
    fs.unmount().unwrap();
}
