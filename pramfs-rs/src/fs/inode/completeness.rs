//! The result of the completeness check of an inode in memory.
//!
//! Invariant: `COMPLETE` is final while the inode is in memory, since every record changes
//! the counts together with the trees. The check itself is in
//! [`engine::completeness`](crate::fs::engine::completeness).

use std::sync::atomic::{AtomicU8, Ordering};

/// Whether the trees of an inode hold the blocks and entries that it counts: one of the
/// constants below.
#[derive(Debug)]
pub(crate) struct Completeness(pub(crate) AtomicU8);

/// Not counted yet.
pub(crate) const UNKNOWN: u8 = 0;
/// The numbers agree.
pub(crate) const COMPLETE: u8 = 1;
/// Blocks or entries are missing, or there are too many.
pub(crate) const DAMAGED: u8 = 2;
/// The contents cannot be checked, because the attribute tree is damaged.
pub(crate) const UNREADABLE_XATTRS: u8 = 3;

impl Completeness {
    /// Returns the state of an inode that was read from the medium.
    pub(crate) const fn unknown() -> Completeness {
        Completeness(AtomicU8::new(UNKNOWN))
    }

    /// Notes that nothing is missing: the inode is new, or its trees were counted.
    #[inline]
    pub(crate) fn note(&self) {
        self.0.store(COMPLETE, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed) == COMPLETE
    }
}
