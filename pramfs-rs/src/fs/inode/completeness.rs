//! What is known about the holes of an inode, see [`engine::completeness`](crate::fs::engine).

use std::sync::atomic::{AtomicU8, Ordering};

/// What is known of an inode's trees.
#[derive(Debug)]
pub(crate) struct Completeness(pub(crate) AtomicU8);

pub(crate) const UNKNOWN: u8 = 0;
pub(crate) const COMPLETE: u8 = 1;
pub(crate) const DAMAGED: u8 = 2;
/// The tree of attributes is damaged, and so nobody can tell.
pub(crate) const UNREADABLE_XATTRS: u8 = 3;

impl Completeness {
    /// Of an inode that was read from the medium.
    pub(crate) const fn unknown() -> Completeness {
        Completeness(AtomicU8::new(UNKNOWN))
    }

    /// Nothing is missing: a new inode, or one that was counted.
    #[inline]
    pub(crate) fn note(&self) {
        self.0.store(COMPLETE, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed) == COMPLETE
    }
}
