//! File systems with checksums of file data: making them, and changing bytes behind their back.

use pramfs::Error;
use pramfs::format::FormatOptions;
use pramfs::inode::{Credentials, Fs, Ino};
use pramfs_medium::media::probe_superblock;
use pramfs_medium::media::sums::SUM_BLOCKS;
use pramfs_medium::pmem::{RegionAccess as _, SimBackend};

use crate::region::{formatted, mount, quiet, repeatable};

/// Options for a file system with the feature `data_checksums`.
pub fn summed(block_size: u32) -> FormatOptions {
    FormatOptions {
        features: vec![("data_checksums".to_owned(), true)],
        ..repeatable(block_size)
    }
}

/// Makes and mounts a file system with checksums.
pub fn fresh(len: usize, block_size: u32) -> (SimBackend, Fs) {
    let sim = formatted(len, &summed(block_size)).unwrap();
    let fs = mount(&sim, quiet()).unwrap();
    (sim, fs)
}

/// Makes a file in the root directory.
pub fn file(fs: &Fs, name: &str, bytes: &[u8]) -> Ino {
    let cx = &Credentials::ROOT;
    let ino = fs
        .create(cx, Ino::ROOT, name.as_bytes(), 0o644)
        .unwrap()
        .ino;
    assert_eq!(fs.write(cx, ino, 0, bytes).unwrap(), bytes.len());
    ino
}

/// Returns bytes that differ from their neighbours.
pub fn text(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 251) as u8 + 1).collect()
}

/// Returns the place of a byte of a file in the region.
pub fn place(fs: &Fs, ino: Ino, offset: u64) -> u64 {
    let extents = fs.file_extents(ino, offset, 1).unwrap();
    extents[0].region_offset.unwrap() + (offset - extents[0].file_offset)
}

/// Returns the place of the sum of the block at an offset of the region, in a file system of one
/// group.
pub fn sum_place(fs: &Fs, at: u64) -> u64 {
    let geo = probe_superblock(fs.region()).unwrap().geometry();
    assert!(geo.blocks() <= geo.bits_per_group());
    let bitmap = geo.blocks() - 1;
    geo.bytes(bitmap - SUM_BLOCKS) + 8 * geo.whole_blocks(at)
}

/// Changes a byte on the medium, as a stray store would.
pub fn forge(fs: &Fs, at: u64) {
    let region = fs.region_to_damage();
    let mut byte = [0];
    region.read(at, &mut byte).unwrap();
    byte[0] ^= 0x10;
    drop(region.window().store(at, &byte).unwrap());
}

/// Whether a result is EIO for the wrong checksum of the block at `offset`.
pub fn is_wrong<T: std::fmt::Debug>(result: &pramfs::Result<T>, ino: Ino, offset: u64) -> bool {
    match result {
        Err(
            e @ Error::WrongSum {
                ino: i, offset: o, ..
            },
        ) => e.errno() == libc::EIO && (*i, *o) == (ino, offset),
        _ => false,
    }
}
