//! Locks and leases, which the kernel implements (xfstests 131 504 571 591).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use pramfs_tests::syscalls::{Sys, errno};
use rustix::fs::FlockOperation;

use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::agree;

fn open(path: &Path, write: bool) -> File {
    File::options()
        .read(true)
        .write(write)
        .open(path)
        .expect("open")
}

/// Sets a lock of a range on an open file description. `None`: asks whether it is free.
fn range(file: &File, kind: i32, start: i64, len: i64) -> Sys {
    // SAFETY: `flock` is valid with all bytes zero.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    (lock.l_start, lock.l_len) = (start, len);
    // SAFETY: the lock outlives the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if done < 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    Ok(())
}

#[test]
fn locks_conflict_between_descriptors() {
    agree("locks", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, "x").expect("a file");
        let (a, b) = (open(&path, true), open(&path, true));
        use FlockOperation::{
            NonBlockingLockExclusive as Exclusive, NonBlockingLockShared as Shared, Unlock,
        };
        for (who, file, what) in [
            ("a", &a, Shared),
            ("b", &b, Shared),
            ("a", &a, Exclusive),
            ("b", &b, Unlock),
            ("a", &a, Exclusive),
            ("b", &b, Shared),
            ("a", &a, Unlock),
        ] {
            n.call(
                format!("flock {who} {what:?}"),
                errno(rustix::fs::flock(file, what)),
            );
        }
        for (who, file, kind, start, len) in [
            ("a", &a, libc::F_WRLCK, 0, 10),
            ("b", &b, libc::F_RDLCK, 5, 10),
            ("b", &b, libc::F_WRLCK, 10, 0),
            ("a", &a, libc::F_RDLCK, 100, 1),
            ("a", &a, libc::F_UNLCK, 0, 10),
            ("b", &b, libc::F_WRLCK, 0, 0),
        ] {
            n.call(
                format!("range {who} {kind} {start}+{len}"),
                range(file, kind, start, len),
            );
        }
    });
}

fn lease(file: &File, kind: i32) -> Sys<i32> {
    // SAFETY: numbers only.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    if done < 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    Ok(done)
}

/// The answers match tmpfs and ext4: only network file systems implement leases
/// themselves.
#[test]
fn leases_match_kernel() {
    agree("leases", &[Tmpfs, Ext4], |dir, n| {
        // Uses new files. A child that another test is starting has a copy of each
        // descriptor until it executes its program.
        let fresh = |name: &str| {
            let path = dir.join(name);
            let (kind, mode) = (rustix::fs::FileType::RegularFile, rustix::fs::Mode::RWXU);
            rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).expect("a file");
            path
        };
        let reader = open(&fresh("f"), false);
        n.call("read lease", lease(&reader, libc::F_RDLCK));
        n.call("write lease of a reader", lease(&reader, libc::F_WRLCK));
        n.call("given back", lease(&reader, libc::F_UNLCK));
        let writer = open(&fresh("g"), true);
        n.call("write lease", lease(&writer, libc::F_WRLCK));
        n.call("read lease of a writer", lease(&writer, libc::F_RDLCK));
        n.call("given back", lease(&writer, libc::F_UNLCK));
    });
}

/// 504: /proc/locks shows a lock with the inode that it is on.
#[test]
fn proc_locks_shows_inode_of_lock() {
    agree("/proc/locks", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, "x").expect("a file");
        let file = open(&path, true);
        n.call(
            "lock",
            errno(rustix::fs::flock(&file, FlockOperation::LockExclusive)),
        );
        let ino = rustix::fs::fstat(&file).expect("stat").st_ino;
        let out = Command::new("cat")
            .arg("/proc/locks")
            .output()
            .expect("cat");
        let locks = String::from_utf8_lossy(&out.stdout).into_owned();
        n.note("listed", locks.contains(&format!(":{ino} ")));
    });
}
