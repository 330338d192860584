//! `mkfs.pramfs` destroys nothing that it was not told to, and says what it
//! refuses and why.

mod common;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use common::*;
use pramfs::pmem::RegionOptions;

fn s(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Refused, and every byte as before.
fn refused_untouched(path: &Path, args: &[&str], words: &[&str]) -> Answer {
    let before = fs::read(path).unwrap();
    let a = mkfs(args.iter().copied().chain([s(path)])).refused(words);
    assert!(
        fs::read(path).unwrap() == before,
        "{} was changed",
        path.display()
    );
    a
}

fn file(dir: &Path, name: &str, len: u64) -> std::path::PathBuf {
    let path = dir.join(name);
    fs::File::create(&path).unwrap().set_len(len).unwrap();
    path
}

#[test]
fn mkfs_over_pramfs_needs_force() {
    let dir = scratch();
    let region = dir.path().join("r");
    mkfs(["-q", "-L", "keep", s(&region), "1M"]).ok();
    refused_untouched(
        &region,
        &[],
        &["a pramfs file system", "label \"keep\"", "uuid", "-f"],
    );
    let a = refused_untouched(&region, &["--json"], &["-f"]).json();
    assert_eq!(a["error"]["reason"], "exists");
    assert_eq!(a["error"]["found"][0]["type"], "pramfs");
    assert_eq!(a["error"]["found"][0]["label"], "keep");
    let a = refused_untouched(&region, &["-q"], &["-f"]);
    assert!(!a.err.contains("Proceed"));
    mkfs(["-f", "-L", "new", s(&region)]).ok();
}

#[test]
fn mkfs_asks_question_at_terminal() {
    let dir = scratch();
    let region = made(dir.path(), "1M");
    // 4 is the key that ends the input.
    for no in [
        &b"\x04"[..],
        b"\n",
        b"n\n",
        b"no\n",
        b"maybe\n",
        b"\xff\xfe\n",
    ] {
        run_at_terminal(MKFS, [s(&region)], no).refused(&["Proceed anyway? (y/N)", "not made"]);
    }
    for yes in [&b"y\n"[..], b"y\x04\x04", b"Y\n", b"yes\n", b"y\ny\ny\ny\n"] {
        run_at_terminal(MKFS, [s(&region)], yes).ok();
    }
    // Those who asked for silence are not asked.
    for quiet in ["-q", "--json"] {
        let a = run_at_terminal(MKFS, [quiet, s(&region)], b"y\n").refused(&["-f"]);
        assert!(!a.err.contains("Proceed"), "{a:?}");
    }
}

/// What a script has on its standard input is left to the script.
#[test]
fn mkfs_without_terminal_asks_nothing() {
    let dir = scratch();
    let region = made(dir.path(), "1M");
    let before = fs::read(&region).unwrap();
    let a = run_with_input(MKFS, [s(&region)], b"y\n").refused(&["a pramfs file system", "-f"]);
    assert!(!a.err.contains("Proceed"), "{a:?}");
    assert!(fs::read(&region).unwrap() == before);
    let line = format!("{MKFS} '{}'; read rest; echo \"$rest\"", s(&region));
    let a = run_with_input("sh", ["-c", &line], b"the next line\n").ok();
    assert_eq!(a.out, "the next line\n");
    // As the helper of mkfs(8) it asks: `yes | mkfs -t fuse.pramfs`.
    let helper = dir.path().join("mkfs.fuse.pramfs");
    std::os::unix::fs::symlink(MKFS, &helper).unwrap();
    for no in [&b""[..], b"n\n"] {
        let a = run_with_input(s(&helper), [s(&region)], no).refused(&["not made"]);
        assert!(a.out.contains("Proceed anyway?"), "{a:?}");
    }
    // What comes to standard error there is taken for an error.
    let a = run_with_input(s(&helper), [s(&region)], b"y\ny\n").ok();
    assert!(
        a.out.contains("Proceed anyway?") && a.err.is_empty(),
        "{a:?}"
    );
}

#[test]
fn mkfs_over_pramfs_with_lost_page_needs_force() {
    let dir = scratch();
    for at in [0usize, 65536] {
        let region = dir.path().join(format!("r{at}"));
        mkfs(["-q", "-L", "keep", s(&region), "1M"]).ok();
        let mut bytes = fs::read(&region).unwrap();
        bytes[at..at + 4096].fill(0);
        fs::write(&region, bytes).unwrap();
        refused_untouched(&region, &["-q"], &["a pramfs file system", "\"keep\""]);
    }
}

#[test]
fn mkfs_over_damaged_pramfs_needs_force() {
    let dir = scratch();
    let region = dir.path().join("r");
    mkfs(["-q", s(&region), "1M"]).ok();
    let whole = fs::read(&region).unwrap();
    // Both checksums wrong, the magic still there.
    let mut bytes = whole.clone();
    bytes[0x40] ^= 1;
    bytes[65536 + 0x40] ^= 1;
    fs::write(&region, bytes).unwrap();
    refused_untouched(&region, &["-q"], &["a pramfs file system", "not usable"]);
    // Cut to a length that no region has, and asked to grow it again.
    fs::write(&region, &whole[..500_000]).unwrap();
    mkfs(["-q", s(&region), "1M"]).refused(&["500000 bytes", "a pramfs file system"]);
    assert_eq!(fs::metadata(&region).unwrap().len(), 500_000);
}

#[test]
fn mkfs_with_differing_size_needs_force() {
    let dir = scratch();
    let region = dir.path().join("r");
    fs::write(&region, vec![7u8; 2 << 20]).unwrap();
    let a = mkfs([s(&region), "1M"]).refused(&["2097152 bytes", "cutting off", "-f"]);
    assert_eq!(a.out, "");
    assert!(fs::read(&region).unwrap() == vec![7u8; 2 << 20]);
    mkfs(["-q", s(&region), "4M"]).refused(&["adding a hole", "-f"]);
    let a = mkfs(["--json", s(&region), "4M"]).refused(&[]).json();
    assert_eq!(a["error"]["reason"], "other-size");
    mkfs(["-q", "-f", s(&region), "1M"]).ok();
    assert_eq!(fs::metadata(&region).unwrap().len(), 1 << 20);
    mkfs(["-q", "-f", s(&region), "4M"]).ok();
    assert_eq!(fs::metadata(&region).unwrap().len(), 4 << 20);
}

#[test]
fn mkfs_over_ext4_needs_force() {
    let Some(mkfs_ext4) = find_or_skip("mkfs.ext4") else {
        return;
    };
    if find_or_skip("blkid").is_none() {
        return;
    }
    let dir = scratch();
    let image = file(dir.path(), "e", 4 << 20);
    run(&mkfs_ext4, ["-q", "-L", "old disk", s(&image)]).ok();
    refused_untouched(
        &image,
        &[],
        &["an ext4 file system", "label \"old disk\"", "uuid", "-f"],
    );
    let a = refused_untouched(&image, &["--json"], &["ext4"]).json();
    assert_eq!(a["error"]["found"][0]["type"], "ext4");
    assert_eq!(a["error"]["found"][0]["usage"], "filesystem");
    run_at_terminal(MKFS, [s(&image)], b"y\n").ok();
    // Nothing of it is left that could be taken for it.
    let a = run(&find_or_skip("blkid").unwrap(), ["-p", s(&image)]);
    assert!(!a.out.contains("ext4"), "{a:?}");
    let a = mkfs(["--json", "-f", s(&image)]).ok().json();
    assert_eq!(a["overwritten"][0]["type"], "pramfs");
    assert_eq!(a["overwritten"].as_array().unwrap().len(), 1);
}

#[test]
fn mkfs_over_swap_space_needs_force() {
    let (Some(mkswap), Some(_)) = (find_or_skip("mkswap"), find_or_skip("blkid")) else {
        return;
    };
    let dir = scratch();
    let image = file(dir.path(), "s", 1 << 20);
    run(&mkswap, [s(&image)]).ok();
    refused_untouched(&image, &["-q"], &["swap", "-f"]);
}

#[test]
fn mkfs_over_partition_table_needs_force() {
    if find_or_skip("blkid").is_none() {
        return;
    }
    let dir = scratch();
    let image = dir.path().join("p");
    let mut bytes = vec![0u8; 2 << 20];
    // One Linux partition, from sector 64, 2048 sectors.
    bytes[446..462].copy_from_slice(&[0, 0, 2, 0, 0x83, 0, 0, 0, 64, 0, 0, 0, 0, 8, 0, 0]);
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(&image, bytes).unwrap();
    refused_untouched(&image, &["-q"], &["dos partition table", "-f"]);
}

#[test]
fn blkid_is_run_by_absolute_path() {
    let (Some(mkfs_ext4), Some(_)) = (find_or_skip("mkfs.ext4"), find_or_skip("blkid")) else {
        return;
    };
    let dir = scratch();
    let image = file(dir.path(), "e", 4 << 20);
    run(&mkfs_ext4, ["-q", s(&image)]).ok();
    let out = Command::new(MKFS)
        .args(["-q", s(&image)])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("ext4"));
}

#[test]
fn mkfs_without_blkid_keeps_unknown_data() {
    if !root_or_skip("a mount namespace") {
        return;
    }
    let (Some(unshare), Some(blkid)) = (find_or_skip("unshare"), find_or_skip("blkid")) else {
        return;
    };
    let dir = scratch();
    let data = dir.path().join("data");
    fs::write(&data, vec![7u8; 1 << 20]).unwrap();
    let zeros = file(dir.path(), "zeros", 1 << 20);
    // In a namespace of its own where blkid is no program.
    let hidden = |path: &Path| {
        let script = "mount --bind /dev/null \"$1\" && exec \"$2\" -q \"$3\"";
        run(
            &unshare,
            ["-m", "sh", "-c", script, "sh", &blkid, MKFS, s(path)],
        )
    };
    let (with_data, with_zeros) = (hidden(&data), hidden(&zeros));
    if with_zeros.status != 0 && !with_zeros.err.contains("mkfs.pramfs") {
        skipped(format_args!("no mount namespace: {}", with_zeros.err));
        return;
    }
    with_data.refused(&["data of unknown kind", "blkid", "util-linux", "-f"]);
    with_zeros.ok();
    assert!(fs::read(&data).unwrap() == vec![7u8; 1 << 20]);
}

#[test]
fn mkfs_of_region_in_use_fails() {
    let dir = scratch();
    let region = made(dir.path(), "1M");
    let held = RegionOptions::new().open(&region).unwrap();
    for args in [&[][..], &["-f"], &["-n"], &["-f", "-q"]] {
        mkfs(args.iter().copied().chain([s(&region)])).refused(&["in use", "process"]);
    }
    // Neither may it be resized below its user.
    mkfs(["-f", s(&region), "2M"]).refused(&["in use"]);
    assert_eq!(fs::metadata(&region).unwrap().len(), 1 << 20);
    let a = mkfs(["-f", "--json", s(&region)]).refused(&[]).json();
    assert_eq!(a["error"]["reason"], "in-use");
    drop(held);
    mkfs(["-f", s(&region)]).ok();
}

#[test]
fn mkfs_of_file_behind_loop_device_fails() {
    if !root_or_skip("a loop device") {
        return;
    }
    let Some(losetup) = find_or_skip("losetup") else {
        return;
    };
    let dir = scratch();
    let image = file(dir.path(), "l", 2 << 20);
    let a = run(&losetup, ["-f", "--show", s(&image)]);
    if a.status != 0 {
        skipped(format_args!("no loop device: {}", a.err));
        return;
    }
    let device = a.out.trim().to_owned();
    let through_file = mkfs(["-f", s(&image)]);
    let on_device = mkfs(["-q", &device]);
    // The device is claimed while it is a region.
    let again = mkfs(["-q", &device]);
    // A part of a device, and more than there is.
    let part = mkfs(["-f", "--json", &device, "1M"]);
    let listed = pramfs(["ls", &device]);
    let info = pramfs(["info", "--json", &device]);
    let more = mkfs(["-f", &device, "4M"]);
    run(&losetup, ["-d", &device]).ok();
    through_file.refused(&["loop device", &device]);
    on_device.ok();
    assert_eq!(part.ok().json()["bytes"], 1 << 20);
    listed.ok();
    let info = info.ok().json();
    assert_eq!(
        (&info["bytes"], &info["region_bytes"]),
        (&(1 << 20).into(), &(2 << 20).into())
    );
    more.refused(&[&device, "2"]);
    again.refused(&["pramfs file system", "-f"]);
}

#[test]
fn mkfs_of_mounted_device_fails() {
    if !root_or_skip("a mount on a loop device") {
        return;
    }
    let (Some(losetup), Some(mkfs_ext4)) = (find_or_skip("losetup"), find_or_skip("mkfs.ext4"))
    else {
        return;
    };
    let dir = scratch();
    let image = file(dir.path(), "l", 8 << 20);
    run(&mkfs_ext4, ["-q", s(&image)]).ok();
    let a = run(&losetup, ["-f", "--show", s(&image)]);
    if a.status != 0 {
        skipped(format_args!("no loop device: {}", a.err));
        return;
    }
    let device = a.out.trim().to_owned();
    let on = dir.path().join("mnt");
    fs::create_dir(&on).unwrap();
    let mounted = run("mount", [&device, s(&on)]);
    let answer = mkfs(["-f", &device]);
    if mounted.status == 0 {
        run("umount", [s(&on)]).ok();
    }
    run(&losetup, ["-d", &device]).ok();
    if mounted.status != 0 {
        skipped(format_args!("ext4 cannot be mounted: {}", mounted.err));
        return;
    }
    answer.refused(&["mounted on", s(&on)]);
}

/// Any user can mount something under any name; root can, too, and means it.
#[test]
fn other_users_mount_source_does_not_block_mkfs() {
    if !root_or_skip("a mount of another user") {
        return;
    }
    let Ok(connection) = File::options().read(true).write(true).open("/dev/fuse") else {
        skipped("no /dev/fuse");
        return;
    };
    let dir = scratch();
    let region = file(dir.path(), "region", 8 << 20);
    let on = dir.path().join("mnt");
    fs::create_dir(&on).unwrap();
    // As fusermount3 does it for user 4242. Nobody serves it: whoever asked it
    // for something would wait for ever.
    let mount = |user: u32, connection: &File| {
        let options = format!(
            "fd={},rootmode=40000,user_id={user},group_id=0",
            connection.as_raw_fd()
        );
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
        rustix::mount::mount(&region, &on, "fuse.other", flags, options.as_c_str()).unwrap();
    };
    let unmount = || rustix::mount::unmount(&on, rustix::mount::UnmountFlags::DETACH).unwrap();
    mount(4242, &connection);
    let answer = mkfs(["-f", s(&region)]);
    unmount();
    answer.ok();
    // Nor does it come up as a hint.
    let connection = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .unwrap();
    mount(4242, &connection);
    let held = RegionOptions::new().open(&region).unwrap();
    let answer = mkfs(["-f", s(&region)]);
    unmount();
    drop(held);
    assert!(!answer.err.contains("mounted on"), "{answer:?}");
    answer.refused(&["in use by process"]);

    let connection = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .unwrap();
    mount(0, &connection);
    let answer = mkfs(["-f", s(&region)]);
    unmount();
    answer.refused(&["mounted on", s(&on), "fuse.other"]);
}

#[test]
fn mkfs_of_impossible_size_fails() {
    let dir = scratch();
    let r = dir.path().join("r");
    for (size, words) in [
        ("0", "256K"),
        ("255K", "256K"),
        ("262143", "256K"),
        ("300001", "multiple of 4096"),
        ("1.3K", "not a whole number of bytes"),
        (".5G", "not a size"),
        ("many", "not a size"),
        ("99999999999P", "64 bits"),
    ] {
        mkfs([s(&r), size]).refused(&[words]);
        assert!(!r.exists(), "{size}");
    }
    let small = file(dir.path(), "small", 100_000);
    refused_untouched(&small, &[], &["100000 bytes are too few", "256K"]);
    let odd = file(dir.path(), "odd", 300_001);
    refused_untouched(&odd, &[], &["300001 bytes", "multiple of 4096", "299008"]);
}

#[test]
fn mkfs_with_invalid_options_fails() {
    let dir = scratch();
    let r = dir.path().join("r");
    let long = "x".repeat(64);
    for (args, words) in [
        (vec!["-b", "8192"], vec!["8192", "512, 1024, 2048 and 4096"]),
        (vec!["-b", "0"], vec!["512, 1024"]),
        (vec!["-O", "warp_drive"], vec!["warp_drive", "huge_leaves"]),
        (
            vec!["-O", "append_windows"],
            vec!["append_windows", "mount"],
        ),
        (vec!["-O", "atomic_data"], vec!["atomic_data", "mount"]),
        (vec!["-O", "ranged_marks"], vec!["ranged_marks", "mount"]),
        (vec!["-O", "parked_leases"], vec!["parked_leases", "mount"]),
        (vec!["-O", "quota"], vec!["quota", "reserved"]),
        (
            vec!["-b", "1024", "-O", "huge_leaves"],
            vec!["huge_leaves", "4096"],
        ),
        (vec!["-N", "3"], vec!["3 inodes", "16 to"]),
        (vec!["-N", "99999999"], vec!["99999999 inodes"]),
        (vec!["-N", "100", "-i", "1024"], vec!["cannot be used with"]),
        (vec!["-i", "1"], vec!["1 bytes an inode"]),
        (vec!["--lanes", "65"], vec!["65 journal lanes"]),
        (vec!["-U", "nonsense"], vec!["not a uuid", "nonsense"]),
        (
            vec!["-U", "00000000-0000-0000-0000-000000000000"],
            vec!["zeros"],
        ),
        (vec!["-L", &long], vec!["64 bytes", "63"]),
        (vec!["--mode", "9"], vec!["octal"]),
        (vec!["--frobnicate"], vec!["--frobnicate"]),
    ] {
        mkfs(args.iter().copied().chain([s(&r), "1M"])).refused(&words);
        assert!(!r.exists(), "{args:?} left a file");
    }
    mkfs::<&str>([]).refused(&["REGION"]);
}

#[test]
fn mkfs_of_unsuitable_object_fails() {
    let dir = scratch();
    mkfs([s(dir.path())]).refused(&[s(dir.path()), "directory"]);
    mkfs(["-f", s(dir.path()), "1M"]).refused(&["directory"]);
    let socket = dir.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    mkfs([s(&socket), "1M"]).refused(&[s(&socket), "socket"]);
    mkfs(["/dev/null", "1M"]).refused(&["/dev/null", "character device"]);
    let missing = dir.path().join("missing");
    mkfs([s(&missing)]).refused(&["does not exist", "give a size"]);
    // A file among the devices would hide that the device is missing.
    let device = "/dev/pmem-that-is-not-there";
    for args in [&[device, "1M"][..], &[device], &["-n", "-f", device, "1M"]] {
        mkfs(args).refused(&[device, "no such device"]);
    }
    assert!(!Path::new(device).exists());
    mkfs([s(&missing.join("r")), "1M"]).refused(&["does not exist"]);
    let empty = file(dir.path(), "empty", 0);
    mkfs([s(&empty)]).refused(&["is empty", "give a size"]);
    let a = mkfs(["--json", s(&missing)]).refused(&[]).json();
    assert_eq!(a["error"]["reason"], "not-found");
}

#[test]
fn mkfs_on_read_only_file_system_fails() {
    if !root_or_skip("a read-only mount") {
        return;
    }
    let dir = scratch();
    let on = dir.path().join("ro");
    fs::create_dir(&on).unwrap();
    let a = run("mount", ["-t", "tmpfs", "-o", "size=4m", "none", s(&on)]);
    if a.status != 0 {
        skipped(format_args!("no tmpfs can be mounted: {}", a.err));
        return;
    }
    let image = file(&on, "r", 1 << 20);
    let remounted = run("mount", ["-o", "remount,ro", s(&on)]);
    let there = mkfs(["-f", s(&image)]);
    let new = mkfs([s(&on.join("new")), "1M"]);
    run("umount", [s(&on)]).ok();
    remounted.ok();
    there.refused(&["read-only"]);
    new.refused(&["read-only"]);
}

#[test]
fn mkfs_of_inaccessible_file_fails() {
    if !root_or_skip("another user's view") {
        return;
    }
    let Some(setpriv) = find_or_skip("setpriv") else {
        return;
    };
    let dir = scratch();
    fs::set_permissions(
        dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let image = file(dir.path(), "r", 1 << 20);
    fs::set_permissions(&image, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    // The program itself may lie where that user cannot go.
    let program = dir.path().join("mkfs.pramfs");
    copy_program(MKFS, &program);
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    run(
        &setpriv,
        user.iter().copied().chain([s(&program), "-f", s(&image)]),
    )
    .refused(&["permission", s(&image)]);
    assert_eq!(fs::metadata(&image).unwrap().size(), 1 << 20);
}

#[test]
fn mkfs_larger_than_host_file_limit_fails() {
    let dir = scratch();
    let r = dir.path().join("r");
    let a = mkfs([s(&r), "16384P"]);
    assert_eq!(a.status, 1, "{a:?}");
    let a = mkfs([s(&r), "8191P"]);
    assert_eq!(a.status, 1, "{a:?}");
    assert!(a.err.contains(s(&r)), "{a:?}");
    assert!(!r.exists());
}

/// A file system on which nothing is left: an error, not a SIGBUS, and nothing
/// is left behind.
#[test]
fn mkfs_on_full_host_fails_and_leaves_nothing() {
    if !root_or_skip("a region on a full file system") {
        return;
    }
    let dir = scratch();
    let host = Tmpfs::new(dir.path(), c"size=32k");
    let region = host.0.join("r");
    let a = mkfs([s(&region), "1M"]).refused(&["not made", "full", s(&region)]);
    assert_eq!(a.out, "");
    assert!(!region.exists());
    let a = mkfs(["--json", s(&region), "1M"]).refused(&[]).json();
    assert_eq!(a["error"]["reason"], "no-space");

    let there = file(host.0, "there", 1 << 20);
    mkfs([s(&there)]).refused(&["not made", "full"]);
    assert!(there.exists());
}

#[test]
fn mkfs_allocate_reserves_whole_region() {
    let dir = scratch();
    let region = dir.path().join("r");
    mkfs([s(&region), "8M"]).ok();
    assert!(fs::metadata(&region).unwrap().blocks() * 512 < 8 << 20);
    mkfs(["-f", "--allocate", s(&region)]).ok();
    assert!(fs::metadata(&region).unwrap().blocks() * 512 >= 8 << 20);
}

#[test]
fn mkfs_allocate_without_room_leaves_nothing() {
    if !root_or_skip("a region larger than its file system") {
        return;
    }
    let dir = scratch();
    let host = Tmpfs::new(dir.path(), c"size=8m");
    let region = host.0.join("r");
    mkfs(["--allocate", s(&region), "16M"]).refused(&["not made", "no space", "--allocate"]);
    assert!(!region.exists());
    let a = mkfs(["--allocate", "--json", s(&region), "16M"]).refused(&[]);
    assert_eq!(a.json()["error"]["reason"], "no-space");
    assert!(!region.exists());
    let space = rustix::fs::statvfs(host.0).unwrap();
    assert_eq!(space.f_bavail, space.f_blocks);
    mkfs(["--allocate", s(&region), "4M"]).ok();
}

#[test]
fn mkfs_warns_if_host_has_too_little_room() {
    if !root_or_skip("a region larger than its file system") {
        return;
    }
    let dir = scratch();
    let host = Tmpfs::new(dir.path(), c"size=8m");
    let (large, small) = (host.0.join("large"), host.0.join("small"));
    let a = mkfs([s(&large), "16M"]).ok();
    assert!(
        a.err.contains("of the space that the region may need"),
        "{a:?}"
    );
    let a = mkfs([s(&small), "4M"]).ok();
    assert!(!a.err.contains("may need"), "{a:?}");
}

/// A mounted tmpfs, until it is dropped.
struct Tmpfs<'a>(&'a Path);

impl<'a> Tmpfs<'a> {
    fn new(path: &'a Path, options: &std::ffi::CStr) -> Tmpfs<'a> {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", path, "tmpfs", flags, options).unwrap();
        Tmpfs(path)
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        // Whatever the test came to.
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A process maps files by a lease that outlived its server. Its lock alone must suffice:
/// the superblock of this region cannot be read.
#[test]
fn mkfs_beside_live_lease_changes_nothing() {
    let dir = scratch();
    let region = made(dir.path(), "1M");
    let mut bytes = fs::read(&region).unwrap();
    bytes[..8].fill(0);
    bytes[64 << 10..][..8].fill(0);
    fs::write(&region, &bytes).unwrap();
    let path = s(&region);
    for args in [
        &["-f", path][..],
        &["-f", "--discard", path],
        &["-f", path, "512K"],
    ] {
        let file = File::open(&region).unwrap();
        // A lock on the whole file covers the bytes of the leases.
        let shared = rustix::fs::FlockOperation::NonBlockingLockShared;
        rustix::fs::fcntl_lock(&file, shared).unwrap();
        mkfs(args.iter().copied()).refused(&["still maps files"]);
        // Closing any descriptor of the file gives the lock back.
        assert!(fs::read(&region).unwrap() == bytes, "{args:?}");
    }
    mkfs(["-f", path]).ok();
}
