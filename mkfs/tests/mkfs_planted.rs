//! What somebody else has put where a region is to be made: `mkfs.pramfs` does
//! not take it for nothing, and what it makes is its caller's alone.
//!
//! Run as root, the files belong to another user; otherwise they are the
//! caller's own, and others may write them.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use common::*;
use pramfs::pmem::{PmemError, RegionOptions};
use pramfs_medium::pmem::RegionAccess;

const MALLORY: u32 = 4242;

fn s(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A directory in which everybody makes names, as /dev/shm is.
fn for_everybody() -> tempfile::TempDir {
    let dir = scratch();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    dir
}

fn planted(dir: &Path, name: &str, len: u64, owner: u32, mode: u32) -> PathBuf {
    let path = dir.join(name);
    fs::File::create(&path).unwrap().set_len(len).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    chown(&path, Some(owner), None).unwrap();
    path
}

fn untouched(path: &Path, len: u64) {
    let bytes = fs::read(path).unwrap();
    assert_eq!(bytes.len() as u64, len);
    assert!(bytes.iter().all(|byte| *byte == 0), "it was written");
}

#[test]
fn mkfs_of_other_users_file_fails() {
    if !root_or_skip("mkfs of another user's file") {
        return;
    }
    let dir = for_everybody();
    for len in [0, 1 << 20, 2 << 20] {
        let path = planted(dir.path(), "region", len, MALLORY, 0o600);
        let a = mkfs([s(&path), "1M"]).refused(&["belongs to user 4242", "-f"]);
        assert!(!a.out.contains("created"), "{a:?}");
        untouched(&path, len);
        let a = mkfs(["--json", s(&path), "1M"]).refused(&[]).json();
        assert_eq!(a["error"]["reason"], "others-may-write");
        // Also where nothing is going to be done.
        mkfs(["-n", s(&path), "1M"]).refused(&["belongs to user 4242"]);
        fs::remove_file(&path).unwrap();
    }
    // Told to, it does, and says what that means.
    let path = planted(dir.path(), "region", 0, MALLORY, 0o600);
    let a = mkfs(["-f", s(&path), "1M"]).ok();
    assert!(a.err.contains("belongs to user 4242"), "{a:?}");
}

#[test]
fn mkfs_of_file_writable_by_others_fails() {
    let dir = for_everybody();
    let me = rustix::process::geteuid().as_raw();
    for (mode, says) in [
        (0o660, "its group"),
        (0o602, "everybody"),
        (0o666, "everybody"),
    ] {
        for len in [0, 1 << 20] {
            let path = planted(dir.path(), "region", len, me, mode);
            mkfs([s(&path), "1M"]).refused(&[says, "may write", "-f"]);
            untouched(&path, len);
            fs::remove_file(&path).unwrap();
        }
    }
    // Others may read it: that alone is the owner's business.
    let path = planted(dir.path(), "region", 0, me, 0o644);
    mkfs([s(&path), "1M"]).ok();
}

/// The group bits of a file with an ACL are its mask.
#[test]
fn mkfs_of_file_writable_by_acl_fails() {
    let dir = for_everybody();
    let me = rustix::process::geteuid().as_raw();
    let path = planted(dir.path(), "region", 0, me, 0o600);
    // user::rw-, user:4242:rw-, group::---, mask::rw-, other::---
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [
        (0x01u16, 6u16, u32::MAX),
        (0x02, 6, MALLORY),
        (0x04, 0, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, 0, u32::MAX),
    ] {
        acl.extend(tag.to_le_bytes());
        acl.extend(perm.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::setxattr(&path, "system.posix_acl_access", &acl, flags) {
        Err(rustix::io::Errno::OPNOTSUPP) => return skipped("no ACLs there"),
        set => set.unwrap(),
    }
    mkfs([s(&path), "1M"]).refused(&["by an ACL", "-f"]);
    untouched(&path, 0);
}

#[test]
fn mkfs_through_other_users_symlink_fails() {
    if !root_or_skip("mkfs by way of another user's link") {
        return;
    }
    let dir = for_everybody();
    let mine = scratch();
    // A file of root's own that is empty, for a reason.
    let target = planted(mine.path(), "nologin", 0, 0, 0o600);
    let link = dir.path().join("region");
    symlink(&target, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(MALLORY), None).unwrap();
    // Where the kernel protects such links it says so first.
    let a = mkfs([s(&link), "1M"]).refused(&["region"]);
    assert!(
        a.err.contains("symbolic link that belongs to user 4242") || a.err.contains("ermission"),
        "{a:?}"
    );
    untouched(&target, 0);
    // One's own link is followed.
    let link = mine.path().join("link");
    symlink("nologin", &link).unwrap();
    mkfs([s(&link), "1M"]).ok();
    assert_eq!(fs::metadata(&target).unwrap().len(), 1 << 20);
}

/// The link is made by another user, in the place of a directory.
#[test]
fn mkfs_through_other_users_directory_link_fails() {
    if !root_or_skip("mkfs by way of another user's link to a directory") {
        return;
    }
    let (open, private) = (for_everybody(), scratch());
    fs::set_permissions(private.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let pool = open.path().join("pool");
    let planted_link = std::process::Command::new("ln")
        .args(["-s", s(private.path()), s(&pool)])
        .uid(MALLORY)
        .gid(MALLORY)
        .status()
        .unwrap();
    assert!(planted_link.success());
    let says = ["pool is a symbolic link that belongs to user 4242", "-f"];
    // What is missing would be made where only root makes names.
    mkfs([s(&pool.join("new")), "1M"]).refused(&says);
    let a = mkfs(["--json", s(&pool.join("new")), "1M"])
        .refused(&[])
        .json();
    assert_eq!(a["error"]["reason"], "others-may-write");
    assert!(!private.path().join("new").exists());
    // What is there, however it is to be used, is root's own.
    for len in [0, 1 << 20, 2 << 20] {
        let file = planted(private.path(), "file", len, 0, 0o600);
        mkfs([s(&pool.join("file")), "1M"]).refused(&says);
        untouched(&file, len);
    }
    // By way of a link of root's own it is no better.
    let link = private.path().join("link");
    symlink(pool.join("file"), &link).unwrap();
    mkfs([s(&link), "1M"]).refused(&says);
    untouched(&private.path().join("file"), 2 << 20);
    // Root's own link to a directory is followed, whoever has the directory.
    let own = open.path().join("own");
    symlink(private.path(), &own).unwrap();
    mkfs([s(&own.join("new")), "1M"]).ok();
    assert_eq!(
        fs::metadata(private.path().join("new")).unwrap().len(),
        1 << 20
    );
}

#[test]
fn mkfs_through_dangling_symlink_fails() {
    let dir = scratch();
    let link = dir.path().join("link");
    symlink("missing", &link).unwrap();
    mkfs([s(&link), "1M"]).refused(&["dangling symbolic link"]);
    assert!(!dir.path().join("missing").exists());
}

/// Whatever the umask and the directory's default ACL say.
#[test]
fn new_region_has_mode_0600() {
    for umask in ["000", "022", "777"] {
        let dir = scratch();
        let path = dir.path().join("region");
        let line = format!("umask {umask}; exec {MKFS} {} 1M", s(&path));
        run("sh", ["-c", &line]).ok();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.mode() & 0o7777, 0o600, "umask {umask}");
        assert_eq!(meta.uid(), rustix::process::geteuid().as_raw());
    }
}

/// What the library is told to create may be there as well, for a reason.
#[test]
fn library_create_of_file_writable_by_others_fails() {
    let dir = for_everybody();
    let me = rustix::process::geteuid().as_raw();
    let path = planted(dir.path(), "region", 0, me, 0o666);
    let made = RegionOptions::new().create(&path, 1 << 20);
    assert!(
        matches!(
            made,
            Err(PmemError::Unusable {
                errno: libc::EPERM,
                ..
            })
        ),
        "{made:?}"
    );
    untouched(&path, 0);
    let made = RegionOptions::new()
        .whoever_owns(true)
        .create(&path, 1 << 20);
    assert!(made.unwrap().ownership().unwrap().objection(me).is_some());
}

#[test]
fn create_new_of_existing_object_fails() {
    let dir = scratch();
    let me = rustix::process::geteuid().as_raw();
    let path = planted(dir.path(), "region", 0, me, 0o600);
    let made = RegionOptions::new().create_new(&path, 1 << 20);
    assert!(
        matches!(
            made,
            Err(PmemError::Unusable {
                errno: libc::EEXIST,
                ..
            })
        ),
        "{made:?}"
    );
    untouched(&path, 0);
    symlink("missing", dir.path().join("link")).unwrap();
    assert!(
        RegionOptions::new()
            .create_new(dir.path().join("link"), 1 << 20)
            .is_err()
    );
    assert!(!dir.path().join("missing").exists());
}
