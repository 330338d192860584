//! `public-items.txt` lists what users of the crate can name: a change of it is a
//! change of the interface, and review sees it.
//!
//! The lists of `pub use` in `lib.rs` and `inode.rs` name the types. The sources of the
//! crate and of the internal crate `pramfs-medium` give their methods. The crate denies
//! `unreachable_pub`, so nothing else can be named. `PRAMFS_BLESS=1` writes the list anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Items that a program can name, those of the face for front ends and of the feature
/// `testing` not counted.
const MAX_UPPER_ITEMS: usize = 250;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

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
fn item(line: &str) -> Option<(&str, &str)> {
    const KINDS: &[&str] = &["fn", "struct", "enum", "trait", "type", "const", "static"];
    let rest = line.trim_start().strip_prefix("pub ")?;
    let words: Vec<_> = rest
        .split(|c: char| !c.is_alphanumeric() && c != '_' && c != ' ')
        .next()?
        .split_whitespace()
        .filter(|w| !matches!(*w, "unsafe" | "async"))
        .collect();
    match words[..] {
        ["const", "fn", name, ..] => Some(("fn", name)),
        [kind, name, ..] => KINDS.contains(&kind).then_some((kind, name)),
        _ => None,
    }
}

/// The type that an `impl` block belongs to.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(generic) => generic.split_once('>')?.1,
        None => rest,
    };
    let (_, of) = rest.split_once(" for ").unwrap_or(("", rest));
    of.trim_start()
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()
}

/// The items of each name: itself, and the methods of a type.
fn declared() -> BTreeMap<String, Vec<String>> {
    let mut files = Vec::new();
    for part in ["pramfs-rs/src", "medium/src"] {
        sources(&root().join(part), &mut files);
    }
    files.sort();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let mut of = None;
        for line in code.lines() {
            if !line.starts_with(' ') {
                of = implemented(line).or(of.filter(|_| !line.starts_with('}')));
            }
            let Some((kind, name)) = item(line) else {
                continue;
            };
            match (line.starts_with(' '), of) {
                (true, Some(of)) => found.entry(of.into()).or_default(),
                // Of a macro that makes a type.
                (true, None) if kind == "enum" => found.entry(name.into()).or_default(),
                (true, None) => continue,
                (false, _) => found.entry(name.into()).or_default(),
            }
            .push(format!("{kind} {name}"));
        }
    }
    found
}

/// What a file passes on: the module, and the names.
fn passed_on(file: &str, outside: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join("pramfs-rs/src").join(file)).unwrap();
    let mut module = outside.to_owned();
    let mut names = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("pub ") {
        let starts_line = rest[..at].trim_end_matches(' ').ends_with('\n');
        if rest[..at].contains("\n}\n") {
            module = outside.to_owned();
        }
        rest = &rest[at + 4..];
        if !starts_line {
            continue;
        }
        if let Some(inner) = rest.strip_prefix("mod ") {
            if let Some((name, _)) = inner.split_once(" {")
                && !name.contains(';')
            {
                module = format!("{outside}::{name}");
            }
        } else if let Some(path) = rest.strip_prefix("use ") {
            let path = path.split(';').next().unwrap();
            let list = path.rsplit_once("::").map_or(path, |(_, last)| last);
            let list = path.split_once('{').map_or(list, |(_, list)| list);
            let list = list.trim_end_matches('}').split(',').map(str::trim);
            names.extend(
                list.filter(|n| !n.is_empty())
                    .map(|n| (module.clone(), n.to_owned())),
            );
        } else if let Some((_, name)) = item(&format!("pub {}", rest.lines().next().unwrap())) {
            names.push((module.clone(), name.to_owned()));
        }
    }
    names
}

/// The lines of the list: `pramfs::File: fn read_at`.
fn lines() -> Vec<String> {
    let declared = declared();
    let mut all = passed_on("lib.rs", "pramfs");
    all.extend(passed_on("inode.rs", "pramfs::inode"));
    let mut lines = Vec::new();
    for (module, name) in all {
        let items = declared
            .get(&name)
            .unwrap_or_else(|| panic!("{module}::{name} is declared nowhere"));
        lines.extend(items.iter().map(|i| format!("{module}::{name}: {i}\n")));
    }
    lines.sort();
    lines.dedup();
    lines
}

#[test]
fn public_items_match_list() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("public-items.txt");
    let found = lines().concat();
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
fn public_api_stays_small() {
    let upper = lines()
        .iter()
        .filter(|line| !line.starts_with("pramfs::inode::"))
        .count();
    assert!(
        upper > 150,
        "only {upper} items: the list is not read right"
    );
    assert!(
        upper < MAX_UPPER_ITEMS,
        "{upper} public items outside pramfs::inode"
    );
}

#[test]
fn item_of_line_is_kind_and_name() {
    let cases = [
        ("    pub fn open(&self) -> File {", Some(("fn", "open"))),
        ("pub const fn new() -> Self {", Some(("fn", "new"))),
        ("pub const LINE: u64 = 64;", Some(("const", "LINE"))),
        ("pub struct File {", Some(("struct", "File"))),
        ("pub unsafe fn base(&self)", Some(("fn", "base"))),
        (
            "pub struct Cursor<F: Borrow<File>> {",
            Some(("struct", "Cursor")),
        ),
        ("    pub(crate) fn hidden() {", None),
        ("    pub field: u64,", None),
        ("/// pub fn in a comment", None),
    ];
    for (line, expected) in cases {
        assert_eq!(item(line), expected, "{line}");
    }
    let cases = [
        ("impl File {", Some("File")),
        ("impl<'a> RegionView<'a> {", Some("RegionView")),
        ("impl fmt::Display for Error {", Some("Error")),
        ("impl<F: Borrow<File>> Cursor<F> {", None),
        ("struct File {", None),
    ];
    for (line, expected) in cases.into_iter().filter(|c| c.1.is_some()) {
        assert_eq!(implemented(line), expected, "{line}");
    }
}
