//! `pramfs scrub` without a mount. Mounts are in `fuse-frontend/tests/mount/scrub.rs`.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::*;
use pramfs::pmem::RegionOptions;

/// A region with a file of 2 MiB.
fn filled(dir: &Path) -> PathBuf {
    let region = made(dir, "16M");
    let from = dir.join("file");
    fs::write(&from, vec![7; 2 << 20]).unwrap();
    let name = region.to_str().unwrap();
    pramfs(["put", name, from.to_str().unwrap(), "/file"]).ok();
    region
}

fn flip(region: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(region).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn scrub_of_sound_region_ends_with_nothing_found() {
    let dir = scratch();
    let region = filled(dir.path());
    let name = region.to_str().unwrap();
    let never = pramfs(["scrub", "--status", name]).ok();
    assert!(never.out.contains("has never been scrubbed"), "{never:?}");
    let info = pramfs(["info", name]).ok();
    assert!(info.out.contains("none finished"), "{info:?}");
    let done = pramfs(["scrub", name]).ok();
    assert!(done.out.contains("the scrub is finished"), "{done:?}");
    assert!(done.out.contains("nothing found"), "{done:?}");
    let json = pramfs(["scrub", "--json", name]).ok().json();
    assert_eq!(json["state"], "finished");
    assert_eq!(
        (&json["percent"], &json["findings"]),
        (&100.into(), &0.into())
    );
    assert!(json["bytes"].as_u64().unwrap() > 2 << 20, "{json}");
    assert_eq!(json["completed"], 2);
    assert!(json["kept"] == true && json["mounted"] == false, "{json}");
    let info = pramfs(["info", "--json", name]).ok().json();
    assert_eq!(
        (&info["scrubs"], &info["scrub_findings"]),
        (&2.into(), &0.into())
    );
    // Nothing to go on from: it begins anew.
    pramfs(["scrub", "--resume", "--limit", "1G", name]).ok();
    run(FSCK, ["-n", name]).ok();
}

#[test]
fn finding_is_told_kept_reported_by_fsck_and_cleared_by_repair() {
    let dir = scratch();
    let region = filled(dir.path());
    let name = region.to_str().unwrap();
    // In the copy of the superblock, what no mount changes or mends.
    let at = pramfs(["info", "--json", name]).ok().json()["superblock_copy"].clone();
    flip(&region, at.as_u64().unwrap() + 0xd0);
    let before = fs::read(&region).unwrap();
    let looked = pramfs(["scrub", "--read-only", name]);
    assert_eq!(looked.status, 4, "{looked:?}");
    assert!(
        looked.out.contains("found: the copy of the superblock"),
        "{looked:?}"
    );
    assert!(
        before == fs::read(&region).unwrap(),
        "--read-only has stored"
    );
    pramfs(["scrub", "--status", name]).ok();
    let found = pramfs(["scrub", name]);
    assert_eq!(found.status, 4, "{found:?}");
    assert!(found.out.contains("1 findings"), "{found:?}");
    assert!(found.out.contains("fsck.pramfs"), "{found:?}");
    let json = pramfs(["scrub", "--json", name]);
    assert_eq!(json.status, 4);
    let json = json.json();
    assert_eq!(
        (&json["findings"], &json["findings_kept"]),
        (&1.into(), &2.into())
    );
    assert_eq!(json["first_finding"]["kind"], "superblock-damaged");
    assert!(
        json["found"][0].as_str().unwrap().contains("checksum"),
        "{json}"
    );
    assert_eq!(pramfs(["scrub", "--status", name]).status, 4);
    let info = pramfs(["info", name]).ok();
    assert!(info.out.contains("superblock-damaged"), "{info:?}");
    let check = run(FSCK, ["-n", name]);
    assert!(
        check.out.contains("2 findings of scrubs are recorded"),
        "{check:?}"
    );
    let repaired = run(FSCK, ["-y", name]);
    assert_eq!(repaired.status, 1, "{repaired:?}");
    run(FSCK, ["-n", name]).ok();
    let status = pramfs(["scrub", "--status", name]).ok();
    assert!(status.out.contains("has never been scrubbed"), "{status:?}");
    pramfs(["scrub", name]).ok();
}

#[test]
fn impossible_scrub_is_refused() {
    let dir = scratch();
    let region = filled(dir.path());
    let name = region.to_str().unwrap();
    pramfs(["scrub", "--cancel", name]).refused(&["no server scrubs this region"]);
    pramfs(["scrub", "--background", name]).misused(&["for a live mount"]);
    assert_eq!(pramfs(["scrub", "--limit", "much", name]).status, 2);
    assert_eq!(pramfs(["scrub", "--status", "--resume", name]).status, 2);
    let dir_name = dir.path().to_str().unwrap();
    pramfs(["scrub", dir_name]).refused(&["not on a pramfs mount"]);
    let open = RegionOptions::new().open(&region).unwrap();
    pramfs(["scrub", name]).refused(&["in use"]);
    drop(open);
    fs::write(dir.path().join("zeros"), vec![0; 1 << 20]).unwrap();
    let zeros = dir.path().join("zeros");
    pramfs(["scrub", zeros.to_str().unwrap()]).refused(&["cannot mount"]);
}

/// A program that is killed leaves what it kept, and a later one goes on there.
#[test]
fn killed_scrub_is_resumed() {
    let dir = scratch();
    let region = filled(dir.path());
    let name = region.to_str().unwrap();
    let mut child = std::process::Command::new(PRAMFS)
        .args(["scrub", "--limit", "10K", name])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // In use by it, and begun.
    let begun = || {
        let info = pramfs(["info", "--in-use", "--json", name]);
        info.status == 0
            && fs::read(&region).unwrap()[0x700..0x900]
                .iter()
                .any(|b| *b != 0)
    };
    while !begun() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let status = pramfs(["scrub", "--status", name]).ok();
    assert!(status.out.contains("--resume goes on there"), "{status:?}");
    let done = pramfs(["scrub", "--resume", name]).ok();
    assert!(done.out.contains("the scrub is finished"), "{done:?}");
}
