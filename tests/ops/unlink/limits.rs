//! unlink at its limit: a scattered file with a large attribute.

use std::time::Duration;

use pramfs::XattrMode;
use pramfs::inode::{Credentials, Ino};
use pramfs_tests::watchdog::Watchdog;

use crate::support::library::scattered;

/// Freeing the blocks of a file fills a record until a large attribute does not fit any
/// more.
#[test]
fn unlink_of_scattered_file_with_large_xattr_works() {
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
