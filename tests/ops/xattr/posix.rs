//! Extended attributes: many, large, and listed (xfstests 020 062 097 337 377 403 454 533
//! 618 728).

use std::fs;
use std::path::Path;

use pramfs_tests::syscalls::{Caller, Sys, as_caller, errno};
use rustix::fs::{Mode, OFlags, XattrFlags};

use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::{agree, alone};

fn set(path: &Path, name: &str, value: &[u8], flags: XattrFlags) -> Sys {
    errno(rustix::fs::lsetxattr(path, name, value, flags))
}

fn get(path: &Path, name: &str, room: usize) -> Sys<Vec<u8>> {
    let mut value = vec![0; room];
    let n = errno(rustix::fs::lgetxattr(path, name, &mut value[..]))?;
    value.truncate(n);
    Ok(value)
}

fn list(path: &Path) -> Sys<Vec<String>> {
    let mut bytes = vec![0; 65_536];
    let n = errno(rustix::fs::llistxattr(path, &mut bytes[..]))?;
    let names = bytes[..n]
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty());
    let mut names: Vec<_> = names
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    names.sort();
    Ok(names)
}

/// Files of every type, by name.
fn all_types(dir: &Path) -> Vec<std::path::PathBuf> {
    let at = |name: &str| dir.join(name);
    fs::write(at("file"), "x").expect("a file");
    fs::create_dir(at("dir")).expect("a directory");
    rustix::fs::symlink("file", at("link")).expect("a link");
    let mode = Mode::from_raw_mode(0o666);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), kind, mode, 0).expect("a pipe");
    ["file", "dir", "link", "pipe"].map(at).to_vec()
}

#[test]
fn xattrs_of_each_file_type_match_kernel() {
    agree("attributes", &[Tmpfs, Ext4], |dir, n| {
        for path in all_types(dir) {
            for name in [
                "user.a",
                "trusted.a",
                "security.a",
                "system.a",
                "other.a",
                "user.",
                "a",
            ] {
                let what = format!("{:?} {name}", path.file_name());
                let both = XattrFlags::CREATE | XattrFlags::REPLACE;
                n.call(&what, set(&path, name, b"value", both));
                n.call(&what, set(&path, name, b"value", XattrFlags::empty()));
                n.call(&what, set(&path, name, b"value", both));
                n.call(&what, set(&path, name, b"x", XattrFlags::CREATE));
                n.call(
                    &what,
                    set(&path, name, b"longer value", XattrFlags::REPLACE),
                );
                n.note(&what, get(&path, name, 100));
                n.note(&what, get(&path, name, 3));
                n.note(&what, get(&path, name, 0));
                n.note(&what, list(&path));
                n.call(&what, errno(rustix::fs::lremovexattr(&path, name)));
                n.call(&what, errno(rustix::fs::lremovexattr(&path, name)));
                n.note(&what, list(&path));
            }
            n.call(
                "replace none",
                set(&path, "trusted.b", b"", XattrFlags::REPLACE),
            );
            n.call("empty", set(&path, "trusted.b", b"", XattrFlags::empty()));
            n.note("empty", get(&path, "trusted.b", 10));
        }
    });
}

#[test]
fn xattr_access_depends_on_caller() {
    agree("rights to attributes", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        fs::write(&path, "x").expect("a file");
        for name in ["user.a", "trusted.a", "security.a"] {
            n.call(name, set(&path, name, b"1", XattrFlags::empty()));
        }
        for mode in [0o644, 0o600, 0o666] {
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode)).expect("chmod");
            let who = Caller {
                uid: 500,
                gid: 500,
                umask: 0,
                privileged: false,
            };
            as_caller(who, || {
                for name in ["user.a", "trusted.a", "security.a"] {
                    n.note(format!("{mode:o} get {name}"), get(&path, name, 10));
                    let set = set(&path, name, b"2", XattrFlags::empty());
                    n.call(format!("{mode:o} set {name}"), set);
                }
                n.note("list", list(&path));
            });
        }
    });
}

/// 020: as many and as large as the space allows.
#[test]
fn setxattr_of_1000_names_and_64_kib_works() {
    alone("many attributes", "", |mount| {
        let path = mount.at("f");
        fs::write(&path, "x").unwrap();
        for i in 0..1000 {
            let value = format!("value {i}");
            set(
                &path,
                &format!("user.number-{i}"),
                value.as_bytes(),
                XattrFlags::CREATE,
            )
            .unwrap();
        }
        let large: Vec<u8> = (0..65_536u32).map(|i| (i / 251) as u8).collect();
        set(&path, "user.large", &large, XattrFlags::CREATE).unwrap();
        let more = set(&path, "user.more", &vec![0; 65_537], XattrFlags::CREATE);
        assert_eq!(more, Err(libc::E2BIG));
        mount.unmount();
        mount.mount("");
        assert_eq!(list(&path).unwrap().len(), 1001);
        for i in 0..1000 {
            let value = get(&path, &format!("user.number-{i}"), 100).unwrap();
            assert_eq!(value, format!("value {i}").as_bytes());
        }
        assert!(get(&path, "user.large", 65_536).unwrap() == large);
        for i in 0..1000 {
            errno(rustix::fs::removexattr(&path, format!("user.number-{i}"))).unwrap();
        }
        assert_eq!(list(&path).unwrap(), ["user.large"]);
    });
}

/// A descriptor gives access to the same attributes as a name.
#[test]
fn xattr_calls_work_by_descriptor() {
    agree("fsetxattr", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        fs::write(&path, "x").expect("a file");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty()).expect("open");
        n.call(
            "set",
            errno(rustix::fs::fsetxattr(
                &fd,
                "user.a",
                b"1",
                XattrFlags::empty(),
            )),
        );
        n.note("get", get(&path, "user.a", 10));
        n.call("unlink", errno(rustix::fs::unlink(&path)));
        n.call(
            "set",
            errno(rustix::fs::fsetxattr(
                &fd,
                "user.b",
                b"2",
                XattrFlags::empty(),
            )),
        );
        let mut value = [0; 10];
        n.note(
            "get",
            errno(rustix::fs::fgetxattr(&fd, "user.b", &mut value[..])),
        );
    });
}
