//! Files of a mount: made, read, written and described.

use pramfs_medium::pmem::RegionAccess as _;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use pramfs::pmem::Region;
use pramfs_tests::syscalls::{Sys, errno};
use rustix::fs::FileType;

/// Size of a block.
pub const BLOCK: u64 = 4096;

/// Size of a large leaf of a file map, used where space is contiguous.
pub const LARGE: u64 = 2 << 20;

/// An empty file.
pub fn new(path: &Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .expect("a file")
}

/// The size, and the runs of equal bytes.
pub fn size_and_runs(file: &File) -> (u64, Vec<(u8, usize)>) {
    let size = file.metadata().expect("stat").len();
    let mut bytes = vec![0; size.min(8 << 20) as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    let runs = bytes.chunk_by(|a, b| a == b);
    (size, runs.map(|run| (run[0], run.len())).collect())
}

/// The kinds of objects that [`make`] knows.
pub const KINDS: [&str; 5] = ["none", "file", "link", "empty", "tree"];

/// Creates an object of this kind.
pub fn make(path: &Path, kind: &str) {
    match kind {
        "file" => std::fs::write(path, "x").expect("a file"),
        "link" => rustix::fs::symlink("nowhere", path).expect("a link"),
        "empty" => std::fs::create_dir(path).expect("a directory"),
        "tree" => std::fs::create_dir_all(path.join("in/it")).expect("directories"),
        _ => {}
    }
}

/// Type, link count and device number of a name.
pub fn seen(path: &Path) -> Sys<(FileType, u64, u64)> {
    errno(rustix::fs::lstat(path)).map(|s| {
        (
            FileType::from_raw_mode(s.st_mode),
            u64::from(s.st_nlink as u32),
            s.st_rdev,
        )
    })
}

/// Loads a word through a mapping.
pub fn load(map: &Region, at: u64) -> [u8; 8] {
    map.load_u64(at).unwrap().to_le_bytes()
}

/// Stores a word through a mapping.
pub fn store(map: &Region, at: u64, bytes: &[u8; 8]) {
    let pending = map.window().store(at, bytes).unwrap();
    let _ = map.window().fence(pending);
}

/// Reads a word.
pub fn read(file: &File, at: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes
}

/// A file of 64 KiB, opened to use the page cache.
pub fn cached(path: &Path) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap();
    file.set_len(1 << 16).unwrap();
    file
}

/// A file opened to bypass the page cache.
pub fn direct(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap()
}
