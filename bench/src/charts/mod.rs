//! A chart of each published experiment, drawn from its table in docs/benchmarks.md.
//!
//! The tables are the stored results, so a chart never differs from the table beside it:
//! `report` renews both, and `charts` draws again what the tables say.

mod draw;

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::tables::{Stored, stored};
use draw::Chart;

/// An experiment: the block of its table, the title and the axis of its chart, and what
/// puts its rows into the chart.
struct Experiment {
    block: &'static str,
    title: &'static str,
    axis: &'static str,
    add: fn(&mut Chart, &[String]) -> Option<()>,
}

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        block: "xip",
        title: "4 KiB random reads by ten jobs (2010)",
        axis: "MB/s, more is better; after each bar: MB/s, mean latency",
        add: xip,
    },
    Experiment {
        block: "odirect",
        title: "Sequential output, rewrite and input, cached and O_DIRECT (2001)",
        axis: "GiB/s, more is better; after each bar: GiB/s, processor time",
        add: odirect,
    },
    Experiment {
        block: "parallel",
        title: "N threads read N files (2002)",
        axis: "MB/s, more is better; after each bar: MB/s, processor time",
        add: parallel,
    },
    Experiment {
        block: "unmapped",
        title: "A large file read once, with a checksum (2012)",
        axis: "processor time in s, less is better; after each bar: elapsed time, minor faults",
        add: unmapped,
    },
];

/// Draws the charts of a document into the directory `charts` beside it.
///
/// # Errors
/// If a file cannot be read or written.
pub fn renew(document: &Path) -> Result<()> {
    let text = std::fs::read_to_string(document).with_context(|| document.display().to_string())?;
    let directory = document.with_file_name("charts");
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    for experiment in EXPERIMENTS {
        let Some(table) = stored(&text, experiment.block)? else {
            println!("{}: no table, so no chart", experiment.block);
            continue;
        };
        let path = directory.join(format!("{}.svg", experiment.block));
        std::fs::write(&path, draw::svg(&chart(experiment, &table))?)
            .with_context(|| path.display().to_string())?;
        println!("{}: {}", experiment.block, path.display());
    }
    Ok(())
}

fn chart(experiment: &Experiment, table: &Stored) -> Chart {
    let mut chart = Chart {
        title: experiment.title.to_owned(),
        machine: table.machine.clone(),
        axis: experiment.axis.to_owned(),
        ..Chart::default()
    };
    for row in &table.rows {
        if (experiment.add)(&mut chart, row).is_none() {
            unmeasured(&mut chart, row);
        }
    }
    chart
}

/// Adds a contender whose second cell says why it was not measured.
fn unmeasured(chart: &mut Chart, row: &[String]) {
    let name = row.first().map_or("", String::as_str);
    let why = row.get(1).map_or("", String::as_str);
    chart.bar(name, Vec::new(), why.to_owned());
}

/// Returns the number in a cell; `None` if it holds none.
fn number(row: &[String], column: usize) -> Option<f64> {
    let value: f64 = row.get(column)?.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(value)
}

// Each of these adds the bars of a row of the table, or returns `None` if it has no
// figures. The columns are those of `tables::BLOCKS`.

fn xip(chart: &mut Chart, row: &[String]) -> Option<()> {
    let rate = number(row, 2)?;
    let series = chart.series(&row[0]);
    let text = format!("{}, {}", row[2], row.get(4)?);
    chart.bar(&row[1], vec![(series, rate)], text);
    Some(())
}

fn odirect(chart: &mut Chart, row: &[String]) -> Option<()> {
    // All or none of the three passes were measured.
    let rates = [number(row, 1)?, number(row, 3)?, number(row, 5)?];
    let series = chart.series(&row[0]);
    for (i, (pass, rate)) in ["out", "rewrite", "in"].into_iter().zip(rates).enumerate() {
        // K/s are KiB/s, as in bonnie.
        let gib = rate / f64::from(1 << 20);
        let text = format!("{gib:.1}, {} % CPU", row.get(2 + 2 * i)?);
        chart.bar(pass, vec![(series, gib)], text);
    }
    Some(())
}

fn parallel(chart: &mut Chart, row: &[String]) -> Option<()> {
    let rate = number(row, 3)?;
    // With `--each`, there is also a row for each file.
    if row[2] == "all" {
        let series = chart.series(&row[0]);
        let text = format!("{}, {} s", row[3], row.get(5)?);
        chart.bar(&row[1], vec![(series, rate)], text);
    }
    Some(())
}

fn unmapped(chart: &mut Chart, row: &[String]) -> Option<()> {
    let times = [number(row, 2)?, number(row, 3)?, number(row, 4)?];
    let parts = ["user", "system", "server"]
        .into_iter()
        .zip(times)
        .map(|(name, time)| (chart.series(name), time))
        .collect();
    let text = format!("{} s, {} faults", row[1], row.get(5)?);
    chart.bar(&row[0], parts, text);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks.md")
    }

    fn of(block: &str, rows: &[&[&str]]) -> Chart {
        let experiment = EXPERIMENTS.iter().find(|e| e.block == block).unwrap();
        let row = |r: &&[&str]| r.iter().map(|c| (*c).to_owned()).collect();
        let table = Stored {
            machine: "a machine".into(),
            rows: rows.iter().map(row).collect(),
        };
        chart(experiment, &table)
    }

    /// Returns the names of the groups, each with the number of its bars.
    fn groups(chart: &Chart) -> Vec<(&str, usize)> {
        let all = chart.groups.iter();
        all.map(|g| (g.name.as_str(), g.bars.len())).collect()
    }

    #[test]
    fn charts_of_document_are_those_of_its_tables() {
        let text = std::fs::read_to_string(document()).unwrap();
        for experiment in EXPERIMENTS {
            let name = experiment.block;
            let table = stored(&text, name).unwrap().unwrap();
            assert!(!table.machine.is_empty(), "{name} names no machine");
            let drawn = draw::svg(&chart(experiment, &table)).unwrap();
            let path = document().with_file_name(format!("charts/{name}.svg"));
            let saved = std::fs::read_to_string(path).unwrap_or_default();
            assert!(
                drawn == saved,
                "docs/charts/{name}.svg differs from its table: \
                 cargo run --release -p pramfs-bench -- charts"
            );
            let link = format!("](charts/{name}.svg)");
            assert!(text.contains(&link), "docs/benchmarks.md has no {link}");
        }
    }

    #[test]
    fn renew_draws_what_document_has() {
        let cx = crate::harness::Context::for_tests(1);
        let directory = cx.scratch.mount_dir("document").unwrap();
        let copy = directory.join("benchmarks.md");
        std::fs::write(
            &copy,
            "<!-- bench:xip begin -->\n| contender | engine | MB/s |\n|---|---|---|\n\
             <!-- bench:xip end -->\n",
        )
        .unwrap();
        renew(&copy).unwrap();
        let charts = copy.with_file_name("charts");
        let drawn = std::fs::read_to_string(charts.join("xip.svg")).unwrap();
        assert!(drawn.contains("no results"), "{drawn}");
        assert!(!charts.join("odirect.svg").exists());
        renew(&copy).unwrap();
        assert_eq!(
            std::fs::read_to_string(charts.join("xip.svg")).unwrap(),
            drawn
        );
    }

    #[test]
    fn xip_has_group_of_each_engine() {
        let c = of(
            "xip",
            &[
                &["XIP", "cannot measure: gone; 2010: mmap 2108 MB/s", "", ""],
                &["ext4", "mmap", "18747", "4577 K", "2.19 us", "1.00", "1.00"],
                &["ext4", "libaio", "784", "191 K", "52.22 us", "0.04", ""],
                &["tmpfs", "mmap", "17174", "4193 K", "2.39 us", "0.92", ""],
            ],
        );
        assert_eq!(groups(&c), [("XIP", 1), ("mmap", 2), ("libaio", 1)]);
        assert_eq!(c.series, ["ext4", "tmpfs"]);
        assert_eq!(c.groups[0].bars[0].parts, []);
        assert!(c.groups[0].bars[0].text.starts_with("cannot measure: gone"));
        assert_eq!(c.groups[1].bars[1].parts, [(1, 17174.0)]);
        assert_eq!(c.groups[2].bars[0].text, "784, 52.22 us");
    }

    #[test]
    fn odirect_has_group_of_each_pass() {
        let c = of(
            "odirect",
            &[
                &["a", "1048576", "100", "2097152", "50", "524288", "9", "yes"],
                &["b", "cannot measure: no loop device"],
            ],
        );
        let expected = [("out", 1), ("rewrite", 1), ("in", 1), ("b", 1)];
        assert_eq!(groups(&c), expected);
        assert_eq!(c.groups[1].bars[0].parts, [(0, 2.0)]);
        assert_eq!(c.groups[2].bars[0].text, "0.5, 9 % CPU");
    }

    #[test]
    fn parallel_has_group_of_each_mode_without_single_files() {
        let c = of(
            "parallel",
            &[
                &["ext4", "base", "0", "700", "12.5", "", ""],
                &["ext4", "base", "all", "5258", "12.5", "0.090", "1.00"],
                &["tmpfs, raw", "cannot measure: tmpfs lies on nothing"],
            ],
        );
        assert_eq!(groups(&c), [("base", 1), ("tmpfs, raw", 1)]);
        assert_eq!(c.groups[0].bars[0].text, "5258, 0.090 s");
    }

    #[test]
    fn unmapped_adds_up_processor_time() {
        let c = of(
            "unmapped",
            &[
                &["tmpfs: mmap", "0.143", "0.108", "0.035", "0.000", "16384"],
                &["pramfs, mounted", "cannot measure: no FUSE"],
            ],
        );
        assert_eq!(c.series, ["user", "system", "server"]);
        let bar = &c.groups[0].bars[0];
        assert_eq!(bar.parts, [(0, 0.108), (1, 0.035), (2, 0.0)]);
        assert_eq!(bar.text, "0.143 s, 16384 faults");
        assert_eq!(c.groups[1].bars[0].parts, []);
    }

    #[test]
    fn odd_figures_count_as_unmeasured() {
        for cell in ["", "-", "NaN", "inf", "-1"] {
            let c = of("xip", &[&["a", "mmap", cell, "", "1 us"]]);
            assert_eq!(c.groups[0].bars[0].parts, [], "{cell}");
        }
        assert_eq!(groups(&of("xip", &[&[]])), [("", 1)]);
        assert_eq!(groups(&of("xip", &[])), []);
    }
}
