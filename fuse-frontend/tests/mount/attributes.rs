//! Attributes: owners, modes, times, extended attributes, statfs.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use pramfs_tests::mounted::kernel_opens;
use rustix::fs::{
    AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags, utimensat,
};
use rustix::io::Errno;

use crate::mounted;

/// Runs a shell command as an unprivileged user.
fn as_nobody(command: &str) -> ExitStatus {
    Command::new("sh")
        .args(["-c", command])
        .uid(65_534)
        .gid(65_534)
        .status()
        .unwrap()
}

#[test]
fn create_applies_mode_and_umask() {
    let Some((mount, _dog)) = mounted("umask", "") else {
        return;
    };
    let mode = |name: &str| fs::metadata(mount.at(name)).unwrap().mode() & 0o7777;
    // The umask of a process cannot be set for one thread alone.
    let script = format!(
        "umask 027 && cd {} && touch file && mkdir dir && mkfifo fifo && mkdir -m 777 wide",
        mount.path().display()
    );
    assert!(
        Command::new("sh")
            .args(["-c", &script])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(
        (mode("file"), mode("dir"), mode("fifo"), mode("wide")),
        (0o640, 0o750, 0o640, 0o777)
    );
    fs::set_permissions(mount.at("file"), Permissions::from_mode(0o6755)).unwrap();
    assert_eq!(mode("file"), 0o6755);
}

#[test]
fn setgid_directory_passes_group_to_children() {
    let Some((mount, _dog)) = mounted("setgid", "") else {
        return;
    };
    fs::create_dir(mount.at("shared")).unwrap();
    chown(mount.at("shared"), None, Some(1234)).unwrap();
    fs::set_permissions(mount.at("shared"), Permissions::from_mode(0o2777)).unwrap();
    fs::create_dir(mount.at("shared/dir")).unwrap();
    fs::write(mount.at("shared/file"), "").unwrap();
    fs::write(mount.at("shared/dir/file"), "").unwrap();
    let meta = |name: &str| fs::metadata(mount.at(name)).unwrap();
    for name in ["shared/dir", "shared/file", "shared/dir/file"] {
        assert_eq!(meta(name).gid(), 1234, "{name}");
    }
    assert_eq!(meta("shared/dir").mode() & 0o2000, 0o2000);
    assert_eq!(meta("shared/file").mode() & 0o2000, 0);
    // A user outside the group cannot make a set-group-ID program.
    let script = format!(
        "cd {} && touch mine && chmod 2775 mine",
        mount.at("shared").display()
    );
    assert!(as_nobody(&script).success());
    assert_eq!(meta("shared/mine").uid(), 65_534);
    assert_eq!(meta("shared/mine").mode() & 0o2000, 0);
}

#[test]
fn permission_checks_apply_to_other_users() {
    let Some((mount, _dog)) = mounted("permissions", "") else {
        return;
    };
    fs::write(mount.at("secret"), "x").unwrap();
    fs::set_permissions(mount.at("secret"), Permissions::from_mode(0o600)).unwrap();
    let at = mount.path();
    assert!(!as_nobody(&format!("cat {}/secret 2>/dev/null", at.display())).success());
    assert!(!as_nobody(&format!("touch {}/new 2>/dev/null", at.display())).success());
    assert!(as_nobody(&format!("ls {} >/dev/null", at.display())).success());
    chown(mount.at("secret"), Some(65_534), Some(65_534)).unwrap();
    assert!(as_nobody(&format!("cat {}/secret >/dev/null", at.display())).success());
}

#[test]
fn write_by_unprivileged_caller_clears_suid() {
    let Some((mount, _dog)) = mounted("suid", "") else {
        return;
    };
    let path = mount.at("program");
    for direct in [false, true] {
        fs::write(&path, vec![b'x'; 4096]).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        let flag = if direct { "oflag=direct" } else { "" };
        let script = format!(
            "dd if=/dev/zero of={} bs=4096 count=1 conv=notrunc {flag} 2>/dev/null",
            path.display()
        );
        assert!(as_nobody(&script).success());
        let mode = fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o777, "direct: {direct}");
    }
    // A write by root and a read by others keep the bits.
    fs::set_permissions(&path, Permissions::from_mode(0o4777)).unwrap();
    assert!(as_nobody(&format!("cat {} >/dev/null", path.display())).success());
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o4777);
    chown(&path, Some(1), None).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().mode() & 0o7777,
        0o777,
        "chown takes it, too"
    );
}

#[test]
fn utimens_keeps_nanoseconds() {
    let Some((mount, _dog)) = mounted("times", "") else {
        return;
    };
    let path = mount.at("file");
    fs::write(&path, "").unwrap();
    let set = |sec: i64, nsec: i64| {
        let time = Timespec {
            tv_sec: sec,
            tv_nsec: nsec,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    };
    let times = [
        (0, 0),
        (1, 999_999_999),
        (-1, 1),
        (-2, 800_000_000),
        (1 << 40, 7),
        (-(1 << 40), 5),
        (i64::MIN, 0),
    ];
    for (sec, nsec) in times {
        set(sec, nsec);
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (sec, nsec));
        assert_eq!((meta.atime(), meta.atime_nsec()), (sec, nsec));
    }
    set(-2, 800_000_000);
    mount.unmount();
    mount.mount("");
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (-2, 800_000_000));

    let now = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        },
    };
    utimensat(CWD, &path, &now, AtFlags::empty()).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert!(meta.modified().unwrap().elapsed().unwrap_or_default() < Duration::from_secs(60));
    assert_eq!((meta.atime(), meta.atime_nsec()), (-2, 800_000_000));
}

#[test]
fn operations_update_mtime_and_ctime() {
    let Some((mount, _dog)) = mounted("time updates", "") else {
        return;
    };
    let pause = || std::thread::sleep(Duration::from_millis(20));
    let (dir, path) = (mount.at("dir"), mount.at("dir/file"));
    let mtime = |path: &std::path::Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.mtime(), meta.mtime_nsec())
    };
    let ctime = |path: &std::path::Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.ctime(), meta.ctime_nsec())
    };
    fs::create_dir(&dir).unwrap();
    fs::write(&path, "1").unwrap();
    let (dir_before, file_before) = (mtime(&dir), mtime(&path));
    pause();
    let mut file = File::options().append(true).open(&path).unwrap();
    file.write_all(b"2").unwrap();
    assert!(mtime(&path) > file_before, "a write");
    assert_eq!(mtime(&dir), dir_before);
    let (m, c) = (mtime(&path), ctime(&path));
    pause();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(ctime(&path) > c && mtime(&path) == m, "chmod");
    let c = ctime(&path);
    pause();
    fs::hard_link(&path, mount.at("link")).unwrap();
    assert!(ctime(&path) > c, "link");
    assert_eq!(mtime(&dir), dir_before);
    let c = ctime(&path);
    pause();
    fs::remove_file(mount.at("link")).unwrap();
    assert!(ctime(&path) > c, "unlink");
    pause();
    fs::remove_file(&path).unwrap();
    assert!(mtime(&dir) > dir_before, "an entry removed");
}

#[test]
fn xattr_calls_agree_after_set_and_remove() {
    let Some((mount, _dog)) = mounted("xattrs", "") else {
        return;
    };
    let path = mount.at("file");
    fs::write(&path, "").unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    let get = |name: &str, room: usize| {
        let mut value = vec![0; room];
        rustix::fs::getxattr(&path, name, &mut value[..]).map(|n| (n, value))
    };
    assert_eq!(get("user.none", 10).unwrap_err(), Errno::NODATA);
    assert_eq!(set("user.a", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("user.a", b"value", XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.a", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(rustix::fs::getxattr_query(&path, "user.a"), Ok(5));
    assert_eq!(get("user.a", 4).unwrap_err(), Errno::RANGE);
    assert_eq!(&get("user.a", 100).unwrap().1[..5], b"value");
    set("user.a", b"other", XattrFlags::REPLACE).unwrap();
    set("trusted.b", b"", XattrFlags::empty()).unwrap();
    let large = vec![7; 60_000];
    set("user.large", &large, XattrFlags::empty()).unwrap();
    assert!(get("user.large", 65_536).unwrap().1.starts_with(&large));

    mount.unmount();
    mount.mount("");
    let mut names = vec![0; 1000];
    let room = rustix::fs::listxattr_query(&path).unwrap();
    assert_eq!(
        rustix::fs::listxattr(&path, &mut names[..room - 1]),
        Err(Errno::RANGE)
    );
    let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
    assert_eq!(len, room);
    let mut names: Vec<&[u8]> = names[..len]
        .split(|b| *b == 0)
        .filter(|n| !n.is_empty())
        .collect();
    names.sort();
    assert_eq!(names, [&b"trusted.b"[..], b"user.a", b"user.large"]);
    assert_eq!(get("trusted.b", 10).unwrap().0, 0);
    rustix::fs::removexattr(&path, "user.large").unwrap();
    assert_eq!(
        rustix::fs::removexattr(&path, "user.large"),
        Err(Errno::NODATA)
    );
    assert_eq!(
        set("unheard.of", b"", XattrFlags::empty()),
        Err(Errno::OPNOTSUPP)
    );
}

#[test]
fn statfs_counts_used_space() {
    let Some((mount, _dog)) = mounted("statfs", "") else {
        return;
    };
    let stat = || rustix::fs::statvfs(mount.path()).unwrap();
    let before = stat();
    assert_eq!(before.f_namemax, 255);
    assert_eq!(before.f_frsize, 4096);
    assert!(before.f_bavail <= before.f_bfree && before.f_bfree < before.f_blocks);
    fs::write(mount.at("file"), vec![1; 1 << 20]).unwrap();
    assert!(fs::metadata(mount.at("file")).unwrap().blocks() >= 2048);
    assert!(before.f_bfree - stat().f_bfree >= 256);
    assert_eq!(before.f_ffree - stat().f_ffree, 1);
}

#[test]
fn reads_set_atime_by_policy() {
    for (options, moves) in [
        ("noatime", false),
        ("strictatime", true),
        ("relatime", true),
    ] {
        let Some((mount, _dog)) = mounted("atime", options) else {
            return;
        };
        let path = mount.at("file");
        fs::write(&path, "x").unwrap();
        let before = fs::metadata(&path).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        // Direct I/O, because reads from the page cache do not set the atime.
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
            .unwrap();
        let mut bytes = [0; 1];
        rustix::io::pread(&file, &mut bytes, 0).unwrap();
        let after = fs::metadata(&path).unwrap();
        let moved = (after.atime(), after.atime_nsec()) > (before.atime(), before.atime_nsec());
        assert_eq!(moved, moves, "{options}");
    }
}

/// The page cache has all of the file. If an atime update is due, open for reading makes
/// the next read reach the server; unless the kernel opens files.
#[test]
fn cached_reads_set_due_atime() {
    for (options, moves) in [
        ("noatime", [false; 3]),
        ("strictatime", [true; 3]),
        ("relatime", [true, false, false]),
    ] {
        let Some((mount, _dog)) = mounted("cached atime", options) else {
            return;
        };
        let path = mount.at("file");
        fs::write(&path, [1; 4096]).unwrap();
        for (turn, moves) in moves.into_iter().enumerate() {
            let moves = moves && !kernel_opens();
            let before = fs::metadata(&path).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(fs::read(&path).unwrap(), [1; 4096]);
            let after = fs::metadata(&path).unwrap();
            let moved = (after.atime(), after.atime_nsec()) > (before.atime(), before.atime_nsec());
            assert_eq!(moved, moves, "{options}, read {turn}");
        }
    }
}

/// One file can use all available space, including its pointer blocks.
#[test]
fn statfs_available_space_can_be_allocated() {
    let Some((mount, _dog)) = mounted("statfs and fallocate", "") else {
        return;
    };
    let available = rustix::fs::statvfs(mount.path()).unwrap();
    let len = available.f_bavail * available.f_frsize;
    let file = File::create(mount.at("all")).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
    let left = rustix::fs::statvfs(mount.path()).unwrap();
    assert!(
        left.f_bavail < available.f_bavail / 100,
        "{} blocks",
        left.f_bavail
    );
}
