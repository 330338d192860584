//! Crashes within recoveries: whatever they leave, the next recovery must come to the state
//! that the first came to.

use pramfs_medium::pmem::EventKind;

use super::explorer::{At, Settings};
use super::images::Images;
use super::known::StateId;
use super::machine::Machine;
use super::oracle::{Oracle, Recovered, Verdict};
use super::report::{Summary, lines};
use super::state::Expected;
use crate::random::Random;

/// A recovery that is to be crashed.
pub(super) struct Recovery {
    pub image: Vec<u8>,
    pub did: Recovered,
    pub state: StateId,
}

/// What is wrong with an image of a crashed recovery.
pub(super) struct Failed {
    pub moment: String,
    pub lines: Vec<String>,
    pub problem: String,
}

/// Recoveries from recoveries, each of which does what none has done before. More of them mean
/// that a recovery stores something new each time, and the search would never end.
const DEPTH: u32 = 64;

/// Crashes recoveries.
pub(super) struct Again<'w> {
    pub settings: &'w Settings,
    pub inner: &'w mut Oracle,
    pub counts: &'w mut Summary,
}

impl Again<'_> {
    /// Fails the power in a recovery, and in the recoveries from that, until
    /// no recovery is new.
    pub(super) fn crash(&mut self, first: Recovery, at: &At<'_>) -> Result<(), Failed> {
        let mut left = vec![(first, 0)];
        while let Some((r, depth)) = left.pop() {
            if depth > DEPTH {
                return Err(Failed {
                    moment: format!("after {DEPTH} crashes, each in the recovery from the last"),
                    lines: vec![],
                    problem: "each recovery stores what none has stored before: leave out of \
                              `Oracle::trace` what counts mounts"
                        .into(),
                });
            }
            let limits = match r.did.new {
                true => self.settings.recovery,
                false => self.settings.every_recovery,
            };
            let Some(limits) = limits else { continue };
            self.counts.recoveries += 1;
            let mut machine = Machine::new(r.image);
            let mut fence = 0;
            for e in &r.did.events {
                if e.kind == EventKind::Fence {
                    fence += 1;
                    self.inner.set_base(machine.durable());
                    let images = self.inner.images(&machine, limits.torn);
                    let mut random = Random::new(seed(self.settings.seed, at) ^ fence);
                    let mut failed = None;
                    let (inner, counts) = (&mut *self.inner, &mut *self.counts);
                    images.each(&limits, &mut random, &mut |choice| {
                        counts.recovery_images += 1;
                        match judge_state(inner, &images, choice, r.state) {
                            Ok(v) => {
                                counts.recovery_distinct += u64::from(v.new);
                                if let Some(did) = v.recovery {
                                    let image = image_of(machine.durable(), &images, choice);
                                    let state = v.state;
                                    // Those that repeat another are asked for by `every`.
                                    let depth = depth + u32::from(did.new);
                                    left.push((Recovery { image, did, state }, depth));
                                }
                                true
                            }
                            Err(problem) => {
                                failed = Some((choice.to_vec(), problem));
                                false
                            }
                        }
                    });
                    if let Some((choice, problem)) = failed {
                        return Err(Failed {
                            moment: format!("before fence {fence} of the recovery"),
                            lines: lines(self.inner.geometry(), &images.lines, &choice),
                            problem,
                        });
                    }
                }
                machine.run(e);
            }
        }
        Ok(())
    }
}

/// Judges an image for which one state is right.
fn judge_state(
    oracle: &mut Oracle,
    images: &Images,
    choice: &[u16],
    right: StateId,
) -> Result<Verdict, String> {
    let verdict = oracle.judge(images, choice)?;
    if verdict.state == right {
        return Ok(verdict);
    }
    let known = oracle.known();
    let expected = Expected {
        state: (*known.state(right)).clone(),
        lag: Default::default(),
    };
    Err(format!(
        "--- against the state that the first recovery came to:\n{}",
        expected.differences(&known.state(verdict.state))
    ))
}

pub(super) fn image_of(durable: &[u8], images: &Images, choice: &[u16]) -> Vec<u8> {
    let mut image = durable.to_vec();
    for (at, value) in images.patch(choice) {
        image[at..at + value.len()].copy_from_slice(value);
    }
    image
}

/// Each moment of each workload has random choices of its own, the same in
/// each run.
pub(super) fn seed(seed: u64, at: &At<'_>) -> u64 {
    let text = at.name.bytes().chain(at.number.to_le_bytes());
    text.fold(seed ^ 0x9e37_79b9_7f4a_7c15, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}
