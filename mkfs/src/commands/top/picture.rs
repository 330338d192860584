//! What is drawn, as text, and as a picture for the documentation.

use ratatui::buffer::Buffer;

/// Returns the lines, without blanks at their ends.
pub(super) fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in 0..buffer.area.height {
        let row = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol());
        text.push_str(row.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
pub(super) mod svg {
    use std::fmt::Write;

    use ratatui::buffer::{Buffer, Cell};
    use ratatui::style::{Color, Modifier};

    /// Pixels of a cell, and of the margin.
    const WIDTH: f64 = 7.8;
    const HEIGHT: u16 = 17;
    const MARGIN: u16 = 10;

    const PAPER: &str = "#1c1f26";
    const INK: &str = "#d6d9e0";

    fn colour(color: Color, other: &'static str) -> &'static str {
        match color {
            Color::Cyan => "#56c2d6",
            Color::Red => "#ff7a70",
            Color::Yellow => "#e5c07b",
            _ => other,
        }
    }

    /// The colours of a cell: ink and paper.
    fn colours(cell: &Cell) -> (&'static str, &'static str) {
        let (ink, paper) = (colour(cell.fg, INK), colour(cell.bg, PAPER));
        match cell.modifier.contains(Modifier::REVERSED) {
            true => (paper, ink),
            false => (ink, paper),
        }
    }

    fn escaped(text: &str) -> String {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        text.replace('>', "&gt;")
    }

    /// Returns the picture: a rectangle behind each run of cells with a colour of its own, and
    /// its text, stretched to the width of its cells whatever font the reader has.
    pub fn picture(buffer: &Buffer, title: &str) -> String {
        let (columns, lines) = (buffer.area.width, buffer.area.height);
        let (width, height) = (
            f64::from(columns) * WIDTH + 2.0 * f64::from(MARGIN),
            lines * HEIGHT + 2 * MARGIN,
        );
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height}\" role=\"img\" \
             font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"13\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{PAPER}\"/>\n",
            escaped(title)
        );
        for y in 0..lines {
            let mut x = 0;
            while x < columns {
                let (style, start) = (buffer[(x, y)].style(), x);
                let mut text = String::new();
                while x < columns && buffer[(x, y)].style() == style {
                    text.push_str(buffer[(x, y)].symbol());
                    x += 1;
                }
                run(&mut svg, &text, &buffer[(start, y)], start, y);
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn run(svg: &mut String, text: &str, cell: &Cell, x: u16, y: u16) {
        let (ink, paper) = colours(cell);
        let left = |column: u16| f64::from(MARGIN) + f64::from(column) * WIDTH;
        let top = MARGIN + y * HEIGHT;
        let count = |text: &str| u16::try_from(text.chars().count()).unwrap();
        if paper != PAPER {
            let width = f64::from(count(text)) * WIDTH;
            writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{HEIGHT}\" fill=\"{paper}\"/>",
                left(x)
            )
            .unwrap();
        }
        let weight = match cell.modifier.contains(Modifier::BOLD) {
            true => " font-weight=\"bold\"",
            false => "",
        };
        // Words apart, so that their places do not depend on the width of a blank.
        let mut at = x;
        for word in text.split_inclusive("  ") {
            let (start, shown) = (at, word.trim());
            at += count(word);
            if shown.is_empty() {
                continue;
            }
            let start = start + count(word) - count(word.trim_start());
            let width = f64::from(count(shown)) * WIDTH;
            writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" fill=\"{ink}\"{weight} textLength=\"{width:.1}\" lengthAdjust=\"spacingAndGlyphs\">{}</text>",
                left(start),
                top + HEIGHT - 4,
                escaped(shown)
            )
            .unwrap();
        }
    }
}
