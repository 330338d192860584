//! open on a mount: every type of file with every flag (xfstests 087 126), O_TMPFILE,
//! O_NOATIME.

use std::fs;
use std::path::Path;

use pramfs_tests::syscalls::{Caller, as_caller, errno};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::support::file::make;
use crate::support::mount::Reference::{self, Ext4, Tmpfs};
use crate::support::mount::{agree, agree_with};
use crate::support::transcript::Transcript;

#[test]
fn o_tmpfile_fails_as_unsupported() {
    agree("O_TMPFILE", &[Tmpfs, Ext4], |dir, n| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let opened = errno(rustix::fs::open(dir, flags, Mode::RUSR));
        for reference in [Reference::Tmpfs, Reference::Ext4] {
            n.differs(
                "open",
                opened.as_ref().map(drop).map_err(|e| *e),
                reference,
                (Err(libc::EOPNOTSUPP), Ok(())),
                "the transport does not pass the request on",
            );
        }
        n.note(
            "nothing is left",
            fs::read_dir(dir)
                .map(|all| {
                    all.filter_map(Result::ok)
                        .all(|e| e.file_name() == "lost+found")
                })
                .ok(),
        );
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
