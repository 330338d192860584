//! Runs Python's own tests of its file modules in a mount.

use std::path::{Path, PathBuf};

use pramfs_tests::suite::{Expected, Run, missing, mount_for, say, unmount_and_check};

use crate::{PYTHON, TIMEOUT, alone, full};

const MODULES: [&str; 5] = [
    "test_os",
    "test_mmap",
    "test_shutil",
    "test_fileio",
    "test_tempfile",
];
const MORE: [&str; 10] = [
    "test_io",
    "test_posix",
    "test_pathlib",
    "test_glob",
    "test_zipfile",
    "test_tarfile",
    "test_fcntl",
    "test_largefile",
    "test_dbm",
    "test_mailbox",
];

/// The cases that failed, as listed at the end by unittest.
fn not_passed(text: &str) -> Vec<String> {
    let mut all: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("FAIL: ").or(line.strip_prefix("ERROR: ")))
        .map(|line| {
            let (case, class) = line.split_once(" (").unwrap_or((line, ""));
            format!("{class} {case}")
                .replace(") ", " ")
                .trim()
                .to_owned()
        })
        .collect();
    all.sort();
    all.dedup();
    all
}

fn run(dir: &Path, modules: &[&str]) -> (String, Vec<String>) {
    std::fs::create_dir(dir).unwrap();
    let out = Run::new("python3 -m test", PYTHON, 2 * TIMEOUT)
        .args(["-m", "test", "-u", "largefile", "-v", "--tempdir"])
        .arg(dir)
        .args(modules)
        .dir(dir)
        .env("TMPDIR", dir)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output();
    assert!(
        out.text.contains("Tests result: "),
        "{}: {}",
        out.status,
        out.text
    );
    let failed = not_passed(&out.text);
    assert_eq!(
        out.status.success(),
        failed.is_empty(),
        "{}: {}",
        out.status,
        out.text
    );
    (out.text, failed)
}

#[test]
fn python_file_tests_pass() {
    let test = "Python's tests";
    let _alone = alone();
    let Some(mount) = mount_for(test, &[PYTHON], 1024, "") else {
        return;
    };
    let probe = Run::new("python3", PYTHON, TIMEOUT)
        .args(["-c", "import test.test_os"])
        .output();
    if !probe.status.success() {
        return missing(test, "no test suite of Python (libpython3.*-testsuite)");
    }
    let modules = if full() {
        [&MODULES[..], &MORE].concat()
    } else {
        MODULES.to_vec()
    };
    // Cases that fail on every file system of this machine do not count.
    let elsewhere = tempfile::Builder::new()
        .prefix("pramfs-test-")
        .tempdir_in("/dev/shm")
        .unwrap();
    let (_, on_tmpfs) = run(&elsewhere.path().join("python"), &modules);
    let (text, mut failed) = run(&mount.at("python"), &modules);
    failed.retain(|case| !on_tmpfs.contains(case));
    let ran: u64 = text
        .lines()
        .filter_map(|l| {
            l.strip_prefix("Ran ")?
                .split(' ')
                .next()?
                .parse::<u64>()
                .ok()
        })
        .sum();
    let check = unmount_and_check(&mount);
    say(format_args!(
        "{test}: {ran} cases of {}; {} fail on tmpfs too; fsck: {check}",
        modules.join(", "),
        on_tmpfs.len()
    ));
    assert!(ran > 300, "{ran} cases: {text}");
    let list = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs/expected/python.txt");
    assert_eq!(Expected::read(list).judge(&failed), None);
}
