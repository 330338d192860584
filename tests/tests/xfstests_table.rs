//! `xfstests-config/table` on made-up results: what it prints, compares and records.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const EXPECTED: &str = "\
test	group	pramfs	pramfs+glue	ext4	reason
generic/001	quick	pass	pass	-	-
generic/002	quick	notrun	notrun	-	Filesystem FSTYP not supported in _scratch_mkfs_sized	[pramfs+glue] xfs_io fiemap failed (old kernel/wrong fs?)
generic/003	quick	fail	fail	fail	-
generic/004	auto	notrun	-	-	excluded: kernel: harms the machine
generic/005	auto	pass	fail	-	[pramfs+glue] out of time
";

/// Test, group, outcome, reason.
type Row = [String; 4];

fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../xfstests-config")
}

fn row(parts: [&str; 4]) -> Row {
    parts.map(str::to_owned)
}

/// The outcomes of `pramfs` in [`EXPECTED`], as its run gives them.
fn of_pramfs() -> Vec<Row> {
    let reason = "Filesystem fuse.pramfs not supported in _scratch_mkfs_sized";
    vec![
        row(["generic/001", "quick", "pass", "-"]),
        row(["generic/002", "quick", "notrun", reason]),
        row(["generic/003", "quick", "fail", "-"]),
        row(["generic/005", "auto", "pass", "-"]),
    ]
}

/// The directory of results of a run, a tree of xfstests, and an expected result.
struct Run {
    dir: TempDir,
}

impl Run {
    fn new(expected: &str, rows: &[Row]) -> Run {
        let run = Run {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::write(run.expected(), expected).unwrap();
        let tree = run.dir.path().join("xfstests/tests/generic");
        fs::create_dir_all(&tree).unwrap();
        let (mut groups, mut summary) = (String::new(), String::new());
        let mut timeouts = String::new();
        let (mut ran, mut not_run, mut failed) = (vec![], vec![], vec![]);
        for [test, group, outcome, reason] in rows {
            let quick = if group == "quick" { " quick" } else { "" };
            let number = test.split('/').next_back().unwrap();
            writeln!(groups, "{number} auto{quick} rw").unwrap();
            if reason.starts_with("excluded: ") {
                writeln!(summary, "{test} [expunged]").unwrap();
                continue;
            }
            ran.push(test.as_str());
            match outcome.as_str() {
                "notrun" => {
                    not_run.push(test.as_str());
                    let file = run.results().join(format!("results/{test}.notrun"));
                    fs::create_dir_all(file.parent().unwrap()).unwrap();
                    fs::write(file, format!("{reason}\n")).unwrap();
                }
                "fail" => {
                    failed.push(test.as_str());
                    if reason == "out of time" {
                        writeln!(timeouts, "{test}\t600 seconds").unwrap();
                    }
                }
                _ => {}
            }
        }
        writeln!(summary, "Ran: {}", ran.join(" ")).unwrap();
        writeln!(summary, "Not run: {}", not_run.join(" ")).unwrap();
        writeln!(summary, "Failures: {}", failed.join(" ")).unwrap();
        fs::create_dir_all(run.results()).unwrap();
        fs::write(run.results().join("check.out"), summary).unwrap();
        fs::write(run.results().join("timeouts"), timeouts).unwrap();
        fs::write(tree.join("group.list"), groups).unwrap();
        run
    }

    fn expected(&self) -> PathBuf {
        self.dir.path().join("expected.tsv")
    }

    fn results(&self) -> PathBuf {
        self.dir.path().join("results")
    }

    fn recorded(&self) -> String {
        fs::read_to_string(self.expected()).unwrap()
    }

    /// The exit status, and what is printed.
    fn table(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let out = Command::new(config().join("table"))
            .args(arguments)
            .env("XFSTESTS_DIR", self.dir.path().join("xfstests"))
            .output()
            .unwrap();
        let said = [out.stdout, out.stderr].concat();
        (out.status.code(), String::from_utf8(said).unwrap())
    }

    fn compare(&self, config: &str, record: &[&str]) -> (Option<i32>, String) {
        let (results, expected) = (self.results(), self.expected());
        let paths = [
            results.to_str().unwrap(),
            expected.to_str().unwrap(),
            config,
        ];
        self.table(&[&paths[..], record].concat())
    }
}

#[test]
fn table_of_expected_result_shows_one_configuration() {
    let run = Run::new(EXPECTED, &[]);
    let expected = run.expected();
    let shown = |config| run.table(&[expected.to_str().unwrap(), config]);
    let pramfs = "\
quick: passed 1, failed 1, not run 1
auto without quick: passed 1, failed 0, not run 1
all: passed 2, failed 1, not run 2
of the 1 that failed, 1 also fail on ext4
  failed: generic/003; also fails on ext4
not run, kernel: 1
      1 excluded: kernel: harms the machine
not run, harness: 1
      1 Filesystem fuse.pramfs not supported in _scratch_mkfs_sized
";
    assert_eq!(shown("pramfs"), (Some(0), pramfs.to_owned()));
    let glue = "\
quick: passed 1, failed 1, not run 1
auto without quick: passed 0, failed 1, not run 0
all: passed 1, failed 2, not run 1
of the 2 that failed, 1 also fail on ext4
  failed: generic/003; also fails on ext4
  failed: generic/005 (out of time)
not run, kernel: 1
      1 xfs_io fiemap failed (old kernel/wrong fs?)
";
    assert_eq!(shown("pramfs+glue"), (Some(0), glue.to_owned()));
    let (status, said) = shown("pramfs+other");
    assert_eq!(status, Some(2), "{said}");
}

#[test]
fn run_as_expected_succeeds() {
    let (status, said) = Run::new(EXPECTED, &of_pramfs()).compare("pramfs", &[]);
    assert!(said.ends_with("all 4 tests are as expected\n"), "{said}");
    assert_eq!(status, Some(0));
}

#[test]
fn run_unlike_expected_fails_and_names_tests() {
    let mut rows = of_pramfs();
    rows[0][2] = "fail".to_owned();
    rows[2][2] = "pass".to_owned();
    rows.push(row(["generic/006", "quick", "pass", "-"]));
    let run = Run::new(EXPECTED, &rows);
    let (status, said) = run.compare("pramfs", &[]);
    for line in [
        "  WORSE than expected: generic/001 (was pass, is fail)",
        "  better than expected, record it: generic/003 (was fail)",
        "  not recorded: generic/006 (pass)",
        "3 of 5 tests are not as expected",
    ] {
        assert!(said.lines().any(|l| l == line), "{line}\n{said}");
    }
    assert_eq!(status, Some(1));
    assert_eq!(run.recorded(), EXPECTED);
    let (status, said) = run.compare("fuse", &[]);
    assert!(
        said.contains("no expected result for this kernel"),
        "{said}"
    );
    assert_eq!(status, Some(1));
}

#[test]
fn record_changes_only_column_of_configuration() {
    let mut rows = of_pramfs();
    rows[0][2] = "notrun".to_owned();
    rows[0][3] = "needs fuse.pramfs on DEVICE".to_owned();
    let run = Run::new(EXPECTED, &rows);
    let (status, said) = run.compare("pramfs+glue", &["--record"]);
    assert_eq!(status, Some(0), "{said}");
    let recorded = "\
test	group	pramfs	pramfs+glue	ext4	reason
generic/001	quick	pass	notrun	-	needs FSTYP on DEVICE
generic/002	quick	notrun	notrun	-	Filesystem FSTYP not supported in _scratch_mkfs_sized
generic/003	quick	fail	fail	fail	-
generic/004	auto	notrun	-	-	excluded: kernel: harms the machine
generic/005	auto	pass	pass	-	-
";
    assert_eq!(run.recorded(), recorded);
    // A configuration without a column gets the last one.
    let (status, said) = run.compare("fuse", &["--record"]);
    assert_eq!(status, Some(0), "{said}");
    let recorded = run.recorded();
    let lines: Vec<_> = recorded.lines().take(2).collect();
    let head = "test\tgroup\tpramfs\tpramfs+glue\text4\tfuse\treason";
    let first = "generic/001\tquick\tpass\tnotrun\t-\tnotrun\tneeds FSTYP on DEVICE\t[fuse] needs fuse.pramfs on DEVICE";
    assert_eq!(lines, [head, first]);
}

/// Every column of each recorded result of this repository is recorded again.
#[test]
fn record_of_same_outcomes_leaves_file_unchanged() {
    let mut columns = 0;
    for entry in fs::read_dir(config().join("expected")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let head: Vec<_> = text.lines().next().unwrap().split('\t').collect();
        for (at, config) in head.iter().enumerate().take(head.len() - 1).skip(2) {
            let kind = match *config {
                "fuse" | "ext4" => *config,
                _ => "fuse.pramfs",
            };
            let rows: Vec<Row> = text
                .lines()
                .skip(1)
                .filter_map(|line| {
                    let parts: Vec<_> = line.split('\t').collect();
                    let mine = format!("[{config}] ");
                    let special = parts[head.len() - 1..]
                        .iter()
                        .find_map(|r| r.strip_prefix(&mine));
                    let reason = match (special, parts[at]) {
                        (_, "-") => return None,
                        (Some(special), _) => special,
                        (None, "notrun") => parts[head.len() - 1],
                        (None, _) => "-",
                    };
                    let reason = reason.replace("FSTYP", kind);
                    Some(row([parts[0], parts[1], parts[at], &reason]))
                })
                .collect();
            let run = Run::new(&text, &rows);
            let (status, said) = run.compare(config, &["--record"]);
            assert_eq!(status, Some(0), "{said}");
            assert!(run.recorded() == text, "{}: {config}", path.display());
            columns += 1;
        }
    }
    assert!(columns >= 8, "{columns} columns");
}

/// `README.md` gives the counts of each column of the expected result.
#[test]
fn readme_has_counts_of_each_column() {
    let expected = config().join("expected/6.18.tsv");
    let text = fs::read_to_string(&expected).unwrap();
    let readme = fs::read_to_string(config().join("README.md")).unwrap();
    let head: Vec<_> = text.lines().next().unwrap().split('\t').collect();
    let run = Run::new(&text, &[]);
    // Only tests that matter for the comparison are recorded for ext4.
    for column in head[2..head.len() - 1].iter().filter(|c| **c != "ext4") {
        let (_, said) = run.table(&[expected.to_str().unwrap(), column]);
        let quick = said.lines().find_map(|l| l.strip_prefix("quick: passed "));
        let counts = quick
            .unwrap()
            .replace(", failed ", " | ")
            .replace(", not run ", " | ");
        let row = format!("\n| `{column}` | {counts} |");
        assert!(readme.contains(&row), "no row in README.md: {row}");
    }
}
