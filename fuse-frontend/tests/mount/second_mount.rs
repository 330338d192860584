//! A region that is mounted in several places at a time.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use pramfs_tests::mounted::{Mounted, unmount_when_free, wait_until};
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{mounted, unmounted};

fn mount_also(mount: &Mounted, place: &Path, options: &str) -> Output {
    Command::new(crate::program())
        .arg(mount.region())
        .arg(place)
        .args(["-o", options])
        .output()
        .unwrap()
}

/// A second directory that nothing is left mounted on.
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

/// As at boot: whoever comes first mounts it, the others find it mounted.
#[test]
fn mounts_of_one_region_at_the_same_time_all_work() {
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
fn a_second_directory_shows_the_same_file_system() {
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
    assert_eq!(out.status.code(), Some(32), "it is there already: {out:?}");

    // Whichever goes first, the other one stays.
    unmount_when_free(&mount.path());
    assert_eq!(fs::read(second.path().join("file")).unwrap(), b"seen");
    unmount_when_free(second.path());
    mount.wait_for_end();
}

#[test]
fn all_directories_set_access_times_alike() {
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
    for _ in 0..3 {
        let before = atime();
        std::thread::sleep(Duration::from_millis(30));
        fs::read(second.path().join("file")).unwrap();
        assert_ne!(atime(), before);
    }
}

#[test]
fn a_second_mount_is_as_writable_as_the_first() {
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

/// What is left of a mount whose process has died is none to share.
#[test]
fn a_dead_mount_elsewhere_does_not_stand_in_the_way() {
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

/// A signal ends the file system, not one of its mounts.
#[test]
fn sigterm_ends_all_mounts_of_the_region() {
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
