//! Crashes in each kind of operation on attributes, ACLs and flags: see
//! [`pramfs_tests::crash::sweep`].

use pramfs::{
    XattrMode,
    inode::{Credentials, Fs, Ino, SetAttr},
};
use pramfs_medium::media::inode::{FL_IMMUTABLE, FL_NOATIME, FL_NODUMP};
use pramfs_tests::crash::sweep::{CX, Case, file, fragmented, ino, pattern, setattr, sweep_all};

fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "chmod",
            |fs| {
                file(fs, "f", b"");
            },
            |fs| {
                setattr(
                    fs,
                    "/f",
                    SetAttr {
                        perm: Some(0o4711),
                        ..SetAttr::default()
                    },
                );
            },
        ),
        Case::new(
            "chown",
            |fs| {
                file(fs, "f", b"");
            },
            |fs| {
                setattr(
                    fs,
                    "/f",
                    SetAttr {
                        uid: Some(7),
                        gid: Some(8),
                        ..SetAttr::default()
                    },
                );
            },
        ),
        Case::new(
            "chmod of a file with an ACL",
            |fs| {
                let f = file(fs, "f", b"");
                set_list(fs, f, "access", 0o640);
            },
            |fs| {
                setattr(
                    fs,
                    "/f",
                    SetAttr {
                        perm: Some(0o2751),
                        ..SetAttr::default()
                    },
                )
            },
        ),
        Case::new(
            "an ACL for a file that others have the right to",
            |fs| {
                file(fs, "f", b"");
            },
            |fs| set_list(fs, ino(fs, "/f"), "access", 0o600),
        ),
        Case::new(
            "an ACL that a mode can say, over one that it cannot",
            |fs| {
                let f = file(fs, "f", b"");
                set_list(fs, f, "access", 0o640);
            },
            |fs| {
                fs.setxattr(
                    &CX,
                    ino(fs, "/f"),
                    ACCESS,
                    &list(0o604, false),
                    XattrMode::Set,
                )
                .unwrap()
            },
        ),
        Case::new(
            "an ACL is removed",
            |fs| {
                let f = file(fs, "f", b"");
                set_list(fs, f, "access", 0o640);
            },
            |fs| fs.removexattr(ino(fs, "/f"), ACCESS).unwrap(),
        ),
        Case::new(
            "create under a default ACL",
            |fs| {
                let d = fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).unwrap().ino;
                set_list(fs, d, "default", 0o750);
            },
            |fs| {
                fs.create(&CX, ino(fs, "/d"), b"new", 0o666).unwrap();
            },
        ),
        Case::new(
            "mkdir under a default ACL",
            |fs| {
                let d = fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).unwrap().ino;
                set_list(fs, d, "default", 0o750);
            },
            |fs| {
                fs.mkdir(&CX, ino(fs, "/d"), b"new", 0o777).unwrap();
            },
        )
        .blocks(512),
        Case::new(
            "create with security labels under a default ACL",
            |fs| {
                let d = fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).unwrap().ino;
                set_list(fs, d, "default", 0o750);
            },
            |fs| {
                let large = pattern(5000, 1);
                let labels = [
                    (&b"security.selinux"[..], &b"user_u:object_r:tmp_t\0"[..]),
                    (b"security.large", &large),
                ];
                let holding = fs.holding().with_labels(&labels);
                holding.create(&CX, ino(fs, "/d"), b"new", 0o666).unwrap();
            },
        ),
        Case::new(
            "chattr",
            |fs| {
                file(fs, "f", b"");
            },
            |fs| {
                setattr(
                    fs,
                    "/f",
                    SetAttr {
                        flags: Some(FL_IMMUTABLE | FL_NOATIME),
                        ..SetAttr::default()
                    },
                )
            },
        ),
        Case::new(
            "create in a directory that hands its flags down",
            |fs| {
                fs.mkdir(&CX, Ino::ROOT, b"d", 0o755).unwrap();
                setattr(
                    fs,
                    "/d",
                    SetAttr {
                        flags: Some(FL_NODUMP | FL_NOATIME),
                        ..SetAttr::default()
                    },
                );
            },
            |fs| {
                fs.create(&CX, ino(fs, "/d"), b"new", 0o666).unwrap();
            },
        ),
        Case::new(
            "a trim after an unlink",
            |fs| {
                file(fs, "f", &pattern(40_000, 1));
                file(fs, "g", &pattern(9_000, 2));
                fs.unlink(Ino::ROOT, b"f").unwrap();
            },
            |fs| {
                fs.trim(0, u64::MAX, 0).unwrap();
            },
        ),
        Case::new(
            "a truncation by a caller outside the group",
            |fs| {
                let f = file(fs, "f", &pattern(30_000, 5));
                let set = SetAttr {
                    perm: Some(0o2644),
                    ..SetAttr::default()
                };
                fs.setattr(&CX, f, &set).unwrap();
            },
            |fs| {
                let set = SetAttr {
                    size: Some(5000),
                    ..SetAttr::default()
                };
                let a = fs
                    .setattr(&Credentials::new(1, 1), ino(fs, "/f"), &set)
                    .unwrap();
                assert_eq!(a.perm, 0o644);
            },
        ),
        Case::new(
            "a truncation and a mode in one call, of a fragmented file with an ACL",
            |fs| {
                fragmented(fs);
                set_list(fs, ino(fs, "/f"), "access", 0o640);
            },
            |fs| {
                setattr(
                    fs,
                    "/f",
                    SetAttr {
                        size: Some(700),
                        perm: Some(0o755),
                        ..SetAttr::default()
                    },
                )
            },
        )
        .blocks(512),
        Case::new(
            "setxattr",
            |fs| {
                file(fs, "f", b"");
            },
            |fs| {
                fs.setxattr(&CX, ino(fs, "/f"), b"user.a", b"value", XattrMode::Set)
                    .unwrap();
            },
        ),
        Case::new(
            "setxattr of a large value over a large value",
            |fs| {
                let f = file(fs, "f", b"");
                fs.setxattr(&CX, f, b"user.a", &pattern(20_000, 3), XattrMode::Set)
                    .unwrap();
            },
            |fs| {
                fs.setxattr(
                    &CX,
                    ino(fs, "/f"),
                    b"user.a",
                    &pattern(30_000, 4),
                    XattrMode::Set,
                )
                .unwrap();
            },
        ),
        Case::new(
            "removexattr",
            |fs| {
                let f = file(fs, "f", b"");
                fs.setxattr(&CX, f, b"user.a", &pattern(20_000, 3), XattrMode::Set)
                    .unwrap();
            },
            |fs| fs.removexattr(ino(fs, "/f"), b"user.a").unwrap(),
        ),
    ]
}

const ACCESS: &[u8] = b"system.posix_acl_access";

/// An ACL equal to the mode, with an entry for user 9 on request.
fn list(mode: u32, named: bool) -> Vec<u8> {
    let digit = |shift: u32| (mode >> shift & 7) as u8;
    let nobody = u32::MAX;
    let mut entries = vec![(1, digit(6), nobody)];
    if named {
        entries.push((2, 7, 9));
    }
    entries.push((4, digit(3), nobody));
    if named {
        entries.push((16, digit(3), nobody));
    }
    entries.push((32, digit(0), nobody));
    let mut value = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        value.extend([tag, 0, perm, 0]);
        value.extend(u32::to_le_bytes(id));
    }
    value
}

fn set_list(fs: &Fs, ino: Ino, which: &str, mode: u32) {
    let name = format!("system.posix_acl_{which}");
    fs.setxattr(&CX, ino, name.as_bytes(), &list(mode, true), XattrMode::Set)
        .unwrap();
}

#[test]
fn crash_in_attr_change_leaves_old_or_new_state() {
    sweep_all(&cases());
}
