//! `cache=writeback`: bytes that the kernel holds back, the calls that write them, and the errors
//! that programs get if that fails.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::{Duration, SystemTime};

use pramfs_tests::mounted::{Mounted, wait_until};
use pramfs_tests::syscalls::{close, errno};
use pramfs_tests::watchdog::Watchdog;
use rustix::fs::fsync;

use crate::{MIB, mounted, unmounted};

fn held_back(test: &str) -> Option<(Mounted, Watchdog)> {
    mounted(test, "cache=writeback")
}

fn open(mount: &Mounted, name: &str) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(mount.at(name))
        .unwrap()
}

/// The server dies. What fsync has reached is there; of the rest, each page is there or not.
#[test]
fn fsync_makes_held_back_write_survive_server_kill() {
    let Some((mount, _dog)) = held_back("fsync, then SIGKILL") else {
        return;
    };
    for round in 0..4u8 {
        let name = format!("f{round}");
        let file = open(&mount, &name);
        let bytes = vec![round + 1; 300_000];
        file.write_all_at(&bytes, 0).unwrap();
        match round % 2 {
            0 => file.sync_all().unwrap(),
            _ => file.sync_data().unwrap(),
        }
        file.write_all_at(&[0xee; 50_000], 300_000).unwrap();
        mount.crash();
        drop(file);
        mount.mount("cache=writeback");
        let found = fs::read(mount.at(&name)).unwrap();
        assert!(
            (300_000..=350_000).contains(&found.len()),
            "{}",
            found.len()
        );
        let (synced, rest) = found.split_at(300_000);
        assert!(synced == bytes && rest.iter().all(|b| matches!(b, 0 | 0xee)));
    }
    mount.unmount();
}

#[test]
fn close_and_unmount_write_held_back_bytes() {
    let Some((mount, _dog)) = held_back("close") else {
        return;
    };
    let file = open(&mount, "closed");
    file.write_all_at(&[7; 100_000], 5).unwrap();
    assert_eq!(close(file), Ok(()));
    mount.crash();
    mount.mount("cache=writeback");
    let found = fs::read(mount.at("closed")).unwrap();
    assert_eq!(found.len(), 100_005);
    assert!(found[5..].iter().all(|b| *b == 7));

    // A mapping keeps the file open when its descriptor is gone, and is not waited for.
    let file = open(&mount, "mapped");
    file.set_len(8192).unwrap();
    // A descriptor by another name holds a page back that no close has written.
    file.write_all_at(&[9; 4096], 4096).unwrap();
    drop(file);
    mount.unmount();
    mount.mount("");
    let found = fs::read(mount.at("mapped")).unwrap();
    assert_eq!((found.len(), &found[4096..]), (8192, &[9; 4096][..]));
    mount.unmount();
}

/// Each descriptor that was open is told once by fsync, or else one of them by close.
#[test]
fn held_back_write_without_space_fails_in_fsync_and_close() {
    let Some((mount, _dog)) = held_back("ENOSPC at close") else {
        return;
    };
    let (first, second, third) = (open(&mount, "f"), open(&mount, "f"), open(&mount, "f"));
    let mut filler = OpenOptions::new()
        .append(true)
        .create(true)
        .custom_flags(libc::O_DIRECT)
        .open(mount.at("filler"))
        .unwrap();
    while filler.write_all(&vec![1; 65536]).is_ok() {}
    while filler.write_all(&[1; 4096]).is_ok() {}
    first.write_all_at(&vec![2; MIB as usize], 0).unwrap();
    let no_space = Err(libc::ENOSPC);
    assert_eq!(errno(fsync(&first)), no_space);
    assert_eq!(errno(fsync(&first)), Ok(()), "it was told");
    assert_eq!(errno(fsync(&second)), no_space, "each descriptor");
    // A close tells what no fsync and no close has told.
    assert_eq!(close(third), Ok(()));
    first.write_all_at(&vec![3; MIB as usize], 0).unwrap();
    assert_eq!(close(second), no_space);
    assert_eq!(close(first), Ok(()));
    drop(filler);
    mount.unmount();
}

#[test]
fn appends_of_two_descriptors_lose_nothing_to_write_back() {
    let Some((mount, _dog)) = held_back("two appenders") else {
        return;
    };
    let path = mount.at("log");
    let append = || {
        let mut options = OpenOptions::new();
        options.append(true).create(true).open(&path).unwrap()
    };
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (mut log, path) = (append(), &path);
            scope.spawn(move || {
                for line in 0..2000 {
                    let text = format!("{writer} {line}\n");
                    log.write_all(text.as_bytes()).unwrap();
                    if line % 500 == writer * 100 {
                        log.sync_data().unwrap();
                    }
                    if line % 700 == 0 {
                        // Reads make pages clean and dirty again.
                        fs::read(path).unwrap();
                    }
                }
            });
        }
    });
    let text = fs::read_to_string(&path).unwrap();
    mount.unmount();
    mount.mount("");
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    for writer in 0..2 {
        let own = text.lines().filter_map(|line| {
            let (who, line) = line.split_once(' ')?;
            (who == writer.to_string()).then(|| line.parse::<usize>().unwrap())
        });
        assert!(own.eq(0..2000), "writer {writer}");
    }
    assert_eq!(text.lines().count(), 4000);
    mount.unmount();
}

/// Bytes around a write, and those past a cut, are as they were or zero, held back or not.
#[test]
fn held_back_parts_of_pages_and_cuts_read_as_written() {
    let Some((mount, _dog)) = held_back("parts of pages") else {
        return;
    };
    let file = open(&mount, "f");
    let mut expected = vec![1u8; 3 * 4096 + 100];
    file.write_all_at(&expected, 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    mount.unmount();
    mount.mount("cache=writeback");
    // Write-only: the kernel itself reads the rest of the pages.
    let file = OpenOptions::new().write(true).open(mount.at("f")).unwrap();
    file.write_all_at(&[2; 20], 4090).unwrap();
    expected[4090..4110].fill(2);
    file.set_len(4100).unwrap();
    expected.truncate(4100);
    file.write_all_at(&[3; 10], 20_000).unwrap();
    expected.resize(20_000, 0);
    expected.extend([3; 10]);
    file.set_len(20_005).unwrap();
    file.set_len(30_000).unwrap();
    expected.truncate(20_005);
    expected.resize(30_000, 0);
    assert!(fs::read(mount.at("f")).unwrap() == expected);
    file.sync_all().unwrap();
    drop(file);
    mount.unmount();
    mount.mount("");
    assert!(fs::read(mount.at("f")).unwrap() == expected);
    mount.unmount();
}

/// Whole pages are written back, with bytes that must not be overwritten.
#[test]
fn append_only_file_takes_appends_and_no_overwrite() {
    let Some((mount, _dog)) = held_back("chattr +a") else {
        return;
    };
    let path = mount.at("log");
    fs::write(&path, "first\n").unwrap();
    let set = |flags| {
        let file = File::open(&path).unwrap();
        rustix::fs::ioctl_setflags(file.as_fd(), flags).unwrap();
    };
    set(rustix::fs::IFlags::APPEND);
    let mut log = OpenOptions::new().append(true).open(&path).unwrap();
    // More than one request, which the kernel sends in any order if it holds them back.
    let more = "0123456\n".repeat(400_000);
    log.write_all(more.as_bytes()).unwrap();
    let refused = OpenOptions::new().write(true).open(&path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    assert_eq!(close(log), Ok(()));
    mount.crash();
    mount.mount("cache=writeback");
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("first\n{more}"));
    set(rustix::fs::IFlags::empty());
    mount.unmount();
}

/// The kernel owns the times until they are written with the bytes.
#[test]
fn times_of_held_back_write_reach_the_medium() {
    let Some((mount, _dog)) = held_back("times") else {
        return;
    };
    let file = open(&mount, "f");
    file.write_all_at(b"bytes", 0).unwrap();
    let past = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    file.set_modified(past).unwrap();
    let before = file.metadata().unwrap();
    assert_eq!(before.modified().unwrap(), past);
    file.sync_all().unwrap();
    file.write_all_at(b"more", 5).unwrap();
    let now = file.metadata().unwrap();
    assert!(now.modified().unwrap() > past && now.len() == 9);
    drop(file);
    mount.unmount();
    mount.mount("");
    let after = fs::metadata(mount.at("f")).unwrap();
    assert_eq!(after.modified().unwrap(), now.modified().unwrap());
    assert_eq!(
        (after.ctime(), after.ctime_nsec()),
        (now.ctime(), now.ctime_nsec())
    );
    mount.unmount();
}

/// Writes that fill the cache make the kernel write back by itself.
#[test]
fn held_back_bytes_reach_the_medium_without_fsync() {
    let Some((mount, _dog)) = held_back("write-back by itself") else {
        return;
    };
    let file = open(&mount, "f");
    file.write_all_at(&vec![4; 8 * MIB as usize], 0).unwrap();
    // Of this mount alone: other tests hold bytes back, too.
    rustix::fs::syncfs(&file).unwrap();
    let blocks = || fs::metadata(mount.at("f")).unwrap().blocks();
    assert!(wait_until(|| blocks() >= 8 * MIB / 512), "{}", blocks());
    drop(file);
    mount.unmount();
}

#[test]
fn writeback_beside_direct_access_is_refused() {
    let Some((mount, _dog)) = unmounted("cache=writeback,direct=owner") else {
        return;
    };
    let out = mount.run(["-o", "cache=writeback,direct=owner"]);
    assert!(!out.status.success() && !mount.is_mounted());
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        said.contains("cache=writeback cannot be combined with direct=owner"),
        "{said}"
    );
}

/// The mount is in use: its open files fail from then on, with what they had written on the
/// medium.
#[test]
fn sigterm_on_busy_mount_writes_held_back_bytes() {
    let Some((mount, _dog)) = held_back("SIGTERM") else {
        return;
    };
    let file = open(&mount, "f");
    let bytes: Vec<u8> = (0..32 * MIB).map(|i| (i % 251) as u8).collect();
    file.write_all_at(&bytes, 0).unwrap();
    mount.signal(rustix::process::Signal::TERM);
    mount.wait_for_end();
    drop(file);
    mount.mount("");
    assert!(fs::read(mount.at("f")).unwrap() == bytes);
    mount.unmount();
}

#[test]
fn seek_takes_held_back_bytes_for_data() {
    let Some((mount, _dog)) = held_back("SEEK_DATA") else {
        return;
    };
    let file = open(&mount, "f");
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&[1; 10], 500_000).unwrap();
    let seek = |to| rustix::fs::seek(&file, to);
    assert!(seek(rustix::fs::SeekFrom::Data(0)).unwrap() <= 500_000);
    assert!(seek(rustix::fs::SeekFrom::Hole(500_005)).unwrap() >= 500_010);
    drop(file);
    mount.unmount();
}

#[test]
fn o_direct_sees_held_back_bytes_and_sets_mtime() {
    let Some((mount, _dog)) = held_back("O_DIRECT") else {
        return;
    };
    let file = open(&mount, "f");
    file.write_all_at(&[1], 100_000).unwrap();
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(mount.at("f"))
        .unwrap();
    let mut found = [9; 4096];
    assert_eq!(direct.read_at(&mut found, 0).unwrap(), 4096);
    assert_eq!(found, [0; 4096]);
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(past).unwrap();
    direct.write_all_at(&[2; 4096], 0).unwrap();
    assert!(file.metadata().unwrap().modified().unwrap() > past);
    let mut found = [0; 100];
    file.read_exact_at(&mut found, 4000).unwrap();
    assert_eq!((found[95], found[96]), (2, 0));
    drop((file, direct));
    mount.unmount();
}

/// What was written before a file became immutable is stored after that.
#[test]
fn bytes_held_back_before_chattr_i_reach_the_medium() {
    let Some((mount, _dog)) = held_back("chattr +i") else {
        return;
    };
    let file = open(&mount, "f");
    let set = |flags| rustix::fs::ioctl_setflags(file.as_fd(), flags).unwrap();
    file.write_all_at(&[3; 10_000], 0).unwrap();
    set(rustix::fs::IFlags::IMMUTABLE);
    assert_eq!(errno(fsync(&file)), Ok(()));
    assert!(OpenOptions::new().write(true).open(mount.at("f")).is_err());
    mount.crash();
    drop(file);
    mount.mount("");
    assert!(fs::read(mount.at("f")).unwrap() == [3; 10_000]);
    let file = File::open(mount.at("f")).unwrap();
    rustix::fs::ioctl_setflags(file.as_fd(), rustix::fs::IFlags::empty()).unwrap();
    drop(file);
    mount.unmount();
}

#[test]
fn file_with_chattr_s_is_written_at_once() {
    let Some((mount, _dog)) = held_back("chattr +S") else {
        return;
    };
    let file = open(&mount, "f");
    rustix::fs::ioctl_setflags(file.as_fd(), rustix::fs::IFlags::SYNC).unwrap();
    drop(file);
    let file = open(&mount, "f");
    file.write_all_at(&[5; 10_000], 0).unwrap();
    mount.crash();
    drop(file);
    mount.mount("");
    assert!(fs::read(mount.at("f")).unwrap() == [5; 10_000]);
    mount.unmount();
}

/// The kernel's own times are older than those of a write that it has not seen.
#[test]
fn mtime_of_write_to_file_with_chattr_s_stays() {
    let Some((mount, _dog)) = held_back("mtime with chattr +S") else {
        return;
    };
    let path = mount.at("f");
    fs::write(&path, "first").unwrap();
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = open(&mount, "f");
    file.set_modified(past).unwrap();
    rustix::fs::ioctl_setflags(file.as_fd(), rustix::fs::IFlags::SYNC).unwrap();
    drop(file);
    open(&mount, "f").write_all_at(b"other", 0).unwrap();
    // The kernel flushes its times with a change of the name.
    fs::rename(&path, mount.at("g")).unwrap();
    mount.unmount();
    mount.mount("");
    let after = fs::metadata(mount.at("g")).unwrap().modified().unwrap();
    assert!(after > past);
    mount.unmount();
}

#[test]
fn mtime_of_immutable_file_cannot_be_set() {
    let Some((mount, _dog)) = held_back("mtime with chattr +i") else {
        return;
    };
    let file = open(&mount, "f");
    file.write_all_at(b"bytes", 0).unwrap();
    file.sync_all().unwrap();
    let set = |flags| rustix::fs::ioctl_setflags(file.as_fd(), flags).unwrap();
    set(rustix::fs::IFlags::IMMUTABLE);
    let before = file.metadata().unwrap().modified().unwrap();
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let refused = file.set_modified(past).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    assert_eq!(file.metadata().unwrap().modified().unwrap(), before);
    set(rustix::fs::IFlags::empty());
    drop(file);
    mount.unmount();
}

/// Bytes that were held back when a file became append-only: those past its end are stored, a
/// change of others is refused.
#[test]
fn bytes_held_back_before_chattr_a_are_stored_if_they_append() {
    let Some((mount, _dog)) = held_back("late chattr +a") else {
        return;
    };
    let set = |file: &File, flags| rustix::fs::ioctl_setflags(file.as_fd(), flags).unwrap();
    for (name, at, expected) in [
        ("appended", 5, Ok(())),
        ("overwritten", 2, Err(libc::EPERM)),
    ] {
        let file = open(&mount, name);
        file.write_all_at(b"first", 0).unwrap();
        file.sync_all().unwrap();
        file.write_all_at(b"second", at).unwrap();
        set(&file, rustix::fs::IFlags::APPEND);
        assert_eq!(errno(fsync(&file)), expected, "{name}");
    }
    mount.crash();
    mount.mount("");
    assert_eq!(fs::read(mount.at("appended")).unwrap(), b"firstsecond");
    assert_eq!(fs::read(mount.at("overwritten")).unwrap(), b"first");
    for name in ["appended", "overwritten"] {
        let file = File::open(mount.at(name)).unwrap();
        set(&file, rustix::fs::IFlags::empty());
    }
    mount.unmount();
}
