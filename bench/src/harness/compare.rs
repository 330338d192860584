//! Interleaved comparison: each round runs every side once, on the same random
//! sequence, and gives one ratio. The sides alternate in going first.
//!
//! If the machine speeds up, slows down, or is shared, both sides of a round are
//! affected alike. So the ratio of a round is more reliable than that of two long runs
//! in succession. The report is the median of the rounds' ratios, with their 10th and
//! 90th percentile as the spread.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::Context;

/// One contender: `run(seed, operations)` returns the time that counts.
pub struct Side<'a> {
    name: String,
    #[allow(
        clippy::type_complexity,
        reason = "named by the field, used nowhere else"
    )]
    run: Box<dyn FnMut(u64, u64) -> Result<Duration> + 'a>,
}

impl std::fmt::Debug for Side<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Side")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl<'a> Side<'a> {
    /// A side that times itself, since part of its work does not count.
    pub fn timed(
        name: impl Into<String>,
        run: impl FnMut(u64, u64) -> Result<Duration> + 'a,
    ) -> Side<'a> {
        Side {
            name: name.into(),
            run: Box::new(run),
        }
    }

    /// A side whose whole work counts.
    pub fn whole(
        name: impl Into<String>,
        mut run: impl FnMut(u64, u64) -> Result<()> + 'a,
    ) -> Side<'a> {
        Side::timed(name, move |seed, ops| {
            let start = Instant::now();
            run(seed, ops)?;
            Ok(start.elapsed())
        })
    }
}

/// Number of operations in a round.
#[derive(Debug, Clone, Copy)]
pub enum Ops {
    /// This number.
    Fixed(u64),
    /// As many as make the slowest side take the usual round time.
    Calibrated,
}

/// The times of all rounds.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Operations in a round.
    pub ops: u64,
    /// Nanoseconds of one operation: for each side, for each round.
    pub ns: Vec<Vec<f64>>,
}

/// Sides of a comparison with a control, in order.
pub const NEW: usize = 0;
/// The baseline for `NEW`.
pub const OLD: usize = 1;
/// The same build as `OLD`: its deviation shows the noise of the measurement.
pub const CONTROL: usize = 2;

/// Limit of the control's deviation from the baseline.
const CONTROL_LIMIT: f64 = 0.01;
/// Maximum number of repetitions of the rounds until the control is within the limit.
const CONTROL_TURNS: u32 = 4;

impl Measured {
    /// Returns the median nanoseconds of one operation of a side.
    pub fn median_ns(&self, side: usize) -> f64 {
        quantile(&self.ns[side], 0.5)
    }

    /// Returns the rate of the control, divided by that of the baseline.
    pub fn control(&self) -> f64 {
        quantile(&self.ratios(CONTROL, OLD), 0.5)
    }

    /// Returns the rate of side `ours`, divided by that of side `theirs`, for each
    /// round.
    pub fn ratios(&self, ours: usize, theirs: usize) -> Vec<f64> {
        self.ns[theirs]
            .iter()
            .zip(&self.ns[ours])
            .map(|(t, o)| t / o)
            .collect()
    }
}

/// Returns the quantile `q` of the values, by linear interpolation.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    let Some(last) = v.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = q * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    v[low] + (v[high] - v[low]) * (at - low as f64)
}

/// Runs the sides in turn: first one round that is not counted, then the counted
/// ones.
///
/// # Errors
/// If a side fails (with its name), or when interrupted.
pub fn interleave(cx: &Context, ops: Ops, sides: &mut [Side<'_>]) -> Result<Measured> {
    interleave_rounds(cx, cx.rounds, ops, sides)
}

/// Like [`interleave_rounds`], for the sides [`NEW`], [`OLD`] and [`CONTROL`]. Runs up
/// to four times as many rounds, until the control deviates by at most 1 %.
///
/// # Errors
/// Like [`interleave`].
pub fn interleave_with_control(
    cx: &Context,
    rounds: u32,
    ops: Ops,
    sides: &mut [Side<'_>; 3],
) -> Result<Measured> {
    let mut all = interleave_rounds(cx, rounds, ops, sides)?;
    for _ in 1..CONTROL_TURNS {
        if (all.control() - 1.0).abs() <= CONTROL_LIMIT {
            break;
        }
        let more = interleave_rounds(cx, rounds, Ops::Fixed(all.ops), sides)?;
        for (all, more) in all.ns.iter_mut().zip(more.ns) {
            all.extend(more);
        }
    }
    Ok(all)
}

/// Like [`interleave`], with another number of counted rounds.
///
/// # Errors
/// Like [`interleave`].
pub fn interleave_rounds(
    cx: &Context,
    rounds: u32,
    ops: Ops,
    sides: &mut [Side<'_>],
) -> Result<Measured> {
    let one = |side: &mut Side<'_>, seed: u64, ops: u64| -> Result<f64> {
        let took = (side.run)(seed, ops).with_context(|| side.name.clone())?;
        Ok(took.as_nanos() as f64 / ops as f64)
    };
    let ops = match ops {
        Ops::Fixed(n) => n,
        Ops::Calibrated => {
            let mut slowest = 0f64;
            for side in sides.iter_mut() {
                // Start with one operation, and grow until the time can be measured.
                let mut n = 1;
                loop {
                    cx.check_stop()?;
                    let ns = one(side, 1, n)?;
                    if ns * n as f64 > 3e6 {
                        slowest = slowest.max(ns);
                        break;
                    }
                    n *= 4;
                }
            }
            ((cx.round_time().as_nanos() as f64 / slowest) as u64).max(1)
        }
    };
    for side in sides.iter_mut() {
        one(side, 2, ops)?;
    }
    let mut ns = vec![Vec::new(); sides.len()];
    for round in 0..rounds {
        let count = sides.len();
        for turn in 0..count {
            cx.check_stop()?;
            // Alternate the order, so that no side always goes first.
            let at = if round % 2 == 0 {
                turn
            } else {
                count - 1 - turn
            };
            ns[at].push(one(&mut sides[at], 1000 + u64::from(round), ops)?);
        }
    }
    Ok(Measured { ops, ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_between_values_interpolates() {
        let v = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&v, 0.0), 1.0);
        assert_eq!(quantile(&v, 0.5), 2.5);
        assert_eq!(quantile(&v, 1.0), 4.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn ratios_compare_same_round() {
        // The machine slows down fourfold in the second round: no effect.
        let m = Measured {
            ops: 1,
            ns: vec![vec![100.0, 400.0], vec![200.0, 800.0]],
        };
        assert_eq!(m.ratios(0, 1), [2.0, 2.0]);
        assert_eq!(m.ratios(1, 0), [0.5, 0.5]);
    }

    #[test]
    fn differing_control_adds_rounds() {
        let cx = Context::for_tests(4);
        for (control, rounds) in [(1000, 4), (1008, 4), (1200, 16)] {
            let side = |ns| Side::timed("", move |_, ops| Ok(Duration::from_nanos(ns * ops)));
            let mut sides = [side(900), side(1000), side(control)];
            let m = interleave_with_control(&cx, 4, Ops::Fixed(7), &mut sides);
            let m = m.expect("nothing can fail here");
            assert!(m.ns.iter().all(|ns| ns.len() == rounds), "{control}");
            assert_eq!(m.ratios(NEW, OLD), vec![1000.0 / 900.0; rounds]);
        }
    }

    #[test]
    fn sides_share_seeds_and_alternate() {
        let cx = Context::for_tests(4);
        let log = std::cell::RefCell::new(Vec::new());
        let side = |name: &'static str| {
            let log = &log;
            Side::timed(name, move |seed, ops| {
                log.borrow_mut().push((name, seed, ops));
                Ok(Duration::from_nanos(10 * ops))
            })
        };
        let m = interleave(&cx, Ops::Fixed(7), &mut [side("a"), side("b")]);
        let m = m.expect("nothing can fail here");
        assert_eq!(m.ns, [[10.0; 4], [10.0; 4]]);
        let seen: Vec<_> = log.borrow().iter().skip(2).map(|l| (l.0, l.1)).collect();
        let want = [("a", 1000), ("b", 1000), ("b", 1001), ("a", 1001)];
        assert_eq!(seen[..4], want);
    }
}
