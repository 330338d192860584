//! What create promises: names, owner and mode, the number of inodes.

use pramfs::Error;
use pramfs::inode::{Credentials, Ino, SetAttr};
use pramfs_tests::region::quiet;

use crate::support::library::{MIB, ROOT, file, find, names, remount, small};

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

#[test]
fn create_takes_names_of_1_to_255_bytes_except_slash_and_nul() {
    let (sim, fs) = small();
    let all: Vec<u8> = (1..=255).filter(|&b| b != b'/').collect();
    let longest = vec![0xff; 255];
    for name in [&all[..], &longest, b"\n", b"...", b"\xff"] {
        fs.create(&ROOT, Ino::ROOT, name, 0o644).unwrap();
    }
    let fs = remount(&sim, fs, quiet());
    assert_eq!(names(&fs, Ino::ROOT).len(), 5);
    fs.lookup(Ino::ROOT, &all).unwrap();
    let make = |name: &[u8]| {
        fs.create(&ROOT, Ino::ROOT, name, 0o644)
            .unwrap_err()
            .errno()
    };
    assert_eq!(make(&[b'x'; 256]), libc::ENAMETOOLONG);
    assert_eq!(make(b""), libc::ENOENT);
    assert_eq!(make(b"a/b"), libc::EINVAL);
    assert_eq!(make(b"a\0b"), libc::EINVAL);
    assert_eq!(make(b"."), libc::EINVAL);
    assert_eq!(make(b".."), libc::EINVAL);
}

/// `-N` limits the number of inodes; freed ones are reused.
#[test]
fn inode_limit_holds_and_freed_inodes_return() {
    use pramfs::format::FormatOptions;
    use pramfs_tests::region::{formatted, mount, quiet, repeatable};
    let options = FormatOptions {
        max_inodes: Some(100),
        ..repeatable(4096)
    };
    let fs = mount(&formatted(4 * MIB, &options).unwrap(), quiet()).unwrap();
    let free = fs.statfs().unwrap().free_inodes;
    for i in 0..free {
        file(&fs, &format!("f{i}"));
    }
    let create = || fs.create(&ROOT, Ino::ROOT, b"more", 0o644);
    assert!(matches!(create(), Err(Error::NoSpace(_))));
    assert!(matches!(find(&fs, "more"), Err(Error::NotFound)));
    fs.unlink(Ino::ROOT, b"f0").unwrap();
    create().unwrap();
}
