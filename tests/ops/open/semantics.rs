//! What an open by path promises in the library.

use std::sync::atomic::{AtomicU32, Ordering};

use pramfs::inode::{Credentials, Ino};
use pramfs::{OpenOptions, RenameFlags};

use crate::support::library::{contents, small};

/// The owner of the region may do everything: the direct API checks no permissions.
#[test]
fn direct_api_checks_no_permission() {
    use pramfs::OpenOptions;
    let (_sim, fs) = small();
    let owner = Credentials::new(1, 1);
    let d = fs.mkdir(&owner, Ino::ROOT, b"d", 0o000).unwrap();
    fs.create(&owner, d.ino, b"f", 0o000).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/d/f")
        .unwrap();
    file.append(b"written").unwrap();
    assert_eq!(contents(&fs, file.ino()), b"written");
}

/// Between the lookup of a name and the open, the name may be changed and the inode
/// number reused for a new file.
#[test]
fn open_by_path_never_opens_other_file() {
    let (_sim, fs) = small();
    let ctx = Credentials::ROOT;
    let make = |name: &[u8]| fs.create(&ctx, Ino::ROOT, name, 0o644).unwrap().ino;
    make(b"config");
    let keep: Vec<_> = (0..8).map(|i| format!("keep{i}")).collect();
    let opens = AtomicU32::new(0);
    std::thread::scope(|s| {
        // More threads than processors, so that now and then one is preempted in between.
        for _ in 0..8 {
            s.spawn(|| {
                while opens.fetch_add(1, Ordering::Relaxed) < 400_000 {
                    let mut open = OpenOptions::new();
                    open.read(true).write(true).truncate(true);
                    open.open(&fs, "/config").unwrap();
                }
            });
        }
        let flags = RenameFlags::default();
        while opens.load(Ordering::Relaxed) < 400_000 {
            for name in &keep {
                // A file is removed, and its number is reused for a file that stays.
                let new = make(b"new");
                fs.write(&Credentials::ROOT, new, 0, b"new").unwrap();
                fs.rename(&ctx, Ino::ROOT, b"new", Ino::ROOT, b"config", flags)
                    .unwrap();
                let kept = make(name.as_bytes());
                fs.write(&Credentials::ROOT, kept, 0, b"kept").unwrap();
            }
            for name in &keep {
                let kept = fs.lookup(Ino::ROOT, name.as_bytes()).unwrap();
                assert_eq!(kept.size, 4, "{name}");
                fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
            }
        }
    });
    fs.close().unwrap();
}
