//! `pramfs status`: the state of live mounts.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pramfs_control::MountStatus;

use super::live::{self, Answer};
use super::{Subcommand, prometheus};
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct Status {
    /// Mount point, or the region that is mounted; all mounts of root if it is missing
    place: Option<PathBuf>,
    /// Print JSON: an object for a mount, an array for all. Mounts that do not answer are objects with `error`
    #[arg(long)]
    json: bool,
    /// Print metrics in the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    /// Print the state again and again, every so many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "2", value_parser = seconds)]
    watch: Option<Duration>,
}

/// Parses a number of seconds, from a tenth to a day.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    match (0.1..=86_400.0).contains(&number) {
        true => Ok(Duration::from_secs_f64(number)),
        false => Err("a number of seconds from 0.1 to 86400".to_owned()),
    }
}

impl Subcommand for Status {
    const NAME: &'static str = "status";
    const ABOUT: &'static str = "Show the state of live mounts: options, space, requests, damage";

    fn run(&self) -> Result<(), Failure> {
        let Some(every) = self.watch else {
            return self.show();
        };
        loop {
            // A mount may come back.
            if let Err(failure) = self.show() {
                if failure.status == output::BROKEN_PIPE {
                    return Err(failure);
                }
                if !failure.message.is_empty() {
                    eprintln!("pramfs status: {}", failure.message);
                }
            }
            output::flush()?;
            std::thread::sleep(every);
        }
    }
}

impl Status {
    fn show(&self) -> Result<(), Failure> {
        match &self.place {
            Some(place) => {
                let status = live::status_of(place)?;
                match (self.json, self.prometheus) {
                    (true, _) => output::json(&status),
                    (_, true) => output::bytes(prometheus::text(&[status]).as_bytes()),
                    _ => output::bytes(status.text().as_bytes()),
                }
            }
            None => self.show_all(live::status_of_all()?),
        }
    }

    fn show_all(&self, answers: Vec<Answer>) -> Result<(), Failure> {
        let is_empty = answers.is_empty();
        let (states, failures) = parted(answers);
        if self.json {
            output::json(&self.documents(&states, &failures)?)?;
        } else if self.prometheus {
            output::bytes(prometheus::text(&states).as_bytes())?;
        } else {
            for (nth, status) in states.iter().enumerate() {
                let between = if nth == 0 { "" } else { "\n" };
                output::bytes(format!("{between}{}", status.text()).as_bytes())?;
            }
            if is_empty {
                output::line("nothing is mounted by root")?;
            }
        }
        for failure in &failures {
            eprintln!("pramfs status: {}", failure.message);
        }
        match failures.is_empty() {
            true => Ok(()),
            false => Err(Failure::silent()),
        }
    }

    /// The entries of the array: the states, then what failed. A watch has states only, as that of
    /// one mount.
    fn documents(
        &self,
        states: &[MountStatus],
        failures: &[Failure],
    ) -> Result<Vec<serde_json::Value>, Failure> {
        let states = states.iter().map(|status| {
            serde_json::to_value(status)
                .map_err(|e| Failure::new("os", format!("cannot write JSON: {e}")))
        });
        let failures = failures.iter().filter(|_| self.watch.is_none());
        states
            .chain(failures.map(|failure| Ok(output::failure_object(failure))))
            .collect()
    }
}

/// Parts the states from the failures.
pub(super) fn parted(answers: Vec<Answer>) -> (Vec<MountStatus>, Vec<Failure>) {
    let (mut states, mut failures) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Ok(status) => states.push(status),
            Err(failure) => failures.push(failure),
        }
    }
    // One mount point may have more than one: these keep their order, too.
    let key = |status: &MountStatus| (status.mount_point.clone(), status.device);
    states.sort_by_cached_key(key);
    (states, failures)
}
