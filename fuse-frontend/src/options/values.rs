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
