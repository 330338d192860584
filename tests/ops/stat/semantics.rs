//! What stat promises: sizes, blocks, numbers, the change counter, the birth time.

use std::collections::BTreeSet;

use pramfs::XattrMode;
use pramfs::inode::{Credentials, Ino, SetAttr};
use pramfs_tests::region::{formatted, mount, quiet, repeatable};

use crate::support::library::{MIB, ROOT, Stopped, file, remount, small};

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

/// The birth time never changes, neither by operations on the file nor by calls that set
/// times.
#[test]
fn btime_never_changes() {
    let sim = formatted(8 * MIB, &repeatable(4096)).unwrap();
    let clock = Stopped::at(1_000);
    let fs = mount(&sim, clock.options()).unwrap();
    let ino = file(&fs, "f");
    clock.set(2_000);
    fs.append(&Credentials::ROOT, ino, b"bytes").unwrap();
    let past = SetAttr {
        mtime: Some(pramfs::inode::SetTime::At(pramfs::inode::Time {
            sec: 5,
            nsec: 0,
        })),
        perm: Some(0o600),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, ino, &past).unwrap();
    fs.link(ino, Ino::ROOT, b"g").unwrap();
    let fs = remount(&sim, fs, clock.options());
    let a = fs.getattr(ino).unwrap();
    assert_eq!((a.btime.sec, a.mtime.sec, a.ctime.sec), (1_000, 5, 2_000));
}
