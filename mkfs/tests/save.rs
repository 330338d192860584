//! `pramfs save` and `pramfs restore`.
#![cfg(feature = "save")]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use pramfs::pmem::RegionOptions;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A region with one file, and its saved form.
fn saved(dir: &Path) -> (PathBuf, PathBuf) {
    let region = made(dir, "16M");
    let source = dir.join("source");
    fs::write(&source, vec![7; 100_000]).unwrap();
    pramfs(["put", text(&region), text(&source), "/file"]).ok();
    let file = dir.join("saved");
    pramfs(["save", text(&region), text(&file)]).ok();
    (region, file)
}

#[test]
fn save_and_restore_bring_files_back() {
    let dir = scratch();
    let (region, file) = saved(dir.path());
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    assert!(fs::metadata(&file).unwrap().len() < 1 << 20);
    let info = pramfs(["restore", "--check", "--json", text(&file)])
        .ok()
        .json();
    assert_eq!(info["region_bytes"], 16 << 20);
    assert_eq!(info["region"], serde_json::Value::Null);

    // Into a file that is made, sparse, and for its owner alone.
    let second = dir.path().join("second");
    let report = pramfs(["restore", "--json", text(&file), text(&second)])
        .ok()
        .json();
    assert_eq!(report["uuid"], info["uuid"]);
    let made = fs::metadata(&second).unwrap();
    assert_eq!((made.len(), made.mode() & 0o7777), (16 << 20, 0o600));
    assert!(made.blocks() * 512 < 8 << 20, "{}", made.blocks());
    let read = |region: &Path| pramfs(["cat", text(region), "/file"]).ok().out;
    assert!(read(&second) == read(&region) && read(&second).len() == 100_000);
    run(FSCK, ["-n", text(&second)]).ok();
}

#[test]
fn save_onto_existing_file_takes_force() {
    let dir = scratch();
    let (region, file) = saved(dir.path());
    let before = fs::read(&file).unwrap();
    pramfs(["save", text(&region), text(&file)]).refused(&["exists", "-f"]);
    assert!(fs::read(&file).unwrap() == before);
    pramfs(["save", "-f", "--level", "19", text(&region), text(&file)]).ok();
    pramfs(["restore", "--check", text(&file)]).ok();
    assert_eq!(
        pramfs(["save", "--level", "99", text(&region), "x"]).status,
        2
    );
    // Nothing else is left in the directory.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[test]
fn save_of_another_file_system_is_not_replaced() {
    let dir = scratch();
    let (region, file) = saved(dir.path());
    let before = fs::read(&file).unwrap();
    let other = dir.path().join("other");
    mkfs([text(&other), "16M"]).ok();
    let save = |more: &[&str]| {
        let args = ["save", text(&other), text(&file)].into_iter();
        pramfs(args.chain(more.iter().copied()))
    };
    save(&["-f"]).refused(&["is the save of the file system", "--other"]);
    // A header that cannot be read may be that of a newer version.
    let mut newer = before.clone();
    newer[8] = 2;
    fs::write(&file, &newer).unwrap();
    save(&["-f"]).refused(&["--other"]);
    assert!(fs::read(&file).unwrap() == newer);
    fs::write(&file, &before).unwrap();
    save(&["-f", "--other", "--keep-old"]).ok();
    assert!(fs::read(dir.path().join("saved.old")).unwrap() == before);
    assert!(fs::read(&file).unwrap() != before);
    // The kept file is replaced by the next one.
    let second = fs::read(&file).unwrap();
    for _ in 0..2 {
        save(&["-f", "--keep-old"]).ok();
        assert!(fs::read(dir.path().join("saved.old")).unwrap() == second);
    }
    assert!(!dir.path().join("saved.old.part").exists());
    pramfs(["restore", "--check", text(&file)]).ok();
    run(FSCK, ["-n", text(&region)]).ok();
}

#[test]
fn save_onto_other_objects_is_refused() {
    let dir = scratch();
    let (region, file) = saved(dir.path());
    let before = fs::read(&region).unwrap();
    pramfs(["save", "-f", text(&region), text(&region)]).refused(&["the region itself"]);
    assert!(fs::read(&region).unwrap() == before);
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for other in [&link, Path::new("/dev/null"), dir.path()] {
        pramfs(["save", "-f", text(&region), text(other)]).refused(&["not a regular file"]);
    }
    assert!(link.is_symlink());
}

/// A save that was killed leaves a file that the next one uses again.
#[test]
fn save_after_killed_save_leaves_one_file() {
    let dir = scratch();
    let (region, _) = saved(dir.path());
    let (file, part) = (dir.path().join("new"), dir.path().join("new.part"));
    fs::write(&part, vec![1; 1 << 20]).unwrap();
    // Of a save that still runs.
    let running = fs::File::open(&part).unwrap();
    rustix::fs::flock(&running, rustix::fs::FlockOperation::LockExclusive).unwrap();
    pramfs(["save", text(&region), text(&file)]).refused(&["another process"]);
    assert!(!file.exists() && part.exists());
    // A child that is being started has a copy of the descriptor.
    rustix::fs::flock(&running, rustix::fs::FlockOperation::Unlock).unwrap();
    drop(running);
    pramfs(["save", text(&region), text(&file)]).ok();
    assert!(!part.exists());
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    pramfs(["restore", "--check", text(&file)]).ok();
    std::os::unix::fs::symlink(&region, &part).unwrap();
    pramfs(["save", "-f", text(&region), text(&file)]).refused(&["cannot write"]);
}

#[test]
fn failed_restore_into_empty_file_leaves_it_empty() {
    if !root_or_skip("a file system that is full") {
        return;
    }
    let dir = scratch();
    let region = made(dir.path(), "16M");
    let source = dir.path().join("source");
    fs::write(&source, vec![7; 6 << 20]).unwrap();
    pramfs(["put", text(&region), text(&source), "/file"]).ok();
    let file = dir.path().join("saved");
    pramfs(["save", text(&region), text(&file)]).ok();
    let small = Small::mounted(dir.path().join("small"), "3M");
    let second = small.0.join("region");
    fs::write(&second, "").unwrap();
    pramfs(["restore", "-f", text(&file), text(&second)]).refused(&["not restored"]);
    assert_eq!(fs::metadata(&second).unwrap().len(), 0);
}

#[test]
fn save_and_restore_of_region_in_use_are_refused() {
    let dir = scratch();
    let (region, file) = saved(dir.path());
    let open = RegionOptions::new().open(&region).unwrap();
    let other = dir.path().join("other");
    pramfs(["save", text(&region), text(&other)]).refused(&["in use", "A program has it open"]);
    assert!(!other.exists());
    pramfs(["restore", "-f", text(&file), text(&region)]).refused(&["in use"]);
    drop(open);
    pramfs(["restore", text(&file), text(&region)]).refused(&["pramfs file system", "-f"]);
    pramfs(["restore", "-f", text(&file), text(&region)]).ok();
}

#[test]
fn restore_of_damaged_file_changes_nothing() {
    let dir = scratch();
    let (_, file) = saved(dir.path());
    let target = dir.path().join("target");
    mkfs([text(&target), "16M"]).ok();
    let before = fs::read(&target).unwrap();
    let whole = fs::read(&file).unwrap();
    for damage in [
        whole[..whole.len() - 1].to_vec(),
        whole[..whole.len() / 2].to_vec(),
        Vec::new(),
        vec![0; 4096],
        {
            let mut altered = whole.clone();
            altered[whole.len() / 2] ^= 1;
            altered
        },
    ] {
        fs::write(&file, damage).unwrap();
        for args in [
            &["restore", "-f", text(&file), text(&target)][..],
            &["restore", "--check", text(&file)],
        ] {
            pramfs(args).refused(&["nothing was changed"]);
        }
        assert!(fs::read(&target).unwrap() == before);
        let missing = dir.path().join("missing");
        pramfs(["restore", text(&file), text(&missing)]).refused(&[]);
        assert!(!missing.exists());
    }
}

#[test]
fn restore_into_smaller_region_is_refused() {
    let dir = scratch();
    let (_, file) = saved(dir.path());
    let target = dir.path().join("target");
    mkfs([text(&target), "8M"]).ok();
    let before = fs::read(&target).unwrap();
    pramfs(["restore", "-f", text(&file), text(&target)]).refused(&["8 MiB", "16 MiB"]);
    assert!(fs::read(&target).unwrap() == before);
    for wrong in [
        &["restore", text(&file)][..],
        &["restore", "--check", text(&file), "x"],
    ] {
        assert_eq!(pramfs(wrong).status, 2, "{wrong:?}");
    }
}

/// A tmpfs of a size, unmounted at the end.
struct Small(PathBuf);

impl Small {
    fn mounted(at: PathBuf, size: &str) -> Small {
        fs::create_dir(&at).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&at)
            .status();
        assert!(mount.unwrap().success());
        Small(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        assert!(
            Command::new("umount")
                .arg(&self.0)
                .status()
                .unwrap()
                .success()
        );
    }
}

#[test]
fn full_disk_leaves_neither_file_nor_region() {
    if !root_or_skip("a file system that is full") {
        return;
    }
    let dir = scratch();
    let region = made(dir.path(), "16M");
    let source = dir.path().join("source");
    // Cannot be compressed.
    let mut random = 1u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as u8
    })
    .take(6 << 20)
    .collect();
    fs::write(&source, bytes).unwrap();
    pramfs(["put", text(&region), text(&source), "/file"]).ok();
    let small = Small::mounted(dir.path().join("small"), "3M");
    let file = small.0.join("saved");
    pramfs(["save", text(&region), text(&file)]).refused(&["cannot write", "No space"]);
    assert_eq!(fs::read_dir(&small.0).unwrap().count(), 0);

    let file = dir.path().join("saved");
    pramfs(["save", text(&region), text(&file)]).ok();
    let second = small.0.join("region");
    pramfs(["restore", text(&file), text(&second)]).refused(&["not restored"]);
    assert!(!second.exists());
}
