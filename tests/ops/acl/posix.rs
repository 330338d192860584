//! POSIX ACLs on a mount: access checks, the effect of `chmod` and the umask, inheritance
//! from a directory (xfstests 099 105 237 307 318 319 375 389 444 449).

use std::os::fd::AsFd;
use std::path::Path;

use pramfs_tests::syscalls::{self as sys, Caller, Sys, as_caller, errno};
use rustix::fs::{CWD, Mode, OFlags, XattrFlags};

use crate::support::mode::{chmod, mode};
use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::agree;
use crate::support::transcript::Transcript;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NONE: u32 = u32::MAX;
type Entry = (u8, u8, u32);

fn list(entries: &[Entry]) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        value.extend([*tag, 0, *perm, 0]);
        value.extend(id.to_le_bytes());
    }
    value
}

/// Owner, user 500, owning group, group 600, mask, others.
fn full(perms: [u8; 6]) -> Vec<u8> {
    let [u, user, g, group, mask, o] = perms;
    list(&[
        (1, u, NONE),
        (2, user, 500),
        (4, g, NONE),
        (8, group, 600),
        (16, mask, NONE),
        (32, o, NONE),
    ])
}

fn set(path: &Path, name: &str, value: &[u8]) -> Sys {
    errno(rustix::fs::setxattr(path, name, value, XattrFlags::empty()))
}

fn get(path: &Path, name: &str) -> Sys<Vec<u8>> {
    let mut value = vec![0; 4096];
    let n = errno(rustix::fs::getxattr(path, name, &mut value[..]))?;
    value.truncate(n);
    Ok(value)
}

fn make(path: &Path, mode: u32) -> Sys {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    errno(rustix::fs::open(path, flags, Mode::from_raw_mode(mode))).map(drop)
}

fn user(uid: u32, gid: u32) -> Caller {
    Caller {
        uid,
        gid,
        umask: 0o022,
        privileged: false,
    }
}

fn state(n: &mut Transcript, what: &str, path: &Path) {
    n.note(format!("{what}: mode"), mode(path));
    n.note(format!("{what}: access"), get(path, ACCESS));
    n.note(format!("{what}: default"), get(path, DEFAULT));
}

#[test]
fn acl_entries_limit_access() {
    agree("ACLs enforced", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        n.call("make", make(&path, 0o600));
        let open = |n: &mut Transcript, what: &str| {
            for (uid, gid) in [(500, 1), (501, 600), (501, 0), (501, 1)] {
                for flags in [OFlags::RDONLY, OFlags::WRONLY] {
                    let opened = as_caller(user(uid, gid), || {
                        errno(rustix::fs::open(&path, flags, Mode::empty()))
                    });
                    n.call(format!("{what}: {uid}:{gid} {flags:?}"), opened.map(drop));
                }
            }
        };
        open(n, "mode only");
        for perms in [
            [6, 6, 4, 2, 6, 0],
            [6, 6, 4, 2, 4, 0],
            [6, 0, 0, 0, 7, 6],
            [0, 4, 2, 6, 7, 0],
        ] {
            n.call("set", set(&path, ACCESS, &full(perms)));
            state(n, "set", &path);
            open(n, &format!("{perms:?}"));
        }
        n.call("chmod", chmod(&path, 0o640));
        open(n, "after chmod");
        n.call("remove", errno(rustix::fs::removexattr(&path, ACCESS)));
        open(n, "removed");
        state(n, "removed", &path);
    });
}

#[test]
fn access_acl_and_mode_stay_in_step() {
    agree("ACL and mode", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        n.call("make", make(&path, 0o644));
        for perms in [[7, 5, 3, 1, 7, 4], [6, 7, 7, 7, 0, 0]] {
            n.call("set", set(&path, ACCESS, &full(perms)));
            state(n, "set", &path);
            for bits in [0o777, 0o070, 0o4755, 0] {
                n.call("chmod", chmod(&path, bits));
                state(n, "chmod", &path);
            }
        }
        let plain = list(&[(1, 5, NONE), (4, 1, NONE), (32, 2, NONE)]);
        n.call("what a mode can say", set(&path, ACCESS, &plain));
        state(n, "plain", &path);
        n.call("again", set(&path, ACCESS, &full([7, 5, 3, 1, 7, 4])));
        n.call("no entries", set(&path, ACCESS, &list(&[])));
        state(n, "no entries", &path);
    });
}

#[test]
fn default_acl_is_inherited_and_replaces_umask() {
    agree("default ACLs", &[Tmpfs, Ext4], |dir, n| {
        for (at, perms) in [[7, 7, 5, 6, 7, 0], [7, 5, 5, 0, 5, 5], [6, 0, 0, 0, 0, 0]]
            .into_iter()
            .enumerate()
        {
            let d = dir.join(format!("d{at}"));
            n.call("mkdir", errno(rustix::fs::mkdir(&d, Mode::RWXU)));
            n.call("default", set(&d, DEFAULT, &full(perms)));
            state(n, "directory", &d);
            let strict = Caller {
                umask: 0o077,
                ..Caller::ROOT
            };
            as_caller(strict, || {
                for bits in [0o666u32, 0o777, 0o640, 0] {
                    let f = d.join(format!("f{bits:o}"));
                    n.call("create", make(&f, bits));
                    state(n, "file", &f);
                    let s = d.join(format!("d{bits:o}"));
                    let mode = Mode::from_raw_mode(bits);
                    n.call("mkdir", errno(rustix::fs::mkdir(&s, mode)));
                    state(n, "subdirectory", &s);
                    let p = d.join(format!("p{bits:o}"));
                    n.call(
                        "mknod",
                        sys::mknod(CWD, path_bytes(&p), libc::S_IFIFO | bits, 0),
                    );
                    state(n, "pipe", &p);
                }
                let l = d.join("l");
                n.call("symlink", errno(rustix::fs::symlink("f", &l)));
                let link = errno(rustix::fs::lstat(&l)).map(|s| s.st_mode);
                n.note("symlink", link);
            });
        }
        let plain = dir.join("plain");
        n.call("mkdir", errno(rustix::fs::mkdir(&plain, Mode::RWXU)));
        let three = list(&[(1, 7, NONE), (4, 5, NONE), (32, 1, NONE)]);
        n.call("three", set(&plain, DEFAULT, &three));
        n.call("create", make(&plain.join("f"), 0o666));
        state(n, "three", &plain.join("f"));
        n.call("remove", errno(rustix::fs::removexattr(&plain, DEFAULT)));
        n.call("create", make(&plain.join("g"), 0o666));
        state(n, "none", &plain.join("g"));
    });
}

#[test]
fn removal_of_missing_acl_matches_kernel() {
    agree("removing ACLs", &[Tmpfs, Ext4], |dir, n| {
        let (f, d, l) = (dir.join("f"), dir.join("d"), dir.join("l"));
        n.call("make", make(&f, 0o640));
        n.call("mkdir", errno(rustix::fs::mkdir(&d, Mode::RWXU)));
        n.call("symlink", errno(rustix::fs::symlink("f", &l)));
        for (what, path) in [("a file", &f), ("a directory", &d), ("a link", &l)] {
            for name in [ACCESS, DEFAULT] {
                n.call(what, errno(rustix::fs::lremovexattr(path, name)));
            }
        }
        n.call("set", set(&f, ACCESS, &full([7, 5, 3, 1, 7, 4])));
        n.call("remove", errno(rustix::fs::removexattr(&f, ACCESS)));
        n.call("again", errno(rustix::fs::removexattr(&f, ACCESS)));
        let stranger = as_caller(user(500, 500), || {
            errno(rustix::fs::removexattr(&f, ACCESS))
        });
        n.call("a stranger", stranger);
        state(n, "left", &f);
    });
}

fn path_bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_encoded_bytes()
}

#[test]
fn acl_set_checks_caller_and_value() {
    agree("setting ACLs", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        n.call("make", make(&path, 0o666));
        let good = full([7, 5, 3, 1, 7, 4]);
        let stranger = as_caller(user(500, 500), || set(&path, ACCESS, &good));
        n.call("a stranger", stranger);
        let owner = rustix::fs::Uid::from_raw(500);
        n.call("chown", errno(rustix::fs::chown(&path, Some(owner), None)));
        let mine = as_caller(user(500, 500), || set(&path, ACCESS, &good));
        n.call("the owner", mine);
        n.call("default of a file", set(&path, DEFAULT, &good));
        let removed = as_caller(user(501, 501), || {
            errno(rustix::fs::removexattr(&path, ACCESS))
        });
        n.call("removed by a stranger", removed);
        for (what, value) in [
            ("no version", vec![]),
            ("version 1", [&[1][..], &good[1..]].concat()),
            ("half an entry", good[..good.len() - 3].to_vec()),
            ("no others", good[..good.len() - 8].to_vec()),
            (
                "no mask",
                list(&[(1, 7, NONE), (2, 7, 5), (4, 7, NONE), (32, 7, NONE)]),
            ),
            (
                "two owners",
                list(&[(1, 7, NONE), (1, 7, NONE), (4, 7, NONE), (32, 7, NONE)]),
            ),
            ("order", list(&[(4, 7, NONE), (1, 7, NONE), (32, 7, NONE)])),
            (
                "permission",
                list(&[(1, 9, NONE), (4, 7, NONE), (32, 7, NONE)]),
            ),
            (
                "tag",
                list(&[(1, 7, NONE), (4, 7, NONE), (3, 7, NONE), (32, 7, NONE)]),
            ),
        ] {
            n.call(what, set(&path, ACCESS, &value));
        }
        state(n, "after all of them", &path);
    });
}

/// 375: setting an ACL clears sgid if the caller is not in the file's group.
#[test]
fn acl_set_outside_group_clears_sgid() {
    agree("ACL and sgid", &[Tmpfs, Ext4], |dir, n| {
        for (at, gid) in [500, 700].into_iter().enumerate() {
            let path = dir.join(format!("f{at}"));
            n.call("make", make(&path, 0o755));
            let ids = (
                rustix::fs::Uid::from_raw(500),
                rustix::fs::Gid::from_raw(gid),
            );
            n.call(
                "chown",
                errno(rustix::fs::chown(&path, Some(ids.0), Some(ids.1))),
            );
            n.call("chmod", chmod(&path, 0o2755));
            let set = as_caller(user(500, 500), || {
                set(&path, ACCESS, &full([7, 5, 5, 5, 5, 0]))
            });
            n.call("set", set);
            n.note("mode", mode(&path));
        }
    });
}

/// 444: the mask of a directory's ACL limits who may create in it.
#[test]
fn create_under_directory_acl_is_limited_by_mask() {
    agree("ACLs of directories", &[Tmpfs, Ext4], |dir, n| {
        let d = dir.join("d");
        n.call("mkdir", errno(rustix::fs::mkdir(&d, Mode::RWXU)));
        for (at, perms) in [[7, 7, 0, 7, 7, 0], [7, 7, 0, 7, 5, 0], [7, 3, 0, 1, 7, 0]]
            .into_iter()
            .enumerate()
        {
            n.call("set", set(&d, ACCESS, &full(perms)));
            for (uid, gid) in [(500, 1), (501, 600), (501, 1)] {
                as_caller(user(uid, gid), || {
                    let f = d.join(format!("{at}-{uid}-{gid}"));
                    n.call(format!("{perms:?} {uid}:{gid} create"), make(&f, 0o644));
                    let seen = sys::root(&d).and_then(|d| sys::read_dir(&d.as_fd()));
                    n.call(format!("{perms:?} {uid}:{gid} list"), seen.map(drop));
                });
            }
        }
    });
}
