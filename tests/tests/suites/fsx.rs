//! fsx: random reads, writes, mappings, truncations and holes of one file, compared with
//! the expected contents.
//!
//! Version 0.3.2 supports neither O_DIRECT nor asynchronous I/O nor zeroed ranges;
//! [`exerciser`](crate::exerciser) covers those.

use std::fs;
use std::path::Path;
use std::time::Duration;

use pramfs_tests::random::Random;
use pramfs_tests::suite::{Run, find, mount_for, say, unmount_and_check};

use crate::{alone, long};

/// An operation has at least one byte: POSIX requires an error for fallocate of zero
/// bytes, which fsx treats as a failure.
const CONFIGURATION: &str = "
[opsize]
min = 1
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 5
punch_hole = 5
sendfile = 5
posix_fadvise = 2
copy_file_range = 5
";

/// Seeds with fixed operations.
const SEEDS: [u64; 5] = [1, 22, 333, 4444, 55555];

fn fsx(test: &str, options: &str) {
    let _alone = alone();
    let Some(mount) = mount_for(test, &["fsx"], 256, options) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let configuration = dir.path().join("fsx.toml");
    fs::write(&configuration, CONFIGURATION).unwrap();
    let random = Random::seed_from_env("PRAMFS_FSX_SEED");
    say(format_args!(
        "{test}: the sixth seed is PRAMFS_FSX_SEED={random}"
    ));
    // In the long run more than a million for each mount option.
    let operations = if long() { 200_000 } else { 15_000 };
    for seed in SEEDS.into_iter().chain([random]) {
        one(
            &mount.at(format!("{seed}")),
            &configuration,
            dir.path(),
            seed,
            operations,
        );
    }
    let check = unmount_and_check(&mount);
    say(format_args!(
        "{test}: 6 times {operations} operations, every byte as expected; fsck: {check}"
    ));
}

fn one(file: &Path, configuration: &Path, artifacts: &Path, seed: u64, operations: u32) {
    let out = Run::new("fsx", find("fsx").unwrap(), Duration::from_secs(1800))
        .arg("-f")
        .arg(configuration)
        .arg("-P")
        .arg(artifacts)
        .args(["-N", &operations.to_string(), "-S", &seed.to_string()])
        .arg(file)
        .output();
    assert!(
        out.status.success() && out.text.contains("All operations completed"),
        "seed {seed}: {}: {}",
        out.status,
        out.text
    );
}

#[test]
fn fsx_runs_with_page_cache() {
    fsx("fsx, cache=auto", "cache=auto");
}

#[test]
fn fsx_runs_with_cache_none() {
    fsx("fsx, cache=none", "cache=none");
}
