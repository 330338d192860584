//! mkdir and rmdir at their limit: 10,000 directories below each other.

use pramfs::inode::{Credentials, Ino};
use pramfs_tests::region::fresh;

const CX: Credentials<'_> = Credentials::new(0, 0);

#[test]
fn mkdir_10000_levels_deep_works() {
    let (_sim, fs) = fresh(128 << 20, 4096).unwrap();
    let mut chain = vec![Ino::ROOT];
    for _ in 0..10_000 {
        let parent = chain[chain.len() - 1];
        chain.push(fs.mkdir(&CX, parent, b"d", 0o755).unwrap().ino);
    }
    let path = "/d".repeat(10_000);
    assert_eq!(fs.resolve(&path).unwrap().ino, chain[10_000]);
    while chain.len() > 1 {
        chain.pop();
        fs.rmdir(chain[chain.len() - 1], b"d").unwrap();
    }
    fs.close().unwrap();
}
