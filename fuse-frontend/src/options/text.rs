//! Text generated from the table: `--help`, messages, `docs/mounting.md`, pramfs(5).

use std::fmt::Write as _;

use super::table::{OPTIONS, Row, Takes};

/// Width of a line of the help.
const WIDTH: usize = 79;
const INDENT: usize = 31;

/// Returns the option as it is written: `cache=auto|none`.
fn spelled(row: &Row) -> String {
    let name = row.names[0];
    match &row.takes {
        Takes::OneOf(choices) => {
            let values: Vec<_> = choices.iter().map(|c| c.value).collect();
            format!("{name}={}", values.join("|"))
        }
        Takes::Text { shown, .. } => format!("{name}={shown}"),
        Takes::Refused(_) => row
            .names
            .iter()
            .map(|n| format!("{n}="))
            .collect::<Vec<_>>()
            .join(", "),
        _ => name.to_owned(),
    }
}

/// Returns the values that an option takes, for a message.
pub(super) fn choices(row: &Row) -> String {
    let Takes::OneOf(choices) = &row.takes else {
        return String::new();
    };
    let name = row.names[0];
    let all: Vec<_> = choices
        .iter()
        .map(|c| format!("{name}={}", c.value))
        .collect();
    match &all[..] {
        [only] => format!("only {only} in this version"),
        _ => format!("one of {}", all.join(", ")),
    }
}

/// Returns the sentence, with the default of a choice.
fn sentence(row: &Row) -> String {
    match &row.takes {
        Takes::OneOf(choices) if choices.len() > 1 => {
            format!("{} (default {})", row.help, choices[0].value)
        }
        Takes::Text {
            default: Some(default),
            ..
        } => format!("{} (default {})", row.help, default()),
        _ => row.help.to_owned(),
    }
}

/// Appends words to `line`, and full lines to the text; continuation lines are indented.
fn wrap(text: &mut String, mut line: String, indent: usize, words: &str) {
    for word in words.split(' ') {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = " ".repeat(indent);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}

/// Returns the part of `--help` about options.
pub fn help() -> String {
    let mut text = String::from("Options after -o:\n");
    for row in OPTIONS.iter().filter(|row| !row.help.is_empty()) {
        let mut line = format!("  {:<1$}", spelled(row), INDENT - 3);
        if line.len() >= INDENT {
            let _ = writeln!(text, "{line}");
            line = " ".repeat(INDENT - 1);
        }
        wrap(&mut text, line, INDENT - 1, &sentence(row));
    }
    let changed = OPTIONS
        .iter()
        .filter(|row| !row.flags.is_empty() && !row.help.is_empty())
        .map(|row| row.names[0]);
    let changed = changed.collect::<Vec<_>>().join(", ");
    let rest = format!("A remount changes {changed}. It leaves other options as mounted.");
    wrap(&mut text, String::new(), 0, &rest);
    text.push_str(
        "Options that only mount(8) and fstab use are accepted. Unknown options are\n\
         refused, or ignored with -s.\n",
    );
    text
}

/// An option as the documents describe it.
#[derive(Debug, Clone)]
pub struct Documented {
    /// Its name.
    pub name: &'static str,
    /// The option as it is written: `cache=auto|none`.
    pub spelled: String,
    /// Other names for it.
    pub also: Vec<&'static str>,
    /// A sentence without a full stop, with the default.
    pub meaning: String,
    /// Its values, if it has a list of them.
    pub values: Vec<&'static str>,
    /// It takes a text as value.
    pub takes_text: bool,
    /// It is known, and never allowed.
    pub is_refused: bool,
    /// A remount changes it.
    pub is_changed_by_remount: bool,
}

impl Documented {
    /// What a shell can propose for it: each value, or the name and `=` before a text.
    pub fn proposals(&self) -> Vec<String> {
        let name = self.name;
        match (self.is_refused, self.takes_text, &self.values[..]) {
            (true, ..) => Vec::new(),
            (_, true, _) => vec![format!("{name}=")],
            (_, _, []) => vec![name.to_owned()],
            (_, _, values) => values
                .iter()
                .map(|value| format!("{name}={value}"))
                .collect(),
        }
    }
}

/// Returns the options of the documents, in the order of the help.
pub fn documented() -> impl Iterator<Item = Documented> {
    let rows = OPTIONS.iter().filter(|row| !row.help.is_empty());
    rows.map(|row| {
        let is_refused = matches!(row.takes, Takes::Refused(_));
        Documented {
            name: row.names[0],
            spelled: spelled(row),
            also: match is_refused {
                true => Vec::new(),
                false => row.names[1..].to_vec(),
            },
            meaning: sentence(row),
            values: match &row.takes {
                Takes::OneOf(choices) => choices.iter().map(|choice| choice.value).collect(),
                _ => Vec::new(),
            },
            takes_text: matches!(row.takes, Takes::Text { .. }),
            is_refused,
            is_changed_by_remount: !is_refused && !row.flags.is_empty(),
        }
    })
}

/// Returns the names of options that are accepted for mount(8) and fstab, and do nothing here.
pub fn accepted() -> impl Iterator<Item = &'static str> {
    let rows = OPTIONS.iter().filter(|row| row.help.is_empty());
    let rows = rows.filter(|row| matches!(row.takes, Takes::Nothing(_) | Takes::Anything));
    rows.flat_map(|row| row.names.iter().copied())
}

/// Returns the rows of the table in `docs/mounting.md`.
#[cfg(test)]
pub(super) fn document() -> String {
    let mut text = String::from("| option | meaning | a remount |\n|---|---|---|\n");
    for option in documented() {
        let others: Vec<_> = option.also.iter().map(|n| format!("`{n}`")).collect();
        let also = match others.is_empty() {
            true => String::new(),
            false => format!(" (also {})", others.join(", ")),
        };
        let on_remount = match (option.is_refused, option.is_changed_by_remount) {
            (true, _) => "refused",
            (false, true) => "changes it",
            (false, false) => "leaves it",
        };
        let spelled = option.spelled.replace('|', "\\|");
        let _ = writeln!(
            text,
            "| `{spelled}`{also} | {} | {on_remount} |",
            option.meaning
        );
    }
    text
}
