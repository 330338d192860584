//! `docs/troubleshooting.md` against the sources: every message of a mount and of its log, every
//! errno of the library, and every reason of the tools is there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The page, without the escapes of tables.
pub(crate) fn page() -> String {
    let text = std::fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    text.replace("\\|", "|")
}

/// The sources of a crate, without its tests.
pub(crate) fn sources(of: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut dirs = vec![root().join(of).join("src")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.contains("tests") {
                continue;
            }
            if path.is_dir() {
                dirs.push(path);
            } else if name.ends_with(".rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                found.push((path, code.to_owned()));
            }
        }
    }
    assert!(!found.is_empty(), "{of}");
    found
}

/// The first string literal of a text, if it is near the beginning.
pub(crate) fn literal(text: &str) -> Option<String> {
    let begin = text.find('"').filter(|begin| *begin < 400)? + 1;
    let mut literal = String::new();
    let mut chars = text[begin..].chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Some(literal),
            // The line goes on without its indentation.
            '\\' if chars.peek() == Some(&'\n') => {
                while chars.next_if(|c| c.is_whitespace()).is_some() {}
            }
            '\\' => literal.extend(chars.next()),
            c => literal.push(c),
        }
    }
    None
}

/// The longest part of a message that is the same each time.
pub(crate) fn constant_part(message: &str) -> &str {
    let outside = message.split('{').enumerate().map(|(n, part)| match n {
        0 => part,
        _ => part.split_once('}').map_or("", |(_, rest)| rest),
    });
    let trimmed = outside.map(|part| part.trim_matches([' ', ':', ';', ',', '(', ')']));
    trimmed.max_by_key(|part| part.len()).unwrap_or_default()
}

/// What is shorter says nothing by itself: `{path}: {error}`.
pub(crate) const LEAST: usize = 14;

#[test]
fn troubleshooting_page_has_every_message() {
    let page = page();
    let mut messages = 0;
    let mut missing = BTreeSet::new();
    for of in ["fuse-frontend", "control", "pramfs-rs", "medium", "client"] {
        for (path, code) in sources(of) {
            for call in ["warn!(", "error!(", "Failure::mount(", "Failure::system("] {
                for (at, _) in code.match_indices(call) {
                    let before = code[..at].chars().next_back().unwrap_or(' ');
                    let Some(message) = literal(&code[at..]) else {
                        continue;
                    };
                    let part = constant_part(&message);
                    if before.is_alphanumeric() || before == '_' || part.len() < LEAST {
                        continue;
                    }
                    messages += 1;
                    if !page.contains(part) {
                        missing.insert(format!("{}: {message}", path.display()));
                    }
                }
            }
        }
    }
    assert!(
        missing.is_empty(),
        "docs/troubleshooting.md lacks {missing:#?}"
    );
    assert!(messages > 150, "{messages} messages");
}

#[test]
fn troubleshooting_page_has_every_errno_of_the_library() {
    let page = page();
    let mut found = BTreeSet::new();
    for file in [
        "medium/src/error.rs",
        "medium/src/pmem/error.rs",
        "client/src/error.rs",
    ] {
        let code = std::fs::read_to_string(root().join(file)).unwrap();
        for part in code.split("libc::E").skip(1) {
            let end = part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap();
            found.insert(format!("E{}", &part[..end]));
        }
    }
    assert!(found.len() > 25, "{found:?}");
    for errno in found {
        assert!(page.contains(&format!("`{errno}`")), "{errno} is missing");
    }
}

#[test]
fn troubleshooting_page_has_every_reason_of_the_tools() {
    let page = page();
    let mut found = BTreeSet::new();
    for (path, code) in sources("mkfs") {
        let mut marks = vec!["Failure::new(", "reason: \""];
        if path.ends_with("failure.rs") {
            marks.push("=> \"");
        }
        for mark in marks {
            for (at, _) in code.match_indices(mark) {
                let from = at + mark.trim_end_matches('"').len();
                let word = literal(&code[from..]).unwrap_or_default();
                let is_reason = |c: char| c.is_ascii_lowercase() || c == '-';
                if !word.is_empty() && word.chars().all(is_reason) {
                    found.insert(word);
                }
            }
        }
    }
    assert!(found.len() > 12, "{found:?}");
    for reason in found {
        assert!(
            page.contains(&format!("| `{reason}` |")),
            "{reason} is missing"
        );
    }
}
