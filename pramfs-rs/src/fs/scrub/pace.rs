//! The limit of bandwidth.

use std::time::Duration;

/// Time that a reader may be ahead of its limit or behind it. What it did not use before is
/// lost, so that a scrub that waited for something does not catch up at full speed.
const SLACK: Duration = Duration::from_millis(20);

/// Tells a reader how long to wait. It has no clock: the caller passes the time.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes a second.
    limit: Option<u64>,
    /// Time at which the bytes read so far would have been read at the limit.
    due: Duration,
}

impl Pace {
    /// A pace of `limit` bytes a second from `now` on; no limit: no waits.
    pub(crate) fn new(limit: Option<u64>, now: Duration) -> Pace {
        Pace {
            limit: limit.map(|limit| limit.max(1)),
            due: now,
        }
    }

    /// Counts bytes that were read. Returns how long to wait before the next, if long enough
    /// to be worth it.
    pub(crate) fn read(&mut self, bytes: u64, now: Duration) -> Option<Duration> {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.limit?);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.due = self
            .due
            .max(now.saturating_sub(SLACK))
            .saturating_add(takes);
        let ahead = self.due.saturating_sub(now);
        (ahead > Duration::from_millis(1)).then_some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads in pieces and waits as told. Returns the time that it took.
    fn takes(limit: u64, bytes: u64, piece: u64, each: Duration) -> Duration {
        let start = Duration::from_secs(1000);
        let (mut now, mut read) = (start, 0);
        let mut pace = Pace::new(Some(limit), now);
        while read < bytes {
            now += each;
            read += piece;
            now += pace.read(piece, now).unwrap_or_default();
        }
        now - start
    }

    #[test]
    fn reader_waits_so_that_the_limit_holds() {
        let (limit, bytes) = (100 << 20, 1 << 30);
        let wanted = Duration::from_secs(bytes / limit);
        for piece in [512, 64 << 10, 2 << 20] {
            for each in [Duration::ZERO, Duration::from_micros(5)] {
                let took = takes(limit, bytes, piece, each);
                assert!(took + SLACK >= wanted, "{piece}: {took:?}");
                assert!(took <= wanted.mul_f64(1.06) + SLACK, "{piece}: {took:?}");
            }
        }
    }

    #[test]
    fn slow_reader_never_waits_and_saves_nothing() {
        let mut now = Duration::from_secs(1);
        let mut pace = Pace::new(Some(1 << 20), now);
        for _ in 0..10 {
            now += Duration::from_secs(1);
            assert_eq!(pace.read(1000, now), None);
        }
        // 1 MiB takes a second, less what may be ahead.
        let wait = pace.read(1 << 20, now).unwrap();
        assert!(wait >= Duration::from_millis(980), "{wait:?}");
    }

    #[test]
    fn no_limit_means_no_waits() {
        let mut pace = Pace::new(None, Duration::ZERO);
        assert_eq!(pace.read(u64::MAX, Duration::ZERO), None);
        let mut pace = Pace::new(Some(0), Duration::ZERO);
        assert!(pace.read(u64::MAX, Duration::ZERO).is_some());
    }
}
