//! The LSN up to which the records of a lane are dead: replay no longer sees them.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::order::{acquire, release};

/// The LSN of the last dead record of a lane. It grows under the lock of the lane; other
/// threads read it without the lock.
///
/// Invariant: a thread that sees a record dead comes after the fences that made it dead. So
/// its stores to the homes of the record cannot reach the medium before them.
#[derive(Debug)]
pub(super) struct DeadLsn(AtomicU64);

impl DeadLsn {
    pub(super) fn new(lsn: u64) -> DeadLsn {
        DeadLsn(AtomicU64::new(lsn))
    }

    /// Whether the record with this LSN is dead.
    #[inline]
    pub(super) fn covers(&self, lsn: u64) -> bool {
        self.0.load(acquire("dead-covers")) >= lsn
    }

    /// Returns the LSN. The caller holds the lock of the lane.
    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes that the records up to `lsn` are dead. The caller holds the lock of the lane.
    #[inline]
    pub(super) fn raise(&self, lsn: u64) {
        self.0.store(lsn, release("dead-raise"));
    }
}
