//! The rules of docs/architecture.md that the compiler does not keep: an arrow
//! never points up, and unsafe code stays where it belongs.

use std::path::{Path, PathBuf};

/// From the ground up; layers of one line may use each other.
const LAYERS: &[&[&str]] = &[
    &["sync"],
    &["types", "error", "pmem"],
    &["media"],
    &["alloc", "journal"],
    &["volume"],
    &["map", "htree", "format"],
    &["fs"],
    &["api", "fsck"],
    &["inode"],
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

/// The source files of the crate, by layer. Files of tests may use what they
/// like.
fn files() -> Vec<(String, PathBuf)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
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

fn height(layer: &str) -> usize {
    let found = LAYERS.iter().position(|same| same.contains(&layer));
    found.unwrap_or_else(|| {
        panic!("{layer} is no layer of docs/architecture.md; enter it there and here")
    })
}

#[test]
fn an_arrow_never_points_up() {
    for (layer, path) in files() {
        for used in code(&path).split("crate::").skip(1) {
            let used: String = used
                .chars()
                .take_while(|c| c.is_ascii_lowercase() || *c == '_')
                .collect();
            // `crate::Name` is what lib.rs gives the users of the crate.
            if used.is_empty() || used == layer {
                continue;
            }
            assert!(
                height(&used) <= height(&layer),
                "{}: {layer} uses {used}, which stands above it",
                path.display()
            );
        }
    }
}

#[test]
fn unsafe_code_stands_in_pmem_and_media_only() {
    for (layer, path) in files() {
        if ["pmem", "media"].contains(&layer.as_str()) {
            continue;
        }
        let code = code(&path).replace("forbid(unsafe_code)", "");
        assert!(
            !code.contains("unsafe"),
            "{} has unsafe code",
            path.display()
        );
    }
}
