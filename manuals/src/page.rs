//! A man page under construction: sections in the order of man-pages(7).

use std::io;

use roff::{Inline, Roff};

/// A finished page.
#[derive(Debug, Clone)]
pub struct Page {
    /// Name, as in `man NAME`.
    pub name: String,
    /// Section of the manual.
    pub section: u8,
    /// The source for man(1).
    pub text: String,
}

impl Page {
    /// `NAME.SECTION`.
    pub fn file_name(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    /// A page that shows another one of the same section.
    pub(crate) fn alias(name: &str, of: &Page) -> Page {
        Page {
            name: name.to_owned(),
            section: of.section,
            text: format!(".so man{}/{}\n", of.section, of.file_name()),
        }
    }
}

/// The order of the sections. Others come between OPTIONS and EXIT STATUS, as they were added.
const FIRST: [&str; 4] = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"];
const LAST: [&str; 6] = [
    "EXIT STATUS",
    "ENVIRONMENT",
    "FILES",
    "NOTES",
    "EXAMPLES",
    "SEE ALSO",
];

/// The sections of a page, each with its source below the title.
#[derive(Default)]
pub(crate) struct Sections(Vec<(String, String)>);

impl Sections {
    /// Appends to a section, which it begins if it is not there yet.
    pub(crate) fn add(&mut self, title: &str, text: &Roff) {
        self.add_source(title, &source(text));
    }

    fn add_source(&mut self, title: &str, text: &str) {
        match self.0.iter_mut().find(|(known, _)| known == title) {
            Some((_, before)) => {
                let begins_itself = [".PP", ".TP", ".RS", ".SS", ".IP"];
                if !begins_itself.iter().any(|macro_| text.starts_with(macro_)) {
                    before.push_str(".PP\n");
                }
                before.push_str(text);
            }
            None => self.0.push((title.to_owned(), text.to_owned())),
        }
    }

    /// Appends sections.
    pub(crate) fn extend(&mut self, others: Sections) {
        for (title, text) in others.0 {
            self.add_source(&title, &text);
        }
    }

    /// The section of this title alone.
    pub(crate) fn only(mut self, title: &str) -> Sections {
        self.0.retain(|(known, _)| known == title);
        self
    }

    /// Appends what clap_mangen writes of sections, titles included.
    pub(crate) fn written(
        &mut self,
        write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut text = Vec::new();
        write(&mut text)?;
        let text = String::from_utf8(text).map_err(io::Error::other)?;
        let text = text.strip_prefix(&preamble()).unwrap_or(&text);
        // Before a list of values; mandoc warns of the empty line.
        let text = text.replace("\n.br\n\n.br\n", "\n.sp\n");
        for section in text.split(".SH ").skip(1) {
            let (title, body) = section.split_once('\n').unwrap_or((section, ""));
            self.add_source(title.trim_matches('"'), body);
        }
        Ok(())
    }

    /// Makes the page.
    pub(crate) fn page(mut self, name: &str, section: u8) -> Page {
        let manual = match section {
            1 => "User Commands",
            3 => "Library Functions",
            5 => "File Formats",
            7 => "Miscellaneous",
            _ => "System Administration",
        };
        self.0.sort_by_key(|(title, _)| place(title));
        let mut head = Roff::new();
        let version = concat!("pramfs ", env!("CARGO_PKG_VERSION"));
        let (title, number) = (name.to_uppercase(), section.to_string());
        // The crate would leave the empty date out. A build is the same on every day.
        head.control("TH", [&*title, &*number, "\"\"", version, manual]);
        // Neither broken words nor stretched spaces: people copy commands from a terminal.
        head.control("nr", ["HY", "0"]);
        head.control("nh", []);
        head.control("ad", ["l"]);
        let mut text = head.render();
        for (title, body) in self.0 {
            text.push_str(&source(Roff::new().control("SH", [&*title])));
            text.push_str(&body);
        }
        Page {
            name: name.to_owned(),
            section,
            text,
        }
    }
}

/// What the crate roff writes before any text: how apostrophes look.
fn preamble() -> String {
    Roff::new().render()
}

/// The source of a part of a page.
fn source(text: &Roff) -> String {
    let text = text.render();
    text.strip_prefix(&preamble()).unwrap_or(&text).to_owned()
}

fn place(title: &str) -> usize {
    let at = |list: &[&str]| list.iter().position(|known| *known == title);
    match (at(&FIRST), at(&LAST)) {
        (Some(at), _) => at,
        (_, Some(at)) => FIRST.len() + 1 + at,
        (None, None) => FIRST.len(),
    }
}

/// Lines that stay as they are.
pub(crate) fn unfilled(text: &str, into: &mut Roff) {
    into.control("RS", ["4"]);
    into.control("EX", []);
    for line in text.lines() {
        match line.is_empty() {
            // An empty line of the source is a paragraph.
            true => into.control("sp", []),
            false => into.text([roff::roman(line)]),
        };
    }
    into.control("EE", []);
    into.control("RE", []);
}

/// An entry of a list of terms.
pub(crate) fn term(term: Vec<Inline>, meaning: Vec<Inline>, into: &mut Roff) {
    into.control("TP", []);
    into.text(term);
    into.text(meaning);
}
