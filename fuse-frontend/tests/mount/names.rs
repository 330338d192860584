//! Names: directories, links, renames, special files, readdir.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RawDir, RenameFlags, makedev, mknodat, renameat_with,
};
use rustix::io::Errno;

use crate::mounted;

#[test]
fn names_of_255_bytes_of_any_value_are_accepted() {
    let Some((mount, _dog)) = mounted("long names", "") else {
        return;
    };
    let longest = [b'n'; 255];
    let odd: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    for name in [&longest[..], &odd, b" ", b"\n", b"...", b"-"] {
        let path = mount.at(OsStr::from_bytes(name));
        fs::write(&path, name).unwrap();
        assert_eq!(fs::read(&path).unwrap(), name);
    }
    let listed: BTreeSet<Vec<u8>> = fs::read_dir(mount.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().as_bytes().to_vec())
        .collect();
    assert!(listed.contains(&longest[..]) && listed.contains(&odd) && listed.len() == 6);
    let too_long = mount.at(OsStr::from_bytes(&[b'n'; 256]));
    for error in [
        fs::write(&too_long, "").unwrap_err(),
        fs::metadata(&too_long).unwrap_err(),
    ] {
        assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
    }
}

#[test]
fn hard_links_share_one_inode() {
    let Some((mount, _dog)) = mounted("hard links", "") else {
        return;
    };
    let first = mount.at("first");
    fs::write(&first, "shared").unwrap();
    fs::create_dir(mount.at("dir")).unwrap();
    let names: Vec<_> = (0..100).map(|n| mount.at(format!("dir/link{n}"))).collect();
    for (n, name) in names.iter().enumerate() {
        fs::hard_link(&first, name).unwrap();
        assert_eq!(fs::metadata(&first).unwrap().nlink(), n as u64 + 2);
    }
    assert_eq!(
        fs::metadata(&names[7]).unwrap().ino(),
        fs::metadata(&first).unwrap().ino()
    );
    fs::remove_file(&first).unwrap();
    assert_eq!(fs::metadata(&names[0]).unwrap().nlink(), 100);
    assert_eq!(fs::read(&names[99]).unwrap(), b"shared");
    let error = fs::hard_link(mount.at("dir"), mount.at("dir2")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
}

#[test]
fn mknod_makes_special_files() {
    let Some((mount, _dog)) = mounted("special files", "") else {
        return;
    };
    let mode = Mode::from_raw_mode(0o640);
    let device = makedev(259, 70_000);
    mknodat(CWD, mount.at("fifo"), FileType::Fifo, mode, 0).unwrap();
    mknodat(
        CWD,
        mount.at("char"),
        FileType::CharacterDevice,
        mode,
        device,
    )
    .unwrap();
    mknodat(
        CWD,
        mount.at("block"),
        FileType::BlockDevice,
        mode,
        makedev(7, 1),
    )
    .unwrap();
    mknodat(CWD, mount.at("plain"), FileType::RegularFile, mode, 0).unwrap();
    drop(UnixListener::bind(mount.at("socket")).unwrap());
    mount.unmount();
    mount.mount("");
    let meta = |name: &str| fs::symlink_metadata(mount.at(name)).unwrap();
    assert!(meta("fifo").file_type().is_fifo());
    assert!(meta("char").file_type().is_char_device());
    assert_eq!(meta("char").rdev(), device);
    assert!(meta("block").file_type().is_block_device());
    assert_eq!(meta("block").rdev(), makedev(7, 1));
    assert!(meta("socket").file_type().is_socket());
    assert!(meta("plain").is_file());
    assert_eq!(meta("fifo").permissions().mode() & 0o777, 0o640);

    // The null device works through a node on the mount.
    mknodat(
        CWD,
        mount.at("null"),
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        makedev(1, 3),
    )
    .unwrap();
    assert_eq!(fs::read(mount.at("null")).unwrap(), b"");
}

#[test]
fn symlinks_keep_their_targets() {
    let Some((mount, _dog)) = mounted("symlinks", "") else {
        return;
    };
    let long = "x/".repeat(2000);
    for (name, target) in [("short", "target"), ("long", long.as_str())] {
        symlink(target, mount.at(name)).unwrap();
        for _ in 0..2 {
            assert_eq!(fs::read_link(mount.at(name)).unwrap(), Path::new(target));
        }
        assert_eq!(
            fs::symlink_metadata(mount.at(name)).unwrap().len(),
            target.len() as u64
        );
    }
    fs::write(mount.at("target"), "through").unwrap();
    assert_eq!(fs::read(mount.at("short")).unwrap(), b"through");
}

#[test]
fn rename_flags_replace_exchange_whiteout() {
    let Some((mount, _dog)) = mounted("rename flags", "") else {
        return;
    };
    let rename =
        |from: &str, to: &str, flags| renameat_with(CWD, mount.at(from), CWD, mount.at(to), flags);
    let put = |name: &str| fs::write(mount.at(name), name).unwrap();
    let get = |name: &str| fs::read_to_string(mount.at(name)).unwrap();
    put("a");
    put("b");
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "c", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(get("c"), "a");
    rename("b", "c", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((get("b").as_str(), get("c").as_str()), ("a", "b"));
    assert_eq!(
        rename("b", "missing", RenameFlags::EXCHANGE),
        Err(Errno::NOENT)
    );
    rename("b", "d", RenameFlags::WHITEOUT).unwrap();
    assert_eq!(get("d"), "a");
    let whiteout = fs::symlink_metadata(mount.at("b")).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    assert_eq!(
        rename("c", "d", RenameFlags::EXCHANGE | RenameFlags::NOREPLACE),
        Err(Errno::INVAL)
    );
    rename("c", "d", RenameFlags::empty()).unwrap();
    assert_eq!(get("d"), "b");
    assert!(!mount.at("c").exists());
}

#[test]
fn directory_rename_updates_link_counts() {
    let Some((mount, _dog)) = mounted("directory rename", "") else {
        return;
    };
    let nlink = |name: &str| fs::metadata(mount.at(name)).unwrap().nlink();
    for name in ["a", "b", "a/child", "a/child/file"] {
        fs::create_dir(mount.at(name)).unwrap();
    }
    assert_eq!((nlink("a"), nlink("b")), (3, 2));
    fs::rename(mount.at("a/child"), mount.at("b/moved")).unwrap();
    assert_eq!((nlink("a"), nlink("b")), (2, 3));
    let parent = fs::metadata(mount.at("b/moved/..")).unwrap().ino();
    assert_eq!(parent, fs::metadata(mount.at("b")).unwrap().ino());
    let error = fs::rename(mount.at("b"), mount.at("b/moved/b")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    let error = fs::remove_dir(mount.at("b")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTEMPTY));
    fs::remove_dir(mount.at("a")).unwrap();
    assert!(!mount.at("a").exists());
}

#[test]
fn readdir_is_stable_while_entries_vanish() {
    let Some((mount, _dog)) = mounted("readdir", "") else {
        return;
    };
    const FILES: usize = 5000;
    let dir = mount.at("many");
    fs::create_dir(&dir).unwrap();
    for n in 0..FILES {
        File::create_new(dir.join(format!("file{n:04}"))).unwrap();
    }
    // Every second file is removed while the directory is read with a small buffer. All
    // remaining files must be listed, and no file twice.
    let mut seen = HashSet::new();
    let mut next_to_go = 0;
    let fd = File::open(&dir).unwrap();
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(&fd, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_bytes().to_vec();
        assert_ne!(entry.ino(), 0);
        assert!(seen.insert(name), "{:?} was given twice", entry.file_name());
        if next_to_go < FILES {
            fs::remove_file(dir.join(format!("file{next_to_go:04}"))).unwrap();
            next_to_go += 2;
        }
    }
    for n in (1..FILES).step_by(2) {
        assert!(
            seen.contains(format!("file{n:04}").as_bytes()),
            "file{n:04} was left out"
        );
    }
    assert!(seen.contains(&b"."[..]) && seen.contains(&b".."[..]));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), FILES / 2);
}

#[test]
fn lookup_counts_stay_exact_under_churn() {
    let Some((mount, _dog)) = mounted("lookup counts", "") else {
        return;
    };
    // Lists with attributes (readdirplus), removes and recreates the same names many times.
    // A lookup count that is off by one either leaks inodes or frees one that the kernel
    // still uses.
    let free = || rustix::fs::statvfs(mount.path()).unwrap().f_ffree;
    fs::create_dir(mount.at("d")).unwrap();
    let before = free();
    for round in 0..20 {
        for n in 0..50 {
            fs::write(mount.at(format!("d/{n}")), round.to_string()).unwrap();
        }
        for entry in fs::read_dir(mount.at("d")).unwrap() {
            let entry = entry.unwrap();
            assert!(entry.metadata().unwrap().is_file());
            assert_eq!(fs::read_to_string(entry.path()).unwrap(), round.to_string());
        }
        for n in 0..50 {
            fs::remove_file(mount.at(format!("d/{n}"))).unwrap();
        }
    }
    assert!(
        pramfs_tests::mounted::wait_until(|| before - free() < 8),
        "{} of {before} inodes came back",
        free()
    );
}

#[test]
fn negative_entries_are_cached_and_dropped() {
    let Some((mount, _dog)) = mounted("negative entries", "") else {
        return;
    };
    for _ in 0..3 {
        assert!(!mount.at("file").exists());
        fs::write(mount.at("file"), "").unwrap();
        assert!(mount.at("file").exists());
        fs::rename(mount.at("file"), mount.at("other")).unwrap();
        assert!(!mount.at("file").exists() && mount.at("other").exists());
        fs::hard_link(mount.at("other"), mount.at("file")).unwrap();
        assert!(mount.at("file").exists());
        fs::remove_file(mount.at("file")).unwrap();
        fs::remove_file(mount.at("other")).unwrap();
    }
}

#[test]
fn root_inode_number_is_same_from_all_paths() {
    let Some((mount, _dog)) = mounted("root", "") else {
        return;
    };
    fs::create_dir(mount.at("sub")).unwrap();
    let root = fs::metadata(mount.path()).unwrap().ino();
    assert_eq!(fs::metadata(mount.at("sub/..")).unwrap().ino(), root);
    let dir = File::open(mount.path()).unwrap();
    assert_eq!(
        rustix::fs::statat(&dir, ".", AtFlags::empty())
            .unwrap()
            .st_ino,
        root
    );
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry.unwrap();
        if entry.file_name() == c"." {
            assert_eq!(entry.ino(), root);
        }
    }
}

#[test]
fn exclusive_create_succeeds_once() {
    let Some((mount, _dog)) = mounted("O_EXCL", "") else {
        return;
    };
    let mut file = File::create_new(mount.at("once")).unwrap();
    file.write_all(b"first").unwrap();
    let error = File::create_new(mount.at("once")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
    assert_eq!(fs::read(mount.at("once")).unwrap(), b"first");
}
