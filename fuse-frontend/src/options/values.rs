//! Option values that are not one of a list.

use pramfs::MountOptions;
use pramfs_medium::size;

use super::MountSettings;

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
