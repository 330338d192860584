//! Refused mounts and their messages: exit status, name of the object, cause, and what to
//! do.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use pramfs_tests::mounted::{unmount_when_free, wait_until};

use crate::{MIB, mounted, program, unmounted};

fn mount(region: &Path, mountpoint: &Path) -> Output {
    Command::new(program())
        .arg(region)
        .arg(mountpoint)
        .output()
        .unwrap()
}

#[track_caller]
fn refused(out: &Output, status: i32, says: &[&str]) {
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(status), "{said}");
    assert!(said.starts_with("mount.pramfs: "), "{said}");
    for part in says {
        assert!(said.contains(part), "{part:?} in: {said}");
    }
}

#[test]
fn unknown_mount_options_are_named() {
    let Some((mount, _dog)) = unmounted("unknown option") else {
        return;
    };
    refused(
        &mount.run(["-o", "ro,frobnicate"]),
        1,
        &["unknown mount option: frobnicate"],
    );
    refused(&mount.run(["-o", "uid=1"]), 1, &["mkfs.pramfs"]);
    refused(&mount.run(["-o", "cache=perhaps"]), 1, &["cache=auto"]);
    refused(
        &Command::new(program()).arg("/only/one").output().unwrap(),
        1,
        &["MOUNTPOINT"],
    );
    assert!(!mount.is_mounted());
    let out = mount.run(["-s", "-o", "frobnicate"]);
    assert!(out.status.success() && mount.is_mounted());
    assert!(String::from_utf8_lossy(&out.stderr).contains("frobnicate"));
}

#[test]
fn unusable_mount_points_are_refused() {
    let Some((mount, _dog)) = unmounted("mount points") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    refused(
        &crate::refusals::mount(&mount.region(), &missing),
        32,
        &["missing", "mkdir -p"],
    );
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    refused(
        &crate::refusals::mount(&mount.region(), &file),
        32,
        &["file", "not a directory"],
    );

    fs::write(mount.at("hidden"), "").unwrap();
    refused(&mount.run::<&str>([]), 32, &["not empty", "-o nonempty"]);
    mount.mount("nonempty");
    assert!(!mount.at("hidden").exists());
    mount.unmount();
    fs::remove_file(mount.at("hidden")).unwrap();
}

#[test]
fn foreign_file_system_is_named() {
    let Some((mount, _dog)) = unmounted("a foreign file system") else {
        return;
    };
    let there = |program: &&&str| Path::new(program).exists();
    let mkfs = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"];
    let blkid = ["/usr/sbin/blkid", "/sbin/blkid", "/usr/bin/blkid"];
    let (Some(mkfs), Some(_)) = (mkfs.iter().find(there), blkid.iter().find(there)) else {
        return pramfs_tests::skip::skipped("no mkfs.ext4, or no blkid");
    };
    let region = mount.region();
    // Nothing of ours is left under it.
    fs::write(&region, vec![0; 16 << 20]).unwrap();
    let made = Command::new(mkfs)
        .args(["-q", "-F", "-L", "old disk"])
        .arg(&region)
        .status();
    assert!(made.unwrap().success());
    let before = fs::read(&region).unwrap();
    let named = "this is an ext4 file system (label \"old disk\"";
    for options in ["", "takeover=on", "ro"] {
        let args = ["-o", options].into_iter().filter(|_| !options.is_empty());
        let region = region.to_str().unwrap();
        refused(&mount.run(args), 32, &[region, named]);
    }
    assert!(!mount.is_mounted());
    assert!(fs::read(&region).unwrap() == before, "nothing is stored");
}

#[test]
fn unresolvable_mount_points_are_refused() {
    let Some((live, _dog)) = mounted("mount points in dead mounts", "") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "").unwrap();
    std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
    std::os::unix::fs::symlink("circle", at("circle")).unwrap();
    std::os::unix::fs::symlink("file", at("link")).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    let region = at("region");
    fs::copy(live.region(), &region).unwrap();
    let long = "n".repeat(256);
    for (name, says) in [
        ("dangling", "does not exist"),
        ("circle", "ymbolic link"),
        ("link", "not a directory"),
        ("socket", "not a directory"),
        ("file/below", "not a directory"),
        ("missing/below", "does not exist"),
        (&long, "too long"),
    ] {
        // The message shows the parent path as given, or resolved.
        let shown = if name == "link" { "file" } else { name };
        refused(
            &mount(&region, &at(name)),
            32,
            &["mount point", shown, says],
        );
    }
    // Mounting inside a dead mount fails, and does not clear it.
    fs::create_dir(live.at("sub")).unwrap();
    live.crash();
    let dead = || fs::metadata(live.path()).err()?.raw_os_error();
    assert!(wait_until(|| dead() == Some(libc::ENOTCONN)));
    let below = live.at("sub");
    refused(
        &mount(&region, &below),
        32,
        &["sub", "dead FUSE mount", "unmount"],
    );
    assert!(live.is_mounted());
}

#[test]
fn mount_clears_own_dead_mount() {
    let Some((mount, _dog)) = mounted("dead mount", "") else {
        return;
    };
    fs::write(mount.at("file"), "kept").unwrap();
    mount.crash();
    let dead = || fs::metadata(mount.path()).err()?.raw_os_error();
    assert!(wait_until(|| dead() == Some(libc::ENOTCONN)));
    let out = mount.run::<&str>([]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    assert!(said.contains("cleared the dead mount"), "{said}");
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"kept");
    mount.unmount();
    assert!(!mount.is_mounted(), "the dead mount is gone as well");
}

/// Mounting the same region twice on one directory fails, whether it is empty or not.
#[test]
fn mount_twice_on_same_directory_fails() {
    let Some((mount, _dog)) = mounted("mounted there", "") else {
        return;
    };
    let again = || {
        refused(
            &mount.run::<&str>([]),
            32,
            &["region", "already mounted on"],
        )
    };
    again();
    fs::write(mount.at("file"), "").unwrap();
    again();
    assert!(mount.at("file").exists(), "the first mount still works");
}

/// A read-only loop device of a region, detached on drop.
struct Protected(String);

impl Protected {
    fn device(mount: &pramfs_tests::mounted::Mounted) -> Option<Protected> {
        let out = Command::new("losetup")
            .args(["--read-only", "--find", "--show"])
            .arg(mount.region())
            .output()
            .unwrap();
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr);
            pramfs_tests::skip::skipped(format_args!("no loop devices here: {said}"));
            return None;
        }
        Some(Protected(
            String::from_utf8(out.stdout).unwrap().trim().to_owned(),
        ))
    }

    /// Mounts it. Returns status and output.
    fn mount(&self, mount: &pramfs_tests::mounted::Mounted, options: &str) -> (i32, String) {
        let out = Command::new(crate::program())
            .arg(&self.0)
            .arg(mount.path())
            .args(["-o", options])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        (out.status.code().unwrap_or(-1), said)
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        let out = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .output();
        assert!(out.unwrap().status.success(), "{} stays", self.0);
    }
}

#[test]
fn write_protected_device_mounts_read_only() {
    let Some((mount, _dog)) = mounted("write-protected", "") else {
        return;
    };
    std::fs::write(mount.at("file"), "kept").unwrap();
    mount.unmount();
    let unmount = || unmount_when_free(&mount.path());
    let Some(device) = Protected::device(&mount) else {
        return;
    };
    let (status, said) = device.mount(&mount, "rw");
    assert_eq!(status, 0, "{said}");
    assert!(
        said.contains("write-protected, mounted read-only"),
        "{said}"
    );
    assert_eq!(std::fs::read(mount.at("file")).unwrap(), b"kept");
    let refused = std::fs::write(mount.at("file"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    unmount();
    drop(device);
    // If recovery is needed, a read-only mount must be requested explicitly.
    mount.mount("");
    std::fs::write(mount.at("new"), "made").unwrap();
    mount.crash();
    let device = Protected::device(&mount).unwrap();
    let (status, said) = device.mount(&mount, "rw");
    assert!(status == 32 && said.contains("needs recovery"), "{said}");
    for options in ["norecovery", "ro"] {
        let (status, said) = device.mount(&mount, options);
        assert_eq!(status, 0, "{options}: {said}");
        assert_eq!(std::fs::read(mount.at("new")).unwrap(), b"made");
        unmount();
    }
    drop(device);
    let out = mount.run(["-o", "norecovery"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("norecovery needs ro"), "{said}");
}

#[test]
fn mount_of_region_in_use_fails() {
    let Some((mount, _dog)) = unmounted("busy region") else {
        return;
    };
    let held = pramfs::pmem::RegionOptions::new()
        .open(mount.region())
        .unwrap();
    let pid = std::process::id().to_string();
    refused(
        &mount.run::<&str>([]),
        32,
        &["region", "in use by process", &pid],
    );
    drop(held);
    mount.mount("");
}

#[test]
fn mount_of_invalid_region_fails() {
    let Some((mount, _dog)) = unmounted("regions") else {
        return;
    };
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let point = mount.path();
    let at = |name: &str| dir.path().join(name);
    let try_mount = |name: &str| crate::refusals::mount(&at(name), &point);

    refused(&try_mount("missing"), 32, &["missing"]);
    fs::create_dir(at("directory")).unwrap();
    refused(&try_mount("directory"), 32, &["directory"]);
    let _socket = UnixListener::bind(at("socket")).unwrap();
    refused(&try_mount("socket"), 32, &["socket"]);
    fs::write(at("empty"), "").unwrap();
    refused(&try_mount("empty"), 32, &["empty"]);
    fs::write(at("zeros"), vec![0; MIB as usize]).unwrap();
    refused(&try_mount("zeros"), 32, &["zeros", "mkfs.pramfs"]);
    let mut bytes = fs::read(mount.region()).unwrap();
    bytes.truncate(32 << 10);
    fs::write(at("cut"), &bytes).unwrap();
    refused(&try_mount("cut"), 32, &["cut"]);
    refused(&mount.run(["--require-dax"]), 32, &["DAX", "tmpfs"]);
    assert!(!mount.is_mounted());
}
