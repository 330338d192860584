//! Shared and private mappings: bytes past EOF, the effect of punch and truncate on
//! mapped pages, visibility and times of stores (xfstests 030 080 215 246 393 438 452 469
//! 567 729 758).

use pramfs_medium::pmem::RegionAccess as _;
use std::fs::File;
use std::os::unix::fs::FileExt;

use pramfs_tests::syscalls::{Sys, errno};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::support::mount::Reference::{Ext4, Tmpfs};
use crate::support::mount::{agree, agree_with, map_file};
use crate::support::times::{moved, tick, times};
use crate::support::transcript::Transcript;

const PAGES: usize = 4;
const LEN: usize = PAGES * 4096;

/// A mapping of the first pages of a file.
struct Map(*mut u8);

impl Map {
    fn new(file: &File, flags: MapFlags, prot: ProtFlags) -> Sys<Map> {
        let none = std::ptr::null_mut();
        // SAFETY: the kernel chooses the address.
        let at = errno(unsafe { mmap(none, LEN, prot, flags, file, 0) })?;
        Ok(Map(at.cast()))
    }

    fn shared(file: &File) -> Map {
        Map::new(file, MapFlags::SHARED, ProtFlags::READ | ProtFlags::WRITE).expect("mmap")
    }

    /// Loads a byte of a page inside the file.
    fn load(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= LEN);
        // SAFETY: the assertion keeps the address in the mapping. Bytes are read one by
        // one, since other threads change them.
        (at..at + len)
            .map(|at| unsafe { self.0.add(at).read_volatile() })
            .collect()
    }

    /// Like [`load`](Self::load).
    fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= LEN);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: the assertion keeps the address in the mapping.
            unsafe { self.0.add(at + i).write_volatile(*byte) };
        }
    }

    fn sync(&self) -> Sys {
        // SAFETY: the whole mapping.
        errno(unsafe { msync(self.0.cast(), LEN, MsyncFlags::SYNC) })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, and no reference to it exists.
        unsafe { munmap(self.0.cast(), LEN) }.expect("munmap");
    }
}

fn read(file: &File, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let n = file.read_at(&mut bytes, at).expect("read");
    bytes.truncate(n);
    bytes
}

fn work(dir: &std::path::Path, n: &mut Transcript) {
    let path = dir.join("f");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .expect("a file");
    file.write_all_at(&[b'A'; 5000], 0).expect("write");
    let map = Map::shared(&file);

    n.note("behind the end", map.load(4990, 20));
    map.store(5000, b"beyond");
    n.call("msync", map.sync());
    file.set_len(6000).expect("truncate");
    n.note("behind the old end", read(&file, 4990, 20));
    file.set_len(100).expect("truncate");
    file.set_len(LEN as u64).expect("truncate");
    n.note("cut and grown", (map.load(90, 20), map.load(4990, 20)));

    // Stores, writes, and holes below them.
    map.store(4096, b"stored");
    n.note("a store is read", read(&file, 4096, 6));
    file.write_all_at(b"written", 8192).expect("write");
    n.note("a write is loaded", map.load(8192, 7));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    n.call("punch", errno(fallocate(&file, punch, 4098, 5000)));
    n.note("punched", (map.load(4090, 16), map.load(8190, 12)));
    map.store(4100, b"into the hole");
    n.call("msync", map.sync());
    n.note("into the hole", read(&file, 4096, 20));

    // A private mapping keeps its own changes and shows the rest of the file.
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let private = Map::new(&file, MapFlags::PRIVATE, prot).expect("mmap");
    private.store(0, b"private");
    n.note("nobody else sees it", (read(&file, 0, 7), map.load(0, 7)));
    file.write_all_at(b"all see it", 3 * 4096).expect("write");
    n.note("a page not touched", private.load(3 * 4096, 10));

    // Through the unlinked file, and through another name.
    std::fs::rename(&path, dir.join("g")).expect("rename");
    map.store(0, b"by another name");
    n.note(
        "renamed",
        std::fs::read(dir.join("g")).expect("read")[..15].to_vec(),
    );
    std::fs::remove_file(dir.join("g")).expect("unlink");
    map.store(0, b"without a name!");
    n.call("msync", map.sync());
    n.note("unlinked", read(&file, 0, 15));
}

/// On tmpfs, bytes stored past EOF show when the file grows over them.
#[test]
fn shared_mapping_is_coherent_with_file() {
    agree("mmap", &[Ext4], work);
}

#[test]
fn shared_mapping_is_coherent_with_cache_writeback() {
    agree_with("mmap, cache=writeback", "cache=writeback", &[Ext4], work);
}

#[test]
fn shared_mapping_is_coherent_with_cache_none() {
    agree_with("mmap, cache=none", "cache=none", &[Ext4], work);
}

#[test]
fn mmap_checks_open_mode() {
    agree("rights to map", &[Tmpfs, Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, vec![1; LEN]).expect("a file");
        for open in [
            OFlags::RDONLY,
            OFlags::WRONLY,
            OFlags::RDWR,
            OFlags::RDWR | OFlags::APPEND,
            OFlags::RDWR | OFlags::DIRECT,
        ] {
            let fd = rustix::fs::open(&path, open | OFlags::CLOEXEC, rustix::fs::Mode::empty());
            let file = File::from(fd.expect("open"));
            for flags in [
                MapFlags::SHARED,
                MapFlags::PRIVATE,
                MapFlags::SHARED_VALIDATE,
            ] {
                for prot in [
                    ProtFlags::READ,
                    ProtFlags::WRITE,
                    ProtFlags::READ | ProtFlags::WRITE,
                    ProtFlags::READ | ProtFlags::EXEC,
                ] {
                    let done = Map::new(&file, flags, prot).map(drop);
                    n.call(format!("{open:?} {flags:?} {prot:?}"), done);
                }
            }
            // No file system here is DAX. (If the file is not open for reading either,
            // the order of the errors is not specified.)
            if open == OFlags::WRONLY {
                continue;
            }
            let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
            let done = Map::new(&file, flags, ProtFlags::READ).map(drop);
            n.call(format!("{open:?} MAP_SYNC"), done);
        }
        let dir = File::open(dir).expect("open");
        let done = Map::new(&dir, MapFlags::SHARED, ProtFlags::READ).map(drop);
        n.call("a directory", done);
    });
}

/// 080 215: mtime and ctime after a store to a mapping.
#[test]
fn mmap_store_sets_mtime_and_ctime() {
    agree("mmap and mtime", &[Ext4], |dir, n| {
        let path = dir.join("f");
        std::fs::write(&path, vec![1; 8192]).expect("a file");
        let map = map_file(&path);
        let before = times(&path);
        tick();
        let pending = map.window().store(0, b"changed!").expect("store");
        let _ = map.window().fence(pending);
        map.backend().sync_all().expect("fdatasync");
        let [_, m, c] = moved(before, times(&path));
        n.note("after a sync", (m, c));
        let before = times(&path);
        tick();
        let pending = map.window().store(4096, b"changed!").expect("store");
        let _ = map.window().fence(pending);
        drop(map);
        let file = std::fs::File::open(&path).expect("open");
        file.sync_all().expect("fsync");
        let [_, m, c] = moved(before, times(&path));
        n.note("after munmap and fsync", (m, c));
    });
}
