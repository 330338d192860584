//! Cases found by the reference model, one short test for each.

use std::ops::ControlFlow;

use pramfs::{
    Error, Fallocate, RenameFlags,
    inode::{Credentials, Fs, Ino, SetAttr},
};
use pramfs_tests::region::fresh;

const CX: Credentials<'_> = Credentials::new(0, 0);
const PLAIN: RenameFlags = RenameFlags {
    noreplace: false,
    exchange: false,
    whiteout: false,
};

fn small() -> Fs {
    fresh(1 << 20, 4096).unwrap().1
}

fn errno<T: std::fmt::Debug>(result: pramfs::Result<T>) -> i32 {
    result.unwrap_err().errno()
}

#[test]
fn noreplace_is_checked_before_loop() {
    let fs = small();
    let a = fs.mkdir(&CX, Ino::ROOT, b"a", 0o755).unwrap();
    fs.create(&CX, a.ino, b"x", 0o644).unwrap();
    let flags = RenameFlags {
        noreplace: true,
        ..PLAIN
    };
    let e = errno(fs.rename(&CX, Ino::ROOT, b"a", a.ino, b"x", flags));
    assert_eq!(e, libc::EEXIST);
    let e = errno(fs.rename(&CX, Ino::ROOT, b"a", a.ino, b"y", flags));
    assert_eq!(e, libc::EINVAL);
    let flags = RenameFlags {
        exchange: true,
        ..PLAIN
    };
    let e = errno(fs.rename(&CX, Ino::ROOT, b"a", a.ino, b"y", flags));
    assert_eq!(e, libc::ENOENT);
}

#[test]
fn move_into_removed_directory_is_not_damage() {
    let fs = small();
    let outer = fs.mkdir(&CX, Ino::ROOT, b"outer", 0o755).unwrap();
    let (held, inner) = fs.holding().mkdir(&CX, outer.ino, b"inner", 0o755).unwrap();
    fs.mkdir(&CX, Ino::ROOT, b"moved", 0o755).unwrap();
    fs.rmdir(outer.ino, b"inner").unwrap();
    fs.rmdir(Ino::ROOT, b"outer").unwrap();
    // The inode number of the removed parent is reused for a file.
    fs.sync().unwrap();
    for i in 0..200u32 {
        let made = fs.create(&CX, Ino::ROOT, format!("f{i}").as_bytes(), 0o644);
        if made.unwrap().ino == outer.ino {
            break;
        }
    }
    let e = errno(fs.rename(&CX, Ino::ROOT, b"moved", inner.ino, b"x", PLAIN));
    assert_eq!(e, libc::ENOENT);
    assert!(!fs.is_read_only());
    drop(held);
}

#[test]
fn unsupported_flag_changes_nothing() {
    let fs = small();
    let f = fs.create(&CX, Ino::ROOT, b"f", 0o644).unwrap();
    fs.write(&CX, f.ino, 0, b"contents").unwrap();
    let set = SetAttr {
        size: Some(1),
        flags: Some(1 << 30),
        ..SetAttr::default()
    };
    assert_eq!(errno(fs.setattr(&CX, f.ino, &set)), libc::EOPNOTSUPP);
    assert_eq!(fs.getattr(f.ino).unwrap().size, 8);
}

#[test]
fn link_into_file_fails_with_enotdir() {
    let fs = small();
    let f = fs.create(&CX, Ino::ROOT, b"f", 0o644).unwrap();
    assert_eq!(errno(fs.link(f.ino, f.ino, b"g")), libc::ENOTDIR);
    assert_eq!(errno(fs.link(Ino::ROOT, Ino::ROOT, b"g")), libc::EPERM);
}

#[test]
fn number_of_freed_inode_is_stale() {
    let fs = small();
    let (held, f) = fs.holding().create(&CX, Ino::ROOT, b"f", 0o644).unwrap();
    fs.unlink(Ino::ROOT, b"f").unwrap();
    assert_eq!(fs.getattr(f.ino).unwrap().nlink, 0);
    drop(held);
    assert!(matches!(fs.getattr(f.ino), Err(Error::Stale(_))));
    let g = fs.create(&CX, Ino::ROOT, b"g", 0o644).unwrap();
    fs.unlink(Ino::ROOT, b"g").unwrap();
    assert!(matches!(fs.getattr(g.ino), Err(Error::Stale(_))));
}

#[test]
fn zero_range_without_space_zeroes_nothing() {
    let fs = fresh(256 << 10, 4096).unwrap().1;
    let f = fs.create(&CX, Ino::ROOT, b"f", 0o644).unwrap();
    fs.write(&CX, f.ino, 0, &[7; 4096]).unwrap();
    let zero = Fallocate::ZeroRange { keep_size: false };
    assert_eq!(
        errno(fs.fallocate(&CX, f.ino, zero, 0, 1 << 20)),
        libc::ENOSPC
    );
    let mut back = [0; 4096];
    assert_eq!(fs.read(f.ino, 0, &mut back).unwrap(), 4096);
    assert_eq!(back, [7; 4096]);
    fs.fallocate(&CX, f.ino, zero, 100, 8000).unwrap();
    fs.read(f.ino, 0, &mut back).unwrap();
    assert!(back[..100].iter().all(|b| *b == 7) && back[100..].iter().all(|b| *b == 0));
}

#[test]
fn removed_directory_has_no_parent() {
    let fs = small();
    let a = fs.mkdir(&CX, Ino::ROOT, b"a", 0o755).unwrap();
    let (held, b) = fs.holding().mkdir(&CX, a.ino, b"b", 0o755).unwrap();
    fs.rmdir(a.ino, b"b").unwrap();
    fs.rmdir(Ino::ROOT, b"a").unwrap();
    assert_eq!(errno(fs.lookup(b.ino, b"..")), libc::ENOENT);
    let mut plain = Vec::new();
    fs.readdir(b.ino, 0, &mut |e| {
        plain.push((e.name.to_vec(), e.ino));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(plain, [(b".".to_vec(), b.ino), (b"..".to_vec(), b.ino)]);
    drop(held);
}
