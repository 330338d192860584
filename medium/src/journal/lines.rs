//! [`Lines`]: the cache lines to flush, each once.

use crate::error::Result;
use crate::pmem::{LINE, PmemError, Region, Unfenced};
use crate::types::RegionOffset;

/// Capacity in place, which is searched for repetitions.
const INLINE_LINES: usize = 24;

/// The cache lines that the homes of one record touch, each once.
#[derive(Debug, Default)]
pub struct Lines {
    few: [u64; INLINE_LINES],
    len: usize,
    /// One bit per hash of a line in place. A clear bit proves that the line is not among
    /// them.
    seen: u64,
    /// The other lines, with repetitions.
    more: Vec<u64>,
}

impl Lines {
    /// Adds the lines of a range.
    #[inline(always)]
    pub fn add(&mut self, at: RegionOffset, len: u64) {
        let (mut line, end) = (at.0 / LINE, (at.0 + len).div_ceil(LINE));
        while line < end {
            // The hash mixes in the block, because many homes lie at the start of one.
            let bit = 1 << ((line ^ line >> 6) % 64);
            if self.seen & bit == 0
                && let Some(slot) = self.few.get_mut(self.len)
            {
                *slot = line;
                self.len += 1;
                self.seen |= bit;
            } else {
                self.add_slowly(line);
            }
            line += 1;
        }
    }

    /// Adds a line that may be present already.
    #[inline(never)]
    fn add_slowly(&mut self, line: u64) {
        if self.few[..self.len].contains(&line) {
            return;
        }
        match self.few.get_mut(self.len) {
            Some(slot) => {
                *slot = line;
                self.len += 1;
            }
            None => self.more.push(line),
        }
    }

    /// Flushes every line once. If a page has faulted since its lines were stored, these
    /// lines can no longer be reached. They are left out, as part of the damage.
    ///
    /// # Errors
    /// Other errors of the region.
    pub fn flush(&mut self, region: &Region) -> Result<Unfenced> {
        let pending = flush_each(region, &self.few[..self.len])?;
        if self.more.is_empty() {
            return Ok(pending);
        }
        self.more.sort_unstable();
        self.more.dedup();
        Ok(pending.join(flush_each(region, &self.more)?))
    }

    /// Whether no line is noted.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all lines.
    pub fn clear(&mut self) {
        self.len = 0;
        self.seen = 0;
        self.more.clear();
    }
}

/// Flushes lines, adjacent ones in one call. A call does not cross a page boundary, because
/// the pages on its two sides may differ in having faulted.
fn flush_each(region: &Region, lines: &[u64]) -> Result<Unfenced> {
    let back = region.write_back();
    if back.flush_lines(lines) {
        return Ok(Unfenced::none());
    }
    const PAGE: u64 = 4096 / LINE;
    let flush = |start: u64, end: u64| match back.flush(start * LINE, (end - start) * LINE) {
        Err(PmemError::Faulted { .. }) => Ok(Unfenced::none()),
        other => other,
    };
    let mut pending = Unfenced::none();
    let Some((&first, rest)) = lines.split_first() else {
        return Ok(pending);
    };
    let (mut start, mut end) = (first, first + 1);
    for &line in rest {
        if line != end || line % PAGE == 0 {
            pending = pending.join(flush(start, end)?);
            start = line;
        }
        end = line + 1;
    }
    Ok(pending.join(flush(start, end)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::SimBackend;

    #[test]
    fn every_line_is_flushed_once() {
        for count in [1, 5, INLINE_LINES as u64, INLINE_LINES as u64 + 1, 200] {
            let sim = SimBackend::new(1 << 16).unwrap();
            let region = Region::new("lines", Box::new(sim.clone()));
            let mut lines = Lines::default();
            for pass in 0..3 {
                for i in 0..count {
                    // Each range covers two lines; the second is the first line of the next
                    // range.
                    lines.add(RegionOffset((i * 7 % count) * LINE + 32 + pass * 8), 64);
                }
            }
            let before = sim.counters();
            let _ = region.window().fence(lines.flush(&region).unwrap());
            let done = sim.counters() - before;
            assert_eq!((done.flushes, done.redundant_flushes), (count + 1, 0));
            lines.clear();
            drop(lines.flush(&region).unwrap());
            assert_eq!(sim.counters().flushes - before.flushes, count + 1);
        }
    }
}
