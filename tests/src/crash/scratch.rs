//! Memory that images of a crash are mounted in, one after the other.
//!
//! Purpose: an image costs a few lines and pages of copying instead of a
//! mapping of its own. The backend knows which pages were stored to, so that
//! [`restore`](Scratch::restore) brings only those back, and a recovery that
//! runs on it can be recorded as on the sim backend.
//!
//! Left to others: counting (the sim backend does), and memory that is mapped
//! a second time.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pramfs_medium::pmem::{Event, EventKind, Granularity, LINE, Persistence, PmemBackend, Region};

/// Bytes of a page, the unit in which changes are noted.
pub const PAGE: usize = 4096;

#[derive(Debug)]
struct Inner {
    base: *mut u8,
    layout: Layout,
    /// A bit for each page that was stored to.
    dirty: Box<[AtomicU64]>,
    recording: AtomicBool,
    record: Mutex<Vec<Event>>,
}

// SAFETY: the allocation is owned by this value and accessed only by copies and
// atomics: by the region under its rules, and by `Scratch` while nothing is
// mounted on it.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: allocated in `Scratch::new` with this layout, freed once.
        unsafe { dealloc(self.base, self.layout) };
    }
}

/// Memory for images. Clones share it.
#[derive(Debug, Clone)]
pub struct Scratch(Arc<Inner>);

impl Scratch {
    /// Room for images of `len` bytes, whole pages.
    ///
    /// # Panics
    /// Where there is no memory.
    pub fn new(len: usize) -> Scratch {
        assert!(len > 0 && len.is_multiple_of(PAGE), "whole pages");
        let layout = Layout::from_size_align(len, PAGE).expect("a size that fits");
        // SAFETY: the layout has a size.
        let base = unsafe { alloc_zeroed(layout) };
        assert!(!base.is_null(), "no memory for an image of {len} bytes");
        let words = (len / PAGE).div_ceil(64);
        Scratch(Arc::new(Inner {
            base,
            layout,
            dirty: (0..words).map(|_| AtomicU64::new(0)).collect(),
            recording: AtomicBool::new(false),
            record: Mutex::default(),
        }))
    }

    /// A region over this memory.
    pub fn region(&self) -> Region {
        Region::new("image of a crash", Box::new(self.clone()))
    }

    /// Takes a whole image over; no page counts as changed.
    pub fn load(&self, image: &[u8]) {
        self.copy_in(0, image);
        self.dirty_pages();
    }

    /// Brings every page that was stored to back to what `image` has there.
    pub fn restore(&self, image: &[u8]) {
        for page in self.dirty_pages() {
            let at = page * PAGE;
            self.copy_in(at, &image[at..at + PAGE]);
        }
        self.dirty_pages();
    }

    /// Stores bytes, and notes their pages as changed.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        self.copy_in(at, bytes);
        self.mark(at, bytes.len());
    }

    /// Stores bytes of an image that [`restore`](Self::restore) will be given from now on: no
    /// page counts as changed.
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len() && bytes.len() <= self.len() - at);
        // SAFETY: the range was checked, and nothing is mounted here now.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base().add(at), bytes.len());
        }
    }

    /// A copy of a range.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        assert!(at <= self.len() && into.len() <= self.len() - at);
        // SAFETY: the range was checked; `into` is its own memory.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base().add(at), into.as_mut_ptr(), into.len());
        }
    }

    /// The pages that were stored to since the last call.
    pub fn dirty_pages(&self) -> Vec<usize> {
        let mut pages = Vec::new();
        for (i, word) in self.0.dirty.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                pages.push(i * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
        pages
    }

    /// As [`dirty_pages`](Self::dirty_pages), which are noted still.
    pub fn changed_pages(&self) -> Vec<usize> {
        let pages = self.dirty_pages();
        pages.iter().for_each(|p| self.mark(p * PAGE, 1));
        pages
    }

    /// Starts or stops recording, and takes what was recorded.
    pub fn record(&self, on: bool) -> Vec<Event> {
        self.0.recording.store(on, Ordering::Relaxed);
        std::mem::take(&mut self.0.record.lock())
    }

    fn mark(&self, at: usize, len: usize) {
        for page in at / PAGE..(at + len).div_ceil(PAGE) {
            self.0.dirty[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
    }

    fn note(&self, kind: EventKind, ptr: *const u8, len: usize) {
        let at = ptr as usize - self.base() as usize;
        if !matches!(kind, EventKind::Flush) {
            self.mark(at, len);
        }
        if self.0.recording.load(Ordering::Relaxed) {
            let mut bytes = vec![0; len];
            self.read(at, &mut bytes);
            self.push(kind, at as u64, bytes);
        }
    }

    fn push(&self, kind: EventKind, offset: u64, bytes: Vec<u8>) {
        let mut record = self.0.record.lock();
        let seq = record.len() as u64;
        record.push(Event {
            seq,
            thread: 0,
            kind,
            offset,
            bytes,
        });
    }
}

// SAFETY: base and len describe one allocation that lives as long as the last
// clone.
unsafe impl PmemBackend for Scratch {
    fn name(&self) -> &'static str {
        "scratch"
    }
    fn base(&self) -> *mut u8 {
        self.0.base
    }
    fn len(&self) -> usize {
        self.0.layout.size()
    }
    fn granularity(&self) -> Granularity {
        Granularity::CacheLine
    }
    fn persistence(&self) -> Persistence {
        Persistence::Process
    }
    unsafe fn store(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
        self.note(EventKind::Store, dst, len);
    }
    unsafe fn store_u64(&self, dst: *mut u64, value: u64) {
        // SAFETY: aligned and in the mapping, by contract.
        unsafe { AtomicU64::from_ptr(dst) }.store(value, Ordering::Release);
        self.note(EventKind::Store, dst.cast(), 8);
    }
    unsafe fn nt_copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
        self.note(EventKind::NtStore, dst, len);
    }
    unsafe fn nt_zero(&self, dst: *mut u8, len: usize) {
        // SAFETY: passed on from the caller.
        unsafe { std::ptr::write_bytes(dst, 0, len) }
        self.note(EventKind::NtStore, dst, len);
    }
    unsafe fn flush(&self, ptr: *const u8, len: usize) {
        if len > 0 && self.0.recording.load(Ordering::Relaxed) {
            let line = LINE as usize;
            let from = (ptr as usize - self.base() as usize) / line * line;
            let end = (ptr as usize - self.base() as usize + len).next_multiple_of(line);
            let at = self.base().wrapping_add(from);
            self.note(EventKind::Flush, at, end.min(self.len()) - from);
        }
    }
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.0.recording.load(Ordering::Relaxed) {
            self.push(EventKind::Fence, 0, Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::Machine;
    use pramfs_medium::pmem::RegionAccess;

    #[test]
    fn scratch_records_and_undoes_stores() {
        let scratch = Scratch::new(4 * PAGE);
        let base = vec![7; 4 * PAGE];
        scratch.load(&base);
        scratch.put(PAGE - 1, &[1, 2]);
        assert_eq!(scratch.changed_pages(), [0, 1]);
        scratch.record(true);
        let region = scratch.region();
        let w = region.window();
        let stored = w.store(3 * PAGE as u64, &[9; 16]).unwrap();
        w.fence(stored);
        let events = scratch.record(false);
        let mut machine = Machine::new(base.clone());
        machine.run_all(&events);
        assert_eq!(
            machine.least()[3 * PAGE..][..17],
            [[9; 16].as_slice(), &[7]].concat()
        );
        assert_eq!(scratch.changed_pages(), [0, 1, 3]);
        scratch.restore(&base);
        let mut now = vec![0; 4 * PAGE];
        scratch.read(0, &mut now);
        assert_eq!(now, base);
        assert!(scratch.changed_pages().is_empty());
    }
}
