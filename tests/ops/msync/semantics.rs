//! What msync promises, and the write-back of the pages of a mapping.

use pramfs_medium::pmem::RegionAccess as _;
use std::fs::File;
use std::os::unix::fs::FileExt;

use pramfs::inode::Credentials;
use pramfs_tests::region::fresh;

use crate::support::file::{cached, read, store};
use crate::support::library::{MIB, contents, errno, file, fill};
use crate::support::mount::{map_file, mounted};

/// Write-back of the pages of a mapping: a short count would be treated as complete.
#[test]
fn write_back_is_whole_or_returns_first_error() {
    for block_size in [512, 4096] {
        let (_sim, fs) = fresh(2 * MIB, block_size).unwrap();
        let block = u64::from(block_size);
        let ino = file(&fs, "f");
        // Blocks, a hole of 16 blocks, blocks.
        fs.append(&Credentials::ROOT, ino, &vec![1; 4 * block_size as usize])
            .unwrap();
        fs.write(
            &Credentials::ROOT,
            ino,
            20 * block,
            &vec![1; 4 * block_size as usize],
        )
        .unwrap();
        fill(&fs);
        let bytes = vec![2; 24 * block_size as usize];
        assert_eq!(errno(fs.write_back(ino, 0, &bytes)), libc::ENOSPC);
        let stored = contents(&fs, ino);
        let at = |block: usize| stored[block * block_size as usize];
        assert!((0..4).all(|n| at(n) == 2), "in front of the hole");
        assert!((20..24).all(|n| at(n) == 2), "behind it");
        assert_eq!(at(19), 0, "the region was full");
        // If no block has to be allocated, the write is complete.
        fs.write_back(ino, 0, &bytes[..4 * block_size as usize])
            .unwrap();
    }
    let (_sim, fs) = fresh(2 * MIB, 4096).unwrap();
    let ino = file(&fs, "f");
    let last = i64::MAX as u64 - 10;
    assert_eq!(errno(fs.write_back(ino, last, &[3; 20])), libc::EFBIG);
    let mut stored = [0; 10];
    assert_eq!(fs.read(ino, last, &mut stored).unwrap(), 10);
    assert_eq!(stored, [3; 10], "up to the largest offset");
}

/// A store through mmap stays in the page cache until msync, fsync or munmap. A write is
/// on the medium when it returns.
#[test]
fn mmap_store_survives_kill_after_msync() {
    let Some((_one, mount)) = mounted("msync", "") else {
        return;
    };
    let path = mount.at("f");
    let (file, map) = (cached(&path), map_file(&path));
    store(&map, 4096, b"synced..");
    map.sync_all().unwrap();
    file.write_all_at(b"written.", 8192).unwrap();
    mount.crash();
    drop((file, map));
    mount.mount("");
    let file = File::open(&path).unwrap();
    assert_eq!(
        (&read(&file, 4096), &read(&file, 8192)),
        (b"synced..", b"written.")
    );
}
