//! What mkdir and rmdir promise.

use pramfs::inode::Ino;
use pramfs_tests::region::quiet;

use crate::support::library::{ROOT, names, remount, small};

/// A directory that was filled and emptied may keep a block. It is valid, and rmdir
/// removes it.
#[test]
fn rmdir_of_emptied_directory_works() {
    let (sim, fs) = small();
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap().ino;
    let name = |i: u32| format!("entry-{i}").into_bytes();
    for i in 0..300 {
        fs.create(&ROOT, dir, &name(i), 0o644).unwrap();
    }
    for i in 0..300 {
        fs.unlink(dir, &name(i)).unwrap();
    }
    let fs = remount(&sim, fs, quiet());
    assert!(names(&fs, dir).is_empty());
    fs.create(&ROOT, dir, b"again", 0o644).unwrap();
    assert_eq!(
        fs.rmdir(Ino::ROOT, b"d").unwrap_err().errno(),
        libc::ENOTEMPTY
    );
    fs.unlink(dir, b"again").unwrap();
    let fs = remount(&sim, fs, quiet());
    fs.rmdir(Ino::ROOT, b"d").unwrap();
}
