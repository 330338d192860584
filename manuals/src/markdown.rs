//! The files in `pages/`: Markdown to the source of a page.
//!
//! A heading of the second level is a section, one of the third a subsection. An item of a
//! list whose text begins with code or bold words and a colon is a term with its meaning. A
//! comment `<!-- NAME -->` is the place of generated text.

use std::io;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Parser, Tag, TagEnd};
use roff::{Inline, Roff, bold, italic, roman};

use crate::page::{Sections, unfilled};

/// Text for a `<!-- NAME -->`.
pub(crate) type Generated<'a> = &'a dyn Fn(&str) -> Option<Roff>;

/// Returns the sections of a file.
///
/// # Errors
/// Text before the first section, or Markdown that a page cannot show.
pub(crate) fn sections(text: &str, generated: Generated<'_>) -> io::Result<Sections> {
    let mut writer = Writer {
        sections: Sections::default(),
        title: String::new(),
        body: Roff::new(),
        line: Vec::new(),
        face: Face::Roman,
        heading: None,
        items: 0,
        block: None,
        after_title: true,
        generated,
    };
    for event in Parser::new(text) {
        writer.event(event)?;
    }
    writer.end_section();
    Ok(writer.sections)
}

#[derive(Clone, Copy)]
enum Face {
    Roman,
    Bold,
    Italic,
}

struct Writer<'a> {
    sections: Sections,
    title: String,
    body: Roff,
    line: Vec<Inline>,
    face: Face,
    heading: Option<HeadingLevel>,
    /// Depth of lists.
    items: usize,
    /// Text of a block of code.
    block: Option<String>,
    /// Nothing stands between the title and what comes next.
    after_title: bool,
    generated: Generated<'a>,
}

fn refused<T>(what: impl std::fmt::Display) -> io::Result<T> {
    Err(io::Error::other(format!("a page cannot show {what}")))
}

impl Writer<'_> {
    fn event(&mut self, event: Event<'_>) -> io::Result<()> {
        match event {
            Event::Start(tag) => self.start(tag)?,
            Event::End(tag) => self.end(tag)?,
            Event::Text(text) => match &mut self.block {
                Some(block) => block.push_str(&text),
                None => self.word(&text),
            },
            Event::Code(text) => self.line.push(bold(&*text)),
            Event::SoftBreak => self.line.push(roman(" ")),
            Event::HardBreak => self.line.push(Inline::LineBreak),
            Event::Html(text) => self.insert(&text)?,
            other => return refused(format_args!("{other:?}")),
        }
        Ok(())
    }

    fn start(&mut self, tag: Tag<'_>) -> io::Result<()> {
        match tag {
            Tag::Heading { level, .. } => {
                if level == HeadingLevel::H2 {
                    self.end_section();
                }
                self.heading = Some(level);
            }
            Tag::CodeBlock(CodeBlockKind::Fenced(_) | CodeBlockKind::Indented) => {
                self.end_item_line();
                self.block = Some(String::new());
            }
            Tag::List(None) | Tag::Item => self.items += usize::from(matches!(tag, Tag::Item)),
            Tag::Strong => self.face = Face::Bold,
            Tag::Emphasis => self.face = Face::Italic,
            Tag::Paragraph | Tag::Link { .. } | Tag::HtmlBlock => {}
            other => return refused(format_args!("{other:?}")),
        }
        Ok(())
    }

    fn end(&mut self, tag: TagEnd) -> io::Result<()> {
        match tag {
            TagEnd::Heading(level) => {
                let words = std::mem::take(&mut self.line);
                let title = plain(&words);
                self.heading = None;
                match level {
                    HeadingLevel::H2 => self.title = title.to_uppercase(),
                    HeadingLevel::H3 => {
                        self.body.control("SS", [&*title]);
                    }
                    // The name of the page.
                    _ => return Ok(()),
                }
                self.after_title = true;
            }
            TagEnd::CodeBlock => {
                let block = self.block.take().unwrap_or_default();
                unfilled(&block, &mut self.body);
                self.after_title = false;
            }
            TagEnd::Paragraph if self.items == 0 => {
                if !self.after_title {
                    self.body.control("PP", []);
                }
                self.flush();
            }
            TagEnd::Item => {
                self.end_item_line();
                self.items -= 1;
            }
            TagEnd::Strong | TagEnd::Emphasis => self.face = Face::Roman,
            _ => {}
        }
        Ok(())
    }

    fn word(&mut self, text: &str) {
        self.line.push(match self.face {
            Face::Roman => roman(text),
            Face::Bold => bold(text),
            Face::Italic => italic(text),
        });
    }

    fn flush(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.body.text(line);
            self.after_title = false;
        }
    }

    /// Ends the text of an item: a term with its meaning, or a bullet.
    fn end_item_line(&mut self) {
        if self.items == 0 || self.line.is_empty() {
            return;
        }
        let colon = self.line.iter().position(
            |part| matches!(part, Inline::Roman(text) if text.starts_with(": ") || text == ":"),
        );
        let all_before_are_terms = |at: usize| {
            self.line[..at].iter().all(|part| match part {
                Inline::Roman(text) => text == ", ",
                _ => true,
            })
        };
        match colon {
            Some(at) if at > 0 && all_before_are_terms(at) => {
                let mut meaning = self.line.split_off(at);
                if let Some(Inline::Roman(first)) = meaning.first_mut() {
                    *first = first.trim_start_matches(':').trim_start().to_owned();
                }
                meaning.retain(|part| !matches!(part, Inline::Roman(text) if text.is_empty()));
                self.body.control("TP", []);
                self.flush();
                self.line = meaning;
            }
            _ => {
                self.body.control("IP", ["\\(bu", "2"]);
            }
        }
        self.flush();
    }

    fn insert(&mut self, html: &str) -> io::Result<()> {
        let name = html.trim().strip_prefix("<!-- ");
        let Some(name) = name.and_then(|rest| rest.strip_suffix(" -->")) else {
            return refused(html);
        };
        match (self.generated)(name) {
            Some(text) => self.body.extend([text]),
            None => {
                return refused(format_args!(
                    "<!-- {name} -->, which is generated by nothing"
                ));
            }
        }
        self.after_title = false;
        Ok(())
    }

    fn end_section(&mut self) {
        let (title, body) = (
            std::mem::take(&mut self.title),
            std::mem::take(&mut self.body),
        );
        if !title.is_empty() {
            self.sections.add(&title, &body);
        }
        self.after_title = true;
    }
}

fn plain(words: &[Inline]) -> String {
    let text = |part: &Inline| match part {
        Inline::Roman(text) | Inline::Bold(text) | Inline::Italic(text) => text.clone(),
        Inline::LineBreak => " ".to_owned(),
    };
    words.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> String {
        let sections = sections(text, &|name| {
            (name == "place").then(|| Roff::from("generated"))
        });
        sections.unwrap().page("x", 7).text
    }

    #[test]
    fn section_with_terms_and_code_is_written_in_macros() {
        let text = page(
            "# x\n\n## Files\n\nFirst.\n\nSecond *word*.\n\n- `/etc/fstab`: mounts\n- bullet\n\n```\na 'b'\n.c\n```\n",
        );
        let body = text.split(".SH ").nth(1).unwrap();
        assert_eq!(
            body,
            "FILES\nFirst.\n.PP\nSecond \\fIword\\fR.\n.TP\n\\fB/etc/fstab\\fR\nmounts\n\
             .IP \\(bu 2\nbullet\n.RS 4\n.EX\na \\*(Aqb\\*(Aq\n\\&.c\n.EE\n.RE\n"
        );
    }

    #[test]
    fn comment_is_replaced_by_generated_text() {
        assert!(page("## A\n\n<!-- place -->\n").contains(".SH A\ngenerated\n"));
        assert!(sections("## A\n\n<!-- other -->\n", &|_| None).is_err());
    }

    #[test]
    fn table_is_refused_rather_than_lost() {
        let text = "## A\n\n1. numbered\n";
        assert!(sections(text, &|_| None).is_err());
    }
}
