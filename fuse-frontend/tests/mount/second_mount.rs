//! A region mounted on several directories at a time.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use pramfs_tests::mounted::{Mounted, kernel_opens, unmount_when_free, wait_until};
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{mounted, namespaces, unmounted};

fn mount_also(mount: &Mounted, place: &Path, options: &str) -> Output {
    Command::new(crate::program())
        .arg(mount.region())
        .arg(place)
        .args(["-o", options])
        .output()
        .unwrap()
}

/// A second directory, unmounted on drop.
struct Second(TempDir);

impl Second {
    fn new() -> Second {
        Second(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn options(&self) -> Option<String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let place = self.path().to_str().unwrap().to_owned();
        let line = mounts
            .lines()
            .find(|line| line.split(' ').nth(1) == Some(&place))?;
        line.split(' ').nth(3).map(str::to_owned)
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        while rustix::mount::unmount(self.path(), UnmountFlags::DETACH).is_ok() {}
    }
}

/// As at boot: the first process mounts it, the others find it mounted.
#[test]
fn concurrent_mounts_of_one_region_all_succeed() {
    let Some((mount, _dog)) = unmounted("at the same time") else {
        return;
    };
    for _ in 0..5 {
        let places: Vec<Second> = (0..6).map(|_| Second::new()).collect();
        let outs: Vec<Output> = std::thread::scope(|scope| {
            let mounts = places
                .iter()
                .map(|place| scope.spawn(|| mount_also(&mount, place.path(), "rw")));
            let mounts: Vec<_> = mounts.collect();
            mounts.into_iter().map(|m| m.join().unwrap()).collect()
        });
        for out in outs {
            assert!(out.status.success(), "{out:?}");
        }
        mount.process();
        fs::write(places[0].path().join("file"), "seen by all").unwrap();
        for place in &places {
            assert_eq!(fs::read(place.path().join("file")).unwrap(), b"seen by all");
        }
        drop(places);
        mount.wait_for_end();
    }
}

#[test]
fn second_mount_shows_same_file_system() {
    let Some((mount, _dog)) = mounted("second place", "") else {
        return;
    };
    let second = Second::new();
    let out = mount_also(&mount, second.path(), "nosuid,nodev");
    assert!(out.status.success(), "{out:?}");
    assert!(out.stdout.is_empty() && out.stderr.is_empty(), "{out:?}");
    fs::write(mount.at("file"), "seen").unwrap();
    assert_eq!(fs::read(second.path().join("file")).unwrap(), b"seen");
    let (one, two) = (fs::metadata(mount.path()), fs::metadata(second.path()));
    assert_eq!(one.unwrap().dev(), two.unwrap().dev());
    mount.process();

    let options = second.options().unwrap();
    assert!(options.starts_with("rw,nosuid,nodev"), "{options}");
    assert!(!mount.mounts_line().unwrap().contains("nosuid"));

    let out = mount_also(&mount, second.path(), "rw");
    assert_eq!(
        out.status.code(),
        Some(32),
        "already mounted there: {out:?}"
    );

    // After an unmount of one, the other stays.
    unmount_when_free(&mount.path());
    assert_eq!(fs::read(second.path().join("file")).unwrap(), b"seen");
    unmount_when_free(second.path());
    mount.wait_for_end();
}

#[test]
fn second_mount_inherits_atime_policy() {
    let Some((mount, _dog)) = mounted("access times of two", "strictatime,nodiratime") else {
        return;
    };
    let second = Second::new();
    let out = mount_also(&mount, second.path(), "nosuid,noatime,diratime");
    assert!(out.status.success(), "{out:?}");
    let options = second.options().unwrap();
    assert!(
        options.starts_with("rw,nosuid,nodiratime,user"),
        "{options}"
    );
    fs::write(mount.at("file"), "x").unwrap();
    let atime = || {
        let file = fs::metadata(mount.at("file")).unwrap();
        (file.atime(), file.atime_nsec())
    };
    for first in [true, false, false] {
        let before = atime();
        std::thread::sleep(Duration::from_millis(30));
        fs::read(second.path().join("file")).unwrap();
        // Without an open, the server sees the first read alone: the page cache serves the others.
        assert_eq!(atime() != before, first || !kernel_opens());
    }
}

#[test]
fn second_mount_ro_of_rw_mount_fails() {
    let Some((mount, _dog)) = mounted("second, read-only", "") else {
        return;
    };
    let second = Second::new();
    let out = mount_also(&mount, second.path(), "ro");
    assert_eq!(out.status.code(), Some(32));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("read-write"), "{said}");
    assert!(second.options().is_none());
}

/// `sync` and `dirsync` belong to the superblock.
#[test]
fn second_mount_sync_without_first_sync_fails() {
    let Some((mount, _dog)) = mounted("second mount, sync", "dirsync") else {
        return;
    };
    let second = Second::new();
    for options in ["sync", "sync,dirsync"] {
        let out = mount_also(&mount, second.path(), options);
        assert_eq!(out.status.code(), Some(32), "{options}: {out:?}");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(
            said.contains("without sync") && said.contains("remount,sync"),
            "{said}"
        );
        assert!(second.options().is_none());
    }
    let out = mount_also(&mount, second.path(), "dirsync");
    assert!(out.status.success(), "{out:?}");
    assert!(second.options().unwrap().contains("dirsync"));
    // The remount suggested by the message works.
    let out = mount.run(["-o", "remount,sync"]);
    assert!(out.status.success(), "{out:?}");
    let third = Second::new();
    let out = mount_also(&mount, third.path(), "sync,dirsync");
    assert!(out.status.success(), "{out:?}");
    assert!(third.options().unwrap().contains("sync,dirsync"));
}

/// Restrictions of the first mount and of its remounts apply; other options stay as
/// requested.
#[test]
fn second_mount_keeps_restrictions_of_first() {
    let Some((mount, _dog)) = mounted("second mount, nosuid", "nosuid,nodev") else {
        return;
    };
    let shown = |second: &Second, options: &str| {
        let out = mount_also(&mount, second.path(), options);
        assert!(out.status.success(), "{out:?}");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        (second.options().unwrap(), said)
    };
    let (options, said) = shown(&Second::new(), "suid,dev");
    assert!(options.starts_with("rw,nosuid,nodev,relatime"), "{options}");
    assert!(
        said.contains("mounted nosuid,nodev, as the first"),
        "{said}"
    );
    let (options, said) = shown(&Second::new(), "nosuid,nodev,noexec");
    assert!(options.starts_with("rw,nosuid,nodev,noexec"), "{options}");
    assert_eq!(said, "");
    // After a remount of the first, its original restrictions still apply.
    assert!(mount.run(["-o", "remount,suid,noexec"]).status.success());
    let (options, said) = shown(&Second::new(), "rw");
    assert!(options.starts_with("rw,nosuid,nodev,noexec"), "{options}");
    assert!(said.contains("nosuid,nodev,noexec"), "{said}");
    // `allow_other` belongs to the superblock.
    let second = Second::new();
    let out = mount_also(&mount, second.path(), "noallow_other");
    assert_eq!(out.status.code(), Some(32), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stderr).contains("with allow_other"));
    assert!(second.options().is_none());
}

/// No mount in this namespace can be compared with it.
#[test]
fn second_mount_from_other_mount_namespace_fails() {
    let Some((mount, _dog)) = unmounted("second mount, other namespace") else {
        return;
    };
    let script = r#""$@" && echo live; read _; umount -i "$3""#;
    let mut unshare = Command::new("unshare");
    unshare
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(crate::program())
        .args([mount.region(), mount.path()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut elsewhere = namespaces::spawn(&mut unshare);
    let mut line = String::new();
    BufReader::new(elsewhere.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "live\n");
    let second = Second::new();
    let out = mount_also(&mount, second.path(), "rw");
    assert_eq!(out.status.code(), Some(32), "{out:?}");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("in use by process"), "{said}");
    assert!(second.options().is_none());
    drop(elsewhere.stdin.take());
    elsewhere.wait().unwrap();
    mount.wait_for_end();
}

/// A dead mount cannot be shared and does not block a new one.
#[test]
fn mount_with_dead_mount_elsewhere_succeeds() {
    let Some((mount, _dog)) = mounted("dead elsewhere", "") else {
        return;
    };
    fs::write(mount.at("file"), "kept").unwrap();
    mount.crash();
    let second = Second::new();
    let out = mount_also(&mount, second.path(), "rw");
    assert!(out.status.success(), "{out:?}");
    assert_eq!(fs::read(second.path().join("file")).unwrap(), b"kept");
    mount.detach();
}

/// A signal ends the file system with all its mounts.
#[test]
fn sigterm_ends_all_mounts_of_region() {
    let Some((mount, _dog)) = mounted("SIGTERM, two mounts", "") else {
        return;
    };
    let second = Second::new();
    assert!(mount_also(&mount, second.path(), "rw").status.success());
    mount.signal(Signal::TERM);
    mount.wait_for_end();
    assert!(!mount.is_mounted());
    assert!(wait_until(|| second.options().is_none()));
}
