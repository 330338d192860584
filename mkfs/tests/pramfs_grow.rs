//! `pramfs grow` without a mount, and what `info` and `doctor` say of a region that could grow.
//! Mounts are in `fuse-frontend/tests/mount/grow.rs`.

mod common;

use std::fs;
use std::path::Path;

use common::*;
use pramfs::pmem::RegionOptions;

const MIB: u64 = 1 << 20;

fn grow(region: &Path, size: &str) -> Answer {
    let region = region.to_str().unwrap();
    let args = ["grow", region, size];
    pramfs(args.into_iter().filter(|arg| !arg.is_empty()))
}

fn bytes(region: &Path) -> u64 {
    let answer = pramfs(["info", "--json", region.to_str().unwrap()]).ok();
    answer.json()["bytes"].as_u64().unwrap()
}

fn checked(region: &Path) {
    run(FSCK, ["-n", region.to_str().unwrap()]).ok();
}

#[test]
fn grow_of_file_makes_file_and_file_system_larger() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let name = region.to_str().unwrap();
    fs::write(dir.path().join("file"), vec![7; 100_000]).unwrap();
    let from = dir.path().join("file");
    pramfs(["put", name, from.to_str().unwrap(), "/file"]).ok();
    let answer = grow(&region, "64M").ok();
    assert!(
        answer.out.contains("grown from 4 MiB to 64 MiB"),
        "{answer:?}"
    );
    assert_eq!(
        (bytes(&region), fs::metadata(&region).unwrap().len()),
        (64 * MIB, 64 * MIB)
    );
    checked(&region);
    let answer = grow(&region, "64M").ok();
    assert!(answer.out.contains("64 MiB already"), "{answer:?}");
    let cat = pramfs(["cat", name, "/file"]).ok();
    assert_eq!(cat.out.len(), 100_000);
    let answer = pramfs(["grow", "--json", name, "1T"]).ok().json();
    assert_eq!(answer["bytes_before"], 64 * MIB);
    assert_eq!(answer["bytes"], 1u64 << 40);
    assert_eq!(answer["mounted"], false);
    checked(&region);
}

/// A file that others made longer: everybody says so, and a grow without a size uses it.
#[test]
fn grow_without_size_uses_longer_file() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let name = region.to_str().unwrap();
    let file = fs::File::options().write(true).open(&region).unwrap();
    assert!(!pramfs(["info", name]).ok().out.contains("pramfs grow"));
    file.set_len(32 * MIB).unwrap();
    assert!(pramfs(["info", name]).ok().out.contains("pramfs grow"));
    assert_eq!(
        pramfs(["info", "--json", name]).ok().json()["can_grow"],
        true
    );
    let doctor = pramfs(["doctor", name]).ok();
    assert!(
        doctor.out.contains(&format!("pramfs grow {name}")),
        "{doctor:?}"
    );
    checked(&region);
    grow(&region, "").ok();
    assert_eq!(bytes(&region), 32 * MIB);
    assert!(!pramfs(["doctor", name]).ok().out.contains("pramfs grow"));
    checked(&region);
}

#[test]
fn impossible_grow_is_refused_and_changes_nothing() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    grow(&region, "1M").refused(&["cannot shrink"]);
    grow(&region, "4195000").refused(&["multiple of the block, 4096 bytes"]);
    grow(&region, "8192P").refused(&["the format ends at"]);
    grow(&region, "0").misused(&["leave it out"]);
    assert_eq!(grow(&region, "much").status, 2);
    grow(&dir.path().join("none"), "8M").refused(&["cannot find"]);
    grow(dir.path(), "8M").refused(&["not on a pramfs mount"]);
    let open = RegionOptions::new().open(&region).unwrap();
    grow(&region, "8M").refused(&["in use"]);
    drop(open);
    assert_eq!(
        (bytes(&region), fs::metadata(&region).unwrap().len()),
        (4 * MIB, 4 * MIB)
    );
    // No file system in it.
    let other = dir.path().join("other");
    fs::write(&other, vec![0; 1 << 20]).unwrap();
    grow(&other, "8M").refused(&["no pramfs superblock"]);
    assert_eq!(fs::metadata(&other).unwrap().len(), MIB);
}

/// A region that shrank behind our back is refused with both sizes and the way out.
#[test]
fn grow_of_truncated_region_is_refused_with_both_sizes() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let file = fs::File::options().write(true).open(&region).unwrap();
    file.set_len(2 * MIB).unwrap();
    let sizes = [(4 * MIB).to_string(), (2 * MIB).to_string()];
    grow(&region, "8M").refused(&[&sizes[0], &sizes[1], "truncate -s"]);
    assert_eq!(fs::metadata(&region).unwrap().len(), 2 * MIB);
}
