//! `pramfs image` and what `pramfs restore` makes of it.
#![cfg(feature = "save")]

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use common::*;

fn s(path: &Path) -> &str {
    path.to_str().unwrap()
}

const SECRET: &[u8] = b"what nobody else may read";

fn filled(dir: &Path) -> PathBuf {
    let region = made(dir, "32M");
    let tree = dir.join("tree");
    fs::create_dir(&tree).unwrap();
    for i in 0..200 {
        fs::write(tree.join(format!("invoice {i}")), SECRET.repeat(300)).unwrap();
    }
    symlink("somewhere/secret", tree.join("link")).unwrap();
    symlink("x/".repeat(200), tree.join("long")).unwrap();
    pramfs(["put", "-r", s(&region), s(&tree), "/"]).ok();
    region
}

fn has(file: &Path, what: &[u8]) -> bool {
    fs::read(file)
        .unwrap()
        .windows(what.len())
        .any(|at| at == what)
}

/// What `fsck.pramfs -n` finds: the short names, with inodes and blocks.
fn findings(region: &Path) -> Vec<String> {
    let a = run(FSCK, ["-n", "--json", s(region)]);
    let report = a.json();
    let list = report["findings"].as_array().unwrap();
    list.iter()
        .map(|f| format!("{} {} {}", f["code"], f["inode"], f["block"]))
        .collect()
}

fn image_and_restore(region: &Path, dir: &Path, options: &[&str]) -> PathBuf {
    let (file, copy) = (dir.join("image"), dir.join("copy"));
    let args = ["image", s(region), s(&file)];
    let a = pramfs(args.iter().chain(options)).ok();
    assert!(a.out.contains("it has no file data"), "{a:?}");
    let a = pramfs(["restore", s(&file), s(&copy)]).ok();
    assert!(a.out.contains("its files have no data"), "{a:?}");
    fs::remove_file(file).unwrap();
    copy
}

#[test]
fn restored_image_is_sound_and_has_no_data() {
    let dir = scratch();
    let region = filled(dir.path());
    assert!(has(&region, SECRET));
    let before = fs::read(&region).unwrap();
    for options in [&[][..], &["--scramble"]] {
        let copy = image_and_restore(&region, dir.path(), options);
        assert!(!has(&copy, SECRET));
        assert_eq!(has(&copy, b"invoice"), options.is_empty());
        assert_eq!(has(&copy, b"secret"), options.is_empty());
        run(FSCK, ["-n", s(&copy)]).ok();
        let a = pramfs(["ls", "-R", s(&copy), "/"]);
        assert!(a.err.contains("have no data"), "{a:?}");
        // Nothing writes to it.
        pramfs(["rm", "-r", s(&copy), "/tree"]).refused(&["metadata_image"]);
        fs::remove_file(copy).unwrap();
    }
    assert!(fs::read(&region).unwrap() == before);
}

#[test]
fn damage_is_in_the_restored_image() {
    let dir = scratch();
    let region = filled(dir.path());
    let rows = pramfs(["owner", "--json", s(&region), "0-8191"])
        .ok()
        .json();
    let of = |is: &str| {
        let mut rows = rows.as_array().unwrap().iter();
        let row = rows.rfind(|row| row["is"] == is).unwrap();
        row["offset"].as_u64().unwrap()
    };
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(&region)
        .unwrap();
    // A leaf of the directory, the inode table, and the first superblock page.
    for at in [
        of("directory entries") + 200,
        of("inode table") + 18 * 256 + 20,
        0x60,
    ] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        let found = findings(&region);
        assert!(!found.is_empty());
        for options in [&[][..], &["--scramble"]] {
            let copy = image_and_restore(&region, dir.path(), options);
            assert_eq!(findings(&copy), found, "{options:?}");
            fs::remove_file(copy).unwrap();
        }
    }
}

#[test]
fn existing_file_and_full_disk_leave_no_image() {
    let dir = scratch();
    let region = filled(dir.path());
    let file = dir.path().join("image");
    fs::write(&file, "precious").unwrap();
    pramfs(["image", s(&region), s(&file)]).refused(&["exists"]);
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    // What a killed one has left is used again.
    let other = dir.path().join("other");
    fs::write(dir.path().join("other.part"), "left").unwrap();
    let report = pramfs(["image", "--json", s(&region), s(&other)])
        .ok()
        .json();
    assert_eq!(report["file_bytes"], fs::metadata(&other).unwrap().size());
    assert_eq!(
        (report["left_out"].as_u64(), report["complete"].as_bool()),
        (Some(0), Some(true))
    );
    assert!(!dir.path().join("other.part").exists());
    pramfs(["image", s(&region), "/dev/full"]).refused(&["exists"]);
    pramfs(["image", s(&region), "/missing/directory/image"]).refused(&["cannot write"]);
    let copy = dir.path().join("truncated");
    let bytes = fs::read(&other).unwrap();
    fs::write(&copy, &bytes[..bytes.len() - 1]).unwrap();
    pramfs(["restore", "--check", s(&copy)]).refused(&["cut off"]);
}
