//! Writes results into docs/benchmarks.md: the text between `<!-- bench:NAME begin -->`
//! and `<!-- bench:NAME end -->` comes from `bench/results/NAME.json`.
//!
//! A block without results stays as it is, so that a run of one experiment updates one
//! table.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::harness::report::duration;

/// Results that have a table in the document, with the columns of each: key in the
/// results, head in the table.
const BLOCKS: &[(&str, &[(&str, &str)])] = &[
    ("latest", &[]),
    ("transports", &[]),
    (
        "xip",
        &[
            ("contender", "contender"),
            ("engine", "engine"),
            ("MB/s", "MB/s"),
            ("IOPS", "IOPS"),
            ("mean latency", "mean latency"),
            ("p99", "99th percentile"),
            ("to ext4 mmap", "to ext4 mmap"),
            ("spread", "spread"),
            ("served", "served"),
            ("in 2010", "in 2010"),
        ],
    ),
    (
        "odirect",
        &[
            ("contender", "contender"),
            ("out K/s", "out K/s"),
            ("out %CPU", "%CPU"),
            ("rewrite K/s", "rewrite K/s"),
            ("rewrite %CPU", "%CPU"),
            ("in K/s", "in K/s"),
            ("in %CPU", "%CPU"),
            ("coherent", "coherent"),
        ],
    ),
    (
        "parallel",
        &[
            ("contender", "contender"),
            ("mode", "mode"),
            ("file", "file"),
            ("MB/s", "MB/s"),
            ("us a block", "us a block"),
            ("CPU s", "CPU s"),
            ("to base", "to base"),
        ],
    ),
    (
        "unmapped",
        &[
            ("way", "way"),
            ("real s", "real s"),
            ("user s", "user s"),
            ("system s", "system s"),
            ("server s", "server s"),
            ("minor faults", "minor faults"),
        ],
    ),
    (
        "instructions",
        &[("operation", "operation"), ("instructions", "instructions")],
    ),
    (
        "scale",
        &[
            ("operation", "operation"),
            ("threads", "threads"),
            ("ns", "one operation, ns"),
            ("throughput", "times the throughput of one thread"),
            ("10 % to 90 %", "10th to 90th percentile"),
        ],
    ),
    (
        "settings-instructions",
        &[
            ("setting", "setting"),
            ("build, s", "build, s"),
            ("program, MiB", "program, MiB"),
            ("read 4 KiB", "read 4 KiB"),
            ("write 4 KiB", "write 4 KiB"),
            ("append 4 KiB", "append 4 KiB"),
            ("create + unlink", "create + unlink"),
            ("rename", "rename"),
            ("mkdir + rmdir", "mkdir + rmdir"),
            ("lookup + getattr", "lookup + getattr"),
        ],
    ),
    (
        "settings-speed",
        &[
            ("setting", "setting"),
            ("read 4 KiB", "read 4 KiB"),
            ("write 4 KiB", "write 4 KiB"),
            ("append 4 KiB", "append 4 KiB"),
            ("create + unlink", "create + unlink"),
            ("rename", "rename"),
            ("mkdir + rmdir", "mkdir + rmdir"),
            ("lookup + getattr", "lookup + getattr"),
        ],
    ),
];

/// Begins the line with the machine, before a table.
const MEASURED_ON: &str = "Measured on: ";

/// Updates the tables of `document` from the results in `results`.
///
/// # Errors
/// If a file cannot be read or written, or a block has no end.
pub fn renew(document: &Path, results: &Path) -> Result<()> {
    let mut text =
        std::fs::read_to_string(document).with_context(|| document.display().to_string())?;
    for (name, columns) in BLOCKS {
        let path = results.join(format!("{name}.json"));
        let Ok(json) = std::fs::read_to_string(&path) else {
            println!("{name}: no {}; its table stays as it is", path.display());
            continue;
        };
        let rows: Vec<Value> =
            serde_json::from_str(&json).with_context(|| path.display().to_string())?;
        let table = if columns.is_empty() {
            promises(&rows)
        } else {
            plain(&rows, columns)
        };
        match replaced(&text, name, &table)? {
            Some(new) => {
                println!("{name}: {} rows", rows.len());
                text = new;
            }
            None => println!("{name}: {} has no block for it", document.display()),
        }
    }
    std::fs::write(document, text).with_context(|| document.display().to_string())
}

/// Returns where a block is in the text; `None` if there is no such block.
fn place(text: &str, name: &str) -> Result<Option<Range<usize>>> {
    let (begin, end) = (
        format!("<!-- bench:{name} begin -->\n"),
        format!("<!-- bench:{name} end -->"),
    );
    let Some(from) = text.find(&begin).map(|at| at + begin.len()) else {
        return Ok(None);
    };
    let Some(to) = text[from..].find(&end).map(|at| at + from) else {
        bail!("the block {name} has no end: {end}");
    };
    Ok(Some(from..to))
}

/// Returns the text with a block replaced; `None` if there is no such block.
fn replaced(text: &str, name: &str, table: &str) -> Result<Option<String>> {
    Ok(place(text, name)?.map(|at| format!("{}{table}{}", &text[..at.start], &text[at.end..])))
}

/// A table as it is in the document.
#[derive(Debug, PartialEq)]
pub struct Stored {
    /// The machine in general terms. Empty if the document does not say it.
    pub machine: String,
    /// The cells, without the head.
    pub rows: Vec<Vec<String>>,
}

/// Reads a table back from the document; `None` if there is no such block.
///
/// # Errors
/// If the block has no end.
pub fn stored(text: &str, name: &str) -> Result<Option<Stored>> {
    let Some(at) = place(text, name)? else {
        return Ok(None);
    };
    let lines = || text[at.clone()].lines();
    let machine = lines()
        .find_map(|l| l.strip_prefix(MEASURED_ON))
        .map_or("", |m| m.trim_end_matches('.'));
    Ok(Some(Stored {
        machine: machine.to_owned(),
        // The first two lines are the head.
        rows: lines()
            .filter(|l| l.starts_with('|'))
            .skip(2)
            .map(cells)
            .collect(),
    }))
}

/// Splits a line of a table. A bar after a backslash belongs to the cell.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim();
    let inner = line.strip_prefix('|').unwrap_or(line);
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    let inner = inner.replace("\\|", "\0");
    let cells = inner.split('|').map(|c| c.trim().replace('\0', "|"));
    cells.collect()
}

fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::String(s) => s.clone(),
        other => other.to_string(),
    };
    text.replace('|', "\\|").replace('\n', " ")
}

fn head(columns: &[&str]) -> String {
    format!(
        "| {} |\n|{}\n",
        columns.join(" | "),
        "---|".repeat(columns.len())
    )
}

/// Names the machine of the first row.
fn measured_on(rows: &[Value]) -> String {
    rows.first()
        .and_then(|r| r["machine"].as_str())
        .map_or_else(String::new, |m| format!("{MEASURED_ON}{m}.\n\n"))
}

fn plain(rows: &[Value], columns: &[(&str, &str)]) -> String {
    let heads: Vec<&str> = columns.iter().map(|(_, head)| *head).collect();
    let mut out = measured_on(rows) + &head(&heads);
    for row in rows {
        let cells: Vec<String> = columns
            .iter()
            .map(|(key, _)| row.get(key).map_or_else(String::new, cell))
            .collect();
        out += &format!("| {} |\n", cells.join(" | "));
    }
    out
}

/// Formats the rows with a floor.
fn promises(rows: &[Value]) -> String {
    let mut out = measured_on(rows);
    out += &head(&[
        "work", "against", "ours", "theirs", "ratio", "spread", "floor", "",
    ]);
    for row in rows {
        let shown = |ns: &str, count: &str| match (row[ns].as_f64(), row[count].as_f64()) {
            (Some(ns), _) => duration(ns),
            (None, Some(count)) => format!("{count} {}", cell(&row["unit"])),
            (None, None) => "-".to_owned(),
        };
        let ratio = row["ratio"]
            .as_f64()
            .map_or_else(|| "-".to_owned(), |r| format!("{r:.2}"));
        let spread = match (row["spread"][0].as_f64(), row["spread"][1].as_f64()) {
            (Some(low), Some(high)) => format!("{low:.2} to {high:.2}"),
            _ => "-".to_owned(),
        };
        out += &format!(
            "| {} | {} | {} | {} | {ratio} | {spread} | {} | {} |\n",
            cell(&row["work"]),
            cell(&row["against"]),
            shown("ours_ns", "ours_count"),
            shown("theirs_ns", "theirs_count"),
            cell(&row["floor"]),
            cell(&row["verdict"]),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "before\n<!-- bench:xip begin -->\nold\n<!-- bench:xip end -->\nafter\n";

    #[test]
    fn replace_changes_only_named_block() {
        let once = replaced(TEXT, "xip", "| new |\n").unwrap().unwrap();
        assert_eq!(
            once,
            "before\n<!-- bench:xip begin -->\n| new |\n<!-- bench:xip end -->\nafter\n"
        );
        assert_eq!(replaced(&once, "xip", "| new |\n").unwrap(), Some(once));
        assert_eq!(replaced(TEXT, "latest", "").unwrap(), None);
        assert!(replaced("<!-- bench:xip begin -->\n", "xip", "").is_err());
    }

    #[test]
    fn stored_table_is_what_was_written() {
        let rows: Vec<Value> = serde_json::from_str(
            r#"[{"way":"a|b <c>","real s":"0.117","machine":"a machine, 2 cores"},
                {"way":"d","real s":"cannot measure: no |","user s":"1"},
                {"way":""}]"#,
        )
        .unwrap();
        let columns = [("way", "way"), ("real s", "real s"), ("user s", "user s")];
        let text = "<!-- bench:unmapped begin -->\n<!-- bench:unmapped end -->\n";
        let text = replaced(text, "unmapped", &plain(&rows, &columns));
        let text = text.unwrap().unwrap();
        let table = stored(&text, "unmapped").unwrap().unwrap();
        assert_eq!(table.machine, "a machine, 2 cores");
        assert_eq!(
            table.rows,
            [
                ["a|b <c>", "0.117", ""],
                ["d", "cannot measure: no |", "1"],
                ["", "", ""]
            ]
        );
        assert_eq!(stored(&text, "xip").unwrap(), None);
        assert!(stored("<!-- bench:xip begin -->\n", "xip").is_err());
        let empty = stored(TEXT, "xip").unwrap().unwrap();
        assert_eq!((empty.machine.as_str(), empty.rows.len()), ("", 0));
    }

    #[test]
    fn document_has_markers_of_every_table() {
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks.md");
        let text = std::fs::read_to_string(document).unwrap();
        for (name, _) in BLOCKS {
            assert!(replaced(&text, name, "").unwrap().is_some(), "{name}");
        }
    }

    #[test]
    fn settings_have_column_of_every_operation() {
        for name in ["settings-instructions", "settings-speed"] {
            let (_, columns) = BLOCKS.iter().find(|(block, _)| *block == name).unwrap();
            for (operation, _) in crate::count::OPERATIONS {
                assert!(
                    columns.iter().any(|(key, _)| key == operation),
                    "{name}: {operation}"
                );
            }
        }
    }

    #[test]
    fn unmeasured_rows_stay_in_table() {
        let rows: Vec<Value> = serde_json::from_str(
            r#"[{"work":"a|b","against":"c","ratio":2.5,"spread":[2.0,2.5],"floor":2.0,
                 "verdict":"met","ours_ns":350.0,"theirs_ns":2400.0,"machine":"a machine"},
                {"work":"f","against":"g","ratio":1.0,"spread":[1.0,1.0],"floor":1.0,
                 "verdict":"met","ours_ns":null,"theirs_ns":null,"unit":"calls",
                 "ours_count":3.0,"theirs_count":3.0},
                {"work":"d","against":"e","ratio":null,"spread":null,"floor":1.0,
                 "verdict":"cannot measure: no fuse2fs","ours_ns":null,"theirs_ns":null}]"#,
        )
        .unwrap();
        let table = promises(&rows);
        assert!(table.contains("Measured on: a machine."));
        assert!(
            table
                .contains("| a\\|b | c | 350.0 ns | 2.40 us | 2.50 | 2.00 to 2.50 | 2.0 | met |\n"),
            "{table}"
        );
        let counted = "| f | g | 3 calls | 3 calls | 1.00 | 1.00 to 1.00 | 1.0 | met |\n";
        assert!(table.contains(counted), "{table}");
        assert!(table.contains("| d | e | - | - | - | - | 1.0 | cannot measure: no fuse2fs |\n"));
    }
}
