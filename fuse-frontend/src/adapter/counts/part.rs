//! What one thread has counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pramfs_control::{BUCKETS, Latency, OperationStatus, bucket_of};
use pramfs_fuse_protocol::Opcode;
use pramfs_medium::pmem::Tally;

use super::slow::Slowest;

/// Numbers of operations.
const NUMBERS: usize = {
    let all = Opcode::ALL;
    all[all.len() - 1].number() as usize + 1
};

/// A request that is done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub asked: Opcode,
    pub node: u64,
    /// What it was answered with, or 0.
    pub errno: i32,
    pub tally: Tally,
}

/// A counter that one thread adds to, and others read.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    /// Adds. Only the thread of the part may.
    #[inline]
    fn add(&self, more: u64) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.wrapping_add(more), Ordering::Relaxed);
    }

    #[inline]
    fn raise(&self, to: u64) {
        if to > self.0.load(Ordering::Relaxed) {
            self.0.store(to, Ordering::Relaxed);
        }
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The times of one kind of operation.
#[derive(Debug)]
struct Times {
    sum_ns: Counter,
    max_ns: Counter,
    buckets: [Counter; BUCKETS],
}

/// One kind of operation.
#[derive(Debug, Default)]
struct Row {
    count: Counter,
    errors: Counter,
    io_errors: Counter,
    fences: Counter,
    lines: Counter,
    streamed_bytes: Counter,
    /// Made when the operation is first timed.
    times: OnceLock<Box<Times>>,
}

/// What one thread has counted. Only this thread stores to it.
#[repr(align(128))]
#[derive(Debug)]
pub(super) struct Part {
    rows: [Row; NUMBERS],
    pub slowest: Slowest,
}

impl Default for Part {
    fn default() -> Part {
        Part {
            rows: std::array::from_fn(|_| Row::default()),
            slowest: Slowest::default(),
        }
    }
}

fn no_times() -> Box<Times> {
    Box::new(Times {
        sum_ns: Counter::default(),
        max_ns: Counter::default(),
        buckets: std::array::from_fn(|_| Counter::default()),
    })
}

/// Converts to nanoseconds.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Part {
    pub(super) fn count(&self, asked: Opcode) -> u64 {
        self.rows[asked.number() as usize].count.get()
    }

    #[inline]
    pub(super) fn begin(&self, asked: Opcode) {
        self.rows[asked.number() as usize].count.add(1);
    }

    /// Counts what a request has cost. `spent`: how long it took, and when it ended.
    #[inline]
    pub(super) fn end(&self, done: &Done, spent: Option<(Duration, Duration)>) {
        let row = &self.rows[done.asked.number() as usize];
        if done.errno != 0 {
            row.errors.add(1);
            row.io_errors.add(u64::from(done.errno == libc::EIO));
        }
        if done.tally != Tally::default() {
            row.fences.add(done.tally.fences);
            row.lines.add(done.tally.lines);
            row.streamed_bytes.add(done.tally.streamed_bytes);
        }
        if let Some((took, at)) = spent {
            let took = nanos(took);
            let times = row.times.get_or_init(no_times);
            times.sum_ns.add(took);
            times.max_ns.raise(took);
            times.buckets[bucket_of(took)].add(1);
            self.slowest.note(done, took, at);
        }
    }
}

/// The name of an operation in the FUSE protocol, without `FUSE_`.
pub(super) fn name(asked: Opcode) -> String {
    asked.name().trim_start_matches("FUSE_").to_owned()
}

/// Sums up what all threads have counted of an operation.
pub(super) fn sum(parts: &[Arc<Part>], asked: Opcode) -> OperationStatus {
    let mut sum = OperationStatus {
        name: name(asked),
        ..OperationStatus::default()
    };
    let (mut buckets, mut sum_ns, mut max_ns) = ([0; BUCKETS], 0u64, 0);
    for part in parts {
        let row = &part.rows[asked.number() as usize];
        sum.count += row.count.get();
        sum.errors += row.errors.get();
        sum.io_errors += row.io_errors.get();
        sum.fences += row.fences.get();
        sum.lines += row.lines.get();
        sum.streamed_bytes += row.streamed_bytes.get();
        let Some(times) = row.times.get() else {
            continue;
        };
        sum_ns = sum_ns.saturating_add(times.sum_ns.get());
        max_ns = max_ns.max(times.max_ns.get());
        for (all, one) in buckets.iter_mut().zip(&times.buckets) {
            *all += one.get();
        }
    }
    sum.latency = Latency::of_counts(&buckets, sum_ns, max_ns);
    sum
}
