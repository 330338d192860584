//! What rename promises: it is atomic, and its flags work as those of renameat2.

use pramfs::inode::Ino;
use pramfs::{Error, FileType, RenameFlags};

use crate::support::library::{ROOT, file, find, small};

const PLAIN: RenameFlags = RenameFlags {
    noreplace: false,
    exchange: false,
    whiteout: false,
};

#[test]
fn rename_is_atomic_and_flags_match_renameat2() {
    let (_sim, fs) = small();
    let (a, b) = (file(&fs, "a"), file(&fs, "b"));
    let rename = |from: &[u8], to: &[u8], flags| {
        fs.rename(&ROOT, Ino::ROOT, from, Ino::ROOT, to, flags)
            .map_err(|e| e.errno())
    };
    let noreplace = RenameFlags {
        noreplace: true,
        ..PLAIN
    };
    let exchange = RenameFlags {
        exchange: true,
        ..PLAIN
    };
    let whiteout = RenameFlags {
        whiteout: true,
        ..PLAIN
    };
    assert_eq!(rename(b"a", b"b", noreplace), Err(libc::EEXIST));
    assert_eq!(rename(b"a", b"c", exchange), Err(libc::ENOENT));
    rename(b"a", b"b", exchange).unwrap();
    assert_eq!((find(&fs, "a").unwrap(), find(&fs, "b").unwrap()), (b, a));
    rename(b"a", b"b", PLAIN).unwrap();
    assert_eq!(find(&fs, "b").unwrap(), b);
    assert!(
        matches!(fs.getattr(a), Err(Error::Stale(_))),
        "what was replaced is gone"
    );
    rename(b"b", b"c", whiteout).unwrap();
    let white = fs.lookup(Ino::ROOT, b"b").unwrap();
    assert_eq!((white.kind, white.rdev), (FileType::CharDevice, 0));
    for flags in [
        RenameFlags {
            noreplace: true,
            ..exchange
        },
        RenameFlags {
            whiteout: true,
            ..exchange
        },
    ] {
        assert_eq!(rename(b"b", b"c", flags), Err(libc::EINVAL));
    }
    // Two names of one file: nothing happens, and both stay.
    fs.link(b, Ino::ROOT, b"d").unwrap();
    rename(b"c", b"d", PLAIN).unwrap();
    assert_eq!((find(&fs, "c").unwrap(), find(&fs, "d").unwrap()), (b, b));
}

#[test]
fn rename_of_directory_into_itself_or_over_nonempty_fails() {
    let (_sim, fs) = small();
    let mkdir = |dir, name: &[u8]| fs.mkdir(&ROOT, dir, name, 0o755).unwrap().ino;
    let top = mkdir(Ino::ROOT, b"top");
    let below = mkdir(top, b"below");
    let other = mkdir(Ino::ROOT, b"other");
    mkdir(other, b"entry");
    let rename = |from, name: &[u8], to, new: &[u8]| {
        fs.rename(&ROOT, from, name, to, new, PLAIN)
            .map_err(|e| e.errno())
    };
    assert_eq!(rename(Ino::ROOT, b"top", below, b"x"), Err(libc::EINVAL));
    assert_eq!(rename(Ino::ROOT, b"top", top, b"x"), Err(libc::EINVAL));
    assert_eq!(
        rename(Ino::ROOT, b"top", Ino::ROOT, b"other"),
        Err(libc::ENOTEMPTY)
    );
    // Moved, `..` leads to the new parent and both link counts follow.
    rename(top, b"below", Ino::ROOT, b"moved").unwrap();
    assert_eq!(fs.lookup(below, b"..").unwrap().ino, Ino::ROOT);
    assert_eq!(
        (
            fs.getattr(top).unwrap().nlink,
            fs.getattr(Ino::ROOT).unwrap().nlink
        ),
        (2, 5)
    );
}
