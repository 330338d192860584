//! Interleaved comparison: each round runs every side once, on the same
//! random sequence, and gives one ratio; the sides take turns at going first.
//!
//! A machine that speeds up, slows down or is shared hits both sides of a
//! round alike, so the ratio of a round says more than two long runs one after
//! the other. The report is the median of the rounds' ratios, with their 10th
//! and 90th percentile as the spread.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::Context;

/// One contender: `run(seed, operations)` gives the time that counts.
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
    /// A side that does its own timing, since part of its work does not count.
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

/// How many operations a round has.
#[derive(Debug, Clone, Copy)]
pub enum Ops {
    /// So many.
    Fixed(u64),
    /// So many that the slowest side takes the usual round time.
    Calibrated,
}

/// The times of all rounds.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Operations a round.
    pub ops: u64,
    /// Nanoseconds an operation: for each side, for each round.
    pub ns: Vec<Vec<f64>>,
}

/// Sides of a comparison with a control, in their order.
pub const NEW: usize = 0;
/// What `NEW` is held against.
pub const OLD: usize = 1;
/// The same as `OLD`: what it differs from that by is not a matter of the build.
pub const CONTROL: usize = 2;

/// How far a control may differ from what it is the same as.
const CONTROL_LIMIT: f64 = 0.01;
/// Times that the rounds are done, at most, to come below that.
const CONTROL_TURNS: u32 = 4;

impl Measured {
    /// Median nanoseconds an operation of a side.
    pub fn median_ns(&self, side: usize) -> f64 {
        quantile(&self.ns[side], 0.5)
    }

    /// The rate of the control by that of what it is the same as.
    pub fn control(&self) -> f64 {
        quantile(&self.ratios(CONTROL, OLD), 0.5)
    }

    /// How many times the rate of side `theirs` side `ours` reaches, round by
    /// round.
    pub fn ratios(&self, ours: usize, theirs: usize) -> Vec<f64> {
        self.ns[theirs]
            .iter()
            .zip(&self.ns[ours])
            .map(|(t, o)| t / o)
            .collect()
    }
}

/// The value below which a share `q` of the values lies, by linear
/// interpolation.
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

/// Runs the sides in turn: one round that is not counted, then the counted
/// ones.
///
/// # Errors
/// That of the first side that fails, with its name; or when interrupted.
pub fn interleave(cx: &Context, ops: Ops, sides: &mut [Side<'_>]) -> Result<Measured> {
    interleave_rounds(cx, cx.rounds, ops, sides)
}

/// As [`interleave_rounds`], of the sides [`NEW`], [`OLD`] and [`CONTROL`]: it goes on
/// for up to four times as many rounds until the control is the same within 1 %.
///
/// # Errors
/// As for [`interleave`].
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

/// As [`interleave`], with another number of counted rounds.
///
/// # Errors
/// As for [`interleave`].
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
                // From one operation upwards, until it takes long enough to tell.
                let mut n = 1;
                loop {
                    cx.go_on()?;
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
            cx.go_on()?;
            // First forwards, then backwards: nobody always goes first.
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
    fn quantiles_interpolate() {
        let v = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&v, 0.0), 1.0);
        assert_eq!(quantile(&v, 0.5), 2.5);
        assert_eq!(quantile(&v, 1.0), 4.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn ratios_compare_same_round() {
        // The machine slows down fourfold in the second round: no matter.
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
