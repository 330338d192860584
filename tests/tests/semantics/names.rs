//! Names, directories, rename, links, unlinked files.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use pramfs::{
    Error, FileType, RenameFlags,
    inode::{Credentials, Ino},
};
use pramfs_tests::region::{mount, quiet};

use super::{ROOT, after_a_crash, contents, file, find, names, remount, small};

const PLAIN: RenameFlags = RenameFlags {
    noreplace: false,
    exchange: false,
    whiteout: false,
};

#[test]
fn names_have_1_to_255_bytes_except_slash_and_nul() {
    let (sim, fs) = small();
    let all: Vec<u8> = (1..=255).filter(|&b| b != b'/').collect();
    let longest = vec![0xff; 255];
    for name in [&all[..], &longest, b"\n", b"...", b"\xff"] {
        fs.create(&ROOT, Ino::ROOT, name, 0o644).unwrap();
    }
    let fs = remount(&sim, fs, quiet());
    assert_eq!(names(&fs, Ino::ROOT).len(), 5);
    fs.lookup(Ino::ROOT, &all).unwrap();
    let make = |name: &[u8]| {
        fs.create(&ROOT, Ino::ROOT, name, 0o644)
            .unwrap_err()
            .errno()
    };
    assert_eq!(make(&[b'x'; 256]), libc::ENAMETOOLONG);
    assert_eq!(make(b""), libc::ENOENT);
    assert_eq!(make(b"a/b"), libc::EINVAL);
    assert_eq!(make(b"a\0b"), libc::EINVAL);
    assert_eq!(make(b"."), libc::EINVAL);
    assert_eq!(make(b".."), libc::EINVAL);
}

/// Entries come and go while a directory is read in small steps. An entry that exists all
/// the time is returned exactly once.
#[test]
fn readdir_returns_lasting_entries_once_under_churn() {
    let (_sim, fs) = small();
    let lasting: BTreeSet<Vec<u8>> = (0..500)
        .map(|i| format!("stays-{i}").into_bytes())
        .collect();
    for name in &lasting {
        fs.create(&ROOT, Ino::ROOT, name, 0o644).unwrap();
    }
    for i in 0..300 {
        file(&fs, &format!("goes-{i}"));
    }
    let (mut seen, mut cookie, mut step) = (Vec::new(), 2, 0);
    loop {
        let mut got = 0;
        fs.readdir(Ino::ROOT, cookie, &mut |e| {
            if got == 7 {
                return ControlFlow::Break(());
            }
            got += 1;
            cookie = e.cookie;
            if e.name.starts_with(b"stays") {
                seen.push(e.name.to_vec());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        if got == 0 {
            break;
        }
        if step < 300 {
            fs.unlink(Ino::ROOT, format!("goes-{step}").as_bytes())
                .unwrap();
            for i in 0..4 {
                file(&fs, &format!("comes-{step}-{i}"));
            }
        }
        step += 1;
    }
    let once: BTreeSet<Vec<u8>> = seen.iter().cloned().collect();
    assert_eq!(once.len(), seen.len(), "an entry was given twice");
    assert_eq!(once, lasting);
}

/// A directory that was filled and emptied may keep a block. It is valid, and rmdir
/// removes it.
#[test]
fn emptied_directory_works_as_new_one() {
    let (sim, fs) = small();
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap().ino;
    let name = |i: u32| format!("entry-{i}").into_bytes();
    for i in 0..300 {
        fs.create(&ROOT, dir, &name(i), 0o644).unwrap();
    }
    for i in 0..300 {
        fs.unlink(dir, &name(i)).unwrap();
    }
    let fs = remount(&sim, fs, quiet());
    assert!(names(&fs, dir).is_empty());
    fs.create(&ROOT, dir, b"again", 0o644).unwrap();
    assert_eq!(
        fs.rmdir(Ino::ROOT, b"d").unwrap_err().errno(),
        libc::ENOTEMPTY
    );
    fs.unlink(dir, b"again").unwrap();
    let fs = remount(&sim, fs, quiet());
    fs.rmdir(Ino::ROOT, b"d").unwrap();
}

#[test]
fn readdir_cookies_stay_valid_after_remount() {
    let (sim, fs) = small();
    for i in 0..200 {
        file(&fs, &format!("name-{i}"));
    }
    let mut all = Vec::new();
    let list = |fs: &pramfs::inode::Fs, from: u64, all: &mut Vec<(u64, Vec<u8>)>| {
        fs.readdir(Ino::ROOT, from, &mut |e| {
            all.push((e.cookie, e.name.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    };
    list(&fs, 0, &mut all);
    assert_eq!(all.len(), 202);
    assert_eq!(
        [&all[0], &all[1]],
        [&(1, b".".to_vec()), &(2, b"..".to_vec())]
    );
    assert!(all.iter().all(|(c, _)| *c > 0 && *c < 1 << 63));
    let fs = remount(&sim, fs, quiet());
    for from in [0, 1, 2, 50, 201] {
        let mut rest = Vec::new();
        list(&fs, if from == 0 { 0 } else { all[from - 1].0 }, &mut rest);
        assert_eq!(rest, all[from..]);
    }
}

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

/// An open file without a name stays usable; its last close frees it.
#[test]
fn unlinked_file_lives_until_last_reference() {
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

#[test]
fn hard_links_reach_65000_and_exclude_directories() {
    let (_sim, fs) = pramfs_tests::region::fresh(64 << 20, 4096).unwrap();
    let ino = file(&fs, "f");
    for i in 1..65_000 {
        fs.link(ino, Ino::ROOT, format!("link-{i}").as_bytes())
            .unwrap();
    }
    assert_eq!(fs.getattr(ino).unwrap().nlink, 65_000);
    let dir = fs.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap().ino;
    assert_eq!(
        fs.link(dir, Ino::ROOT, b"e").unwrap_err().errno(),
        libc::EPERM
    );
}

#[test]
fn symlink_target_takes_4095_bytes_or_inline() {
    let (sim, fs) = small();
    let link = |name: &[u8], len: usize| fs.symlink(&ROOT, Ino::ROOT, name, &vec![b't'; len]);
    let (short, long) = (link(b"s", 96).unwrap(), link(b"l", 4095).unwrap());
    assert_eq!((short.blocks, short.size), (0, 96));
    assert_eq!((long.blocks, long.size), (8, 4095));
    assert_eq!(link(b"x", 4096).unwrap_err().errno(), libc::ENAMETOOLONG);
    assert_eq!(link(b"x", 0).unwrap_err().errno(), libc::ENOENT);
    let fs = remount(&sim, fs, quiet());
    assert_eq!(fs.readlink(long.ino).unwrap(), [b't'; 4095]);
    assert_eq!(fs.readlink(short.ino).unwrap(), [b't'; 96]);
}
