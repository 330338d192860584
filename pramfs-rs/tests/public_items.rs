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

/// What follows generic parameters, which may be nested: `<F: Borrow<File>>`.
fn after_generics(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if !text[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[at + c.len_utf8()..];
        }
    }
    ""
}

/// A block whose methods belong to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block<'a> {
    name: &'a str,
    /// The methods of a public trait are public without the word.
    is_trait: bool,
}

/// The type that an `impl` block belongs to, or the public trait that a line begins.
fn block(line: &str) -> Option<Block<'_>> {
    let (rest, is_trait) = match line.strip_prefix("pub unsafe trait ") {
        Some(rest) => (rest, true),
        None => match line.strip_prefix("pub trait ") {
            Some(rest) => (rest, true),
            None => (line.strip_prefix("impl")?, false),
        },
    };
    let rest = match rest.starts_with('<') {
        true => after_generics(rest),
        false => rest,
    };
    let (_, of) = match is_trait {
        true => ("", rest),
        false => rest.split_once(" for ").unwrap_or(("", rest)),
    };
    let name = of
        .trim_start()
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()?;
    Some(Block { name, is_trait })
}

/// Calls `item` with the line of each item in a block, and with the block, if there is one.
fn walk<'a>(code: &'a str, mut found: impl FnMut(&'a str, Option<Block<'a>>)) {
    let mut of: Vec<(usize, Block<'_>)> = Vec::new();
    for line in code.lines().filter(|line| !line.trim().is_empty()) {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        // A comment or a string can stand anywhere; only a closing brace ends a block.
        if text.starts_with('}') {
            of.retain(|(at, _)| *at < indent);
        }
        let begun = of.last().map(|(_, block)| *block);
        found(
            line,
            begun.filter(|_| of.last().is_some_and(|(at, _)| indent == at + 4)),
        );
        if let Some(block) = block(text)
            && !line.ends_with("{}")
        {
            of.push((indent, block));
        }
    }
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
        let mut hidden = false;
        walk(code, |line, of| {
            let text = line.trim_start();
            if text.starts_with("#[doc(hidden)]") {
                hidden = true;
                return;
            }
            if text.starts_with("#[") || text.starts_with("//") {
                return;
            }
            let hidden = std::mem::take(&mut hidden);
            let public = match of {
                Some(of) if of.is_trait => format!("pub {text}"),
                _ => text.to_owned(),
            };
            let Some((kind, name)) = item(&public).filter(|_| !hidden) else {
                return;
            };
            let types = ["struct", "enum", "trait", "type"];
            match of {
                Some(of) => found.entry(of.name.into()).or_default(),
                // In a function, or of a macro that makes a type.
                None if line.starts_with(' ') && !types.contains(&kind) => return,
                None => found.entry(name.into()).or_default(),
            }
            .push(format!("{kind} {name}"));
        });
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

/// Documentation that users of `pramfs` read names `pramfs`, though it stands in the
/// internal crate.
#[test]
fn examples_of_passed_on_items_name_pramfs() {
    let pages = [
        "damage.rs",
        "error.rs",
        "types.rs",
        "format/mod.rs",
        "format/options.rs",
        "pmem/backend.rs",
        "pmem/error.rs",
        "pmem/heap.rs",
        "pmem/options.rs",
    ];
    for page in pages {
        let text = std::fs::read_to_string(root().join("medium/src").join(page)).unwrap();
        for line in text.lines() {
            let shown = line.trim_start().strip_prefix("/// ");
            let shown = shown.filter(|line| !line.starts_with("# "));
            assert!(
                !shown.is_some_and(|line| line.contains("pramfs_medium")),
                "{page}: {line}"
            );
        }
    }
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
        ("impl File {", Some(("File", false))),
        ("impl<'a> RegionView<'a> {", Some(("RegionView", false))),
        ("impl fmt::Display for Error {", Some(("Error", false))),
        ("impl<F: Borrow<File>> Cursor<F> {", Some(("Cursor", false))),
        ("impl<F: Fn() -> u8> Made<F> {", Some(("Made", false))),
        ("pub trait Clock: Send + Sync {", Some(("Clock", true))),
        ("pub unsafe trait Medium: Send {", Some(("Medium", true))),
        ("trait Private {", None),
        ("struct File {", None),
    ];
    for (line, expected) in cases {
        let expected = expected.map(|(name, is_trait)| Block { name, is_trait });
        assert_eq!(block(line), expected, "{line}");
    }
}

#[test]
fn walk_of_blocks_gives_methods_to_their_type() {
    let code = "\
impl<F: Borrow<File>> Cursor<F> {
    pub fn new(file: F) -> Cursor<F> {
        let inner = 1;
    }

    pub fn get_ref(&self) -> &File {
}
macro_rules! kinds {
        impl Damage {
            pub const ALL: &'static [Damage] = &[];
        }
}
pub trait Clock {
    fn now(&self) -> Time;
}
pub fn alone() {}
";
    let mut found = Vec::new();
    walk(code, |line, of| {
        if let Some((_, name)) = item(line.trim_start()) {
            found.push((name, of.map(|of| of.name)));
        }
    });
    let expected = [
        ("new", Some("Cursor")),
        ("get_ref", Some("Cursor")),
        ("ALL", Some("Damage")),
        ("Clock", None),
        ("alone", None),
    ];
    assert_eq!(found, expected);
}
