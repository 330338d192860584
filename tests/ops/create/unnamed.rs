//! Files without a name: what is left of them, and how they get one.

use pramfs::inode::{Credentials, Ino, SetAttr};
use pramfs::{Error, XattrMode};
use pramfs_tests::region::{mount, quiet};

use crate::support::library::{ROOT, after_a_crash, contents, small};

#[test]
fn unnamed_file_is_freed_by_last_close_or_crash() {
    let (sim, fs) = small();
    // The tables grow once.
    drop(fs.holding().create_unnamed(&ROOT, Ino::ROOT, 0o600, true));
    let (free, mtime) = (
        fs.statfs().unwrap().free,
        fs.getattr(Ino::ROOT).unwrap().mtime,
    );
    let make = || {
        let (held, made) = (fs.holding())
            .create_unnamed(&ROOT, Ino::ROOT, 0o600, true)
            .unwrap();
        assert_eq!(made.nlink, 0);
        fs.append(&ROOT, made.ino, &[7; 100_000]).unwrap();
        assert_eq!(contents(&fs, made.ino), [7; 100_000]);
        held
    };
    let first = make();
    let ino = first.ino();
    assert!(fs.statfs().unwrap().free < free);
    assert_eq!(fs.getattr(Ino::ROOT).unwrap().mtime, mtime);
    drop(first);
    assert!(matches!(fs.getattr(ino), Err(Error::Stale(_))));
    assert_eq!(fs.statfs().unwrap().free, free);

    let second = make();
    let (_image, after) = after_a_crash(&sim);
    assert_eq!(after.recovery().orphans, 1);
    assert_eq!(after.statfs().unwrap().free, free);
    assert!(matches!(after.getattr(second.ino()), Err(Error::Stale(_))));
    drop(second);
    fs.close().unwrap();
    assert_eq!(mount(&sim, quiet()).unwrap().recovery().orphans, 0);
}

#[test]
fn link_of_unnamed_file_publishes_it_once() {
    let (sim, fs) = small();
    let (held, made) = (fs.holding())
        .create_unnamed(&ROOT, Ino::ROOT, 0o640, true)
        .unwrap();
    fs.append(&ROOT, made.ino, b"contents").unwrap();
    assert_eq!(fs.link(made.ino, Ino::ROOT, b"f").unwrap().nlink, 1);
    assert_eq!(fs.link(made.ino, Ino::ROOT, b"g").unwrap().nlink, 2);
    // It outlives its reference and a crash, as a file that was made with a name.
    drop(held);
    let (image, after) = after_a_crash(&sim);
    assert_eq!(after.recovery().orphans, 0);
    let found = after.lookup(Ino::ROOT, b"f").unwrap().ino;
    assert_eq!(contents(&after, found), b"contents");
    drop(after);
    let region = pramfs_tests::region::region_of(&image);
    let report = pramfs_fsck::check(&region, &Default::default());
    assert!(report.is_clean(), "{report}");

    // It has lost its names. It is an orphan again, and cannot be linked.
    let held = fs.hold(made.ino);
    fs.unlink(Ino::ROOT, b"f").unwrap();
    fs.unlink(Ino::ROOT, b"g").unwrap();
    assert!(matches!(
        fs.link(made.ino, Ino::ROOT, b"f"),
        Err(Error::NotFound)
    ));
    drop(held);
    assert!(matches!(fs.getattr(made.ino), Err(Error::Stale(_))));

    let (held, made) = (fs.holding())
        .create_unnamed(&ROOT, Ino::ROOT, 0o640, false)
        .unwrap();
    let refused = fs.link(made.ino, Ino::ROOT, b"f");
    assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
    drop(held);
    fs.close().unwrap();
    assert_eq!(mount(&sim, quiet()).unwrap().recovery().orphans, 0);
}

/// Owner, mode, flags and ACLs are those of a file that is created in the directory.
#[test]
fn unnamed_file_inherits_as_named_one() {
    let (_sim, fs) = small();
    let caller = Credentials::new(1000, 100).with_umask(0o027);
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap().ino;
    // A list for new files: the owner, user 9, the group, the mask, others.
    let mut list = vec![2, 0, 0, 0];
    for (tag, perm, id) in [
        (1u16, 7u16, u32::MAX),
        (2, 6, 9),
        (4, 5, u32::MAX),
        (16, 6, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        list.extend(tag.to_le_bytes());
        list.extend(perm.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let default = b"system.posix_acl_default";
    let change = |perm: u32, flags: u32| {
        let set = SetAttr {
            perm: Some(perm),
            gid: Some(77),
            flags: Some(flags),
            ..SetAttr::default()
        };
        fs.setattr(&ROOT, dir, &set).unwrap();
    };
    for (perm, flags, with_list) in [(0o755, 0, false), (0o2755, 0xc0, false), (0o755, 0, true)] {
        change(perm, flags);
        if with_list {
            fs.setxattr(&ROOT, dir, default, &list, XattrMode::Set)
                .unwrap();
        }
        let named = fs.create(&caller, dir, b"named", 0o666).unwrap();
        let (held, unnamed) = fs
            .holding()
            .create_unnamed(&caller, dir, 0o666, true)
            .unwrap();
        let of = |a: &pramfs::inode::Attr| (a.perm, a.uid, a.gid, a.flags);
        assert_eq!(of(&unnamed), of(&named));
        let access = |ino| fs.getxattr(ino, b"system.posix_acl_access").ok();
        assert_eq!(access(unnamed.ino), access(named.ino));
        assert_eq!(access(unnamed.ino).is_some(), with_list);
        drop(held);
        fs.unlink(dir, b"named").unwrap();
    }
    let immutable = SetAttr {
        flags: Some(0x10),
        ..SetAttr::default()
    };
    fs.setattr(&ROOT, dir, &immutable).unwrap();
    let refused = fs.holding().create_unnamed(&caller, dir, 0o666, true);
    assert!(matches!(refused, Err(Error::NotPermitted(_))));
    let file = fs.create(&ROOT, Ino::ROOT, b"f", 0o644).unwrap().ino;
    let refused = fs.holding().create_unnamed(&caller, file, 0o666, true);
    assert!(matches!(refused, Err(Error::NotDirectory)));
    let gone = fs.hold(fs.mkdir(&ROOT, Ino::ROOT, b"gone", 0o755).unwrap().ino);
    fs.rmdir(Ino::ROOT, b"gone").unwrap();
    let refused = fs
        .holding()
        .create_unnamed(&caller, gone.ino(), 0o666, true);
    assert!(matches!(refused, Err(Error::NotFound)));
}
