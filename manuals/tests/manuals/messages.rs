//! `docs/troubleshooting.md` against the messages of the tools, of the preload library, and of the
//! interfaces of C and Python.
//!
//! These count: what a program prints to standard error by itself, and the text of a failure. Two kinds
//! have no rows. `Failure::usage`, `Failure::invalid`, ValueError and TypeError are about wrong
//! arguments, which their message names. `Failure::os` has the error of the system; its
//! messages begin with "cannot". A text with fewer than [`LEAST`] letters of its own, such as
//! `{path}: {error}`, passes on the message of another place.

use std::collections::BTreeSet;

use crate::troubleshooting::{LEAST, constant_part, literal, page, sources};

/// A crate, the call, and which of its arguments is the message.
const CALLS: [(&str, &str, usize); 5] = [
    ("mkfs", "eprintln!(", 0),
    ("mkfs", "Failure::new(", 1),
    ("capi", "Failure::new(", 1),
    ("preload", "writeln!(", 1),
    // With an errno: of OSError and its subclasses.
    ("python", "Error::new_err((", 1),
];

/// The arguments of a call, from after its parenthesis.
fn arguments(text: &str) -> Vec<&str> {
    let (mut found, mut begin, mut depth) = (Vec::new(), 0, 0u32);
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                while let Some((_, c)) = chars.next() {
                    match c {
                        '"' => break,
                        '\\' => {
                            let _escaped = chars.next();
                        }
                        _ => {}
                    }
                }
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => {
                found.push(&text[begin..at]);
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The message of a call: in its argument, or in the variable that its argument is.
fn message(before: &str, argument: &str) -> Option<String> {
    let name = argument.trim();
    let is_name = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    if !is_name {
        return literal(argument);
    }
    let at = before.rfind(&format!("let {name} = "))?;
    literal(&before[at..])
}

/// Without the name of the program at its beginning, and with `…` for what differs.
fn shown(message: &str) -> String {
    let mut rest = message;
    if let Some(after) = rest.strip_prefix("pramfs")
        && let Some((_command, text)) = after.split_once(": ")
    {
        rest = text;
        for kind in ["warning: ", "note: "] {
            rest = rest.strip_prefix(kind).unwrap_or(rest);
        }
    }
    let mut shown = String::new();
    let mut parts = rest.split('{');
    shown += parts.next().unwrap_or_default();
    for part in parts {
        shown.push('…');
        shown += part.split_once('}').map_or("", |(_, text)| text);
    }
    shown
}

/// Whether a row stands for a message: `…` for any text.
fn stands_for(row: &str, message: &str) -> bool {
    let mut parts = row.split('…');
    let Some(mut rest) = message.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

/// The first column of the tables, if it says something by itself.
fn rows(page: &str) -> Vec<&str> {
    page.lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(message, _)| message)
        .filter(|message| {
            message
                .split('…')
                .map(|part| part.trim().len())
                .sum::<usize>()
                >= LEAST
        })
        .collect()
}

#[test]
fn troubleshooting_page_has_every_message_of_tools_and_interfaces() {
    let page = page();
    let rows = rows(&page);
    let mut found = BTreeSet::new();
    let mut missing = BTreeSet::new();
    for (of, call, which) in CALLS {
        for (path, code) in sources(of) {
            for (at, _) in code.match_indices(call) {
                let arguments = arguments(&code[at + call.len()..]);
                let argument = arguments.get(which);
                let text = argument.and_then(|argument| message(&code[..at], argument));
                let Some(text) = text.map(|text| shown(&text)) else {
                    continue;
                };
                if constant_part(&text.replace('…', "{}")).len() < LEAST {
                    continue;
                }
                if !rows.iter().any(|row| stands_for(row, &text)) {
                    missing.insert(format!("{}: {text}", path.display()));
                }
                found.insert(text);
            }
        }
    }
    assert!(
        missing.is_empty(),
        "docs/troubleshooting.md lacks {missing:#?}"
    );
    assert!(found.len() > 80, "{} messages", found.len());
}

#[test]
fn failures_of_the_system_begin_with_cannot() {
    for (path, code) in sources("mkfs") {
        for (at, call) in code.match_indices("Failure::os(") {
            let arguments = arguments(&code[at + call.len()..]);
            let what = arguments.first().and_then(|what| literal(what));
            let says = what.is_none_or(|what| what.starts_with("cannot "));
            assert!(says, "{}: {arguments:?}", path.display());
        }
    }
}

#[test]
fn troubleshooting_page_has_every_exception_of_python() {
    let page = page();
    let mut classes = 0;
    for (path, code) in sources("python") {
        for (at, call) in code.match_indices("create_exception!(") {
            let class = arguments(&code[at + call.len()..])[1].trim();
            let row = format!("| `pramfs.{class}` |");
            assert!(page.contains(&row), "{}: {class}", path.display());
            classes += 1;
        }
    }
    assert_eq!(classes, 5);
}

#[test]
fn row_stands_for_messages_that_differ_where_it_has_dots() {
    assert!(stands_for("… exists; use -f", "… exists; use -f"));
    assert!(stands_for("a: …", "a: … and …"));
    assert!(stands_for("a …, b …", "a …, b …, c"));
    for (row, message) in [
        ("… exists; use -f", "… exists; use -f, or not"),
        ("the region is in use", "the region is in use by …"),
        ("a …, b …", "a …, c …"),
        ("… a", "… ab"),
    ] {
        assert!(!stands_for(row, message), "{row}: {message}");
    }
    assert_eq!(shown("pramfs get: note: {}: {e}"), "…: …");
    assert_eq!(shown("pramfs: warning: {}: odd"), "…: odd");
    assert_eq!(
        arguments("\"a, b)\", f(x, y), z) + 1"),
        ["\"a, b)\"", " f(x, y)", " z"]
    );
}
