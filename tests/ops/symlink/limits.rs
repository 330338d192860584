//! symlink at its limit: the longest target in scattered space.

use pramfs::inode::{Credentials, Ino, SetAttr};

use crate::support::library::scattered;

/// With small blocks, the target of a symlink takes eight blocks, which need not be
/// contiguous.
#[test]
fn symlink_of_longest_target_uses_scattered_blocks() {
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
