//! `fsck.pramfs` by its exit statuses and by what it says.

mod common;

use std::fs;
use std::path::Path;

use common::*;
use pramfs::pmem::RegionOptions;
use pramfs::{
    MountOptions, XattrMode,
    inode::{Credentials, Fs, Ino},
};

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
fn fsck_of_clean_image_exits_0_without_change() {
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
fn n_names_damage_without_repair() {
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
fn unusable_region_exits_8_and_wrong_usage_16() {
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
    let r = s(&region);
    for wrong in [
        &[][..],
        &["-n", "--frobnicate", r],
        &["-n", r, "x"],
        &["-n", "-y", r],
        &["-p", "-y", r],
    ] {
        assert_eq!(fsck(wrong).status, 16, "{wrong:?}");
    }
    // No file system at all.
    let empty = dir.path().join("empty");
    fs::write(&empty, vec![0; 1 << 20]).unwrap();
    let a = fsck(&["-y", s(&empty)]);
    assert_eq!(a.status, 8, "{a:?}");
    assert!(a.out.contains("no usable superblock"), "{a:?}");
    assert!(fs::read(&empty).unwrap().iter().all(|b| *b == 0));
    assert!(fsck(&["-V"]).ok().out.starts_with("fsck.pramfs "));
    let help = fsck(&["--help"]).ok().out;
    assert!(
        help.contains("Exit status") && help.contains("-n, --no"),
        "{help}"
    );
}

#[test]
fn fsck_runs_under_names_used_by_fsck_8() {
    let dir = scratch();
    for name in ["fsck.pramfs", "fsck.fuse.pramfs"] {
        let link = dir.path().join(name);
        std::os::unix::fs::symlink(PRAMFS, &link).unwrap();
        let a = run(s(&link), ["-V"]).ok();
        assert!(a.out.starts_with("fsck.pramfs "), "{a:?}");
    }
}

/// A region with a file, whose inode has a wrong link count and whose root
/// directory has lost a byte of its only leaf.
fn damaged(dir: &Path) -> std::path::PathBuf {
    let region = made(dir, "4M");
    let fs = Fs::open(
        RegionOptions::new().open(&region).unwrap(),
        MountOptions::default(),
    )
    .unwrap();
    let ino = fs
        .create(&Credentials::ROOT, Ino::ROOT, b"precious", 0o644)
        .unwrap()
        .ino;
    fs.write(&Credentials::ROOT, ino, 0, b"as it was").unwrap();
    fs.close().unwrap();
    let bytes = fs::read(&region).unwrap();
    let name = bytes.windows(8).rposition(|w| w == b"precious").unwrap();
    flip(&region, name, 0x20);
    region
}

#[test]
fn y_repairs_and_reports_place() {
    // On tmpfs, and on an ordinary file, which takes an msync.
    let ordinary = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tmpfs = scratch();
    for dir in [tmpfs.path(), ordinary.path()] {
        let region = damaged(dir);
        let r = s(&region);
        let before = fs::read(&region).unwrap();
        let a = fsck(&["-n", r]);
        assert_eq!(a.status, 4, "{a:?}");
        assert!(a.out.contains("run fsck.pramfs -y to repair this"), "{a:?}");
        // It loses nothing here, but it might: a preen leaves it.
        let a = fsck(&["-p", "-f", r]);
        assert_eq!(a.status, 4, "{a:?}");
        assert!(a.out.contains("without -p"), "{a:?}");
        assert!(fs::read(&region).unwrap() == before);
        let a = fsck(&["-y", "-v", r]);
        assert_eq!(a.status, 1, "{a:?}");
        for words in [
            "[tree-leaf] error: root directory",
            "(/)",
            ": corrected",
            "1 fixed, 0 left",
        ] {
            assert!(a.out.contains(words), "{words:?} is missing in {a:?}");
        }
        fsck(&["-y", r]).ok();
        let cat = pramfs(["cat", r, "/precious"]).ok();
        assert_eq!(cat.out, "as it was");
    }
}

#[test]
fn preen_skips_clean_and_repairs_without_loss() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let r = s(&region);
    for switch in ["-p", "-a"] {
        let a = fsck(&[switch, r]).ok();
        assert!(a.out.contains("not checked"), "{a:?}");
    }
    assert!(fsck(&["-p", "-f", r]).ok().out.contains("clean;"));
    // The key of the hashes, in either page: there is nothing to fall back on.
    for page in [0x10000, 0] {
        flip(&region, page + 0x78, 3);
        let a = fsck(&["-p", "--json", r]);
        assert_eq!(a.status, 1, "{a:?}");
        assert_eq!(a.json()["findings"][0]["code"], "superblock-damaged");
        assert!(fsck(&["-p", r]).ok().out.contains("not checked"));
    }
    // The state word of both pages: mounted.
    flip(&region, 0x200, 3);
    flip(&region, 0x10200, 3);
    let a = fsck(&["-p", "--json", r]);
    assert_eq!(a.status, 1, "{a:?}");
    let json = a.json();
    assert_eq!(json["findings"][0]["code"], "not-unmounted");
    assert_eq!(json["findings"][0]["outcome"], "fixed");
    assert!(json["stored_bytes"].as_u64().unwrap() > 0);
    assert!(fsck(&["-p", r]).ok().out.contains("not checked"));
}

#[test]
fn questions_need_terminal() {
    let dir = scratch();
    let region = damaged(dir.path());
    let r = s(&region);
    let before = fs::read(&region).unwrap();
    for args in [&[r][..], &["--json", r]] {
        let a = fsck(args);
        assert_eq!(a.status, 16, "{a:?}");
        assert!(a.err.contains("fsck.pramfs -n"), "{a:?}");
    }
    // 4 is the key that ends the input.
    for (keys, status) in [
        (&b"n\n"[..], 4),
        (b"c\n", 36),
        (b"\x04", 36),
        (b"what\nn\n", 4),
    ] {
        let a = run_at_terminal(FSCK, [r], keys);
        assert_eq!(a.status, status, "{keys:?}: {a:?}");
        assert!(a.err.contains("Repair it (correct"), "{a:?}");
        assert!(fs::read(&region).unwrap() == before, "{keys:?}");
    }
    let a = run_at_terminal(FSCK, [r], b"y\n");
    assert_eq!(a.status, 1, "{a:?}");
    fsck(&["-n", r]).ok();
}

#[test]
fn lost_files_reappear_in_lost_and_found() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let r = s(&region);
    let fs = Fs::open(
        RegionOptions::new().open(&region).unwrap(),
        MountOptions::default(),
    )
    .unwrap();
    let ctx = Credentials::ROOT;
    let sub = fs.mkdir(&ctx, Ino::ROOT, b"sub", 0o755).unwrap().ino;
    let ino = fs.create(&ctx, sub, b"precious", 0o644).unwrap().ino;
    fs.write(&Credentials::ROOT, ino, 0, b"as it was").unwrap();
    fs.setxattr(&Credentials::ROOT, ino, b"user.a", b"b", XattrMode::Set)
        .unwrap();
    fs.close().unwrap();
    // The only leaf of the directory is overwritten.
    let mut bytes = fs::read(&region).unwrap();
    let name = bytes.windows(8).rposition(|w| w == b"precious").unwrap();
    let leaf = name / 4096 * 4096;
    bytes[leaf..leaf + 4096].fill(0xa5);
    fs::write(&region, bytes).unwrap();
    let a = fsck(&["-y", r]);
    assert_eq!(a.status, 1, "{a:?}");
    assert!(a.out.contains("lost+found"), "{a:?}");
    fsck(&["-n", r]).ok();
    let path = format!("/lost+found/#{}", ino.0);
    assert_eq!(pramfs(["cat", r, &path]).ok().out, "as it was");
    assert!(pramfs(["ls", r, "/"]).ok().out.contains("sub"));
}

#[test]
fn losses_are_listed_by_path_and_in_json() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let fs = Fs::open(
        RegionOptions::new().open(&region).unwrap(),
        MountOptions::default(),
    )
    .unwrap();
    let ctx = Credentials::ROOT;
    let mut inos = Vec::new();
    for name in [&b"kept\x1b"[..], b"gone"] {
        let ino = fs.create(&ctx, Ino::ROOT, name, 0o644).unwrap().ino;
        fs.write(&Credentials::ROOT, ino, 0, b"as it was").unwrap();
        inos.push(ino.0);
    }
    fs.close().unwrap();
    let bytes = fs::read(&region).unwrap();
    let home = |ino: u64| {
        let here = |at: &usize| bytes[at + 0x80..at + 0x88] == ino.to_le_bytes();
        let all = (0x1000..bytes.len() - 256).step_by(256);
        all.into_iter().find(here).unwrap()
    };
    // One wrong byte is corrected, noise is not.
    let mut bad = bytes.clone();
    bad[home(inos[0]) + 0x22] ^= 1;
    bad[home(inos[1])..home(inos[1]) + 256].fill(0x5a);
    fs::write(&region, &bad).unwrap();
    let a = fsck(&["-y", s(&region)]);
    assert_eq!(a.status, 1, "{a:?}");
    let line = |words: &str| {
        a.out
            .lines()
            .find(|l| l.contains(words))
            .unwrap_or_default()
    };
    assert!(line("(/kept\\x1b)").ends_with(": corrected"), "{a:?}");
    assert!(line("(/gone)").ends_with(": freed"), "{a:?}");
    assert!(a.out.contains("lost: /gone: the file is lost"), "{a:?}");
    assert!(a.out.contains("kept: /lost+found/blocks-"), "{a:?}");
    assert!(!a.out.contains('\x1b'), "{a:?}");
    fs::write(&region, &bad).unwrap();
    let json = fsck(&["-y", "--json", s(&region)]).json();
    assert_eq!(json["findings"][0]["done"], "corrected", "{json}");
    assert_eq!(json["findings"][1]["done"], "freed", "{json}");
    assert_eq!(json["lost"][0]["path"], "/gone", "{json}");
    assert_eq!(json["lost"][0]["what"], "file", "{json}");
    assert_eq!(json["lost"][0]["inode"], inos[1], "{json}");
}

#[test]
fn mount_recoverable_state_is_only_note() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let fs = Fs::open(
        RegionOptions::new().open(&region).unwrap(),
        MountOptions::default(),
    )
    .unwrap();
    fs.create(&Credentials::ROOT, Ino::ROOT, b"file", 0o644)
        .unwrap();
    // As a kill leaves it.
    let killed = dir.path().join("killed");
    fs::copy(&region, &killed).unwrap();
    fs.close().unwrap();
    let a = fsck(&["-n", s(&killed)]).ok();
    assert!(
        a.out.contains("recovery will be done at the next mount"),
        "{a:?}"
    );
    assert!(
        a.out.contains("note: the file system was not unmounted"),
        "{a:?}"
    );
    for word in ["warning", " left", "to repair this"] {
        assert!(!a.out.contains(word), "{a:?}");
    }
    let json = fsck(&["-n", "--json", s(&killed)]).ok().json();
    assert_eq!(
        (&json["left"], &json["sound"]),
        (&0.into(), &true.into()),
        "{json}"
    );
}

#[test]
fn fsck_names_foreign_fs_and_advises_no_mkfs() {
    let dir = scratch();
    let path = dir.path().join("other");
    fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
    let made = std::process::Command::new("mke2fs")
        .args(["-q", "-t", "ext4", s(&path)])
        .status();
    assert!(made.unwrap().success());
    for args in [["-n", s(&path)], ["-y", s(&path)]] {
        let a = fsck(&args);
        assert_eq!(a.status, 8, "{a:?}");
        assert!(
            a.out.contains("ext4 file system") && a.out.contains("fsck.ext4"),
            "{a:?}"
        );
        assert!(!a.out.contains("mkfs") && !a.err.contains("mkfs"), "{a:?}");
    }
}

/// Stores the checkpoint word of both pages.
fn set_checkpoint(region: &Path, lsn: u64) {
    let opened = RegionOptions::new().open(region).unwrap();
    let geo = pramfs_medium::media::probe_superblock(&opened)
        .unwrap()
        .geometry();
    let word = pramfs_medium::media::checksum::seal(geo.seed, lsn).to_le_bytes();
    drop(opened);
    let mut bytes = fs::read(region).unwrap();
    for page in [0, geo.copy_offset.0 as usize] {
        bytes[page + 0x210..page + 0x218].copy_from_slice(&word);
    }
    fs::write(region, bytes).unwrap();
}

/// It stores words of the journal only, and at boot nobody adds `-f`.
#[test]
fn preen_that_only_recounts_exits_1() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    set_checkpoint(&region, pramfs_fsck::LSNS_USED_UP);
    let a = fsck(&["-p", "--json", s(&region)]);
    assert_eq!(a.status, 1, "{a:?}");
    let json = a.json();
    assert_eq!(json["findings"][0]["code"], "lsns-used-up", "{json}");
    assert_eq!(json["findings"][0]["done"], "renumbered", "{json}");
    assert!(json["stored_bytes"].as_u64().unwrap() > 0, "{json}");
    assert!(fsck(&["-p", s(&region)]).ok().out.contains("not checked"));
}

/// What it leaves is an error, what it stored is the replay.
#[test]
fn preen_that_only_replays_reports_it() {
    let dir = scratch();
    let region = made(dir.path(), "4M");
    let fs = Fs::open(
        RegionOptions::new().open(&region).unwrap(),
        MountOptions::default(),
    )
    .unwrap();
    let ctx = Credentials::ROOT;
    let sub = fs.mkdir(&ctx, Ino::ROOT, b"sub", 0o755).unwrap().ino;
    fs.create(&ctx, sub, b"precious", 0o644).unwrap();
    fs.sync().unwrap();
    for n in 0..20 {
        let name = format!("late {n}");
        fs.create(&ctx, Ino::ROOT, name.as_bytes(), 0o644).unwrap();
    }
    // As a kill leaves it.
    let mut bytes = fs::read(&region).unwrap();
    fs.close().unwrap();
    let name = bytes.windows(8).rposition(|w| w == b"precious").unwrap();
    let leaf = name / 4096 * 4096;
    bytes[leaf..leaf + 4096].fill(0xa5);
    fs::write(&region, &bytes).unwrap();
    let a = fsck(&["-p", s(&region)]);
    assert_eq!(a.status, 5, "{a:?}");
    assert!(a.out.contains("journal records replayed"), "{a:?}");
    assert!(!a.out.contains("in memory"), "{a:?}");
    assert!(fs::read(&region).unwrap() != bytes);
}
