//! `fsck.pramfs` by its exit statuses and by what it says.

mod common;

use std::fs;
use std::path::Path;

use common::*;
use pramfs::pmem::RegionOptions;

fn fsck(args: &[&str]) -> Answer {
    run(FSCK, args)
}

fn s(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Flips bits of one byte of a region.
fn flip(region: &Path, at: usize, bits: u8) {
    let mut bytes = fs::read(region).unwrap();
    bytes[at] ^= bits;
    fs::write(region, bytes).unwrap();
}

#[test]
fn a_sound_file_system_is_status_0_and_untouched() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let before = fs::read(&region).unwrap();
    for args in [&["-n"][..], &["-n", "-f"], &["-n", "-v"]] {
        let args: Vec<_> = args.iter().copied().chain([s(&region)]).collect();
        let a = fsck(&args).ok();
        assert!(a.out.contains("clean"), "{a:?}");
    }
    let a = fsck(&["-n", "--json", s(&region)]).ok().json();
    assert_eq!((&a["sound"], &a["complete"]), (&true.into(), &true.into()));
    assert!(fs::read(&region).unwrap() == before);
}

#[test]
fn damage_is_named_and_left_with_n() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    flip(&region, 0x60, 1);
    let before = fs::read(&region).unwrap();
    let a = fsck(&["-n", s(&region)]);
    assert_eq!(a.status, 4, "{a:?}");
    assert!(a.out.contains("first superblock page is damaged"), "{a:?}");
    let a = fsck(&["-n", "--json", s(&region)]);
    assert_eq!(a.status, 4, "{a:?}");
    assert_eq!(a.json()["findings"][0]["code"], "superblock-damaged");
    assert!(fs::read(&region).unwrap() == before);
}

#[test]
fn what_cannot_be_checked_is_status_8_and_wrong_usage_16() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let a = fsck(&["-n", s(&dir.path().join("nothing"))]);
    assert_eq!(a.status, 8, "{a:?}");
    assert!(a.err.contains("nothing"), "{a:?}");
    let held = RegionOptions::new().open(&region).unwrap();
    let a = fsck(&["-n", s(&region)]);
    assert_eq!(a.status, 8, "{a:?}");
    assert!(a.err.contains("in use"), "{a:?}");
    drop(held);
    for wrong in [&[][..], &["--frobnicate", s(&region)], &[s(&region), "x"]] {
        assert_eq!(fsck(wrong).status, 16, "{wrong:?}");
    }
    assert!(fsck(&["-V"]).ok().out.starts_with("fsck.pramfs "));
    let help = fsck(&["--help"]).ok().out;
    assert!(
        help.contains("Exit status") && help.contains("-n, --no"),
        "{help}"
    );
}

#[test]
fn it_is_found_by_the_names_that_fsck_calls() {
    let dir = scratch();
    for name in ["fsck.pramfs", "fsck.fuse.pramfs"] {
        let link = dir.path().join(name);
        std::os::unix::fs::symlink(PRAMFS, &link).unwrap();
        let a = run(s(&link), ["-V"]).ok();
        assert!(a.out.starts_with("fsck.pramfs "), "{a:?}");
    }
}
