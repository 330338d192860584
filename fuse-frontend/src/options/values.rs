//! Option values that are not one of a list.

use super::MountSettings;

/// Maximum number of threads that make sense for one mount.
pub const MAX_THREADS: usize = 64;

pub(super) fn threads(to: &mut MountSettings, text: &str) -> bool {
    let count = text.parse().ok();
    to.threads = count.filter(|n| (1..=MAX_THREADS).contains(n));
    to.threads.is_some()
}

pub(super) fn cache_mem(to: &mut MountSettings, text: &str) -> bool {
    to.cache_bytes = bytes(text);
    to.cache_bytes.is_some()
}

pub(super) fn source(to: &mut MountSettings, text: &str) -> bool {
    to.source = Some(text.to_owned()).filter(|text| !text.is_empty());
    to.source.is_some()
}

/// Parses a number of bytes, optionally with K, M or G.
fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}
