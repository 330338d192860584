//! The slowest operations of the last minutes, and the log of slow ones.
//!
//! Each thread keeps its slowest operations of a few minutes, and those of the minutes before.
//! A lock is taken only for an operation that is slower than those that are kept, or when the
//! minutes are over; nobody but a reader contends for it.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use pramfs_control::SlowOperation;

use super::super::convert::{Node, ino};
use super::part::{self, Done, Part, nanos};

/// Operations that a thread keeps of each span, and that are shown.
const KEPT: usize = 10;
/// Nanoseconds of a span: operations are shown for five to ten minutes.
const SPAN: u64 = 300 * 1_000_000_000;

/// An operation, how long it took, and when it ended, nanoseconds since the mount.
type Kept = (Done, u64, u64);

#[derive(Debug, Default)]
struct Spans {
    now: Vec<Kept>,
    before: Vec<Kept>,
}

/// The slowest operations of a thread.
#[derive(Debug, Default)]
pub(super) struct Slowest {
    /// The shortest of those that are kept of this span, if there is no room for another.
    floor: AtomicU64,
    /// When the span ends.
    ends: AtomicU64,
    spans: Mutex<Spans>,
}

impl Slowest {
    /// Takes note of an operation. Called by the thread of the part.
    #[inline]
    pub(super) fn note(&self, done: &Done, took: u64, at: Duration) {
        let at = nanos(at);
        if took > self.floor.load(Ordering::Relaxed) || at >= self.ends.load(Ordering::Relaxed) {
            self.keep(done, took, at);
        }
    }

    #[cold]
    fn keep(&self, done: &Done, took: u64, at: u64) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = self.ends.load(Ordering::Relaxed);
        if at >= ends {
            let before = std::mem::take(&mut spans.now);
            // A thread that was idle longer has nothing of the span before.
            spans.before = match at < ends.saturating_add(SPAN) {
                true => before,
                false => Vec::new(),
            };
            self.ends.store(at.saturating_add(SPAN), Ordering::Relaxed);
        }
        spans.now.push((*done, took, at));
        spans
            .now
            .sort_unstable_by_key(|(_, took, _)| std::cmp::Reverse(*took));
        spans.now.truncate(KEPT);
        let floor = match spans.now.len() < KEPT {
            true => 0,
            false => spans.now.last().map_or(0, |(_, took, _)| *took),
        };
        self.floor.store(floor, Ordering::Relaxed);
    }

    fn kept(&self, now: u64) -> Vec<Kept> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let all = spans.now.iter().chain(&spans.before).copied();
        all.filter(|(_, _, at)| now.saturating_sub(*at) < 2 * SPAN)
            .collect()
    }
}

/// The number of the inode, as stat(2) shows it.
fn inode(done: &Done) -> u64 {
    ino(Node(done.node)).map_or(done.node, |ino| ino.0)
}

/// Returns the slowest operations of all threads.
pub(super) fn slowest(parts: &[Arc<Part>], now: Duration) -> Vec<SlowOperation> {
    let now = nanos(now);
    let mut all: Vec<Kept> = parts
        .iter()
        .flat_map(|part| part.slowest.kept(now))
        .collect();
    all.sort_unstable_by_key(|(_, took, _)| std::cmp::Reverse(*took));
    all.truncate(KEPT);
    let shown = all.iter().map(|(done, took, at)| SlowOperation {
        name: part::name(done.asked),
        inode: inode(done),
        duration_ns: *took,
        ago_ms: now.saturating_sub(*at) / 1_000_000,
        errno: done.errno.unsigned_abs(),
    });
    shown.collect()
}

/// Lines of the log within a span of it.
const LINES: i64 = 20;
/// Seconds of such a span.
const LOG_SPAN: u64 = 10;

/// Logs slow operations, a limited number of lines.
#[derive(Debug)]
pub(super) struct SlowLog {
    /// From so many nanoseconds on; `u64::MAX`: never.
    limit: AtomicU64,
    region: OnceLock<String>,
    /// The span of the log that runs.
    span: AtomicU64,
    /// Lines that it may still have.
    left: AtomicI64,
}

impl SlowLog {
    pub(super) fn new(limit: Option<Duration>) -> SlowLog {
        SlowLog {
            limit: AtomicU64::new(limit.map_or(u64::MAX, nanos)),
            region: OnceLock::new(),
            span: AtomicU64::new(0),
            left: AtomicI64::new(LINES),
        }
    }

    pub(super) fn name_region(&self, name: String) {
        let _again = self.region.set(name);
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.limit.load(Ordering::Relaxed) != u64::MAX
    }

    pub(super) fn limit(&self) -> Option<Duration> {
        let limit = self.limit.load(Ordering::Relaxed);
        (limit != u64::MAX).then(|| Duration::from_nanos(limit))
    }

    pub(super) fn set(&self, limit: Option<Duration>) {
        self.limit
            .store(limit.map_or(u64::MAX, nanos), Ordering::Relaxed);
    }

    /// Logs an operation that took so long and ended then, if that is slow.
    #[inline]
    pub(super) fn tell(&self, done: &Done, took: Duration, at: Duration) {
        if nanos(took) >= self.limit.load(Ordering::Relaxed) {
            self.log(done, took, at);
        }
    }

    #[cold]
    fn log(&self, done: &Done, took: Duration, at: Duration) {
        if let Some(unsaid) = self.may_log(at.as_secs() / LOG_SPAN) {
            let region = self.region.get().map_or("", String::as_str);
            let (operation, inode) = (part::name(done.asked), inode(done));
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            let more = match unsaid {
                0 => String::new(),
                n => format!(" ({n} more were not logged)"),
            };
            tracing::warn!(
                operation,
                inode,
                duration_us = micros,
                errno = done.errno,
                "{region}: slow operation: {operation} of inode {inode} took {:.3} ms{more}",
                took.as_secs_f64() * 1e3,
            );
        }
    }

    /// Whether another line may be logged. Returns how many were not, before the first of a span.
    fn may_log(&self, span: u64) -> Option<u64> {
        if self.span.swap(span, Ordering::Relaxed) != span {
            // Two threads may both begin the span: then it has a few lines more.
            let left = self.left.swap(LINES - 1, Ordering::Relaxed);
            return Some((-left.min(0)).unsigned_abs());
        }
        (self.left.fetch_sub(1, Ordering::Relaxed) > 0).then_some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pramfs_fuse_protocol::Opcode;
    use pramfs_medium::pmem::Tally;

    fn done(node: u64) -> Done {
        Done {
            asked: Opcode::Read,
            node,
            errno: 0,
            tally: Tally::default(),
        }
    }

    fn note(part: &Part, took: u64, at_sec: u64) {
        part.slowest
            .note(&done(took), took, Duration::from_secs(at_sec));
    }

    #[test]
    fn slowest_operations_are_kept_in_order() {
        let part = Arc::new(Part::default());
        for took in (1..=100).rev().chain(101..=200) {
            note(&part, took, 1);
        }
        let shown = slowest(&[part], Duration::from_secs(2));
        let times: Vec<u64> = shown.iter().map(|one| one.duration_ns).collect();
        assert_eq!(times, (191..=200).rev().collect::<Vec<_>>());
        assert!(
            shown
                .iter()
                .all(|one| one.ago_ms == 1000 && one.inode == one.duration_ns)
        );
    }

    #[test]
    fn slow_operation_is_forgotten_after_two_spans() {
        let span = SPAN / 1_000_000_000;
        let part = Arc::new(Part::default());
        note(&part, 1_000_000, 0);
        note(&part, 5, span + 1);
        let at = |sec| slowest(std::slice::from_ref(&part), Duration::from_secs(sec)).len();
        assert_eq!(at(span + 2), 2, "that of the span before is shown");
        note(&part, 6, 3 * span);
        assert_eq!(at(3 * span), 2, "the one of before two spans is not");
        assert_eq!(at(9 * span), 0);
    }

    #[test]
    fn slow_log_is_limited_and_tells_what_it_left_out() {
        let log = SlowLog::new(Some(Duration::from_millis(1)));
        let said = (0..50).filter(|_| log.may_log(0).is_some()).count();
        assert_eq!(said as i64, LINES);
        assert_eq!(log.may_log(1), Some(50 - LINES as u64));
        assert_eq!(log.may_log(1), Some(0));
        log.set(None);
        assert!(!log.is_on() && log.limit().is_none());
    }
}
