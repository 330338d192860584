//! chown in the library: the bits that it clears.

use pramfs::XattrMode;
use pramfs::inode::{Credentials, SetAttr};

use crate::support::library::{file, small};

#[test]
fn chown_and_strip_suid_clear_suid() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    let perm = |perm, uid| {
        let set = SetAttr {
            perm,
            uid,
            ..SetAttr::default()
        };
        fs.setattr(&Credentials::ROOT, ino, &set).unwrap().perm
    };
    assert_eq!(perm(Some(0o6755), None), 0o6755);
    assert_eq!(perm(None, Some(7)), 0o755);
    assert_eq!(perm(Some(0o6644), None), 0o6644);
    fs.setxattr(
        &Credentials::ROOT,
        ino,
        b"security.capability",
        b"c",
        XattrMode::Set,
    )
    .unwrap();
    fs.strip_suid(ino).unwrap();
    // sgid without group execute permission gives no rights.
    assert_eq!(fs.getattr(ino).unwrap().perm, 0o2644);
    assert_eq!(
        fs.getxattr(ino, b"security.capability")
            .unwrap_err()
            .errno(),
        libc::ENODATA
    );
}

/// -1 means "unchanged" to chown(2), and is nobody's number.
#[test]
fn chown_to_minus_one_is_refused_and_changes_nothing() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    let before = fs.getattr(ino).unwrap();
    for (uid, gid) in [(Some(u32::MAX), None), (Some(7), Some(u32::MAX))] {
        let set = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        let refused = fs.setattr(&Credentials::ROOT, ino, &set).unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL);
    }
    let after = fs.getattr(ino).unwrap();
    assert_eq!((after.uid, after.gid), (before.uid, before.gid));
}
