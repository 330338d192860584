//! All pages.

use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use pramfs_fuse::options;
use roff::{Roff, bold, italic, roman};

use crate::page::{Page, Sections, term};
use crate::{Program, exit_status, header, markdown, programs};

/// Pages that belong to no program: name, section, and the line of NAME.
const OVERVIEWS: [(&str, u8, &str); 3] = [
    (
        "pramfs",
        5,
        "mount options of pramfs, and what is on the medium",
    ),
    (
        "pramfs",
        7,
        "a crash-safe file system for persistent memory in user space",
    ),
    ("libpramfs", 3, "access files in persistent memory from C"),
];

/// Returns every page.
///
/// # Errors
/// A file of `pages/` is missing or is not understood.
pub fn all() -> io::Result<Vec<Page>> {
    let mut pages = Vec::new();
    for program in programs() {
        let page = of_program(&program)?;
        pages.extend(program.also.iter().map(|name| Page::alias(name, &page)));
        pages.push(page);
        let mut built = program.command.clone();
        built.build();
        for sub in built.get_subcommands().filter(|sub| is_shown(sub)) {
            pages.push(of_subcommand(&program, sub)?);
        }
    }
    for (name, section, what) in OVERVIEWS {
        let mut sections = Sections::default();
        let line = format!("{name} - {what}");
        sections.add("NAME", Roff::new().text([roman(line)]));
        sections.extend(by_hand(name, section)?);
        pages.push(sections.page(name, section));
    }
    Ok(pages)
}

/// Tells whether a subcommand has a page.
pub fn is_shown(sub: &Command) -> bool {
    !sub.is_hide_set()
}

fn of_program(program: &Program) -> io::Result<Page> {
    let mut command = program.command.clone();
    command.build();
    let mut sections = written(&command, program.name, program.section)?;
    sections.extend(exit_status::sections(&command, &options::help()));
    if command.has_subcommands() {
        sections.add("COMMANDS", &subcommands(&command, program));
    }
    sections.extend(by_hand(program.name, program.section)?);
    Ok(sections.page(program.name, program.section))
}

fn of_subcommand(program: &Program, sub: &Command) -> io::Result<Page> {
    let name = format!("{}-{}", program.name, sub.get_name());
    let mut sections = written(sub, &name, program.section)?;
    sections.extend(exit_status::sections(sub, ""));
    if !exit_status::has_status(sub) {
        let of_all = exit_status::sections(&program.command, "");
        sections.extend(of_all.only("EXIT STATUS"));
    }
    sections.extend(by_hand(&name, program.section)?);
    Ok(sections.page(&name, program.section))
}

/// What clap_mangen writes of a command line.
fn written(command: &Command, name: &str, section: u8) -> io::Result<Sections> {
    let about = command.get_about().map(ToString::to_string);
    let about = about.unwrap_or_default();
    let mut sections = Sections::default();
    let line = format!("{name} - {}", lower_first(&about));
    sections.add("NAME", Roff::new().text([roman(line)]));
    let man = Man::new(command.clone().display_name(name)).section(section.to_string());
    sections.written(|text| man.render_synopsis_section(text))?;
    sections.written(|text| man.render_description_section(text))?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        sections.written(|text| man.render_options_section(text))?;
    }
    Ok(sections)
}

/// The description in NAME begins with a small letter, except for a name.
fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match (chars.next(), text.chars().nth(1)) {
        (Some(first), Some(second)) if !second.is_uppercase() => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

fn subcommands(command: &Command, program: &Program) -> Roff {
    let mut text = Roff::new();
    for sub in command.get_subcommands().filter(|sub| is_shown(sub)) {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        let name = format!("{}-{}", program.name, sub.get_name());
        let page = vec![bold(name), roman(format!("({})", program.section))];
        term(page, vec![roman(about)], &mut text);
    }
    text
}

/// The directory of the files that are written by hand.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("pages")
}

/// The sections of a page that are written by hand.
fn by_hand(name: &str, section: u8) -> io::Result<Sections> {
    let path = sources().join(format!("{name}.{section}.md"));
    let within =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(within)?;
    markdown::sections(&text, &generated).map_err(within)
}

fn generated(name: &str) -> Option<Roff> {
    match name {
        "mount options" => Some(mount_options()),
        "accepted options" => {
            let all: Vec<_> = options::accepted().collect();
            Some(Roff::from(format!("{}.", all.join(", "))))
        }
        "functions" => Some(header::reference()),
        _ => None,
    }
}

fn mount_options() -> Roff {
    let mut text = Roff::new();
    for option in options::documented() {
        let mut head = vec![bold(&*option.spelled)];
        for also in &option.also {
            head.extend([roman(", "), bold(*also)]);
        }
        let mut meaning = vec![roman(format!("{}.", option.meaning))];
        if option.is_changed_by_remount {
            meaning.extend([roman(" "), italic("A remount changes it.")]);
        }
        term(head, meaning, &mut text);
    }
    text
}
