//! `pramfs.h`: each function with its comment, for libpramfs(3).

use roff::{Roff, roman};

use crate::page::unfilled;

/// The header as it is installed.
pub const HEADER: &str = include_str!("../../capi/include/pramfs.h");

/// A function of the C interface.
#[derive(Debug)]
pub struct Function<'a> {
    /// Its name.
    pub name: &'a str,
    /// The declaration, on as many lines as in the header.
    pub declaration: &'a str,
    /// The comment, without its margin.
    pub comment: String,
}

/// Returns the functions of a header in its order.
pub fn functions(header: &str) -> Vec<Function<'_>> {
    let mut functions = Vec::new();
    for part in header.split("\n/**\n").skip(1) {
        let Some((comment, rest)) = part.split_once("\n */\n") else {
            continue;
        };
        let Some((declaration, _)) = rest.split_once(';') else {
            continue;
        };
        let Some((before, _)) = declaration.split_once('(') else {
            continue;
        };
        let name = before.rsplit([' ', '*']).next().unwrap_or_default();
        if declaration.starts_with('#') || !name.starts_with("pramfs_") {
            continue;
        }
        let lines = comment.lines().map(|line| {
            let line = line.trim_start().trim_start_matches('*');
            line.strip_prefix(' ').unwrap_or(line)
        });
        functions.push(Function {
            name,
            declaration,
            comment: lines.collect::<Vec<_>>().join("\n"),
        });
    }
    functions
}

/// The functions as text of a page.
pub(crate) fn reference() -> Roff {
    let mut text = Roff::new();
    for function in functions(HEADER) {
        text.control("SS", [function.name]);
        unfilled(&format!("{};", function.declaration), &mut text);
        for paragraph in function.comment.split("\n\n") {
            text.control("PP", []);
            text.text([roman(paragraph.replace('\n', " "))]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_declared_function_is_found() {
        let found = functions(HEADER);
        for line in HEADER
            .lines()
            .filter(|line| !line.starts_with([' ', '*', '/', '#']))
        {
            let Some((before, _)) = line.split_once('(') else {
                continue;
            };
            let name = before.rsplit([' ', '*']).next().unwrap_or_default();
            assert!(
                found.iter().any(|function| function.name == name),
                "{name} is not in libpramfs(3)"
            );
        }
        assert!(found.len() > 80, "{}", found.len());
        assert!(found.iter().all(|function| !function.comment.is_empty()));
    }
}
