//! Visibility of writes between mappings and other access paths: the coherence table in
//! `docs/semantics.md`, on a real mount.

use std::os::unix::fs::FileExt;

use crate::support::file::{cached, direct, load, read, store};
use crate::support::mount::{map_file, mounted};

#[test]
fn mmap_and_cached_io_are_coherent() {
    let Some((_one, mount)) = mounted("mmap and cached I/O", "") else {
        return;
    };
    let path = mount.at("f");
    let (file, map) = (cached(&path), map_file(&path));
    for round in 0..20u64 {
        let (one, two) = ((round * 2).to_le_bytes(), (round * 2 + 1).to_le_bytes());
        store(&map, 4096, &one);
        assert_eq!(read(&file, 4096), one);
        file.write_all_at(&two, 4096).unwrap();
        assert_eq!(load(&map, 4096), two);
    }
}

#[test]
fn mmap_and_direct_io_are_coherent() {
    let Some((_one, mount)) = mounted("mmap and O_DIRECT", "") else {
        return;
    };
    let path = mount.at("f");
    let (_file, map) = (cached(&path), map_file(&path));
    let direct = direct(&path);
    for round in 0..20u64 {
        store(&map, 0, &(round * 2).to_le_bytes());
        assert_eq!(read(&direct, 0), (round * 2).to_le_bytes());
        direct
            .write_all_at(&(round * 2 + 1).to_le_bytes(), 0)
            .unwrap();
        assert_eq!(load(&map, 0), (round * 2 + 1).to_le_bytes());
    }
}

/// cache=none: every descriptor is direct, and mmap still works.
#[test]
fn mmap_with_cache_none_is_coherent() {
    let Some((_one, mount)) = mounted("mmap with cache=none", "cache=none") else {
        return;
    };
    let path = mount.at("f");
    let (file, map) = (cached(&path), map_file(&path));
    for round in 0..20u64 {
        store(&map, 8192, &(round * 2).to_le_bytes());
        assert_eq!(read(&file, 8192), (round * 2).to_le_bytes());
        file.write_all_at(&(round * 2 + 1).to_le_bytes(), 8192)
            .unwrap();
        assert_eq!(load(&map, 8192), (round * 2 + 1).to_le_bytes());
    }
}
