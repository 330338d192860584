//! `pramfs owner`: names the use and the owner of each block.

mod common;

use std::fs;
use std::path::Path;

use common::*;
use pramfs::pmem::RegionOptions;
use pramfs::{FileSystem, MountOptions};

fn s(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A region with a file of three blocks and two names, in a directory.
fn filled(dir: &Path) -> std::path::PathBuf {
    let region = made(dir, "16M");
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/file"), vec![7; 10_000]).unwrap();
    fs::hard_link(dir.join("tree/file"), dir.join("tree/second name")).unwrap();
    pramfs(["put", "-r", s(&region), s(&dir.join("tree")), "/"]).ok();
    region
}

fn place_of(region: &Path, path: &str) -> u64 {
    let extents = pramfs(["extents", "--json", s(region), path]).ok().json();
    extents[0]["region_offset"].as_u64().unwrap()
}

#[test]
fn block_of_a_file_is_shown_with_all_its_names() {
    let dir = scratch();
    let region = filled(dir.path());
    let at = place_of(&region, "/tree/file");
    let block = (at / 4096).to_string();
    let a = pramfs(["owner", s(&region), &block]).ok();
    assert!(
        a.out.contains("data, inode ") && a.out.contains("offset 0"),
        "{a:?}"
    );
    assert!(a.out.contains("/tree/file, /tree/second name"), "{a:?}");
    // The same by an offset in bytes, inside of the second block.
    let bytes = format!("{}B", at + 5000);
    let rows = pramfs(["owner", "--json", s(&region), &bytes]).ok().json();
    assert_eq!(rows[0]["is"], "data");
    assert_eq!(rows[0]["file_offset"], 4096);
    assert_eq!(rows[0]["paths"][1], "/tree/second name");
    // A range that leaves the file.
    let range = format!("{}-{}", at / 4096, at / 4096 + 2);
    let rows = pramfs(["owner", "--json", s(&region), &range]).ok().json();
    assert_eq!(
        (rows[0]["is"].as_str(), rows[0]["count"].as_u64()),
        (Some("data"), Some(3))
    );
}

#[test]
fn structures_and_free_blocks_are_named() {
    let dir = scratch();
    let region = filled(dir.path());
    let rows = pramfs(["owner", "--json", s(&region), "0-4095"])
        .ok()
        .json();
    let rows = rows.as_array().unwrap();
    for is in [
        "superblock",
        "superblock copy",
        "journal",
        "inode table",
        "block-group table",
        "inode-group table",
        "block bitmap",
        "inode bitmap",
        "orphan table",
        "directory entries",
        "data",
        "free",
    ] {
        assert!(rows.iter().any(|row| row["is"] == is), "{is}: {rows:?}");
    }
    let blocks: u64 = rows.iter().map(|row| row["count"].as_u64().unwrap()).sum();
    assert_eq!(blocks, 4096);
    let a = pramfs(["owner", s(&region), "0"]).ok();
    assert_eq!(a.out, "0: superblock\n");
}

#[test]
fn wrong_blocks_and_regions_in_use_are_refused() {
    let dir = scratch();
    let region = filled(dir.path());
    pramfs(["owner", s(&region), "4096"]).misused(&["past the end", "0 to 4095"]);
    pramfs(["owner", s(&region), "9-7"]).misused(&["ends before it begins"]);
    pramfs(["owner", s(&region), "x"]).misused(&["\"x\" is no block"]);
    pramfs(["owner", s(dir.path()), "0"]).refused(&["no server of root answers"]);
    let open = RegionOptions::new().open(&region).unwrap();
    let fs = FileSystem::mount(open, MountOptions::default()).unwrap();
    pramfs(["owner", s(&region), "0"]).refused(&["in use"]);
    fs.unmount().unwrap();
    let empty = dir.path().join("empty");
    fs::write(&empty, vec![0; 1 << 20]).unwrap();
    pramfs(["owner", s(&empty), "0"]).refused(&["no pramfs file system"]);
}
