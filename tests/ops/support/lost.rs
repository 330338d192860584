//! Files with lost ranges: damaged, repaired and checked.

use std::ops::Range;

use pramfs::Error;
use pramfs::inode::{Credentials, Fs, Ino};
use pramfs::pmem::Region;
use pramfs_fsck::{CheckOptions, Policy, RepairOptions, Report, check, repair};
use pramfs_medium::media::pointer::Ptr;
use pramfs_medium::media::{DiskInode, Geometry, probe_superblock};
use pramfs_tests::readable::copy_of;
use pramfs_tests::region::{fresh, inode_home, quiet};
use zerocopy::{FromBytes, IntoBytes};

pub const LIST: &[u8] = b"system.pramfs.lost";
pub const FL_LOST: u32 = 1 << 31;
pub const CX: Credentials<'_> = Credentials::new(0, 0);

/// Bytes that encode their offset in the file.
pub fn bytes(len: usize) -> Vec<u8> {
    let word = |i: usize| (i as u64 / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len).map(|i| word(i).to_le_bytes()[i % 8]).collect()
}

/// An image with a file of this length, `/dir/file`.
pub fn image_of(block: u32, len: usize) -> (Vec<u8>, Ino) {
    let (sim, fs) = fresh(16 << 20, block).unwrap();
    let dir = fs.mkdir(&CX, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let ino = fs.create(&CX, dir, b"file", 0o644).unwrap().ino;
    fs.write(&CX, ino, 0, &bytes(len)).unwrap();
    fs.close().unwrap();
    (sim.image(), ino)
}

/// The geometry that an image records.
pub fn geometry(image: &[u8]) -> Geometry {
    probe_superblock(&copy_of(image)).unwrap().geometry()
}

/// An inode of an image.
pub fn inode(image: &[u8], ino: Ino) -> DiskInode {
    let home = inode_home(image, ino);
    DiskInode::read_from_bytes(&image[home..home + 256]).unwrap()
}

/// Changes an inode of an image, with its check.
pub fn put_inode(image: &mut [u8], ino: Ino, f: impl FnOnce(&mut DiskInode)) {
    let (home, seed) = (inode_home(image, ino), geometry(image).seed);
    let mut d = inode(image, ino);
    f(&mut d);
    d.seal(seed, ino);
    image[home..home + 256].copy_from_slice(d.as_bytes());
}

/// Location of the pointer of a level that covers a file block.
pub fn slot_of(image: &[u8], ino: Ino, level: u32, index: u64) -> usize {
    let (geo, d) = (geometry(image), inode(image, ino));
    let (mut at, mut ptr) = (0, Ptr(d.root));
    for below in (level..u32::from(d.height)).rev() {
        let slot = index >> (geo.fan_log2 * below) & ((1 << geo.fan_log2) - 1);
        at = (geo.offset(ptr.block()).0 + slot * 8) as usize;
        ptr = Ptr(u64::from_le_bytes(image[at..at + 8].try_into().unwrap()));
    }
    at
}

/// Repairs a copy of an image.
pub fn repair_all(image: &[u8]) -> (Region, Report) {
    let region = copy_of(image);
    let report = repair(&region, &RepairOptions::new(Policy::Yes)).unwrap();
    assert!(report.is_sound(), "{report}");
    let again = check(&region, &CheckOptions::default());
    assert!(again.is_clean(), "{report}\nand again: {again}");
    (region, report)
}

/// Mounts a region.
pub fn open(region: Region) -> Fs {
    Fs::open(region, quiet()).unwrap()
}

/// Whether an operation has failed because it met a lost range; it must fail.
pub fn is_lost<T: std::fmt::Debug>(result: pramfs::Result<T>) -> bool {
    match result {
        Err(e @ Error::Lost { .. }) => e.errno() == libc::EIO,
        other => panic!("{other:?}"),
    }
}

/// The list of lost ranges that the attribute shows.
pub fn list(fs: &Fs, ino: Ino) -> Option<String> {
    let listed = fs.listxattr(ino).unwrap();
    let named = listed.split(|b| *b == 0).any(|name| name == LIST);
    match fs.getxattr(ino, LIST) {
        Ok(value) => {
            assert!(named);
            Some(String::from_utf8(value).unwrap())
        }
        Err(Error::NoAttribute) => {
            assert!(!named);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Asserts that a file has lost this range and no other.
pub fn is_only(fs: &Fs, ino: Ino, range: Range<u64>) {
    let lost = fs.lost_ranges(ino).unwrap();
    assert_eq!(lost, std::slice::from_ref(&range));
}

/// Checks an unmounted file system.
pub fn close_and_check(fs: Fs) -> Report {
    let report = pramfs_fsck::check_fs(fs, &CheckOptions::default())
        .unwrap()
        .1;
    assert!(report.is_clean(), "{report}");
    report
}

/// A line of pointers overwritten by random bytes, or zeros.
pub fn without_a_line(image: &[u8], ino: Ino, index: u64, noise: bool) -> Vec<u8> {
    let mut image = image.to_vec();
    let at = slot_of(&image, ino, 0, index) / 64 * 64;
    image[at..at + 64].fill(0);
    for word in image[at..at + 64].chunks_mut(8).filter(|_| noise) {
        word.copy_from_slice(&0x1234_5678_9abc_def1u64.to_le_bytes());
    }
    image
}
