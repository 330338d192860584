//! SEEK_DATA and SEEK_HOLE find the real holes (xfstests 285 436 445 448 490 539).

use std::fs::File;
use std::os::unix::fs::FileExt;

use pramfs_tests::syscalls::errno;
use rustix::fs::{FallocateFlags, SeekFrom, seek};

use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::agree;
use crate::support::transcript::Transcript;

const BLOCK: u64 = 4096;

/// Seeks for data and for a hole from each offset.
fn look(n: &mut Transcript, what: &str, file: &File, offsets: &[u64]) {
    for &at in offsets {
        n.note(
            format!("{what}: data from {at}"),
            errno(seek(file, SeekFrom::Data(at))),
        );
        n.note(
            format!("{what}: hole from {at}"),
            errno(seek(file, SeekFrom::Hole(at))),
        );
    }
}

const OFFSETS: [u64; 12] = [
    0,
    1,
    BLOCK - 1,
    BLOCK,
    3 * BLOCK,
    5 * BLOCK - 1,
    5 * BLOCK,
    16 * BLOCK,
    100 * BLOCK,
    300 * BLOCK,
    1 << 30,
    i64::MAX as u64,
];

#[test]
fn seek_separates_data_from_holes() {
    agree("SEEK_DATA and SEEK_HOLE", &[Tmpfs, Ext4], |dir, n| {
        let file = |name: &str| {
            let path = dir.join(name);
            File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(path)
                .expect("a file")
        };
        let write = |f: &File, at: u64, len: u64| {
            f.write_all_at(&vec![0x55; len as usize], at)
                .expect("write");
        };
        look(n, "empty", &file("empty"), &OFFSETS);
        let f = file("sparse");
        f.set_len(1 << 20).expect("its size");
        look(n, "all hole", &f, &OFFSETS);
        write(&f, 0, 1);
        look(n, "a byte in front", &f, &OFFSETS);
        write(&f, 5 * BLOCK, BLOCK);
        write(&f, 100 * BLOCK + 7, 10);
        look(n, "islands", &f, &OFFSETS);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&f, punch, 5 * BLOCK, BLOCK).expect("punch");
        look(n, "one less", &f, &OFFSETS);
        let f = file("full");
        write(&f, 0, 17 * BLOCK + 5);
        look(n, "full", &f, &OFFSETS);
        f.set_len(3 * BLOCK + 1).expect("its size");
        look(n, "cut", &f, &OFFSETS);
        let f = file("tail");
        write(&f, 3 * BLOCK, 10);
        f.set_len(10 * BLOCK).expect("its size");
        look(n, "a hole behind", &f, &OFFSETS);
        let f = file("far");
        write(&f, 1 << 40, 1);
        look(
            n,
            "far",
            &f,
            &[0, BLOCK, (1 << 40) - 1, 1 << 40, (1 << 40) + 1],
        );
    });
}

/// A page that is dirty in the page cache only counts as data too.
#[test]
fn seek_sees_unwritten_back_page_as_data() {
    agree("SEEK_DATA of fresh pages", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        let f = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("a file");
        f.set_len(64 * BLOCK).expect("its size");
        for at in [9, 3, 40] {
            f.write_all_at(b"x", at * BLOCK).expect("write");
            look(
                n,
                &format!("block {at}"),
                &f,
                &[0, 4 * BLOCK, 10 * BLOCK, 41 * BLOCK],
            );
        }
    });
}
