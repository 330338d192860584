//! `pramfs requests`: how many requests of the kernel a mount has served, by operation.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use pramfs_control::ControlError;

use super::Subcommand;
use super::live::{self, live_mount};
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Requests {
    /// Mount point, or the region that is mounted
    place: PathBuf,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Subcommand for Requests {
    const NAME: &'static str = "requests";
    const ABOUT: &'static str = "Count the requests that a mount has served, by operation";

    fn run(&self) -> Result<(), Failure> {
        let about = |e: ControlError| live::about(&self.place, &e);
        let (server, _) = live_mount(&self.place)?;
        let counts = server.requests().map_err(about)?;
        match self.json {
            true => output::json(&counts),
            false => output::line(text(&counts).trim_end()),
        }
    }
}

/// One line for each operation, the most frequent first, and the sum.
fn text(counts: &BTreeMap<String, u64>) -> String {
    let mut rows: Vec<(&String, &u64)> = counts.iter().collect();
    rows.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
    let sum = counts.values().sum::<u64>();
    let row = |name: &str, count: u64| format!("{count:>14}  {name}\n");
    let all = rows.iter().map(|(name, count)| row(name, **count));
    all.chain([row("in all, since the mount", sum)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_frequent_operation_comes_first_and_sum_last() {
        let counts = [("READ", 5), ("LOOKUP", 70), ("OPEN", 5)];
        let counts = counts.map(|(name, count)| (name.to_owned(), count)).into();
        let text = text(&counts);
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        let expected = [
            "70  LOOKUP",
            "5  OPEN",
            "5  READ",
            "80  in all, since the mount",
        ];
        assert_eq!(lines, expected);
    }
}
