//! The transports: each serves the same files, and io_uring gives way to `/dev/fuse` wherever it
//! cannot be used. `PRAMFS_TEST_OPTIONS=transport=...` runs all other tests with one of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pramfs_fuse::privileges::{KEPT, KEPT_TO_YIELD};
use pramfs_tests::mounted::{Mounted, wait_until};
use pramfs_tests::skip::skipped;
use rustix::fs::{AtFlags, StatxFlags, XattrFlags};
use rustix::thread::CpuSet;

use crate::{mounted, unmounted};

const ALL: [&str; 3] = ["transport=fuser", "transport=dev", "transport=uring"];

/// The kernel's switch of FUSE over io_uring, for new mounts.
const FUSE_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// 2: no process may use io_uring.
const URING_SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";

/// One test at a time sets a switch.
static SWITCHES: Mutex<()> = Mutex::new(());

/// A switch of the kernel that is set, and set back at the end.
struct Switch {
    path: &'static str,
    before: String,
}

impl Switch {
    /// Returns `None` if it cannot be set.
    fn set(path: &'static str, value: &str) -> Option<Switch> {
        let before = fs::read_to_string(path).ok()?;
        fs::write(path, value).ok()?;
        let before = before.trim().to_owned();
        Some(Switch { path, before })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Err(error) = fs::write(self.path, &self.before) {
            eprintln!("{} stays as the test has set it: {error}", self.path);
        }
    }
}

/// FUSE over io_uring, switched on.
pub(super) struct Uring {
    _on: Switch,
    _alone: MutexGuard<'static, ()>,
}

impl Uring {
    pub(super) fn on() -> Option<Uring> {
        let alone = SWITCHES.lock().unwrap_or_else(PoisonError::into_inner);
        match Switch::set(FUSE_SWITCH, "Y") {
            Some(on) => Some(Uring {
                _on: on,
                _alone: alone,
            }),
            None => {
                skipped("this kernel has no FUSE over io_uring, or it cannot be switched on");
                None
            }
        }
    }
}

/// Returns the names of the server's threads.
fn threads(mount: &Mounted) -> Vec<String> {
    let tasks = format!("/proc/{}/task", mount.process().as_raw_nonzero());
    let name = |task: PathBuf| fs::read_to_string(task.join("comm")).unwrap_or_default();
    let tasks = fs::read_dir(tasks).unwrap();
    tasks
        .map(|task| name(task.unwrap().path()).trim().to_owned())
        .collect()
}

fn uses_uring(mount: &Mounted) -> bool {
    // Those that serve the queues of processors, and the one for the rest.
    let serving = threads(mount);
    let count = serving.iter().filter(|name| *name == "fuse-0").count();
    count > 1 || serving.iter().any(|name| name == "fuse-others")
}

/// Bytes that differ from place to place.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7 + n / 4096) as u8).collect()
}

/// Uses all kinds of requests, and returns what is to be seen afterwards.
fn use_all(at: &Path) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    let large = bytes(3 << 20);
    fs::write(at.join("large"), &large).unwrap();
    assert!(fs::read(at.join("large")).unwrap() == large);
    let file = File::options()
        .read(true)
        .write(true)
        .open(at.join("large"))
        .unwrap();
    file.write_all_at(b"within", 4095).unwrap();
    file.set_len(2 << 20).unwrap();
    file.sync_all().unwrap();
    let mut found = [0; 6];
    file.read_exact_at(&mut found, 4095).unwrap();
    assert_eq!(&found, b"within");
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 1 << 20, 1 << 19).unwrap();
    let to_hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
    assert_eq!(to_hole, 1 << 20);
    let copy = File::create(at.join("copy")).unwrap();
    let (mut from, mut to) = (0, 0);
    let copied = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 1 << 20);
    assert_eq!(copied.unwrap(), 1 << 20);
    fs::create_dir(at.join("dir")).unwrap();
    for n in 0..400 {
        let name = format!("dir/{n}-{}", "n".repeat(n % 200));
        fs::write(at.join(name), [n as u8]).unwrap();
    }
    let listed = fs::read_dir(at.join("dir")).unwrap().map(Result::unwrap);
    let listed: Vec<u64> = listed.map(|e| e.metadata().unwrap().len()).collect();
    assert_eq!((listed.len(), listed.iter().sum()), (400, 400));
    std::os::unix::fs::symlink("target", at.join("link")).unwrap();
    fs::hard_link(at.join("copy"), at.join("hard")).unwrap();
    fs::rename(at.join("hard"), at.join("dir/renamed")).unwrap();
    fs::remove_file(at.join("dir/0-")).unwrap();
    let value = bytes(2000);
    rustix::fs::setxattr(at.join("copy"), "user.a", &value, XattrFlags::empty()).unwrap();
    let mut room = vec![0; 4096];
    let n = rustix::fs::getxattr(at.join("copy"), "user.a", &mut room).unwrap();
    assert!(room[..n] == value);
    let n = rustix::fs::listxattr(at.join("copy"), &mut room).unwrap();
    assert_eq!(&room[..n], b"user.a\0");
    let before_1970 = std::time::UNIX_EPOCH - std::time::Duration::new(1, 200_000_000);
    file.set_modified(before_1970).unwrap();
    assert_eq!(file.metadata().unwrap().modified().unwrap(), before_1970);
    for name in ["large", "copy", "link", "dir", "dir/renamed", "missing"] {
        let what = match fs::symlink_metadata(at.join(name)) {
            Ok(of) => format!("{:?} {} {:?}", of.file_type(), of.len(), of.permissions()),
            Err(error) => error.to_string(),
        };
        seen.insert(name.to_owned(), what);
    }
    seen
}

#[test]
fn each_transport_serves_the_same() {
    let _on = Uring::on();
    let mut seen = Vec::new();
    for options in ALL {
        let Some((mount, _dog)) = mounted("each transport", options) else {
            return;
        };
        seen.push(use_all(&mount.path()));
        mount.unmount();
        // What one has written, another one reads.
        mount.mount("transport=dev");
        let large = fs::read(mount.at("large")).unwrap();
        assert_eq!((large.len(), &large[4095..4101]), (2 << 20, &b"within"[..]));
        mount.unmount();
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}

#[test]
fn polling_server_serves_the_same_and_sleeps_at_rest() {
    let mut seen = Vec::new();
    for options in ["transport=dev", "transport=dev,busy-poll=100"] {
        let Some((mount, _dog)) = mounted("busy-poll", options) else {
            return;
        };
        seen.push(use_all(&mount.path()));
        let tasks = format!("/proc/{}/task", mount.process().as_raw_nonzero());
        let sleeps = |task: fs::DirEntry| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let state = stat
                .rsplit_once(") ")
                .map(|(_, rest)| rest.starts_with('S'));
            state.unwrap_or(true)
        };
        let all_sleep = || fs::read_dir(&tasks).unwrap().flatten().all(sleeps);
        assert!(wait_until(all_sleep), "{options}");
        mount.unmount();
    }
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn own_transports_show_the_time_of_birth() {
    let _on = Uring::on();
    for (options, has_birth) in ALL.into_iter().zip([false, true, true]) {
        let Some((mount, _dog)) = mounted("time of birth", options) else {
            return;
        };
        fs::write(mount.at("file"), "x").unwrap();
        let (flags, asked) = (
            AtFlags::empty(),
            StatxFlags::BASIC_STATS | StatxFlags::BTIME,
        );
        let of = rustix::fs::statx(rustix::fs::CWD, mount.at("file"), flags, asked).unwrap();
        let shown = of.stx_mask & StatxFlags::BTIME.bits() != 0;
        assert_eq!(shown, has_birth, "{options}");
        assert!(
            !shown || of.stx_btime.tv_sec == of.stx_mtime.tv_sec,
            "{options}"
        );
        assert_eq!((of.stx_size, of.stx_nlink), (1, 1));
    }
}

#[test]
fn uring_serves_each_processor_by_threads_that_may_yield() {
    let Some(_on) = Uring::on() else { return };
    let Some((mount, _dog)) = mounted("uring", "transport=uring") else {
        return;
    };
    assert!(uses_uring(&mount), "{:?}", threads(&mount));
    let status = |pid: &str| fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let set = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    };
    let kept = KEPT.iter().fold(0, |all, kept| all | kept.set.bits());
    let had = set(&status("self"), "CapPrm:");
    let pid = mount.process().as_raw_nonzero().to_string();
    let of_server = status(&pid);
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let nice = limits.lines().find(|line| line.starts_with("Max nice"));
    let nice = nice.unwrap().split_whitespace().nth(3).unwrap().to_owned();
    // By the limit if it could be raised, or by the capability.
    let to_yield = match nice.parse::<u64>() {
        Ok(nice) if nice < 20 => KEPT_TO_YIELD.set.bits(),
        _ => 0,
    };
    assert_eq!(
        set(&of_server, "CapEff:"),
        had & (kept | to_yield),
        "nice {nice}"
    );
    assert!(of_server.contains("Seccomp:\t2"), "{of_server}");
}

/// Each processor asks, whatever the server may use.
fn ask_from_all_processors(mount: &Mounted) {
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    for processor in (0..CpuSet::MAX_CPU).filter(|n| all.is_set(*n)) {
        let path = mount.at(format!("from-{processor}"));
        let asked = std::thread::spawn(move || {
            let mut only = CpuSet::new();
            only.set(processor);
            rustix::thread::sched_setaffinity(None, &only).unwrap();
            fs::write(&path, bytes(1 << 20)).unwrap();
            fs::read(&path).unwrap()
        });
        assert!(asked.join().unwrap() == bytes(1 << 20));
    }
}

#[test]
fn uring_server_on_one_processor_serves_all() {
    let Some(_on) = Uring::on() else { return };
    let Some((mount, _dog)) = unmounted("one processor") else {
        return;
    };
    let mounts = mount.command();
    let out = Command::new("taskset")
        .args(["-c", "0"])
        .arg(mounts.get_program())
        .args(mounts.get_args())
        .args(["-o", "transport=uring"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    let several = std::thread::available_parallelism().unwrap().get() > 1;
    let others = threads(&mount).contains(&"fuse-others".to_owned());
    assert_eq!(others, several);
    ask_from_all_processors(&mount);
}

#[test]
fn uring_that_is_switched_off_gives_way_to_dev() {
    if !pramfs_tests::mounted::available("uring switched off") {
        return;
    }
    let cases = [
        (
            FUSE_SWITCH,
            "N",
            "echo Y > /sys/module/fuse/parameters/enable_uring",
        ),
        (URING_SWITCH, "2", "Operation not permitted"),
    ];
    for (switch, value, says) in cases {
        // Set back last: the other switch is dropped before it.
        let _on = Uring::on();
        let Some(_set) = Switch::set(switch, value) else {
            skipped("a switch of the kernel cannot be set");
            continue;
        };
        let Some((mount, _dog)) = unmounted("uring switched off") else {
            return;
        };
        let out = mount.run(["-o", "transport=uring"]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
        assert!(
            said.contains("WARNING: no io_uring") && said.contains(says),
            "{said}"
        );
        assert!(!uses_uring(&mount));
        ask_from_all_processors(&mount);
        mount.unmount();
    }
}

#[test]
fn idle_uring_server_gives_memory_back() {
    let Some(_on) = Uring::on() else { return };
    let Some((mount, _dog)) = mounted("idle", "transport=uring,cache=none") else {
        return;
    };
    ask_from_all_processors(&mount);
    let memory = || {
        let path = format!("/proc/{}/status", mount.process().as_raw_nonzero());
        let status = fs::read_to_string(path).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        line.unwrap()
            .trim()
            .split(' ')
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let busy = memory();
    assert!(busy > 1024, "{busy} KiB");
    assert!(
        wait_until(|| memory() < busy - 512),
        "{busy}, {} KiB",
        memory()
    );
}

#[test]
fn killed_uring_server_leaves_nothing_behind() {
    let Some(_on) = Uring::on() else { return };
    let Some((mount, _dog)) = mounted("killed", "transport=uring") else {
        return;
    };
    fs::write(mount.at("file"), "kept").unwrap();
    mount.crash();
    mount.mount("transport=uring");
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"kept");
    mount.unmount();
}
