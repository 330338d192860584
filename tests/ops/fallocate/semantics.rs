//! What fallocate promises: zeros, holes, blocks.

use pramfs::inode::{Credentials, Fs, Ino};
use pramfs::{Fallocate, SeekWhence};

use crate::support::library::{contents, errno, file, small};

/// Allocated blocks read as zeros, whatever their old contents, and count as a hole for
/// SEEK_DATA.
#[test]
fn fallocated_blocks_read_zero_and_seek_as_hole() {
    let (_sim, fs) = small();
    let old = file(&fs, "old");
    fs.append(&Credentials::ROOT, old, &[0xee; 1 << 20])
        .unwrap();
    fs.unlink(Ino::ROOT, b"old").unwrap();
    fs.sync().unwrap();
    let ino = file(&fs, "f");
    fs.fallocate(
        &Credentials::ROOT,
        ino,
        Fallocate::Allocate { keep_size: false },
        0,
        1 << 20,
    )
    .unwrap();
    assert!(contents(&fs, ino).iter().all(|&b| b == 0));
    assert_eq!(errno(fs.seek(ino, 0, SeekWhence::Data)), libc::ENXIO);
    fs.write(&Credentials::ROOT, ino, 100_000, b"data").unwrap();
    assert_eq!(fs.seek(ino, 0, SeekWhence::Data).unwrap(), 98_304);
    assert_eq!(fs.seek(ino, 98_304, SeekWhence::Hole).unwrap(), 102_400);
    assert_eq!(fs.getattr(ino).unwrap().size, 1 << 20);
}

/// An aligned 2 MiB range is one leaf and becomes data as a whole. Its zero blocks are
/// holes for seek, from any offset.
#[test]
fn fallocated_2_mib_leaf_becomes_data_as_whole() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    fs.fallocate(
        &Credentials::ROOT,
        ino,
        Fallocate::Allocate { keep_size: false },
        0,
        4 << 20,
    )
    .unwrap();
    fs.write(&Credentials::ROOT, ino, (2 << 20) + 100_000, b"data")
        .unwrap();
    let (data, end) = ((2 << 20) + 98_304, (2 << 20) + 102_400);
    let seek = |at, whence| fs.seek(ino, at, whence);
    assert_eq!(seek(0, SeekWhence::Data).unwrap(), data);
    assert_eq!(seek(data + 17, SeekWhence::Data).unwrap(), data + 17);
    assert_eq!(seek(data, SeekWhence::Hole).unwrap(), end);
    assert_eq!(seek(2 << 20, SeekWhence::Hole).unwrap(), 2 << 20);
    assert_eq!(seek(end + 5, SeekWhence::Hole).unwrap(), end + 5);
    assert_eq!(errno(seek(end, SeekWhence::Data)), libc::ENXIO);
    fs.write(&Credentials::ROOT, ino, 2 << 20, &vec![1; 2 << 20])
        .unwrap();
    assert_eq!(seek(2 << 20, SeekWhence::Hole).unwrap(), 4 << 20);
    fs.write(&Credentials::ROOT, ino, 2 << 20, &vec![0; 2 << 20])
        .unwrap();
    fs.write(&Credentials::ROOT, ino, (2 << 20) + 100_000, b"data")
        .unwrap();
    let bytes = contents(&fs, ino);
    assert_eq!(bytes.iter().filter(|&&b| b != 0).count(), 4);
}

#[test]
fn punch_frees_blocks_and_zero_range_keeps_them() {
    let (_sim, fs) = small();
    let ino = file(&fs, "f");
    fs.append(&Credentials::ROOT, ino, &[5; 64 << 10]).unwrap();
    let blocks = |fs: &Fs| fs.getattr(ino).unwrap().blocks;
    let before = blocks(&fs);
    fs.fallocate(
        &Credentials::ROOT,
        ino,
        Fallocate::ZeroRange { keep_size: true },
        1000,
        20_000,
    )
    .unwrap();
    assert_eq!(blocks(&fs), before);
    fs.fallocate(&Credentials::ROOT, ino, Fallocate::PunchHole, 4096, 8192)
        .unwrap();
    assert_eq!(blocks(&fs), before - 16);
    let bytes = contents(&fs, ino);
    assert_eq!(bytes.len(), 64 << 10);
    let zeros = |b: &[u8]| b.iter().all(|&b| b == 0);
    assert!(zeros(&bytes[1000..21_000]) && bytes[999] == 5 && bytes[21_000] == 5);
}
