//! dbench: the load of four clients of a file server, used as a stress test. `bench/`
//! compares its throughput.

use std::time::Duration;

use pramfs_tests::suite::{Run, find, mount_for, say, unmount_and_check};

use crate::{alone, long};

#[test]
fn dbench_runs_with_four_clients() {
    let _alone = alone();
    let Some(mount) = mount_for("dbench", &["dbench"], 2048, "") else {
        return;
    };
    let seconds = if long() { 60 } else { 10 };
    let out = Run::new(
        "dbench",
        find("dbench").unwrap(),
        Duration::from_secs(seconds + 3600),
    )
    .arg("-D")
    .arg(mount.path())
    .args(["-t", &seconds.to_string(), "4"])
    .succeed();
    let result = out.text.lines().find(|l| l.starts_with("Throughput"));
    let result = result.unwrap_or_else(|| panic!("{}", out.text));
    let check = unmount_and_check(&mount);
    say(format_args!("dbench: {result}; fsck: {check}"));
    // dbench treats semaphore id 0, that of the first set since boot, as an error, and
    // continues.
    let mut failures = out.text.lines().filter(|l| l.contains("failed"));
    assert!(
        failures.all(|l| l.trim() == "failed to create barrier semaphore"),
        "{}",
        out.text
    );
}
