//! Who sees whose bytes, and when: the table of coherence in
//! `docs/semantics.md`, on a real mount. A mapping through the mount is made
//! by opening the file as a region, which maps it shared.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pramfs::direct::OpenOptions as Direct;
use pramfs::pmem::{BackendKind, Durability, Region, RegionOptions};
use pramfs::{Fs, MountOptions};
use pramfs_tests::mounted::{Mounted, available, program};
use pramfs_tests::watchdog::Watchdog;
use rustix::io::Errno;

fn mounted(test: &str, options: &str) -> Option<(Mounted, Watchdog)> {
    let dog = Watchdog::new(test, Duration::from_secs(60));
    available(test).then(|| (Mounted::new(&program(), 64 << 20, options), dog))
}

/// Maps a file of the mount: loads and stores go to the page cache, a fence
/// only orders, `sync_all` is fdatasync.
fn mmap(path: &Path) -> Region {
    RegionOptions::new()
        .backend(BackendKind::Native)
        .durability(Durability::Process)
        .lock(false)
        .open(path)
        .unwrap()
}

fn load(map: &Region, at: u64) -> [u8; 8] {
    map.load_u64(at).unwrap().to_le_bytes()
}

fn store(map: &Region, at: u64, bytes: &[u8; 8]) {
    let pending = map.window().store(at, bytes).unwrap();
    let _ = map.window().fence(pending);
}

fn read(file: &File, at: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes
}

fn cached(path: &Path) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap();
    file.set_len(1 << 16).unwrap();
    file
}

fn direct(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap()
}

#[test]
fn mmap_through_the_mount_and_cached_reads_and_writes_see_each_other_at_once() {
    let Some((mount, _dog)) = mounted("mmap and cached I/O", "") else {
        return;
    };
    let path = mount.at("f");
    let (file, map) = (cached(&path), mmap(&path));
    for round in 0..20u64 {
        let (one, two) = ((round * 2).to_le_bytes(), (round * 2 + 1).to_le_bytes());
        store(&map, 4096, &one);
        assert_eq!(read(&file, 4096), one);
        file.write_all_at(&two, 4096).unwrap();
        assert_eq!(load(&map, 4096), two);
    }
}

#[test]
fn a_direct_write_is_seen_by_mmap_and_a_store_by_direct_reads() {
    let Some((mount, _dog)) = mounted("mmap and O_DIRECT", "") else {
        return;
    };
    let path = mount.at("f");
    let (_file, map) = (cached(&path), mmap(&path));
    let direct = direct(&path);
    for round in 0..20u64 {
        store(&map, 0, &(round * 2).to_le_bytes());
        assert_eq!(read(&direct, 0), (round * 2).to_le_bytes());
        direct
            .write_all_at(&(round * 2 + 1).to_le_bytes(), 0)
            .unwrap();
        assert_eq!(load(&map, 0), (round * 2 + 1).to_le_bytes());
    }
}

/// cache=none: every descriptor is direct, and mmap works all the same.
#[test]
fn with_cache_none_mmap_works_and_is_coherent_with_reads_and_writes() {
    let Some((mount, _dog)) = mounted("mmap with cache=none", "cache=none") else {
        return;
    };
    let path = mount.at("f");
    let (file, map) = (cached(&path), mmap(&path));
    for round in 0..20u64 {
        store(&map, 8192, &(round * 2).to_le_bytes());
        assert_eq!(read(&file, 8192), (round * 2).to_le_bytes());
        file.write_all_at(&(round * 2 + 1).to_le_bytes(), 8192)
            .unwrap();
        assert_eq!(load(&map, 8192), (round * 2 + 1).to_le_bytes());
    }
}

/// A store through mmap is in the page cache until msync, fsync or munmap; a
/// write is on the medium when it returns.
#[test]
fn a_store_through_mmap_survives_a_kill_after_msync() {
    let Some((mount, _dog)) = mounted("msync", "") else {
        return;
    };
    let path = mount.at("f");
    let (file, map) = (cached(&path), mmap(&path));
    store(&map, 4096, b"synced..");
    map.sync_all().unwrap();
    file.write_all_at(b"written.", 8192).unwrap();
    mount.crash();
    drop((file, map));
    mount.mount("");
    let file = File::open(&path).unwrap();
    assert_eq!(
        (&read(&file, 4096), &read(&file, 8192)),
        (b"synced..", b"written.")
    );
}

/// One process has the region at a time: the direct API sees what the mount
/// wrote when the mount has ended, and the other way round.
#[test]
fn the_direct_api_and_the_mount_follow_each_other_and_never_overlap() {
    let Some((mount, _dog)) = mounted("mount, then library", "") else {
        return;
    };
    std::fs::write(mount.at("f"), b"by the mount").unwrap();
    let busy = RegionOptions::new().open(mount.region()).unwrap_err();
    assert_eq!(busy.errno(), libc::EBUSY);
    mount.unmount();
    let fs = Fs::open(
        RegionOptions::new().open(mount.region()).unwrap(),
        MountOptions::default(),
    )
    .unwrap();
    let file = Direct::new().open(&fs, "/f").unwrap();
    let view = file.map(0..12, pramfs::direct::Access::Write).unwrap();
    let mut bytes = [0; 12];
    view.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"by the mount");
    view.write(0, b"BY").unwrap();
    view.persist(0..2).unwrap();
    drop((view, file));
    fs.close().unwrap();
    mount.mount("");
    assert_eq!(std::fs::read(mount.at("f")).unwrap(), b"BY the mount");
}

const CHILD: &str = "PRAMFS_TEST_LOCKED_FILE";

/// Locks are the kernel's: they hold among the processes of this machine.
#[test]
fn flock_and_fcntl_locks_hold_within_the_machine() {
    use rustix::fs::{FlockOperation, fcntl_lock, flock};
    // The other process: tries for the record lock, and says how that went.
    if let Some(path) = std::env::var_os(CHILD) {
        let file = cached(Path::new(&path));
        let got = fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
        std::process::exit(if got.is_ok() { 0 } else { 7 });
    }
    let Some((mount, _dog)) = mounted("locks", "") else {
        return;
    };
    let path = mount.at("f");
    let (one, two) = (cached(&path), cached(&path));
    flock(&one, FlockOperation::LockExclusive).unwrap();
    let busy = flock(&two, FlockOperation::NonBlockingLockShared);
    assert_eq!(busy, Err(Errno::WOULDBLOCK));
    drop(one);
    flock(&two, FlockOperation::NonBlockingLockShared).unwrap();
    let other = || {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "flock_and_fcntl_locks_hold_within_the_machine"])
            .env(CHILD, &path)
            .stdout(std::process::Stdio::null())
            .status();
        status.unwrap().code().unwrap()
    };
    fcntl_lock(&two, FlockOperation::LockExclusive).unwrap();
    assert_eq!(other(), 7);
    drop(two);
    assert_eq!(other(), 0);
}

/// What the mount does not have is refused with the errno that programs know.
#[test]
fn what_is_not_supported_is_refused() {
    use rustix::fs::{FallocateFlags, Mode, OFlags};
    let Some((mount, _dog)) = mounted("refusals", "") else {
        return;
    };
    let (file, other) = (cached(&mount.at("f")), cached(&mount.at("g")));
    let tmpfile = rustix::fs::open(mount.path(), OFlags::TMPFILE | OFlags::RDWR, Mode::RWXU);
    assert_eq!(tmpfile.unwrap_err(), Errno::OPNOTSUPP);
    assert!(rustix::fs::ioctl_ficlone(&other, &file).is_err());
    for mode in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(
            rustix::fs::fallocate(&file, mode, 0, 4096),
            Err(Errno::OPNOTSUPP)
        );
    }
}
