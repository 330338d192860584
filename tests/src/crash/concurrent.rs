//! Two operations in flight on two threads: whatever a crash leaves, some order
//! of the two explains.
//!
//! For each order the states before, between and after are known from runs of
//! one thread. Orders in which the operations had other results than in the
//! run count for nothing. What had returned at the moment of the crash is there.

use std::sync::Arc;

use pramfs::{MountOptions, inode::Fs};
use pramfs_medium::journal::{Rules, set_thread_lane};
use pramfs_medium::pmem::{Event, EventKind, SimBackend};

use super::explorer::{Settings, Stopped, cpu_time, spread};
use super::fixture::{Fixture, START};

use super::act::vacate;
use super::action::Action;
use super::known::Known;
use super::machine::Machine;
use super::operations::Op;
use super::oracle::{Oracle, Still, options};
use super::report::{Counterexample, Summary, lines};
use super::scheduler::Scheduler;
use super::setup::Setup;
use super::state::{Expected, Promise, State};
use crate::random::Random;
use crate::region;

/// One order of two operations: the states before, between and after, and
/// whether each was done or refused, by thread.
struct Order {
    first: usize,
    states: [Expected; 3],
    done: [bool; 2],
}

/// Explores all pairs of the operations that change metadata, and of each of
/// these with each that gives blocks to a file; each pair with so many
/// interleavings. Bytes that are overwritten in place are in no order with
/// anything: sequences are enough for them.
///
/// # Errors
/// The first image that no order explains.
pub fn run(
    settings: &Settings,
    known: &Arc<Known>,
    (fixture, ops): (&Fixture, &[Op]),
    interleavings: u64,
    progress: &(dyn Fn(&Summary) + Sync),
) -> Result<Summary, Stopped> {
    let media = known.media_checked();
    let mut pairs = Vec::new();
    for (i, a) in ops.iter().enumerate().filter(|(_, op)| op.metadata) {
        let others = ops[i..].iter();
        let fits = |b: &&Op| b.metadata || GIVE_BLOCKS.iter().any(|n| b.name.starts_with(n));
        pairs.extend(others.filter(fits).map(|b| [a, b]));
    }
    let mut total = spread(settings.threads, &pairs, progress, &|| {
        set_thread_lane(0);
        let mut explorer = Pairs::new(settings, known, fixture);
        move |i, pair: &[&Op; 2]| {
            // Other pairs have other interleavings.
            let first = settings.seed.wrapping_add(i as u64 * interleavings);
            explorer.explore(*pair, first..first + interleavings)
        }
    })?;
    total.media = known.media_checked() - media;
    Ok(total)
}

/// One pair again, by the name that a report gives it, with the interleaving of
/// the seed in the settings.
///
/// # Errors
/// What of the name is no operation; and the image that no order explains.
pub fn again(
    settings: &Settings,
    (fixture, ops): (&Fixture, &[Op]),
    name: &str,
) -> Result<Result<Summary, Stopped>, String> {
    let op = |name: &str| {
        let found = ops.iter().find(|op| op.name == name.trim());
        found.ok_or_else(|| format!("there is no operation \"{name}\""))
    };
    let (a, b) = name
        .split_once('|')
        .ok_or("two operations, with | between them")?;
    let (a, b) = (op(a)?, op(b)?);
    set_thread_lane(0);
    let mut pairs = Pairs::new(settings, &Arc::default(), fixture);
    Ok(pairs.explore([a, b], settings.seed..settings.seed + 1))
}

/// How the names of operations begin that store new data and make it reachable
/// by a record.
const GIVE_BLOCKS: [&str; 5] = [
    "append",
    "fallocate",
    "write /A/foo 90 at 5000 (hole)",
    "write /A/bar 600 (empty)",
    "fsync",
];

/// Explores pairs on a fixture.
#[derive(Debug)]
struct Pairs<'a> {
    settings: &'a Settings,
    fixture: &'a Fixture,
    oracle: Oracle,
}

/// All times are the same, so that only the order of changes counts.
const NOW: i64 = START + 1000;

fn mount_options(settings: &Settings) -> MountOptions {
    MountOptions {
        rules: Rules {
            inode_batches: false,
            ..settings.rules
        },
        ..options(&Still::at(NOW))
    }
}

/// What the other operation may have taken away, or made.
const REFUSALS: [i32; 8] = [
    libc::EPERM,
    libc::EEXIST,
    libc::ENOENT,
    libc::ENOTEMPTY,
    libc::EISDIR,
    libc::ENOTDIR,
    libc::ESTALE,
    libc::ENODATA,
];

/// False where the operation was refused.
fn carry_out(fs: &Fs, fixture: &Fixture, actions: &[Action]) -> Result<bool, String> {
    for a in actions {
        let done = match a {
            Action::Label(label) => fs.set_label(label),
            Action::Trim => fs.trim(0, u64::MAX, 0).map(drop),
            Action::Gather { node } => fs.gather(fixture.follower.ino(*node), 0).map(drop),
            Action::Vacate { node } => vacate(fs, fixture.follower.ino(*node)).map(drop),
            _ => {
                let call = a.as_call().ok_or("no call stands for it")?;
                fixture.follower.engine(fs, &call)
            }
        };
        match done {
            Ok(()) => {}
            Err(e) if REFUSALS.contains(&e.errno()) => return Ok(false),
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(true)
}

impl<'a> Pairs<'a> {
    fn new(settings: &'a Settings, known: &Arc<Known>, fixture: &'a Fixture) -> Self {
        let mut oracle = Oracle::new(known, &fixture.image).expect("the fixture is a file system");
        oracle.record = false;
        Pairs {
            settings,
            fixture,
            oracle,
        }
    }

    fn state(&mut self, sim: &SimBackend, fs: &Fs) -> Result<Expected, String> {
        let image = sim.image();
        self.oracle.set_base(&image);
        let images = self
            .oracle
            .images(&Machine::new(image), self.settings.limits.torn);
        let verdict = self.oracle.judge(&images, &[])?;
        let found = (*self.oracle.known().state(verdict.state)).clone();
        let live = State::of(fs).map_err(|e| e.to_string())?;
        if live.tree != found.tree {
            return Err(format!(
                "recovery without loss of any store:\n{}",
                live.tree.differences(&found.tree)
            ));
        }
        Ok(Expected {
            state: found,
            lag: Default::default(),
        }
        .anonymous())
    }

    /// One after the other, each on a thread with its lane.
    fn order(&mut self, first: usize, actions: &[Vec<Action>; 2]) -> Result<Order, String> {
        let words = |e: pramfs::Error| e.to_string();
        let sim = SimBackend::from_image(&self.fixture.image).map_err(|e| e.to_string())?;
        let fs = region::mount(&sim, mount_options(self.settings)).map_err(words)?;
        let mut states = vec![self.state(&sim, &fs)?];
        let mut done = [false; 2];
        for who in [first, 1 - first] {
            let fixture = self.fixture;
            done[who] = std::thread::scope(|s| {
                let run = || {
                    set_thread_lane(who as u32);
                    carry_out(&fs, fixture, &actions[who])
                };
                s.spawn(run).join().map_err(|_| "a panic".to_owned())?
            })?;
            states.push(self.state(&sim, &fs)?);
        }
        let states = states.try_into().map_err(|_| "three states")?;
        Ok(Order {
            first,
            states,
            done,
        })
    }

    /// Runs two operations at the same time, with an interleaving for each
    /// seed, and crashes at each fence and each return.
    fn explore(&mut self, ops: [&Op; 2], seeds: std::ops::Range<u64>) -> Result<Summary, Stopped> {
        let start = cpu_time();
        let mut counts = Summary::default();
        let name = format!("{} | {}", ops[0].name, ops[1].name);
        let mut story = Counterexample {
            workload: name.clone(),
            setup: Setup::of(self.fixture, self.settings),
            moment: "at no moment".into(),
            lines: Vec::new(),
            problem: String::new(),
            seed: self.settings.seed,
        };
        let fail = |story: &Counterexample, problem: String| {
            Err(Box::new(Counterexample {
                problem,
                ..story.clone()
            }))
        };
        let f = &self.fixture.follower;
        let (Some(a), Some(b)) = (ops[0].actions(f), ops[1].actions(f)) else {
            counts.left_out = 1;
            return Ok(counts);
        };
        let actions = [a, b];
        let promises = actions.each_ref().map(|a| a[0].promise(f));
        let mut orders = Vec::new();
        for first in [0, 1] {
            match self.order(first, &actions) {
                Ok(o) => orders.push(o),
                Err(e) => return fail(&story, format!("one after the other: {e}")),
            }
        }
        for seed in seeds {
            story.seed = seed;
            let run = match self.run(&actions, seed) {
                Ok(run) => run,
                Err(e) => return fail(&story, e),
            };
            let possible: Vec<&Order> = orders.iter().filter(|o| o.done == run.done).collect();
            if possible.is_empty() {
                return fail(
                    &story,
                    format!("no order has these results: {:?}", run.done),
                );
            }
            counts.workloads += 1;
            let mut machine = Machine::new(self.fixture.image.to_vec());
            machine.run_all(&run.events[..run.start]);
            for (i, e) in run.events.iter().enumerate().skip(run.start) {
                let returned = run.returned.map(|r| r <= i);
                if e.kind == EventKind::Fence || run.returned.contains(&i) {
                    story.moment = format!(
                        "before event {i} of {} ({:?} have returned)",
                        run.events.len(),
                        returned
                    );
                    self.point(
                        &machine,
                        &possible,
                        &promises,
                        returned,
                        &mut story,
                        &mut counts,
                    )?;
                }
                machine.run(e);
            }
            story.moment = "after both have returned".into();
            self.point(
                &machine,
                &possible,
                &promises,
                [true; 2],
                &mut story,
                &mut counts,
            )?;
        }
        counts.worked = cpu_time().saturating_sub(start);
        Ok(counts)
    }

    fn run(&mut self, actions: &[Vec<Action>; 2], seed: u64) -> Result<Run, String> {
        let sim = SimBackend::from_image(&self.fixture.image).map_err(|e| e.to_string())?;
        let turns = Scheduler::new(&sim, seed);
        sim.recording(true);
        let fs =
            Fs::open(turns.region(), mount_options(self.settings)).map_err(|e| e.to_string())?;
        let start = turns.events();
        let fixture = self.fixture;
        let results = std::thread::scope(|s| {
            let threads = [0, 1].map(|who| {
                let (turns, fs, actions) = (&turns, &fs, &actions[who]);
                s.spawn(move || {
                    set_thread_lane(who as u32);
                    turns.run(who, || carry_out(fs, fixture, actions))
                })
            });
            threads.map(|t| t.join().map_err(|_| "a panic in flight".to_owned()))
        });
        let events = sim.take_record();
        sim.recording(false);
        let [a, b] = results;
        let ((a, at_a), (b, at_b)) = (a?, b?);
        if turns.events() != events.len() {
            return Err(format!(
                "{} events and a record of {}",
                turns.events(),
                events.len()
            ));
        }
        Ok(Run {
            events,
            start,
            done: [a?, b?],
            returned: [at_a, at_b],
        })
    }

    fn point(
        &mut self,
        machine: &Machine,
        orders: &[&Order],
        promises: &[Promise; 2],
        returned: [bool; 2],
        story: &mut Counterexample,
        counts: &mut Summary,
    ) -> Result<(), Stopped> {
        self.oracle.set_base(machine.durable());
        let images = self.oracle.images(machine, self.settings.limits.torn);
        let mut random = Random::new(story.seed ^ counts.points);
        let mut judged = std::collections::HashMap::new();
        let mut failed = None;
        let oracle = &mut self.oracle;
        let how = images.each(&self.settings.limits, &mut random, &mut |choice| {
            counts.images += 1;
            let problem = match oracle.judge(&images, choice) {
                Err(e) => e,
                Ok(v) => {
                    counts.distinct += u64::from(v.new);
                    let fine = *judged.entry(v.state).or_insert_with(|| {
                        let found = (*oracle.known().state(v.state)).clone().anonymous();
                        orders
                            .iter()
                            .any(|o| o.explains(&found, promises, returned))
                    });
                    if fine {
                        return true;
                    }
                    let found = (*oracle.known().state(v.state)).clone().anonymous();
                    let mut text = String::new();
                    for o in orders {
                        for (s, when) in o.states.iter().zip(["before", "between", "after"]) {
                            text += &format!(
                                "--- thread {} first, against the state {when}:\n{}",
                                o.first,
                                s.differences(&found)
                            );
                        }
                    }
                    text
                }
            };
            failed = Some((choice.to_vec(), problem));
            false
        });
        counts.points += 1;
        counts.covered(how, images.lines.len());
        match failed {
            None => Ok(()),
            Some((choice, problem)) => {
                story.lines = lines(self.oracle.geometry(), &images.lines, &choice);
                story.problem = problem;
                Err(Box::new(story.clone()))
            }
        }
    }
}

/// A run of two threads.
struct Run {
    events: Vec<Event>,
    /// The mount is the events before this.
    start: usize,
    done: [bool; 2],
    /// Events before each had returned.
    returned: [usize; 2],
}

impl Order {
    fn explains(&self, found: &State, promises: &[Promise; 2], returned: [bool; 2]) -> bool {
        let who = [self.first, 1 - self.first];
        // How many of the two, in this order, must have happened.
        let least = match (returned[who[0]], returned[who[1]]) {
            (_, true) => 2,
            (true, false) => 1,
            _ => 0,
        };
        self.states[least..].iter().any(|s| s.is(found))
            || (0..2).any(|i| {
                let flight = i >= least && !returned[who[i]];
                flight && promises[who[i]].allows(&self.states[i], found, &self.states[i + 1])
            })
    }
}
