//! Option values that are not one of a list.

use std::time::Duration;

use pramfs::MountOptions;
use pramfs_medium::size;

use super::MountSettings;
use crate::takeover::DEATHS;

/// Longest busy polling in microseconds. A longer one costs more than a sleep can save.
const MAX_BUSY_POLL: u64 = 1000;

/// Maximum number of threads that make sense for one mount.
pub const MAX_THREADS: usize = 64;

pub(super) fn threads(to: &mut MountSettings, text: &str) -> bool {
    let count = text.parse().ok();
    to.threads = count.filter(|n| (1..=MAX_THREADS).contains(n));
    to.threads.is_some()
}

pub(super) fn cache_mem(to: &mut MountSettings, text: &str) -> bool {
    to.cache_bytes = size::parse(text).ok();
    to.cache_bytes.is_some()
}

pub(super) fn default_cache_mem() -> String {
    size::short(MountOptions::default().cache_bytes)
}

pub(super) fn source(to: &mut MountSettings, text: &str) -> bool {
    to.source = Some(text.to_owned()).filter(|text| !text.is_empty());
    to.source.is_some()
}

pub(super) fn busy_poll(to: &mut MountSettings, text: &str) -> bool {
    let micros = text.parse().ok().filter(|n| *n <= MAX_BUSY_POLL);
    if let Some(micros) = micros {
        to.busy_poll = Duration::from_micros(micros);
    }
    micros.is_some()
}

pub(super) fn default_busy_poll() -> String {
    "0".to_owned()
}

pub(super) fn takeover_deaths(to: &mut MountSettings, text: &str) -> bool {
    let count = text.parse().ok().filter(|n| (1..=1_000_000).contains(n));
    if let Some(count) = count {
        to.takeover_deaths = count;
    }
    count.is_some()
}

pub(super) fn default_takeover_deaths() -> String {
    DEATHS.to_string()
}

pub(super) fn cache_mem_in_force(settings: &MountSettings) -> Option<String> {
    Some(
        settings
            .cache_bytes
            .map_or_else(default_cache_mem, size::short),
    )
}

pub(super) fn threads_in_force(settings: &MountSettings) -> Option<String> {
    settings.threads.map(|threads| threads.to_string())
}

pub(super) fn source_in_force(settings: &MountSettings) -> Option<String> {
    settings.source.clone()
}

pub(super) fn busy_poll_in_force(settings: &MountSettings) -> Option<String> {
    Some(settings.busy_poll.as_micros().to_string())
}

pub(super) fn takeover_deaths_in_force(settings: &MountSettings) -> Option<String> {
    settings
        .takeover
        .then(|| settings.takeover_deaths.to_string())
}

pub(super) fn slow(to: &mut MountSettings, text: &str) -> bool {
    match duration(text) {
        Some(slow) => to.slow = slow,
        None => return false,
    }
    true
}

pub(super) fn slow_in_force(settings: &MountSettings) -> Option<String> {
    Some(match settings.slow {
        None => default_slow(),
        Some(slow) => format!("{}us", slow.as_micros()),
    })
}

pub(super) fn default_slow() -> String {
    "off".to_owned()
}

/// Parses `50ms`, `2s`, `1.5s`, `800us`; `off` is `None` inside.
fn duration(text: &str) -> Option<Option<Duration>> {
    if text == "off" {
        return Some(None);
    }
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, unit) = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))?;
    if !number
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        return None;
    }
    let seconds = number.parse::<f64>().ok()? * unit;
    let time = Duration::try_from_secs_f64(seconds).ok()?;
    // Shorter, each request would be logged; longer, none.
    let bounds = Duration::from_micros(1)..=Duration::from_secs(86_400);
    bounds.contains(&time).then_some(Some(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_needs_number_and_unit() {
        let micros = |text| duration(text).map(|time| time.map(|time| time.as_micros()));
        assert_eq!(micros("50ms"), Some(Some(50_000)));
        assert_eq!(micros("1.5s"), Some(Some(1_500_000)));
        assert_eq!(micros("800us"), Some(Some(800)));
        assert_eq!(micros("off"), Some(None));
        for wrong in [
            "",
            "ms",
            "50",
            "0s",
            "-1s",
            "1e3s",
            "infs",
            "nans",
            "1m",
            "99999999s",
            "1.1.1s",
            "5 ms",
        ] {
            assert_eq!(micros(wrong), None, "{wrong}");
        }
    }
}
