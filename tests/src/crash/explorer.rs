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
use pramfs::{MountOptions, inode::Fs};
use pramfs_medium::journal::{Rules, set_thread_lane};
use pramfs_medium::pmem::{EventKind, SimBackend};

use super::again::{Again, Failed, Recovery, image_of, seed};
use super::fixture::{Fixture, START};
use super::images::{Choice, Images, Limits};
use super::known::{Known, StateId};
use super::machine::Machine;
use super::oracle::{Oracle, Still, Verdict, options};
use super::report::{Counterexample, Summary, lines};
use super::state::{Expected, Promise, State};
use super::workload::{Op, Workload, act};
use crate::random::Random;
use crate::region;

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

/// What may be found at a moment.
struct Allowed<'a> {
    before: Option<&'a Expected>,
    promise: &'a Promise,
    after: &'a Expected,
    /// What the operation was on its way to, where it was refused for want of
    /// space.
    aim: Option<&'a Expected>,
}

impl Allowed<'_> {
    fn explains(&self, found: &State) -> bool {
        match self.before {
            Some(b) => {
                let aim = self.aim.unwrap_or(self.after);
                b.is(found) || self.after.is(found) || self.promise.allows(b, found, aim)
            }
            None => self.after.is(found),
        }
    }

    fn differences(&self, found: &State) -> String {
        let mut text = String::new();
        if let Some(b) = self.before {
            text += &format!("--- against the state before:\n{}", b.differences(found));
        }
        text + &format!(
            "--- against the state after:\n{}",
            self.after.differences(found)
        )
    }
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
            block_size: self.job.fixture.block_size,
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
        let wrong = |e: &dyn std::fmt::Display| e.to_string();
        let clock = Still::at(START + 1000);
        let mount_options = MountOptions {
            rules: Rules {
                inode_batches: false,
                ..self.settings.rules
            },
            ..options(&clock)
        };
        let sim = SimBackend::from_image(&fixture.image)
            .map_err(|e| self.failure(&at, vec![], wrong(&e)))?;
        sim.recording(true);
        let fs =
            region::mount(&sim, mount_options).map_err(|e| self.failure(&at, vec![], wrong(&e)))?;
        let mut machine = Machine::new(fixture.image.to_vec());
        let mut f = fixture.follower.clone();
        let mut now = START + 1000;
        for (i, &(op, lane)) in w.steps.iter().enumerate() {
            let last = i + 1 == w.steps.len();
            let op = &self.job.ops[op];
            let Some(actions) = op.actions(&f) else {
                return Ok(false);
            };
            for (j, action) in actions.iter().enumerate() {
                now += 1;
                clock.set(now);
                f.model.now = pramfs::inode::Time { sec: now, nsec: 7 };
                machine.run_all(&sim.take_record());
                let before = match last {
                    true => Some(self.expected(&fs, &f, &machine, &at)?),
                    false => None,
                };
                let promise = action.promise(&f);
                let acted = on_lane(lane, || act(&fs, &mut f, action));
                let refused = match acted {
                    Ok(done) => !done,
                    Err(e) => {
                        let e = format!("{} goes wrong: {e}", op.name);
                        return Err(self.failure(&at, vec![], e));
                    }
                };
                let events = sim.take_record();
                self.counts.refused += u64::from(last && refused);
                let Some(before) = before else {
                    machine.run_all(&events);
                    continue;
                };
                let what = if actions.len() > 1 {
                    format!("{}, call {}", op.name, j + 1)
                } else {
                    op.name.to_owned()
                };
                let what = if refused {
                    format!("{what} (refused)")
                } else {
                    what
                };
                // What is there when it has returned is known only now.
                let mut end = machine.clone();
                end.run_all(&events);
                if op.map {
                    end.shadow(&sim.image(), u64::MAX, 0);
                }
                let after = self.expected(&fs, &f, &end, &at)?;
                f.compare(&fs)
                    .map_err(|e| self.failure(&at, vec![], format!("before any crash: {e}")))?;
                let aim =
                    (refused && fixture.full).then(|| promise.aim(&before, action, f.model.now));
                let allowed = Allowed {
                    before: Some(&before),
                    promise: &promise,
                    after: &after,
                    aim: aim.as_ref(),
                };
                let fences = events.iter().filter(|e| e.kind == EventKind::Fence).count();
                let mut fence = 0;
                for e in &events {
                    if e.kind == EventKind::Fence {
                        fence += 1;
                        at.moment = format!("before fence {fence} of {fences} of \"{what}\"");
                        at.number += 1;
                        self.point(&machine, &allowed, &at)?;
                    }
                    machine.run(e);
                }
                machine = end;
                at.moment = format!("after \"{what}\" has returned");
                at.number += 1;
                let returned = Allowed {
                    before: op.lossy.then_some(&before),
                    aim: None,
                    ..allowed
                };
                self.point(&machine, &returned, &at)?;
            }
        }
        // What the mount would do when it is dropped is not part of the run.
        sim.recording(false);
        Ok(true)
    }

    /// What the file system shows now, by itself and from an image of it.
    fn expected(
        &mut self,
        fs: &Fs,
        f: &crate::model::Follower,
        machine: &Machine,
        at: &At<'_>,
    ) -> Result<Expected, Stopped> {
        let fail = |me: &Self, e: String| me.failure(at, vec![], e);
        let live = State::of(fs).map_err(|e| fail(self, e.to_string()))?;
        let everything = Machine::new(machine.current().to_vec());
        let base = self.oracle.set_base(machine.current());
        let images = Images::new(&everything, base, self.settings.limits.torn);
        let verdict = self.oracle.judge(&images, &[]);
        let verdict = verdict.map_err(|e| fail(self, format!("without loss of any store: {e}")))?;
        let found = self.oracle.known().state(verdict.state);
        if let Some(did) = verdict.recovery {
            let whole = Recovery {
                image: machine.current().to_vec(),
                did,
                state: verdict.state,
            };
            let failed = self.again().crash(whole, at).err();
            failed.map_or(Ok(()), |f| Err(self.second_failure(at, f)))?;
        }
        let expected = Expected {
            // What is allocated past the end shows only there.
            state: State {
                pieces: found.pieces.clone(),
                ..live
            },
            lag: f.lag(),
        };
        if !expected.is(&found) {
            let text = expected.differences(&found);
            return Err(fail(
                self,
                format!("recovery without loss of any store:\n{text}"),
            ));
        }
        Ok(expected)
    }

    /// The power fails.
    fn point(
        &mut self,
        machine: &Machine,
        allowed: &Allowed<'_>,
        at: &At<'_>,
    ) -> Result<(), Stopped> {
        let base = self.oracle.set_base(machine.durable());
        let images = Images::new(machine, base, self.settings.limits.torn);
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
            match judge(oracle, &images, choice, allowed, &mut judged) {
                Ok(verdict) => {
                    distinct += u64::from(verdict.new);
                    let Some(did) = verdict.recovery else {
                        return true;
                    };
                    let recovery = Recovery {
                        image: image_of(machine.durable(), &images, choice),
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
        self.counts.points += 1;
        self.counts.images += built;
        self.counts.distinct += distinct;
        self.counts.covered(how, images.lines.len());
        if let Some((choice, problem)) = failed {
            let simpler = self.simplify(&images, choice, problem, &mut |oracle, choice| {
                judge(oracle, &images, choice, allowed, &mut HashMap::new()).err()
            });
            let (choice, problem) = simpler;
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

/// Runs on a thread that uses a lane; the calling thread has lane 0.
fn on_lane<T: Send>(lane: u32, run: impl FnOnce() -> T + Send) -> T {
    if lane == 0 {
        return run();
    }
    std::thread::scope(|s| {
        let thread = s.spawn(|| {
            set_thread_lane(lane);
            run()
        });
        match thread.join() {
            Ok(r) => r,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
