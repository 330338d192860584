//! What link promises: the number of names, no second name of a directory.

use pramfs::inode::Ino;

use crate::support::library::{ROOT, file};

#[test]
fn link_reaches_65000_and_refuses_directories() {
    let (_sim, fs) = pramfs_tests::region::fresh(64 << 20, 4096).unwrap();
    let ino = file(&fs, "f");
    for i in 1..65_000 {
        fs.link(ino, Ino::ROOT, format!("link-{i}").as_bytes())
            .unwrap();
    }
    assert_eq!(fs.getattr(ino).unwrap().nlink, 65_000);
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap().ino;
    assert_eq!(
        fs.link(dir, Ino::ROOT, b"e").unwrap_err().errno(),
        libc::EPERM
    );
}
