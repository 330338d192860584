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

impl RecordId {
    /// Packs both into one word, which is not 0.
    pub fn to_word(self) -> u64 {
        u64::from(self.lane) << SEALED_BITS | self.lsn
    }

    /// Returns what [`to_word`](Self::to_word) has packed; `None` for 0.
    pub fn from_word(word: u64) -> Option<RecordId> {
        (word != 0).then_some(RecordId {
            lane: (word >> SEALED_BITS) as u32,
            lsn: word & ((1 << SEALED_BITS) - 1),
        })
    }
}

/// Guards the order of a set of homes. It lies beside the lock of these homes and is read
/// and written only under that lock.
#[derive(Debug, Default)]
pub struct LastRecord(AtomicU64);

impl LastRecord {
    /// Returns the last record that changed the place; `None` if none has since the mount.
    pub fn last(&self) -> Option<RecordId> {
        RecordId::from_word(self.0.load(Ordering::Relaxed))
    }

    /// Notes a record as the last one.
    pub fn set(&self, s: RecordId) {
        self.0.store(s.to_word(), Ordering::Relaxed);
    }
}
