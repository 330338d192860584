//! The explorer: runs workloads, fails the power at each fence and each return
//! of their last operation, and has the oracle judge the images.
//!
//! The crash falls into the last operation only: those before it are sequences
//! of their own.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pramfs_medium::journal::{Rules, set_thread_lane};
use pramfs_medium::pmem::EventKind;

use super::action::Action;
use super::again::{Again, Failed, Recovery, image_of, seed};
use super::fixture::Fixture;
use super::images::{Choice, Images, Limits};
use super::known::{Known, StateId};
use super::leased::{self, Held};
use super::live::Live;
use super::machine::Machine;
use super::operations::Op;
use super::oracle::{Oracle, Verdict};
use super::report::{Counterexample, Summary, lines};
use super::setup::Setup;
use super::state::{Expected, Promise, State};
use super::workload::Workload;
use crate::random::Random;

/// How to explore.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which images.
    pub limits: Limits,
    /// Which images of a crash in recovery; `None`: recoveries are not crashed.
    pub recovery: Option<Limits>,
    /// Which images of a crash in the recovery of an image, if another recovery
    /// has made the same stores on the way to the same medium; `None`: those
    /// are not crashed again.
    pub every_recovery: Option<Limits>,
    /// Rules of the journal that workloads run under, to be broken by tests.
    pub rules: Rules,
    /// Of random choices. Each moment of each workload has its own from this.
    pub seed: u64,
    /// Workers.
    pub threads: usize,
}

/// What to explore: workloads on a fixture.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    /// Where they start.
    pub fixture: &'a Fixture,
    /// Operations that they name.
    pub ops: &'a [Op],
    /// The workloads.
    pub workloads: &'a [Workload],
}

/// Why a run ended early. Boxed: it is rare and large.
pub type Stopped = Box<Counterexample>;

/// Runs all workloads of a job; ends with the first image that nothing
/// explains.
///
/// # Errors
/// That image.
pub fn run(
    settings: &Settings,
    known: &Arc<Known>,
    job: &Job<'_>,
    progress: &(dyn Fn(&Summary) + Sync),
) -> Result<Summary, Stopped> {
    let media = known.media_checked();
    let mut total = spread(settings.threads, job.workloads, progress, &|| {
        let mut worker = Worker::new(settings, known, job);
        move |_, w: &Workload| worker.workload(w)
    })?;
    total.media = known.media_checked() - media;
    Ok(total)
}

/// Does something with every item, on so many threads, until all is done or one
/// of them finds what nothing explains. `begin` makes what a thread works with.
pub(super) fn spread<T: Sync, W>(
    threads: usize,
    items: &[T],
    progress: &(dyn Fn(&Summary) + Sync),
    begin: &(dyn Fn() -> W + Sync),
) -> Result<Summary, Stopped>
where
    W: FnMut(usize, &T) -> Result<Summary, Stopped>,
{
    let next = AtomicUsize::new(0);
    let total = Mutex::new(Summary::default());
    let found = Mutex::new(None);
    std::thread::scope(|s| {
        for _ in 0..threads.max(1) {
            s.spawn(|| {
                let mut work = begin();
                while found.lock().is_none() {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(i) else { break };
                    match work(i, item) {
                        Ok(counts) => {
                            let mut total = total.lock();
                            *total += counts;
                            progress(&total);
                        }
                        Err(e) => {
                            found.lock().get_or_insert(e);
                        }
                    }
                }
            });
        }
    });
    match found.into_inner() {
        Some(e) => Err(e),
        None => Ok(total.into_inner()),
    }
}

/// One thread of the explorer.
struct Worker<'a> {
    settings: &'a Settings,
    job: &'a Job<'a>,
    oracle: Oracle,
    /// For crashes within recoveries, since the other's image is in use.
    inner: Oracle,
    counts: Summary,
}

/// What may be found at a moment, by a recovery while processes hold some leases.
struct Allowed<'a> {
    held: &'a Held,
    before: Option<&'a Expected>,
    promise: &'a Promise,
    after: &'a Expected,
    /// What the operation was on its way to, where it was refused for want of
    /// space.
    aim: Option<Expected>,
}

impl Allowed<'_> {
    fn explains(&self, found: &State) -> bool {
        let explained = match self.before {
            Some(b) => {
                let aim = self.aim.as_ref().unwrap_or(self.after);
                b.is(found) || self.after.is(found) || self.promise.allows(b, found, aim)
            }
            None => self.after.is(found),
        };
        explained && self.keeps(found).is_ok()
    }

    /// Whether processes still map what they could map.
    fn keeps(&self, found: &State) -> Result<(), String> {
        let promised = self.before.unwrap_or(self.after);
        leased::compare(&promised.state.kept, &found.kept)
    }

    fn differences(&self, found: &State) -> String {
        let mut text = String::new();
        if let Err(lost) = self.keeps(found) {
            text += &format!("--- of leases: {lost}\n");
        }
        if let Some(b) = self.before {
            text += &format!("--- against the state before:\n{}", b.differences(found));
        }
        text + &format!(
            "--- against the state after:\n{}",
            self.after.differences(found)
        )
    }
}

/// The ways to recover an image: while the processes live that hold leases, and without them.
fn ways(held: &Held) -> Vec<Held> {
    let mut ways = vec![held.clone()];
    if !held.is_empty() {
        ways.push(Held::new());
    }
    ways
}

/// Where in a workload.
pub(super) struct At<'a> {
    pub name: &'a str,
    pub moment: String,
    pub number: u64,
}

impl<'a> Worker<'a> {
    fn new(settings: &'a Settings, known: &Arc<Known>, job: &'a Job<'a>) -> Worker<'a> {
        set_thread_lane(0);
        let oracle =
            || Oracle::new(known, &job.fixture.image).expect("the fixture is a file system");
        let (mut oracle, mut inner) = (oracle(), oracle());
        oracle.record = settings.recovery.is_some();
        inner.record = settings.recovery.is_some();
        oracle.every = settings.every_recovery.is_some();
        Worker {
            settings,
            job,
            oracle,
            inner,
            counts: Summary::default(),
        }
    }

    fn failure(&self, at: &At<'_>, lines: Vec<String>, problem: String) -> Stopped {
        Box::new(Counterexample {
            workload: at.name.to_owned(),
            setup: Setup::of(self.job.fixture, self.settings),
            moment: at.moment.clone(),
            lines,
            problem,
            seed: self.settings.seed,
        })
    }

    fn workload(&mut self, w: &Workload) -> Result<Summary, Stopped> {
        let start = cpu_time();
        self.counts = Summary::default();
        let name = w.name(self.job.ops);
        let done = catch_unwind(AssertUnwindSafe(|| self.run(w, &name)));
        let applies = match done {
            Ok(r) => r?,
            Err(panic) => {
                let text = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                    .unwrap_or_default();
                let at = At {
                    name: &name,
                    moment: "at no moment".into(),
                    number: 0,
                };
                return Err(self.failure(&at, vec![], format!("panic: {text}")));
            }
        };
        let mut counts = self.counts;
        if applies {
            counts.workloads = 1;
        } else {
            counts.left_out = 1;
        }
        counts.worked = cpu_time().saturating_sub(start);
        Ok(counts)
    }

    /// False where an operation does not apply.
    fn run(&mut self, w: &Workload, name: &str) -> Result<bool, Stopped> {
        let fixture = self.job.fixture;
        let mut at = At {
            name,
            moment: "nowhere: the workload itself goes wrong".into(),
            number: 0,
        };
        let mut live =
            Live::new(fixture, self.settings.rules).map_err(|e| self.failure(&at, vec![], e))?;
        let mut machine = Machine::new(fixture.image.to_vec());
        for (i, &(op, lane)) in w.steps.iter().enumerate() {
            let last = i + 1 == w.steps.len();
            let op = &self.job.ops[op];
            let Some(actions) = op.actions(&live.f) else {
                return Ok(false);
            };
            for (j, action) in actions.iter().enumerate() {
                // The call that makes what this one uses was refused.
                if !action.applies(&live.f) {
                    break;
                }
                machine.run_all(&live.events());
                let begun = live.begin(action);
                begun.map_err(|e| self.goes_wrong(op, &at, &e))?;
                if !last {
                    let acted = live.act(action, lane);
                    acted.map_err(|e| self.goes_wrong(op, &at, &e))?;
                    continue;
                }
                let what = match actions.len() {
                    1 => op.name.to_owned(),
                    _ => format!("{}, call {}", op.name, j + 1),
                };
                machine = self.crash(&mut live, machine, (op, lane), action, &what, &mut at)?;
            }
        }
        let ended = live.end();
        ended.map_err(|e| self.failure(&at, vec![], e))?;
        Ok(true)
    }

    fn goes_wrong(&self, op: &Op, at: &At<'_>, e: &str) -> Stopped {
        self.failure(at, vec![], format!("{} goes wrong: {e}", op.name))
    }

    /// Carries out an action of the last operation, and fails the power in it. Returns the
    /// machine after it.
    fn crash(
        &mut self,
        live: &mut Live,
        mut machine: Machine,
        (op, lane): (&Op, u32),
        action: &Action,
        what: &str,
        at: &mut At<'_>,
    ) -> Result<Machine, Stopped> {
        live.write_views_back(&mut machine)
            .map_err(|e| self.failure(at, vec![], e))?;
        // Who gets a lease does not hold it before the call returns.
        let held = ways(&live.held);
        let before = self.expected(live, &machine, &held, at)?;
        let promise = self.job.fixture.promise(action, &live.f);
        let done = live.act(action, lane);
        let done = done.map_err(|e| self.goes_wrong(op, at, &e))?;
        let events = live.events();
        self.counts.refused += u64::from(!done);
        let refused = if done { "" } else { " (refused)" };
        // What is there when it has returned is known only now.
        let mut end = machine.clone();
        end.run_all(&events);
        if op.map {
            end.shadow(&live.image(), u64::MAX, 0);
        }
        let after = self.expected(live, &end, &held, at)?;
        let compared = live.compare();
        compared.map_err(|e| self.failure(at, vec![], format!("before any crash: {e}")))?;
        if let Some((b, a)) = before.first().zip(after.first())
            && !done
            && b.state.pieces != a.state.pieces
        {
            let text = format!("what is refused allocates:\n{}", b.differences(&a.state));
            return Err(self.failure(at, vec![], text));
        }
        let full = !done && self.job.fixture.full;
        let now = live.f.model.now;
        let allowed: Vec<_> = held
            .iter()
            .zip(before.iter().zip(&after))
            .map(|(held, (before, after))| Allowed {
                held,
                before: Some(before),
                promise: &promise,
                after,
                aim: full.then(|| promise.aim(before, action, now)),
            })
            .collect();
        let fences = events.iter().filter(|e| e.kind == EventKind::Fence).count();
        let mut fence = 0;
        for e in &events {
            if e.kind == EventKind::Fence {
                fence += 1;
                at.moment = format!("before fence {fence} of {fences} of \"{what}\"{refused}");
                at.number += 1;
                self.point(&machine, &allowed, at)?;
            }
            machine.run(e);
        }
        at.moment = format!("after \"{what}\"{refused} has returned");
        at.number += 1;
        let held = ways(&live.held);
        let after = self.expected(live, &end, &held, at)?;
        let returned: Vec<_> = (held.iter().zip(&after).enumerate())
            .map(|(i, (held, after))| Allowed {
                held,
                before: before.get(i).filter(|_| op.lossy),
                promise: &promise,
                after,
                aim: None,
            })
            .collect();
        self.point(&end, &returned, at)?;
        Ok(end)
    }

    /// What the file system shows now: by itself, and from an image of it, recovered while
    /// processes hold each of these sets of leases.
    fn expected(
        &mut self,
        live: &Live,
        machine: &Machine,
        ways: &[Held],
        at: &At<'_>,
    ) -> Result<Vec<Expected>, Stopped> {
        let shown = State::of(live.fs()).map_err(|e| self.failure(at, vec![], e.to_string()))?;
        let mut all: Vec<Expected> = Vec::new();
        for held in ways {
            let found = self.without_loss(machine, held, at)?;
            let wrong = |me: &Self, text: &str| {
                let holders = if held.is_empty() {
                    ""
                } else {
                    " beside leases"
                };
                let text = format!("recovery without loss of any store{holders}:\n{text}");
                Err(me.failure(at, vec![], text))
            };
            let state = leased::expected(
                shown.clone(),
                &found,
                all.first().map(|first| &first.state),
                u64::from(self.job.fixture.block_size),
                &|ino| live.loses_tail(ino, held),
            );
            let state = match state {
                Ok(state) => state,
                Err(e) => return wrong(self, &e),
            };
            let expected = Expected {
                state,
                lag: live.f.lag(),
            };
            if !expected.is(&found) {
                return wrong(self, &expected.differences(&found));
            }
            all.push(expected);
        }
        Ok(all)
    }

    /// What an image shows from which nothing is lost.
    fn without_loss(
        &mut self,
        machine: &Machine,
        held: &Held,
        at: &At<'_>,
    ) -> Result<Arc<State>, Stopped> {
        let everything = Machine::new(machine.current().to_vec());
        self.oracle.set_base(machine.current());
        self.hold(held);
        let images = self.oracle.images(&everything, self.settings.limits.torn);
        let verdict = self.oracle.judge(&images, &[]);
        let verdict = verdict
            .map_err(|e| self.failure(at, vec![], format!("without loss of any store: {e}")))?;
        if let Some(did) = verdict.recovery {
            let whole = Recovery {
                image: machine.current().to_vec(),
                did,
                state: verdict.state,
            };
            let failed = self.again().crash(whole, at).err();
            failed.map_or(Ok(()), |f| Err(self.second_failure(at, f)))?;
        }
        Ok(self.oracle.known().state(verdict.state))
    }

    fn hold(&mut self, held: &Held) {
        self.oracle.hold(held);
        self.inner.hold(held);
    }

    /// The power fails. Each image is recovered in each way.
    fn point(
        &mut self,
        machine: &Machine,
        ways: &[Allowed<'_>],
        at: &At<'_>,
    ) -> Result<(), Stopped> {
        self.oracle.set_base(machine.durable());
        let images = self.oracle.images(machine, self.settings.limits.torn);
        self.counts.points += 1;
        for allowed in ways {
            self.hold(allowed.held);
            self.images(machine, &images, allowed, at)?;
        }
        Ok(())
    }

    fn images(
        &mut self,
        machine: &Machine,
        images: &Images,
        allowed: &Allowed<'_>,
        at: &At<'_>,
    ) -> Result<(), Stopped> {
        let mut random = Random::new(seed(self.settings.seed, at));
        let mut judged: HashMap<StateId, bool> = HashMap::new();
        let mut failed: Option<(Choice, String)> = None;
        let mut second: Option<Failed> = None;
        let (mut built, mut distinct) = (0, 0);
        let oracle = &mut self.oracle;
        let mut again = Again {
            settings: self.settings,
            inner: &mut self.inner,
            counts: &mut self.counts,
        };
        let how = images.each(&self.settings.limits, &mut random, &mut |choice| {
            built += 1;
            match judge(oracle, images, choice, allowed, &mut judged) {
                Ok(verdict) => {
                    distinct += u64::from(verdict.new);
                    let Some(did) = verdict.recovery else {
                        return true;
                    };
                    let recovery = Recovery {
                        image: image_of(machine.durable(), images, choice),
                        did,
                        state: verdict.state,
                    };
                    second = again.crash(recovery, at).err();
                    second.is_none()
                }
                Err(problem) => {
                    failed = Some((choice.to_vec(), problem));
                    false
                }
            }
        });
        self.counts.images += built;
        self.counts.distinct += distinct;
        self.counts.covered(how, images.lines.len());
        if let Some((choice, problem)) = failed {
            let simpler = self.simplify(images, choice, problem, &mut |oracle, choice| {
                judge(oracle, images, choice, allowed, &mut HashMap::new()).err()
            });
            let (choice, mut problem) = simpler;
            if !allowed.held.is_empty() {
                problem = format!("while processes hold slots {:?}: {problem}", allowed.held);
            }
            let lines = lines(self.oracle.geometry(), &images.lines, &choice);
            return Err(self.failure(at, lines, problem));
        }
        second.map_or(Ok(()), |f| Err(self.second_failure(at, f)))
    }

    fn again(&mut self) -> Again<'_> {
        Again {
            settings: self.settings,
            inner: &mut self.inner,
            counts: &mut self.counts,
        }
    }

    fn second_failure(&self, at: &At<'_>, f: Failed) -> Stopped {
        let at = At {
            name: at.name,
            moment: format!("{}, and again {}", at.moment, f.moment),
            number: at.number,
        };
        self.failure(&at, f.lines, f.problem)
    }

    /// Takes stored lines out of a failing image as long as it fails.
    fn simplify(
        &mut self,
        images: &Images,
        choice: Choice,
        problem: String,
        fails: &mut dyn FnMut(&mut Oracle, &[u16]) -> Option<String>,
    ) -> (Choice, String) {
        let mut best = (choice, problem);
        for i in 0..images.lines.len() {
            let last = images.lines[i].values.len() as u16 - 1;
            for v in [0, last] {
                if best.0[i] == 0 || best.0[i] == v {
                    continue;
                }
                let mut simpler = best.0.clone();
                simpler[i] = v;
                if let Some(problem) = fails(&mut self.oracle, &simpler) {
                    best = (simpler, problem);
                }
            }
        }
        best
    }
}

fn judge(
    oracle: &mut Oracle,
    images: &Images,
    choice: &[u16],
    allowed: &Allowed<'_>,
    judged: &mut HashMap<StateId, bool>,
) -> Result<Verdict, String> {
    let verdict = oracle.judge(images, choice)?;
    let found = oracle.known().state(verdict.state);
    let fine = *judged
        .entry(verdict.state)
        .or_insert_with(|| allowed.explains(&found));
    match fine {
        true => Ok(verdict),
        false => Err(allowed.differences(&found)),
    }
}

/// Processor time of the calling thread: what a run costs does not depend on
/// what else the machine does.
pub(super) fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}
