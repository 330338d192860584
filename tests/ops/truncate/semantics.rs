//! What truncate promises: the file grows with zeros.

use pramfs::inode::{Credentials, SetAttr};

use crate::support::library::{contents, file, small};

/// Truncated data does not reappear when the file grows again.
#[test]
fn truncated_file_grows_with_zeros() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    fs.append(&Credentials::ROOT, ino, &[5; 10_000]).unwrap();
    for size in [100, 10_000] {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        fs.setattr(&Credentials::ROOT, ino, &set).unwrap();
    }
    let bytes = contents(&fs, ino);
    assert!(bytes[..100].iter().all(|&b| b == 5) && bytes[100..].iter().all(|&b| b == 0));
}
