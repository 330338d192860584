//! Counts what a thread does to media: fences, lines written back, bytes written past the
//! caches.
//!
//! A front end takes the tally before and after an operation. Each thread counts for itself, by
//! plain additions, all regions together. A range that is written back is counted by its lines,
//! also where the backend writes whole pages back.

use std::cell::Cell;

use super::region::LINE;

/// What a thread has done to media since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Fences.
    pub fences: u64,
    /// Lines of 64 bytes that were written back.
    pub lines: u64,
    /// Bytes that were written past the caches.
    pub streamed_bytes: u64,
}

impl Tally {
    /// Returns the tally of the calling thread.
    ///
    /// ```
    /// use pramfs_medium::pmem::{HeapBackend, Region, RegionAccess, Tally};
    /// let region = Region::new("example", HeapBackend::boxed(1 << 20));
    /// let before = Tally::of_thread();
    /// let window = region.window();
    /// let stored = window.store(60, &[1; 8])?;
    /// let _ = window.fence(stored);
    /// let done = Tally::of_thread().since(&before);
    /// assert_eq!((done.fences, done.lines), (1, 2));
    /// # Ok::<(), pramfs_medium::pmem::PmemError>(())
    /// ```
    #[inline]
    pub fn of_thread() -> Tally {
        TALLY.with(|tally| Tally {
            fences: tally.fences.get(),
            lines: tally.lines.get(),
            streamed_bytes: tally.streamed_bytes.get(),
        })
    }

    /// Returns what has been done since an earlier tally of the same thread.
    #[must_use]
    pub fn since(&self, before: &Tally) -> Tally {
        Tally {
            fences: self.fences.wrapping_sub(before.fences),
            lines: self.lines.wrapping_sub(before.lines),
            streamed_bytes: self.streamed_bytes.wrapping_sub(before.streamed_bytes),
        }
    }
}

/// The words are apart, so that counting one loads and stores no other.
struct Counts {
    fences: Cell<u64>,
    lines: Cell<u64>,
    streamed_bytes: Cell<u64>,
}

thread_local! {
    static TALLY: Counts = const {
        Counts {
            fences: Cell::new(0),
            lines: Cell::new(0),
            streamed_bytes: Cell::new(0),
        }
    };
}

#[inline(always)]
fn count(number: u64, of: impl FnOnce(&Counts) -> &Cell<u64>) {
    TALLY.with(|counts| {
        let count = of(counts);
        count.set(count.get().wrapping_add(number));
    });
}

/// Counts a fence.
#[inline]
pub(super) fn fence() {
    count(1, |counts| &counts.fences);
}

/// Counts the lines of a range.
#[inline]
pub(super) fn flush(offset: u64, len: u64) {
    if len != 0 {
        lines((offset % LINE + len).div_ceil(LINE));
    }
}

/// Counts lines.
#[inline]
pub(super) fn lines(number: u64) {
    count(number, |counts| &counts.lines);
}

/// Counts bytes that go past the caches.
#[inline]
pub(super) fn stream(bytes: u64) {
    count(bytes, |counts| &counts.streamed_bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::{HeapBackend, Region};

    #[test]
    fn stores_flushes_and_fences_are_counted_for_their_thread() {
        let region = Region::new("tally", HeapBackend::boxed(1 << 20));
        let before = Tally::of_thread();
        let window = region.window();
        // 100 bytes that touch three lines, and two streams.
        let stored = window.store(60, &[7; 100]).unwrap();
        let stored = stored.join(window.nt_store(4096, &[7; 64]).unwrap());
        let stored = stored.join(window.nt_zero(8192, 128).unwrap());
        let stored = stored.join(window.nt_copy(12288, 4096, 8).unwrap());
        let fenced = window.fence(stored);
        let published = window.publish_u64(0, 1, fenced).unwrap();
        let _ = window.fence(published);
        assert!(window.flush(64, 0).is_ok());
        let done = Tally::of_thread().since(&before);
        let expected = Tally {
            fences: 2,
            lines: 3,
            streamed_bytes: 64 + 128 + 8 + 8,
        };
        assert_eq!(done, expected);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(Tally::of_thread(), Tally::default()));
        });
    }
}
