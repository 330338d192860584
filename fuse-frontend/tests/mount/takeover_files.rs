//! What the kernel has of files outlives the server: files without names, listings, references.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use pramfs_tests::mounted::{Mounted, unmount_when_free, wait_until};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::process::Signal;

use crate::direct::assert_checked;
use crate::mounted;

const ON: &str = "transport=dev,cache=auto,direct=off,takeover=on";
const MIB: usize = 1 << 20;

/// Kills the server, and waits for the next one.
fn replace_server(mount: &Mounted) {
    let before = mount.process();
    mount.signal(Signal::KILL);
    assert!(wait_until(|| {
        let now = mount.serving();
        now.len() == 1 && now[0] != before
    }));
}

/// Uses and frees what a test uses, so that tables have grown, and returns the free blocks.
fn free_after_use(mount: &Mounted) -> u64 {
    let path = mount.at("first");
    fs::write(&path, vec![1; MIB]).unwrap();
    let file = File::open(&path).unwrap();
    fs::write(mount.at("second"), vec![1; MIB]).unwrap();
    fs::remove_file(&path).unwrap();
    fs::remove_file(mount.at("second")).unwrap();
    drop(file);
    replace_server(mount);
    let mut last = 0;
    // Freed by the timer of the server.
    assert!(wait_until(|| {
        std::thread::sleep(std::time::Duration::from_millis(700));
        std::mem::replace(&mut last, free(mount)) == last
    }));
    last
}

/// Free blocks, as the server counts them.
fn free(mount: &Mounted) -> u64 {
    rustix::fs::statvfs(mount.path()).unwrap().f_bfree
}

#[test]
fn unlinked_open_file_stays_over_death_and_is_freed_at_close() {
    let Some((mount, _dog)) = mounted("takeover, a file without a name", ON) else {
        return;
    };
    let before = free_after_use(&mount);
    let path = mount.at("file");
    let contents = vec![7; MIB];
    fs::write(&path, &contents).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let file = file.unwrap();
    fs::remove_file(&path).unwrap();
    for round in 0..3 {
        replace_server(&mount);
        // Those after it get neither its blocks nor its number.
        fs::write(mount.at("another"), vec![round; MIB]).unwrap();
        let mut there = vec![0; MIB];
        file.read_exact_at(&mut there, 0).unwrap();
        assert!(there == contents);
        assert_eq!(file.metadata().unwrap().len(), MIB as u64);
    }
    file.write_all_at(b"it can be written", 0).unwrap();
    drop(file);
    fs::remove_file(mount.at("another")).unwrap();
    let mut now = 0;
    let is_freed = || {
        now = free(&mount);
        now >= before
    };
    assert!(wait_until(is_freed), "{now} instead of {before}");
    mount.unmount();
    assert_checked(&mount);
}

#[test]
fn open_file_that_is_unlinked_after_death_is_freed_at_close() {
    let Some((mount, _dog)) = mounted("takeover, an unlink after it", ON) else {
        return;
    };
    let path = mount.at("file");
    let before = free_after_use(&mount);
    fs::write(&path, vec![7; MIB]).unwrap();
    let file = File::open(&path).unwrap();
    replace_server(&mount);
    fs::remove_file(&path).unwrap();
    let mut there = vec![0; MIB];
    file.read_exact_at(&mut there, 0).unwrap();
    assert!(there == vec![7; MIB]);
    replace_server(&mount);
    drop(file);
    let mut now = 0;
    let is_freed = || {
        now = free(&mount);
        now >= before
    };
    assert!(wait_until(is_freed), "{now} instead of {before}");
    mount.unmount();
    assert_checked(&mount);
}

/// The mtime that the server knows, whatever the kernel has.
fn mtime(path: &std::path::Path) -> (i64, u32) {
    let flags = AtFlags::STATX_FORCE_SYNC;
    let told = rustix::fs::statx(CWD, path, flags, rustix::fs::StatxFlags::MTIME).unwrap();
    (told.stx_mtime.tv_sec, told.stx_mtime.tv_nsec)
}

#[test]
fn told_mtime_stays_over_death_and_unmount() {
    let Some((mount, _dog)) = mounted("takeover, an mtime", ON) else {
        return;
    };
    let path = mount.at("file");
    fs::write(&path, [1; 8192]).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let mut last = mtime(&path);
    for round in 0..3 {
        // Longer than a tick of the clock.
        std::thread::sleep(std::time::Duration::from_millis(20));
        file.write_all_at(&[round; 4096], 0).unwrap();
        let told = mtime(&path);
        assert!(told > last);
        replace_server(&mount);
        assert_eq!(mtime(&path), told);
        last = told;
    }
    drop(file);
    replace_server(&mount);
    mount.unmount();
    mount.mount("");
    assert_eq!(mtime(&path), last);
    mount.unmount();
}

#[test]
fn file_made_without_name_gets_one_after_death() {
    let Some((mount, _dog)) = mounted("takeover, O_TMPFILE", ON) else {
        return;
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = match rustix::fs::open(mount.path(), flags, Mode::from_raw_mode(0o640)) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::OPNOTSUPP) => {
            return pramfs_tests::skip::skipped("this kernel has no O_TMPFILE for FUSE");
        }
        Err(error) => panic!("{error}"),
    };
    file.write_all_at(b"contents", 0).unwrap();
    replace_server(&mount);
    rustix::fs::linkat(
        file.as_fd(),
        "",
        CWD,
        mount.at("named"),
        AtFlags::EMPTY_PATH,
    )
    .unwrap();
    replace_server(&mount);
    assert_eq!(fs::read(mount.at("named")).unwrap(), b"contents");
    drop(file);
    assert_eq!(fs::read(mount.at("named")).unwrap(), b"contents");
    mount.unmount();
}

#[test]
fn listing_goes_on_after_death() {
    let Some((mount, _dog)) = mounted("takeover, a listing", ON) else {
        return;
    };
    let dir = mount.at("dir");
    fs::create_dir(&dir).unwrap();
    let names: BTreeSet<_> = (0..3000).map(|n| format!("name{n:05}")).collect();
    for name in &names {
        File::create(dir.join(name)).unwrap();
    }
    // A server that has cached nothing of the directory.
    replace_server(&mount);
    let mut found = BTreeSet::new();
    for (nth, entry) in fs::read_dir(&dir).unwrap().enumerate() {
        found.insert(entry.unwrap().file_name().into_string().unwrap());
        if nth == 1000 {
            replace_server(&mount);
        }
    }
    assert!(found == names);
    mount.unmount();
}

/// A remount over the control socket, which each server binds anew.
#[test]
fn second_mount_works_after_death() {
    let Some((mount, _dog)) = mounted("takeover, a second mount", ON) else {
        return;
    };
    fs::write(mount.at("file"), "contents").unwrap();
    replace_server(&mount);
    let second = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_mount-pramfs");
    let out = std::process::Command::new(program)
        .args([mount.region().as_os_str(), second.path().as_os_str()])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    assert_eq!(fs::read(second.path().join("file")).unwrap(), b"contents");
    replace_server(&mount);
    fs::write(second.path().join("file"), "changed").unwrap();
    unmount_when_free(second.path());
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"changed");
    mount.unmount();
}
