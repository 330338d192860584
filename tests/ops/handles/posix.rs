//! File handles (name_to_handle_at, open_by_handle_at), as an NFS server uses them. A
//! handle opens its file after a rename and after the inode has left the cache, and never
//! another file (xfstests 426 467 477 756 777).

use std::ffi::{CString, c_int};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use pramfs_tests::mounted::wait_until;

use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::{agree, alone};
use crate::support::transcript::Transcript;

/// `struct file_handle` with room for a handle of any type.
#[repr(C)]
#[derive(Debug, Clone, PartialEq, Eq)]
struct Handle {
    bytes: u32,
    kind: c_int,
    data: [u8; 128],
}

fn handle(path: &Path) -> Handle {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
    let mut handle = Handle {
        bytes: 128,
        kind: 0,
        data: [0; 128],
    };
    let mut mount = 0;
    // SAFETY: the path ends in a NUL, and `handle.bytes` is the room that the handle has.
    let done = unsafe {
        libc::name_to_handle_at(
            libc::AT_FDCWD,
            path.as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount,
            0,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    handle
}

fn open(mount: &Path, handle: &Handle, flags: c_int) -> Result<File, i32> {
    let dir = File::open(mount).expect("the mount point");
    let mut handle = handle.clone();
    // SAFETY: the handle was filled in by the kernel and outlives the call.
    let fd = unsafe {
        libc::open_by_handle_at(
            dir.as_raw_fd(),
            (&raw mut handle).cast(),
            flags | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    // SAFETY: a new descriptor with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

fn forget_all() {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").expect("drop the caches");
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    let n = file.read_at(&mut bytes, 0).expect("read");
    bytes.truncate(n);
    bytes
}

#[test]
fn handle_opens_file_after_rename_or_unlink() {
    agree("file handles", &[Tmpfs, Ext4], |dir, n| {
        let d = dir.join("d");
        fs::create_dir(&d).expect("a directory");
        let path = d.join("f");
        fs::write(&path, "contents").expect("a file");
        let (file, of_dir) = (handle(&path), handle(&d));
        let ino = fs::metadata(&path).expect("stat").ino();
        let see = |n: &mut Transcript, what: &str| {
            let opened = open(dir, &file, libc::O_RDWR);
            let seen = opened.map(|f| (contents(&f), f.metadata().map(|m| m.ino() == ino).ok()));
            n.note(what, seen);
            let opened = open(dir, &of_dir, libc::O_RDONLY | libc::O_DIRECTORY);
            n.note(what, opened.map(drop));
        };
        see(n, "as it is");
        forget_all();
        see(n, "forgotten");
        fs::rename(&path, dir.join("g")).expect("rename");
        fs::rename(&d, dir.join("e")).expect("rename");
        forget_all();
        see(n, "renamed");
        fs::hard_link(dir.join("g"), dir.join("h")).expect("link");
        fs::remove_file(dir.join("g")).expect("unlink");
        see(n, "by another name");
        let held = File::open(dir.join("h")).expect("open");
        fs::remove_file(dir.join("h")).expect("unlink");
        see(n, "open without a name");
        drop(held);
        fs::remove_dir(dir.join("e")).expect("rmdir");
        // After a close, the kernel tells a FUSE server later that the file is no longer open.
        let is_gone = || open(dir, &file, libc::O_RDWR).is_err();
        assert!(wait_until(is_gone), "the file of the handle is still there");
        see(n, "gone");
        fs::write(dir.join("f"), "another").expect("a file");
        fs::create_dir(dir.join("d")).expect("a directory");
        see(n, "another in its place");
    });
}

/// 756 777: a directory opened by its handle has a path again.
#[test]
fn directory_opened_by_handle_has_path() {
    agree("handles of directories", &[Ext4], |dir, n| {
        fs::create_dir_all(dir.join("a/b/c")).expect("directories");
        fs::write(dir.join("a/b/c/f"), "x").expect("a file");
        let deep = handle(&dir.join("a/b/c"));
        forget_all();
        let opened = open(dir, &deep, libc::O_RDONLY | libc::O_DIRECTORY).expect("open");
        let path = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        n.note(
            "path",
            path.map(|p| p.strip_prefix(dir).map(Path::to_owned).ok())
                .ok(),
        );
        let at = |name: &str| rustix::fs::statat(&opened, name, rustix::fs::AtFlags::empty());
        n.note("f", at("f").map(|s| s.st_size).ok());
        let up = fs::metadata(dir.join("a/b")).expect("stat").ino();
        n.note("..", at("..").map(|s| s.st_ino == up).ok());
    });
}

/// 426 467 over a remount: inode number and generation are on the medium.
#[test]
fn handles_stay_valid_after_remount() {
    alone("handles over a remount", "", |mount| {
        fs::create_dir(mount.at("d")).unwrap();
        for i in 0..200 {
            fs::write(mount.at(format!("d/{i}")), format!("file {i}")).unwrap();
        }
        let handles: Vec<_> = (0..200)
            .map(|i| handle(&mount.at(format!("d/{i}"))))
            .collect();
        let root = handle(&mount.path());
        for i in (0..200).step_by(2) {
            fs::remove_file(mount.at(format!("d/{i}"))).unwrap();
        }
        mount.unmount();
        mount.mount("");
        // Their inode numbers are reused.
        for i in 0..100 {
            fs::write(mount.at(format!("d/new-{i}")), "new").unwrap();
        }
        for (i, handle) in handles.iter().enumerate() {
            let opened = open(&mount.path(), handle, libc::O_RDONLY);
            if i % 2 == 0 {
                assert_eq!(opened.err(), Some(libc::ESTALE), "{i}");
            } else {
                assert_eq!(contents(&opened.unwrap()), format!("file {i}").as_bytes());
            }
        }
        open(&mount.path(), &root, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        assert_eq!(handle(&mount.path()), root);
    });
}
