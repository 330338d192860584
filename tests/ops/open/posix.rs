//! open on a mount: every type of file with every flag (xfstests 087 126), O_TMPFILE,
//! O_NOATIME.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use pramfs_tests::syscalls::{Caller, as_caller, errno};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::support::file::make;
use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::{agree, agree_with, alone};
use crate::support::transcript::Transcript;

/// What is seen of a file without a name in a directory, from its making to its first name.
fn tmpfile(dir: &Path, n: &mut Transcript) {
    let open = |flags: OFlags, mode| {
        let flags = OFlags::TMPFILE | OFlags::CLOEXEC | flags;
        errno(rustix::fs::open(dir, flags, Mode::from_raw_mode(mode)))
    };
    let names = || fs::read_dir(dir).map(|all| all.count()).ok();
    let before = names();
    n.call("O_RDONLY", open(OFlags::RDONLY, 0o600).map(drop));
    let file = open(OFlags::RDWR, 0o604).expect("a file without a name");
    n.call("write", errno(rustix::io::pwrite(&file, b"contents", 0)));
    let seen = rustix::fs::fstat(&file).expect("stat");
    n.note("nlink", seen.st_nlink);
    n.note("mode and size", (seen.st_mode, seen.st_size));
    n.note("no entry", names() == before);
    let by_proc = |file: &OwnedFd| format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |file: &OwnedFd, name: &str| {
        let at = dir.join(name);
        errno(rustix::fs::linkat(
            CWD,
            by_proc(file),
            CWD,
            at,
            AtFlags::SYMLINK_FOLLOW,
        ))
    };
    n.call("link", link(&file, "first"));
    n.note("contents", fs::read(dir.join("first")).ok());
    n.call("link again", link(&file, "second"));
    n.note("nlink", rustix::fs::fstat(&file).map(|s| s.st_nlink).ok());
    for name in ["first", "second"] {
        n.call(name, errno(rustix::fs::unlink(dir.join(name))));
    }
    n.call("link of what has lost its names", link(&file, "third"));
    n.note("nlink", rustix::fs::fstat(&file).map(|s| s.st_nlink).ok());

    let exclusive = open(OFlags::RDWR | OFlags::EXCL, 0o600).expect("one that gets no name");
    n.call("link with O_EXCL", link(&exclusive, "fourth"));
    let empty = open(OFlags::WRONLY, 0o600).expect("another one");
    let path = dir.join("empty-path");
    n.call(
        "AT_EMPTY_PATH",
        errno(rustix::fs::linkat(
            &empty,
            "",
            CWD,
            &path,
            AtFlags::EMPTY_PATH,
        )),
    );
    n.note("its size", fs::metadata(&path).map(|m| m.len()).ok());
    n.call("onto a name", link(&exclusive, "empty-path"));
    fs::write(dir.join("file"), "x").expect("a file");
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let in_file = rustix::fs::open(dir.join("file"), flags, Mode::RUSR);
    n.call("in a file", errno(in_file).map(drop));
    let who = Caller {
        uid: 500,
        gid: 500,
        umask: 0o022,
        privileged: false,
    };
    let by_stranger = as_caller(who, || open(OFlags::RDWR, 0o666)).map(drop);
    n.call("by a stranger", by_stranger);
    rustix::fs::chmod(dir, Mode::from_raw_mode(0o1777)).expect("chmod");
    let file = as_caller(who, || open(OFlags::RDWR, 0o666)).expect("now it may");
    let seen = rustix::fs::fstat(&file).expect("stat");
    n.note("of a stranger", (seen.st_mode, seen.st_uid, seen.st_gid));
}

#[test]
fn o_tmpfile_agrees_with_tmpfs_and_ext4() {
    // Not `fuser`, which has no such request.
    agree_with("O_TMPFILE", "transport=auto", &[Tmpfs, Ext4], tmpfile);
}

#[test]
fn o_tmpfile_fails_over_fuser() {
    alone("O_TMPFILE over fuser", "transport=fuser", |mount| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let opened = rustix::fs::open(mount.path(), flags, Mode::RUSR);
        assert_eq!(opened.unwrap_err(), rustix::io::Errno::OPNOTSUPP);
        assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
    });
}

fn open_flags(n: &mut Transcript, path: &Path) {
    for flags in [
        OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY,
        OFlags::CREATE | OFlags::RDONLY,
        OFlags::CREATE | OFlags::DIRECTORY,
        OFlags::RDONLY | OFlags::DIRECTORY,
        OFlags::RDONLY | OFlags::NOFOLLOW,
        OFlags::WRONLY | OFlags::TRUNC,
        OFlags::RDWR,
        OFlags::PATH,
    ] {
        let opened = errno(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR));
        n.call(
            format!("{flags:?} {:?}", path.file_name()),
            opened.map(drop),
        );
    }
}

#[test]
fn open_of_each_type_matches_kernel() {
    agree("open", &[Tmpfs, Ext4], |dir, n| {
        for kind in ["file", "link", "empty", "tree"] {
            let path = dir.join(kind);
            make(&path, kind);
            open_flags(n, &path);
        }
        let _there = fs::remove_file(dir.join("nowhere"));
        for path in [
            "none", "file/", "file/x", "none/x", "empty/", "empty/.", "link/",
        ] {
            open_flags(n, &dir.join(path));
        }
        n.call(
            "of nothing",
            errno(rustix::fs::openat(CWD, "", OFlags::RDONLY, Mode::empty())),
        );
        let unlinked = rustix::fs::unlinkat(CWD, dir.join("empty"), AtFlags::empty());
        n.call("unlink of a directory", errno(unlinked));
    });
}

/// The rule also holds for a read-only open of a file that the caller cannot write.
#[test]
fn o_noatime_needs_owner() {
    agree_with("O_NOATIME", "strictatime", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, "x").expect("a file");
        rustix::fs::chmod(&path, Mode::from_raw_mode(0o644)).expect("chmod");
        let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::CLOEXEC;
        let who = Caller {
            uid: 500,
            gid: 500,
            umask: 0,
            privileged: false,
        };
        let open = || errno(rustix::fs::open(&path, flags, Mode::empty())).map(drop);
        n.call("root", open());
        n.call("a stranger", as_caller(who, open));
    });
}
