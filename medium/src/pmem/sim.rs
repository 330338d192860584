//! The simulator: a backend in shared memory that counts every store, flush and fence and,
//! on request, records them.
//!
//! Purpose: tests compare its counters with the fence budgets, and build from its record
//! the images that a power failure could leave.
//!
//! Model: cache-line media.
//! * A store is durable once some thread has flushed its line after it and that thread has
//!   fenced.
//! * A non-temporal store is durable once the storing thread has fenced.
//! * Before that a line may hold any prefix of the stores made to it since (they reach a
//!   line in program order).
//!
//! Invariant: while recording, an operation on memory and its event are one step, so the
//! order of the events is an order in which the stores happened. Stores that bypass the
//! backend (through a stitched map) are not events; the bytes of a
//! [`Flush`](EventKind::Flush) show their effect.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustc_hash::{FxHashMap, FxHashSet};

use super::backend::{Granularity, Persistence, PmemBackend};
use super::cpu::{self, LINE_BYTES};
use super::error::PmemError;
use super::kernel_bad::KernelBad;
use super::live;
use super::mapping::{Mapping, Share};
use super::source::SourceKind;
use crate::sync::{Mutex, rank};

/// Bytes of a page that can fail.
const PAGE_BYTES: usize = 4096;

/// The kind of an [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// Ordinary store: `bytes` at `offset`.
    Store,
    /// Non-temporal store: `bytes` at `offset`.
    NtStore,
    /// Write-back of the lines of `bytes.len()` bytes at `offset`. `offset` is that of the
    /// first line, and `bytes` is the content of those lines.
    Flush,
    /// The thread's flushes and non-temporal stores are complete.
    Fence,
    /// [`PmemBackend::sync_all`].
    SyncAll,
    /// The range was discarded; `bytes` is its new content.
    Discard,
}

/// One step of a thread, as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Position in the order of all events of this backend, from 0.
    pub seq: u64,
    /// A number of the thread, unique in this process.
    pub thread: u32,
    /// What happened.
    pub kind: EventKind,
    /// Bytes from the start of the region; 0 for a fence.
    pub offset: u64,
    /// See [`EventKind`].
    pub bytes: Vec<u8>,
}

/// Counts of operations on a [`SimBackend`]. The difference of two shows the operations in
/// between.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Ordinary stores.
    pub stores: u64,
    /// Bytes stored ordinarily.
    pub stored_bytes: u64,
    /// Non-temporal copies and zeroings.
    pub nt_stores: u64,
    /// Bytes of non-temporal stores.
    pub nt_bytes: u64,
    /// Lines flushed.
    pub flushes: u64,
    /// Lines among these that the same thread had already flushed since its last fence.
    pub redundant_flushes: u64,
    /// Fences.
    pub fences: u64,
    /// Write-backs by `sync_all`: an msync on page-granular media.
    pub msyncs: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
}

impl Counters {
    /// Returns all bytes stored, both kinds.
    pub fn bytes(&self) -> u64 {
        self.stored_bytes + self.nt_bytes
    }
}

impl std::ops::Sub for Counters {
    type Output = Counters;
    fn sub(self, before: Counters) -> Counters {
        Counters {
            stores: self.stores - before.stores,
            stored_bytes: self.stored_bytes - before.stored_bytes,
            nt_stores: self.nt_stores - before.nt_stores,
            nt_bytes: self.nt_bytes - before.nt_bytes,
            flushes: self.flushes - before.flushes,
            redundant_flushes: self.redundant_flushes - before.redundant_flushes,
            fences: self.fences - before.fences,
            msyncs: self.msyncs - before.msyncs,
            discarded_bytes: self.discarded_bytes - before.discarded_bytes,
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    stores: AtomicU64,
    stored_bytes: AtomicU64,
    nt_stores: AtomicU64,
    nt_bytes: AtomicU64,
    flushes: AtomicU64,
    redundant_flushes: AtomicU64,
    fences: AtomicU64,
    msyncs: AtomicU64,
    discarded_bytes: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Fill byte of a discarded range, so that a read of a freed block shows.
pub(super) const DISCARDED: u8 = 0xdb;

const SHARDS: usize = 16;

/// Address space in which a region can grow.
const ROOM: usize = 2 << 40;

#[derive(Debug)]
struct Inner {
    mapping: Mapping,
    fd: OwnedFd,
    tally: Tally,
    /// Lines flushed since the thread's last fence.
    flushed: [Mutex<FxHashMap<u32, FxHashSet<usize>>, rank::Leaf>; SHARDS],
    recording: AtomicBool,
    record: Mutex<Record, rank::Leaf>,
    faults: AtomicU64,
    /// Pages that fail, by their offsets, and whether an access has met them.
    failed: Mutex<BTreeMap<usize, bool>, rank::Leaf>,
    /// What the kernel's list of bad blocks would say.
    kernel_bad: Mutex<Vec<Range<u64>>, rank::Leaf>,
}

#[derive(Debug, Default)]
struct Record {
    next: u64,
    events: Vec<Event>,
}

/// A region in shared memory that counts and records. Clones share it, so a test keeps one
/// and passes another to a [`Region`](super::Region).
#[derive(Debug, Clone)]
pub struct SimBackend {
    inner: Arc<Inner>,
}

fn thread_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static MINE: u32 = NEXT.fetch_add(1, Ordering::Relaxed));
    MINE.with(|n| *n)
}

impl SimBackend {
    /// Creates a region of `len` zeroed bytes.
    ///
    /// # Errors
    /// [`PmemError::Os`] if the memory cannot be allocated.
    pub fn new(len: usize) -> Result<SimBackend, PmemError> {
        let os = |what, e: rustix::io::Errno| PmemError::Os {
            what,
            path: format!("simulated region of {len} bytes"),
            source: e.into(),
        };
        let fd = rustix::fs::memfd_create("pramfs-sim", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(|e| os("cannot create", e))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(|e| os("cannot size", e))?;
        let mapping = Mapping::with_room(fd.as_fd(), 0, len, ROOM.max(len), Share::Shared)
            .map_err(|e| os("cannot map", e))?;
        Ok(SimBackend {
            inner: Arc::new(Inner {
                mapping,
                fd,
                tally: Tally::default(),
                flushed: std::array::from_fn(|_| Mutex::default()),
                recording: AtomicBool::new(false),
                record: Mutex::default(),
                faults: AtomicU64::new(0),
                failed: Mutex::new(BTreeMap::new()),
                kernel_bad: Mutex::new(Vec::new()),
            }),
        })
    }

    /// Creates a region with the given bytes.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn from_image(image: &[u8]) -> Result<SimBackend, PmemError> {
        let sim = SimBackend::new(image.len())?;
        // SAFETY: the mapping is as long as the image and has no user yet.
        unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), sim.base(), image.len()) };
        Ok(sim)
    }

    /// Returns a copy of the memory in its current state. Consistent only while no thread
    /// stores.
    pub fn image(&self) -> Vec<u8> {
        self.copy_out(0, self.len())
    }

    /// Returns the counts so far.
    pub fn counters(&self) -> Counters {
        let t = &self.inner.tally;
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        Counters {
            stores: get(&t.stores),
            stored_bytes: get(&t.stored_bytes),
            nt_stores: get(&t.nt_stores),
            nt_bytes: get(&t.nt_bytes),
            flushes: get(&t.flushes),
            redundant_flushes: get(&t.redundant_flushes),
            fences: get(&t.fences),
            msyncs: get(&t.msyncs),
            discarded_bytes: get(&t.discarded_bytes),
        }
    }

    /// Starts or stops recording. Returns whether it was on.
    pub fn recording(&self, on: bool) -> bool {
        // Under the lock, so that no operation is half recorded.
        let _record = self.inner.record.lock();
        self.inner.recording.swap(on, Ordering::SeqCst)
    }

    /// Returns the record so far and empties it. Numbering continues.
    pub fn take_record(&self) -> Vec<Event> {
        std::mem::take(&mut self.inner.record.lock().events)
    }

    /// Counts a fault, as if a page had failed.
    pub fn inject_fault(&self) {
        self.inner.faults.fetch_add(1, Ordering::Release);
        super::fault::note_fault();
    }

    /// Lets a page fail from now on: its bytes are gone, and every access to it is an error.
    pub fn lose_page(&self, page: usize) {
        let at = page * PAGE_BYTES;
        let len = PAGE_BYTES.min(self.len() - at);
        // SAFETY: the range lies in the mapping; all accesses to it are atomic or those of
        // `live`.
        unsafe { live::fill(self.base().add(at), 0xdb, len) };
        self.inner.failed.lock().insert(at, false);
        super::fault::note_fault();
    }

    /// Lets the kernel name these ranges as bad.
    pub fn set_kernel_bad(&self, ranges: Vec<Range<u64>>) {
        *self.inner.kernel_bad.lock() = ranges;
    }

    fn offset(&self, ptr: *const u8) -> usize {
        ptr as usize - self.base() as usize
    }

    fn copy_out(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(
            offset <= self.len() && len <= self.len() - offset,
            "range lies in the region"
        );
        let mut bytes = vec![0; len];
        // SAFETY: the range was checked; the vector is its own memory.
        unsafe { live::load(bytes.as_mut_ptr(), self.base().add(offset), len) };
        bytes
    }

    /// Runs a step. While recording, notes it with the bytes of the range after the step.
    fn step(&self, kind: EventKind, offset: usize, len: usize, run: impl FnOnce()) {
        if !self.inner.recording.load(Ordering::Relaxed) {
            return run();
        }
        let mut record = self.inner.record.lock();
        run();
        if self.inner.recording.load(Ordering::Relaxed) {
            let seq = record.next;
            record.next += 1;
            let bytes = self.copy_out(offset, len);
            record.events.push(Event {
                seq,
                thread: thread_number(),
                kind,
                offset: offset as u64,
                bytes,
            });
        }
    }
}

// SAFETY: base and len describe the mapping that the shared inner part owns.
unsafe impl PmemBackend for SimBackend {
    fn name(&self) -> &'static str {
        "sim"
    }
    fn base(&self) -> *mut u8 {
        self.inner.mapping.base()
    }
    fn len(&self) -> usize {
        self.inner.mapping.len()
    }
    fn grow(&self, size: Option<u64>) -> Result<u64, PmemError> {
        let Inner { mapping, fd, .. } = &*self.inner;
        let (old, os) = (self.len() as u64, |what, e: rustix::io::Errno| {
            PmemError::Os {
                what,
                path: "simulated region".into(),
                source: e.into(),
            }
        });
        let len = size.unwrap_or(old);
        if len < old || len > mapping.reserved() as u64 {
            return Err(os("cannot grow", rustix::io::Errno::INVAL));
        }
        rustix::fs::ftruncate(fd, len).map_err(|e| os("cannot size", e))?;
        mapping
            .grow(fd.as_fd(), len as usize)
            .map_err(|e| os("cannot map", e))?;
        Ok(len)
    }
    fn granularity(&self) -> Granularity {
        Granularity::CacheLine
    }
    fn persistence(&self) -> Persistence {
        Persistence::Process
    }
    unsafe fn store(&self, dst: *mut u8, src: *const u8, len: usize) {
        add(&self.inner.tally.stores, 1);
        add(&self.inner.tally.stored_bytes, len as u64);
        self.step(EventKind::Store, self.offset(dst), len, || {
            // SAFETY: passed on from the caller.
            unsafe { live::store(dst, src, len) }
        });
    }
    unsafe fn store_u64(&self, dst: *mut u64, value: u64) {
        add(&self.inner.tally.stores, 1);
        add(&self.inner.tally.stored_bytes, 8);
        self.step(EventKind::Store, self.offset(dst.cast()), 8, || {
            // SAFETY: aligned and in the mapping, by contract.
            unsafe { AtomicU64::from_ptr(dst) }.store(value, Ordering::Release);
        });
    }
    unsafe fn nt_copy(&self, dst: *mut u8, src: *const u8, len: usize) {
        add(&self.inner.tally.nt_stores, 1);
        add(&self.inner.tally.nt_bytes, len as u64);
        self.step(EventKind::NtStore, self.offset(dst), len, || {
            // SAFETY: passed on from the caller.
            unsafe { live::copy(dst, src, len) }
        });
    }
    unsafe fn nt_zero(&self, dst: *mut u8, len: usize) {
        add(&self.inner.tally.nt_stores, 1);
        add(&self.inner.tally.nt_bytes, len as u64);
        self.step(EventKind::NtStore, self.offset(dst), len, || {
            // SAFETY: passed on from the caller.
            unsafe { live::fill(dst, 0, len) }
        });
    }
    unsafe fn flush(&self, ptr: *const u8, len: usize) {
        if len == 0 {
            return;
        }
        let (start, end) = cpu::line_span(self.offset(ptr), len);
        let thread = thread_number();
        let mut again = 0;
        {
            let mut shard = self.inner.flushed[thread as usize % SHARDS].lock();
            let lines = shard.entry(thread).or_default();
            for line in (start..end).step_by(LINE_BYTES) {
                again += u64::from(!lines.insert(line));
            }
        }
        add(
            &self.inner.tally.flushes,
            ((end - start) / LINE_BYTES) as u64,
        );
        add(&self.inner.tally.redundant_flushes, again);
        self.step(EventKind::Flush, start, end.min(self.len()) - start, || {});
    }
    fn fence(&self) {
        add(&self.inner.tally.fences, 1);
        let thread = thread_number();
        if let Some(lines) = self.inner.flushed[thread as usize % SHARDS]
            .lock()
            .get_mut(&thread)
        {
            lines.clear();
        }
        self.step(EventKind::Fence, 0, 0, || {
            std::sync::atomic::fence(Ordering::SeqCst)
        });
    }
    fn sync_all(&self) -> std::io::Result<()> {
        add(&self.inner.tally.msyncs, 1);
        self.step(EventKind::SyncAll, 0, 0, || {});
        Ok(())
    }
    fn can_discard(&self) -> bool {
        true
    }

    unsafe fn discard(&self, ptr: *mut u8, len: usize) -> std::io::Result<()> {
        add(&self.inner.tally.discarded_bytes, len as u64);
        self.step(EventKind::Discard, self.offset(ptr), len, || {
            // SAFETY: passed on from the caller.
            unsafe { live::fill(ptr, DISCARDED, len) }
        });
        Ok(())
    }
    fn faults(&self) -> u64 {
        self.inner.faults.load(Ordering::Acquire)
    }
    fn is_faulted(&self, ptr: *const u8, len: usize) -> bool {
        let start = self.offset(ptr);
        let mut failed = self.inner.failed.lock();
        let first = start / PAGE_BYTES * PAGE_BYTES;
        let mut any = false;
        for (_, met) in failed.range_mut(first..start + len) {
            any = true;
            if !std::mem::replace(met, true) {
                add(&self.inner.faults, 1);
            }
        }
        any
    }
    fn forget_failed(&self, ptr: *const u8, len: usize) {
        let start = self.offset(ptr);
        self.inner
            .failed
            .lock()
            .retain(|at, _| !(start..start + len).contains(at));
        let (start, end) = (start as u64, (start + len) as u64);
        let mut bad = self.inner.kernel_bad.lock();
        bad.retain(|bad| bad.end <= start || end <= bad.start);
    }
    fn kernel_bad(&self, _len: u64) -> Result<KernelBad, PmemError> {
        Ok(KernelBad {
            ranges: self.inner.kernel_bad.lock().clone(),
            ..KernelBad::default()
        })
    }
    fn source_kind(&self) -> Option<SourceKind> {
        Some(SourceKind::Memfd)
    }
    fn source_fd(&self) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.inner.fd.as_fd(), 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::{Region, Unfenced};

    fn pair(len: usize) -> (SimBackend, Region) {
        let sim = SimBackend::new(len).unwrap();
        (sim.clone(), Region::new("sim", Box::new(sim)))
    }

    #[test]
    fn sim_counts_operations() {
        let (sim, region) = pair(1 << 16);
        let w = region.window();
        let before = sim.counters();
        let a = w.store(60, &[1; 8]).unwrap();
        let b = w.nt_store(4096, &[2; 100]).unwrap();
        w.store_u64_unflushed(128, 3).unwrap();
        let c = w.flush(128, 8).unwrap();
        let d = w.flush(64, 1).unwrap();
        let _ = w.fence(a.join(b).join(c).join(d));
        let _ = w.fence(w.flush(64, 1).unwrap());
        assert_eq!(
            sim.counters() - before,
            Counters {
                stores: 2,
                stored_bytes: 16,
                nt_stores: 1,
                nt_bytes: 100,
                flushes: 5,
                redundant_flushes: 1,
                fences: 2,
                msyncs: 0,
                discarded_bytes: 0,
            }
        );
        assert_eq!((sim.counters() - before).bytes(), 116);
    }

    #[test]
    fn record_rebuilds_image() {
        let (sim, region) = pair(8192);
        let w = region.window();
        let _ = w.store(0, b"before").unwrap();
        assert!(!sim.recording(true));
        let start = sim.image();
        let a = w.store(61, b"across a line").unwrap();
        let b = w.nt_zero(4000, 200).unwrap();
        w.fence(a.join(b));
        w.discard(4096, 64).unwrap();
        region.sync_all().unwrap();
        assert!(sim.recording(false));
        let _ = w.store(100, b"after").unwrap();
        let events = sim.take_record();
        let kinds: Vec<_> = events.iter().map(|e| e.kind).collect();
        use EventKind::*;
        assert_eq!(kinds, [Store, Flush, NtStore, Fence, Discard, SyncAll]);
        assert!(events.iter().enumerate().all(|(i, e)| e.seq == i as u64));
        assert_eq!((events[1].offset, events[1].bytes.len()), (0, 128));
        assert_eq!(&events[1].bytes[61..74], b"across a line");
        let mut image = start;
        for e in events
            .iter()
            .filter(|e| matches!(e.kind, Store | NtStore | Discard))
        {
            image[e.offset as usize..][..e.bytes.len()].copy_from_slice(&e.bytes);
        }
        image[100..105].copy_from_slice(b"after");
        assert!(image == sim.image());
        assert!(sim.take_record().is_empty());
        let again = Region::new("again", Box::new(SimBackend::from_image(&image).unwrap()));
        assert_eq!(again.read_pod::<[u8; 6]>(0).unwrap(), *b"before");
    }

    #[test]
    fn record_separates_threads_and_keeps_steps_whole() {
        let (sim, region) = pair(1 << 16);
        sim.recording(true);
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let region = &region;
                s.spawn(move || {
                    let w = region.window();
                    for i in 0..100 {
                        // All threads flush the same line: redundant for none.
                        let p = w.store(0, &(t * 1000 + i).to_le_bytes()).unwrap();
                        w.fence(p);
                    }
                });
            }
        });
        let events = sim.take_record();
        assert_eq!(events.len(), 4 * 100 * 3);
        assert_eq!(sim.counters().redundant_flushes, 0);
        let threads: FxHashSet<u32> = events.iter().map(|e| e.thread).collect();
        assert_eq!(threads.len(), 4);
        // A flush shows the last store before it in record order.
        let mut last = Vec::new();
        for e in &events {
            match e.kind {
                EventKind::Store => last = e.bytes.clone(),
                EventKind::Flush => assert_eq!(e.bytes[..8], last[..]),
                _ => {}
            }
        }
    }

    #[test]
    fn faults_can_be_injected() {
        let (sim, region) = pair(4096);
        assert_eq!(region.faults(), 0);
        sim.inject_fault();
        assert_eq!(region.faults(), 1);
        let _ = Unfenced::none();
    }
}
