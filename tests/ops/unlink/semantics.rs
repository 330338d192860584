//! What unlink promises: an open file lives on, and its blocks become free.

use pramfs::Error;
use pramfs::inode::{Credentials, Ino};
use pramfs_tests::region::{mount, quiet};

use crate::support::library::{after_a_crash, contents, file, small};

/// An open file without a name stays usable; its last close frees it.
#[test]
fn unlink_of_referenced_file_keeps_it_until_last_reference() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    fs.append(&Credentials::ROOT, ino, &[7; 100_000]).unwrap();
    let free = fs.statfs().unwrap().free;
    (0..2).for_each(|_| {
        fs.hold(ino).into_count();
    });
    fs.unlink(Ino::ROOT, b"f").unwrap();
    assert_eq!(fs.getattr(ino).unwrap().nlink, 0);
    fs.append(&Credentials::ROOT, ino, b"still here").unwrap();
    assert_eq!(contents(&fs, ino).len(), 100_010);
    assert_eq!(
        fs.link(ino, Ino::ROOT, b"back").unwrap_err().errno(),
        libc::ENOENT
    );
    fs.release(ino, 1);
    fs.getattr(ino).unwrap();
    fs.release(ino, 1);
    assert!(matches!(fs.getattr(ino), Err(Error::Stale(_))));
    assert!(
        fs.statfs().unwrap().free > free,
        "its blocks are free again, and shown so"
    );
}

/// Orphans forgotten by the kernel are freed in records of other operations: sixteen
/// together, and the rest when space is needed.
#[test]
fn orphans_are_freed_in_batches() {
    let (sim, fs) = small();
    let make = |n: usize| -> Vec<Ino> {
        (0..n)
            .map(|i| {
                let name = format!("f{i}");
                let ino = file(&fs, &name);
                fs.append(&Credentials::ROOT, ino, &[7; 5000]).unwrap();
                (0..2).for_each(|_| {
                    fs.hold(ino).into_count();
                });
                fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
                ino
            })
            .collect()
    };
    let exist = |inos: &[Ino]| inos.iter().filter(|i| fs.getattr(**i).is_ok()).count();
    // The directory and the tables grow once.
    make(40).iter().for_each(|i| fs.release(*i, 2));
    let free = fs.statfs().unwrap().free;

    let inos = make(40);
    inos.iter().for_each(|i| fs.forget(*i, 1));
    assert_eq!(exist(&inos), 40, "each has a reference left");
    let before = sim.counters().fences;
    inos.iter().for_each(|i| fs.forget(*i, 1));
    assert_eq!(exist(&inos), 8, "two times sixteen are gone");
    let fences = sim.counters().fences - before;
    assert!(fences <= 8, "{fences} fences for 32 inodes");
    // One of the waiting orphans gets a new reference.
    fs.hold(inos[39]).into_count();
    assert_eq!((fs.statfs().unwrap().free, exist(&inos)), (free - 3, 1));
    fs.release(inos[39], 1);
    assert_eq!((exist(&inos), fs.statfs().unwrap().free), (0, free));

    // After a crash, the next mount frees the waiting orphans; an unmount frees them
    // itself.
    let inos = make(5);
    inos.iter().for_each(|i| fs.forget(*i, 2));
    let (_image, after) = after_a_crash(&sim);
    assert_eq!(after.recovery().orphans, 5);
    assert_eq!(after.statfs().unwrap().free, free);
    assert!(fs.free_forgotten());
    assert_eq!(exist(&inos), 0);
    make(5).iter().for_each(|i| fs.forget(*i, 2));
    fs.close().unwrap();
    assert_eq!(mount(&sim, quiet()).unwrap().recovery().orphans, 0);
}

#[test]
fn mount_frees_unlinked_file_open_at_crash() {
    let (sim, fs) = small();
    let ino = file(&fs, "f");
    fs.append(&Credentials::ROOT, ino, &[7; 1 << 20]).unwrap();
    fs.hold(ino).into_count();
    fs.unlink(Ino::ROOT, b"f").unwrap();
    let held = fs.statfs().unwrap().free;
    let (_image, after) = after_a_crash(&sim);
    assert_eq!(after.recovery().orphans, 1);
    assert!(matches!(after.getattr(ino), Err(Error::Stale(_))));
    assert!(after.statfs().unwrap().free >= held + 256);
    // After a clean unmount as well.
    fs.close().unwrap();
    let fs = mount(&sim, quiet()).unwrap();
    assert_eq!(fs.recovery().orphans, 1);
    assert!(matches!(fs.getattr(ino), Err(Error::Stale(_))));
}
