//! `public-items.txt` lists what users of the crate can name: a change of it is a
//! change of the interface, and is seen in review.
//!
//! The crate denies `unreachable_pub`, so each item that is plainly `pub` can be named
//! from outside. `PRAMFS_BLESS=1` writes the list anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().into_string().unwrap();
        if path.is_dir() && name != "tests" {
            sources(&path, into);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            into.push(path);
        }
    }
}

/// Kind and name of an item that a line declares: `fn open`.
fn item(line: &str) -> Option<String> {
    const KINDS: &[&str] = &[
        "fn", "struct", "enum", "trait", "type", "const", "static", "mod",
    ];
    let rest = line.trim_start().strip_prefix("pub ")?;
    let words: Vec<_> = rest
        .split(|c: char| !c.is_alphanumeric() && c != '_' && c != ' ')
        .next()?
        .split_whitespace()
        .filter(|w| !matches!(*w, "unsafe" | "async"))
        .collect();
    match words[..] {
        ["const", "fn", name, ..] => Some(format!("fn {name}")),
        [kind, name, ..] if KINDS.contains(&kind) => Some(format!("{kind} {name}")),
        _ => None,
    }
}

/// The items of each folder of the crate, by file.
fn items() -> BTreeMap<String, Vec<String>> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut files, mut found) = (Vec::new(), BTreeMap::new());
    sources(&src, &mut files);
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let items: Vec<_> = code.lines().filter_map(item).collect();
        if !items.is_empty() {
            let file = path.strip_prefix(&src).unwrap().display().to_string();
            found.insert(file, items);
        }
    }
    found
}

#[test]
fn public_items_are_those_of_the_list() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("public-items.txt");
    let lines = items().into_iter().flat_map(|(file, items)| {
        let lines = items.into_iter();
        lines.map(move |item| format!("{file}: {item}\n"))
    });
    let found: String = lines.collect();
    if std::env::var_os("PRAMFS_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let listed = std::fs::read_to_string(&path).unwrap();
    let missing = |from: &str, than: &str| {
        let than: Vec<_> = than.lines().collect();
        let lines = from.lines().filter(|line| !than.contains(line));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(
        found == listed,
        "new: {:#?}\ngone: {:#?}\nPRAMFS_BLESS=1 writes pramfs-rs/public-items.txt anew",
        missing(&found, &listed),
        missing(&listed, &found)
    );
}

#[test]
fn item_of_a_line_is_its_kind_and_name() {
    let cases = [
        ("    pub fn open(&self) -> File {", Some("fn open")),
        ("pub const fn new() -> Self {", Some("fn new")),
        ("pub const LINE: u64 = 64;", Some("const LINE")),
        ("pub struct File {", Some("struct File")),
        ("pub unsafe fn base(&self)", Some("fn base")),
        (
            "pub struct Cursor<F: Borrow<File>> {",
            Some("struct Cursor"),
        ),
        ("    pub(crate) fn hidden() {", None),
        ("    pub field: u64,", None),
        ("/// pub fn in a comment", None),
    ];
    for (line, expected) in cases {
        assert_eq!(item(line).as_deref(), expected, "{line}");
    }
}
