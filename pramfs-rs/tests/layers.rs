//! The rules of docs/architecture.md that the compiler does not keep: an arrow
//! never points up, and unsafe code stays where it belongs.

use std::path::{Path, PathBuf};

/// The layers of each crate from the ground up; layers of one line may use each other.
/// The compiler keeps the order of the crates.
const CRATES: &[(&str, &[&[&str]])] = &[
    (
        "medium",
        &[
            &["sync", "damage"],
            &["types", "error", "pmem"],
            &["media"],
            &["alloc", "journal"],
            &["volume"],
            &["map", "htree", "format"],
        ],
    ),
    (
        "pramfs-rs",
        &[&["credentials"], &["fs"], &["api"], &["inode"]],
    ),
];

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// The source files of a crate, by layer. Files of tests may use what they like.
fn files(of: &str) -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let src = root.join(of).join("src");
    let mut all = Vec::new();
    sources(&src, &mut all);
    all.into_iter()
        .filter_map(|path| {
            let inside = path.strip_prefix(&src).ok()?;
            let layer = inside.iter().next()?.to_str()?.trim_end_matches(".rs");
            let is_test =
                inside.iter().any(|p| p == "tests") || inside.to_str()?.contains("tests.rs");
            (layer != "lib" && !is_test).then(|| (layer.to_owned(), path.clone()))
        })
        .collect()
}

/// The text before the tests at its end, without comments.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let lines = text
        .lines()
        .map(|l| l.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn height(layers: &[&[&str]], layer: &str) -> usize {
    let found = layers.iter().position(|same| same.contains(&layer));
    found.unwrap_or_else(|| {
        panic!("{layer} is not a layer of docs/architecture.md; enter it there and here")
    })
}

#[test]
fn layers_never_use_upper_layers() {
    for (of, layers) in CRATES {
        let files = files(of);
        assert!(files.len() > 10, "{of}: {} files", files.len());
        for (layer, path) in files {
            for used in code(&path).split("crate::").skip(1) {
                let used: String = used
                    .chars()
                    .take_while(|c| c.is_ascii_lowercase() || *c == '_')
                    .collect();
                // `crate::Name` and `crate::macro!` are of the root.
                if used.is_empty() || used == layer || used == "has_bug" {
                    continue;
                }
                assert!(
                    height(layers, &used) <= height(layers, &layer),
                    "{}: {layer} uses {used}, which stands above it",
                    path.display()
                );
            }
        }
    }
}

/// The other crates of the file system forbid it to the compiler.
#[test]
fn unsafe_code_only_in_pmem_and_media() {
    for (layer, path) in files("medium") {
        if !["pmem", "media"].contains(&layer.as_str()) {
            assert!(
                !code(&path).contains("unsafe"),
                "{} has unsafe code",
                path.display()
            );
        }
    }
    for of in ["pramfs-rs", "fsck"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let root = std::fs::read_to_string(root.join(of).join("src/lib.rs")).unwrap();
        assert!(root.contains("#![forbid(unsafe_code)]"), "{of}");
    }
}
