//! Truncations that a crash interrupts, and that the next mount finishes.

use crate::credentials::Credentials;
use crate::fs::Fs;
use crate::fs::ops::file_tests::{check_blocks, mount, mount_with, new_file, truncate};
use crate::fs::options::MountOptions;
use pramfs_medium::map;
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::pmem::{Region, SimBackend};
use pramfs_medium::types::{Fallocate, FileBlock, Ino, LeaseMode};

/// The size to which the file is truncated, bytes.
const SIZE: u64 = 100;

/// Makes a region after the first record of a truncation. Returns its bytes, the truncated
/// file, and the file's slot in the orphan table.
fn interrupted() -> (Vec<u8>, Ino, u32) {
    // Scattered blocks: two files that grow in turns.
    let backend = SimBackend::new(8 << 20).unwrap();
    let fs = mount(Box::new(backend), 512);
    let (a, b) = (new_file(&fs, b"a"), new_file(&fs, b"b"));
    for _ in 0..1200 {
        fs.append(&Credentials::ROOT, a, &[1; 512]).unwrap();
        fs.append(&Credentials::ROOT, b, &[2; 512]).unwrap();
    }
    let slot = {
        let inode = fs.iget(a).unwrap();
        let mut state = inode.state.write();
        let shortened = fs.change(&inode, &mut state, |tx, new| {
            new.size = SIZE;
            fs.put_orphan(tx, a)
        });
        shortened.unwrap()
    };
    let mut bytes = vec![0; fs.region().len() as usize];
    fs.region().read(0, &mut bytes).unwrap();
    (bytes, a, slot)
}

/// Returns the word of a slot of the orphan table.
fn slot_word(fs: &Fs, slot: u32) -> u64 {
    let table = fs.iget(Ino::ORPHANS).unwrap();
    let state = table.state.read();
    let found = map::find(&fs.vol, &state.map(), FileBlock(0)).unwrap();
    let at = fs.vol.geo.offset(found.block.unwrap()).0 + u64::from(slot) * 8;
    fs.vol.region.load_u64(at).unwrap()
}

/// A change of the file, before or after the mount finishes the truncation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Extend,
    Append,
    Unlink,
}

impl Change {
    fn run(self, fs: &Fs, file: Ino) {
        match self {
            Change::Extend => {
                truncate(fs, file, 100_000).unwrap();
                let mut bytes = vec![7; 100_000];
                fs.read(file, 0, &mut bytes).unwrap();
                let (old, new) = bytes.split_at(SIZE as usize);
                assert!(old.iter().all(|b| *b == 1) && new.iter().all(|b| *b == 0));
            }
            Change::Append => {
                let at = fs.append(&Credentials::ROOT, file, &[3; 10]).unwrap();
                assert_eq!(at, SIZE);
            }
            Change::Unlink => fs.unlink(Ino::ROOT, b"a").unwrap(),
        }
    }
}

#[test]
fn mount_finishes_truncate_after_crash() {
    let (image, file, slot) = interrupted();
    for background in [false, true] {
        for change in [Change::Extend, Change::Append, Change::Unlink] {
            let region = Region::new("again", Box::new(SimBackend::from_image(&image).unwrap()));
            let options = MountOptions {
                background,
                ..MountOptions::default()
            };
            let fs = Fs::open(region, options).unwrap();
            change.run(&fs, file);
            let is_orphan = || {
                fs.iget(file)
                    .is_ok_and(|i| i.state.read().orphan_slot.is_some())
            };
            while is_orphan() {
                std::thread::yield_now();
            }
            if change != Change::Unlink {
                // One block of data, and two pointer blocks above it.
                assert_eq!(fs.getattr(file).unwrap().blocks, 3);
                check_blocks(&fs, file);
            }
            assert_eq!(slot_word(&fs, slot), 0);
            assert!(!fs.is_read_only());
            fs.close().unwrap();
        }
    }
}

/// A lease keeps the blocks of a file that becomes shorter. The record of its growth has no room
/// for the sums of so many.
#[test]
fn growth_over_many_kept_blocks_marks_them_and_sums_them_later() {
    const LEN: u64 = 3 << 20;
    type Grow = fn(&Fs, Ino);
    let ways: [Grow; 3] = [
        |fs, file| truncate(fs, file, LEN).unwrap(),
        |fs, file| {
            fs.write(&Credentials::ROOT, file, LEN - 1, &[0]).unwrap();
        },
        |fs, file| {
            let what = Fallocate::Allocate { keep_size: false };
            fs.fallocate(&Credentials::ROOT, file, what, LEN - 1, 1)
                .unwrap();
        },
    ];
    for (way, grow) in ways.into_iter().enumerate() {
        let backend = SimBackend::new(16 << 20).unwrap();
        let fs = mount_with(Box::new(backend), 4096, &["data_checksums"]);
        let file = new_file(&fs, b"a");
        for at in (0..LEN).step_by(1 << 20) {
            fs.write(&Credentials::ROOT, file, at, &[1; 1 << 20])
                .unwrap();
        }
        let generation = fs.getattr(file).unwrap().generation;
        drop(
            fs.grant_lease(file, generation, LeaseMode::Read, 1, 0)
                .unwrap(),
        );
        let marked = || fs.iget(file).unwrap().state.read().disk.unsummed();
        truncate(&fs, file, SIZE).unwrap();
        assert!(marked().is_empty(), "way {way}");
        grow(&fs, file);
        assert!(!marked().is_empty(), "way {way}");
        let is_as_grown = || {
            let mut bytes = vec![9; LEN as usize];
            assert_eq!(fs.read(file, 0, &mut bytes).unwrap(), LEN as usize);
            let (old, new) = bytes.split_at(SIZE as usize);
            old.iter().all(|byte| *byte == 1) && new.iter().all(|byte| *byte == 0)
        };
        assert!(is_as_grown(), "way {way}");
        fs.end_released_leases().unwrap();
        assert!(fs.sum_marked_files(), "way {way}");
        assert!(marked().is_empty() && is_as_grown(), "way {way}");
    }
}
