//! `pramfs log-level`: what the server of a live mount logs, from now on.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pramfs_control::{LogLevel, SetLogging, text};

use super::Subcommand;
use super::live::{self, no_answer};
use crate::{Failure, output};

#[derive(Debug, Args)]
pub(super) struct SetLogLevel {
    /// Mount point, or the region that is mounted
    place: PathBuf,
    /// The lowest level to log; without it, the level stays as it is
    #[arg(value_name = "error|warn|info|debug|trace", value_parser = level)]
    level: Option<LogLevel>,
    /// Log requests that take so long: a number with us, ms or s; off logs none
    #[arg(long, value_name = "DURATION", value_parser = micros)]
    slow: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn level(text: &str) -> Result<LogLevel, String> {
    LogLevel::of_name(text).ok_or_else(|| "one of error, warn, info, debug and trace".to_owned())
}

/// Parses a time of 1 us to a day, or `off`, which is 0.
fn micros(text: &str) -> Result<u64, String> {
    if text == "off" {
        return Ok(0);
    }
    let wrong = || "a number with us, ms or s, from 1us to 86400s, or off".to_owned();
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let found = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, unit) = found.ok_or_else(wrong)?;
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * unit;
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    match u64::try_from(time.as_micros()) {
        Ok(micros @ 1..=86_400_000_000) => Ok(micros),
        _ => Err(wrong()),
    }
}

impl Subcommand for SetLogLevel {
    const NAME: &'static str = "log-level";
    const ABOUT: &'static str = "Show or set what the server of a live mount logs";

    fn run(&self) -> Result<(), Failure> {
        let server = live::live_mount_soon(&self.place)?;
        let change = SetLogging {
            level: self.level,
            slow_us: self.slow,
        };
        let logging = server.set_logging(change);
        let logging = logging.map_err(|error| no_answer(&self.place, &server, &error))?;
        if self.json {
            return output::json(&logging);
        }
        let slow = match logging.slow_us {
            0 => "off".to_owned(),
            micros => text::time(Duration::from_micros(micros)),
        };
        output::line(&format!(
            "log: {} to {}, slow operations: {slow}",
            logging.filter, logging.to
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_is_a_time_with_a_unit() {
        assert_eq!(micros("50ms"), Ok(50_000));
        assert_eq!(micros("1.5s"), Ok(1_500_000));
        assert_eq!(micros("off"), Ok(0));
        for wrong in [
            "",
            "5",
            "ms",
            "0us",
            "-1s",
            "inf s",
            "nans",
            "99999999s",
            "1m",
        ] {
            assert!(micros(wrong).is_err(), "{wrong}");
        }
    }
}
