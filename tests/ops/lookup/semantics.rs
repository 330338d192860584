//! What the resolution of a path promises.

use pramfs::inode::Ino;

use crate::support::library::{ROOT, file, small};

/// A path of the direct API follows up to 40 symbolic links.
#[test]
fn path_follows_up_to_40_symlinks() {
    let (_sim, fs) = small();
    file(&fs, "link-0");
    for i in 1..=41 {
        let (name, target) = (format!("link-{i}"), format!("link-{}", i - 1));
        fs.symlink(&ROOT, Ino::ROOT, name.as_bytes(), target.as_bytes())
            .unwrap();
    }
    assert_eq!(fs.resolve(b"/link-40").unwrap().size, 0);
    assert_eq!(fs.resolve(b"/link-41").unwrap_err().errno(), libc::ELOOP);
}
