//! Faults of guarded mappings, and the handlers that the guard replaces or that replace it.

use super::*;
use crate::pmem::tests::{disk, shm};
use crate::pmem::{BackendKind, RegionOptions};

/// Truncates the file under its mapping: reads fail, and the faults are counted.
fn cut_under_mapping(dir: &std::path::Path, backend: BackendKind) {
    install_fault_guard().unwrap();
    let path = dir.join(format!("cut-{}-{backend:?}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let region = RegionOptions::new()
        .backend(backend)
        .create(&path, 1 << 20)
        .unwrap();
    let w = region.window();
    let pending = w.store(600_000, b"there").unwrap();
    w.fence(pending);
    assert_eq!(region.faults(), 0);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(8192).unwrap();
    // The faulting access itself reports the error, because it read zeros.
    let mut bytes = [1u8; 5];
    let mut fails = |offset: u64| {
        let at = |e: &PmemError| matches!(e, PmemError::Faulted { offset: o, .. } if *o == offset);
        region.read(offset, &mut bytes).is_err_and(|e| at(&e))
    };
    assert!(fails(600_000));
    assert_eq!(region.faults(), 1);
    assert!(region.is_faulted(600_000, 1));
    assert!(region.is_faulted(598_000, 4096));
    assert!(!region.is_faulted(0, 8192));
    region.load_u64(0).unwrap();
    // The page now reads as zeros and does not fault again; the next page does.
    assert!(fails(600_000));
    assert_eq!(region.faults(), 1);
    assert!(fails(700_000));
    assert_eq!(region.faults(), 2);
    // Each page counts individually, however many fault.
    for page in 100..140u64 {
        assert!(fails(page * 4096));
    }
    assert!(!region.is_faulted(0, 100 * 4096) && region.is_faulted(0, 100 * 4096 + 1));
    assert!(!region.is_faulted(140 * 4096, 4096));
    region.load_u64(0).unwrap();
    drop(w);
    drop(region);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn access_past_truncated_tmpfs_file_fails() {
    for backend in [BackendKind::Native, BackendKind::Auto] {
        cut_under_mapping(shm().path(), backend);
    }
}

#[test]
fn access_past_truncated_ordinary_file_fails() {
    for backend in [BackendKind::Native, BackendKind::Auto] {
        cut_under_mapping(disk().path(), backend);
    }
}

/// A huge page is replaced as a whole, because the kernel does not split such a
/// mapping.
#[test]
fn access_past_truncated_hugetlbfs_file_fails() {
    let Some(pool) = crate::pmem::huge_pool::HugePool::borrow(2) else {
        return;
    };
    install_fault_guard().unwrap();
    let path = pool.dir().join("r");
    let region = RegionOptions::new().create(&path, 4 << 20).unwrap();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(0)
        .unwrap();
    assert!(region.load_u64((2 << 20) + 4096).is_err());
    assert!(region.load_u64(3 << 20).is_err());
    assert_eq!(region.faults(), 1);
    assert!(region.is_faulted(2 << 20, 1) && !region.is_faulted(0, 2 << 20));
}

/// A page without room faults like a bad page.
#[test]
fn store_into_full_file_system_faults() {
    use rustix::mount as m;
    let mount = || -> rustix::io::Result<std::os::fd::OwnedFd> {
        let fs = m::fsopen("tmpfs", m::FsOpenFlags::FSOPEN_CLOEXEC)?;
        m::fsconfig_set_string(&fs, "size", "64k")?;
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
            return crate::pmem::tests::skipped(format_args!("full tmpfs: {e} (run as root)"));
        }
    };
    install_fault_guard().unwrap();
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}/r", mount.as_raw_fd());
    let e = RegionOptions::new()
        .preallocate(true)
        .create(&path, 1 << 20)
        .unwrap_err();
    assert_eq!(e.errno(), libc::ENOSPC);
    let region = RegionOptions::new().create(&path, 1 << 20).unwrap();
    let w = region.window();
    w.fence(w.nt_zero(0, 1 << 20).unwrap());
    assert!(region.faults() > 0);
    assert!(region.is_faulted(1 << 19, 1 << 19));
}

#[test]
fn guard_slots_are_reused() {
    for _ in 0..3 * SLOTS {
        let g = Guard::new(0x1000 as *mut u8, 0, 4096);
        assert!(g.slot.is_some());
    }
}

/// Two guards alternate in one slot: a start is never read with the length of the other
/// guard.
#[test]
fn changing_guard_is_read_consistently() {
    const SHORT: usize = 0x1_0000_0000;
    const LONG: usize = 0x9_0000_0000;
    let found = |addr| {
        let mut slots = TABLE[..HIGH_WATER.load(Ordering::Relaxed)].iter();
        slots.any(|slot| slot.range.get().is_some_and(|range| range.holds(addr)))
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(Guard::new(SHORT as *mut u8, 4096, 4096));
                drop(Guard::new(LONG as *mut u8, 1 << 31, 4096));
            }
        });
        for _ in 0..400_000 {
            assert!(!found(SHORT + (1 << 30)));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

const CHILD: &str = "PRAMFS_TEST_FAULT_ELSEWHERE";

/// A fault outside every region kills the process, as without the guard.
#[test]
fn fault_outside_regions_is_passed_on() {
    use std::os::unix::process::ExitStatusExt;
    if std::env::var_os(CHILD).is_some() {
        install_fault_guard().unwrap();
        let fd = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        // SAFETY: a new mapping at an address that the kernel chooses. No pages are behind
        // it, so the read below faults, as the test intends.
        let p = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::SHARED,
                &fd,
                0,
            )
            .unwrap()
        };
        // SAFETY: as above.
        let _ = unsafe { p.cast::<u8>().read_volatile() };
        std::process::exit(0);
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "pmem::fault::tests::fault_outside_regions_is_passed_on",
        ])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(libc::SIGBUS));
}

static SEEN: AtomicUsize = AtomicUsize::new(0);

/// Returns the blocked ones of three signals, as digits.
fn blocked() -> usize {
    // SAFETY: an all-zero set is valid to fill in, and no mask changes.
    unsafe {
        let mut now: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut now);
        [libc::SIGBUS, libc::SIGUSR1, libc::SIGUSR2]
            .into_iter()
            .fold(0, |all, s| all * 10 + libc::sigismember(&now, s) as usize)
    }
}

/// A handler of another library. If it asked not to have its signal deferred, it raises
/// the signal again and so runs nested.
extern "C" fn of_another(signal: i32) {
    let n = SEEN.fetch_add(1, Ordering::Relaxed);
    println!("run {n}, blocked {:03}", blocked());
    if n == 0 {
        // SAFETY: async-signal-safe.
        unsafe { libc::raise(signal) };
        println!("run {n} goes on");
    }
}

/// Runs a process that has this handler for SIGBUS and receives two of them. Returns
/// its output and exit status.
fn with_handler(flags: i32, masked: &str, guarded: bool) -> (Vec<String>, Option<i32>) {
    use std::os::unix::process::ExitStatusExt;
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("pmem::fault::tests::previous_handler_runs_as_without_guard")
        .env(CHILD, format!("{flags} {masked} {guarded}"))
        .output()
        .unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    let lines = said
        .lines()
        .filter(|l| l.contains("blocked") || l.contains("goes on"));
    (lines.map(str::to_owned).collect(), out.status.signal())
}

fn child_with_handler(asked: &str) {
    let mut asked = asked.split(' ');
    let mut next = || asked.next().unwrap();
    let flags: i32 = next().parse().unwrap();
    // SAFETY: an all-zero sigaction is valid to fill in; the handler takes the
    // arguments that the flags announce, or ignores the rest.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = of_another as *const () as usize;
        action.sa_flags = flags;
        libc::sigemptyset(&mut action.sa_mask);
        for signal in next().split(',') {
            libc::sigaddset(&mut action.sa_mask, signal.parse().unwrap());
        }
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
    if next() == "true" {
        install_fault_guard().unwrap();
    }
    println!("blocked {:03} at first", blocked());
    // SAFETY: raises the signal of the process's own handler.
    unsafe { libc::raise(libc::SIGBUS) };
    println!("blocked {:03} in between", blocked());
    // SAFETY: as above.
    unsafe { libc::raise(libc::SIGBUS) };
    println!("blocked {:03} at last", blocked());
}

#[test]
fn previous_handler_runs_as_without_guard() {
    if let Ok(asked) = std::env::var(CHILD) {
        return child_with_handler(&asked);
    }
    let (usr1, bus) = (
        libc::SIGUSR1.to_string(),
        format!("{},{}", libc::SIGUSR2, libc::SIGBUS),
    );
    let (info, nodefer, once) = (libc::SA_SIGINFO, libc::SA_NODEFER, libc::SA_RESETHAND);
    for flags in [0, info, nodefer, info | nodefer, once, once | nodefer] {
        for masked in [&usr1, &bus] {
            let without = with_handler(flags, masked, false);
            let with = with_handler(flags, masked, true);
            assert_eq!(with, without, "flags {flags:#x}, mask {masked}");
            let dies = (flags & once != 0).then_some(libc::SIGBUS);
            assert_eq!(without.1, dies);
            assert!(without.0.len() >= 2, "{without:?}");
        }
    }
}

/// Like a library that restores the handler it found.
#[test]
fn replaced_handler_is_noticed() {
    if std::env::var_os(CHILD).is_some() {
        install_fault_guard().unwrap();
        let before = is_in_place();
        // SAFETY: a zeroed action is SIG_DFL with an empty mask.
        let replaced = unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGBUS, &default, std::ptr::null_mut())
        };
        let after = is_in_place();
        std::process::exit(i32::from(!(before && replaced == 0 && !after)));
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "pmem::fault::tests::replaced_handler_is_noticed"])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}
