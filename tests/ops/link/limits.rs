//! link at its limit: 65,000 names of a file.

use pramfs::inode::{Credentials, Ino};
use pramfs_tests::region::fresh;

const CX: Credentials<'_> = Credentials::new(0, 0);

#[test]
fn link_of_65000_names_works() {
    let (_sim, fs) = fresh(64 << 20, 4096).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"0", 0o644).unwrap().ino;
    for i in 1..65_000 {
        fs.link(file, Ino::ROOT, i.to_string().as_bytes()).unwrap();
    }
    assert_eq!(fs.getattr(file).unwrap().nlink, 65_000);
    for i in 1..65_000 {
        fs.unlink(Ino::ROOT, i.to_string().as_bytes()).unwrap();
    }
    assert_eq!(fs.getattr(file).unwrap().nlink, 1);
    fs.close().unwrap();
}
