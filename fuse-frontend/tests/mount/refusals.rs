//! What cannot be mounted, and how that is said: exit status, the name of the
//! object, the cause, and what to do.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use pramfs_tests::mounted::wait_until;

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
fn unknown_options_by_name() {
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
fn mount_points() {
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
fn mount_points_that_lead_nowhere() {
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
        // The way to the last name is shown as it is given, or resolved.
        let shown = if name == "link" { "file" } else { name };
        refused(
            &mount(&region, &at(name)),
            32,
            &["mount point", shown, says],
        );
    }
    // In a dead mount nothing can be mounted, and it is not cleared for that.
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
fn a_dead_mount_of_ours_is_cleared() {
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
    assert!(!mount.is_mounted(), "the corpse is gone, too");
}

/// By a mount of ours on that very directory, empty or not.
#[test]
fn a_region_that_is_mounted_there_already() {
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
    assert!(mount.at("file").exists(), "and the first mount goes on");
}

/// By a program that does not mount it, and by nobody any more.
#[test]
fn a_region_in_use() {
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
fn regions_that_are_none() {
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
