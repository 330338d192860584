//! fio with verification: blocks with a checksum each, written at random offsets and read
//! back, by system calls, libaio and io_uring, with and without the page cache.

use std::fmt::Write;
use std::time::Duration;

use pramfs_tests::random::Random;
use pramfs_tests::suite::{Run, find, mount_for, say, unmount_and_check};

use crate::{alone, long};

/// I/O engine and queue depth.
const ENGINES: [(&str, u32); 3] = [("psync", 1), ("libaio", 16), ("io_uring", 16)];

fn jobs(seed: u64) -> String {
    let size = if long() { "256m" } else { "32m" };
    let mut text = format!(
        "[global]\nverify=crc32c\nverify_fatal=1\ndo_verify=1\nrw=randrw\n\
         bsrange=512-128k\nbs_unaligned=0\nblockalign=512\nsize={size}\nrandseed={seed}\n"
    );
    for (engine, depth) in ENGINES {
        for direct in [0, 1] {
            writeln!(
                text,
                "[{engine}-direct={direct}]\nstonewall\nioengine={engine}\niodepth={depth}\ndirect={direct}"
            )
            .expect("into memory");
        }
    }
    text
}

fn fio(test: &str, options: &str) {
    let _alone = alone();
    let Some(mount) = mount_for(test, &["fio"], 2048, options) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs");
    let seed = Random::seed_from_env("PRAMFS_FIO_SEED");
    say(format_args!("{test}: the seed is PRAMFS_FIO_SEED={seed}"));
    std::fs::write(&file, jobs(seed)).unwrap();
    let out = Run::new("fio", find("fio").unwrap(), Duration::from_secs(600))
        // fio leaves a state file in its working directory.
        .dir(dir.path())
        .args(["--minimal", "--directory"])
        .arg(mount.path())
        .arg(&file)
        .succeed();
    // One line for each job; the fifth field is its error.
    let done: Vec<Vec<&str>> = out
        .text
        .lines()
        .filter(|line| line.starts_with("3;fio"))
        .map(|line| line.split(';').collect())
        .collect();
    let wrong: Vec<_> = done
        .iter()
        .filter(|job| job[4] != "0")
        .map(|job| job[2])
        .collect();
    let check = unmount_and_check(&mount);
    say(format_args!(
        "{test}: {} jobs, every block verified, in {:.0} s; fsck: {check}",
        done.len(),
        out.took.as_secs_f64()
    ));
    assert!(
        wrong.is_empty() && done.len() == 6,
        "{wrong:?}: {}",
        out.text
    );
}

#[test]
fn fio_verifies_with_page_cache() {
    fio("fio, cache=auto", "cache=auto");
}

#[test]
fn fio_verifies_with_cache_none() {
    fio("fio, cache=none", "cache=none");
}
