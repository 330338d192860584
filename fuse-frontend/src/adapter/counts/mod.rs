//! Counts the requests of a mount by operation, and times them: for `pramfs status`.
//!
//! Each thread that serves has a part of its own, which no other thread stores to. So a request
//! costs plain additions, and with `metrics=on` two readings of the clock; no lock, and no locked
//! instruction. A reader sums the parts up; it may miss the latest requests. A thread that ends
//! leaves its part to the next one.
//!
//! `part` holds what is counted, `slow` the slowest operations and their log.

mod part;
mod slow;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use pramfs_control::{OperationStatus, RequestCounts, SlowOperation};
use pramfs_fuse_protocol::Opcode;
use pramfs_medium::pmem::Tally;

use crate::takeover::memory::Memory;
use part::{Done, Part};
use slow::SlowLog;

/// How often each operation was asked for since the server started, and how long it took.
#[derive(Debug)]
pub struct Counts {
    parts: Arc<Parts>,
    /// Times are recorded.
    times: AtomicBool,
    slow: SlowLog,
    begun: Instant,
    /// Of a mount that outlives its servers, since the mount.
    memory: OnceLock<Arc<Memory>>,
}

/// The parts of all threads.
#[derive(Debug, Default)]
struct Parts(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    all: Vec<Arc<Part>>,
    /// Those whose threads have ended.
    free: Vec<Arc<Part>>,
}

/// The part of this thread.
struct Mine {
    part: Arc<Part>,
    of: Weak<Parts>,
}

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(parts) = self.of.upgrade() {
            parts.lock().free.push(Arc::clone(&self.part));
        }
    }
}

thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
}

impl Parts {
    fn lock(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Parts>) -> Mine {
        let mut registry = self.lock();
        let part = registry.free.pop().unwrap_or_else(|| {
            let part = Arc::new(Part::default());
            registry.all.push(Arc::clone(&part));
            part
        });
        Mine {
            part,
            of: Arc::downgrade(self),
        }
    }

    /// Calls `work` with the part of this thread.
    #[inline]
    fn with<T>(self: &Arc<Parts>, work: impl FnOnce(&Part) -> T) -> T {
        MINE.with(|mine| {
            let mut mine = mine.borrow_mut();
            if let Some(mine) = &*mine
                && std::ptr::eq(Weak::as_ptr(&mine.of), Arc::as_ptr(self))
            {
                return work(&mine.part);
            }
            work(&mine.insert(self.take()).part)
        })
    }
}

/// A request that is being served.
#[derive(Debug)]
pub(super) struct Begun {
    asked: Opcode,
    since: Option<Instant>,
    tally: Tally,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts::new(true, None)
    }
}

impl Counts {
    /// Returns counts that are all 0. `times`: record how long requests take; `slow`: log those
    /// that take so long.
    pub fn new(times: bool, slow: Option<Duration>) -> Counts {
        Counts {
            parts: Arc::default(),
            times: AtomicBool::new(times),
            slow: SlowLog::new(slow),
            begun: Instant::now(),
            memory: OnceLock::new(),
        }
    }

    /// Names the region in messages about slow operations.
    pub fn name_region(&self, name: String) {
        self.slow.name_region(name);
    }

    /// Returns how many requests of this kind there were.
    pub fn of(&self, asked: Opcode) -> u64 {
        let parts = self.parts.lock();
        parts.all.iter().map(|part| part.count(asked)).sum()
    }

    /// Whether times are recorded.
    pub fn records_times(&self) -> bool {
        self.times.load(Ordering::Relaxed)
    }

    /// Returns the time from which on an operation is logged as slow.
    pub fn slow(&self) -> Option<Duration> {
        self.slow.limit()
    }

    /// Logs operations that take so long.
    pub fn set_slow(&self, slow: Option<Duration>) {
        self.slow.set(slow);
    }

    /// Returns how long ago these counts began.
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Tells also what `memory` has counted.
    pub(super) fn tell_of(&self, memory: &Arc<Memory>) {
        let _again = self.memory.set(Arc::clone(memory));
    }

    /// Returns the memory of a mount that outlives its servers.
    pub fn memory(&self) -> Option<&Arc<Memory>> {
        self.memory.get()
    }

    /// Counts a request, and begins to time it.
    #[inline]
    pub(super) fn begin(&self, asked: Opcode) -> Begun {
        self.parts.with(|part| part.begin(asked));
        let timed = self.times.load(Ordering::Relaxed) || self.slow.is_on();
        Begun {
            asked,
            since: timed.then(Instant::now),
            tally: Tally::of_thread(),
        }
    }

    /// Counts what a request has cost, and the errno that it was answered with, or 0.
    #[inline]
    pub(super) fn end(&self, begun: Begun, node: u64, errno: i32) {
        let spent = begun.since.map(|since| {
            let now = Instant::now();
            (now.duration_since(since), now.duration_since(self.begun))
        });
        let tally = Tally::of_thread().since(&begun.tally);
        let done = Done {
            asked: begun.asked,
            node,
            errno,
            tally,
        };
        let times = self.times.load(Ordering::Relaxed);
        self.parts
            .with(|part| part.end(&done, spent.filter(|_| times)));
        if let Some((took, at)) = spent {
            self.slow.tell(&done, took, at);
        }
    }

    /// Returns the requests of each kind that came.
    pub fn operations(&self) -> Vec<OperationStatus> {
        let parts = self.parts.lock().all.clone();
        let all = Opcode::ALL.iter().map(|asked| part::sum(&parts, *asked));
        all.filter(|one| one.count > 0).collect()
    }

    /// Returns the slowest operations of the last minutes, the slowest first.
    pub fn slowest(&self) -> Vec<SlowOperation> {
        let parts = self.parts.lock().all.clone();
        slow::slowest(&parts, self.begun.elapsed())
    }
}

impl RequestCounts for Counts {
    fn counts(&self) -> BTreeMap<String, u64> {
        let named = |one: &Opcode| (part::name(*one), self.of(*one));
        let all = Opcode::ALL.iter().map(named);
        let of_takeovers = self.memory.get().into_iter().flat_map(|memory| {
            [
                ("takeovers", memory.deaths()),
                ("takeovers in requests on names", memory.deaths_in_names()),
                ("names asked again", memory.asked_again()),
                ("answered from records", memory.answers_from_record()),
            ]
        });
        let of_takeovers = of_takeovers.map(|(what, count)| (what.to_owned(), count));
        all.filter(|(_, count)| *count > 0)
            .chain(of_takeovers)
            .collect()
    }
}

/// A reply that notes the errno that a request is answered with.
pub(super) struct Noted<'n, R> {
    pub reply: R,
    pub errno: &'n Cell<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(counts: &Counts, asked: Opcode, errno: i32) {
        let begun = counts.begin(asked);
        counts.end(begun, 1, errno);
    }

    #[test]
    fn requests_of_all_threads_are_counted_by_name() {
        let counts = Counts::default();
        assert!(counts.counts().is_empty());
        for _ in 0..2 {
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        for asked in Opcode::ALL {
                            served(&counts, *asked, 0);
                        }
                        served(&counts, Opcode::Read, libc::EIO);
                    });
                }
            });
        }
        let counted = counts.counts();
        assert_eq!(counted.len(), Opcode::ALL.len());
        assert_eq!((counted["READ"], counted["COPY_FILE_RANGE_64"]), (32, 16));
        // Threads that come later take the parts of those that have ended.
        assert!(counts.parts.lock().all.len() <= 8 + 8);
        let read = counts.operations();
        let read = read.iter().find(|one| one.name == "READ").unwrap();
        assert_eq!((read.count, read.errors, read.io_errors), (32, 16, 16));
        assert_eq!(read.latency.count, 32);
    }

    #[test]
    fn part_of_ended_thread_is_used_again() {
        let counts = Counts::default();
        for _ in 0..100 {
            std::thread::scope(|scope| {
                scope.spawn(|| served(&counts, Opcode::Lookup, libc::ENOENT));
            });
        }
        // A scope may end before the last of a thread has run.
        assert!(counts.parts.lock().all.len() < 50);
        assert_eq!(counts.of(Opcode::Lookup), 100);
    }

    #[test]
    fn without_metrics_requests_are_counted_and_not_timed() {
        let counts = Counts::new(false, None);
        served(&counts, Opcode::Write, libc::ENOSPC);
        let operations = counts.operations();
        let [write] = &operations[..] else {
            panic!("{operations:?}")
        };
        assert_eq!((write.count, write.errors, write.io_errors), (1, 1, 0));
        assert_eq!(write.latency.count, 0);
        assert!(counts.slowest().is_empty());
    }

    #[test]
    fn one_thread_counts_for_several_mounts() {
        let (one, other) = (Counts::default(), Counts::default());
        for _ in 0..3 {
            served(&one, Opcode::Read, 0);
            served(&other, Opcode::Write, 0);
        }
        assert_eq!((one.of(Opcode::Read), one.of(Opcode::Write)), (3, 0));
        assert_eq!((other.of(Opcode::Read), other.of(Opcode::Write)), (0, 3));
        assert!(one.parts.lock().all.len() == 1, "the part is taken back");
    }
}
