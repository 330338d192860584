//! Stores through a mapping that cannot be written back: msync, fsync and close report
//! the error, and a successful call means that the data is stored.

use pramfs_medium::pmem::RegionAccess as _;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use pramfs::MountOptions;
use pramfs::inode::{Fs, Ino};
use pramfs::pmem::RegionOptions;
use pramfs_medium::media::{DiskInode, Ptr};
use pramfs_tests::mounted::{Mounted, available, program};
use pramfs_tests::region::inode_home;
use pramfs_tests::syscalls::{Sys, close, errno};
use pramfs_tests::watchdog::Watchdog;
use rustix::fs::{FallocateFlags, fallocate, fsync, statvfs};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use zerocopy::FromBytes;

use crate::support::file::new;
use crate::support::mount::{LIMIT, SIZE, alone, map_file, one_at_a_time};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
const MODES: [&str; 3] = ["cache=auto", "cache=writeback", "cache=none"];

/// A shared mapping of the start of a file.
struct Map {
    at: *mut u8,
    len: usize,
}

impl Map {
    fn shared(file: &File, len: usize) -> Map {
        let (none, prot) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the kernel chooses the address.
        let at = unsafe { mmap(none, len, prot, MapFlags::SHARED, file, 0) };
        Map {
            at: at.expect("mmap").cast(),
            len,
        }
    }

    fn fill(&self, at: usize, len: usize, byte: u8) {
        assert!(at + len <= self.len);
        // SAFETY: the assertion keeps the address in the mapping, and no reference to it
        // exists.
        unsafe { self.at.add(at).write_bytes(byte, len) };
    }

    fn sync(&self, at: usize, len: usize) -> Sys {
        assert!(at + len <= self.len && at.is_multiple_of(PAGE));
        // SAFETY: the assertion keeps the address in the mapping.
        errno(unsafe { msync(self.at.add(at).cast(), len, MsyncFlags::SYNC) })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, and no reference to it exists.
        unsafe { munmap(self.at.cast(), self.len) }.expect("munmap");
    }
}

/// A region of 8 MiB, mounted with these options.
fn with_mount(test: &str, options: &str, work: impl FnOnce(&Mounted)) {
    if !available(test) {
        return;
    }
    let _one = one_at_a_time();
    let _dog = Watchdog::new(test, LIMIT);
    work(&Mounted::new(&program(), 8 * MIB as u64, options));
}

fn open(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).expect("a file")
}

/// Leaves `left` bytes of free space for data, pointer blocks not counted.
fn fill_up(mount: &Mounted, left: u64) {
    let free = statvfs(mount.path()).expect("statvfs").f_bavail * PAGE as u64;
    let ballast = open(&mount.at("ballast"));
    fallocate(&ballast, FallocateFlags::empty(), 0, free - left).expect("the ballast");
}

/// Steps of a page, of a request, between them and beyond, so that write-back meets the
/// full region at any position in a request.
#[test]
fn successful_msync_means_stored_on_full_region() {
    for (mode, pages) in [
        (MODES[0], 1),
        (MODES[0], 7),
        (MODES[0], 16),
        (MODES[0], 100),
        (MODES[0], 300),
        (MODES[1], 16),
        (MODES[1], 100),
    ] {
        let what = format!("{mode}, steps of {pages} pages");
        with_mount(&what, mode, |mount| {
            let (path, len, step) = (mount.at("f"), 16 * MIB, pages * PAGE);
            let file = open(&path);
            file.set_len(len as u64).expect("a hole");
            let map = Map::shared(&file, len);
            let byte = |at: usize| (1 + at / step % 250) as u8;
            let mut good = 0;
            let refused = loop {
                let n = step.min(len - good);
                map.fill(good, n, byte(good));
                match map.sync(good, n) {
                    Ok(()) => good += n,
                    Err(errno) => break errno,
                }
            };
            assert_eq!(refused, libc::ENOSPC, "{what}");
            assert!(good > 4 * MIB, "{what}: {good}");
            drop(map);
            drop(file);
            mount.unmount();
            mount.mount(mode);
            let bytes = fs::read(&path).expect("read");
            let lost = (0..good).step_by(PAGE).filter(|at| {
                let page = &bytes[*at..at + PAGE];
                page.iter().any(|b| *b != byte(*at))
            });
            assert_eq!(lost.count(), 0, "pages that are not stored, {what}");
        });
    }
}

/// Maps a file with a hole of 1 MiB for which there is no space, and stores to it: the
/// next write-back fails.
fn dirty(mount: &Mounted) -> (File, Map) {
    let file = open(&mount.at("f"));
    file.set_len(MIB as u64).expect("a hole");
    fill_up(mount, 32 * PAGE as u64);
    let map = Map::shared(&file, MIB);
    map.fill(0, MIB, 0x77);
    (file, map)
}

const TOLD: Sys = Err(libc::ENOSPC);

#[test]
fn write_back_error_is_reported_once_by_msync() {
    for mode in MODES {
        with_mount("msync", mode, |mount| {
            let (file, map) = dirty(mount);
            let other = open(&mount.at("f"));
            assert_eq!(map.sync(0, MIB), TOLD, "{mode}");
            assert_eq!(map.sync(0, MIB), Ok(()), "{mode}: it was told");
            assert_eq!(errno(fsync(&file)), Ok(()), "{mode}: the same descriptor");
            let another = Map::shared(&other, MIB);
            assert_eq!(another.sync(0, MIB), TOLD, "{mode}: a second descriptor");
            assert_eq!(errno(fsync(&other)), Ok(()), "{mode}: it was told, too");
            let third = open(&mount.at("f"));
            assert_eq!(errno(fsync(&third)), Ok(()), "{mode}: opened afterwards");
        });
    }
}

#[test]
fn write_back_error_is_reported_once_by_fsync() {
    for mode in MODES {
        with_mount("fsync", mode, |mount| {
            let (file, map) = dirty(mount);
            let other = open(&mount.at("f"));
            // Unmapping writes back and has no caller to report to.
            drop(map);
            assert_eq!(errno(fsync(&file)), TOLD, "{mode}");
            assert_eq!(errno(fsync(&file)), Ok(()), "{mode}: it was told");
            assert_eq!(close(file), Ok(()), "{mode}: it was told");
            let second = errno(rustix::fs::fdatasync(&other));
            assert_eq!(second, TOLD, "{mode}: a second descriptor");
            assert_eq!(errno(fsync(&other)), Ok(()), "{mode}: it was told, too");
        });
    }
}

#[test]
fn unreported_write_back_error_is_reported_by_close() {
    for mode in MODES {
        with_mount("close", mode, |mount| {
            let (file, map) = dirty(mount);
            let other = open(&mount.at("f"));
            drop(map);
            assert_eq!(close(file), TOLD, "{mode}");
            assert_eq!(errno(fsync(&other)), TOLD, "{mode}: a second descriptor");
            assert_eq!(close(other), Ok(()), "{mode}: it was told");
        });
        // The mapping holds the file, with or without a descriptor.
        with_mount("close before munmap", mode, |mount| {
            let (file, map) = dirty(mount);
            assert_eq!(close(file), TOLD, "{mode}: dirty when it is closed");
            drop(map);
        });
    }
}

/// Stores the pages that have space, also those after a page that has none.
#[test]
fn failed_write_back_stores_pages_with_space() {
    for mode in MODES {
        with_mount("pages with room", mode, |mount| {
            let (path, quarter) = (mount.at("f"), 256 << 10);
            let file = open(&path);
            file.set_len(MIB as u64).expect("a hole");
            for at in [0, 2 * quarter as u64] {
                let keep = FallocateFlags::KEEP_SIZE;
                fallocate(&file, keep, at, quarter as u64).expect("room");
            }
            // Written in place, without a record, at the very end.
            file.write_all_at(&[1; PAGE], (MIB - PAGE) as u64)
                .expect("the last page");
            file.sync_all().expect("its block");
            fill_up(mount, 0);
            let map = Map::shared(&file, MIB);
            map.fill(0, MIB, 0x77);
            assert_eq!(map.sync(0, MIB), TOLD, "{mode}");
            drop(map);
            drop(file);
            mount.unmount();
            mount.mount(mode);
            let bytes = fs::read(&path).expect("read");
            for at in [0, 2 * quarter] {
                let stored = bytes[at..at + quarter].iter().all(|b| *b == 0x77);
                assert!(stored, "{mode}: what was allocated at {at}");
            }
            assert_eq!(bytes[MIB - PAGE..], [0x77; PAGE], "{mode}");
            let hole = &bytes[quarter..2 * quarter];
            assert!(hole.contains(&0), "{mode}: the region was full");
        });
    }
}

/// A program that stores through a mapping has to allocate the range first. Allocated
/// pages can always be written back.
#[test]
fn write_back_of_allocated_pages_needs_no_space() {
    for mode in MODES {
        with_mount("allocated", mode, |mount| {
            let (path, len) = (mount.at("f"), 4 * MIB);
            let file = open(&path);
            fallocate(&file, FallocateFlags::empty(), 0, len as u64).expect("room");
            fill_up(mount, 0);
            let map = Map::shared(&file, len);
            for at in (0..len).step_by(PAGE) {
                map.fill(at, PAGE, (1 + at / PAGE % 250) as u8);
                if at % (64 * PAGE) == 0 {
                    assert_eq!(map.sync(0, len), Ok(()), "{mode}: {at}");
                }
            }
            assert_eq!(map.sync(0, len), Ok(()), "{mode}");
            drop(map);
            mount_again(mount, file, mode);
            let bytes = fs::read(&path).expect("read");
            let whole = |at: &usize| bytes[*at] == (1 + at / PAGE % 250) as u8;
            assert!((0..len).step_by(PAGE).all(|at| whole(&at)), "{mode}");
        });
    }
}

fn mount_again(mount: &Mounted, file: File, mode: &str) {
    drop(file);
    mount.unmount();
    mount.mount(mode);
}

/// Locations of the pointer block of a file in the root, and of its first data block.
fn places(region: &Path, name: &str) -> (u64, u64) {
    let image = fs::read(region).expect("the region");
    let region = RegionOptions::new().read_only(true).open(region);
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let fs = Fs::open(region.expect("the region"), options).expect("the file system");
    let ino: Ino = fs.resolve(format!("/{name}")).expect("the file").ino;
    let data = fs.file_extents(ino, 0, u64::MAX).expect("extents");
    let home = inode_home(&image, ino);
    let (inode, _) = DiskInode::ref_from_prefix(&image[home..]).expect("an inode");
    assert_eq!(inode.height, 1, "one pointer block");
    let at = Ptr(inode.root).block().0 * PAGE as u64;
    (at, data[0].region_offset.expect("data"))
}

/// The cause does not matter: damage in the file's map, or a truncated region.
#[test]
fn write_back_into_damage_is_reported_by_msync() {
    for (mode, cut) in [
        (MODES[0], false),
        (MODES[1], false),
        (MODES[2], false),
        (MODES[0], true),
        (MODES[1], true),
        (MODES[2], true),
    ] {
        let what = format!("{mode}, cut: {cut}");
        with_mount(&what, mode, |mount| {
            let path = mount.at("f");
            fs::write(&path, vec![1; MIB / 2]).expect("a file");
            mount.unmount();
            let (root, data) = places(&mount.region(), "f");
            mount.mount(mode);
            let file = open(&path);
            let map = Map::shared(&file, MIB / 2);
            map.fill(0, MIB / 2, 0x77);
            let region = File::options().write(true).open(mount.region());
            let region = region.expect("the region");
            if cut {
                region.set_len(data + MIB as u64 / 4).expect("a cut");
            } else {
                region.write_all_at(&[0xee; 64], root).expect("damage");
            }
            let expected = if cut { libc::EIO } else { libc::EUCLEAN };
            assert_eq!(map.sync(0, MIB / 2), Err(expected), "{what}");
            // Damage makes the mount read-only. A kernel that owns the times cannot store them.
            let told = match (mode, cut) {
                ("cache=writeback", false) => Err(libc::EROFS),
                _ => Ok(()),
            };
            assert_eq!(map.sync(0, MIB / 2), told, "{what}: it was told");
        });
    }
}

/// With a page of the kernel (tmpfs), the store finds the lack of space; with pramfs,
/// write-back does.
#[test]
fn mmap_store_on_full_region_fails_in_msync() {
    alone("mmap on a full region", "", |mount| {
        let path = mount.at("f");
        let file = new(&path);
        file.set_len(SIZE * 2).expect("a hole");
        let map = map_file(&path);
        for at in (0..SIZE * 2).step_by(4096) {
            drop(map.window().store(at, b"changed!").expect("store"));
        }
        let error = map.sync_all().expect_err("more than there is space for");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        // A later open does not report the error again.
        drop(map);
        file.sync_all().expect_err("each descriptor is told once");
        file.sync_all().expect("it was told");
        let bytes = file.metadata().expect("stat").blocks() * 512;
        assert!(bytes > SIZE / 2 && bytes <= SIZE, "{bytes}");
        drop(file);
        fs::remove_file(&path).expect("unlink");
        fs::write(mount.at("g"), vec![1; 1 << 20]).expect("there is space again");
    });
}
