//! `docs/semantics.md` and the tests refer to each other completely.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                sources(&path, into);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// Names of all test functions: the function after each `#[test]`.
fn tests(root: &Path) -> BTreeSet<String> {
    let mut files = Vec::new();
    for dir in [
        "medium",
        "pramfs-rs",
        "fsck",
        "fuse-frontend",
        "control",
        "client",
        "mkfs",
        "preload",
        "tests",
    ] {
        sources(&root.join(dir), &mut files);
    }
    let mut names = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        let mut after_test = false;
        for line in text.lines().map(str::trim_start) {
            after_test |= line.starts_with("#[test]");
            if after_test && let Some(rest) = line.strip_prefix("fn ") {
                names.extend(rest.split('(').next().map(str::to_owned));
                after_test = false;
            }
        }
    }
    names
}

/// Every name in backticks after the word "Test:" or "Tests:".
fn named(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|l| l.split_once("Tests: ").or_else(|| l.split_once("Test: ")))
        .flat_map(|(_, list)| list.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn tests_named_in_semantics_doc_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let document = std::fs::read_to_string(root.join("docs/semantics.md")).unwrap();
    let (there, named) = (tests(&root), named(&document));
    assert!(named.len() > 40, "{} tests are named", named.len());
    let missing: Vec<_> = named.iter().filter(|n| !there.contains(**n)).collect();
    assert!(
        missing.is_empty(),
        "docs/semantics.md names tests that do not exist: {missing:?}"
    );
}

/// The guarantees in the document: each list item, and each table with the paragraph
/// after it.
fn promises(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let (mut open, mut table, mut gap) = (false, false, false);
    for line in text.lines() {
        // After a blank line, an indented paragraph continues the item.
        open &= !gap || table || line.starts_with("  ");
        gap = false;
        match line {
            _ if line.starts_with('#') => (open, table) = (false, false),
            _ if line.starts_with("- ") => {
                parts.push(line.to_owned());
                (open, table) = (true, false);
            }
            _ if line.starts_with('|') && table => {}
            _ if line.starts_with('|') => {
                parts.push(line.to_owned());
                (open, table) = (true, true);
            }
            "" => {
                // The tests of a table may follow it.
                gap = true;
                continue;
            }
            _ => {}
        }
        if open && let Some(part) = parts.last_mut() {
            part.push('\n');
            part.push_str(line);
            if table && !line.starts_with('|') && line.ends_with('`') {
                (open, table) = (false, false);
            }
        }
    }
    parts
}

#[test]
fn promises_in_semantics_doc_name_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let document = std::fs::read_to_string(root.join("docs/semantics.md")).unwrap();
    let parts = promises(&document);
    assert!(parts.len() > 60, "{} promises", parts.len());
    let bare: Vec<_> = parts.iter().filter(|p| named(p).is_empty()).collect();
    assert!(
        bare.is_empty(),
        "docs/semantics.md names no test of:\n{bare:#?}"
    );
    // Checks the check.
    let text = "- a promise\n  of two lines\n- another. Tests: `a`\n\n| a | table |\n|---|\n\nTests: `b`\n\n\
        - a list:\n  - one\n  - two\n\n  and more. Tests: `c`\n- the last\n\nTests: `d`\n";
    let parts = promises(text);
    let bare: Vec<_> = parts.iter().filter(|p| named(p).is_empty()).collect();
    assert_eq!((parts.len(), bare.len()), (5, 2), "{parts:?}");
}

#[test]
fn semantics_tests_are_named_in_semantics_doc() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("../docs/semantics.md")).unwrap();
    let mut files = Vec::new();
    sources(&root.join("ops"), &mut files);
    let named: BTreeSet<_> = named(&document).into_iter().collect();
    let ours = |file: &&PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("semantics"))
    };
    let mut tests = 0;
    for file in files.iter().filter(ours) {
        let text = std::fs::read_to_string(file).unwrap();
        for test in text
            .split("#[test]\nfn ")
            .skip(1)
            .filter_map(|t| t.split('(').next())
        {
            tests += 1;
            assert!(
                named.contains(test),
                "docs/semantics.md does not name {test}"
            );
        }
    }
    assert!(tests > 80, "{tests} tests");
}
