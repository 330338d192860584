//! Set-user-id and set-group-id: operations that clear them (xfstests 193 355 673
//! 683-687), and the group of new files in a setgid directory (314 633 696).

use std::path::Path;

use pramfs_tests::syscalls::{Caller, Sys, as_caller, errno};
use rustix::fs::{FallocateFlags, Gid, IFlags, Mode, OFlags, Uid};

use crate::Reference::{Ext4, Tmpfs};
use crate::{Transcript, agree, agree_with, map_file};

const STRANGER: Caller = Caller {
    uid: 500,
    gid: 500,
    umask: 0,
    privileged: false,
};

fn mode(path: &Path) -> Sys<u32> {
    errno(rustix::fs::stat(path)).map(|s| s.st_mode & 0o7777)
}

fn chmod(path: &Path, mode: u32) -> Sys {
    errno(rustix::fs::chmod(path, Mode::from_raw_mode(mode)))
}

fn open(path: &Path, flags: OFlags) -> Sys<std::os::fd::OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    errno(rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)))
}

/// An operation that changes a file.
type Change = (&'static str, fn(&Path) -> Sys);

const CHANGES: [Change; 7] = [
    ("write", |path| {
        errno(rustix::io::pwrite(&open(path, OFlags::WRONLY)?, b"x", 0)).map(drop)
    }),
    ("append", |path| {
        errno(rustix::io::write(
            &open(path, OFlags::WRONLY | OFlags::APPEND)?,
            b"x",
        ))
        .map(drop)
    }),
    ("direct write", |path| {
        let fd = open(path, OFlags::WRONLY | OFlags::DIRECT)?;
        let page = Box::new(Page([0x55; 4096]));
        errno(rustix::io::pwrite(&fd, &page.0, 0)).map(drop)
    }),
    ("truncate", |path| {
        errno(rustix::fs::ftruncate(&open(path, OFlags::WRONLY)?, 100))
    }),
    ("fallocate", |path| {
        let fd = open(path, OFlags::WRONLY)?;
        errno(rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 8192))
    }),
    ("punch", |path| {
        let fd = open(path, OFlags::WRONLY)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        errno(rustix::fs::fallocate(&fd, flags, 0, 4096))
    }),
    ("open with O_TRUNC", |path| {
        open(path, OFlags::WRONLY | OFlags::TRUNC).map(drop)
    }),
];

#[repr(align(4096))]
struct Page([u8; 4096]);

fn take_away(dir: &Path, n: &mut Transcript) {
    let path = dir.join("f");
    std::fs::write(&path, vec![1; 20_000]).expect("a file");
    for (what, change) in CHANGES {
        for bits in [0o6777, 0o4766, 0o2777, 0o6776, 0o6666, 0o2666, 0o0777] {
            for who in [Caller::ROOT, STRANGER] {
                n.call("chmod", chmod(&path, bits));
                let done = as_caller(who, || change(&path));
                n.call(format!("{what} {bits:o} as {}", who.uid), done);
                n.note(format!("{what} {bits:o} as {}", who.uid), mode(&path));
            }
        }
    }
}

#[test]
fn change_by_unprivileged_caller_clears_suid_sgid() {
    agree("suid", &[Tmpfs, Ext4], take_away);
}

#[test]
fn change_with_cache_none_clears_suid_sgid() {
    agree_with("suid, cache=none", "cache=none", &[Tmpfs], take_away);
}

/// `cap_net_raw` permitted and effective, as `setcap` writes it (revision 2).
fn file_capability() -> Vec<u8> {
    let words = [0x0200_0001u32, 1 << 13, 0, 0, 0];
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Every caller's change clears them, also after several changes, when a kernel may have
/// stopped checking.
#[test]
fn change_clears_file_capabilities() {
    const NAME: &str = "security.capability";
    agree("file capabilities", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, vec![1; 20_000]).expect("a file");
        n.call("chmod", chmod(&path, 0o777));
        for (what, change) in CHANGES {
            for who in [Caller::ROOT, STRANGER] {
                for before in 0..3 {
                    for _ in 0..before {
                        n.call(what, as_caller(who, || change(&path)));
                    }
                    let flags = rustix::fs::XattrFlags::empty();
                    let set = rustix::fs::setxattr(&path, NAME, &file_capability(), flags);
                    n.call("setxattr", errno(set));
                    let done = as_caller(who, || change(&path));
                    n.call(format!("{what} as {}", who.uid), done);
                    let left = rustix::fs::getxattr(&path, NAME, &mut [0; 64][..]);
                    n.call(format!("{what} as {}, left", who.uid), errno(left));
                }
            }
        }
    });
}

/// Write-back is not a change by the process that triggers it.
#[test]
fn write_back_keeps_file_capabilities() {
    for options in ["", "cache=none"] {
        let references: &[crate::Reference] = &[Tmpfs, Ext4];
        agree_with("capabilities and mmap", options, references, |dir, n| {
            let path = dir.join("f");
            std::fs::write(&path, vec![1; 8192]).expect("a file");
            let map = map_file(&path);
            drop(map.window().store(100, b"changed").expect("store"));
            let flags = rustix::fs::XattrFlags::empty();
            let set = rustix::fs::setxattr(&path, "security.capability", &file_capability(), flags);
            n.call("setxattr", errno(set));
            map.sync_all().expect("msync");
            let left = rustix::fs::getxattr(&path, "security.capability", &mut [0; 64][..]);
            n.call("left", errno(left));
            n.note(
                "bytes",
                std::fs::read(&path).expect("read")[100..107].to_vec(),
            );
        });
    }
}

#[test]
fn failed_change_keeps_suid_sgid() {
    agree("suid and chattr +a", &[Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, vec![1; 20_000]).expect("a file");
        n.call("chmod", chmod(&path, 0o6777));
        let fd = open(&path, OFlags::WRONLY).expect("open");
        n.call("+a", errno(rustix::fs::ioctl_setflags(&fd, IFlags::APPEND)));
        let truncated = as_caller(STRANGER, || errno(rustix::fs::ftruncate(&fd, 100)));
        n.call("truncate", truncated);
        n.note("truncate", mode(&path));
        let none = IFlags::empty();
        n.call("-a", errno(rustix::fs::ioctl_setflags(&fd, none)));
    });
}

#[test]
fn chown_clears_suid_sgid() {
    agree("suid and chown", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, "").expect("a file");
        for bits in [0o6777, 0o6766, 0o2711, 0o4700] {
            for (uid, gid) in [
                (Some(1), None),
                (None, Some(1)),
                (Some(2), Some(2)),
                (None, None),
            ] {
                n.call("chmod", chmod(&path, bits));
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                n.call("chown", errno(rustix::fs::chown(&path, uid, gid)));
                n.note(format!("{bits:o}"), mode(&path));
            }
        }
        let d = dir.join("d");
        n.call("mkdir", errno(rustix::fs::mkdir(&d, Mode::RWXU)));
        n.call("chmod", chmod(&d, 0o6777));
        let one = Some(Uid::from_raw(1));
        n.call("chown", errno(rustix::fs::chown(&d, one, None)));
        n.note("a directory", mode(&d));
        n.call("chown", errno(rustix::fs::chown(&d, None, None)));
        n.note("a directory, of nobody new", mode(&d));
    });
}

/// A user who can see a program must not be able to remove its rights.
#[test]
fn empty_chown_by_other_user_keeps_suid_sgid() {
    agree("suid and chown by a stranger", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, "").expect("a file");
        for bits in [0o4755, 0o6755, 0o4777, 0o2755, 0o755] {
            n.call("chmod", chmod(&path, bits));
            let done = as_caller(STRANGER, || errno(rustix::fs::chown(&path, None, None)));
            if bits & 0o6000 == 0 {
                n.call(format!("chown {bits:o}"), done);
            } else {
                for from in [Tmpfs, Ext4] {
                    let why = "the kernel asks us as it asks for an overlay, \
                               which must not be refused";
                    n.differs("chown", done, from, (Ok(()), Err(libc::EPERM)), why);
                }
            }
            n.note(format!("{bits:o}"), mode(&path));
        }
        // The same call by root and by the owner, who may clear them.
        let owner = Some(Uid::from_raw(500));
        n.call("chown", errno(rustix::fs::chown(&path, owner, None)));
        for who in [Caller::ROOT, STRANGER] {
            n.call("chmod", chmod(&path, 0o6755));
            let done = as_caller(who, || errno(rustix::fs::chown(&path, None, None)));
            n.call("chown of nothing", done);
            n.note(format!("by {}", who.uid), mode(&path));
        }
    });
}

#[test]
fn chmod_outside_group_clears_sgid() {
    agree("sgid and chmod", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, "").expect("a file");
        for gid in [500, 700] {
            let (uid, gid) = (Some(Uid::from_raw(500)), Some(Gid::from_raw(gid)));
            n.call("chown", errno(rustix::fs::chown(&path, uid, gid)));
            n.call("chmod", as_caller(STRANGER, || chmod(&path, 0o6755)));
            n.note(format!("{gid:?}"), mode(&path));
        }
    });
}

#[test]
fn setgid_directory_passes_group_without_sgid_right() {
    agree("setgid directories", &[Tmpfs, Ext4], |dir, n| {
        let d = dir.join("d");
        n.call("mkdir", errno(rustix::fs::mkdir(&d, Mode::RWXU)));
        let group = Some(Gid::from_raw(700));
        n.call("chown", errno(rustix::fs::chown(&d, None, group)));
        n.call("chmod", chmod(&d, 0o2777));
        for bits in [0o2755, 0o2745, 0o644, 0o4755] {
            as_caller(STRANGER, || {
                let f = d.join(format!("f{bits:o}"));
                let made = errno(rustix::fs::open(
                    &f,
                    OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC,
                    Mode::from_raw_mode(bits),
                ));
                n.call(format!("create {bits:o}"), made.map(drop));
                let s = d.join(format!("d{bits:o}"));
                let mode = Mode::from_raw_mode(bits);
                n.call(
                    format!("mkdir {bits:o}"),
                    errno(rustix::fs::mkdir(&s, mode)),
                );
                for path in [f, s] {
                    let seen = errno(rustix::fs::stat(&path));
                    n.note(
                        format!("{bits:o}"),
                        seen.map(|s| (s.st_uid, s.st_gid, s.st_mode)),
                    );
                }
            });
        }
    });
}
