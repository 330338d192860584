//! The flags of chattr(1), which the engine enforces for the library and for the mount.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use pramfs::inode::{Credentials, Fs, Ino, SetAttr, SetTime, Time};
use pramfs::{Access, AtimePolicy, Fallocate, MountOptions, OpenOptions, RenameFlags, XattrMode};
use pramfs_tests::region::quiet;

use crate::support::library::{ROOT, contents, file, remount, small};

const SYNC: u32 = 0x08;
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const NODUMP: u32 = 0x40;
const NOATIME: u32 = 0x80;
/// `chattr +j`.
const ATOMIC: u32 = 0x4000;

const PLAIN: RenameFlags = RenameFlags {
    noreplace: false,
    exchange: false,
    whiteout: false,
};

fn flag(fs: &Fs, ino: Ino, flags: u32) -> Result<(), i32> {
    let set = SetAttr {
        flags: Some(flags),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, ino, &set)
        .map(drop)
        .map_err(|e| e.errno())
}

fn refused<T: std::fmt::Debug>(what: &str, result: pramfs::Result<T>) {
    assert_eq!(
        result.map_err(|e| e.errno()).expect_err(what),
        libc::EPERM,
        "{what}"
    );
}

/// Operations that neither an immutable nor an append-only file allows.
fn changes_nothing(fs: &Fs, ino: Ino, name: &[u8]) {
    let none = SetAttr::default();
    let at = Some(SetTime::At(Time { sec: 1, nsec: 1 }));
    for (what, set) in [
        (
            "size",
            SetAttr {
                size: Some(1),
                ..none
            },
        ),
        (
            "mode",
            SetAttr {
                perm: Some(0o600),
                ..none
            },
        ),
        (
            "owner",
            SetAttr {
                uid: Some(1),
                ..none
            },
        ),
        (
            "group",
            SetAttr {
                gid: Some(1),
                ..none
            },
        ),
        ("mtime", SetAttr { mtime: at, ..none }),
        (
            "atime",
            SetAttr {
                atime: Some(SetTime::Now),
                ..none
            },
        ),
    ] {
        refused(what, fs.setattr(&Credentials::ROOT, ino, &set));
    }
    refused("write", fs.write(&Credentials::ROOT, ino, 0, b"x"));
    refused(
        "punch",
        fs.fallocate(&Credentials::ROOT, ino, Fallocate::PunchHole, 0, 10),
    );
    let zero = Fallocate::ZeroRange { keep_size: true };
    refused("zero", fs.fallocate(&Credentials::ROOT, ino, zero, 0, 10));
    refused(
        "setxattr",
        fs.setxattr(&Credentials::ROOT, ino, b"user.b", b"", XattrMode::Set),
    );
    refused("removexattr", fs.removexattr(ino, b"user.a"));
    refused("link", fs.link(ino, Ino::ROOT, b"other"));
    refused("unlink", fs.unlink(Ino::ROOT, name));
    let rename =
        |from: &[u8], to: &[u8], flags| fs.rename(&ROOT, Ino::ROOT, from, Ino::ROOT, to, flags);
    refused("rename", rename(name, b"other", PLAIN));
    refused("rename over", rename(b"free", name, PLAIN));
    let exchange = RenameFlags {
        exchange: true,
        ..PLAIN
    };
    refused("exchange", rename(b"free", name, exchange));
    // By the direct API too.
    let file = fs.open_file(ino).unwrap();
    refused("write_at", file.write_at(b"x", 0));
    refused("set_len", file.set_len(0));
    refused("map", file.map(0..1, Access::Write));
    file.map(0..1, Access::Read).unwrap();
    let path = [b"/", name].concat();
    refused(
        "truncate",
        OpenOptions::new()
            .read(true)
            .write(true)
            .truncate(true)
            .open(fs, OsStr::from_bytes(&path)),
    );
}

fn touch(fs: &Fs, ino: Ino) -> pramfs::Result<pramfs::inode::Attr> {
    let now = SetAttr {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, ino, &now)
}

fn marked(flags: u32) -> (pramfs_medium::pmem::SimBackend, Fs, Ino) {
    let (sim, fs) = small();
    file(&fs, "free");
    let ino = file(&fs, "f");
    fs.write(&Credentials::ROOT, ino, 0, b"contents").unwrap();
    fs.setxattr(&Credentials::ROOT, ino, b"user.a", b"1", XattrMode::Set)
        .unwrap();
    flag(&fs, ino, flags).unwrap();
    let fs = remount(&sim, fs, quiet());
    assert_eq!(fs.getattr(ino).unwrap().flags, flags);
    (sim, fs, ino)
}

#[test]
fn immutable_file_does_not_change() {
    let (_sim, fs, ino) = marked(IMMUTABLE);
    let before = fs.getattr(ino).unwrap();
    changes_nothing(&fs, ino, b"f");
    refused("append", fs.append(&Credentials::ROOT, ino, b"x"));
    refused(
        "part of an append",
        fs.append_chunk(&Credentials::ROOT, ino, 8, b"x"),
    );
    let more = Fallocate::Allocate { keep_size: true };
    refused(
        "fallocate",
        fs.fallocate(&Credentials::ROOT, ino, more, 0, 100),
    );
    refused("utimes", touch(&fs, ino));
    refused("suid", fs.strip_suid(ino));
    assert_eq!(fs.getattr(ino).unwrap(), before);
    assert_eq!(contents(&fs, ino), b"contents");
    assert_eq!(flag(&fs, ino, IMMUTABLE | NODUMP), Err(libc::EPERM));
    fs.write_back(ino, 0, b"c").unwrap();
    // A caller who may clear the flag can do everything again.
    flag(&fs, ino, 0).unwrap();
    fs.append(&Credentials::ROOT, ino, b"!").unwrap();
    fs.unlink(Ino::ROOT, b"f").unwrap();
}

#[test]
fn append_only_file_only_grows() {
    let (_sim, fs, ino) = marked(APPEND);
    changes_nothing(&fs, ino, b"f");
    fs.append(&Credentials::ROOT, ino, b", and more").unwrap();
    fs.append_chunk(&Credentials::ROOT, ino, 18, b".").unwrap();
    refused(
        "an append elsewhere",
        fs.append_chunk(&Credentials::ROOT, ino, 0, b"x"),
    );
    refused("a page of a mapping", fs.write_back(ino, 0, b"x"));
    let more = Fallocate::Allocate { keep_size: true };
    fs.fallocate(&Credentials::ROOT, ino, more, 0, 100).unwrap();
    touch(&fs, ino).unwrap();
    assert_eq!(contents(&fs, ino), b"contents, and more.");
}

#[test]
fn immutable_and_append_only_directories_keep_names() {
    for (flags, grows) in [(IMMUTABLE, false), (APPEND, true)] {
        let (_sim, fs) = small();
        let dir = fs.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap().ino;
        let old = fs.create(&ROOT, dir, b"old", 0o644).unwrap().ino;
        let sub = fs.mkdir(&ROOT, dir, b"sub", 0o755).unwrap().ino;
        let out = file(&fs, "out");
        flag(&fs, dir, flags).unwrap();
        refused("unlink", fs.unlink(dir, b"old"));
        refused("rmdir", fs.rmdir(dir, b"sub"));
        let rename =
            |from: Ino, a: &[u8], to: Ino, b: &[u8]| fs.rename(&ROOT, from, a, to, b, PLAIN);
        refused("rename within", rename(dir, b"old", dir, b"new"));
        refused("rename away", rename(dir, b"old", Ino::ROOT, b"new"));
        refused("rename over", rename(Ino::ROOT, b"out", dir, b"old"));
        refused("rename of it", rename(Ino::ROOT, b"d", Ino::ROOT, b"e"));
        let made = [
            fs.create(&ROOT, dir, b"1", 0o644).map(drop),
            fs.mkdir(&ROOT, dir, b"2", 0o755).map(drop),
            fs.symlink(&ROOT, dir, b"3", b"to").map(drop),
            fs.link(out, dir, b"4").map(drop),
            rename(Ino::ROOT, b"out", dir, b"5"),
        ];
        for made in made {
            if grows {
                made.unwrap();
            } else {
                refused("a new name", made);
            }
        }
        // The files in it are not protected.
        fs.write(&Credentials::ROOT, old, 0, b"x").unwrap();
        fs.create(&ROOT, sub, b"x", 0o644).unwrap();
    }
}

#[test]
fn noatime_flag_keeps_atime() {
    let (sim, fs) = small();
    let options = MountOptions {
        atime: AtimePolicy::StrictAtime,
        ..quiet()
    };
    let fs = remount(&sim, fs, options);
    let (still, moving) = (file(&fs, "still"), file(&fs, "moving"));
    for ino in [still, moving] {
        fs.write(&Credentials::ROOT, ino, 0, b"x").unwrap();
    }
    flag(&fs, still, NOATIME).unwrap();
    let atime = |ino| fs.getattr(ino).unwrap().atime;
    let before = (atime(still), atime(moving));
    std::thread::sleep(std::time::Duration::from_millis(30));
    for ino in [still, moving] {
        assert_eq!(contents(&fs, ino), b"x");
    }
    assert_eq!(atime(still), before.0);
    assert!(atime(moving) > before.1);
}

#[test]
fn inherited_flags_exclude_immutable_and_append() {
    let (_sim, fs) = small();
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap().ino;
    flag(&fs, dir, SYNC | NODUMP | NOATIME | ATOMIC | APPEND).unwrap();
    let flags = |a: pramfs::inode::Attr| a.flags;
    assert_eq!(
        flags(fs.create(&ROOT, dir, b"f", 0o644).unwrap()),
        SYNC | NODUMP | NOATIME | ATOMIC
    );
    assert_eq!(
        flags(fs.mkdir(&ROOT, dir, b"e", 0o755).unwrap()),
        SYNC | NODUMP | NOATIME | ATOMIC
    );
    assert_eq!(
        flags(fs.symlink(&ROOT, dir, b"l", b"f").unwrap()),
        NODUMP | NOATIME
    );
}

#[test]
fn unsupported_flags_are_rejected() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    for unknown in [0x4, 0x100, 1 << 31] {
        assert_eq!(flag(&fs, ino, unknown), Err(libc::EOPNOTSUPP));
    }
}
