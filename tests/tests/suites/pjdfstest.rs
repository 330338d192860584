//! pjdfstest: POSIX rules for each call, 398 cases.
//!
//! It runs twice. The cases called `erofs` remount the file system read-only, which fails
//! while an earlier case still has a file open for writing, as some do (on ext4 as well).
//! They run in a separate process; the other cases run in one where remounts are not
//! allowed.
//!
//! mount(8) looks for the remount helper only in /sbin. To avoid an installation, the
//! suite runs in a mount namespace where /sbin is an overlay with one additional
//! directory.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use pramfs_tests::mounted::{Mounted, program};
use pramfs_tests::suite::{Run, find, mount_for, say, unmount_and_check};

use crate::{alone, expected};

/// Passed cases on ext4.
const EXT4: usize = 394;
/// Number of cases in version 0.2.2.
const ALL: usize = 398;

/// Users of every Debian system; neither is in a group of the other.
const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = REMOUNT
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

const NAMESPACE: &str = r#"
helpers=$1 second=$2
shift 2
sbin=$(readlink -f /sbin)
mount -t overlay -o "lowerdir=$helpers:$sbin" overlay "$sbin"
mount -t tmpfs second "$second"
exec "$@"
"#;

/// Runs the suite, either the remount cases or the others. Returns (case, result).
fn run(mount: &Mounted, dir: &Path, remounting: bool) -> Vec<(String, String)> {
    let file = dir.join("pjdfstest.toml");
    let remount = if remounting { "true" } else { "false" };
    fs::write(&file, CONFIGURATION.replace("REMOUNT", remount)).unwrap();
    let suite = Run::new("pjdfstest", "unshare", Duration::from_secs(3600))
        .args(["--mount", "--propagation", "private"])
        .args(["bash", "-euc", NAMESPACE, "namespace"])
        .args([dir.join("helpers"), dir.join("second")])
        .arg(find("pjdfstest").unwrap())
        .arg("-c")
        .arg(&file)
        .arg("-p")
        .arg(mount.path())
        .arg("-s")
        .arg(dir.join("second"))
        .args(remounting.then_some("erofs"));
    let out = suite.output();
    let results: Vec<_> = out
        .text
        .lines()
        .filter_map(|line| {
            let (case, result) = line.split_once(char::is_whitespace)?;
            let result = result.trim();
            let known = case.contains("::") && matches!(result, "ok" | "FAILED" | "skipped");
            known.then(|| (case.to_owned(), result.to_owned()))
        })
        .collect();
    let summary = out.text.lines().find(|l| l.starts_with("Summary: "));
    let total = summary.and_then(|l| l.strip_suffix(" total")?.rsplit(' ').next()?.parse().ok());
    assert_eq!(total, Some(results.len()), "{}: {}", out.status, out.text);
    for line in out.text.lines().filter(|l| l.contains("FAILED")) {
        say(line);
    }
    results
}

#[test]
fn pjdfstest_matches_expected_results() {
    let _alone = alone();
    let Some(mount) = mount_for("pjdfstest", &["pjdfstest", "unshare"], 512, "") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for name in ["helpers", "second"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    symlink(program(), dir.path().join("helpers/mount.fuse.pramfs")).unwrap();
    let mut results = run(&mount, dir.path(), false);
    // Skipped in that run, and included in this one.
    results.retain(|(case, _)| !case.contains("erofs"));
    results.extend(run(&mount, dir.path(), true));
    let check = unmount_and_check(&mount);

    let not_passed: Vec<&String> = results
        .iter()
        .filter(|(_, result)| result != "ok")
        .map(|(case, _)| case)
        .collect();
    let passed = results.len() - not_passed.len();
    say(format_args!(
        "pjdfstest: {passed} of {} cases pass (ext4: {EXT4}); fsck: {check}",
        results.len()
    ));
    assert_eq!(results.len(), ALL, "another version of pjdfstest?");
    assert_eq!(expected("pjdfstest.txt").judge(&not_passed), None);
    assert!(passed >= EXT4, "{passed}");
}
