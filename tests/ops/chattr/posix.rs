//! chattr on a mount: what an immutable or append-only file or directory refuses
//! (xfstests 079 277 424 545 553 555), and the right to set the flags.

use std::os::fd::AsFd;
use std::path::Path;

use pramfs_tests::mounted::kernel_opens;
use pramfs_tests::syscalls::{self as sys, Caller, Sys, as_caller, errno};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};

use crate::support::mount::Reference::{self, Ext4, Tmpfs};
use crate::support::mount::agree;
use crate::support::transcript::Transcript;

fn open(path: &Path, flags: OFlags) -> Sys<std::os::fd::OwnedFd> {
    errno(rustix::fs::open(
        path,
        flags | OFlags::CLOEXEC,
        Mode::empty(),
    ))
}

fn flags(path: &Path) -> Sys<IFlags> {
    let fd = open(path, OFlags::RDONLY)?;
    errno(rustix::fs::ioctl_getflags(&fd))
}

/// Sets flags as chattr(1) does: keeps those that only tmpfs or ext4 has.
fn set(path: &Path, new: IFlags) -> Sys {
    let fd = open(path, OFlags::RDONLY)?;
    let ours = IFlags::IMMUTABLE | IFlags::APPEND | IFlags::NODUMP | IFlags::NOATIME;
    let old = errno(rustix::fs::ioctl_getflags(&fd))?;
    errno(rustix::fs::ioctl_setflags(&fd, (old - ours) | new))
}

fn times(atime: i64, mtime: i64) -> Timestamps {
    let time = |nsec| Timespec {
        tv_sec: 1000,
        tv_nsec: nsec,
    };
    Timestamps {
        last_access: time(atime),
        last_modification: time(mtime),
    }
}

/// Tries every change of a file, in a directory that also contains `other`.
fn on_file(path: &Path, n: &mut Transcript, what: &str) {
    let dir = path.parent().expect("a directory");
    let (new, other) = (dir.join("new"), dir.join("other"));
    // With `opens=kernel`, open works, and what follows it is refused.
    let anyway = n.is_ours() && kernel_opens();
    let (immutable, append) = (what == "immutable", what == "append-only");
    let mut call = |name: &str, result: Sys| n.call(format!("{what}: {name}"), result);
    for (name, how) in [
        ("read", OFlags::RDONLY),
        ("write", OFlags::WRONLY),
        ("both", OFlags::RDWR),
        ("append", OFlags::WRONLY | OFlags::APPEND),
        ("truncating", OFlags::WRONLY | OFlags::TRUNC),
        (
            "appending, truncating",
            OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC,
        ),
    ] {
        let opened = open(path, how).map(drop);
        let overwrites = how == OFlags::WRONLY || how == OFlags::RDWR;
        let appends = how == OFlags::WRONLY | OFlags::APPEND;
        let is_refused = overwrites && (immutable || append) || appends && immutable;
        let seen = match anyway && is_refused {
            true => opened.and(Err(libc::EPERM)),
            false => opened,
        };
        call(&format!("open to {name}"), seen);
    }
    let opened = open(path, OFlags::WRONLY | OFlags::APPEND);
    if anyway && immutable {
        let fd = opened.expect("open");
        let keep = FallocateFlags::KEEP_SIZE;
        let refused = [
            errno(rustix::io::write(&fd, b"more")).map(drop),
            errno(rustix::fs::ftruncate(&fd, 1)),
            errno(rustix::fs::fallocate(&fd, keep, 0, 4096)),
            errno(rustix::fs::fallocate(
                &fd,
                keep | FallocateFlags::PUNCH_HOLE,
                0,
                4096,
            )),
        ];
        assert_eq!(refused, [Err(libc::EPERM); 4]);
    } else if let Ok(fd) = opened {
        call("append", errno(rustix::io::write(&fd, b"more")).map(drop));
        call("ftruncate", errno(rustix::fs::ftruncate(&fd, 1)));
        for (name, mode) in [
            ("allocate", FallocateFlags::KEEP_SIZE),
            (
                "punch",
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            ),
        ] {
            call(name, errno(rustix::fs::fallocate(&fd, mode, 0, 4096)));
        }
    }
    call("chmod", errno(rustix::fs::chmod(path, Mode::RWXU)));
    let one = Some(Uid::from_raw(1));
    call("chown", errno(rustix::fs::chown(path, one, None)));
    for (name, a, m) in [
        ("now", UTIME_NOW, UTIME_NOW),
        ("a time", 1, 2),
        ("mtime now", UTIME_OMIT, UTIME_NOW),
        ("neither", UTIME_OMIT, UTIME_OMIT),
    ] {
        let set = rustix::fs::utimensat(CWD, path, &times(a, m), AtFlags::empty());
        call(&format!("utimes {name}"), errno(set));
    }
    let setxattr = |name: &str, value: &[u8]| {
        errno(rustix::fs::setxattr(path, name, value, XattrFlags::empty()))
    };
    call("setxattr", setxattr("trusted.b", b"x"));
    let acl = [
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255, 32, 0, 5, 0,
        255, 255, 255, 255,
    ];
    call("setfacl", setxattr("system.posix_acl_access", &acl));
    call(
        "removexattr",
        errno(rustix::fs::removexattr(path, "trusted.a")),
    );
    call("link", errno(rustix::fs::link(path, &new)));
    let rename =
        |from: &Path, to: &Path, flags| errno(rustix::fs::renameat_with(CWD, from, CWD, to, flags));
    call("rename", rename(path, &new, RenameFlags::empty()));
    call("rename over", rename(&other, path, RenameFlags::empty()));
    call("exchange", rename(&other, path, RenameFlags::EXCHANGE));
    call("unlink", errno(rustix::fs::unlink(path)));
    for left in [&new, path] {
        let seen = errno(rustix::fs::stat(left)).map(|s| (s.st_nlink, s.st_mode, s.st_size));
        n.note(format!("{what}: left"), seen);
    }
}

fn file(dir: &Path, name: &str) -> std::path::PathBuf {
    let dir = dir.join(name);
    std::fs::create_dir(&dir).expect("a directory");
    std::fs::write(dir.join("other"), "other").expect("a file");
    std::fs::write(dir.join("f"), "contents").expect("a file");
    let path = dir.join("f");
    rustix::fs::setxattr(&path, "trusted.a", b"1", XattrFlags::empty()).expect("an attribute");
    path
}

fn each(dir: &Path, n: &mut Transcript) {
    for (name, new) in [
        ("none", IFlags::empty()),
        ("immutable", IFlags::IMMUTABLE),
        ("append-only", IFlags::APPEND),
    ] {
        let path = file(dir, name);
        n.call(name, set(&path, new));
        n.note(
            name,
            flags(&path).map(|f| f & (IFlags::IMMUTABLE | IFlags::APPEND)),
        );
        on_file(&path, n, name);
        if !new.is_empty() {
            n.call("cleared", set(&path, IFlags::empty()));
            n.call("unlink", errno(rustix::fs::unlink(&path)));
        }
    }
}

#[test]
fn immutable_or_append_only_file_refuses_changes() {
    agree("chattr", &[Tmpfs, Ext4], each);
}

#[test]
fn immutable_or_append_only_directory_keeps_names() {
    agree("chattr of directories", &[Tmpfs, Ext4], |dir, n| {
        for (name, new) in [("i", IFlags::IMMUTABLE), ("a", IFlags::APPEND)] {
            let d = dir.join(name);
            std::fs::create_dir(&d).expect("a directory");
            std::fs::write(d.join("old"), "x").expect("a file");
            std::fs::create_dir(d.join("sub")).expect("a directory");
            n.call(name, set(&d, new));
            let out = dir.join(format!("out-{name}"));
            std::fs::write(&out, "x").expect("a file");
            let flags = OFlags::CREATE | OFlags::WRONLY;
            let made = errno(rustix::fs::open(d.join("new"), flags, Mode::RUSR));
            n.call("create", made.map(drop));
            n.call("mkdir", errno(rustix::fs::mkdir(d.join("dir"), Mode::RWXU)));
            n.call("symlink", errno(rustix::fs::symlink("to", d.join("sym"))));
            n.call("link", errno(rustix::fs::link(&out, d.join("link"))));
            n.call("move in", errno(rustix::fs::rename(&out, d.join("in"))));
            n.call(
                "move out",
                errno(rustix::fs::rename(d.join("old"), dir.join("o"))),
            );
            n.call(
                "within",
                errno(rustix::fs::rename(d.join("old"), d.join("o"))),
            );
            n.call("unlink", errno(rustix::fs::unlink(d.join("old"))));
            n.call("rmdir", errno(rustix::fs::rmdir(d.join("sub"))));
            n.call("write", std::fs::write(d.join("old"), "y").map_err(|_| 0));
            n.call("below", std::fs::write(d.join("sub/f"), "y").map_err(|_| 0));
            n.call("its own name", errno(rustix::fs::rename(&d, dir.join("e"))));
            n.call("itself", errno(rustix::fs::rmdir(&d)));
            let mut names = sys::root(&d).and_then(|d| sys::read_dir(&d.as_fd()));
            if let Ok(names) = &mut names {
                names.sort_by(|a, b| a.0.cmp(&b.0));
            }
            n.note(
                "names",
                names.map(|all| all.into_iter().map(|e| e.0).collect::<Vec<_>>()),
            );
            n.call("cleared", set(&d, IFlags::empty()));
        }
    });
}

#[test]
fn chattr_needs_owner_and_capability() {
    agree("chattr rights", &[Tmpfs, Ext4], |dir, n| {
        let path = file(dir, "d");
        let owner = Some(Uid::from_raw(500));
        n.call("chown", errno(rustix::fs::chown(&path, owner, None)));
        let who = |uid| Caller {
            uid,
            gid: 500,
            umask: 0,
            privileged: false,
        };
        for uid in [500, 501] {
            for new in [
                IFlags::NODUMP,
                IFlags::APPEND,
                IFlags::IMMUTABLE,
                IFlags::empty(),
            ] {
                n.call(
                    format!("{uid}: {new:?}"),
                    as_caller(who(uid), || set(&path, new)),
                );
            }
        }
        n.call("root", set(&path, IFlags::APPEND));
        for uid in [500, 501] {
            n.call(
                format!("{uid} clears"),
                as_caller(who(uid), || set(&path, IFlags::empty())),
            );
        }
        n.call("root clears", set(&path, IFlags::empty()));
    });
}

/// 277: a change of flags is a change of the inode.
#[test]
fn chattr_sets_ctime() {
    agree("chattr and ctime", &[Tmpfs, Ext4], |dir, n| {
        let path = file(dir, "d");
        let ctime = || {
            let s = rustix::fs::stat(&path).expect("stat");
            (s.st_ctime, s.st_ctime_nsec)
        };
        let before = ctime();
        std::thread::sleep(std::time::Duration::from_millis(30));
        n.call("chattr", set(&path, IFlags::NODUMP));
        n.note("later", ctime() > before);
    });
}

/// Earlier writes stay, and a descriptor opened before cannot write any more.
#[test]
fn chattr_stops_writes_through_open_descriptor() {
    agree("chattr of an open file", &[Ext4], |dir, n| {
        let path = file(dir, "d");
        let fd = open(&path, OFlags::RDWR).expect("open");
        n.call("immutable", set(&path, IFlags::IMMUTABLE));
        n.call("write", errno(rustix::io::pwrite(&fd, b"x", 0)));
        n.call("ftruncate", errno(rustix::fs::ftruncate(&fd, 0)));
        n.call("append-only", set(&path, IFlags::APPEND));
        n.differs(
            "write",
            errno(rustix::io::pwrite(&fd, b"x", 0)),
            Reference::Ext4,
            (Err(libc::EPERM), Ok(())),
            "ext4 looks at the descriptor's flags only; we see no difference \
             to a descriptor that has lost O_APPEND since",
        );
        n.call("ftruncate", errno(rustix::fs::ftruncate(&fd, 0)));
        n.call("cleared", set(&path, IFlags::empty()));
        n.call("write", errno(rustix::io::pwrite(&fd, b"x", 0)));
    });
}

#[test]
fn access_of_immutable_file_differs_from_open() {
    agree("access of an immutable file", &[Ext4], |dir, n| {
        let path = file(dir, "d");
        n.call("immutable", set(&path, IFlags::IMMUTABLE));
        n.differs(
            "access",
            errno(rustix::fs::access(&path, rustix::fs::Access::WRITE_OK)),
            Reference::Ext4,
            (Ok(()), Err(libc::EPERM)),
            "the kernel answers by the mode alone and asks nobody",
        );
        n.call("cleared", set(&path, IFlags::empty()));
    });
}
