//! The pages of a source that are known to exist on the host. [`room`](super::room) queries
//! them and takes more.

use crate::pmem::AtomicTable;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::order::{acquire, release};

pub(super) const PAGE_LOG2: u32 = 12;
pub(super) const PAGE: u64 = 1 << PAGE_LOG2;
/// Unit in bytes in which room is taken and queried.
pub const CHUNK: u64 = 2 << 20;

/// The pages that are known to exist.
#[derive(Debug)]
pub struct KnownRoom {
    /// Whether all pages exist.
    all: AtomicBool,
    pages: AtomicTable,
    /// Chunks that have been queried.
    asked: AtomicTable,
    /// The host has refused room: only blocks with known room are allocated.
    dry: AtomicBool,
}

impl KnownRoom {
    pub(super) fn new(len: u64, all: bool) -> Option<KnownRoom> {
        let words =
            |bits: u64| AtomicTable::new(bits.div_ceil(64) as usize, "the room of the host");
        let known = KnownRoom {
            all: AtomicBool::new(all),
            pages: words(len.div_ceil(PAGE)),
            asked: words(len.div_ceil(CHUNK)),
            dry: AtomicBool::new(false),
        };
        (!known.pages.is_empty() && !known.asked.is_empty()).then_some(known)
    }

    /// Whether all of a range is known to exist.
    #[inline]
    pub fn has(&self, offset: u64, len: u64) -> bool {
        if self.all.load(Ordering::Relaxed) {
            return true;
        }
        let first = offset >> PAGE_LOG2;
        let last = offset.saturating_add(len.saturating_sub(1)) >> PAGE_LOG2;
        if first >> 6 != last >> 6 {
            return self.has_many(first, last);
        }
        let mask = u64::MAX >> (63 - (last - first)) << (first & 63);
        (self.pages.get((first >> 6) as usize))
            .is_some_and(|w| w.load(Ordering::Relaxed) & mask == mask)
    }

    fn has_many(&self, first: u64, last: u64) -> bool {
        self.missing(first, last + 1).is_none()
    }

    /// Returns the first page of a range that is not known to exist.
    pub(super) fn missing(&self, first: u64, end: u64) -> Option<u64> {
        self.next(first, end, |word| !word)
    }

    /// Returns the bytes of those pages of a range that are not known to exist.
    pub(super) fn count_missing(&self, from: u64, end: u64) -> u64 {
        let (mut page, end) = (from >> PAGE_LOG2, end.div_ceil(PAGE));
        let mut missing = 0;
        while let Some(first) = self.missing(page, end) {
            page = self.next(first, end, |word| word).unwrap_or(end);
            missing += page - first;
        }
        missing << PAGE_LOG2
    }

    /// Returns the first page of a range whose bit is set in the result of `of` for its
    /// word.
    fn next(&self, mut page: u64, end: u64, of: impl Fn(u64) -> u64) -> Option<u64> {
        while page < end {
            let word = self
                .pages
                .get((page >> 6) as usize)?
                .load(Ordering::Relaxed);
            let found = of(word) >> (page & 63);
            if found != 0 {
                page += u64::from(found.trailing_zeros());
                return (page < end).then_some(page);
            }
            page = ((page >> 6) + 1) << 6;
        }
        None
    }

    /// Returns the first part of a range that is known to exist, as start and end.
    pub fn part(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let end = offset.saturating_add(len);
        if self.all.load(Ordering::Relaxed) {
            return Some((offset, end));
        }
        let (page, stop) = (offset >> PAGE_LOG2, end.div_ceil(PAGE));
        let first = self.next(page, stop, |word| word)?;
        let last = self.missing(first, stop).unwrap_or(stop);
        Some((
            (first << PAGE_LOG2).max(offset),
            (last << PAGE_LOG2).min(end),
        ))
    }

    /// Whether the host has refused, so that only existing pages can be used.
    #[inline]
    pub fn is_dry(&self) -> bool {
        self.dry.load(Ordering::Relaxed)
    }

    pub(super) fn set_dry(&self, dry: bool) {
        self.dry.store(dry, Ordering::Relaxed);
    }

    fn change(words: &[AtomicU64], mut from: u64, end: u64, set: bool) {
        while from < end {
            let n = (64 - (from & 63)).min(end - from);
            let mask = u64::MAX >> (64 - n) << (from & 63);
            if let Some(word) = words.get((from >> 6) as usize) {
                match set {
                    true => word.fetch_or(mask, Ordering::Relaxed),
                    false => word.fetch_and(!mask, Ordering::Relaxed),
                };
            }
            from += n;
        }
    }

    /// Notes that the whole pages inside the range exist.
    pub(super) fn note(&self, from: u64, end: u64) {
        Self::change(&self.pages, from.div_ceil(PAGE), end >> PAGE_LOG2, true);
    }

    /// Notes that pages of the range may not exist. The caller excludes queries. Relaxed
    /// stores suffice: a later allocation of the blocks comes after, by the allocator's locks.
    pub(super) fn forget(&self, from: u64, end: u64) {
        // First: a caller that finds it cleared queries each chunk again.
        self.all.store(false, Ordering::Relaxed);
        Self::change(&self.pages, from >> PAGE_LOG2, end.div_ceil(PAGE), false);
    }

    pub(super) fn was_asked(&self, chunk: u64) -> bool {
        let word = self.asked.get((chunk >> 6) as usize);
        word.is_none_or(|w| w.load(acquire("room-was-asked")) >> (chunk & 63) & 1 != 0)
    }

    /// Notes that a chunk has been queried. A thread that sees this also sees the pages
    /// noted before, and so does not take room that exists.
    pub(super) fn note_asked(&self, chunk: u64) {
        if let Some(word) = self.asked.get((chunk >> 6) as usize) {
            word.fetch_or(1 << (chunk & 63), release("room-asked"));
        }
    }
}
