//! Views (`File::map`): an address range that aliases the medium, beside reads and writes.

use pramfs::inode::Ino;
use pramfs::{Access, AtimePolicy, Error, Fallocate, MountOptions, OpenOptions};
use pramfs_tests::region::{formatted, fresh, mount, repeatable};

use crate::support::library::{MIB, Stopped, contents, fill, small};

#[test]
fn view_and_file_io_are_coherent() {
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
    // After a punch, a write into the hole uses another block; the view keeps the old one.
    file.fallocate(Fallocate::PunchHole, 4096, 4096).unwrap();
    file.write_at(&[9; 8], 4096).unwrap();
    assert_eq!(
        view.load::<u64>(96).unwrap(),
        0x0202_0202_0202_0202,
        "a view stays on its blocks"
    );
}

#[test]
fn view_fills_holes_or_shows_zeros() {
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
fn view_blocks_are_not_reused_until_drop() {
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
    let made = fill(&fs);
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
fn view_needs_4096_byte_blocks_and_ends_at_eof() {
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

/// The kernel is not involved, so only word operations are atomic.
#[test]
fn view_word_atomics_work_from_many_threads() {
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

/// Loads through a view set no atime; `persist` sets the mtime.
#[test]
fn view_sets_mtime_at_persist_and_never_atime() {
    use pramfs::{Access, OpenOptions};
    let sim = formatted(8 * MIB, &repeatable(4096)).unwrap();
    let clock = Stopped::at(1_000);
    let options = MountOptions {
        atime: AtimePolicy::StrictAtime,
        ..clock.options()
    };
    let fs = mount(&sim, options).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(&fs, "/f")
        .unwrap();
    file.set_len(4096).unwrap();
    let view = file.map(0..4096, Access::Write).unwrap();
    clock.set(2_000);
    view.load::<u64>(0).unwrap();
    view.store::<u64>(0, 1).unwrap();
    let a = *file.metadata().unwrap().attr();
    assert_eq!((a.atime.sec, a.mtime.sec), (1_000, 1_000));
    view.persist(0..8).unwrap();
    let a = *file.metadata().unwrap().attr();
    assert_eq!((a.atime.sec, a.mtime.sec), (1_000, 2_000));
}
