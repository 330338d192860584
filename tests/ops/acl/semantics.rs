//! POSIX ACLs in the library. Tests on mounts cover their enforcement by the kernel.

use pramfs::XattrMode;
use pramfs::inode::{Credentials, Fs, Groups, Ino, SetAttr};
use pramfs_tests::region::quiet;

use crate::support::library::{ROOT, after_a_crash, file, remount, small};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const NONE: u32 = u32::MAX;

/// An ACL: owner, users and groups by tag, mask, others.
fn list(entries: &[(u8, u8, u32)]) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        value.extend([*tag, 0, *perm, 0]);
        value.extend(id.to_le_bytes());
    }
    value
}

/// User 9 has all permissions that the mask allows.
fn naming(owner: u8, mask: u8, others: u8) -> Vec<u8> {
    list(&[
        (1, owner, NONE),
        (2, 7, 9),
        (4, 5, NONE),
        (16, mask, NONE),
        (32, others, NONE),
    ])
}

fn set(fs: &Fs, ino: Ino, name: &[u8], value: &[u8]) -> Result<(), i32> {
    fs.setxattr(&Credentials::ROOT, ino, name, value, XattrMode::Set)
        .map_err(|e| e.errno())
}

fn get(fs: &Fs, ino: Ino, name: &[u8]) -> Option<Vec<u8>> {
    fs.getxattr(ino, name).ok()
}

fn perm(fs: &Fs, ino: Ino) -> u32 {
    fs.getattr(ino).unwrap().perm
}

#[test]
fn access_acl_and_mode_follow_each_other() {
    let (sim, fs) = small();
    let ino = file(&fs, "f");
    set(&fs, ino, ACCESS, &naming(6, 4, 0)).unwrap();
    assert_eq!(perm(&fs, ino), 0o640, "the group's digit is the mask");
    let chmod = SetAttr {
        perm: Some(0o751),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, ino, &chmod).unwrap();
    assert_eq!(get(&fs, ino, ACCESS), Some(naming(7, 5, 1)));
    // An ACL equal to the mode is not stored.
    let plain = list(&[(1, 6, NONE), (4, 2, NONE), (32, 1, NONE)]);
    set(&fs, ino, ACCESS, &plain).unwrap();
    assert_eq!((perm(&fs, ino), get(&fs, ino, ACCESS)), (0o621, None));
    // Removing the ACL leaves the mode alone.
    set(&fs, ino, ACCESS, &naming(6, 6, 0)).unwrap();
    set(&fs, ino, ACCESS, &list(&[])).unwrap();
    assert_eq!((perm(&fs, ino), get(&fs, ino, ACCESS)), (0o660, None));
    set(&fs, ino, ACCESS, &naming(7, 0, 0)).unwrap();
    let fs = remount(&sim, fs, quiet());
    let chmod = SetAttr {
        perm: Some(0o777),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, ino, &chmod).unwrap();
    assert_eq!(get(&fs, ino, ACCESS), Some(naming(7, 7, 7)));
}

#[test]
fn default_acl_passes_down_and_replaces_umask() {
    let (sim, fs) = small();
    let ctx = Credentials::new(5, 6).with_umask(0o077);
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap().ino;
    set(&fs, dir, DEFAULT, &naming(7, 6, 1)).unwrap();
    assert_eq!(
        perm(&fs, dir),
        0o755,
        "it decides nothing for the directory"
    );
    let f = fs.create(&ctx, dir, b"f", 0o664).unwrap();
    assert_eq!(f.perm, 0o660);
    let sub = fs.mkdir(&ctx, dir, b"sub", 0o777).unwrap();
    assert_eq!(sub.perm, 0o761);
    let pipe = fs
        .mknod(&ctx, dir, b"pipe", libc::S_IFIFO | 0o644, 0)
        .unwrap();
    assert_eq!(pipe.perm, 0o640);
    let link = fs.symlink(&ctx, dir, b"link", b"f").unwrap();
    // After a crash, each inode has its ACL: both were in one record.
    drop(fs);
    let (_image, fs) = after_a_crash(&sim);
    assert_eq!(get(&fs, f.ino, ACCESS), Some(naming(6, 6, 0)));
    assert_eq!(get(&fs, f.ino, DEFAULT), None);
    assert_eq!(get(&fs, sub.ino, ACCESS), Some(naming(7, 6, 1)));
    assert_eq!(get(&fs, sub.ino, DEFAULT), Some(naming(7, 6, 1)));
    assert_eq!(get(&fs, pipe.ino, ACCESS), Some(naming(6, 4, 0)));
    assert_eq!((link.perm, get(&fs, link.ino, ACCESS)), (0o777, None));
    // An ACL equal to the mode only sets the mode.
    let plain = list(&[(1, 7, NONE), (4, 5, NONE), (32, 0, NONE)]);
    set(&fs, dir, DEFAULT, &plain).unwrap();
    let g = fs.create(&ctx, dir, b"g", 0o666).unwrap();
    assert_eq!((g.perm, get(&fs, g.ino, ACCESS)), (0o640, None));
    // Without a default ACL, the umask applies again.
    fs.removexattr(dir, DEFAULT).unwrap();
    assert_eq!(fs.create(&ctx, dir, b"h", 0o666).unwrap().perm, 0o600);
}

#[test]
fn malformed_acl_is_rejected() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    let link = fs.symlink(&ROOT, Ino::ROOT, b"l", b"f").unwrap().ino;
    let good = naming(6, 4, 0);
    let mut version = good.clone();
    version[0] = 1;
    assert_eq!(set(&fs, ino, ACCESS, &version), Err(libc::EOPNOTSUPP));
    assert_eq!(set(&fs, link, ACCESS, &good), Err(libc::EOPNOTSUPP));
    assert_eq!(set(&fs, ino, DEFAULT, &good), Err(libc::EACCES));
    for bad in [&b""[..], &good[..good.len() - 1], &good[..good.len() - 8]] {
        assert_eq!(set(&fs, ino, ACCESS, bad), Err(libc::EINVAL), "{bad:?}");
    }
    let users: Vec<_> = (0..200).map(|user| (2, 7, user)).collect();
    let long = [
        &[(1, 7, NONE)],
        &users[..],
        &[(4, 5, NONE), (16, 7, NONE), (32, 0, NONE)],
    ]
    .concat();
    assert_eq!(set(&fs, ino, ACCESS, &list(&long)), Err(libc::E2BIG));
    let with = |users: usize| [&long[..1 + users], &long[201..]].concat();
    assert_eq!(set(&fs, ino, ACCESS, &list(&with(120))), Err(libc::E2BIG));
    let most = with(119);
    assert_eq!(most.len(), 123);
    set(&fs, ino, ACCESS, &list(&most)).unwrap();
    assert_eq!(get(&fs, ino, ACCESS), Some(list(&most)));
}

#[test]
fn acl_set_by_non_member_clears_sgid() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    let owner = SetAttr {
        perm: Some(0o2755),
        gid: Some(50),
        ..SetAttr::default()
    };
    for (groups, left) in [(&[7, 50][..], 0o2740), (&[7], 0o740)] {
        fs.setattr(&Credentials::ROOT, ino, &owner).unwrap();
        let is_member = |g| groups.contains(&g);
        let caller = Credentials::new(7, 7).with_groups(Groups::Ask(&is_member));
        fs.setxattr(&caller, ino, ACCESS, &naming(7, 4, 0), XattrMode::Set)
            .unwrap();
        assert_eq!(perm(&fs, ino), left, "{groups:?}");
    }
}
