//! `umount.fuse.pramfs`: the same program under the name of the umount(8) helper.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use pramfs::pmem::RegionOptions;
use pramfs_tests::mounted::{Mounted, unmount_when_free, wait_until};
use rustix::process::Signal;

use crate::namespaces::none_made;
use crate::{mounted, unmounted};

fn umount(mount: &Mounted, flags: &[&str]) -> Output {
    Command::new(crate::program())
        .arg0("/sbin/umount.fuse.pramfs")
        .arg(mount.path())
        .args(flags)
        .output()
        .unwrap()
}

fn is_free(mount: &Mounted) -> bool {
    pramfs_tests::mounted::is_unlocked(&mount.region())
}

/// As umount(8) calls it.
#[test]
fn umount_returns_when_region_is_free() {
    let _no_copies = none_made();
    let Some((mount, _dog)) = unmounted("umount helper") else {
        return;
    };
    for round in 0..10 {
        mount.mount("");
        fs::write(mount.at("file"), vec![round; 1 << 20]).unwrap();
        let out = umount(&mount, &["-n", "-t", "fuse.pramfs"]);
        assert!(out.status.success(), "{out:?}");
        assert!(out.stdout.is_empty() && out.stderr.is_empty(), "{out:?}");
        assert!(!mount.is_mounted());
        assert!(is_free(&mount), "round {round}: a process holds the region");
    }
}

/// Force is for a server that does not answer. The mount stays while it is in use, but all
/// its operations fail. No completed operation is lost.
#[test]
fn umount_force_aborts_busy_mount() {
    let _no_copies = none_made();
    let Some((mount, _dog)) = mounted("umount -f", "") else {
        return;
    };
    fs::write(mount.at("file"), "x").unwrap();
    let open = File::open(mount.at("file")).unwrap();
    let out = umount(&mount, &[]);
    assert_eq!(out.status.code(), Some(32), "{out:?}");
    fs::write(mount.at("file"), "y").expect("without force nothing has ended");
    let out = umount(&mount, &["-f"]);
    assert_eq!(out.status.code(), Some(32), "{out:?}");
    let error = fs::write(mount.at("file"), "z").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    drop(open);
    let out = umount(&mount, &[]);
    assert!(out.status.success(), "{out:?}");
    assert!(is_free(&mount));
    mount.mount("");
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"y");
}

/// It waits until the server releases the region, however long that takes.
#[test]
fn umount_waits_for_stopped_server() {
    let _no_copies = none_made();
    let Some((mount, _dog)) = mounted("umount helper waits", "") else {
        return;
    };
    let server = mount.process();
    mount.stop();
    let started = Instant::now();
    let helper = std::thread::scope(|scope| {
        let helper = scope.spawn(|| umount(&mount, &[]));
        assert!(wait_until(|| !mount.is_mounted()));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!helper.is_finished(), "it must wait for the server");
        rustix::process::kill_process(server, Signal::CONT).unwrap();
        helper.join().unwrap()
    });
    assert!(helper.status.success());
    assert!(started.elapsed() > Duration::from_millis(300));
    assert!(is_free(&mount));
}

/// umount(8) without its helper does not wait. The next open of the region waits instead
/// of failing as in use.
#[test]
fn open_waits_for_region_being_released() {
    let _no_copies = none_made();
    let Some((mount, _dog)) = mounted("open after umount", "") else {
        return;
    };
    fs::write(mount.at("file"), "kept").unwrap();
    let server = mount.process();
    mount.stop();
    unmount_when_free(&mount.path());
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| RegionOptions::new().open(mount.region()));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!opening.is_finished(), "it must wait for the server");
        rustix::process::kill_process(server, Signal::CONT).unwrap();
        opening.join().unwrap().unwrap();
    });
}

/// A region on another mount, like a disk image in a file. The lower mount can be unmounted
/// as soon as umount(8) of the image has returned.
#[test]
fn unmount_below_unmounted_region_succeeds() {
    below(|image| Some(image.to_owned()), |_| ());
}

#[test]
fn unmount_below_detached_loop_device_succeeds() {
    let losetup = |arg: &str, file: &Path| {
        let out = Command::new("losetup")
            .args(arg.split(' '))
            .arg(file)
            .output()
            .unwrap();
        if !out.status.success() {
            pramfs_tests::skip::skipped(format_args!("losetup {arg}: {out:?}"));
            return None;
        }
        Some(String::from_utf8(out.stdout).unwrap().trim().into())
    };
    below(
        |image| losetup("--find --show", image),
        |device| {
            losetup("--detach", device).expect("to detach the loop device");
        },
    );
}

/// Mounts an image on a lower mount. `device` turns the image into the mounted device, and
/// `detach` undoes that.
fn below(device: impl Fn(&Path) -> Option<PathBuf>, detach: impl Fn(&Path)) {
    let _no_copies = none_made();
    let Some((mount, _dog)) = mounted("umount below", "") else {
        return;
    };
    let (image, point) = (mount.at("image"), mount.at("point"));
    let region = RegionOptions::new().create(&image, 16 << 20).unwrap();
    pramfs::format::format(&region, &Default::default()).unwrap();
    drop(region);
    fs::create_dir(&point).unwrap();
    let Some(image) = device(&image) else {
        return;
    };
    let out = Command::new(crate::program())
        .args([&image, &point])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    let inner = *Mounted::processes_of(&image)
        .first()
        .expect("the server of the image");
    rustix::process::kill_process(inner, Signal::STOP).unwrap();
    unmount_when_free(&point);
    detach(&image);
    let out = std::thread::scope(|scope| {
        let helper = scope.spawn(|| umount(&mount, &[]));
        std::thread::sleep(Duration::from_millis(300));
        let early = helper.is_finished();
        rustix::process::kill_process(inner, Signal::CONT).unwrap();
        assert!(!early, "it must wait for the server of the image");
        helper.join().unwrap()
    });
    assert!(out.status.success(), "{out:?}");
    assert!(!mount.is_mounted());
}

/// Opening a mounted region fails at once.
#[test]
fn open_of_mounted_region_fails_at_once() {
    let Some((mount, _dog)) = mounted("open while mounted", "") else {
        return;
    };
    let started = Instant::now();
    let refused = RegionOptions::new().open(mount.region()).unwrap_err();
    assert!(refused.to_string().contains("in use"), "{refused}");
    // A server that ends is waited for up to a minute.
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn umount_of_busy_or_foreign_mount_fails() {
    let _no_copies = none_made();
    let Some((mount, _dog)) = mounted("umount helper refuses", "") else {
        return;
    };
    let open = File::create(mount.at("open")).unwrap();
    let out = umount(&mount, &[]);
    assert_eq!(out.status.code(), Some(32));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("busy") && said.contains("fuser"), "{said}");
    assert!(mount.is_mounted());

    // A lazy unmount does not wait for open files.
    assert!(umount(&mount, &["-l"]).status.success());
    assert!(!mount.is_mounted() && !is_free(&mount));
    drop(open);
    mount.wait_for_end();

    let out = umount(&mount, &["-v"]);
    assert_eq!(out.status.code(), Some(32));
    assert!(String::from_utf8_lossy(&out.stderr).contains("not a mount of a pramfs region"));
}

/// `umount -r`: a remount with only the read-only flag would clear all other flags,
/// including nosuid and nodev, which protect root from a region of another user.
#[test]
fn umount_read_only_of_busy_mount_keeps_flags() {
    let Some((mount, _dog)) = unmounted("umount -r") else {
        return;
    };
    fs::set_permissions(mount.region(), fs::Permissions::from_mode(0o666)).unwrap();
    mount.mount("noexec,noatime,nodiratime");
    fs::create_dir(mount.at("cwd")).unwrap();
    let mut inside = Command::new("sleep")
        .arg("1000")
        .current_dir(mount.at("cwd"))
        .spawn()
        .unwrap();
    let flags = || {
        let top = File::open(mount.path()).unwrap();
        let found = pramfs_fuse::mountinfo::of_top(&top).unwrap();
        let first = found.options.split(',').map(str::to_owned);
        (first.collect::<Vec<_>>(), found.super_options)
    };
    let kept = ["nosuid", "nodev", "noexec", "noatime", "nodiratime"];
    let (before, _) = flags();
    let out = umount(&mount, &["-r", "-v"]);
    let (after, of_the_superblock) = flags();
    inside.kill().unwrap();
    inside.wait().unwrap();
    assert!(out.status.success(), "{out:?}");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("read-only now"), "{said}");
    for flag in kept {
        assert!(before.iter().any(|one| one == flag), "{flag}: {before:?}");
        assert!(after.iter().any(|one| one == flag), "{flag}: {after:?}");
    }
    assert_eq!(after[0], "ro", "{after:?}");
    assert!(of_the_superblock.starts_with("ro,"), "{of_the_superblock}");
    let error = fs::write(mount.at("file"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
}

#[test]
fn umount_of_dead_mount_succeeds() {
    let _no_copies = none_made();
    let Some((mount, _dog)) = mounted("umount helper, dead server", "") else {
        return;
    };
    mount.crash();
    let out = umount(&mount, &["-v"]);
    assert!(out.status.success(), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stderr).contains("unmounted"));
    assert!(!mount.is_mounted());
}
