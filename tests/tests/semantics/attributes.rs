//! Results of stat, owners and modes, extended attributes.

use std::collections::BTreeSet;

use pramfs::{
    XattrMode,
    inode::{Credentials, Ino, SetAttr},
};
use pramfs_tests::region::quiet;

use super::{ROOT, contents, file, remount, small};

#[test]
fn directory_size_is_32_bytes_per_entry() {
    let (_sim, fs) = small();
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap();
    assert_eq!((dir.size, dir.blocks, dir.nlink), (0, 0, 2));
    for i in 0..10u8 {
        fs.create(&ROOT, dir.ino, &[b'a' + i], 0o644).unwrap();
    }
    fs.mkdir(&ROOT, dir.ino, b"sub", 0o755).unwrap();
    let a = fs.getattr(dir.ino).unwrap();
    assert_eq!((a.size, a.nlink), (11 * 32, 3));
    assert!(a.blocks > 0);
}

#[test]
fn st_blocks_counts_data_pointers_and_xattrs() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    let blocks = || fs.getattr(ino).unwrap().blocks;
    assert_eq!(blocks(), 0);
    fs.write(&Credentials::ROOT, ino, 0, b"x").unwrap();
    assert_eq!(blocks(), 8, "one block of 4096 bytes, named by the inode");
    fs.write(&Credentials::ROOT, ino, 4096, b"x").unwrap();
    assert_eq!(blocks(), 24, "two, and a pointer block");
    fs.setxattr(
        &Credentials::ROOT,
        ino,
        b"user.a",
        &[1; 5000],
        XattrMode::Set,
    )
    .unwrap();
    assert!(blocks() >= 24 + 16);
    fs.removexattr(ino, b"user.a").unwrap();
    assert!(blocks() <= 24 + 8, "the emptied tree may keep one leaf");
}

#[test]
fn inode_number_and_generation_are_never_reused() {
    let (sim, mut fs) = small();
    let (mut seen, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..3 {
        for _ in 0..200 {
            let a = fs.create(&ROOT, Ino::ROOT, b"f", 0o644).unwrap();
            assert!(seen.insert((a.ino, a.generation)), "round {round}");
            numbers.insert(a.ino);
            fs.unlink(Ino::ROOT, b"f").unwrap();
        }
        fs = remount(&sim, fs, quiet());
    }
    assert!(numbers.len() < seen.len(), "numbers are used again");
}

#[test]
fn change_counter_grows_with_every_change() {
    let (sim, fs) = small();
    let ino = file(&fs, "f");
    let mut last = fs.getattr(ino).unwrap().change;
    let mut grown = |fs: &pramfs::inode::Fs, what: &str| {
        let now = fs.getattr(ino).unwrap().change;
        assert!(now > last, "{what}: {now} after {last}");
        last = now;
    };
    fs.write(&Credentials::ROOT, ino, 0, b"x").unwrap();
    grown(&fs, "a write that allocates");
    fs.write(&Credentials::ROOT, ino, 0, b"y").unwrap();
    grown(&fs, "an overwrite");
    fs.setxattr(&Credentials::ROOT, ino, b"user.a", b"1", XattrMode::Set)
        .unwrap();
    grown(&fs, "an attribute");
    let fs = remount(&sim, fs, quiet());
    fs.link(ino, Ino::ROOT, b"g").unwrap();
    grown(&fs, "a link");
}

#[test]
fn create_takes_owner_umask_and_setgid_group() {
    let (_sim, fs) = small();
    let ctx = Credentials::new(1000, 100).with_umask(0o027);
    let a = fs.create(&ctx, Ino::ROOT, b"f", 0o666).unwrap();
    assert_eq!((a.uid, a.gid, a.perm), (1000, 100, 0o640));
    let d = fs.mkdir(&ROOT, Ino::ROOT, b"d", 0o2775).unwrap();
    let set = SetAttr {
        gid: Some(50),
        perm: Some(0o2775),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, d.ino, &set).unwrap();
    let f = fs.create(&ctx, d.ino, b"f", 0o666).unwrap();
    let e = fs.mkdir(&ctx, d.ino, b"e", 0o777).unwrap();
    assert_eq!((f.gid, f.perm, e.gid, e.perm), (50, 0o640, 50, 0o2750));
}

/// The owner of the region may do everything: the direct API checks no permissions.
#[test]
fn direct_api_checks_no_permission() {
    use pramfs::OpenOptions;
    let (_sim, fs) = small();
    let owner = Credentials::new(1, 1);
    let d = fs.mkdir(&owner, Ino::ROOT, b"d", 0o000).unwrap();
    fs.create(&owner, d.ino, b"f", 0o000).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/d/f")
        .unwrap();
    file.append(b"written").unwrap();
    assert_eq!(contents(&fs, file.ino()), b"written");
}

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
