//! Impossible names, paths, inode numbers and attributes, for each operation that takes
//! one.
//!
//! Each call fails with the errno of Linux and changes nothing: everything visible,
//! including times, stays as before.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::bad_support::fixture::{BLOCK_SIZES, Fixture, fixture};
use crate::bad_support::model::CX;

use pramfs::{
    OpenOptions, RenameFlags, Result, SeekWhence, XattrMode,
    inode::{Fs, Ino, SetAttr, SetTime, Time},
};

type Named = (&'static str, fn(&Fixture, &[u8]) -> Result<()>);

const REPLACE: RenameFlags = RenameFlags {
    noreplace: false,
    exchange: false,
    whiteout: false,
};
const EXCHANGE: RenameFlags = RenameFlags {
    exchange: true,
    ..REPLACE
};
const WHITEOUT: RenameFlags = RenameFlags {
    whiteout: true,
    ..REPLACE
};
const NOREPLACE: RenameFlags = RenameFlags {
    noreplace: true,
    ..REPLACE
};

/// Operations that create, move or remove a name.
const CHANGES: [Named; 16] = [
    ("create", |b, n| b.fs.create(&CX, b.dir, n, 0o644).map(drop)),
    ("create with a reference", |b, n| {
        b.fs.holding().create(&CX, b.dir, n, 0o644).map(drop)
    }),
    ("mkdir", |b, n| b.fs.mkdir(&CX, b.dir, n, 0o755).map(drop)),
    ("mknod", |b, n| {
        b.fs.mknod(&CX, b.dir, n, libc::S_IFIFO | 0o600, 0)
            .map(drop)
    }),
    ("symlink", |b, n| {
        b.fs.symlink(&CX, b.dir, n, b"target").map(drop)
    }),
    ("link", |b, n| b.fs.link(b.file, b.dir, n).map(drop)),
    ("unlink", |b, n| b.fs.unlink(b.dir, n)),
    ("rmdir", |b, n| b.fs.rmdir(b.dir, n)),
    ("rename from", |b, n| {
        b.fs.rename(&CX, b.dir, n, b.sub, b"new", REPLACE)
    }),
    ("rename to", |b, n| {
        b.fs.rename(&CX, b.dir, b"file", b.sub, n, REPLACE)
    }),
    ("rename within", |b, n| {
        b.fs.rename(&CX, b.dir, b"file", b.dir, n, REPLACE)
    }),
    ("noreplace to", |b, n| {
        b.fs.rename(&CX, b.dir, b"file", b.dir, n, NOREPLACE)
    }),
    ("exchange from", |b, n| {
        b.fs.rename(&CX, b.dir, n, b.sub, b"below", EXCHANGE)
    }),
    ("exchange to", |b, n| {
        b.fs.rename(&CX, b.dir, b"file", b.sub, n, EXCHANGE)
    }),
    ("whiteout from", |b, n| {
        b.fs.rename(&CX, b.dir, n, b.sub, b"new", WHITEOUT)
    }),
    ("whiteout to", |b, n| {
        b.fs.rename(&CX, b.dir, b"file", b.sub, n, WHITEOUT)
    }),
];

const LOOKS: [Named; 2] = [
    ("lookup", |b, n| b.fs.lookup(b.dir, n).map(drop)),
    ("lookup with a reference", |b, n| {
        b.fs.holding().lookup(b.dir, n).map(drop)
    }),
];

/// The operations of [`CHANGES`] that need an existing name.
const NEED_IT: [&str; 6] = [
    "unlink",
    "rmdir",
    "rename from",
    "exchange from",
    "exchange to",
    "whiteout from",
];

#[test]
fn operations_reject_invalid_names() {
    for block_size in [512, 4096] {
        let b = fixture(block_size);
        let impossible: [(&[u8], i32); 10] = [
            (b"", libc::ENOENT),
            (b".", libc::EINVAL),
            (b"..", libc::EINVAL),
            (&[b'x'; 256], libc::ENAMETOOLONG),
            (&[b'x'; 4096], libc::ENAMETOOLONG),
            (&[b'x'; 70_000], libc::ENAMETOOLONG),
            (b"/", libc::EINVAL),
            (b"a/b", libc::EINVAL),
            (b"a\0b", libc::EINVAL),
            (b"\0", libc::EINVAL),
        ];
        for (name, errno) in impossible {
            for (what, request) in CHANGES.iter().chain(&LOOKS) {
                let dots = matches!(name, b"." | b"..");
                let errno = match *what {
                    "lookup" | "lookup with a reference" if dots => {
                        request(&b, name).unwrap();
                        continue;
                    }
                    "rmdir" if name == b".." => libc::ENOTEMPTY,
                    _ => errno,
                };
                let shown = String::from_utf8_lossy(&name[..name.len().min(9)]).into_owned();
                b.refused(&format!("{what} {shown:?}"), &[errno], |_| {
                    request(&b, name)
                });
            }
        }
        b.end();
    }
}

#[test]
fn operations_accept_names_of_255_bytes() {
    for block_size in BLOCK_SIZES {
        for byte in [b'x', 0xff, 1] {
            let longest = [byte; 255];
            for (what, request) in CHANGES {
                let b = fixture(block_size);
                if NEED_IT.contains(&what) {
                    // A missing name is not found; an existing one has the expected type.
                    b.refused(what, &[libc::ENOENT], |_| request(&b, &longest));
                    let at = if what == "exchange to" { b.sub } else { b.dir };
                    if what == "rmdir" {
                        b.fs.mkdir(&CX, at, &longest, 0o755).unwrap();
                    } else {
                        b.fs.create(&CX, at, &longest, 0o644).unwrap();
                    }
                }
                request(&b, &longest).unwrap_or_else(|e| panic!("{what}: {e}"));
                b.end();
            }
        }
    }
}

/// Non-directories in the place of directories, and unused inode numbers.
#[test]
fn operations_reject_wrong_types_and_free_inodes() {
    let b = fixture(4096);
    for (what, request) in CHANGES.iter().chain(&LOOKS) {
        let in_a_file = Fixture {
            fs: fixture(4096).fs,
            dir: b.file,
            ..b
        };
        let request = |_: &Fs| request(&in_a_file, b"file");
        in_a_file.refused(what, &[libc::ENOTDIR], request);
    }
    let numbers = [0, 1, 3, 4, 15, 5000, 1 << 32, u64::MAX >> 8, u64::MAX];
    for n in numbers {
        let ino = Ino(n);
        let stale = &[libc::ESTALE][..];
        let set = SetAttr {
            perm: Some(0),
            size: Some(0),
            ..SetAttr::default()
        };
        b.refused("getattr", stale, |fs| fs.getattr(ino));
        b.refused("setattr", stale, |fs| fs.setattr(&CX, ino, &set));
        b.refused("read", stale, |fs| fs.read(ino, 0, &mut [0; 9]));
        b.refused("write", stale, |fs| fs.write(&CX, ino, 0, b"x"));
        b.refused("append", stale, |fs| fs.append(&CX, ino, b"x"));
        b.refused("create", stale, |fs| fs.create(&CX, ino, b"n", 0));
        b.refused("lookup", stale, |fs| fs.lookup(ino, b"n"));
        b.refused("unlink", stale, |fs| fs.unlink(ino, b"file"));
        b.refused("link", stale, |fs| fs.link(ino, b.dir, b"n"));
        b.refused("link to", stale, |fs| fs.link(b.file, ino, b"n"));
        b.refused("readlink", stale, |fs| fs.readlink(ino));
        b.refused("listxattr", stale, |fs| fs.listxattr(ino));
        b.refused("fsync", stale, |fs| fs.fsync(ino, false));
        b.refused("seek", stale, |fs| fs.seek(ino, 0, SeekWhence::Data));
        b.refused("file_extents", stale, |fs| fs.file_extents(ino, 0, 1));
        b.refused("open_file", stale, |fs| fs.open_file(ino).map(drop));
        b.refused("rename", stale, |fs| {
            fs.rename(&CX, ino, b"a", b.dir, b"b", REPLACE)
        });
        b.refused("readdir", stale, |fs| {
            fs.readdir(ino, 0, &mut |_| std::ops::ControlFlow::Continue(()))
        });
    }
    // Invalid cookies give the end of the directory, or some position in it.
    for cookie in [3, 255, 256, i64::MAX as u64, 1 << 63, u64::MAX] {
        let mut n = 0;
        b.fs.readdir(b.dir, cookie, &mut |_| {
            n += 1;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        assert!(n <= 3, "cookie {cookie:#x}");
    }
    let many = [0, libc::S_IFDIR, libc::S_IFLNK, libc::S_IFMT, 0o777];
    for mode in many {
        b.refused("mknod", &[libc::EINVAL], |fs| {
            fs.mknod(&CX, b.dir, b"n", mode, 0)
        });
    }
    b.end();
}

#[test]
fn symlink_target_length_limits_hold() {
    for block_size in BLOCK_SIZES {
        let b = fixture(block_size);
        let refused = |target: &[u8], errno| {
            b.refused("symlink", &[errno], |fs| {
                fs.symlink(&CX, b.dir, b"s", target)
            });
        };
        refused(b"", libc::ENOENT);
        refused(b"a\0b", libc::EINVAL);
        for len in [4096, 4097, 1 << 20] {
            refused(&vec![b't'; len], libc::ENAMETOOLONG);
        }
        for len in [1, 95, 96, 97, 511, 512, 4094, 4095] {
            let name = format!("s{len}");
            let made = b.fs.symlink(&CX, b.dir, name.as_bytes(), &vec![b't'; len]);
            assert_eq!(b.fs.readlink(made.unwrap().ino).unwrap(), vec![b't'; len]);
        }
        b.end();
    }
}

#[test]
fn xattr_name_and_value_limits_hold() {
    for block_size in BLOCK_SIZES {
        let b = fixture(block_size);
        let long = |len: usize| [&b"user."[..], &vec![b'n'; len - 5]].concat();
        let bad: [(Vec<u8>, i32); 13] = [
            (b"".to_vec(), libc::EOPNOTSUPP),
            (b"user".to_vec(), libc::EOPNOTSUPP),
            (b"user.".to_vec(), libc::EINVAL),
            (b"trusted.".to_vec(), libc::EINVAL),
            (b"security.".to_vec(), libc::EINVAL),
            (b"USER.a".to_vec(), libc::EOPNOTSUPP),
            (b"other.a".to_vec(), libc::EOPNOTSUPP),
            (b"system.a".to_vec(), libc::EOPNOTSUPP),
            (b"system.posix_acl_access_".to_vec(), libc::EOPNOTSUPP),
            (b"user.a\0b".to_vec(), libc::EOPNOTSUPP),
            (long(256), libc::ENAMETOOLONG),
            (long(257), libc::ENAMETOOLONG),
            (long(70_000), libc::ENAMETOOLONG),
        ];
        for (name, errno) in &bad {
            b.refused("setxattr", &[*errno], |fs| {
                fs.setxattr(&CX, b.file, name, b"v", XattrMode::Set)
            });
            b.refused("getxattr", &[*errno], |fs| fs.getxattr(b.file, name));
            b.refused("removexattr", &[*errno], |fs| fs.removexattr(b.file, name));
        }
        for len in [65_537, 65_536 + 4096, 1 << 20] {
            let value = vec![1; len];
            b.refused("setxattr", &[libc::E2BIG], |fs| {
                fs.setxattr(&CX, b.file, b"user.v", &value, XattrMode::Set)
            });
        }
        b.refused("create", &[libc::EEXIST], |fs| {
            fs.setxattr(&CX, b.file, b"user.a", b"v", XattrMode::Create)
        });
        b.refused("replace", &[libc::ENODATA], |fs| {
            fs.setxattr(&CX, b.file, b"user.b", b"v", XattrMode::Replace)
        });
        for len in [0, 1, 65_535, 65_536] {
            let (name, value) = (long(255), vec![3; len]);
            b.fs.setxattr(&CX, b.file, &name, &value, XattrMode::Set)
                .unwrap();
            assert_eq!(b.fs.getxattr(b.file, &name).unwrap(), value);
        }
        b.end();
    }
}

#[test]
fn invalid_times_and_flags_are_rejected() {
    let b = fixture(4096);
    let bad = Time {
        sec: 0,
        nsec: 1_000_000_000,
    };
    let none = SetAttr::default();
    let cases = [
        SetAttr {
            atime: Some(SetTime::At(bad)),
            ..none
        },
        SetAttr {
            mtime: Some(SetTime::At(bad)),
            size: Some(1),
            ..none
        },
        SetAttr {
            ctime: Some(bad),
            perm: Some(0),
            ..none
        },
        SetAttr {
            ctime: Some(Time {
                sec: i64::MIN,
                nsec: u32::MAX,
            }),
            ..none
        },
    ];
    for set in cases {
        b.refused("a time", &[libc::EINVAL], |fs| {
            fs.setattr(&CX, b.file, &set)
        });
    }
    for flags in [1 << 31, u32::MAX, 0x100] {
        let set = SetAttr {
            flags: Some(flags),
            ..none
        };
        b.refused("flags", &[libc::EOPNOTSUPP], |fs| {
            fs.setattr(&CX, b.file, &set)
        });
    }
    for (exchange, noreplace, whiteout) in [(true, true, false), (true, false, true)] {
        let flags = RenameFlags {
            exchange,
            noreplace,
            whiteout,
        };
        b.refused("rename", &[libc::EINVAL], |fs| {
            fs.rename(&CX, b.dir, b"file", b.dir, b"link", flags)
        });
    }
    // The extreme times are valid.
    for sec in [i64::MIN, -1, 0, i64::MAX] {
        let at = Time {
            sec,
            nsec: 999_999_999,
        };
        let set = SetAttr {
            atime: Some(SetTime::At(at)),
            mtime: Some(SetTime::At(at)),
            ctime: Some(at),
            ..none
        };
        let attr = b.fs.setattr(&CX, b.file, &set).unwrap();
        assert_eq!((attr.atime, attr.mtime, attr.ctime), (at, at, at));
    }
    b.end();
}

#[test]
fn invalid_paths_are_rejected() {
    let b = fixture(4096);
    let open = |path: &[u8]| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&b.fs, OsStr::from_bytes(path))
            .map(drop)
    };
    let create = |path: &[u8]| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(&b.fs, OsStr::from_bytes(path))
            .map(drop)
    };
    let long = [b"/dir/".to_vec(), vec![b'x'; 256]].concat();
    b.fs.symlink(&CX, b.dir, b"loop", b"loop").unwrap();
    b.fs.symlink(&CX, b.dir, b"ping", b"/dir/pong").unwrap();
    b.fs.symlink(&CX, b.dir, b"pong", b"ping").unwrap();
    let cases: [(&[u8], i32, i32); 11] = [
        (b"", libc::ENOENT, libc::ENOENT),
        (b"/", libc::EISDIR, libc::EISDIR),
        (b"/dir", libc::EISDIR, libc::EISDIR),
        (b"/dir/..", libc::EISDIR, libc::EISDIR),
        (b"/none/file", libc::ENOENT, libc::ENOENT),
        (b"/dir/file/below", libc::ENOTDIR, libc::ENOTDIR),
        (b"/dir/file/", libc::ENOTDIR, libc::ENOTDIR),
        (&long, libc::ENAMETOOLONG, libc::ENAMETOOLONG),
        (b"/dir/a\0b", libc::EINVAL, libc::EINVAL),
        (b"/dir/loop", libc::ELOOP, libc::ELOOP),
        (b"/dir/ping/x", libc::ELOOP, libc::ELOOP),
    ];
    for (path, opened, created) in cases {
        let shown = String::from_utf8_lossy(&path[..path.len().min(20)]).into_owned();
        b.refused(&format!("open {shown:?}"), &[opened], |_| open(path));
        b.refused(&format!("create {shown:?}"), &[created], |_| create(path));
    }
    b.refused("open of a new directory", &[libc::ENOENT], |_| {
        open(b"/dir/new/")
    });
    b.refused("create of a new directory", &[libc::EISDIR], |_| {
        create(b"/dir/new/")
    });
    open(b"dir/./../dir//sub/../file").unwrap();
    b.end();
}
