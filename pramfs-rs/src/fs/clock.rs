//! Sources of time.

use std::fmt::Debug;
use std::sync::atomic::{AtomicI64, Ordering};

use pramfs_medium::types::Time;
use rustix::time::{ClockId, clock_gettime};

/// The engine's source of time.
pub trait Clock: Send + Sync + Debug {
    /// Returns the current time.
    fn now(&self) -> Time;
}

/// `CLOCK_REALTIME_COARSE`, as used by file systems in the kernel: cheap, with the
/// resolution of a timer tick.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Time {
        let t = clock_gettime(ClockId::RealtimeCoarse);
        Time {
            sec: t.tv_sec,
            nsec: t.tv_nsec as u32,
        }
    }
}

/// `CLOCK_REALTIME`, which never shows the same time twice: of two changes of a file, the later
/// has another time. For several kernels with one file system, each of which drops its pages of a
/// file when mtime or size has changed.
#[derive(Debug, Default)]
pub struct DistinctClock {
    /// Nanoseconds since the epoch.
    last: AtomicI64,
}

const SECOND: i64 = 1_000_000_000;

impl DistinctClock {
    /// Returns the time after `last`. If the clock was set back by more than a second, follows it.
    fn after(last: i64, now: i64) -> i64 {
        match last.saturating_sub(now) {
            0..SECOND => last + 1,
            _ => now,
        }
    }
}

impl Clock for DistinctClock {
    fn now(&self) -> Time {
        let t = clock_gettime(ClockId::Realtime);
        let now = t.tv_sec.saturating_mul(SECOND).saturating_add(t.tv_nsec);
        // Orders nothing else.
        let next = |last| Some(Self::after(last, now));
        let last = (self.last).fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let at = Self::after(last.unwrap_or_else(|last| last), now);
        Time {
            sec: at.div_euclid(SECOND),
            nsec: at.rem_euclid(SECOND) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_clock_never_repeats_a_time_and_follows_a_clock_set_back() {
        // The clock stands, goes on, is set back a little, and by an hour.
        let hour = 3600 * SECOND;
        for (last, now, next) in [
            (hour, hour, hour + 1),
            (hour, hour + 5, hour + 5),
            (hour, hour - SECOND + 1, hour + 1),
            (hour, 7, 7),
            (0, hour, hour),
        ] {
            assert_eq!(DistinctClock::after(last, now), next);
        }
    }
}
