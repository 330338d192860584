//! File contents in single cases: the largest offset, a full region, huge leaves. Also the
//! helpers of the other tests of file contents, which run on a region that was full of other
//! bytes before.

use crate::credentials::Credentials;
use crate::fs::Fs;
use crate::fs::options::MountOptions;
use pramfs_medium::error::Error;
use pramfs_medium::format::{FormatOptions, format};
use pramfs_medium::journal::set_thread_lane;
use pramfs_medium::map::{self, Node};
use pramfs_medium::pmem::RegionAccess as _;
use pramfs_medium::pmem::{HeapBackend, PmemBackend, Region};
use pramfs_medium::types::{Fallocate, Ino, SeekWhence, SetAttr};

/// The former content of the region. No read may return it.
pub(crate) const STALE: u8 = 0xd7;

/// Formats a region that is full of `STALE` bytes, and mounts it.
pub(crate) fn mount(backend: Box<dyn PmemBackend>, block_size: u32) -> Fs {
    mount_with(backend, block_size, &[])
}

/// As [`mount`], with features.
pub(crate) fn mount_with(backend: Box<dyn PmemBackend>, block_size: u32, features: &[&str]) -> Fs {
    let region = Region::new("test", backend);
    for at in (0..region.len()).step_by(1 << 20) {
        let n = (region.len() - at).min(1 << 20) as usize;
        region
            .window()
            .store_unflushed(at, &vec![STALE; n])
            .unwrap();
    }
    let options = FormatOptions {
        block_size,
        uuid: Some([9; 16]),
        hash_seed: Some([2; 16]),
        features: features
            .iter()
            .map(|name| (name.to_string(), true))
            .collect(),
        ..FormatOptions::default()
    };
    format(&region, &options).unwrap();
    set_thread_lane(0);
    Fs::open(
        region,
        MountOptions {
            background: false,
            ..MountOptions::default()
        },
    )
    .unwrap()
}

pub(crate) fn new_file(fs: &Fs, name: &[u8]) -> Ino {
    fs.create(&Credentials::ROOT, Ino::ROOT, name, 0o644)
        .unwrap()
        .ino
}

pub(crate) fn truncate(fs: &Fs, ino: Ino, size: u64) -> crate::Result<()> {
    fs.setattr(
        &Credentials::ROOT,
        ino,
        &SetAttr {
            size: Some(size),
            ..SetAttr::default()
        },
    )
    .map(|_| ())
}

/// Checks that the inode counts the blocks of its map.
pub(crate) fn check_blocks(fs: &Fs, ino: Ino) {
    let inode = fs.iget(ino).unwrap();
    let state = inode.state.read();
    let mut owned = 0;
    map::visit(&fs.vol, &state.map(), &mut |node| {
        match node {
            Node::Table { .. } => owned += 1,
            Node::Leaf { count, .. } => owned += count,
            Node::Damaged { error, .. } => panic!("{error}"),
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(owned, state.disk.blocks);
}

pub(crate) struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn write_at_maximum_offset_is_short_or_fails() {
    let fs = mount(HeapBackend::boxed(4 << 20), 4096);
    let ino = new_file(&fs, b"file");
    let max = i64::MAX as u64;
    assert!(matches!(
        fs.write(&Credentials::ROOT, ino, max, b"x"),
        Err(Error::TooLarge(_))
    ));
    assert!(matches!(
        fs.write(&Credentials::ROOT, ino, u64::MAX, b"x"),
        Err(Error::TooLarge(_))
    ));
    assert_eq!(
        fs.write(&Credentials::ROOT, ino, max - 2, b"xyz").unwrap(),
        2
    );
    assert_eq!(fs.getattr(ino).unwrap().size, max);
    assert!(matches!(
        fs.append(&Credentials::ROOT, ino, b"x"),
        Err(Error::TooLarge(_))
    ));
    let mut two = [0; 9];
    assert_eq!(fs.read(ino, max - 2, &mut two).unwrap(), 2);
    assert_eq!(&two[..2], b"xy");
    assert_eq!(fs.seek(ino, 0, SeekWhence::Data).unwrap(), max & !4095);
    assert!(matches!(
        truncate(&fs, ino, max + 1),
        Err(Error::TooLarge(_))
    ));
    let all = Fallocate::Allocate { keep_size: false };
    assert!(matches!(
        fs.fallocate(&Credentials::ROOT, ino, all, max, 1),
        Err(Error::TooLarge(_))
    ));
    assert!(matches!(
        fs.fallocate(&Credentials::ROOT, ino, all, 1, u64::MAX),
        Err(Error::TooLarge(_))
    ));
    assert!(matches!(
        fs.fallocate(&Credentials::ROOT, ino, all, 1, 0),
        Err(Error::Invalid(_))
    ));
    truncate(&fs, ino, 0).unwrap();
    check_blocks(&fs, ino);
    assert_eq!(fs.getattr(ino).unwrap().blocks, 0);
}

#[test]
fn write_in_full_region_is_short_then_enospc() {
    let fs = mount(HeapBackend::boxed(2 << 20), 4096);
    let ino = new_file(&fs, b"file");
    let big = vec![1; 4 << 20];
    let n = fs.write(&Credentials::ROOT, ino, 0, &big).unwrap();
    assert!(n > 1 << 20 && n < 2 << 20);
    assert_eq!(fs.getattr(ino).unwrap().size, n as u64);
    assert!(matches!(
        fs.write(&Credentials::ROOT, ino, n as u64 + 4096, b"x"),
        Err(Error::NoSpace(_))
    ));
    assert!(matches!(
        fs.append(&Credentials::ROOT, ino, &big),
        Err(Error::NoSpace(_))
    ));
    assert_eq!(fs.getattr(ino).unwrap().size, n as u64);
    let all = Fallocate::Allocate { keep_size: true };
    assert!(matches!(
        fs.fallocate(&Credentials::ROOT, ino, all, 0, 1 << 30),
        Err(Error::NoSpace(_))
    ));
    check_blocks(&fs, ino);
    // A full region can be emptied and filled again.
    truncate(&fs, ino, 5000).unwrap();
    assert_eq!(
        fs.write(&Credentials::ROOT, ino, 0, &big[..1 << 20])
            .unwrap(),
        1 << 20
    );
    fs.unlink(Ino::ROOT, b"file").unwrap();
}

#[test]
fn large_aligned_file_uses_large_leaves() {
    let fs = mount(HeapBackend::boxed(32 << 20), 4096);
    let ino = new_file(&fs, b"file");
    for _ in 0..4 {
        fs.append(&Credentials::ROOT, ino, &vec![5; 1 << 20])
            .unwrap();
    }
    // Two leaves and one pointer block above them.
    assert_eq!(fs.getattr(ino).unwrap().blocks, 1025 * 8);
    let list = fs.file_extents(ino, 0, 4 << 20).unwrap();
    assert!(
        list.iter()
            .all(|e| e.region_offset.unwrap() % (2 << 20) == 0 && e.len >= 2 << 20)
    );
    let other = new_file(&fs, b"other");
    fs.fallocate(
        &Credentials::ROOT,
        other,
        Fallocate::Allocate { keep_size: false },
        4096,
        6 << 20,
    )
    .unwrap();
    let list = fs.file_extents(other, 0, 8 << 20).unwrap();
    assert!(
        list.iter()
            .any(|e| e.file_offset == 2 << 20 && e.region_offset.unwrap() % (2 << 20) == 0)
    );
    fs.fill(other, 0, 6 << 20).unwrap();
    let list = fs.file_extents(other, 0, 8 << 20).unwrap();
    assert!(list.iter().all(|e| e.region_offset.is_some()));
    let mut bytes = vec![1; 6 << 20];
    fs.read(other, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|b| *b == 0));
}
