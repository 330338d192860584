//! Draws horizontal bars in groups as SVG.
//!
//! The same chart gives the same bytes: there are no times, paths or random names in the
//! output, and no font is measured. The background is white, so that the chart can also be
//! read where the page is dark. All text is `<text>`, in the viewer's own sans-serif font.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A chart: groups of bars, one below the other.
#[derive(Debug, Default)]
pub struct Chart {
    /// What was measured.
    pub title: String,
    /// The machine in general terms, if recorded.
    pub machine: String,
    /// What the bars show, with the unit.
    pub axis: String,
    /// Names in the legend.
    pub series: Vec<String>,
    /// The groups, from top to bottom.
    pub groups: Vec<Group>,
}

/// Bars with a common name.
#[derive(Debug, PartialEq)]
pub struct Group {
    /// Shown at the left.
    pub name: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// A bar.
#[derive(Debug, PartialEq)]
pub struct Bar {
    /// Parts from left to right: number of the series, length. None if nothing was measured.
    pub parts: Vec<(usize, f64)>,
    /// Shown behind the bar.
    pub text: String,
}

impl Chart {
    /// Returns the number of a series, which is added if it is new.
    pub fn series(&mut self, name: &str) -> usize {
        position_or_push(&mut self.series, |s| s == name, || name.to_owned())
    }

    /// Adds a bar to a group, which is added if it is new.
    pub fn bar(&mut self, group: &str, parts: Vec<(usize, f64)>, text: String) {
        let new = || Group {
            name: group.to_owned(),
            bars: Vec::new(),
        };
        let at = position_or_push(&mut self.groups, |g| g.name == group, new);
        self.groups[at].bars.push(Bar { parts, text });
    }

    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.groups.iter().flat_map(|g| &g.bars)
    }
}

fn position_or_push<T>(
    all: &mut Vec<T>,
    same: impl Fn(&T) -> bool,
    new: impl FnOnce() -> T,
) -> usize {
    all.iter().position(same).unwrap_or_else(|| {
        all.push(new());
        all.len() - 1
    })
}

const WIDTH: i32 = 960;
/// Free space at the edges, and between texts and what they name.
const MARGIN: i32 = 12;
const BAR: i32 = 14;
const BAR_STEP: i32 = 16;
const GROUP_GAP: i32 = 8;
const LEGEND_STEP: i32 = 18;
const SWATCH: i32 = 12;
/// Below the bars: the numbers of the axis and its name.
const AXIS_HEIGHT: i32 = 48;
const TITLE_SIZE: i32 = 18;
const TEXT_SIZE: i32 = 12;
/// The fewest pixels that the longest bar gets, whatever the texts need.
const LEAST_PLOT: i32 = 200;

const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Colours of the names that occur in several charts. People who do not see all colours
/// can tell them apart (Okabe and Ito), and the variants of one contender are of one hue.
const COLOURS: &[(&str, RGBColor)] = &[
    ("ext4 on a RAM disk", RGBColor(0xe6, 0x9f, 0x00)),
    ("ext4 on a RAM disk, buffered", RGBColor(0xe6, 0x9f, 0x00)),
    ("ext4 on a RAM disk, O_DIRECT", RGBColor(0x9a, 0x5b, 0x00)),
    ("tmpfs", RGBColor(0xaa, 0xaa, 0xaa)),
    ("tmpfs, buffered", RGBColor(0xaa, 0xaa, 0xaa)),
    ("tmpfs, O_DIRECT", RGBColor(0x66, 0x66, 0x66)),
    ("pramfs, mounted", RGBColor(0x56, 0xb4, 0xe9)),
    ("pramfs, mounted, buffered", RGBColor(0x56, 0xb4, 0xe9)),
    ("pramfs, mounted, O_DIRECT", RGBColor(0x00, 0x72, 0xb2)),
    ("tmpfs, huge pages", RGBColor(0x66, 0x66, 0x66)),
    (
        "pramfs, mounted, preload library",
        RGBColor(0xcc, 0x79, 0xa7),
    ),
    (
        "pramfs, mounted, client library",
        RGBColor(0x8a, 0x3d, 0x69),
    ),
    ("fio alone", RGBColor(0xdd, 0xdd, 0xcc)),
    ("pramfs, direct", RGBColor(0x00, 0x9e, 0x73)),
    ("pramfs, direct API", RGBColor(0x00, 0x9e, 0x73)),
    ("pramfs, direct, huge pages", RGBColor(0x00, 0x55, 0x3d)),
];

/// Colours of all other names, by their number.
const OTHERS: &[RGBColor] = &[
    RGBColor(0xbb, 0xbb, 0xbb),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xf0, 0xe4, 0x42),
    RGBColor(0x44, 0x44, 0x44),
];

fn colour(number: usize, name: &str) -> RGBColor {
    COLOURS
        .iter()
        .find(|(known, _)| *known == name)
        .map_or(OTHERS[number % OTHERS.len()], |(_, colour)| *colour)
}

/// Returns the width of a text, roughly: the viewer chooses the font.
fn width(text: &str) -> i32 {
    (text.chars().count() as i32 * TEXT_SIZE * 58 + 99) / 100
}

/// Returns as much of a text as fits in `room` pixels of its font.
fn clipped(text: &str, room: i32, size: i32) -> String {
    // XML has no way to write most control characters.
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let most = (room.max(0) * 100 / (size * 58)) as usize;
    if clean.chars().count() <= most {
        return clean;
    }
    clean
        .chars()
        .take(most.saturating_sub(1))
        .chain(['\u{2026}'])
        .collect()
}

fn style(size: i32, h: HPos) -> TextStyle<'static> {
    // The backend divides the size by 1.24.
    ("sans-serif", f64::from(size) * 1.24)
        .into_font()
        .color(&INK)
        .pos(Pos::new(h, VPos::Center))
}

/// Places the names of the series in lines. Returns the places of the swatches and the
/// number of lines.
fn legend(series: &[String]) -> (Vec<(i32, i32)>, i32) {
    let (mut x, mut line) = (MARGIN, 0);
    let places = series
        .iter()
        .map(|name| {
            let step = SWATCH + MARGIN / 2 + width(name) + MARGIN;
            if x > MARGIN && x + step > WIDTH {
                (x, line) = (MARGIN, line + 1);
            }
            let place = (x, line);
            x += step;
            place
        })
        .collect();
    (places, if series.is_empty() { 0 } else { line + 1 })
}

/// Returns the digits after the point that the numbers of an axis need.
fn digits(longest: f64) -> usize {
    (-(longest / 20.0).log10()).ceil().clamp(0.0, 6.0) as usize
}

/// Draws a chart.
///
/// # Errors
/// Never in practice: the output is memory.
pub fn svg(chart: &Chart) -> Result<String> {
    let (places, legend_lines) = legend(&chart.series);
    let top = MARGIN * 2 + TITLE_SIZE + LEGEND_STEP * (1 + legend_lines);
    let bars_height: i32 = chart
        .groups
        .iter()
        .map(|g| g.bars.len() as i32 * BAR_STEP + GROUP_GAP)
        .sum::<i32>()
        .max(BAR_STEP + GROUP_GAP);
    let height = top + bars_height + AXIS_HEIGHT;
    let mut out = String::new();
    {
        let root =
            SVGBackend::with_string(&mut out, (WIDTH as u32, height as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut y = MARGIN + TITLE_SIZE / 2;
        let room = WIDTH - 2 * MARGIN;
        text(&root, &chart.title, (MARGIN, y), room, TITLE_SIZE)?;
        y += TITLE_SIZE + 4;
        let machine = match chart.machine.as_str() {
            "" => "Measured on: not recorded".to_owned(),
            machine => format!("Measured on: {machine}"),
        };
        text(&root, &machine, (MARGIN, y), room, TEXT_SIZE)?;
        y += LEGEND_STEP + 2;
        for ((number, name), (x, line)) in chart.series.iter().enumerate().zip(places) {
            let y = y + line * LEGEND_STEP;
            swatch(&root, (x, y), colour(number, name))?;
            let x = x + SWATCH + MARGIN / 2;
            text(&root, name, (x, y), WIDTH - MARGIN - x, TEXT_SIZE)?;
        }
        plot(&root, chart, top, bars_height)?;
        root.present()?;
    }
    Ok(out)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn text(root: &Area<'_>, text: &str, at: (i32, i32), room: i32, size: i32) -> Result<()> {
    let text = clipped(text, room, size);
    root.draw(&Text::new(text, at, style(size, HPos::Left)))?;
    Ok(())
}

fn swatch(root: &Area<'_>, (x, y): (i32, i32), colour: RGBColor) -> Result<()> {
    let corners = [(x, y - SWATCH / 2), (x + SWATCH, y + SWATCH / 2)];
    root.draw(&Rectangle::new(corners, colour.filled()))?;
    Ok(())
}

/// Draws the axis, the grid, the bars and their names.
fn plot(root: &Area<'_>, chart: &Chart, top: i32, bars_height: i32) -> Result<()> {
    let names = chart.groups.iter().map(|g| width(&g.name)).max();
    let left = 2 * MARGIN + names.unwrap_or(0).min(WIDTH / 2);
    let texts = chart
        .bars()
        .filter(|b| !b.parts.is_empty())
        .map(|b| width(&b.text))
        .max();
    let right = (MARGIN + texts.unwrap_or(0)).min(WIDTH - left - LEAST_PLOT);
    let longest = chart
        .bars()
        .map(|b| b.parts.iter().map(|(_, length)| length).sum::<f64>())
        .fold(0.0, f64::max);
    let longest = if longest > 0.0 { longest } else { 1.0 };
    let digits = digits(longest);
    let mut axis = ChartBuilder::on(root)
        .margin_top(top)
        .margin_right(right)
        .set_label_area_size(LabelAreaPosition::Left, left)
        .set_label_area_size(LabelAreaPosition::Bottom, AXIS_HEIGHT)
        .build_cartesian_2d(0.0..longest, 0.0..1.0)?;
    axis.configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(8)
        .x_label_formatter(&|x| format!("{x:.digits$}"))
        .x_label_style(style(TEXT_SIZE, HPos::Center))
        .draw()?;
    let place = (left, top + bars_height + AXIS_HEIGHT - MARGIN);
    text(root, &chart.axis, place, WIDTH - MARGIN - left, TEXT_SIZE)?;
    let x = |value: f64| axis.backend_coord(&(value, 0.0)).0;
    let mut y = top + GROUP_GAP / 2;
    for group in &chart.groups {
        let middle = y + group.bars.len() as i32 * BAR_STEP / 2;
        root.draw(&Text::new(
            clipped(&group.name, left - 2 * MARGIN, TEXT_SIZE),
            (left - MARGIN, middle),
            style(TEXT_SIZE, HPos::Right),
        ))?;
        for bar in &group.bars {
            let mut end = 0.0;
            for (series, length) in &bar.parts {
                let corners = [(x(end), y + 1), (x(end + length), y + 1 + BAR)];
                end += length;
                let name = chart.series.get(*series).map_or("", String::as_str);
                let fill = colour(*series, name).filled();
                root.draw(&Rectangle::new(corners, fill))?;
            }
            let start = x(end) + MARGIN / 2;
            let place = (start, y + BAR_STEP / 2);
            text(root, &bar.text, place, WIDTH - start, TEXT_SIZE)?;
            y += BAR_STEP;
        }
        y += GROUP_GAP;
    }
    if chart.groups.is_empty() {
        let place = (left + MARGIN, top + bars_height / 2);
        text(root, "no results", place, WIDTH - left - MARGIN, TEXT_SIZE)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(series: usize) -> Chart {
        let mut chart = Chart {
            title: "a title".into(),
            machine: "a machine, 2 cores".into(),
            axis: "MB/s".into(),
            ..Chart::default()
        };
        for i in 0..series {
            let number = chart.series(&format!("contender {i}"));
            let value = 10.5 * (i + 1) as f64;
            chart.bar("a group", vec![(number, value)], format!("{value} MB/s"));
        }
        chart
    }

    /// The background, the swatches of the legend, the bars.
    fn rectangles(svg: &str) -> usize {
        svg.matches("<rect ").count()
    }

    /// Returns the texts, and fails unless every tag is closed.
    fn texts(svg: &str) -> Vec<String> {
        assert!(svg.starts_with("<svg "), "{svg}");
        assert!(svg.ends_with("</svg>\n"), "{svg}");
        let mut open = Vec::new();
        let mut found = Vec::new();
        for part in svg.split('<').skip(1) {
            let (tag, text) = part.split_once('>').unwrap();
            assert!(!text.contains('>'), "{part}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !tag.ends_with('/') {
                let name = tag.split(' ').next().unwrap();
                open.push(name);
                if name == "text" {
                    found.push(text.trim().to_owned());
                }
            }
        }
        assert!(open.is_empty(), "{open:?}");
        found
    }

    #[test]
    fn no_series_draws_frame_and_says_so() {
        let svg = svg(&chart(0)).unwrap();
        let texts = texts(&svg);
        for wanted in [
            "a title",
            "Measured on: a machine, 2 cores",
            "MB/s",
            "no results",
        ] {
            assert!(texts.iter().any(|t| t == wanted), "{wanted}: {texts:?}");
        }
        assert_eq!(rectangles(&svg), 1);
    }

    #[test]
    fn series_have_swatch_and_bars_and_names() {
        // The last has more names than lie in one line of the legend.
        for series in [1, 2, 30] {
            let svg = svg(&chart(series)).unwrap();
            let texts = texts(&svg);
            assert_eq!(rectangles(&svg), 1 + 2 * series);
            assert_eq!(texts.iter().filter(|t| *t == "a group").count(), 1);
            for i in 0..series {
                assert!(texts.contains(&format!("contender {i}")), "{texts:?}");
            }
            assert!(texts.contains(&"10.5 MB/s".to_owned()), "{texts:?}");
        }
        let lines = |n| legend(&chart(n).series).1;
        assert_eq!((lines(0), lines(1)), (0, 1));
        assert!(lines(30) > 2);
    }

    #[test]
    fn parts_lie_behind_each_other() {
        let mut c = chart(2);
        c.groups.clear();
        c.bar("way", vec![(0, 1.0), (1, 3.0)], String::new());
        let svg = svg(&c).unwrap();
        let numbers = |key: &str| -> Vec<i32> {
            svg.lines()
                .filter(|l| l.starts_with("<rect ") && l.contains("height=\"14\""))
                .map(|l| {
                    let at = l.find(key).unwrap() + key.len();
                    l[at..].split('"').next().unwrap().parse().unwrap()
                })
                .collect()
        };
        let (x, w) = (numbers(" x=\""), numbers(" width=\""));
        assert_eq!(x.len(), 2);
        assert_eq!(x[0] + w[0], x[1]);
        assert!((w[1] - 3 * w[0]).abs() <= 3, "{w:?}");
    }

    #[test]
    fn unmeasured_bar_has_text_only() {
        let mut c = chart(1);
        c.bar(
            "absent",
            Vec::new(),
            "cannot measure: no such kernel".into(),
        );
        let svg = svg(&c).unwrap();
        assert_eq!(rectangles(&svg), 3);
        assert!(texts(&svg).contains(&"cannot measure: no such kernel".to_owned()));
    }

    #[test]
    fn chart_without_machine_says_so() {
        let mut c = chart(1);
        c.machine.clear();
        let wanted = "Measured on: not recorded".to_owned();
        assert!(texts(&svg(&c).unwrap()).contains(&wanted));
    }

    #[test]
    fn labels_are_escaped() {
        let evil = "a <b> & \"c\" 'd'\n\u{1}";
        let mut c = chart(0);
        c.title = evil.into();
        c.machine = evil.into();
        c.axis = evil.into();
        let number = c.series(evil);
        c.bar(evil, vec![(number, 1.0)], evil.into());
        let svg = svg(&c).unwrap();
        let escaped = "a &lt;b&gt; &amp; &quot;c&quot; &apos;d&apos;";
        assert_eq!(svg.matches(escaped).count(), 6);
        assert_eq!(texts(&svg).iter().filter(|t| *t == escaped).count(), 5);
        assert!(!svg.contains('\u{1}'));
    }

    #[test]
    fn long_texts_are_clipped() {
        assert_eq!(clipped("short", 100, 12), "short");
        assert_eq!(clipped("0123456789", 35, 12), "0123\u{2026}");
        let mut c = chart(0);
        c.bar(&"n".repeat(500), vec![(0, 1.0)], "t".repeat(500));
        c.bar("absent", Vec::new(), "r".repeat(500));
        for text in texts(&svg(&c).unwrap()) {
            assert!(width(&text) <= WIDTH, "{text}");
        }
    }

    #[test]
    fn same_chart_gives_same_bytes() {
        assert_eq!(svg(&chart(5)).unwrap(), svg(&chart(5)).unwrap());
        assert_ne!(svg(&chart(5)).unwrap(), svg(&chart(6)).unwrap());
    }

    #[test]
    fn axis_has_digits_for_its_steps() {
        let found: Vec<usize> = [20_000.0, 28.0, 3.0, 0.25, 0.02].map(digits).into();
        assert_eq!(found, [0, 0, 1, 2, 3]);
    }

    #[test]
    fn variants_of_one_name_have_own_colours() {
        for pair in ["ext4 on a RAM disk", "tmpfs", "pramfs, mounted"] {
            let of = |end: &str| colour(0, &format!("{pair}, {end}"));
            assert_ne!(of("buffered"), of("O_DIRECT"));
        }
        assert_ne!(colour(0, "user s"), colour(1, "system s"));
    }
}
