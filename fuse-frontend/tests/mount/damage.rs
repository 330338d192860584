//! Damage on the medium, as a mount reports it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Child, Command};

use pramfs::inode::Ino;
use pramfs_tests::mounted::{Mounted, kernel_opens, wait_until};
use pramfs_tests::region::inode_home;

use crate::{MIB, mounted, namespaces, unmounted};
use pramfs_medium::pmem::RegionAccess;

#[test]
fn directory_with_damaged_inode_lists_others() {
    let Some((mount, _dog)) = mounted("damaged inode", "") else {
        return;
    };
    let free = || rustix::fs::statvfs(mount.path()).unwrap().f_bfree;
    let before = free();
    let dir = mount.at("dir");
    fs::create_dir(&dir).unwrap();
    for n in 0..8 {
        fs::write(dir.join(format!("file{n}")), vec![n; MIB as usize]).unwrap();
    }
    let hurt = fs::metadata(dir.join("file3")).unwrap().ino();
    mount.unmount();
    let image = fs::read(mount.region()).unwrap();
    let at = inode_home(&image, Ino(hurt)) + 0x18;
    let region = fs::File::options().write(true).open(mount.region());
    let byte = [!image[at]];
    region.unwrap().write_all_at(&byte, at as u64).unwrap();

    mount.mount("errors=continue");
    for _ in 0..3 {
        let listed: BTreeSet<(String, u64, bool)> = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                let is_file = entry.file_type().unwrap().is_file();
                use std::os::unix::fs::DirEntryExt;
                (name, entry.ino(), is_file)
            })
            .collect();
        assert_eq!(listed.len(), 8);
        for (n, (name, ino, is_file)) in listed.iter().enumerate() {
            let path = dir.join(name);
            assert_eq!((name.as_str(), *is_file), (&*format!("file{n}"), true));
            if n == 3 {
                assert_eq!(*ino, hurt);
                let error = fs::metadata(path).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EUCLEAN));
            } else {
                assert_eq!(fs::read(path).unwrap(), vec![n as u8; MIB as usize]);
            }
        }
    }
    for n in (0..8).filter(|n| *n != 3) {
        fs::remove_file(dir.join(format!("file{n}"))).unwrap();
    }
    // The listing leaks no reference: all files but the damaged one, which may have a leaf
    // of 2 MiB, are freed.
    assert!(
        wait_until(|| before - free() < 512 + 64),
        "{} of {before}",
        free()
    );
}

#[test]
fn background_mount_warns_of_damage() {
    let Some((mount, _dog)) = unmounted("damaged superblock") else {
        return;
    };
    let region = fs::File::options().write(true).open(mount.region());
    // The key of the hashes: anything but the label, which a crash may tear.
    region.unwrap().write_all_at(&[0xff; 16], 0x78).unwrap();
    let out = mount.run::<&str>([]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success() && out.stdout.is_empty(), "{said}");
    assert!(said.contains("first superblock is damaged"), "{said}");
}

#[test]
fn mount_warns_of_damaged_backup_superblock() {
    let Some((mount, _dog)) = unmounted("damaged copy") else {
        return;
    };
    let region = fs::File::options().write(true).open(mount.region());
    region.unwrap().write_all_at(&[0xff; 16], 0x10078).unwrap();
    let out = mount.run::<&str>([]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success() && out.stdout.is_empty(), "{said}");
    assert!(
        said.contains("copy of the superblock is damaged") && said.contains("fsck.pramfs -p"),
        "{said}"
    );
    // The contents are intact and can be changed.
    fs::write(mount.at("file"), b"new").unwrap();
}

/// A region with the file `dir/hurt`, whose inode is damaged, and `whole`.
pub fn hurt(test: &str) -> Option<(Mounted, pramfs_tests::watchdog::Watchdog, u64)> {
    let (mount, dog) = mounted(test, "")?;
    fs::create_dir(mount.at("dir")).unwrap();
    fs::write(mount.at("dir/hurt"), "bytes").unwrap();
    fs::write(mount.at("whole"), "unharmed").unwrap();
    let ino = fs::metadata(mount.at("dir/hurt")).unwrap().ino();
    mount.unmount();
    let image = fs::read(mount.region()).unwrap();
    let at = inode_home(&image, Ino(ino)) + 0x18;
    let region = fs::File::options().write(true).open(mount.region());
    let byte = [!image[at]];
    region.unwrap().write_all_at(&byte, at as u64).unwrap();
    Some((mount, dog, ino))
}

fn log_of(mount: &Mounted) -> PathBuf {
    mount.path().with_file_name("log")
}

/// Mounts in the foreground, with the log in a file.
fn logged(mount: &Mounted) -> Child {
    let log = fs::File::create(log_of(mount)).unwrap();
    let mut command = mount.command();
    command.arg("-f").env_remove("PRAMFS_LOG").stderr(log);
    let child = command.spawn().unwrap();
    assert!(wait_until(|| mount.is_mounted()));
    child
}

/// Returns whether `/proc/mounts` shows the mount as `rw` or `ro`.
fn shown(mount: &Mounted) -> String {
    let line = mount.mounts_line().unwrap();
    let options = line.split(' ').nth(3).unwrap();
    options.split(',').next().unwrap().to_owned()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: std::io::Result<T>, errno: i32) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(errno));
}

#[test]
fn damage_makes_mount_read_only_after_writers_close() {
    let Some((mount, _dog, ino)) = hurt("read-only after damage") else {
        return;
    };
    let mut server = logged(&mount);
    let log = || fs::read_to_string(log_of(&mount)).unwrap();
    let whole = mount.at("whole");
    let options = || fs::File::options().read(true).write(true).to_owned();
    let writer = options().open(&whole).unwrap();
    writer.write_all_at(b"U", 0).unwrap();
    for _ in 0..3 {
        refused(fs::metadata(mount.at("dir/hurt")), libc::EUCLEAN);
    }
    // Changes fail at once, before the kernel knows.
    refused(writer.write_all_at(b"x", 0), libc::EROFS);
    match kernel_opens() {
        false => refused(options().open(&whole), libc::EROFS),
        true => refused(
            options().open(&whole).unwrap().write_all_at(b"x", 0),
            libc::EROFS,
        ),
    }
    refused(fs::write(mount.at("new"), "x"), libc::EROFS);
    assert_eq!(fs::read(&whole).unwrap(), b"Unharmed");
    assert!(wait_until(
        || log().contains("until all files open for writing are closed")
    ));
    assert_eq!(shown(&mount), "rw");
    drop(writer);
    assert!(wait_until(|| shown(&mount) == "ro"), "{}", log());
    assert!(wait_until(|| log().contains("is now mounted read-only")));
    assert_eq!(fs::read(&whole).unwrap(), b"Unharmed");
    refused(options().open(&whole), libc::EROFS);
    // Root cannot remount it read-write either, until the damage is repaired.
    let again = mount.run(["-o", "remount,rw"]);
    assert!(!again.status.success());
    assert_eq!(shown(&mount), "ro");

    mount.unmount();
    assert!(server.wait().unwrap().success());
    let log = log();
    let damage: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(": damage: "))
        .collect();
    assert_eq!(damage.len(), 1, "met three times, logged once: {log}");
    let region = mount.region();
    for part in [
        format!("{}: damage: \"/dir/hurt\" (inode {ino})", region.display()),
        format!("run `fsck.pramfs {}`", region.display()),
    ] {
        assert!(damage[0].contains(&part), "{part} in: {log}");
    }
}

/// The server has one thread, which must serve the write-back of dirty pages while the
/// superblock is remounted.
#[test]
fn damage_with_one_thread_and_dirty_pages_goes_ro() {
    let Some((mount, _dog, _)) = hurt("one thread") else {
        return;
    };
    mount.mount("threads=1");
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(mount.at("whole"))
        .unwrap();
    let region = pramfs::pmem::RegionOptions::new()
        .backend(pramfs::pmem::BackendKind::Native)
        .durability(pramfs::pmem::Durability::Process)
        .lock(false);
    file.set_len(64 << 12).unwrap();
    let map = region.open(mount.at("whole")).unwrap();
    for at in (0..64 << 12).step_by(4096) {
        drop(map.window().store(at, b"changed!").unwrap());
    }
    refused(fs::metadata(mount.at("dir/hurt")), libc::EUCLEAN);
    assert_eq!(
        map.sync_all().unwrap_err().raw_os_error(),
        Some(libc::EROFS)
    );
    drop(map);
    drop(file);
    assert!(wait_until(|| shown(&mount) == "ro"));
}

/// A server started by an ordinary user, in a mount namespace where all users may open
/// /dev/fuse.
#[test]
fn server_without_remount_right_warns_once() {
    let Some((mount, _dog, _)) = hurt("no right to remount") else {
        return;
    };
    const USER: u32 = 65_534;
    let dir = tempfile::tempdir().unwrap();
    for path in [&mount.region(), &mount.path(), dir.path()] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let open = fs::Permissions::from_mode(0o755);
    for path in [mount.path().parent().unwrap(), dir.path()] {
        fs::set_permissions(path, open.clone()).unwrap();
    }
    let script = r#"
        as_user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
        mknod -m 666 "$DIR/fuse" c 10 229 && mount --bind "$DIR/fuse" /dev/fuse || exit 77
        as_user "$PROGRAM" "$REGION" "$MNT" -f 2>"$DIR/log" &
        server=$!
        until grep -q " $MNT fuse" /proc/mounts; do
            kill -0 $server || { cat "$DIR/log"; exit 1; }
            sleep 0.05
        done
        as_user ls "$MNT/dir/hurt"
        until grep -q "stays shown as rw" "$DIR/log"; do sleep 0.05; done
        as_user touch "$MNT/new" && exit 2
        sleep 1
        grep -c "stays shown as rw" "$DIR/log"
        as_user fusermount3 -u "$MNT"
        wait $server
    "#;
    let mut unshare = Command::new("unshare");
    unshare
        .args(["-m", "--propagation=private", "sh", "-c", script])
        .env("DIR", dir.path())
        .env("PROGRAM", crate::program())
        .env("REGION", mount.region())
        .env("MNT", mount.path())
        .env_remove("PRAMFS_LOG");
    let out = namespaces::output(&mut unshare);
    if out.status.code() == Some(77) {
        return pramfs_tests::skip::skipped("no device node for users can be made here");
    }
    let said = String::from_utf8_lossy(&out.stdout);
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(out.status.success(), "{}: {said}: {log}", out.status);
    assert_eq!(said.trim(), "1", "{log}");
}

const PAGE: usize = 4096;

/// Makes a region with files of 40 pages. Each has lost pages 8 to 16, which a repair has
/// marked. Returns the original contents and the inodes.
fn lost(
    test: &str,
    names: &[&str],
) -> Option<(Mounted, pramfs_tests::watchdog::Watchdog, Vec<u8>, Vec<u64>)> {
    use pramfs_fsck::{Policy, RepairOptions, repair};
    let (mount, dog) = mounted(test, "")?;
    let whole: Vec<u8> = (0..40 * PAGE).map(|i| (i / PAGE + 1) as u8).collect();
    let made = names.iter().map(|name| {
        fs::write(mount.at(name), &whole).unwrap();
        fs::metadata(mount.at(name)).unwrap().ino()
    });
    let inodes: Vec<u64> = made.collect();
    mount.unmount();
    let image = fs::read(mount.region()).unwrap();
    let region = fs::File::options().write(true).open(mount.region());
    let region = region.unwrap();
    for ino in &inodes {
        let at = inode_home(&image, Ino(*ino)) + 0x40;
        let root = u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
        let table = (root & ((1 << 40) - 1)) * PAGE as u64;
        region.write_all_at(&[0x35; 64], table + 64).unwrap();
    }
    let region = pramfs::pmem::RegionOptions::new()
        .open(mount.region())
        .unwrap();
    let report = repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
    assert!(
        report.is_sound() && report.marked.len() == names.len(),
        "{report}"
    );
    Some((mount, dog, whole, inodes))
}

/// A marked lost range is not new damage: the mount stays read-write.
#[test]
fn lost_range_is_logged_once_per_file_and_minute() {
    let Some((mount, _dog, whole, inodes)) = lost("lost, in the log", &["one", "two"]) else {
        return;
    };
    let mut server = logged(&mount);
    let log = || fs::read_to_string(log_of(&mount)).unwrap();
    let mut page = vec![0; PAGE];
    for _ in 0..3 {
        for name in ["one", "two"] {
            let file = fs::File::open(mount.at(name)).unwrap();
            for n in 8..16 {
                let read = file.read_at(&mut page, (n * PAGE) as u64);
                refused(read, libc::EIO);
            }
            assert_eq!(file.read_at(&mut page, 0).unwrap(), PAGE);
            assert_eq!(page, whole[..PAGE]);
        }
    }
    fs::write(mount.at("new"), "changes go on").unwrap();
    mount.unmount();
    assert!(server.wait().unwrap().success());
    let log = log();
    let told: Vec<&str> = log.lines().filter(|line| line.contains("lost")).collect();
    assert_eq!(told.len(), 2, "{log}");
    let region = mount.region();
    for ((name, ino), line) in ["one", "two"].iter().zip(inodes).zip(told) {
        let what = format!(
            "{}: damage: \"/{name}\" (inode {ino}): the bytes at offset 32768 were lost, and reading them fails with EIO until they are written; `pramfs stat` lists",
            region.display()
        );
        assert!(
            line.contains("ERROR") && line.contains(&what),
            "{what} in: {log}"
        );
    }
    assert!(
        !log.contains("fsck.pramfs") && !log.contains("read-only"),
        "{log}"
    );
}

/// The page cache must not show zeros instead.
#[test]
fn lost_range_reads_as_eio_through_kernel() {
    let Some((mount, _dog, whole, _)) = lost("lost range", &["file"]) else {
        return;
    };
    let path = mount.at("file");
    mount.mount("");
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let mut page = vec![0; PAGE];
    let eio = |result: std::io::Result<usize>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
    };
    for _ in 0..2 {
        for n in (0..40).rev() {
            let read = file.read_at(&mut page, (n * PAGE) as u64);
            if (8..16).contains(&n) {
                eio(read);
            } else {
                assert_eq!(read.unwrap(), PAGE);
                assert_eq!(page, whole[n * PAGE..(n + 1) * PAGE]);
            }
        }
    }
    // A read returns at most the bytes before the lost range, and no zeros.
    let mut all = vec![0; 40 * PAGE];
    if let Ok(n) = file.read_at(&mut all, 0) {
        assert!(n <= 8 * PAGE && all[..n] == whole[..n], "{n}");
    }
    const LIST: &str = "system.pramfs.lost";
    let mut value = [0; 100];
    let n = rustix::fs::getxattr(&path, LIST, &mut value).unwrap();
    assert_eq!(value[..n], *b"32768+32768");
    let n = rustix::fs::listxattr(&path, &mut value).unwrap();
    assert_eq!(value[..n], *b"system.pramfs.lost\0");
    let set = rustix::fs::setxattr(&path, LIST, b"", rustix::fs::XattrFlags::empty());
    assert_eq!(set.unwrap_err(), rustix::io::Errno::OPNOTSUPP);
    // A partial write of a lost block fails; a full one succeeds and makes it readable.
    eio(file.write_at(b"part", 9 * PAGE as u64));
    eio(file.write_at(b"part", 12 * PAGE as u64 - 4));
    file.write_all_at(&whole[9 * PAGE..10 * PAGE], 9 * PAGE as u64)
        .unwrap();
    assert_eq!(file.read_at(&mut page, 9 * PAGE as u64).unwrap(), PAGE);
    assert_eq!(page, whole[9 * PAGE..10 * PAGE]);
    eio(file.read_at(&mut page, 8 * PAGE as u64));
    file.write_all_at(&whole[8 * PAGE..16 * PAGE], 8 * PAGE as u64)
        .unwrap();
    assert!(fs::read(&path).unwrap() == whole);
    let gone = rustix::fs::getxattr(&path, LIST, &mut value);
    assert_eq!(gone.unwrap_err(), rustix::io::Errno::NODATA);
}
