//! Names: renameat2 with its flags (xfstests 023-025 078 626), lost+found and `..`,
//! O_TMPFILE, and open without permission to create (087 126 245 309).

use std::fs;
use std::path::Path;

use pramfs_tests::syscalls::{Caller, Sys, as_caller, errno};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};

use crate::Reference::{self, Ext4, Tmpfs};
use crate::{Transcript, agree};

const KINDS: [&str; 5] = ["none", "file", "link", "empty", "tree"];

/// Creates an object of this kind.
fn make(path: &Path, kind: &str) {
    match kind {
        "file" => fs::write(path, "x").expect("a file"),
        "link" => rustix::fs::symlink("nowhere", path).expect("a link"),
        "empty" => fs::create_dir(path).expect("a directory"),
        "tree" => fs::create_dir_all(path.join("in/it")).expect("directories"),
        _ => {}
    }
}

/// Type, link count and device number of a name.
fn seen(path: &Path) -> Sys<(FileType, u64, u64)> {
    errno(rustix::fs::lstat(path)).map(|s| {
        (
            FileType::from_raw_mode(s.st_mode),
            u64::from(s.st_nlink as u32),
            s.st_rdev,
        )
    })
}

#[test]
fn rename_of_each_type_over_each_matches_kernel() {
    agree("renameat2", &[Tmpfs, Ext4], |dir, n| {
        for flags in [
            RenameFlags::empty(),
            RenameFlags::NOREPLACE,
            RenameFlags::EXCHANGE,
            RenameFlags::WHITEOUT,
            RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
            RenameFlags::EXCHANGE | RenameFlags::NOREPLACE,
            RenameFlags::EXCHANGE | RenameFlags::WHITEOUT,
        ] {
            for (across, from, to) in KINDS
                .iter()
                .flat_map(|from| KINDS.iter().map(move |to| (from, to)))
                .flat_map(|(from, to)| [false, true].map(|across| (across, from, to)))
            {
                let what = format!("{flags:?} {from} to {to}, across {across}");
                let base = dir.join("base");
                fs::create_dir_all(base.join("other")).expect("directories");
                let old = base.join("old");
                let new = if across {
                    base.join("other/new")
                } else {
                    base.join("new")
                };
                make(&old, from);
                make(&new, to);
                n.call(
                    &what,
                    errno(rustix::fs::renameat_with(CWD, &old, CWD, &new, flags)),
                );
                n.note(&what, (seen(&old), seen(&new)));
                n.note(&what, (seen(&base), seen(&base.join("other"))));
                fs::remove_dir_all(&base).expect("remove all of it");
            }
        }
    });
}

#[test]
fn sticky_directory_lets_only_owners_remove() {
    agree("sticky directories", &[Tmpfs, Ext4], |dir, n| {
        let d = dir.join("d");
        fs::create_dir(&d).expect("a directory");
        rustix::fs::chmod(&d, Mode::from_raw_mode(0o1777)).expect("chmod");
        let who = |uid| Caller {
            uid,
            gid: uid,
            umask: 0,
            privileged: false,
        };
        for uid in [500, 501] {
            as_caller(who(uid), || fs::write(d.join(format!("of-{uid}")), "x")).expect("a file");
        }
        as_caller(who(500), || {
            n.call(
                "move another's",
                errno(rustix::fs::rename(d.join("of-501"), d.join("x"))),
            );
            let over = rustix::fs::rename(d.join("of-500"), d.join("of-501"));
            n.call("over another's", errno(over));
            n.call(
                "remove another's",
                errno(rustix::fs::unlink(d.join("of-501"))),
            );
            n.call(
                "move one's own",
                errno(rustix::fs::rename(d.join("of-500"), d.join("x"))),
            );
            n.call("remove one's own", errno(rustix::fs::unlink(d.join("x"))));
        });
    });
}

/// A new file system has no lost+found. A repair creates it.
#[test]
fn lost_and_found_is_ordinary_name() {
    agree("lost+found", &[Tmpfs], |dir, n| {
        let path = dir.join("lost+found");
        n.note("at first", seen(&path));
        n.call("mkdir", errno(rustix::fs::mkdir(&path, Mode::RWXU)));
        n.call("rmdir", errno(rustix::fs::rmdir(&path)));
    });
}

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
