//! Closing a file system with open files and views, and forking with an open file system.

use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::{Protect, RegionOptions};
use pramfs::{
    Access, Error, File, MappedFile, MountOptions, OpenOptions,
    inode::{CloseError, Credentials, Fs, Ino},
};
use pramfs_fsck::{CheckOptions, Policy, RepairOptions, check, repair};
use pramfs_medium::pmem::RegionAccess;
use pramfs_tests::wild;

const LEN: u64 = 8 << 20;

fn make(dir: &tempfile::TempDir) -> (PathBuf, Fs) {
    let path = dir.path().join("region");
    let region = RegionOptions::new().create(&path, LEN).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    (path, Fs::open(region, MountOptions::default()).unwrap())
}

/// One test at a time: a child that one test forks briefly holds all descriptors of the process, and
/// with them the lock of the region of another test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn open_both(fs: &Fs) -> (File, MappedFile) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(fs, "/file")
        .unwrap();
    file.write_at(&[7; 8192], 0).unwrap();
    let view = file.map(0..8192, Access::Write).unwrap();
    (file, view)
}

fn reopen(path: &Path) -> pramfs::Result<Fs> {
    Fs::open(RegionOptions::new().open(path)?, MountOptions::default())
}

/// Every kind of call through handles of a closed file system.
fn all_fail(fs: Option<&Fs>, file: &File, view: &MappedFile) -> bool {
    let mut word = [0; 8];
    let calls: [pramfs::Result<()>; 13] = [
        file.read_at(&mut word, 0).map(drop),
        file.write_at(&word, 0).map(drop),
        file.append(&word).map(drop),
        file.set_len(1),
        file.metadata().map(drop),
        file.sync_all(),
        file.map(0..4096, Access::Read).map(drop),
        view.load::<u64>(0).map(drop),
        view.store::<u64>(0, 1),
        view.fetch_add::<u64>(0, 1).map(drop),
        view.read(0, &mut word),
        view.write(0, &word),
        view.persist(0..8),
    ];
    let by_fs = fs.map_or([None, None, None], |fs| {
        let ctx = Credentials::ROOT;
        [
            Some(fs.create(&ctx, Ino::ROOT, b"new", 0o644).map(drop)),
            Some(fs.lookup(Ino::ROOT, b"file").map(drop)),
            Some(fs.sync()),
        ]
    });
    let mut all = calls.into_iter().chain(by_fs.into_iter().flatten());
    all.all(|call| matches!(call, Err(e) if e.errno() == libc::EIO))
}

#[test]
fn close_with_open_handles_returns_file_system() {
    let _alone = alone();
    let dir = memory();
    let (path, fs) = make(&dir);
    let (file, view) = open_both(&fs);
    let error = fs.close().unwrap_err();
    assert_eq!(error.errno(), libc::EBUSY);
    assert!(
        error
            .to_string()
            .contains("2 open files, views or references"),
        "{error}"
    );
    let CloseError::InUse { fs, handles: 2 } = error else {
        panic!("{error:?}");
    };
    // The file system still works.
    file.append(b"more").unwrap();
    view.store::<u64>(0, 1).unwrap();
    drop(file);
    let Err(CloseError::InUse { fs, handles: 1 }) = fs.close() else {
        panic!("the view is left");
    };
    drop(view);
    fs.close().unwrap();
    let fs = reopen(&path).unwrap();
    assert!(fs.recovery().was_clean);
    fs.close().unwrap();
}

#[test]
fn close_error_converted_to_error_unmounts() {
    let _alone = alone();
    let dir = memory();
    let (_, fs) = make(&dir);
    let (file, view) = open_both(&fs);
    let error = Error::from(fs.close().unwrap_err());
    assert_eq!(error.errno(), libc::EBUSY);
    assert!(all_fail(None, &file, &view));
}

#[test]
fn close_now_with_open_view_stops_stores_keeps_lock() {
    let _alone = alone();
    let dir = memory();
    let (path, fs) = make(&dir);
    let (file, view) = open_both(&fs);
    view.store::<u64>(8, 0x55).unwrap();
    view.persist(8..16).unwrap();
    fs.close_now().unwrap();
    assert!(all_fail(None, &file, &view));
    drop(file);
    assert_eq!(reopen(&path).unwrap_err().errno(), libc::EBUSY);
    drop(view);
    let fs = reopen(&path).unwrap();
    assert!(fs.recovery().was_clean);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/file")
        .unwrap();
    let mut bytes = [0; 16];
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes[..8], [7; 8]);
    assert_eq!(u64::from_le_bytes(bytes[8..].try_into().unwrap()), 0x55);
}

/// Runs `work` in a forked child, which exits with 0 if `work` returns true.
fn fork(work: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child runs only `work` and exits. Locks of the test harness that other
    // threads held at the fork do not matter, since the child neither prints nor panics
    // before.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: ends the child without running what the parent has set up.
            unsafe { libc::_exit(i32::from(!matches!(right, Ok(true)))) }
        }
        child => child,
    }
}

fn wait(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `status` outlives the call; the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written to `ends`, and owned from here on.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

fn forked_child_is_refused(fs: Fs, path: &Path) {
    let (file, view) = open_both(&fs);
    let raw = view.as_ptr() as usize;
    let mut fs = Some(fs);
    let mut handles = Some((file, view));
    let child = fork(|| {
        let (file, view) = handles.take().unwrap();
        let fs = fs.take().unwrap();
        let refused = all_fail(Some(&fs), &file, &view);
        // Even a pointer taken by the parent does not reach the region.
        // SAFETY: the view lives, and has this many bytes.
        unsafe { (raw as *mut u64).write_volatile(0xbad) };
        let closed = match fs.close() {
            Err(CloseError::InUse { fs, .. }) => {
                fs.close_now().is_err_and(|e| e.errno() == libc::EIO)
            }
            _ => false,
        };
        drop((file, view));
        refused && closed
    });
    assert_eq!(wait(child), 0);
    // The parent is not affected.
    let (file, view) = handles.take().unwrap();
    let fs = fs.take().unwrap();
    assert_eq!(view.load::<u64>(0).unwrap(), 0x0707_0707_0707_0707);
    view.store::<u64>(0, 9).unwrap();
    file.append(b"more").unwrap();
    fs.create(&Credentials::ROOT, Ino::ROOT, b"new", 0o644)
        .unwrap();
    drop((file, view));
    fs.close().unwrap();
    let fs = reopen(path).unwrap();
    assert!(fs.recovery().was_clean);
    assert!(fs.recovery().damage.is_empty());
    fs.close().unwrap();
}

#[test]
fn fork_child_calls_on_file_system_fail() {
    let _alone = alone();
    let dir = memory();
    let (path, fs) = make(&dir);
    forked_child_is_refused(fs, &path);
}

#[test]
fn fork_child_calls_on_page_granular_medium_fail() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (path, fs) = make(&dir);
    forked_child_is_refused(fs, &path);
}

/// The second mapping of a protected region, for stores, is kept from the child too, also if it is
/// open at the fork.
#[test]
fn fork_child_of_protected_region_reaches_neither_mapping() {
    let _alone = alone();
    let dir = memory();
    let (path, fs) = make(&dir);
    fs.close().unwrap();
    let options = RegionOptions::new().protect(Protect::Mprotect);
    let open = || options.clone().open(&path).unwrap();
    let region = open();
    assert_eq!(region.info().protect, Protect::Mprotect);
    let mappings = wild::mappings(path.to_str().unwrap());
    assert_eq!(mappings.len(), 2, "{mappings:?}");
    let at = LEN / 2;
    let child = {
        let window = region.window();
        let pending = window.store(at, &[5; 8]).unwrap();
        let _ = window.fence(pending);
        fork(|| {
            for mapping in &mappings {
                // SAFETY: the range was mapped before the fork. It is private memory now, or the
                // store ends the child.
                unsafe {
                    let to = (mapping.start + at as usize) as *mut u64;
                    to.write_volatile(0xbad);
                }
            }
            true
        })
    };
    assert_eq!(wait(child), 0);
    let mut bytes = [0; 8];
    region.read(at, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 8]);
    drop(region);
    forked_child_is_refused(Fs::open(open(), MountOptions::default()).unwrap(), &path);
}

/// A daemon that opens the region and forks before it uses it.
#[test]
fn fork_child_cannot_use_open_region() {
    let _alone = alone();
    let dir = memory();
    let (path, fs) = make(&dir);
    fs.close().unwrap();
    let mut region = Some(RegionOptions::new().open(&path).unwrap());
    let child = fork(|| {
        let region = region.take().unwrap();
        let is_refused = |errno: i32| errno == libc::EIO;
        let check = check(&region, &CheckOptions::default());
        let repair = repair(&region, &RepairOptions::new(Policy::Yes));
        let calls = [
            !check.is_clean() && !check.complete,
            repair.is_err_and(|e| is_refused(e.errno())),
            format(&region, &FormatOptions::default()).is_err_and(|e| is_refused(e.errno())),
            region
                .take_room(0, 4096)
                .is_err_and(|e| is_refused(e.errno())),
            region.take_all_room().is_err_and(|e| is_refused(e.errno())),
            region.lock_shared().is_err_and(|e| is_refused(e.errno())),
            region
                .lock_exclusive()
                .is_err_and(|e| is_refused(e.errno())),
            Fs::open(region, MountOptions::default()).is_err_and(|e| is_refused(e.errno())),
        ];
        calls.iter().all(|right| *right)
    });
    assert_eq!(wait(child), 0);
    let fs = Fs::open(region.take().unwrap(), MountOptions::default()).unwrap();
    assert!(fs.recovery().was_clean);
    fs.close().unwrap();
}

/// As with vm.overcommit_memory=2: no pages are available to replace the region in the
/// child. The child must not keep the region instead.
#[test]
fn fork_without_memory_unmaps_region_in_child() {
    let _alone = alone();
    let dir = memory();
    let (path, fs) = make(&dir);
    fs.close().unwrap();
    // In its own process, since the limit applies to a whole process.
    let limited = fork(|| {
        // Without a timer: a thread that is starting would need memory, too.
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let region = RegionOptions::new().open(&path).unwrap();
        let fs = Fs::open(region, options).unwrap();
        let (file, view) = open_both(&fs);
        let raw = view.as_ptr() as usize;
        let limit = |cur| libc::rlimit {
            rlim_cur: cur,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: the limit value is valid and applies to later mappings; the child
        // allocates no memory.
        let child = unsafe {
            libc::setrlimit(libc::RLIMIT_DATA, &limit(4096));
            let child = libc::fork();
            libc::setrlimit(libc::RLIMIT_DATA, &limit(libc::RLIM_INFINITY));
            child
        };
        if child == 0 {
            // SAFETY: the view lives and has this many bytes; or the page is unmapped,
            // and the access ends the child.
            unsafe {
                (raw as *mut u64).write_volatile(0xbad);
                libc::_exit(0);
            }
        }
        let status = wait(child);
        let untouched = view
            .load::<u64>(0)
            .is_ok_and(|word| word == 0x0707_0707_0707_0707);
        drop((file, view));
        untouched && libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV
    });
    assert_eq!(wait(limited), 0);
}

#[test]
fn fork_child_holds_no_lock_after_parent_exit() {
    let _alone = alone();
    let dir = memory();
    let (path, fs) = make(&dir);
    fs.close().unwrap();
    let (quit, keep) = pipe();
    let (ready, say) = pipe();
    // This parent opens the region, forks a child that lives on, and is killed.
    let parent = fork(|| {
        let fs = reopen(&path).unwrap();
        let _handles = open_both(&fs);
        fork(|| {
            let mut byte = 0u8;
            // SAFETY: one byte is written from, and one read to, live memory.
            unsafe {
                use std::os::fd::AsRawFd;
                libc::close(keep.as_raw_fd());
                libc::write(say.as_raw_fd(), (&raw const byte).cast(), 1);
                libc::read(quit.as_raw_fd(), (&raw mut byte).cast(), 1);
            }
            true
        });
        loop {
            std::thread::park();
        }
    });
    let mut byte = 0u8;
    // SAFETY: one byte is read to live memory; the process killed is ours.
    unsafe {
        use std::os::fd::AsRawFd;
        assert_eq!(libc::read(ready.as_raw_fd(), (&raw mut byte).cast(), 1), 1);
        libc::kill(parent, libc::SIGKILL);
    }
    wait(parent);
    let fs = reopen(&path);
    drop(keep);
    let fs = fs.unwrap();
    assert!(!fs.recovery().was_clean);
    fs.close().unwrap();
}

#[test]
fn fork_child_opens_own_region() {
    let _alone = alone();
    let (one, two) = (memory(), memory());
    let (_, fs) = make(&one);
    let child = fork(|| {
        let (path, mine) = make(&two);
        let (file, view) = open_both(&mine);
        let right = file.append(b"x").is_ok() && view.store::<u64>(0, 3).is_ok();
        drop((file, view));
        right && mine.close().is_ok() && reopen(&path).is_ok_and(|fs| fs.recovery().was_clean)
    });
    assert_eq!(wait(child), 0);
    fs.close().unwrap();
}
