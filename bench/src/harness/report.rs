//! Rows: promises and measurements, and their output.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::compare::{Measured, quantile};

/// A promised ratio.
#[derive(Debug)]
pub struct Row {
    /// Short name, for `--filter`.
    pub id: &'static str,
    /// The operation.
    pub work: &'static str,
    /// The competitor.
    pub against: &'static str,
    /// Minimum ratio of the rates, ours to theirs.
    pub floor: f64,
    /// Whether the ratio must exceed the floor, not just reach it.
    pub strictly: bool,
}

/// Rows that share a setup and are measured together.
#[derive(Debug)]
pub struct Group {
    /// Its rows.
    pub rows: &'static [Row],
    /// Measures all rows.
    pub measure: fn(&super::Context, &mut Report) -> Result<()>,
}

/// A row of the JSON file.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Short name.
    pub id: String,
    /// The operation.
    pub work: String,
    /// The competitor.
    pub against: String,
    /// Median of the rounds' ratios of rates, ours to theirs; null if it could not be
    /// measured.
    pub ratio: Option<f64>,
    /// 10th and 90th percentile of those ratios.
    pub spread: Option<[f64; 2]>,
    /// Minimum ratio that is promised.
    pub floor: f64,
    /// `met`, `missed` or `cannot measure: REASON`.
    pub verdict: String,
    /// Median nanoseconds of one operation. Null where no time is measured.
    pub ours_ns: Option<f64>,
    /// The same for the competitor.
    pub theirs_ns: Option<f64>,
    /// What was counted instead of a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ours_count: Option<f64>,
    /// The limit of it, or what the competitor has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub theirs_count: Option<f64>,
    /// Unit of the two.
    pub unit: &'static str,
    /// Number of counted rounds.
    pub rounds: usize,
    /// Operations in a round.
    pub ops_a_round: u64,
    /// Further remarks.
    pub notes: Vec<String>,
    /// The machine, in general terms.
    pub machine: String,
}

/// All rows of a run.
#[derive(Debug)]
pub struct Report {
    machine: String,
    filter: Option<String>,
    rows: Vec<Outcome>,
}

const WORK: usize = 47;
const AGAINST: usize = 43;

impl Report {
    /// Makes an empty report. `filter` hides rows whose id does not contain it.
    pub fn new(machine: String, filter: Option<String>) -> Report {
        Report {
            machine,
            filter,
            rows: Vec::new(),
        }
    }

    /// Returns whether the filter includes a row.
    pub fn wants(&self, id: &str) -> bool {
        self.filter.as_ref().is_none_or(|f| id.contains(f.as_str()))
    }

    /// Returns whether a row is in the report already.
    pub fn has(&self, id: &str) -> bool {
        self.rows.iter().any(|r| r.id == id)
    }

    /// Prints the head of the table.
    pub fn print_head(&self) {
        println!(
            "{:WORK$}  {:AGAINST$}  {:>6}  {:>13}  {:>6}  {:>9}  {:>9}  verdict",
            "work", "against", "ratio", "spread", "floor", "ours", "theirs"
        );
    }

    /// Records a measured row: sides `ours` and `theirs` of `m`.
    pub fn record(
        &mut self,
        row: &Row,
        m: &Measured,
        (ours, theirs): (usize, usize),
        notes: &[String],
    ) {
        let ratios = m.ratios(ours, theirs);
        let ratio = quantile(&ratios, 0.5);
        let met = if row.strictly {
            ratio > row.floor
        } else {
            ratio >= row.floor
        };
        self.push(Outcome {
            ratio: Some(round3(ratio)),
            spread: Some([
                round3(quantile(&ratios, 0.1)),
                round3(quantile(&ratios, 0.9)),
            ]),
            verdict: if met { "met" } else { "missed" }.into(),
            ours_ns: Some(round3(m.median_ns(ours))),
            theirs_ns: Some(round3(m.median_ns(theirs))),
            rounds: ratios.len(),
            ops_a_round: m.ops,
            notes: notes.to_vec(),
            ..self.blank(row)
        });
    }

    /// Records a row that counts something instead of measuring a time. Less is better.
    pub fn record_count(
        &mut self,
        row: &Row,
        (ours, theirs): (f64, f64),
        unit: &'static str,
        notes: &[String],
    ) {
        let ratio = theirs / ours;
        let verdict = if ratio >= row.floor { "met" } else { "missed" };
        self.push(Outcome {
            ratio: Some(round3(ratio)),
            spread: Some([round3(ratio); 2]),
            verdict: verdict.into(),
            ours_count: Some(round3(ours)),
            theirs_count: Some(round3(theirs)),
            unit,
            rounds: 1,
            ops_a_round: 1,
            notes: notes.to_vec(),
            ..self.blank(row)
        });
    }

    /// Records that a row could not be measured, and why.
    pub fn cannot(&mut self, row: &Row, why: &str) {
        let verdict = format!("cannot measure: {why}");
        self.push(Outcome {
            verdict,
            ..self.blank(row)
        });
    }

    fn blank(&self, row: &Row) -> Outcome {
        Outcome {
            id: row.id.into(),
            work: row.work.into(),
            against: row.against.into(),
            ratio: None,
            spread: None,
            floor: row.floor,
            verdict: String::new(),
            ours_ns: None,
            theirs_ns: None,
            ours_count: None,
            theirs_count: None,
            unit: "ns an operation",
            rounds: 0,
            ops_a_round: 0,
            notes: Vec::new(),
            machine: self.machine.clone(),
        }
    }

    fn push(&mut self, row: Outcome) {
        if !self.wants(&row.id) || self.has(&row.id) {
            return;
        }
        println!("{}", line(&row));
        for note in &row.notes {
            println!("{:WORK$}  {note}", "");
        }
        self.rows.push(row);
    }

    /// Measures a group. A row that the group leaves out is recorded as not measured.
    ///
    /// # Errors
    /// Only when interrupted; any other failure becomes a row.
    pub fn run_group(&mut self, cx: &super::Context, group: &Group) -> Result<()> {
        if !group.rows.iter().any(|r| self.wants(r.id)) {
            return Ok(());
        }
        let result = (group.measure)(cx, self);
        cx.check_stop()?;
        let why = match result {
            Ok(()) => "the comparison did not measure it".to_owned(),
            Err(e) => format!("{e:#}"),
        };
        for row in group.rows {
            if !self.has(row.id) {
                self.cannot(row, &why);
            }
        }
        Ok(())
    }

    /// Returns the numbers of rows met, missed and not measured.
    pub fn tally(&self) -> (usize, usize, usize) {
        let count = |v: &str| self.rows.iter().filter(|r| r.verdict == v).count();
        let (met, missed) = (count("met"), count("missed"));
        (met, missed, self.rows.len() - met - missed)
    }

    /// Writes the rows as a JSON array, atomically.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        let mut text = serde_json::to_string_pretty(&self.rows)?;
        text.push('\n');
        let partial = path.with_extension("json.partial");
        std::fs::write(&partial, text).with_context(|| partial.display().to_string())?;
        std::fs::rename(&partial, path).with_context(|| path.display().to_string())
    }
}

fn round3(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

fn line(row: &Outcome) -> String {
    let mut s = format!("{:WORK$}  {:AGAINST$}  ", row.work, row.against);
    let shown = |ns: Option<f64>, count: Option<f64>| {
        ns.map(duration)
            .or_else(|| count.map(|n| format!("{n} {}", row.unit)))
    };
    let ours = shown(row.ours_ns, row.ours_count);
    let theirs = shown(row.theirs_ns, row.theirs_count);
    let written = match (row.ratio, row.spread, ours, theirs) {
        (Some(ratio), Some([low, high]), Some(ours), Some(theirs)) => write!(
            s,
            "{ratio:>6.2}  {low:>5.2} ..{high:>5.2}  {:>6}  {ours:>9}  {theirs:>9}  {}",
            row.floor, row.verdict
        ),
        _ => write!(
            s,
            "{:>6}  {:>13}  {:>6}  {}",
            "-", "-", row.floor, row.verdict
        ),
    };
    debug_assert!(written.is_ok(), "writing to a String cannot fail");
    s
}

/// Formats nanoseconds for people.
pub fn duration(ns: f64) -> String {
    match ns {
        n if n < 1e3 => format!("{n:.1} ns"),
        n if n < 1e6 => format!("{:.2} us", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Context;

    const ROWS: &[Row] = &[
        Row {
            id: "a",
            work: "w",
            against: "x",
            floor: 2.0,
            strictly: false,
        },
        Row {
            id: "b",
            work: "w",
            against: "y",
            floor: 1.0,
            strictly: true,
        },
        Row {
            id: "c",
            work: "w",
            against: "z",
            floor: 1.0,
            strictly: false,
        },
    ];

    /// Measures two of three rows, then fails.
    fn half(_cx: &Context, out: &mut Report) -> Result<()> {
        let m = Measured {
            ops: 1,
            ns: vec![vec![1.0], vec![2.0], vec![1.0]],
        };
        out.record(&ROWS[0], &m, (0, 1), &[]);
        out.record(&ROWS[1], &m, (0, 2), &[]);
        anyhow::bail!("not installed")
    }

    #[test]
    fn report_keeps_every_row() {
        let mut report = Report::new("machine".into(), None);
        let group = Group {
            rows: ROWS,
            measure: half,
        };
        assert!(report.run_group(&Context::for_tests(1), &group).is_ok());
        let verdicts: Vec<_> = report.rows.iter().map(|r| r.verdict.as_str()).collect();
        assert_eq!(verdicts, ["met", "missed", "cannot measure: not installed"]);
        assert_eq!(report.tally(), (1, 1, 1));
        assert_eq!(report.rows[2].ratio, None);
    }

    #[test]
    fn count_above_its_limit_misses_row() {
        let mut report = Report::new("machine".into(), None);
        report.record_count(&ROWS[1], (3.0, 3.0), "calls", &[]);
        report.record_count(&ROWS[2], (4.0, 3.0), "calls", &[]);
        let verdicts: Vec<_> = report.rows.iter().map(|r| r.verdict.as_str()).collect();
        assert_eq!(verdicts, ["met", "missed"]);
        assert!(line(&report.rows[1]).contains("4 calls    3 calls  missed"));
        let json = serde_json::to_value(&report.rows).unwrap();
        assert_eq!(json[1]["ours_count"], 4.0);
        assert_eq!(json[1]["ours_ns"], serde_json::Value::Null);
    }
}
