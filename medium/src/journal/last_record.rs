//! The record that last changed a place: lane and LSN in one word.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::media::checksum::SEALED_BITS;

/// Lane and LSN of a committed record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordId {
    /// Lane.
    pub lane: u32,
    /// LSN.
    pub lsn: u64,
}

/// Guards the order of a set of homes. It lies beside the lock of these homes and is read
/// and written only under that lock.
#[derive(Debug, Default)]
pub struct LastRecord(AtomicU64);

impl LastRecord {
    /// Returns the last record that changed the place; `None` if none has since the mount.
    pub fn last(&self) -> Option<RecordId> {
        let w = self.0.load(Ordering::Relaxed);
        (w != 0).then_some(RecordId {
            lane: (w >> SEALED_BITS) as u32,
            lsn: w & ((1 << SEALED_BITS) - 1),
        })
    }

    /// Notes a record as the last one.
    pub fn set(&self, s: RecordId) {
        self.0
            .store(u64::from(s.lane) << SEALED_BITS | s.lsn, Ordering::Relaxed);
    }
}
