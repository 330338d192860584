//! Regions whose free space consists of single blocks. Operations that must fit one
//! record are largest there.

use std::time::Duration;

use pramfs::{
    Fallocate, XattrMode,
    inode::{Credentials, Fs, Ino, SetAttr},
};
use pramfs_tests::region::fresh;
use pramfs_tests::watchdog::Watchdog;

/// A file system with `free` free blocks, each with its bit in a different bitmap word.
fn scattered(len: usize, block_size: u32, free: u64) -> Fs {
    let (_, fs) = fresh(len, block_size).expect("a file system");
    let fill = fs
        .create(&Credentials::ROOT, Ino::ROOT, b"fill", 0o644)
        .expect("made")
        .ino;
    let (mut at, mut step) = (0, len as u64 / 4);
    while step >= u64::from(block_size) {
        let all = Fallocate::Allocate { keep_size: false };
        while fs
            .fallocate(&Credentials::ROOT, fill, all, at, step)
            .is_ok()
        {
            at += step;
        }
        step /= 2;
    }
    let block = u64::from(block_size);
    for i in 0..free {
        fs.fallocate(
            &Credentials::ROOT,
            fill,
            Fallocate::PunchHole,
            i * 64 * block,
            block,
        )
        .expect("a removal needs no space");
    }
    fs
}

/// Freeing the blocks of a file fills a record until a large attribute does not fit any
/// more.
#[test]
fn remove_of_scattered_file_with_large_xattr_works() {
    let _dog = Watchdog::new("scattered files", Duration::from_secs(120));
    let fs = scattered(96 << 20, 4096, 300);
    let ctx = Credentials::ROOT;
    let before = fs.statfs().expect("statfs").free;
    for pinned in [false, true] {
        for blocks in 100..150 {
            let case = format!("{blocks} blocks, referenced: {pinned}");
            let f = fs.create(&ctx, Ino::ROOT, b"file", 0o644).expect(&case).ino;
            fs.setxattr(
                &Credentials::ROOT,
                f,
                b"user.large",
                &[1; 65_536],
                XattrMode::Set,
            )
            .expect(&case);
            for b in 0..blocks {
                fs.write(&Credentials::ROOT, f, b * 4096, &[7; 4096])
                    .expect(&case);
            }
            if pinned {
                fs.hold(f).into_count();
            }
            fs.unlink(Ino::ROOT, b"file").expect(&case);
            fs.release(f, u64::from(pinned));
            assert!(fs.getattr(f).is_err(), "{case}: it is still there");
            assert_eq!(fs.statfs().expect("statfs").free, before, "{case}");
        }
    }
    let (_, report) = pramfs_fsck::check_fs(fs, &Default::default()).expect("checked");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// With small blocks, the target of a symlink takes eight blocks, which need not be
/// contiguous.
#[test]
fn long_symlink_uses_scattered_blocks() {
    let fs = scattered(2 << 20, 512, 40);
    let target = "x".repeat(4095);
    let ctx = Credentials::ROOT;
    let link = fs
        .symlink(&ctx, Ino::ROOT, b"link", target.as_bytes())
        .expect("space enough, if scattered");
    assert_eq!(fs.readlink(link.ino).expect("readable"), target.as_bytes());
    fs.unlink(Ino::ROOT, b"link").expect("removed");
    let fill = fs.lookup(Ino::ROOT, b"fill").expect("there").ino;
    let none = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    fs.setattr(&Credentials::ROOT, fill, &none)
        .expect("emptied");
}

/// The next free inode number may lie where the inode table would have to grow.
#[test]
fn replacing_file_on_full_region_works() {
    let (_, fs) = fresh(1 << 20, 4096).expect("a file system");
    let ctx = Credentials::ROOT;
    let mut made = 0;
    while fs
        .create(&ctx, Ino::ROOT, format!("{made}").as_bytes(), 0o644)
        .is_ok()
    {
        made += 1;
    }
    let fill = fs.lookup(Ino::ROOT, b"0").expect("made").ino;
    let mut at = 0;
    while fs
        .write(&Credentials::ROOT, fill, at, &[1; 4096])
        .is_ok_and(|n| n == 4096)
    {
        at += 4096;
    }
    for i in (1..made).step_by(made / 5) {
        let name = format!("{i}");
        fs.unlink(Ino::ROOT, name.as_bytes()).expect("removed");
        fs.create(&ctx, Ino::ROOT, name.as_bytes(), 0o644)
            .unwrap_or_else(|e| panic!("file {i} of {made} made anew: {e}"));
    }
}
