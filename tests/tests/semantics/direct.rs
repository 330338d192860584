//! Views: one range of addresses that is the medium, beside reads and writes.

use std::sync::atomic::{AtomicU32, Ordering};

use pramfs::{
    Access, Error, Fallocate, OpenOptions, RenameFlags,
    inode::{Credentials, Ino},
};
use pramfs_tests::region::fresh;

use super::{MIB, contents, small};

#[test]
fn a_view_and_reads_and_writes_of_the_same_file_see_each_other_at_once() {
    let (_sim, fs) = small();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(&fs, "/f")
        .unwrap();
    file.append(&[1; 12_288]).unwrap();
    let view = file.map(4000..9000, Access::Write).unwrap();
    file.write_at(&[2; 8], 4096).unwrap();
    assert_eq!(view.load::<u64>(96).unwrap(), 0x0202_0202_0202_0202);
    view.write(0, b"stored").unwrap();
    let mut back = [0; 6];
    file.read_at(&mut back, 4000).unwrap();
    assert_eq!(&back, b"stored", "also before persist");
    let other = file.map(0..12_288, Access::Read).unwrap();
    other.read(4000, &mut back).unwrap();
    assert_eq!(&back, b"stored");
    // So do a punch and a write into the hole it leaves: elsewhere, by now.
    file.fallocate(Fallocate::PunchHole, 4096, 4096).unwrap();
    file.write_at(&[9; 8], 4096).unwrap();
    assert_eq!(
        view.load::<u64>(96).unwrap(),
        0x0202_0202_0202_0202,
        "a view stays on its blocks"
    );
}

#[test]
fn a_view_for_writing_fills_holes_and_one_for_reading_shows_zeros() {
    let (_sim, fs) = small();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(&fs, "/f")
        .unwrap();
    file.set_len(1 << 20).unwrap();
    let read = file.map(0..1 << 20, Access::Read).unwrap();
    assert_eq!(read.load::<u64>(8192).unwrap(), 0);
    assert_eq!(
        read.store::<u64>(8192, 1).unwrap_err().errno(),
        libc::EACCES
    );
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    let write = file.map(0..1 << 20, Access::Write).unwrap();
    assert!(file.metadata().unwrap().blocks() >= 2048);
    write.store::<u64>(8192, 5).unwrap();
    write.persist(8192..8200).unwrap();
    assert_eq!(contents(&fs, file.ino())[8192], 5);
    assert_eq!(
        read.load::<u64>(8192).unwrap(),
        0,
        "the older view still shows the hole"
    );
}

#[test]
fn blocks_of_a_view_are_given_to_nobody_until_it_is_dropped() {
    let (_sim, fs) = small();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(&fs, "/f")
        .unwrap();
    file.append(&[7; 1 << 20]).unwrap();
    let view = file.map(0..1 << 20, Access::Read).unwrap();
    fs.unlink(Ino::ROOT, b"f").unwrap();
    file.set_len(0).unwrap();
    drop(file);
    fs.sync().unwrap();
    let made = super::fill(&fs);
    let mut bytes = vec![0; 1 << 20];
    view.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&b| b == 7));
    drop(view);
    fs.unlink(Ino::ROOT, made[0].as_bytes()).unwrap();
    let more = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(&fs, "/more")
        .unwrap();
    more.append(&[8; 1 << 20]).unwrap();
}

#[test]
fn views_need_blocks_of_4096_bytes_and_end_with_the_file() {
    let (_sim, fs) = fresh(2 * MIB, 1024).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(&fs, "/f")
        .unwrap();
    file.set_len(4096).unwrap();
    assert!(matches!(
        file.map(0..4096, Access::Read),
        Err(Error::NotSupported(_))
    ));
    let (_sim, fs) = small();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(&fs, "/f")
        .unwrap();
    file.set_len(5000).unwrap();
    let blocks = file.metadata().unwrap().blocks();
    for range in [0..5001, 0..0, 5000..5001, 0..1 << 20] {
        for access in [Access::Read, Access::Write] {
            assert!(matches!(
                file.map(range.clone(), access),
                Err(Error::Invalid(_))
            ));
        }
    }
    assert_eq!(file.metadata().unwrap().blocks(), blocks);
    assert_eq!(file.map(4999..5000, Access::Read).unwrap().len(), 1);
}

/// The kernel has no say here, so there is no atomicity but that of words.
#[test]
fn words_of_a_view_are_changed_atomically_from_many_threads() {
    let (_sim, fs) = small();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(&fs, "/f")
        .unwrap();
    file.set_len(4096).unwrap();
    let view = file.map(0..4096, Access::Write).unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..10_000 {
                    view.fetch_add::<u64>(64, 1).unwrap();
                }
            });
        }
    });
    assert_eq!(view.load::<u64>(64).unwrap(), 40_000);
    assert!(view.load::<u64>(4).is_err(), "not aligned");
}

/// Between finding a name and opening what it leads to, the name may come to lead
/// elsewhere, and the number of what it led to be given to a new file.
#[test]
fn a_path_is_never_opened_as_another_file() {
    let (_sim, fs) = small();
    let ctx = Credentials::ROOT;
    let make = |name: &[u8]| fs.create(&ctx, Ino::ROOT, name, 0o644).unwrap().ino;
    make(b"config");
    let keep: Vec<_> = (0..8).map(|i| format!("keep{i}")).collect();
    let opens = AtomicU32::new(0);
    std::thread::scope(|s| {
        // More than processors: now and then one is put off in between.
        for _ in 0..8 {
            s.spawn(|| {
                while opens.fetch_add(1, Ordering::Relaxed) < 400_000 {
                    let open = OpenOptions::new().read(true).write(true).truncate(true);
                    open.open(&fs, "/config").unwrap();
                }
            });
        }
        let flags = RenameFlags::default();
        while opens.load(Ordering::Relaxed) < 400_000 {
            for name in &keep {
                // One goes, and its number comes back in one that is to be kept.
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
