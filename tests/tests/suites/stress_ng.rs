//! stress-ng's stressors of the class "filesystem", each for a second, one after the
//! other, with their own verification enabled.

use std::time::Duration;

use pramfs_tests::suite::{Run, find, mount_for, say, unmount_and_check};

use crate::{alone, expected};

#[test]
fn stress_ng_filesystem_class_runs() {
    let _alone = alone();
    let Some(mount) = mount_for("stress-ng", &["stress-ng"], 1024, "") else {
        return;
    };
    let work = mount.at("stress-ng");
    std::fs::create_dir(&work).unwrap();
    let out = Run::new(
        "stress-ng",
        find("stress-ng").unwrap(),
        Duration::from_secs(3600),
    )
    .args(["--class", "filesystem", "--sequential", "1"])
    .args(["--timeout", "1s", "--verify", "--temp-path"])
    .arg(&work)
    // It creates some of its files in its working directory.
    .dir(&work)
    // Otherwise it uses files of a gigabyte.
    .args([
        "--hdd-bytes",
        "64M",
        "--iomix-bytes",
        "64M",
        "--fallocate-bytes",
        "64M",
    ])
    .output();
    let ended = ["successful run completed", "unsuccessful run completed"];
    assert!(
        ended.iter().any(|end| out.text.contains(end)),
        "{}: {}",
        out.status,
        out.text
    );
    // "stress-ng: fail:  [PID] STRESSOR: message"
    let failed = |line: &str| {
        let (_, rest) = line.split_once("stress-ng: fail:")?;
        let (_, rest) = rest.split_once(']')?;
        let (stressor, _) = rest.trim().split_once(':')?;
        Some(stressor.to_owned())
    };
    let mut not_passed: Vec<String> = out.text.lines().filter_map(failed).collect();
    not_passed.sort();
    not_passed.dedup();
    let lines = |what: &str| -> Vec<&str> {
        out.text
            .lines()
            .filter(|line| line.contains(what))
            .collect()
    };
    for line in [lines("fail:"), lines("skipping"), lines("aborted early")].concat() {
        say(line);
    }
    let stressors = lines("dispatching hogs")
        .first()
        .map_or(0, |l| l.matches(", ").count() + 1);
    let check = unmount_and_check(&mount);
    say(format_args!(
        "stress-ng: {} of {stressors} stressors fail, {} do not run here, in {:.0} s; fsck: {check}",
        not_passed.len(),
        lines("skipping").len(),
        out.took.as_secs_f64(),
    ));
    assert!(stressors > 30, "{}", out.text);
    assert_eq!(expected("stress-ng.txt").judge(&not_passed), None);
}
