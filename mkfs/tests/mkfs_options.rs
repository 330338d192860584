//! Every option of `mkfs.pramfs` does what it says.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Instant;

use common::*;
use pramfs::pmem::RegionOptions;
use pramfs_medium::media::{SuperblockInfo, probe_superblock};

fn superblock(path: &std::path::Path) -> SuperblockInfo {
    probe_superblock(&RegionOptions::new().read_only(true).open(path).unwrap()).unwrap()
}

#[test]
fn mkfs_with_size_creates_sparse_file() {
    let dir = scratch();
    let region = dir.path().join("r");
    let a = mkfs(["--json", region.to_str().unwrap(), "64M"])
        .ok()
        .json();
    assert_eq!(a["created"], true);
    assert_eq!(a["bytes"], 64 << 20);
    let meta = fs::metadata(&region).unwrap();
    assert_eq!(meta.len(), 64 << 20);
    assert!(meta.blocks() * 512 < 4 << 20, "{} blocks", meta.blocks());
    assert_eq!(meta.mode() & 0o777, 0o600);
    assert_eq!(superblock(&region).fixed.region_len, 64 << 20);
}

#[test]
fn mkfs_without_size_uses_whole_file() {
    let dir = scratch();
    let region = dir.path().join("r");
    fs::File::create(&region).unwrap().set_len(3 << 20).unwrap();
    let a = mkfs(["--json", region.to_str().unwrap()]).ok().json();
    assert_eq!(a["created"], false);
    assert_eq!(a["bytes"], 3 << 20);
}

#[test]
fn mkfs_with_size_extends_empty_file() {
    let dir = scratch();
    let region = dir.path().join("r");
    fs::File::create(&region).unwrap();
    mkfs([region.to_str().unwrap(), "1M"]).ok();
    assert_eq!(fs::metadata(&region).unwrap().len(), 1 << 20);
}

#[test]
fn mkfs_accepts_minimum_size_per_block_size() {
    let dir = scratch();
    for block in ["512", "1024", "2048", "4096", "1K", "4k"] {
        let region = dir.path().join(block);
        let a = mkfs(["--json", "-b", block, region.to_str().unwrap(), "256K"])
            .ok()
            .json();
        let bytes = a["block_size"].as_u64().unwrap();
        assert!(block == bytes.to_string() || block.to_lowercase() == format!("{}k", bytes >> 10));
        assert_eq!(a["blocks"].as_u64().unwrap() * bytes, 256 << 10);
        assert_eq!(superblock(&region).block_size() as u64, bytes);
    }
}

#[test]
fn mkfs_of_terabyte_is_fast_and_sparse() {
    let dir = scratch();
    let region = dir.path().join("r");
    let time_of = |size| {
        let _ = fs::remove_file(&region);
        let start = Instant::now();
        mkfs(["-q", region.to_str().unwrap(), size]).ok();
        start.elapsed().as_secs_f64()
    };
    // The best of three, and what a start of the program takes: others run beside this test.
    let (mut small, mut best) = (f64::MAX, f64::MAX);
    for _ in 0..3 {
        small = small.min(time_of("1M"));
        best = best.min(time_of("1T"));
    }
    let taken = fs::metadata(&region).unwrap().blocks() * 512;
    eprintln!(
        "1 TiB formatted in {best:.3} s, 1 MiB in {small:.3} s, {} KiB of memory",
        taken >> 10
    );
    assert!(best < 0.2 + 4.0 * small, "{best} s, 1 MiB takes {small} s");
    assert!(taken <= 4 << 20, "{taken} bytes");
}

#[test]
fn mkfs_stores_label_uuid_and_root_options() {
    let dir = scratch();
    let region = dir.path().join("r");
    let uuid = "0a1b2c3d-4e5f-4071-8293-a4b5c6d7e8f9";
    let args = [
        "-L", "my label", "-U", uuid, "--uid", "1000", "--gid", "1001", "--mode", "1777",
    ];
    let path = region.to_str().unwrap();
    let a = mkfs(args.iter().copied().chain(["--json", path, "1M"]))
        .ok()
        .json();
    assert_eq!(a["label"], "my label");
    assert_eq!(a["uuid"], uuid);
    let sb = superblock(&region);
    assert_eq!(
        (sb.label().as_str(), sb.uuid().to_string().as_str()),
        ("my label", uuid)
    );
    assert!(sb.is_clean());
    let stat = pramfs(["stat", "--json", path, "/"]).ok().json();
    assert_eq!((&stat["uid"], &stat["gid"]), (&1000.into(), &1001.into()));
    assert_eq!(stat["mode"], "41777");
}

#[test]
fn root_directory_belongs_to_mkfs_caller() {
    let dir = scratch();
    let region = dir.path().join("r");
    let path = region.to_str().unwrap();
    if !root_or_skip("another user's view") {
        return;
    }
    let Some(setpriv) = find_or_skip("setpriv") else {
        return;
    };
    fs::File::create(&region).unwrap().set_len(1 << 20).unwrap();
    // The program itself may lie where that user cannot go.
    let program = dir.path().join("mkfs.pramfs");
    copy_program(MKFS, &program);
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&region, Some(65534), Some(65533)).unwrap();
    let user = ["--reuid", "65534", "--regid", "65533", "--clear-groups"];
    let args = [program.to_str().unwrap(), "-q", path];
    run(&setpriv, user.into_iter().chain(args)).ok();
    let stat = pramfs(["stat", "--json", path, "/"]).ok().json();
    assert_eq!((&stat["uid"], &stat["gid"]), (&65534.into(), &65533.into()));
}

#[test]
fn mkfs_generates_random_uuids() {
    let dir = scratch();
    let made = |name: &str, args: &[&str]| {
        let path = dir.path().join(name);
        let a = mkfs(
            args.iter()
                .copied()
                .chain(["--json", path.to_str().unwrap(), "256K"]),
        )
        .ok()
        .json();
        a["uuid"].as_str().unwrap().to_owned()
    };
    assert_ne!(made("a", &[]), made("b", &["-U", "random"]));
}

#[test]
fn mkfs_limits_inodes_by_count_and_ratio() {
    let dir = scratch();
    let count = |name: &str, args: &[&str]| {
        let path = dir.path().join(name);
        let a = mkfs(
            args.iter()
                .copied()
                .chain(["--json", path.to_str().unwrap(), "16M"]),
        )
        .ok()
        .json();
        a["inodes"].as_u64().unwrap()
    };
    let by_default = count("a", &[]);
    assert!(count("b", &["-i", "64K"]) < by_default);
    assert!(count("c", &["-i", "512"]) > by_default);
    let exact = count("d", &["-N", "1000"]);
    assert!((1000..1100).contains(&exact), "{exact}");
}

#[test]
fn mkfs_switches_features_by_name() {
    let dir = scratch();
    let features = |name: &str, args: &[&str]| {
        let path = dir.path().join(name);
        let a = mkfs(
            args.iter()
                .copied()
                .chain(["--json", path.to_str().unwrap(), "1M"]),
        )
        .ok()
        .json();
        a["features"].to_string()
    };
    assert_eq!(features("a", &[]), "[\"huge_leaves\"]");
    assert_eq!(features("b", &["-O", "^huge_leaves"]), "[]");
    assert_eq!(features("c", &["-O", "none"]), "[]");
    assert_eq!(
        features("d", &["-O", "none,huge_leaves"]),
        "[\"huge_leaves\"]"
    );
    for args in [&["-O", "list"][..], &["--list-features"]] {
        let a = mkfs(args).ok();
        assert!(
            a.out.contains("huge_leaves") && a.out.contains("quota"),
            "{a:?}"
        );
        let by_mounts = a.out.lines().filter(|l| l.ends_with(" (set by mounts)"));
        let by_mounts: Vec<_> = by_mounts.filter_map(|l| l.split(' ').next()).collect();
        assert_eq!(
            by_mounts,
            [
                "append_windows",
                "atomic_data",
                "parked_leases",
                "bad_blocks",
                "ranged_marks"
            ],
            "{a:?}"
        );
    }
}

#[test]
fn mkfs_stores_lane_count() {
    let dir = scratch();
    let region = dir.path().join("r");
    let a = mkfs(["--lanes", "3", "--json", region.to_str().unwrap(), "16M"])
        .ok()
        .json();
    assert_eq!(a["lanes"], 3);
}

#[test]
fn mkfs_dry_run_writes_nothing() {
    let dir = scratch();
    let missing = dir.path().join("missing");
    let a = mkfs(["-n", missing.to_str().unwrap(), "1M"]).ok();
    assert!(a.out.contains("would be made"), "{a:?}");
    assert!(!missing.exists());

    let there = dir.path().join("there");
    fs::write(&there, vec![7u8; 1 << 20]).unwrap();
    let a = mkfs(["-n", "--json", there.to_str().unwrap()]).ok().json();
    assert_eq!(a["dry_run"], true);
    assert_eq!(a["bytes"], 1 << 20);
    mkfs(["-n", "-f", there.to_str().unwrap(), "2M"]).ok();
    assert!(fs::read(&there).unwrap().iter().all(|&b| b == 7));

    // It predicts the refusal, too.
    mkfs(["-q", there.to_str().unwrap()]).ok();
    mkfs(["-n", there.to_str().unwrap()]).refused(&["pramfs file system", "-f"]);
}

#[test]
fn mkfs_quiet_prints_nothing() {
    let dir = scratch();
    let a = mkfs(["-q", dir.path().join("r").to_str().unwrap(), "1M"]).ok();
    assert_eq!((a.out.as_str(), a.err.as_str()), ("", ""));
}

#[test]
fn mkfs_summary_describes_file_system() {
    let dir = scratch();
    let region = dir.path().join("r");
    let a = mkfs(["-L", "demo", region.to_str().unwrap(), "1G"]).ok();
    let lines: Vec<&str> = a.out.lines().collect();
    assert_eq!(
        lines[0],
        format!(
            "{}: a pramfs file system of 1 GiB made in a new file",
            region.display()
        )
    );
    for row in [
        "uuid",
        "label            demo",
        "blocks           262144 of 4096 bytes",
        "journal",
        "superblock copy  at byte 65536",
    ] {
        assert!(a.out.contains(&format!("\n  {row}")), "{row}: {}", a.out);
    }
    assert!(lines.len() <= 9, "{}", a.out);
}

#[test]
fn mkfs_warns_of_volatile_memory() {
    let dir = scratch();
    if !dir.path().starts_with("/dev/shm") {
        skipped("there is no /dev/shm");
        return;
    }
    let a = mkfs([dir.path().join("r").to_str().unwrap(), "1M"]).ok();
    assert!(a.err.contains("tmpfs is volatile"), "{a:?}");
}

#[test]
fn mkfs_discard_frees_host_memory() {
    let dir = scratch();
    let region = dir.path().join("r");
    fs::write(&region, vec![1u8; 8 << 20]).unwrap();
    mkfs(["-q", "--discard", region.to_str().unwrap()]).ok();
    let taken = fs::metadata(&region).unwrap().blocks() * 512;
    assert!(taken < 1 << 20, "{taken} bytes");
}

#[test]
fn mkfs_without_terminal_prints_no_escapes() {
    let dir = scratch();
    let a = mkfs([dir.path().join("r").to_str().unwrap(), "1M"]).ok();
    assert!(!a.out.contains('\x1b') && !a.err.contains('\x1b'));
}

#[test]
fn mkfs_prints_version_and_help() {
    let a = mkfs(["-V"]).ok();
    assert_eq!(
        a.out.trim(),
        format!("mkfs.pramfs {}", env!("CARGO_PKG_VERSION"))
    );
    let a = mkfs(["--help"]).ok();
    for option in [
        "-L",
        "-U",
        "-b",
        "-N",
        "-i",
        "-O",
        "-f",
        "-n",
        "-q",
        "-V",
        "--json",
        "1K = 1024",
    ] {
        assert!(a.out.contains(option), "{option}");
    }
}
