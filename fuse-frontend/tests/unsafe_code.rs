//! The conditions of `adapter/lent.rs`: it has the only unsafe code, and nothing else in
//! the program can store to the medium past the engine.

use std::path::{Path, PathBuf};

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// Returns the code without comments, by file.
fn code() -> Vec<(PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let text = |path: PathBuf| {
        let all = std::fs::read_to_string(&path).unwrap();
        let lines = all
            .lines()
            .map(|l| l.split("//").next().unwrap_or_default());
        let text = lines.collect::<Vec<_>>().join("\n");
        (path.strip_prefix(&src).unwrap().to_owned(), text)
    };
    files.into_iter().map(text).collect()
}

#[test]
fn unsafe_code_only_in_lent_rs() {
    let mut found = Vec::new();
    for (path, text) in code() {
        let text = text.replace("unsafe_code", "");
        if text.contains("unsafe") {
            found.push((path, text.matches("unsafe").count()));
        }
    }
    assert_eq!(found, [(PathBuf::from("adapter/lent.rs"), 1)]);
}

#[test]
fn medium_stores_only_through_engine() {
    for (path, text) in code() {
        for way in [
            ".window()",
            "WriteWindow",
            "MappedFile",
            "Stitcher",
            "StitchedMap",
            "raw_range",
            "as_ptr()",
            "PmemBackend",
        ] {
            assert!(!text.contains(way), "{} has {way}", path.display());
        }
    }
}
