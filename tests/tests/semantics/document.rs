//! The document and the tests hold each other.

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

/// Names of all test functions: what follows a `#[test]`, or a line of a
/// macro that makes tests.
fn tests(root: &Path) -> BTreeSet<String> {
    let mut files = Vec::new();
    for dir in ["pramfs-rs", "fuse-frontend", "mkfs", "tests"] {
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

/// Every name between backquotes behind the word "Test:" or "Tests:".
fn named(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|l| l.split_once("Tests: ").or_else(|| l.split_once("Test: ")))
        .flat_map(|(_, list)| list.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn every_test_that_the_document_names_exists() {
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

#[test]
fn every_test_of_the_promises_is_named_in_the_document() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("../docs/semantics.md")).unwrap();
    let mut files = Vec::new();
    sources(&root.join("tests/semantics"), &mut files);
    let named: BTreeSet<_> = named(&document).into_iter().collect();
    for file in files.iter().filter(|f| !f.ends_with("document.rs")) {
        let text = std::fs::read_to_string(file).unwrap();
        for test in text
            .split("#[test]\nfn ")
            .skip(1)
            .filter_map(|t| t.split('(').next())
        {
            assert!(
                named.contains(test),
                "docs/semantics.md does not name {test}"
            );
        }
    }
}
