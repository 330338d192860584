//! A mount point whose name is not UTF-8: any user can make one, and it hides no other mount.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use pramfs::pmem::RegionOptions;

use crate::common::{Answer, MKFS, PRAMFS, scratch};
use crate::live;

/// Runs a script as root in a mount namespace of its own, in which such a mount is the first of
/// the table that is of any use. `$1` is a directory for the script; its arguments follow.
fn beside_odd_mount(script: &str, arguments: &[&OsStr]) -> Answer {
    let dir = scratch();
    let odd = dir.path().join(OsStr::from_bytes(b"odd\xff"));
    fs::create_dir(&odd).unwrap();
    fs::create_dir(dir.path().join("other")).unwrap();
    let script =
        format!("set -e; odd=$1; dir=${{odd%/*}}; shift; mount -t tmpfs none \"$odd\"; {script}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    let out = command.arg(&odd).args(arguments).output().unwrap();
    Answer {
        status: out.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&out.stdout).into_owned(),
        err: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

fn is_available(test: &str) -> bool {
    pramfs_tests::mounted::available(test)
}

#[test]
fn mkfs_of_mounted_file_beside_odd_mount_fails() {
    if !is_available("mkfs beside an odd mount") {
        return;
    }
    let dir = scratch();
    let region = dir.path().join("region");
    fs::File::create(&region).unwrap().set_len(8 << 20).unwrap();
    let arguments = [MKFS.as_ref(), region.as_os_str()];
    let script = "mount -t tmpfs \"$2\" \"$dir/other\"; exec \"$1\" -f \"$2\"";
    beside_odd_mount(script, &arguments).refused(&["is mounted on", "/other", "type tmpfs"]);
    // The mount of the file itself may have such a name, too.
    let script = "mount -t tmpfs \"$2\" \"$odd\"; exec \"$1\" -f \"$2\"";
    beside_odd_mount(script, &arguments).refused(&["is mounted on", "/odd"]);
    // The next is not mounted.
    beside_odd_mount("exec \"$1\" -f \"$2\"", &arguments).ok();
}

#[test]
fn mkfs_where_mount_table_cannot_be_read_fails() {
    if !is_available("mkfs without a mount table") {
        return;
    }
    let dir = scratch();
    let region = dir.path().join("region");
    fs::File::create(&region).unwrap().set_len(8 << 20).unwrap();
    let script = "mount --bind \"$odd\" /proc; exec \"$1\" -f \"$2\"";
    let answer = beside_odd_mount(script, &[MKFS.as_ref(), region.as_os_str()]);
    answer.refused(&["cannot read the mount table"]);
    let bytes = fs::read(&region).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "it was written");
}

/// A region is only as durable as the medium below its file system, also where the table of mounts
/// has such a name.
#[test]
fn region_on_mount_in_memory_beside_odd_mount_is_volatile() {
    let Some((mount, _dog)) = live("persistence beside an odd mount", "") else {
        return;
    };
    let inner = mount.at("region");
    drop(RegionOptions::new().create(&inner, 1 << 20).unwrap());
    let arguments = [PRAMFS.as_ref(), inner.as_os_str()];
    let doctor = beside_odd_mount("exec \"$1\" doctor --json \"$2\"", &arguments);
    assert_eq!(
        doctor.json()["survives"],
        "the death of processes, but not a reboot",
        "{doctor:?}"
    );
}

#[test]
fn tools_find_mount_of_region_with_odd_mount_point() {
    let Some((mount, _dog)) = live("odd mount point", "") else {
        return;
    };
    fs::write(mount.at("file"), "x").unwrap();
    let (region, path) = (mount.region(), mount.path());
    let arguments = [PRAMFS.as_ref(), region.as_os_str(), path.as_os_str()];
    let list = "exec \"$1\" ls \"$2\" /";
    let beside = beside_odd_mount(list, &arguments).ok();
    assert!(beside.out.contains("file"), "{beside:?}");
    // There it is found by its bytes: the other mount of it is gone.
    let moved = format!("mount --bind \"$3\" \"$odd\"; umount -i \"$3\"; {list}");
    let moved = beside_odd_mount(&moved, &arguments).ok();
    assert!(moved.out.contains("file"), "{moved:?}");
    assert!(Path::new(&path).join("file").exists());
}

/// Neither a mount over the mount point nor a mount of a directory in it is the file system.
#[test]
fn ls_of_region_whose_mount_is_hidden_takes_another_mount_of_it() {
    let Some((mount, _dog)) = live("ls of a hidden mount", "") else {
        return;
    };
    fs::create_dir(mount.at("dir")).unwrap();
    fs::write(mount.at("dir/wrong"), "x").unwrap();
    let (region, on) = (mount.region(), mount.path());
    let arguments = [PRAMFS.as_ref(), region.as_os_str(), on.as_os_str()];
    let hide = "mount -t tmpfs none \"$3\"; touch \"$3/wrong\"; exec \"$1\" ls \"$2\"";
    let bind = |what: &str| format!("mount --bind \"$3{what}\" \"$dir/other\"; {hide}");
    beside_odd_mount(hide, &arguments).refused(&["in use"]);
    beside_odd_mount(&bind("/dir"), &arguments).refused(&["in use"]);
    let listed = beside_odd_mount(&bind(""), &arguments).ok().out;
    assert_eq!(listed, "dir\n");
}
