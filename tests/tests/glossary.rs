//! Places in the code that `docs/glossary.md` names for its terms exist.

use std::path::Path;

const DOC: &str = include_str!("../../docs/glossary.md");

/// The third column of each row: names and paths in backticks.
fn places() -> impl Iterator<Item = &'static str> {
    DOC.lines()
        .filter_map(|line| line.strip_prefix('|')?.split('|').nth(2))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
}

fn sources(dir: &Path, into: &mut String) {
    for entry in std::fs::read_dir(dir).expect("a folder of sources") {
        let path = entry.expect("an entry of it").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            *into += &std::fs::read_to_string(&path).expect("a source file");
        }
    }
}

#[test]
fn places_named_in_glossary_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let library = ["pramfs-rs/src", "medium/src", "fsck/src"].map(|folder| root.join(folder));
    let mut text = String::new();
    for folder in &library {
        sources(folder, &mut text);
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut named = 0;
    for place in places() {
        named += 1;
        if place.contains('/') || place.ends_with(".rs") {
            assert!(
                root.join(place).exists() || library.iter().any(|l| l.join(place).exists()),
                "there is no {place}"
            );
        } else {
            assert!(
                text.split(|c| !is_word(c)).any(|word| word == place),
                "nothing in the library is called {place}"
            );
        }
    }
    assert!(named > 60, "{named} places are named");
}
