//! What write promises on a full region, and at the largest offset.

use pramfs::inode::{Credentials, Ino, SetAttr};
use pramfs::{Fallocate, XattrMode};
use pramfs_tests::region::fresh;

use crate::support::library::{MIB, ROOT, contents, errno, file, fill, names};

/// On a full region, each operation that needs space fails without changes, and
/// operations that free space succeed.
#[test]
fn full_region_fails_atomically_and_allows_frees() {
    for block_size in [512, 4096] {
        let (_sim, fs) = fresh(2 * MIB, block_size).unwrap();
        let dir = fs.mkdir(&ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
        let kept = file(&fs, "kept");
        fs.append(&Credentials::ROOT, kept, &[3; 9000]).unwrap();
        let made = fill(&fs);
        let before = (contents(&fs, kept), names(&fs, Ino::ROOT), names(&fs, dir));

        let large = vec![1; 64 << 10];
        assert_eq!(
            errno(fs.append(&Credentials::ROOT, kept, &large)),
            libc::ENOSPC
        );
        assert_eq!(
            errno(fs.setxattr(&Credentials::ROOT, kept, b"user.a", &large, XattrMode::Set)),
            libc::ENOSPC
        );
        let room = Fallocate::Allocate { keep_size: false };
        assert_eq!(
            errno(fs.fallocate(&Credentials::ROOT, kept, room, 0, 1 << 20)),
            libc::ENOSPC
        );
        assert_eq!(
            errno(fs.symlink(&ROOT, dir, b"s", &[b'x'; 4095])),
            libc::ENOSPC
        );
        let after = (contents(&fs, kept), names(&fs, Ino::ROOT), names(&fs, dir));
        assert!(before == after);

        // Operations that free space succeed one after the other, until everything is
        // free.
        let shrink = SetAttr {
            size: Some(1),
            ..SetAttr::default()
        };
        fs.setattr(&Credentials::ROOT, kept, &shrink).unwrap();
        for name in made {
            fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        }
        fs.rmdir(Ino::ROOT, b"dir").unwrap();
        fs.append(&Credentials::ROOT, kept, &large).unwrap();
    }
}

#[test]
fn write_up_to_limit_of_each_block_size_works() {
    for block_size in [512, 1024, 2048, 4096] {
        let (_sim, fs) = fresh(2 * MIB, block_size).unwrap();
        let ino = file(&fs, "f");
        for at in [16 << 40, i64::MAX as u64 - 4] {
            assert_eq!(fs.write(&Credentials::ROOT, ino, at, b"last").unwrap(), 4);
            let mut back = [0; 4];
            fs.read(ino, at, &mut back).unwrap();
            assert_eq!(&back, b"last");
        }
        assert_eq!(fs.getattr(ino).unwrap().size, i64::MAX as u64);
        assert_eq!(
            errno(fs.write(&Credentials::ROOT, ino, i64::MAX as u64, b"x")),
            libc::EFBIG
        );
        assert_eq!(errno(fs.append(&Credentials::ROOT, ino, b"x")), libc::EFBIG);
        assert!(fs.getattr(ino).unwrap().blocks < 200);
    }
}
