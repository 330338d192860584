//! Visibility of writes between access paths: the coherence table in `docs/semantics.md`,
//! on a real mount. To map a file through the mount, the tests open it as a region, which
//! maps it shared.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pramfs::OpenOptions as Direct;
use pramfs::pmem::{BackendKind, Durability, Region, RegionOptions};
use pramfs::{MountOptions, inode::Fs};
use pramfs_tests::mounted::{Mounted, available, program};
use pramfs_tests::watchdog::Watchdog;
use rustix::io::{Errno, ReadWriteFlags};

fn mounted(test: &str, options: &str) -> Option<(Mounted, Watchdog)> {
    let dog = Watchdog::new(test, Duration::from_secs(60));
    available(test).then(|| (Mounted::new(&program(), 64 << 20, options), dog))
}

/// Maps a file of the mount: loads and stores use the page cache, a fence only orders,
/// `sync_all` is fdatasync.
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
fn mmap_and_cached_io_are_coherent() {
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
fn mmap_and_direct_io_are_coherent() {
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

/// cache=none: every descriptor is direct, and mmap still works.
#[test]
fn mmap_with_cache_none_is_coherent() {
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

/// A store through mmap stays in the page cache until msync, fsync or munmap. A write is
/// on the medium when it returns.
#[test]
fn mmap_store_survives_kill_after_msync() {
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

/// One process has the region at a time. After the mount has ended, the direct API sees
/// its writes, and vice versa.
#[test]
fn direct_api_and_mount_alternate_without_overlap() {
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
    let file = Direct::new()
        .read(true)
        .write(true)
        .open(&fs, "/f")
        .unwrap();
    let view = file.map(0..12, pramfs::Access::Write).unwrap();
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

/// The kernel implements locks; they work between processes of this machine.
#[test]
fn flock_and_fcntl_locks_hold_within_machine() {
    use rustix::fs::{FlockOperation, fcntl_lock, flock};
    // The other process tries to take the record lock and reports the result.
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
    // Unlocks instead of closing: a child that another test is starting has a copy of the
    // descriptor until it executes its program, and the lock would live as long.
    flock(&one, FlockOperation::Unlock).unwrap();
    flock(&two, FlockOperation::NonBlockingLockShared).unwrap();
    let other = || {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "flock_and_fcntl_locks_hold_within_machine"])
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

/// Unsupported calls fail with the errno that programs expect.
#[test]
fn unsupported_calls_fail_with_known_errno() {
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
    let unshare = rustix::fs::fallocate(&file, FallocateFlags::UNSHARE_RANGE, 0, 4096);
    assert_eq!(unshare, Err(Errno::OPNOTSUPP));

    /// `_IOWR('f', 11, struct fiemap)`, `_IOWR(0x94, 54, ...)`, `_IOWR('X', 119, int)`.
    const REQUESTS: [(&str, libc::c_ulong); 3] = [
        ("FS_IOC_FIEMAP", 0xc020_660b),
        ("FIDEDUPERANGE", 0xc018_9436),
        ("FIFREEZE", 0xc004_5877),
    ];
    for (what, request) in REQUESTS {
        let mut argument = [0u64; 32];
        // SAFETY: the argument is longer than any of these structures; its zeros say that
        // there is room for no extents and no files.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), request, &mut argument) };
        assert_eq!(done, -1, "{what}");
    }

    file.write_all_at(b"x", 0).unwrap();
    // 0x80: RWF_DONTCACHE.
    for flag in [
        ReadWriteFlags::NOWAIT,
        ReadWriteFlags::from_bits_retain(0x80),
    ] {
        let mut byte = [0];
        let mut room = [std::io::IoSliceMut::new(&mut byte)];
        let read = rustix::io::preadv2(&file, &mut room, 0, flag);
        assert_eq!(read, Err(Errno::OPNOTSUPP), "{flag:?}");
    }

    let swap = mount.at("swap");
    std::fs::write(&swap, vec![0; 10 << 20]).unwrap();
    let made = Command::new("mkswap").arg("-q").arg(&swap).status();
    assert!(made.is_ok_and(|status| status.success()), "mkswap");
    let name = CString::new(swap.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name is a string that outlives the call.
    let done = unsafe { libc::swapon(name.as_ptr(), 0) };
    assert_eq!((done, errno()), (-1, libc::EINVAL));

    // fanotify: reports events of an inode, but not of a whole file system where file
    // handles are requested.
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID | libc::FAN_CLOEXEC;
    // SAFETY: creates a descriptor, and touches no memory.
    let watch = unsafe { libc::fanotify_init(flags, 0) };
    assert!(watch >= 0, "fanotify_init: {}", errno());
    // SAFETY: the descriptor is new and has no other owner.
    let watch = unsafe { OwnedFd::from_raw_fd(watch) };
    let path = CString::new(mount.path().as_os_str().as_bytes()).unwrap();
    let mark = |extent| {
        let flags = libc::FAN_MARK_ADD | extent;
        let (watch, mask) = (watch.as_raw_fd(), libc::FAN_MODIFY);
        // SAFETY: the path is a string that outlives the call.
        match unsafe { libc::fanotify_mark(watch, flags, mask, libc::AT_FDCWD, path.as_ptr()) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    };
    assert_eq!(mark(libc::FAN_MARK_INODE), Ok(()));
    assert_eq!(mark(libc::FAN_MARK_MOUNT), Err(libc::ENODEV));
    assert_eq!(mark(libc::FAN_MARK_FILESYSTEM), Err(libc::ENODEV));
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
