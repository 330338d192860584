//! Times: those that each operation sets, atime by policy (xfstests 003 192), and utimes
//! (221 258 423 529 728).

use std::path::Path;

use pramfs_tests::syscalls::{Caller, as_caller, errno};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::{agree, alone};
use crate::support::times::{Time, moved, tick, times};
use crate::support::transcript::Transcript;

#[test]
fn operations_update_expected_times() {
    agree("times", &[Tmpfs, Ext4], |dir, n| {
        let (path, sub) = (dir.join("f"), dir.join("d"));
        std::fs::write(&path, "x").expect("a file");
        std::fs::create_dir(&sub).expect("a directory");
        let step = |n: &mut Transcript, what: &str, work: &dyn Fn()| {
            let before = [&path, &sub].map(|p| times(p));
            tick();
            work();
            let after = [&path, &sub].map(|p| times(p));
            for i in 0..2 {
                // atime has its own test.
                let [_, m, c] = moved(before[i], after[i]);
                n.note(format!("{what} {i}"), (m, c));
            }
        };
        let open = |flags| {
            let fd = rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty());
            fd.expect("open")
        };
        step(n, "write", &|| {
            rustix::io::pwrite(open(OFlags::WRONLY), b"y", 0).expect("write");
        });
        step(n, "write of nothing", &|| {
            rustix::io::pwrite(open(OFlags::WRONLY), b"", 0).expect("write");
        });
        step(n, "truncate to the same size", &|| {
            rustix::fs::ftruncate(open(OFlags::WRONLY), 1).expect("truncate");
        });
        step(n, "open with O_TRUNC", &|| {
            drop(open(OFlags::WRONLY | OFlags::TRUNC))
        });
        step(n, "O_TRUNC of an empty file", &|| {
            drop(open(OFlags::WRONLY | OFlags::TRUNC));
        });
        step(n, "chmod", &|| {
            rustix::fs::chmod(&path, Mode::RUSR).expect("chmod");
        });
        step(n, "link", &|| {
            rustix::fs::link(&path, sub.join("l")).expect("link");
        });
        step(n, "rename into", &|| {
            rustix::fs::rename(&path, sub.join("moved")).expect("rename");
            rustix::fs::rename(sub.join("moved"), &path).expect("rename");
        });
        step(n, "unlink", &|| {
            rustix::fs::unlink(sub.join("l")).expect("unlink");
        });
        step(n, "mkdir", &|| {
            rustix::fs::mkdir(sub.join("e"), Mode::RWXU).expect("mkdir");
        });
        step(n, "rmdir", &|| {
            rustix::fs::rmdir(sub.join("e")).expect("rmdir");
        });
        step(n, "setxattr", &|| {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&path, "trusted.a", b"", flags).expect("setxattr");
        });
        step(n, "removexattr", &|| {
            rustix::fs::removexattr(&path, "trusted.a").expect("removexattr");
        });
    });
}

/// Cases in which the other file systems set a time and pramfs does not.
#[test]
fn operations_that_keep_times_unlike_kernel() {
    agree("times that stay", &[Tmpfs, Ext4], |dir, n| {
        let (path, link, other) = (dir.join("f"), dir.join("l"), dir.join("g"));
        std::fs::write(&path, vec![1; 10_000]).expect("a file");
        std::fs::write(&other, "").expect("a file");
        rustix::fs::symlink("f", &link).expect("a link");
        let open = |path: &Path| {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).expect("open")
        };
        let file = open(&path);
        let of = |path: &Path| {
            let s = rustix::fs::lstat(path).expect("lstat");
            [
                (s.st_atime, s.st_atime_nsec as i64),
                (s.st_mtime, s.st_mtime_nsec as i64),
                (s.st_ctime, s.st_ctime_nsec as i64),
            ]
        };
        // Compares one of the three times before and after the operation.
        let mut step = |what: &str, path: &Path, which: usize, why: &str, work: &dyn Fn()| {
            let before = of(path);
            tick();
            work();
            let stayed = match of(path)[which] == before[which] {
                true => Ok(()),
                false => Err(0),
            };
            for from in [Tmpfs, Ext4] {
                n.differs(what, stayed, from, (Ok(()), Err(0)), why);
            }
        };
        tick();
        step("readlink", &link, 0, "the kernel keeps targets", &|| {
            rustix::fs::readlink(&link, Vec::new()).expect("readlink");
        });
        step("copy", &path, 0, "nothing is read out", &|| {
            let copied = rustix::fs::copy_file_range(&file, Some(&mut 0), open(&other), None, 100);
            assert_eq!(copied, Ok(100));
        });
        step("chown", &path, 2, "nothing has changed", &|| {
            rustix::fs::chown(&path, None, None).expect("chown");
        });
        n.note("size", std::fs::metadata(&path).expect("stat").len());
    });
}

#[test]
fn utimes_checks_caller_and_value() {
    agree("utimes", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, "x").expect("a file");
        rustix::fs::chmod(&path, Mode::from_raw_mode(0o666)).expect("chmod");
        let owner = Some(rustix::fs::Uid::from_raw(500));
        rustix::fs::chown(&path, owner, None).expect("chown");
        for (uid, a, m) in [
            (500, 5, 7),
            (500, UTIME_OMIT, 9),
            (501, UTIME_NOW, UTIME_NOW),
            (501, 5, 5),
            (501, UTIME_OMIT, UTIME_NOW),
            (501, UTIME_OMIT, UTIME_OMIT),
        ] {
            for sec in [0, -1, 1 << 33] {
                let time = |nsec| Timespec {
                    tv_sec: sec,
                    tv_nsec: nsec,
                };
                let set = Timestamps {
                    last_access: time(a),
                    last_modification: time(m),
                };
                let who = Caller {
                    uid,
                    gid: uid,
                    umask: 0,
                    privileged: false,
                };
                let done = as_caller(who, || {
                    errno(rustix::fs::utimensat(CWD, &path, &set, AtFlags::empty()))
                });
                n.call(format!("{uid} {sec} {a} {m}"), done);
                // The current times differ between two file systems.
                let [at, mt, _] = times(&path);
                let shown = |(sec, nsec): Time| if nsec < 100 { Some((sec, nsec)) } else { None };
                n.note("atime and mtime", (shown(at), shown(mt)));
            }
        }
    });
}

fn reads(path: &Path) -> bool {
    let before = times(path);
    tick();
    // Bypasses the page cache: a cached read sends no request.
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).expect("open");
    let mut page = vec![0; 8192];
    let at = page.as_ptr().align_offset(4096);
    rustix::io::pread(&fd, &mut page[at..at + 4096], 0).expect("read");
    moved(before, times(path))[0]
}

#[test]
fn atime_follows_mount_option() {
    for (option, expected) in [
        // After a write, again, and after another write.
        ("relatime", [true, false, true]),
        ("strictatime", [true, true, true]),
        ("noatime", [false, false, false]),
    ] {
        alone(&format!("atime, {option}"), option, |mount| {
            let path = mount.at("f");
            std::fs::write(&path, vec![1; 4096]).expect("a file");
            tick();
            std::fs::write(&path, vec![2; 4096]).expect("a file");
            let first = reads(&path);
            let again = reads(&path);
            tick();
            std::fs::write(&path, vec![3; 4096]).expect("a file");
            assert_eq!([first, again, reads(&path)], expected, "{option}");
        });
    }
}
