//! Draws the view: on a terminal, where the selected mount has the room, and as text, where
//! each mount has all the lines that it needs.

use std::time::Duration;

use pramfs_control::{MountStatus, text};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row, Table, Widget};

use super::model::{Model, MountRow, OperationRow};
use crate::failure::printable;

const HEAD: Style = Style::new().add_modifier(Modifier::BOLD).fg(Color::Cyan);
const ALARM: Style = Style::new().add_modifier(Modifier::BOLD).fg(Color::Red);
const NOTE: Style = Style::new().fg(Color::Yellow);

/// Lines of the list of mounts, at most.
const MOUNTS: u16 = 10;
/// Lines of the slowest operations, with their title.
const SLOWEST: u16 = 7;
/// Columns of the list of mounts after the first, with the blanks between them.
const MOUNT_WIDTHS: [u16; 9] = [7, 7, 8, 8, 9, 12, 26, 6, 14];

const HELP: [&str; 12] = [
    "q, Esc       quit",
    "space        pause, or go on",
    "s            sort operations by another column",
    "Tab, Down    next mount",
    "Up           mount before",
    "h, ?         this help",
    "",
    "P50, P99 are of the requests between two looks,",
    "BUSY is their share of the time of one thread, and",
    "FENCES/s and TO MEDIUM are of the threads that",
    "served them. The first look at a server shows",
    "averages since its start.",
];

/// Draws all of it on a terminal.
pub(super) fn screen(model: &Model, area: Rect, buffer: &mut Buffer) {
    let rows = model.rows();
    let mounts = (rows.len().clamp(1, MOUNTS.into()) as u16) + 2;
    let selected = rows.get(model.selected());
    let details = selected.map_or(Vec::new(), |row| details(row.status));
    let notes = notes(model);
    let [top, about, middle, low, words, foot] = Layout::vertical([
        Constraint::Length(mounts),
        Constraint::Length(details.len() as u16 + 1),
        Constraint::Min(4),
        Constraint::Length(SLOWEST),
        Constraint::Length(notes.len().min(4) as u16),
        Constraint::Length(1),
    ])
    .areas(area);
    // The selected one is always in the list.
    let first = (model.selected() + 1).saturating_sub(MOUNTS.into());
    let first = first.min(rows.len());
    let title = match model.is_paused() {
        true => " pramfs top: PAUSED, space goes on ",
        false => " pramfs top ",
    };
    let list = mounts_table(&rows[first..], Some(model.selected() - first));
    list.block(titled(title.to_owned())).render(top, buffer);
    match selected {
        Some(row) => {
            let block = titled(server_title(row.status));
            Paragraph::new(details).block(block).render(about, buffer);
            let title = format!(" requests, sorted by {} ", model.order.name());
            let table = operations_table(row).block(titled(title));
            table.render(middle, buffer);
            let slowest = Paragraph::new(slowest(row.status));
            let block = titled(" slowest of the last minutes ".to_owned());
            slowest.block(block).render(low, buffer);
        }
        None => Paragraph::new(nothing(model)).render(middle, buffer),
    }
    Paragraph::new(notes).render(words, buffer);
    keys().render(foot, buffer);
    if model.help {
        help(area, buffer);
    }
}

/// A part of a page, as wide as the page.
enum Part {
    /// A table, with its rows.
    Table(Box<Table<'static>>, usize),
    Lines(Vec<Line<'static>>),
}

impl Part {
    fn height(&self) -> u16 {
        let lines = match self {
            Part::Table(_, rows) => rows + 1,
            Part::Lines(lines) => lines.len(),
        };
        u16::try_from(lines).unwrap_or(u16::MAX)
    }

    fn render(self, area: Rect, buffer: &mut Buffer) {
        match self {
            Part::Table(table, _) => table.render(area, buffer),
            Part::Lines(lines) => Paragraph::new(lines).render(area, buffer),
        }
    }
}

/// Draws all mounts one below the other, with all their lines.
pub(super) fn page(model: &Model) -> Buffer {
    let rows = model.rows();
    let mut parts = vec![match rows.is_empty() {
        true => Part::Lines(vec![Line::from(nothing(model))]),
        false => Part::Table(Box::new(mounts_table(&rows, None)), rows.len()),
    }];
    for row in &rows {
        let title = server_title(row.status).trim().to_owned();
        let mut about = vec![Line::default(), Line::from(title)];
        about.extend(details(row.status));
        about.push(Line::default());
        parts.push(Part::Lines(about));
        let table = Box::new(operations_table(row));
        parts.push(Part::Table(table, row.operations.len()));
        if !row.status.slowest.is_empty() {
            let mut lines = vec![Line::default(), Line::from("slowest of the last minutes")];
            lines.extend(slowest(row.status));
            parts.push(Part::Lines(lines));
        }
    }
    let points = rows.iter().map(|row| printable(&row.status.mount_point));
    let longest = points.map(|point| point.chars().count()).max();
    let first = longest.unwrap_or(0).clamp(12, 4096) as u16;
    let width = first + MOUNT_WIDTHS.iter().map(|width| width + 1).sum::<u16>();
    // What is below 65535 lines is cut off.
    let heights = parts.iter().map(Part::height);
    let height = heights.fold(0, u16::saturating_add);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    let mut y = 0;
    for part in parts {
        let lines = part.height().min(height - y);
        part.render(Rect::new(0, y, width, lines), &mut buffer);
        y += lines;
    }
    buffer
}

fn titled(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(title)
}

fn nothing(model: &Model) -> &'static str {
    match model.failures() {
        [] => "Nothing is mounted by root.",
        _ => "No server answers.",
    }
}

fn server_title(status: &MountStatus) -> String {
    format!(
        " {} on {}: pid {}, version {}, up {} ",
        printable(&status.region),
        printable(&status.mount_point),
        status.pid,
        printable(&status.version),
        text::uptime(status.uptime_ms)
    )
}

/// Failures, and what has happened.
fn notes(model: &Model) -> Vec<Line<'static>> {
    let failures = model.failures().iter();
    let mut lines: Vec<_> = failures
        .map(|failure| Line::styled(printable(failure), ALARM))
        .collect();
    if let Some((news, ago)) = model.news() {
        let ago = text::uptime(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX));
        lines.push(Line::styled(
            format!("{}, since {ago}", printable(news)),
            NOTE,
        ));
    }
    lines
}

fn keys() -> Line<'static> {
    let keys = [
        ("q", "quit"),
        ("space", "pause"),
        ("s", "sort"),
        ("Tab", "next mount"),
        ("h", "help"),
    ];
    let spans = keys.into_iter().flat_map(|(key, what)| {
        [
            Span::from(format!(" {key} ")).reversed(),
            Span::from(format!(" {what}  ")),
        ]
    });
    Line::from_iter(spans)
}

fn help(area: Rect, buffer: &mut Buffer) {
    let wanted = HELP.iter().map(|line| line.len()).max().unwrap_or(0) as u16 + 4;
    let (width, height) = (
        wanted.min(area.width),
        (HELP.len() as u16 + 2).min(area.height),
    );
    let window = Rect::new(
        area.x + (area.width - width) / 2,
        area.y + (area.height - height) / 2,
        width,
        height,
    );
    Clear.render(window, buffer);
    let lines = HELP.iter().map(|line| Line::from(format!(" {line}")));
    let block = Block::bordered().title(" any key closes this ");
    Paragraph::new(lines.collect::<Vec<_>>())
        .block(block)
        .render(window, buffer);
}

/// A number of a second: `9.5`, `950`, `12.3k`, `14.5M`.
fn rate(number: f64) -> String {
    match number {
        ..0.05 => "0".to_owned(),
        ..9.95 => format!("{number:.1}"),
        ..9_999.5 => format!("{number:.0}"),
        ..999_950.0 => format!("{:.1}k", number / 1e3),
        _ => format!("{:.1}M", number / 1e6),
    }
}

fn byte_rate(number: f64) -> String {
    // A rate is not negative, and a conversion saturates.
    format!("{}/s", text::bytes(number as u64))
}

fn time(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), text::time)
}

fn percentiles(row: &OperationRow) -> [String; 2] {
    [50.0, 99.0].map(|percent| time(row.latency.percentile(percent)))
}

/// The use of space: a bar, and percent.
fn space(status: &MountStatus) -> String {
    const WIDTH: u64 = 8;
    let Some(space) = &status.space else {
        return "unknown".to_owned();
    };
    let (used, all) = (space.used_bytes(), space.bytes().max(1));
    let share = |of: u64| (u128::from(used) * u128::from(of) / u128::from(all)) as u64;
    let full = share(WIDTH).min(WIDTH);
    let cell = |nth| if nth < full { '#' } else { '.' };
    let bar: String = (0..WIDTH).map(cell).collect();
    let percent = share(100);
    format!("{bar} {percent:>3} % of {}", text::bytes(space.bytes()))
}

fn state(status: &MountStatus) -> (String, Style) {
    if status.failed {
        return ("FAILED".to_owned(), ALARM);
    }
    if status.damage.errors > 0 {
        return (format!("{} ERRORS", status.damage.errors), ALARM);
    }
    if status.scrub.findings > 0 {
        return (format!("{} FINDINGS", status.scrub.findings), ALARM);
    }
    let access = if status.writable { "rw" } else { "ro" };
    let scrub = if status.scrub.running { ", scrub" } else { "" };
    let transport = printable(&status.transport);
    (format!("{access}, {transport}{scrub}"), Style::new())
}

fn right(text: impl Into<String>) -> Cell<'static> {
    Cell::from(Line::from(text.into()).right_aligned())
}

/// A head: the first column and the others named to be at the left, the rest at the right.
fn head(names: &[&'static str], left: &[&str]) -> Row<'static> {
    let cell = |name: &&'static str| match left.contains(name) {
        true => Cell::from(*name),
        false => right(*name),
    };
    Row::new(names.iter().map(cell).collect::<Vec<_>>()).style(HEAD)
}

fn mounts_table(rows: &[MountRow<'_>], selected: Option<usize>) -> Table<'static> {
    let lines = rows.iter().enumerate().map(|(nth, row)| {
        let status = row.status;
        let [p50, p99] = percentiles(&row.all);
        let (state, style) = state(status);
        let leases = status.leases.read.saturating_add(status.leases.write);
        let line = Row::new([
            Cell::from(printable(&status.mount_point)),
            right(rate(row.all.rate)),
            right(rate(row.all.errors)),
            right(p50),
            right(p99),
            right(rate(row.all.fences)),
            right(byte_rate(row.all.bytes)),
            Cell::from(space(status)),
            right(leases.to_string()),
            Cell::from(state).style(style),
        ]);
        match Some(nth) == selected {
            true => line.style(Style::new().reversed()),
            false => line,
        }
    });
    let mut widths = vec![Constraint::Min(12)];
    widths.extend(MOUNT_WIDTHS.map(Constraint::Length));
    let names = [
        "MOUNT",
        "REQ/s",
        "ERR/s",
        "P50",
        "P99",
        "FENCES/s",
        "TO MEDIUM",
        "SPACE",
        "LEASES",
        "STATE",
    ];
    let lines: Vec<_> = lines.collect();
    Table::new(lines, widths).header(head(&names, &["MOUNT", "SPACE", "STATE"]))
}

/// What is the same at each look, mostly.
fn details(status: &MountStatus) -> Vec<Line<'static>> {
    let note = status.transport_note.as_deref();
    let why = note.map_or(String::new(), |why| format!(" ({})", printable(why)));
    let medium = &status.medium;
    let space = status.space.as_ref();
    let space = space.map_or("unknown".to_owned(), text::space_line);
    let leases = &status.leases;
    let row =
        |name: &str, value: String| format!("{:<10} {}", format!("{name}:"), printable(&value));
    let mut lines = vec![
        Line::from(row("transport", format!("{}{why}", status.transport))),
        Line::from(row(
            "medium",
            format!(
                "{}, {}, survives: {}",
                medium.kind, medium.backend, medium.persistence
            ),
        )),
        Line::from(row("space", space)),
        Line::from(row(
            "leases",
            format!(
                "{} to read, {} to write; {} inodes cached, {} hand-overs of the journal",
                leases.read, leases.write, status.memory.inodes, status.journal.hand_overs
            ),
        )),
    ];
    let alarmed = |name: &str, value: String, is_alarm: bool| {
        let style = if is_alarm { ALARM } else { Style::new() };
        Line::styled(row(name, value), style)
    };
    lines.push(alarmed(
        "damage",
        text::damage_line(&status.damage),
        status.damage.errors > 0,
    ));
    lines.push(alarmed(
        "scrub",
        text::scrub_line(&status.scrub),
        status.scrub.findings > 0,
    ));
    if let Some(takeover) = &status.takeover {
        let supervised = match takeover.supervised {
            true => "",
            false => "; NO SUPERVISOR: mount again to have takeover",
        };
        let value = format!("{} so far{supervised}", takeover.takeovers);
        lines.push(alarmed("takeover", value, !takeover.supervised));
    }
    if status.failed {
        let value = "FAILED: each request gets EIO; unmount it and mount it again".to_owned();
        lines.push(alarmed("state", value, true));
    }
    lines
}

fn operations_table(row: &MountRow<'_>) -> Table<'static> {
    let lines = row.operations.iter().map(|one| {
        let [p50, p99] = percentiles(one);
        Row::new([
            Cell::from(printable(&one.name)),
            right(rate(one.rate)),
            right(rate(one.errors)),
            right(p50),
            right(p99),
            right(format!("{:.1} %", one.busy)),
            right(rate(one.fences)),
            right(byte_rate(one.bytes)),
        ])
    });
    let mut widths = vec![Constraint::Length(20)];
    widths.extend([9, 9, 9, 9, 9, 9, 14].map(Constraint::Length));
    let names = [
        "OPERATION",
        "REQ/s",
        "ERR/s",
        "P50",
        "P99",
        "BUSY",
        "FENCES/s",
        "TO MEDIUM",
    ];
    let lines: Vec<_> = lines.collect();
    Table::new(lines, widths).header(head(&names, &["OPERATION"]))
}

fn slowest(status: &MountStatus) -> Vec<Line<'static>> {
    if status.slowest.is_empty() {
        let why = match status.metrics {
            true => "none yet",
            false => "latencies are not recorded (metrics=off)",
        };
        return vec![Line::from(why)];
    }
    let line = |one: &pramfs_control::SlowOperation| {
        let ago = text::time(Duration::from_millis(one.ago_ms));
        let errno = match one.errno {
            0 => String::new(),
            errno => format!(", errno {errno}"),
        };
        let took = text::time(one.duration());
        let name = printable(&one.name);
        Line::from(format!(
            "{took:>9}  {name} of inode {}, {ago} ago{errno}",
            one.inode
        ))
    };
    status.slowest.iter().map(line).collect()
}
