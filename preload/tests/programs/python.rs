//! Python's own tests of its file modules: each case ends as on tmpfs without the library.

use std::collections::BTreeMap;

use pramfs_tests::suite::{Expected, Run, missing, say};

use crate::{Both, PYTHON, Place, TIMEOUT, full};

const MODULES: [&str; 7] = [
    "test_mmap",
    "test_os",
    "test_fcntl",
    "test_largefile",
    "test_fileio",
    "test_shutil",
    "test_tempfile",
];
const MORE: [&str; 9] = [
    "test_io",
    "test_posix",
    "test_pathlib",
    "test_glob",
    "test_zipfile",
    "test_tarfile",
    "test_dbm",
    "test_mailbox",
    "test_subprocess",
];

/// Cases, and how they ended: only those that did not pass.
fn not_passed(text: &str) -> BTreeMap<String, &'static str> {
    let mut all = BTreeMap::new();
    let ends = [("FAIL: ", "fails"), ("ERROR: ", "fails")];
    for line in text.lines() {
        if let Some((case, end)) = ends
            .iter()
            .find_map(|(p, e)| Some((line.strip_prefix(p)?, *e)))
        {
            all.insert(case.to_owned(), end);
        } else if let Some((case, _)) = line.split_once(" ... skipped ") {
            all.insert(case.to_owned(), "is skipped");
        }
    }
    all
}

fn run(place: &Place<'_>, modules: &[&str]) -> (String, BTreeMap<String, &'static str>) {
    let out = place
        .run("python3 -m test", PYTHON)
        .args(["-m", "test", "-u", "largefile", "-v", "--tempdir"])
        .arg(&place.dir)
        // These copy files of 2.5 GB.
        .args(["-i", "TestCopyfile", "-i", "TestSocketSendfile"])
        .args(modules)
        .env("TMPDIR", &place.dir)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output();
    assert!(
        out.text.contains("Tests result: "),
        "{}: {}",
        out.status,
        out.text
    );
    let all = not_passed(&out.text);
    let failed = all.values().any(|end| *end == "fails");
    assert_eq!(
        out.status.success(),
        !failed,
        "{}: {}",
        out.status,
        out.text
    );
    (out.text, all)
}

fn cases(text: &str) -> u64 {
    let counts = text.lines().filter_map(|l| {
        l.strip_prefix("Ran ")?
            .split(' ')
            .next()?
            .parse::<u64>()
            .ok()
    });
    counts.sum()
}

#[test]
fn python_tests_end_as_on_tmpfs() {
    let test = "Python's tests with the preload library";
    let Some(both) = Both::new(test, &[], 1024) else {
        return;
    };
    let probe = Run::new("python3", PYTHON, TIMEOUT).args(["-c", "import test.test_os"]);
    if !probe.output().status.success() {
        return missing(test, "no test suite of Python (libpython3.*-testsuite)");
    }
    let modules = if full() {
        [&MODULES[..], &MORE].concat()
    } else {
        MODULES.to_vec()
    };
    let (on_mount, on_tmpfs) = (both.on_mount("python"), both.on_tmpfs("python"));
    let (should, not_passed_there) = run(&on_tmpfs, &modules);
    let (text, not_passed_here) = run(&on_mount, &modules);
    let share = both.library.share();
    let check = both.end();
    say(format_args!(
        "{test}: {} cases of {}; {} fail or are skipped on tmpfs too; served: {share}; fsck: {check}",
        cases(&text),
        modules.join(", "),
        not_passed_there.len()
    ));
    assert_eq!(cases(&text), cases(&should), "{text}");
    assert!(cases(&text) > 300, "{text}");
    // The list of cases that end differently on a mount without the library too.
    let list = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/tests/programs/expected/python.txt"
    );
    let differ: Vec<String> = not_passed_here
        .iter()
        .filter(|(case, end)| not_passed_there.get(*case) != Some(*end))
        .map(|(case, end)| format!("{case} {end}"))
        .chain(
            not_passed_there
                .keys()
                .filter(|case| !not_passed_here.contains_key(*case))
                .map(|case| format!("{case} passes")),
        )
        .collect();
    assert_eq!(Expected::read(list).judge(&differ), None, "{text}");
}
