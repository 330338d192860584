//! What extended attributes promise: namespaces, sizes, numbers.

use pramfs::inode::{Credentials, Ino};
use pramfs::{Error, Fallocate, StatFs, XattrMode};
use pramfs_tests::region::{fresh, quiet};

use crate::support::library::{MIB, file, fill, remount, small};

#[test]
fn xattr_namespaces_are_limited() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    let set = |name: &[u8]| {
        fs.setxattr(&Credentials::ROOT, ino, name, b"v", XattrMode::Set)
            .map_err(|e| e.errno())
    };
    let mut longest = b"user.".to_vec();
    longest.resize(255, b'n');
    for name in [&b"user.a"[..], b"trusted.a", b"security.selinux", &longest] {
        set(name).unwrap();
    }
    let acl = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0,
        255, 255, 255, 255,
    ];
    fs.setxattr(
        &Credentials::ROOT,
        ino,
        b"system.posix_acl_access",
        &acl,
        XattrMode::Set,
    )
    .unwrap();
    fs.setxattr(
        &Credentials::ROOT,
        Ino::ROOT,
        b"system.posix_acl_default",
        &acl,
        XattrMode::Set,
    )
    .unwrap();
    for name in [
        &b"user."[..],
        b"trusted.",
        b"security.",
        b"system.posix_acl_access",
    ] {
        assert_eq!(set(name), Err(libc::EINVAL), "{name:?}");
    }
    for name in [&b"system.other"[..], b"other.a", b"a", b"", b"user.a\0b"] {
        assert_eq!(set(name), Err(libc::EOPNOTSUPP), "{name:?}");
    }
    longest.push(b'n');
    assert_eq!(set(&longest), Err(libc::ENAMETOOLONG));
}

#[test]
fn xattr_value_takes_64_kib_and_file_1000_xattrs() {
    for block_size in [512, 4096] {
        let (sim, fs) = pramfs_tests::region::fresh(16 << 20, block_size).unwrap();
        let ino = file(&fs, "f");
        let value = |i: usize| vec![i as u8; [0, 1, 40, 300, 2000][i % 5]];
        for i in 0..1000 {
            fs.setxattr(
                &Credentials::ROOT,
                ino,
                format!("user.{i}").as_bytes(),
                &value(i),
                XattrMode::Set,
            )
            .unwrap();
        }
        let largest = vec![9; 65_536];
        fs.setxattr(
            &Credentials::ROOT,
            ino,
            b"user.largest",
            &largest,
            XattrMode::Create,
        )
        .unwrap();
        let more = fs.setxattr(
            &Credentials::ROOT,
            ino,
            b"user.more",
            &[0; 65_537],
            XattrMode::Set,
        );
        assert_eq!(more.unwrap_err().errno(), libc::E2BIG);
        let mode = |mode| {
            fs.setxattr(&Credentials::ROOT, ino, b"user.largest", b"", mode)
                .map_err(|e| e.errno())
        };
        assert_eq!(mode(XattrMode::Create), Err(libc::EEXIST));
        let fs = remount(&sim, fs, quiet());
        for i in 0..1000 {
            assert!(fs.getxattr(ino, format!("user.{i}").as_bytes()).unwrap() == value(i));
        }
        assert!(fs.getxattr(ino, b"user.largest").unwrap() == largest);
        let list = fs.listxattr(ino).unwrap();
        assert_eq!(list.iter().filter(|&&b| b == 0).count(), 1001);
    }
}

/// The kernel does not pass on a longer list.
#[test]
fn listxattr_beyond_64_kib_fails_and_keeps_xattrs() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    for i in 0..300 {
        let name = format!("user.{i:0250}");
        fs.setxattr(
            &Credentials::ROOT,
            ino,
            name.as_bytes(),
            b"v",
            XattrMode::Set,
        )
        .unwrap();
    }
    assert_eq!(fs.listxattr(ino).unwrap_err().errno(), libc::E2BIG);
    assert_eq!(
        fs.getxattr(ino, format!("user.{:0250}", 299).as_bytes())
            .unwrap(),
        b"v"
    );
}

/// A large value consists of few pieces. In scattered free space it fails even if enough
/// blocks are free, and nothing changes.
#[test]
fn large_xattr_value_fails_in_scattered_space() {
    let (sim, fs) = fresh(2 * MIB, 512).unwrap();
    let (holes, f) = (file(&fs, "holes"), file(&fs, "f"));
    // Pointer blocks lie between the data blocks, so more than every other block is
    // freed.
    fs.append(&Credentials::ROOT, holes, &vec![1; 512 << 10])
        .unwrap();
    fill(&fs);
    for at in (0..512 << 10).step_by(2048) {
        fs.fallocate(&Credentials::ROOT, holes, Fallocate::PunchHole, at, 1024)
            .unwrap();
    }
    // Freed blocks are available at once, not held by a record.
    let fs = remount(&sim, fs, quiet());
    let StatFs { available, .. } = fs.statfs().unwrap();
    assert!(available * 512 > 128 << 10, "{available} blocks");
    let value = vec![7; 65_536];
    let refused = fs.setxattr(&Credentials::ROOT, f, b"user.large", &value, XattrMode::Set);
    assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
    assert_eq!(fs.listxattr(f).unwrap(), b"");
    // A value of few pieces fits.
    fs.setxattr(
        &Credentials::ROOT,
        f,
        b"user.less",
        &value[..6 << 10],
        XattrMode::Set,
    )
    .unwrap();
    fs.fallocate(
        &Credentials::ROOT,
        holes,
        Fallocate::PunchHole,
        0,
        512 << 10,
    )
    .unwrap();
    // It need not wait for recently freed blocks either.
    fs.setxattr(&Credentials::ROOT, f, b"user.large", &value, XattrMode::Set)
        .unwrap();
    assert_eq!(fs.getxattr(f, b"user.large").unwrap(), value);
}
