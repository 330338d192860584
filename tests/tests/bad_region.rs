//! Objects that are not regions, and regions that are unavailable: messages of the
//! library and of every program.
//!
//! One table lists bad objects, another the programs that open them. Each message names
//! the object and the cause, the program exits with its failure status, and nothing
//! panics. Lack of memory is tested as well.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pramfs::format::{FormatOptions, format};
use pramfs::pmem::RegionOptions;
use pramfs::{
    MountOptions,
    inode::{Fs, Ino},
};
use pramfs_tests::mounted;
use pramfs_tests::watchdog::Watchdog;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const NOBODY: u32 = 65_534;

/// A process being started briefly holds our descriptors, and with them the locks of
/// regions that another test has open.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn scratch() -> TempDir {
    let shm = Path::new("/dev/shm");
    let base = if shm.is_dir() {
        shm.to_owned()
    } else {
        std::env::temp_dir()
    };
    let dir = tempfile::Builder::new()
        .prefix("pramfs-bad-")
        .tempdir_in(base)
        .unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(dir.path().join("mnt")).unwrap();
    dir
}

fn formatted(path: &Path, len: u64) {
    let region = RegionOptions::new().create(path, len).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
}

fn root_or_skip(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        pramfs_tests::skip::skipped(format_args!("not root: {what}"));
    }
    root
}

/// A program of the workspace.
fn program(name: &str) -> PathBuf {
    let path = mounted::program().with_file_name(name);
    assert!(
        path.is_file(),
        "{name} is not built; type: cargo build --bins"
    );
    path
}

/// Every program that opens a region: name, program, arguments before and after the
/// region (`@` is a mount point, `%` an existing file), and the exit status of a failure.
type Asker = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
    i32,
);

const ASKERS: [Asker; 16] = [
    ("mkfs", "mkfs-pramfs", &["-q"], &[], 1),
    ("mkfs -f", "mkfs-pramfs", &["-q", "-f"], &[], 1),
    ("mkfs --json", "mkfs-pramfs", &["--json", "-f"], &[], 1),
    ("mkfs SIZE", "mkfs-pramfs", &["-q", "-f"], &["1M"], 1),
    ("mount", "mount-pramfs", &[], &["@"], 32),
    ("mount -f", "mount-pramfs", &["-f"], &["@"], 32),
    ("mount -o ro", "mount-pramfs", &["-o", "ro"], &["@"], 32),
    ("info", "pramfs", &["info"], &[], 1),
    ("check", "pramfs", &["check"], &[], 8),
    ("dump", "pramfs", &["dump"], &[], 1),
    ("ls", "pramfs", &["ls"], &["/"], 1),
    ("stat", "pramfs", &["stat"], &["/"], 1),
    ("cat", "pramfs", &["cat"], &["/file"], 1),
    ("extents", "pramfs", &["extents"], &["/file"], 1),
    ("get", "pramfs", &["get"], &["/file", "@"], 1),
    ("put", "pramfs", &["put"], &["%", "/"], 1),
];
/// The doctor rejects these in the same way. It examines the others and gives advice.
const DOCTOR: Asker = ("doctor", "pramfs", &["doctor"], &[], 1);

/// Programs that write, and so fail where others may read.
const WRITERS: [&str; 7] = [
    "mkfs",
    "mkfs -f",
    "mkfs --json",
    "mkfs SIZE",
    "mount",
    "mount -f",
    "put",
];

struct Answer {
    status: Option<i32>,
    said: String,
}

/// Runs a program, as another user if asked.
fn ask(asker: &Asker, bin: &Path, region: &Path, dir: &Path, user: Option<u32>) -> Answer {
    let (_, name, before, after, _) = asker;
    let mut command = Command::new(bin.join(name));
    command.args(*before).arg(region);
    for a in *after {
        match *a {
            "@" => command.arg(dir.join("mnt")),
            "%" => command.arg("/etc/hostname"),
            a => command.arg(a),
        };
    }
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    run(command)
}

fn run(mut command: Command) -> Answer {
    let out = command
        .stdin(Stdio::null())
        .output()
        .expect("it can be started");
    let said = [out.stdout, out.stderr].concat();
    Answer {
        status: out.status.code(),
        said: String::from_utf8_lossy(&said).into_owned(),
    }
}

#[track_caller]
fn check_refusal(who: &str, a: &Answer, status: i32, names: &str, causes: &[&str]) {
    assert_eq!(a.status, Some(status), "{who}: {}", a.said);
    assert!(!a.said.contains("panicked"), "{who}: {}", a.said);
    assert!(a.said.contains(names), "{who}: {names:?} in {}", a.said);
    assert!(
        causes.iter().any(|cause| a.said.contains(cause)),
        "{who}: one of {causes:?} in {}",
        a.said
    );
}

/// A bad object: its name in the directory, the errno of the library, words of which the
/// message contains one, the programs that accept it, and whether the doctor rejects it.
struct Bad {
    name: String,
    errno: i32,
    causes: &'static [&'static str],
    spared: &'static [&'static str],
    doctor: bool,
}

fn bad(name: &str, errno: i32, causes: &'static [&'static str]) -> Bad {
    Bad {
        name: name.into(),
        errno,
        causes,
        spared: &[],
        doctor: false,
    }
}

#[test]
fn every_program_names_unusable_region() {
    let _one = one_at_a_time();
    let dog = Watchdog::new("bad regions", Duration::from_secs(60));
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("directory")).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    symlink("/dev/zero", at("device")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    symlink(at("circle"), at("circle")).unwrap();
    File::create(at("empty")).unwrap();
    fs::write(at("odd"), vec![0; 300_001]).unwrap();
    fs::write(at("small"), vec![0; 16 << 10]).unwrap();
    fs::write(at("file"), "").unwrap();
    let long = "n".repeat(256);
    let below = ["file/region", "missing/region"];

    let all = [
        Bad {
            // The doctor examines the region that could be created in it.
            ..bad("directory", libc::EISDIR, &["directory"])
        },
        Bad {
            doctor: true,
            ..bad("socket", libc::ENODEV, &["socket"])
        },
        Bad {
            doctor: true,
            ..bad("fifo", libc::ENODEV, &["fifo"])
        },
        Bad {
            doctor: true,
            ..bad("device", libc::ENODEV, &["character device"])
        },
        Bad {
            spared: &["mkfs SIZE"],
            ..bad("missing", libc::ENOENT, &["no such file", "does not exist"])
        },
        Bad {
            spared: &["mkfs SIZE"],
            ..bad(
                "dangling",
                libc::ENOENT,
                &["no such file", "leads nowhere", "dangling symbolic link"],
            )
        },
        bad("circle", libc::ELOOP, &["ymbolic link"]),
        Bad {
            spared: &["mkfs SIZE"],
            ..bad("empty", libc::EINVAL, &["no bytes", "empty"])
        },
        Bad {
            spared: &["mkfs SIZE"],
            ..bad("odd", libc::EINVAL, &["multiple of 4096"])
        },
        Bad {
            // The library opens it; its contents are checked later.
            errno: 0,
            spared: &["mkfs SIZE"],
            ..bad("small", 0, &["too few", "smallest"])
        },
        bad(&long, libc::ENAMETOOLONG, &["too long"]),
        Bad {
            doctor: true,
            ..bad(below[0], libc::ENOTDIR, &["ot a directory"])
        },
        Bad {
            doctor: true,
            ..bad(
                below[1],
                libc::ENOENT,
                &["no such file", "does not exist", "no directory"],
            )
        },
    ];
    let bin = mounted::program().parent().unwrap().to_owned();
    for bad in &all {
        let path = at(&bad.name);
        let before = dir_listing(dir.path());
        for read_only in [false, true] {
            let opened = RegionOptions::new().read_only(read_only).open(&path);
            match opened {
                Ok(_) => assert_eq!(bad.errno, 0, "{}", bad.name),
                Err(e) => {
                    assert_eq!(e.errno(), bad.errno, "{e}");
                    let text = e.to_string();
                    assert!(text.contains(&bad.name), "{text}");
                    assert!(bad.causes.iter().any(|c| text.contains(c)), "{text}");
                }
            }
        }
        for asker in ASKERS.iter().filter(|a| !bad.spared.contains(&a.0)) {
            let who = format!("{} of {}", asker.0, bad.name);
            let a = ask(asker, &bin, &path, dir.path(), None);
            // fsck(8): 4 is an error that is left in the file system.
            let status = if (asker.0, &bad.name[..]) == ("check", "small") {
                4
            } else {
                asker.4
            };
            check_refusal(&who, &a, status, &bad.name, bad.causes);
            dog.touch();
        }
        if bad.doctor {
            let a = ask(&DOCTOR, &bin, &path, dir.path(), None);
            // For a missing directory, it names the directory.
            let name = bad.name.split('/').next().unwrap();
            let causes = [bad.causes, &["o such file"]].concat();
            check_refusal("doctor", &a, 1, name, &causes);
        }
        assert_eq!(before, dir_listing(dir.path()), "{}", bad.name);
    }
}

/// Names, sizes and modes, which a failure must not change.
fn dir_listing(dir: &Path) -> Vec<(PathBuf, u64, u32)> {
    let mut list: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| {
            let e = e.unwrap();
            let m = e.metadata().unwrap();
            (e.path(), m.len(), m.permissions().mode())
        })
        .collect();
    list.sort();
    list
}

#[test]
fn every_program_rejects_region_in_use() {
    let _one = one_at_a_time();
    let _dog = Watchdog::new("region in use", Duration::from_secs(60));
    let dir = scratch();
    let path = dir.path().join("used");
    formatted(&path, 4 * MIB);
    let fs = Fs::open(
        RegionOptions::new().open(&path).unwrap(),
        MountOptions::default(),
    )
    .unwrap();
    let me = format!("process {}", std::process::id());
    for read_only in [false, true] {
        let e = RegionOptions::new().read_only(read_only).open(&path);
        let e = e.map(drop).unwrap_err();
        assert_eq!(e.errno(), libc::EBUSY);
        let text = e.to_string();
        assert!(text.contains("used: ") && text.contains("in use"), "{text}");
    }
    let bin = mounted::program().parent().unwrap().to_owned();
    for asker in &ASKERS {
        let a = ask(asker, &bin, &path, dir.path(), None);
        check_refusal(asker.0, &a, asker.4, "used", &["in use"]);
        assert!(
            a.said.contains(&me) || !Path::new("/proc/locks").exists(),
            "{}: {}",
            asker.0,
            a.said
        );
    }
    // The doctor may examine it, and names the holder.
    let a = ask(&DOCTOR, &bin, &path, dir.path(), None);
    assert_eq!(a.status, Some(0), "{}", a.said);
    assert!(a.said.contains("in use"), "{}", a.said);
    fs.create(&Default::default(), Ino::ROOT, b"file", 0o644)
        .unwrap();
    fs.close().unwrap();
    for asker in ASKERS.iter().filter(|a| a.1 == "pramfs") {
        let a = ask(asker, &bin, &path, dir.path(), None);
        assert_eq!(a.status, Some(0), "{}: {}", asker.0, a.said);
    }
}

/// Unmounts on drop, whatever the test did.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        // Usually the test has unmounted already.
        while rustix::mount::unmount(&self.0, UnmountFlags::DETACH).is_ok() {}
    }
}

#[test]
fn region_on_read_only_file_system_is_readable() {
    if !root_or_skip("a read-only mount") {
        return;
    }
    let _one = one_at_a_time();
    let _dog = Watchdog::new("read-only", Duration::from_secs(60));
    let dir = scratch();
    let on = dir.path().join("place");
    fs::create_dir(&on).unwrap();
    rustix::mount::mount("none", &on, "tmpfs", MountFlags::empty(), c"size=16m").unwrap();
    let _end = [Unmount(on.clone()), Unmount(dir.path().join("mnt"))];
    let path = on.join("region");
    formatted(&path, 4 * MIB);
    let fs = Fs::open(
        RegionOptions::new().open(&path).unwrap(),
        MountOptions::default(),
    )
    .unwrap();
    fs.create(&Default::default(), Ino::ROOT, b"file", 0o644)
        .unwrap();
    fs.close().unwrap();
    rustix::mount::mount_remount(&on, MountFlags::RDONLY, c"").unwrap();

    let e = RegionOptions::new().open(&path).map(drop).unwrap_err();
    assert_eq!(e.errno(), libc::EROFS);
    let text = e.to_string();
    assert!(text.contains("region: ") && text.contains("read-only"));
    let region = RegionOptions::new().read_only(true).open(&path).unwrap();
    drop(region);
    let bin = mounted::program().parent().unwrap().to_owned();
    for asker in &ASKERS {
        if asker.1 == "mount-pramfs" && !mounted::available("mount of a read-only region") {
            continue;
        }
        let a = ask(asker, &bin, &path, dir.path(), None);
        if WRITERS.contains(&asker.0) {
            check_refusal(asker.0, &a, asker.4, "region", &["ead-only"]);
        } else {
            assert_eq!(a.status, Some(0), "{}: {}", asker.0, a.said);
        }
        if asker.0 == "mount -o ro" {
            let mnt = dir.path().join("mnt");
            assert!(mnt.join("file").exists());
            let e = fs::write(mnt.join("new"), "").unwrap_err();
            assert_eq!(e.raw_os_error(), Some(libc::EROFS));
            rustix::mount::unmount(&mnt, UnmountFlags::empty()).unwrap();
            assert!(mounted::wait_until(|| {
                RegionOptions::new().read_only(true).open(&path).is_ok()
                    && ask(&ASKERS[7], &bin, &path, dir.path(), None).status == Some(0)
            }));
        }
    }
}

#[test]
fn region_of_other_user_is_rejected_by_name() {
    if !root_or_skip("the view of another user") {
        return;
    }
    let _one = one_at_a_time();
    let dog = Watchdog::new("somebody else", Duration::from_secs(60));
    let dir = scratch();
    let path = dir.path().join("private");
    formatted(&path, 4 * MIB);
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let locked = dir.path().join("locked");
    fs::create_dir(&locked).unwrap();
    formatted(&locked.join("private"), 4 * MIB);
    fs::set_permissions(&locked, Permissions::from_mode(0o700)).unwrap();

    // The ids belong to the thread, which ends here.
    let paths = [path.clone(), locked.join("private")];
    let seen = paths.clone();
    let refusals = std::thread::spawn(move || {
        let nobody = rustix::thread::Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let open = |path: &PathBuf, ro| RegionOptions::new().read_only(ro).open(path).map(drop);
        [false, true].map(|ro| seen.each_ref().map(|path| open(path, ro).unwrap_err()))
    });
    for e in refusals.join().unwrap().iter().flatten() {
        assert_eq!(e.errno(), libc::EACCES, "{e}");
        let text = e.to_string();
        assert!(text.contains("private: ") && text.contains("permission denied"));
    }

    // That user may not be able to reach the programs in place.
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for name in ["mkfs-pramfs", "mount-pramfs", "pramfs"] {
        // Copied by another program: threads that start a process would pass on a
        // descriptor of ours that is open for writing, and a file open for writing cannot
        // be executed.
        let copied = Command::new("cp").arg(program(name)).arg(&bin).status();
        assert!(copied.unwrap().success(), "{name}");
    }
    std::os::unix::fs::chown(dir.path().join("mnt"), Some(NOBODY), Some(NOBODY)).unwrap();
    for path in &paths {
        for asker in &ASKERS {
            let a = ask(asker, &bin, path, dir.path(), Some(NOBODY));
            check_refusal(asker.0, &a, asker.4, "private", &["ermission denied"]);
            dog.touch();
        }
    }
    let a = ask(&DOCTOR, &bin, &paths[1], dir.path(), Some(NOBODY));
    check_refusal("doctor", &a, 1, "private", &["ermission denied"]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 4 * MIB);
}

const LIMITED: &str = "PRAMFS_TEST_LIMITED_REGION";

/// Lack of address space for a large region: the library reports it, and continues to
/// work with a region that fits.
#[test]
fn region_beyond_address_space_fails_in_library() {
    if let Some(dir) = std::env::var_os(LIMITED) {
        return open_with_little_memory(Path::new(&dir));
    }
    let _one = one_at_a_time();
    let dir = scratch();
    formatted(&dir.path().join("large"), 4 << 30);
    formatted(&dir.path().join("small"), 4 * MIB);
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([
        "--exact",
        "region_beyond_address_space_fails_in_library",
        "--nocapture",
    ]);
    child.env(LIMITED, dir.path());
    let a = run(child);
    assert_eq!(a.status, Some(0), "{}", a.said);
    assert!(a.said.contains("as it should be"), "{}", a.said);
}

fn open_with_little_memory(dir: &Path) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit {
        current: Some(1 << 30),
        maximum: None,
    };
    setrlimit(Resource::As, limit).unwrap();
    for read_only in [false, true] {
        let options = RegionOptions::new().read_only(read_only);
        let e = options.open(dir.join("large")).map(drop).unwrap_err();
        assert_eq!(e.errno(), libc::ENOMEM, "{e}");
        let text = e.to_string();
        assert!(
            text.contains("large: 4294967296 bytes") && text.contains("ulimit -v"),
            "{text}"
        );
    }
    let e = RegionOptions::new().memfd("too much", 4 << 30).map(drop);
    assert_eq!(e.unwrap_err().errno(), libc::ENOMEM);
    // A region that fits is served, and a view that does not fit fails.
    let region = RegionOptions::new().open(dir.join("small")).unwrap();
    let fs = Fs::open(region, MountOptions::default()).unwrap();
    let file = pramfs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(&fs, "/file")
        .unwrap();
    file.set_len(8 << 30).unwrap();
    let e = file.map(0..8 << 30, pramfs::Access::Read);
    assert_eq!(e.map(drop).unwrap_err().errno(), libc::ENOMEM);
    file.append(b"and goes on").unwrap();
    drop(file);
    fs.close().unwrap();
    println!("as it should be");
}

/// Programs with little address space report a reason, and leave either a working mount
/// or none.
#[test]
fn programs_with_little_address_space_report_it() {
    let _one = one_at_a_time();
    let dog = Watchdog::new("little memory", Duration::from_secs(60));
    let dir = scratch();
    let (large, small) = (dir.path().join("large"), dir.path().join("small"));
    formatted(&large, 4 << 30);
    formatted(&small, 4 * MIB);
    let limited = |asker: &Asker, region: &Path, kib: u64| {
        let (_, name, before, after, _) = asker;
        let mut command = Command::new("sh");
        let script = format!("ulimit -v {kib}; exec \"$@\"");
        command.args(["-c", &script, "sh"]).arg(program(name));
        command.args(*before).arg(region);
        command.args(after.iter().map(|a| match *a {
            "@" => dir.path().join("mnt").into_os_string(),
            "%" => "/etc/hostname".into(),
            a => OsStr::new(a).to_owned(),
        }));
        run(command)
    };
    for asker in ASKERS
        .iter()
        .filter(|a| a.0 != "mkfs" && a.0 != "mkfs SIZE")
    {
        let a = limited(asker, &large, 1 << 20);
        check_refusal(asker.0, &a, asker.4, "large", &["address space"]);
        dog.touch();
    }
    if !mounted::available("mounts with little memory") {
        return;
    }
    // From far too little to enough: each run ends with a working mount, or with a reason
    // and no mount.
    let mount = ASKERS.iter().find(|a| a.0 == "mount").unwrap();
    let mnt = dir.path().join("mnt");
    let _end = Unmount(mnt.clone());
    let (mut live, mut refused) = (0, 0);
    let limits = (20_000..40_000).step_by(2500);
    for kib in limits.chain([70_000, 100_000, 130_000, 200_000, 1_000_000, 4_000_000]) {
        let a = limited(mount, &small, kib);
        let what = format!("{kib} KiB: {}", a.said);
        assert!(!a.said.contains("panicked"), "{what}");
        if a.status == Some(0) {
            fs::write(mnt.join("file"), vec![7; 100_000]).expect(&what);
            assert_eq!(fs::read(mnt.join("file")).unwrap().len(), 100_000);
            rustix::mount::unmount(&mnt, UnmountFlags::empty()).unwrap();
            assert!(mounted::wait_until(|| RegionOptions::new()
                .open(&small)
                .is_ok()));
            live += 1;
        } else {
            refused += 1;
            assert!(a.said.contains("small"), "{what}");
            let causes = ["address", "memory", "thread"];
            assert!(causes.iter().any(|c| a.said.contains(c)), "{what}");
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(mnt.to_str().unwrap()), "{what}: a corpse");
        dog.touch();
    }
    println!("{live} mounts lived, {refused} were refused");
    assert!(live > 0 && refused > 0);
}
