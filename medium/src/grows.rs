//! [`Grows`]: a size that only becomes larger, and is read without a lock.
//!
//! A live grow changes the size of a region while threads use it. The order: the part that is
//! new is prepared first (mapped, formatted, durable), then the size is raised with release. A
//! reader loads the size with acquire, so it finds the new part ready; a reader that still
//! finds the old size treats the new part as absent, which is right until the grow returns.

use std::sync::atomic::{AtomicU64, Ordering};

/// A size that only becomes larger, see the module.
///
/// ```
/// use pramfs_medium::grows::Grows;
/// let size = Grows::new(4);
/// size.raise(9);
/// size.raise(7);
/// assert_eq!(size.get(), 9);
/// ```
#[derive(Debug, Default)]
pub struct Grows(AtomicU64);

impl Grows {
    /// Starts with a size.
    pub const fn new(size: u64) -> Grows {
        Grows(AtomicU64::new(size))
    }

    /// Returns the size. What was prepared for it is there.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Publishes a larger size. A smaller one changes nothing.
    pub fn raise(&self, size: u64) {
        self.0.fetch_max(size, Ordering::Release);
    }
}

/// The copy has the present size, and does not follow.
impl Clone for Grows {
    fn clone(&self) -> Grows {
        Grows::new(self.get())
    }
}
