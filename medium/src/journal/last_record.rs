//! Who changed a place last: lane and LSN, in one word.

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

/// Guards the order of a set of homes: kept beside the lock that guards the
/// homes themselves, read and written only under it.
#[derive(Debug, Default)]
pub struct LastRecord(AtomicU64);

impl LastRecord {
    /// The last record that wrote here; `None` if none did since mount.
    pub fn last(&self) -> Option<RecordId> {
        let w = self.0.load(Ordering::Relaxed);
        (w != 0).then_some(RecordId {
            lane: (w >> SEALED_BITS) as u32,
            lsn: w & ((1 << SEALED_BITS) - 1),
        })
    }

    /// Notes a record.
    pub fn set(&self, s: RecordId) {
        self.0
            .store(u64::from(s.lane) << SEALED_BITS | s.lsn, Ordering::Relaxed);
    }
}
