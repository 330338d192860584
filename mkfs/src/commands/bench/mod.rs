//! `pramfs bench`: measures a directory by system calls, for its user: a mount beside another file
//! system of the same machine, or one machine beside another. `pramfs-bench` measures the project
//! itself.

mod field;
mod rows;

use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use clap::Args;
use pramfs_medium::size;
use serde::Serialize;

use super::Subcommand;
use crate::failure::shown;
use crate::signals::{end_by, note_signals, noted};
use crate::{Failure, output};
use field::Field;
use rows::{ROWS, Row};

/// Operations of a kind whose times are kept, 8 bytes each. After so many, the kind ends.
const MOST: usize = 4_000_000;

#[derive(Debug, Args)]
pub(super) struct Bench {
    /// Directory of a mount, or of any other file system
    directory: PathBuf,
    /// Time for each kind of operation, 0.01 to 3600; it ends after 4 million operations
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = duration)]
    time: Duration,
    /// Bytes of the file that is read and written, a multiple of 1M
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = file_size)]
    size: u64,
    /// Print one JSON object; durations are in nanoseconds
    #[arg(long)]
    json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    let given = text.parse().ok().filter(|s| (0.01..=3600.0).contains(s));
    let wrong = || format!("\"{text}\" is not a number of seconds from 0.01 to 3600");
    given.map(Duration::from_secs_f64).ok_or_else(wrong)
}

fn file_size(text: &str) -> Result<u64, String> {
    let given = size::parse(text)?;
    match given > 0 && given.is_multiple_of(rows::LARGE as u64) {
        true => Ok(given),
        false => Err(format!("{text} is not a multiple of 1M, or zero")),
    }
}

/// What was measured of one kind of operation.
#[derive(Debug, Serialize)]
struct Measured {
    operation: &'static str,
    /// Bytes that one operation moves, 0 = it moves none.
    bytes: u64,
    count: u64,
    per_second: f64,
    /// Half of the operations took no longer, ns.
    median: u64,
    /// 99 of 100 took no longer, ns.
    p99: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    directory: String,
    /// Type of the file system, if the system tells it.
    file_system: Option<String>,
    file_bytes: u64,
    /// Reads and writes do not use the page cache.
    direct_io: bool,
    rows: Vec<Measured>,
}

impl Subcommand for Bench {
    const NAME: &'static str = "bench";
    const ABOUT: &'static str = "Measure the speed of a directory, in a few seconds";

    fn run(&self) -> Result<(), Failure> {
        let signal = note_signals()?;
        let mut field = Field::make(&self.directory, self.size)?;
        let measured = self.measure(&mut field, &signal);
        let removed = field.remove().map_err(|e| {
            Failure::os(
                "cannot remove the files of the measurement from",
                &self.directory,
                e,
            )
        });
        if let Some(number) = noted(&signal) {
            removed?;
            return end_by(number);
        }
        let report = measured?;
        removed?;
        match self.json {
            true => output::json(&report),
            false => report.print(),
        }
    }
}

impl Bench {
    fn measure(&self, field: &mut Field, signal: &AtomicUsize) -> Result<Report, Failure> {
        field
            .fill(&|| noted(signal).is_none())
            .map_err(|e| Failure::os("cannot write a file in", &self.directory, e))?;
        let mut rows = Vec::new();
        for row in ROWS {
            if let Some(measured) = self.repeat(row, field, signal)? {
                rows.push(measured);
            }
        }
        Ok(Report {
            directory: shown(&self.directory),
            file_system: field.file_system(),
            file_bytes: self.size,
            direct_io: field.direct_io,
            rows,
        })
    }

    /// Repeats an operation for a time, at least once. `None`: a signal has come before.
    fn repeat(
        &self,
        row: &Row,
        field: &mut Field,
        signal: &AtomicUsize,
    ) -> Result<Option<Measured>, Failure> {
        let mut took: Vec<u64> = Vec::new();
        let start = Instant::now();
        let mut end = start;
        while noted(signal).is_none()
            && took.len() < MOST
            && (took.is_empty() || end - start < self.time)
        {
            let begun = Instant::now();
            (row.work)(field, took.len() as u64)
                .map_err(|e| Failure::os(row.failed, &self.directory, e))?;
            end = Instant::now();
            took.push(u64::try_from((end - begun).as_nanos()).unwrap_or(u64::MAX));
        }
        let elapsed = (end - start).as_secs_f64();
        took.sort_unstable();
        if took.is_empty() {
            return Ok(None);
        }
        Ok(Some(Measured {
            operation: row.name,
            bytes: row.bytes as u64,
            count: took.len() as u64,
            per_second: took.len() as f64 / elapsed,
            median: within(&took, 50),
            p99: within(&took, 99),
        }))
    }
}

/// Returns the time that so many percent of the operations did not exceed. `sorted` is not empty.
fn within(sorted: &[u64], percent: usize) -> u64 {
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
}

/// `850 ns`, `27 us`, `1.4 ms`, `2.0 s`.
fn human_time(ns: u64) -> String {
    match ns {
        0..1000 => format!("{ns} ns"),
        1000..10_000 => format!("{:.1} us", ns as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

impl Report {
    fn print(&self) -> Result<(), Failure> {
        let of = self.file_system.as_deref().unwrap_or("unknown");
        output::line(&format!(
            "{} (file system: {of}), one thread, a file of {}",
            self.directory,
            size::human(self.file_bytes)
        ))?;
        if !self.direct_io {
            output::line("There is no O_DIRECT here: reads may come from the page cache.")?;
        }
        output::line(&format!(
            "{:<32} {:>12} {:>14} {:>10} {:>14}",
            "operation", "per second", "bytes/s", "half took", "99 of 100 took"
        ))?;
        for row in &self.rows {
            let bytes = match row.bytes {
                0 => String::new(),
                bytes => size::human((bytes as f64 * row.per_second) as u64),
            };
            output::line(&format!(
                "{:<32} {:>12.0} {bytes:>14} {:>10} {:>14}",
                row.operation,
                row.per_second,
                human_time(row.median),
                human_time(row.p99),
            ))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_with_their_unit() {
        let shown = [999, 1000, 27_400, 1_440_000, 2_000_000_000].map(human_time);
        assert_eq!(shown, ["999 ns", "1.0 us", "27 us", "1.4 ms", "2.0 s"]);
    }

    #[test]
    fn shares_of_operations_count_the_slowest() {
        let times = |n: u64| (1..=n).collect::<Vec<_>>();
        let p99 = [1, 2, 50, 100, 101].map(|n| within(&times(n), 99));
        assert_eq!(p99, [1, 2, 50, 99, 100]);
        let median = [1, 2, 3, 100].map(|n| within(&times(n), 50));
        assert_eq!(median, [1, 1, 2, 50]);
    }

    #[test]
    fn wrong_times_and_sizes_are_refused() {
        for wrong in ["0", "-1", "nan", "inf", "3601", "x", ""] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0", "1", "1K", "1.5M", ""] {
            assert!(file_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(file_size("2M"), Ok(2 << 20));
    }
}
