//! Compares `docs/format.md` with the code. The tables must equal those of the code,
//! and a reader written only from the document must read the engine's images.
//!
//! `UPDATE_FORMAT_DOC=1 cargo test -p pramfs-tests --test format_doc` regenerates the
//! tables in the document. Its diff then shows every change of the format.

mod reader;
mod reads;
mod tables;

use std::fmt::Write;
use std::path::PathBuf;

const BEGIN: &str = "<!-- begin table: ";
const END: &str = "<!-- end table: ";
const CLOSE: &str = " -->";

fn path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/format.md"))
}

/// Returns the tables that the document must have, by name.
fn expected() -> Vec<(String, String)> {
    let structs = pramfs_medium::media::tables();
    let mut all: Vec<_> = structs
        .iter()
        .map(|t| (t.name.to_owned(), t.markdown()))
        .collect();
    all.extend(tables::others());
    all
}

/// Replaces the tables between the markers of the document. Fails for a marker
/// without a table and for a table without a marker.
fn with_tables(text: &str, tables: &[(String, String)]) -> String {
    let mut out = String::new();
    let mut seen = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let name_at = at + BEGIN.len();
        let name = &rest[name_at..name_at + rest[name_at..].find(CLOSE).expect("an open marker")];
        let table = tables.iter().find(|(n, _)| n == name).unwrap_or_else(|| {
            panic!("docs/format.md has a marker for the unknown table \"{name}\"")
        });
        let end_marker = format!("{END}{name}{CLOSE}");
        let end = rest
            .find(&end_marker)
            .unwrap_or_else(|| panic!("the table \"{name}\" of docs/format.md has no end marker"));
        out += &rest[..name_at + name.len() + CLOSE.len()];
        let _ = write!(out, "\n{}\n{end_marker}", table.1.trim_end());
        seen.push(name.to_owned());
        rest = &rest[end + end_marker.len()..];
    }
    out += rest;
    for (name, _) in tables {
        let times = seen.iter().filter(|s| *s == name).count();
        assert_eq!(
            times, 1,
            "docs/format.md has the table \"{name}\" {times} times, not once"
        );
    }
    out
}

/// Returns the differing lines in the form of a diff, at most 40 of each side.
fn difference(old: &str, new: &str) -> Option<String> {
    if old == new {
        return None;
    }
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let tail = old[same..]
        .iter()
        .rev()
        .zip(new[same..].iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let mut out = format!("at line {}:\n", same + 1);
    for (sign, lines) in [('-', &old), ('+', &new)] {
        for line in lines[same..lines.len() - tail].iter().take(40) {
            let _ = writeln!(out, "{sign}{line}");
        }
    }
    Some(out)
}

#[test]
fn format_tables_match_code() {
    let text = std::fs::read_to_string(path()).expect("docs/format.md");
    let right = with_tables(&text, &expected());
    if std::env::var_os("UPDATE_FORMAT_DOC").is_some() {
        std::fs::write(path(), &right).expect("docs/format.md can be written");
        return;
    }
    if let Some(diff) = difference(&text, &right) {
        panic!(
            "docs/format.md differs from the code, {diff}\n\
             If the change of the format is intended, regenerate the tables and check the diff:\n\
             UPDATE_FORMAT_DOC=1 cargo test -p pramfs-tests --test format_doc"
        );
    }
}

#[test]
fn differing_table_is_shown_as_diff() {
    let marked = |body: &str| format!("a\n{BEGIN}x{CLOSE}\n{body}\n{END}x{CLOSE}\nb\n");
    let table = [("x".to_owned(), "| 1 |\n| 2 |\n".to_owned())];
    let right = with_tables(&marked("old"), &table);
    assert_eq!(right, marked("| 1 |\n| 2 |"));
    assert_eq!(difference(&right, &with_tables(&right, &table)), None);
    let diff = difference(&marked("| 1 |\n| 3 |"), &right).expect("a difference");
    assert_eq!(diff, "at line 4:\n-| 3 |\n+| 2 |\n");
}

/// Passages of the document outside the tables contain constants of the code.
#[test]
fn format_text_matches_code_constants() {
    use pramfs_medium::media::{inode, superblock};
    let text = std::fs::read_to_string(path()).expect("docs/format.md");
    let facts = [
        format!("| {:#05x} | 512 | static part", 0),
        format!(
            "| {:#05x} | 192 | dynamic words",
            superblock::DYNAMIC_OFFSET
        ),
        format!(
            "| {:#05x} | {} | internal inode of the inode table |",
            superblock::INODE_TABLE_OFFSET,
            inode::INODE_SIZE
        ),
        format!(
            "| {:#05x} | {} | internal inode of the inode-group table |",
            superblock::INODE_GROUPS_OFFSET,
            inode::INODE_SIZE
        ),
        format!(
            "| {:#05x} | {} | internal inode of the block-group table |",
            superblock::BLOCK_GROUPS_OFFSET,
            inode::INODE_SIZE
        ),
        format!("keeps the bits {:#010x} of", inode::FLAGS_KEPT),
        format!("symlink, to {} bytes", inode::INLINE_TARGET),
        format!("region, version {}", superblock::VERSION),
    ];
    for fact in facts {
        assert!(
            text.contains(&fact),
            "docs/format.md does not contain \"{fact}\""
        );
    }
}
