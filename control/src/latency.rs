//! Latencies, counted in buckets of fixed bounds.
//!
//! A bucket is a quarter of a power of two, so a percentile is at most an eighth off. The first
//! bucket holds everything below 256 ns, the last everything from 69 s on. Server and client
//! share the bounds by this file; a message has the upper bound of each bucket as well.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The first bound is 2 to this power, in nanoseconds.
const FIRST: u32 = 8;
/// The last bound is 2 to this power.
const LAST: u32 = 36;
/// Buckets of a power of two.
const PARTS: u32 = 4;

/// Number of buckets.
pub const BUCKETS: usize = ((LAST - FIRST) * PARTS) as usize + 2;

/// Returns the bucket of a time in nanoseconds.
#[inline]
pub fn bucket_of(nanos: u64) -> usize {
    let power = nanos.max(1).ilog2();
    if power < FIRST {
        return 0;
    }
    if power >= LAST {
        return BUCKETS - 1;
    }
    let part = (nanos >> (power - 2)) & u64::from(PARTS - 1);
    1 + ((power - FIRST) * PARTS) as usize + part as usize
}

/// Returns the end of a bucket, in nanoseconds: the first time that is in a later one.
/// `None` for the last bucket.
pub fn bucket_end(bucket: usize) -> Option<u64> {
    let nth = u32::try_from(bucket).ok()?;
    if nth > (LAST - FIRST) * PARTS {
        return None;
    }
    let (power, part) = (FIRST + nth / PARTS, nth % PARTS);
    Some((u64::from(PARTS + part)) << (power - 2))
}

/// The latencies of one kind of operation.
///
/// ```
/// use pramfs_control::Latency;
/// let mut latency = Latency::default();
/// for micros in 1..=1000 {
///     latency.add(micros * 1000);
/// }
/// let median = latency.percentile(50.0).unwrap();
/// assert!((440_000..560_000).contains(&median.as_nanos()));
/// assert_eq!(latency.max_ns, 1_000_000);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Operations that were timed.
    pub count: u64,
    /// Sum of their times, nanoseconds.
    pub sum_ns: u64,
    /// The longest, nanoseconds.
    pub max_ns: u64,
    /// The buckets that are not empty, in ascending order: end (nanoseconds, exclusive; `None`
    /// is the last bucket) and number of operations.
    pub buckets: Vec<(Option<u64>, u64)>,
}

impl Latency {
    /// Makes it of the counts of all buckets.
    pub fn of_counts(counts: &[u64], sum_ns: u64, max_ns: u64) -> Latency {
        let filled = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Latency {
            count: counts.iter().copied().fold(0, u64::saturating_add),
            sum_ns,
            max_ns,
            buckets: filled
                .map(|(nth, count)| (bucket_end(nth), *count))
                .collect(),
        }
    }

    /// Adds one time.
    pub fn add(&mut self, nanos: u64) {
        self.merge(&Latency {
            count: 1,
            sum_ns: nanos,
            max_ns: nanos,
            buckets: vec![(bucket_end(bucket_of(nanos)), 1)],
        });
    }

    /// Adds those of another kind of operation.
    pub fn merge(&mut self, other: &Latency) {
        self.count = self.count.saturating_add(other.count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        let key = |end: Option<u64>| end.unwrap_or(u64::MAX);
        for (end, count) in &other.buckets {
            match self
                .buckets
                .binary_search_by_key(&key(*end), |(end, _)| key(*end))
            {
                Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(*count),
                Err(at) => self.buckets.insert(at, (*end, *count)),
            }
        }
    }

    /// Returns the time that this share of the operations, in percent, did not exceed: the end of
    /// its bucket, and never more than the longest. `None` if nothing was timed.
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        let rank = (self.count as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0u64;
        for (end, count) in &self.buckets {
            seen = seen.saturating_add(*count);
            if seen >= rank {
                let end = end.unwrap_or(u64::MAX).min(self.max_ns);
                return Some(Duration::from_nanos(end));
            }
        }
        None
    }

    /// Returns the average. `None` if nothing was timed.
    pub fn mean(&self) -> Option<Duration> {
        let nanos = self.sum_ns.checked_div(self.count)?;
        Some(Duration::from_nanos(nanos))
    }

    /// Returns what has come since an earlier moment. The longest is that of the whole time.
    #[must_use]
    pub fn since(&self, before: &Latency) -> Latency {
        let earlier = |end: Option<u64>| {
            let found = before.buckets.iter().find(|(other, _)| *other == end);
            found.map_or(0, |(_, count)| *count)
        };
        let left = self
            .buckets
            .iter()
            .map(|(end, count)| (*end, count.saturating_sub(earlier(*end))));
        Latency {
            count: self.count.saturating_sub(before.count),
            sum_ns: self.sum_ns.saturating_sub(before.sum_ns),
            max_ns: self.max_ns,
            buckets: left.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_bucket_of_its_bounds() {
        let mut times: Vec<u64> = (0..64)
            .flat_map(|power| {
                let at = 1u64 << power;
                [
                    at - 1,
                    at,
                    at + 1,
                    at + at / 4,
                    at + at / 2,
                    at + at / 4 * 3,
                ]
            })
            .collect();
        times.push(u64::MAX);
        for time in times {
            let bucket = bucket_of(time);
            assert!(bucket < BUCKETS, "{time}");
            if let Some(end) = bucket_end(bucket) {
                assert!(
                    time < end,
                    "{time} is not before the end {end} of its bucket"
                );
            }
            if bucket > 0 {
                let start = bucket_end(bucket - 1).expect("only the last bucket has no end");
                assert!(start <= time, "{time} is before its bucket, from {start}");
            }
        }
        assert_eq!(bucket_end(BUCKETS - 1), None);
    }

    #[test]
    fn percentiles_are_an_eighth_off_at_most() {
        let mut latency = Latency::default();
        (1..=10_000u64).for_each(|n| latency.add(n * 997));
        assert_eq!(latency.count, 10_000);
        for percent in [1.0, 50.0, 90.0, 99.0, 99.9, 100.0] {
            let exact = percent * 100.0 * 997.0;
            let shown = latency.percentile(percent).unwrap().as_nanos() as f64;
            assert!(
                (exact * 0.999..=exact * 1.26).contains(&shown),
                "{percent}: {shown}, not {exact}"
            );
        }
        assert_eq!(Latency::default().percentile(50.0), None);
        assert_eq!(Latency::default().mean(), None);
    }

    #[test]
    fn difference_has_what_came_since() {
        let mut before = Latency::default();
        before.add(1000);
        let mut after = before.clone();
        after.add(5_000_000);
        let since = after.since(&before);
        assert_eq!((since.count, since.buckets.len()), (1, 1));
        assert!(since.percentile(50.0).unwrap() >= Duration::from_millis(4));
        assert_eq!(after.since(&after).percentile(99.0), None);
    }

    #[test]
    fn buckets_of_counts_are_those_of_times() {
        let (mut counts, mut latency) = (vec![0; BUCKETS], Latency::default());
        for time in [0, 255, 256, 3000, 3000, u64::MAX] {
            counts[bucket_of(time)] += 1;
            latency.add(time);
        }
        let same = Latency::of_counts(&counts, latency.sum_ns, latency.max_ns);
        assert_eq!(same, latency);
    }
}
