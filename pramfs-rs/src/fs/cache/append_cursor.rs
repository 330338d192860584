//! The append cursor: the place where an open file grows.

use pramfs_medium::sync::atomic::{AtomicU64, Ordering};
use pramfs_medium::types::Bno;

/// Maximum number of blocks per append here: they fit a small record.
pub(crate) const MAX_APPEND_BLOCKS: u64 = 16;

/// The place where an open file grows, if known. It changes under the exclusive lock of
/// the inode.
///
/// Invariant: the cursor is valid until the next record that changes the inode. Every
/// record that changes the file map or the size also changes the inode.
#[derive(Debug, Default)]
pub(crate) struct AppendCursor {
    /// The number of records that have changed the inode, plus one; 0 if nothing is known.
    valid: AtomicU64,
    /// The pointer block of the last block of the file.
    table: AtomicU64,
    /// The block of the region after that last block.
    next: AtomicU64,
}

impl AppendCursor {
    /// Whether the place was ever known. It may have changed since.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.valid.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn get(&self, records: u64) -> Option<(Bno, u64)> {
        let known = self.valid.load(Ordering::Relaxed) == records.wrapping_add(1);
        known.then(|| {
            let table = self.table.load(Ordering::Relaxed);
            (Bno(table), self.next.load(Ordering::Relaxed))
        })
    }

    pub(crate) fn put(&self, records: u64, table: Bno, next: u64) {
        self.valid.store(records.wrapping_add(1), Ordering::Relaxed);
        self.table.store(table.0, Ordering::Relaxed);
        self.next.store(next, Ordering::Relaxed);
    }
}
