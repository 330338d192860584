//! Stores to files that no request tells of: through maps of guests, and by leases that an earlier
//! server has given.
//!
//! Nobody knows which parts of a file they have changed. A request that makes a file durable
//! flushes all of it that has blocks.

use pramfs::inode::{Fs, HeldLease, Ino, LeaseMode};
use pramfs::{Error, FileExtent};

/// Bytes that are flushed without a break.
const FLUSHED_AT_ONCE: u64 = 64 << 20;

/// Extents that are looked up at once.
const EXTENTS_AT_ONCE: usize = 64;

/// Whether processes that an earlier server has given leases may store to files without a request.
pub fn others_may_store(fs: &Fs) -> bool {
    let stores = |lease: &HeldLease| lease.mode == LeaseMode::Write;
    fs.has_unknown_lease() || fs.leases().iter().any(stores)
}

/// Makes durable what is stored to files with leases to write, or to one of them, but for the leases
/// that `is_known`, and those of programs: they flush their stores themselves. Returns of how many
/// files.
///
/// # Errors
/// Those of the medium.
pub(crate) fn flush(
    fs: &Fs,
    node: Option<u64>,
    is_known: impl Fn(&HeldLease) -> bool,
) -> Result<usize, Error> {
    let (own, mut leases) = (std::process::id(), fs.leases());
    leases.retain(|lease| {
        let named = node.is_none_or(|node| lease.ino.0 == node);
        let of_guest = lease.is_adopted || lease.pid == own;
        named && of_guest && lease.mode == LeaseMode::Write && !is_known(lease)
    });
    let mut files: Vec<Ino> = leases.iter().map(|lease| lease.ino).collect();
    files.sort_unstable();
    files.dedup();
    for ino in &files {
        match flush_file(fs, *ino) {
            // The last lease has just ended, and the file with it.
            Ok(()) | Err(Error::Stale(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(files.len())
}

/// A guest chooses the size of a file, and holes cost it nothing: only what has blocks takes time,
/// whatever they hold.
fn flush_file(fs: &Fs, ino: Ino) -> Result<(), Error> {
    let mut at = 0;
    loop {
        let found = fs.first_extents(ino, at, EXTENTS_AT_ONCE)?;
        let Some(last) = found.last() else {
            return Ok(());
        };
        at = last.file_offset.saturating_add(last.len);
        let is_written = |e: &&FileExtent| e.region_offset.is_some() && !e.unwritten;
        for extent in found.iter().filter(is_written) {
            let (mut from, end) = (extent.file_offset, extent.file_offset + extent.len);
            while from < end {
                let to = end.min(from + FLUSHED_AT_ONCE);
                fs.flush_stores(ino, from..to)?;
                from = to;
            }
        }
    }
}
