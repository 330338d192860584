//! copy_file_range of a range that a repair could not restore.

use pramfs::inode::{Ino, SetAttr};

use crate::support::lost::{
    CX, close_and_check, image_of, is_lost, list, open, repair_all, without_a_line,
};

#[test]
fn copy_range_of_lost_range_fails() {
    let block = 4096u64;
    let (image, ino) = image_of(4096, 20 * 4096);
    let (region, _) = repair_all(&without_a_line(&image, ino, 8, true));
    let fs = open(region);
    let to = fs.create(&CX, Ino::ROOT, b"to", 0o644).unwrap().ino;
    assert_eq!(
        fs.copy_range(&CX, (ino, 0), (to, 0), 20 * block).unwrap(),
        8 * block
    );
    assert!(is_lost(fs.copy_range(
        &CX,
        (ino, 8 * block),
        (to, 8 * block),
        block
    )));
    assert_eq!(fs.getattr(to).unwrap().size, 8 * block);
    // Copying to it: whole blocks only, of data and of zeros.
    assert!(is_lost(fs.copy_range(&CX, (to, 0), (ino, 8 * block), 100)));
    assert_eq!(
        fs.copy_range(&CX, (to, 0), (ino, 8 * block), block + 100)
            .unwrap(),
        block
    );
    let hole = fs.create(&CX, Ino::ROOT, b"hole", 0o644).unwrap().ino;
    let size = SetAttr {
        size: Some(9 * block),
        ..SetAttr::default()
    };
    fs.setattr(&CX, hole, &size).unwrap();
    assert!(is_lost(fs.copy_range(
        &CX,
        (hole, 0),
        (ino, 9 * block),
        100
    )));
    fs.copy_range(&CX, (hole, 0), (ino, 9 * block), 7 * block)
        .unwrap();
    assert_eq!(list(&fs, ino), None);
    close_and_check(fs);
}
