//! Which images to look at, of all that a power failure at one moment could
//! leave.
//!
//! Each uncertain line is at one of its values, independently of the others.
//! Where all combinations are few, they are all looked at. Otherwise: all
//! subsets of the lines (whole or not at all) if there are at most
//! [`Limits::lines`] of them, else every line alone, every pair of lines, and
//! their complements; prefixes and suffixes in the order of the stores; every
//! value of every line beside none and beside all of the others; and random
//! combinations of values.
//!
//! Images are told apart by a hash that a changed line changes in O(1), so one
//! that was looked at before costs nothing.

use std::collections::HashSet;

use pramfs_medium::pmem::{Event, EventKind, LINE};

use super::machine::{Machine, Torn, Uncertain, Value};
use crate::random::Random;

/// How far to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Up to so many uncertain lines all subsets are looked at; and up to 2 to
    /// this power combinations of values, all of them.
    pub lines: u32,
    /// Pairs of lines beyond that: all of them up to so many, then that many
    /// random ones.
    pub pairs: usize,
    /// Random combinations.
    pub random: usize,
    /// Values of a line.
    pub torn: Torn,
}

/// How the images of one moment were chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// Every possible image.
    Everything,
    /// Every subset of the lines, and torn lines beside none and all.
    Subsets,
    /// Single lines, all pairs, complements, random ones.
    Pairs,
    /// The same with a random choice among the pairs.
    SomePairs,
}

fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Hash of one line of an image; the hash of an image is the sum over its
/// lines.
pub fn line_hash(line: usize, value: &[u8]) -> u64 {
    const K: [u64; 4] = [
        0xa076_1d64_78bd_642f,
        0xe703_7ed1_a0b4_28db,
        0x8ebc_6af0_9c88_c6e3,
        0x5899_65cc_7537_4cc3,
    ];
    let word = |i: usize| {
        let mut w = [0; 8];
        w.copy_from_slice(&value[i * 8..i * 8 + 8]);
        u64::from_le_bytes(w)
    };
    let fold = |a: u64, b: u64| {
        let wide = u128::from(a) * u128::from(b);
        (wide as u64) ^ (wide >> 64) as u64
    };
    let mut sum = mix64(line as u64 + 1);
    for (i, k) in K.iter().enumerate() {
        sum = fold(word(2 * i) ^ k ^ sum, word(2 * i + 1) ^ K[(i + 1) % 4]);
    }
    mix64(sum ^ line as u64)
}

/// Hash of a whole image.
pub fn image_hash(image: &[u8]) -> u64 {
    let lines = image.chunks_exact(LINE as usize).enumerate();
    lines.fold(0, |sum, (i, value)| sum.wrapping_add(line_hash(i, value)))
}

/// One possible image: the value of each uncertain line, by its position.
pub type Choice = Vec<u16>;

/// The images of one moment.
#[derive(Debug)]
pub struct Images {
    /// Uncertain lines.
    pub lines: Vec<Uncertain>,
    /// What each value adds to the hash.
    deltas: Vec<Vec<u64>>,
    /// Hash with nothing uncertain on the medium.
    base: u64,
}

impl Images {
    /// Those of a machine; `base` is the hash of what is certain. Lines that begin at one of
    /// `settled` stay as is certain.
    pub fn new(machine: &Machine, base: u64, torn: Torn, settled: &[usize]) -> Images {
        let mut lines = machine.uncertain(torn);
        lines.retain(|line| !settled.contains(&line.at));
        let deltas = lines
            .iter()
            .map(|l| {
                let hash = |v: &Value| line_hash(l.at / LINE as usize, v);
                let none = hash(&l.values[0]);
                l.values
                    .iter()
                    .map(|v| hash(v).wrapping_sub(none))
                    .collect()
            })
            .collect();
        Images {
            lines,
            deltas,
            base,
        }
    }

    /// Hash of an image.
    pub fn hash(&self, choice: &[u16]) -> u64 {
        let deltas = choice.iter().zip(&self.deltas);
        deltas.fold(self.base, |sum, (v, d)| sum.wrapping_add(d[*v as usize]))
    }

    /// The lines of an image that are not as certain, and what they hold.
    pub fn patch<'a>(&'a self, choice: &'a [u16]) -> impl Iterator<Item = (usize, &'a Value)> {
        let chosen = self.lines.iter().zip(choice);
        chosen
            .filter(|(_, v)| **v > 0)
            .map(|(l, v)| (l.at, &l.values[*v as usize]))
    }

    fn none(&self) -> Choice {
        vec![0; self.lines.len()]
    }

    fn all(&self) -> Choice {
        self.lines
            .iter()
            .map(|l| l.values.len() as u16 - 1)
            .collect()
    }

    /// Hands each image to look at over, once, until `look` is false.
    pub fn each(
        &self,
        limits: &Limits,
        random: &mut Random,
        look: &mut dyn FnMut(&[u16]) -> bool,
    ) -> Coverage {
        let n = self.lines.len();
        let most = 1usize << limits.lines.min(24);
        let combinations = self
            .lines
            .iter()
            .try_fold(1usize, |p, l| p.checked_mul(l.values.len()));
        if combinations.is_some_and(|c| c <= most) {
            let mut choice = self.none();
            loop {
                if !look(&choice) {
                    break;
                }
                // The next number in a system whose digits are the values.
                let Some(i) =
                    (0..n).find(|&i| usize::from(choice[i]) + 1 < self.lines[i].values.len())
                else {
                    break;
                };
                choice[i] += 1;
                choice[..i].fill(0);
            }
            return Coverage::Everything;
        }
        let mut seen = HashSet::new();
        let mut once = |choice: &[u16]| !seen.insert(self.hash(choice)) || look(choice);
        let (none, all) = (self.none(), self.all());
        let mut go = || -> Option<Coverage> {
            let ok = |more: bool| more.then_some(());
            ok(once(&none))?;
            ok(once(&all))?;
            let coverage = if n <= limits.lines as usize {
                for mask in 0..1usize << n {
                    let choice: Choice = (0..n)
                        .map(|i| if mask >> i & 1 != 0 { all[i] } else { 0 })
                        .collect();
                    ok(once(&choice))?;
                }
                Coverage::Subsets
            } else {
                let mut pair = |i: usize, j: usize| {
                    let (mut with, mut without) = (none.clone(), all.clone());
                    for k in [i, j] {
                        with[k] = all[k];
                        without[k] = 0;
                    }
                    ok(once(&with))?;
                    ok(once(&without))
                };
                // A pair of a line with itself is that line alone.
                (0..n).try_for_each(|i| pair(i, i))?;
                if n * (n - 1) / 2 <= limits.pairs {
                    for i in 0..n {
                        (i + 1..n).try_for_each(|j| pair(i, j))?;
                    }
                    Coverage::Pairs
                } else {
                    for _ in 0..limits.pairs {
                        let mut pick = || random.below(n as u64) as usize;
                        pair(pick(), pick())?;
                    }
                    Coverage::SomePairs
                }
            };
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by_key(|&i| (self.lines[i].since, i));
            let (mut first, mut last) = (none.clone(), all.clone());
            for i in order {
                first[i] = all[i];
                last[i] = 0;
                ok(once(&first))?;
                ok(once(&last))?;
            }
            for nt in [true, false] {
                let of = |i: usize| if self.lines[i].nt == nt { all[i] } else { 0 };
                let choice: Choice = (0..n).map(of).collect();
                ok(once(&choice))?;
            }
            for i in 0..n {
                for v in 1..all[i] {
                    for beside in [&none, &all] {
                        let mut choice = beside.clone();
                        choice[i] = v;
                        ok(once(&choice))?;
                    }
                }
            }
            for _ in 0..limits.random {
                // Few torn lines, or many.
                let torn = 1 + random.below(4);
                let choice: Choice = all
                    .iter()
                    .map(|&last| match random.below(2 * torn + 1) {
                        0 => random.below(u64::from(last) + 1) as u16,
                        k if k % 2 == 0 => 0,
                        _ => last,
                    })
                    .collect();
                ok(once(&choice))?;
            }
            Some(coverage)
        };
        go().unwrap_or(Coverage::Pairs)
    }
}

/// Fails the power at each fence of a record and at its end, and hands each
/// image to look at over, with the number of events that had happened. For what
/// has an oracle of its own; identical images at one moment come once.
///
/// Returns the number of images.
pub fn everywhere(
    mut machine: Machine,
    events: &[Event],
    limits: &Limits,
    seed: u64,
    look: &mut dyn FnMut(usize, &[u8]),
) -> usize {
    let mut count = 0;
    for (i, e) in events.iter().map(Some).chain([None]).enumerate() {
        if e.is_none_or(|e| e.kind == EventKind::Fence) {
            let images = Images::new(&machine, image_hash(machine.durable()), limits.torn, &[]);
            let mut random = Random::new(seed ^ i as u64);
            let mut image = machine.durable().to_vec();
            images.each(limits, &mut random, &mut |choice| {
                for (at, value) in images.patch(choice) {
                    image[at..at + value.len()].copy_from_slice(value);
                }
                look(i, &image);
                for (at, value) in images.patch(choice) {
                    image[at..at + value.len()]
                        .copy_from_slice(&machine.durable()[at..][..value.len()]);
                }
                count += 1;
                true
            });
        }
        if let Some(e) = e {
            machine.run(e);
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use pramfs_medium::pmem::RegionAccess;
    use pramfs_medium::pmem::{Region, SimBackend};

    fn machine(run: impl FnOnce(&Region)) -> Machine {
        let sim = SimBackend::new(4096).unwrap();
        sim.recording(true);
        run(&Region::new("sim", Box::new(sim.clone())));
        let mut m = Machine::new(vec![0; 4096]);
        m.run_all(&sim.take_record());
        m
    }

    const LIMITS: Limits = Limits {
        lines: 6,
        pairs: 1000,
        random: 10,
        torn: Torn::Words,
    };

    fn images(m: &Machine, limits: &Limits) -> (Coverage, HashSet<Vec<u8>>) {
        let base = image_hash(m.durable());
        let images = Images::new(m, base, limits.torn, &[]);
        let mut seen = HashSet::new();
        let coverage = images.each(limits, &mut Random::new(1), &mut |choice| {
            let mut image = m.durable().to_vec();
            for (at, value) in images.patch(choice) {
                image[at..at + 64].copy_from_slice(value);
            }
            assert_eq!(image_hash(&image), images.hash(choice));
            seen.insert(image);
            true
        });
        (coverage, seen)
    }

    #[test]
    fn few_lines_yield_every_combination() {
        let m = machine(|r| {
            let w = r.window();
            // Two prefixes beside nothing; any of three words.
            drop(
                w.store(0, &[1; 16])
                    .unwrap()
                    .join(w.nt_store(64, &[2; 24]).unwrap()),
            );
        });
        let (coverage, seen) = images(&m, &LIMITS);
        assert_eq!((coverage, seen.len()), (Coverage::Everything, 3 * 8));
        let strict = Limits {
            torn: Torn::Strict,
            ..LIMITS
        };
        assert_eq!(images(&m, &strict).1.len(), 4 * 8);
    }

    #[test]
    fn nt_stores_persist_in_any_order() {
        let m = machine(|r| {
            let w = r.window();
            drop(
                w.nt_store(0, &[1; 8])
                    .unwrap()
                    .join(w.nt_store(8, &[2; 8]).unwrap()),
            );
        });
        let (_, seen) = images(&m, &LIMITS);
        assert!(seen.iter().any(|i| i[0] == 0 && i[8] == 2));
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn many_lines_yield_singles_and_pairs() {
        let m = machine(|r| {
            for line in 0..10 {
                r.window().store_u64_unflushed(line * 64, 7).unwrap();
            }
        });
        let (coverage, seen) = images(&m, &LIMITS);
        assert_eq!(coverage, Coverage::Pairs);
        let with = |lines: &[usize]| {
            let mut image = vec![0; 4096];
            lines.iter().for_each(|l| image[l * 64] = 7);
            image
        };
        for i in 0..10 {
            for j in 0..10 {
                assert!(seen.contains(&with(&[i, j])), "{i} and {j}");
                let others: Vec<_> = (0..10).filter(|k| *k != i && *k != j).collect();
                assert!(seen.contains(&with(&others)), "all but {i} and {j}");
            }
        }
        let some = Limits { pairs: 5, ..LIMITS };
        assert_eq!(images(&m, &some).0, Coverage::SomePairs);
        let all = Limits {
            lines: 10,
            ..LIMITS
        };
        let (coverage, seen) = images(&m, &all);
        assert_eq!((coverage, seen.len()), (Coverage::Everything, 1024));
    }
}
