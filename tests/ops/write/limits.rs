//! write at the largest offsets.

use pramfs::inode::{Credentials, Ino};
use pramfs_tests::region::fresh;

const CX: Credentials<'_> = Credentials::new(0, 0);

#[test]
fn write_at_16_tib_works() {
    let (_sim, fs) = fresh(4 << 20, 4096).unwrap();
    let file = fs.create(&CX, Ino::ROOT, b"f", 0o644).unwrap().ino;
    let far = 16 << 40;
    assert_eq!(fs.write(&CX, file, far, b"here").unwrap(), 4);
    let mut back = [0; 8];
    assert_eq!(fs.read(file, far - 4, &mut back).unwrap(), 8);
    assert_eq!(&back, b"\0\0\0\0here");
    assert!(fs.getattr(file).unwrap().blocks < 100);
    fs.close().unwrap();
}
