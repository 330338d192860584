//! The text after the options of `--help`: notes, and the exit status.

use clap::Command;
use roff::{Roff, roman};

use crate::page::{Sections, unfilled};

const BEGIN: &str = "Exit status";

/// Returns what follows the options in `--help`, the table of mount options left out.
pub(crate) fn sections(command: &Command, left_out: &str) -> Sections {
    let text = command.get_after_help().map(ToString::to_string);
    let text = text.unwrap_or_default().replace(left_out, "");
    let mut sections = Sections::default();
    let (notes, status) = match text.find(BEGIN) {
        Some(at) => text.split_at(at),
        None => (&*text, ""),
    };
    if !notes.trim().is_empty() {
        sections.add("NOTES", &paragraphs(notes));
    }
    if !status.is_empty() {
        let status = status.strip_prefix("Exit status: ").unwrap_or(status);
        sections.add("EXIT STATUS", &paragraphs(status));
    }
    sections
}

/// Whether a command has an exit status of its own in its help.
pub(crate) fn has_status(command: &Command) -> bool {
    let text = command.get_after_help().map(ToString::to_string);
    text.is_some_and(|text| text.contains(BEGIN))
}

/// Paragraphs are filled; indented lines stay as they are.
fn paragraphs(text: &str) -> Roff {
    let mut roff = Roff::new();
    let mut lines = text.lines().peekable();
    let mut begun = false;
    while let Some(line) = lines.next() {
        if line.trim().is_empty() {
            continue;
        }
        let is_table = line.starts_with(' ');
        let mut part = vec![line];
        while let Some(next) =
            lines.next_if(|l| !l.trim().is_empty() && l.starts_with(' ') == is_table)
        {
            part.push(next);
        }
        if is_table {
            unfilled(&part.join("\n"), &mut roff);
        } else {
            if begun {
                roff.control("PP", []);
            }
            roff.text([roman(part.join(" "))]);
        }
        begun = true;
    }
    roff
}
