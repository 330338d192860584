//! Keeps a client on its processor while it waits for a reply.
//!
//! A reply wakes the client while the thread that sent it still runs. So the scheduler moves
//! the client to another processor that is idle, which costs an interrupt and a wake-up from
//! sleep, and the next request comes by that processor's queue. But a processor that runs only
//! threads with the policy `SCHED_IDLE` counts as idle: the client stays, and runs at once. On
//! two processors a request takes half as long ([`docs/architecture.md`], Transports).
//!
//! The price: such a thread has to wait if a program computes on its processor. So a thread
//! yields only while it serves, and a watcher looks every [`TICK`]. One that is often ready to
//! run, but has not finished a request since the last look, gets the usual policy for a while.
//! That is also right for a thread that works long on one request.
//!
//! Invariant: the watcher sets the policy of living threads only. A thread leaves the table
//! before it ends, and the watcher holds the lock of the table while it sets.
//!
//! [`docs/architecture.md`]: ../../../../docs/architecture.md

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pramfs_kernel_sys::scheduling::{Policy, has_usual_policy, set_policy, thread_number};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How often the watcher looks.
const TICK: Duration = Duration::from_millis(4);

/// A thread stops to yield after this many looks without a request.
const QUIET: u32 = 50;

/// What a look adds to a thread's score that finds it ready to run with the same request, and
/// the score at which it stops to yield. Each other look subtracts one. So two such looks in
/// succession suffice, or one of eight for a while.
const READY: u32 = 8;
const ENOUGH: u32 = 2 * READY;

/// How long a thread that had to wait keeps the usual policy: at first, and at most, if it has
/// to wait again and again.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(16);

/// The limit on niceness with which a thread of niceness 0 may leave `SCHED_IDLE`.
const NICE_0: u64 = 20;

/// Lets threads of this process return from `SCHED_IDLE` to the usual policy, without a
/// capability. Needs CAP_SYS_RESOURCE.
///
/// # Errors
/// EPERM.
pub(in crate::transport) fn permit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nice);
    let raised = |limit: Option<u64>| limit.map(|limit| limit.max(NICE_0));
    let wanted = Rlimit {
        current: raised(limit.current),
        maximum: raised(limit.maximum),
    };
    Ok(setrlimit(Resource::Nice, wanted)?)
}

/// Tries in a thread of its own whether a thread of this process yields and returns. A
/// capability in another user namespace does not count, which only a trial shows.
fn is_permitted() -> bool {
    let there_and_back = || -> io::Result<()> {
        if !has_usual_policy()? {
            return Err(io::Error::other("the server has another policy"));
        }
        set_policy(0, Policy::Idle)?;
        set_policy(0, Policy::Other)
    };
    let tried = std::thread::Builder::new()
        .spawn(there_and_back)
        .and_then(|thread| {
            let panicked = |_| Err(io::Error::other("a trial panicked"));
            thread.join().unwrap_or_else(panicked)
        });
    match tried {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!("the serving threads do not yield: {error}");
            false
        }
    }
}

/// What the watcher knows of a serving thread.
#[derive(Debug)]
struct Look {
    number: i32,
    /// Shows whether it is ready to run.
    state: File,
    /// Requests that it has finished, and how many it had at the last look.
    finished: Arc<AtomicU64>,
    seen: u64,
    mode: Mode,
    pause: Duration,
    /// When it last stopped to yield because it had to wait.
    waited: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// It has the usual policy, at least until then.
    Usual(Option<Instant>),
    /// It yields.
    Yields { quiet: u32, score: u32 },
    /// It was to stop yielding, which failed and is tried again then.
    Stuck(Instant),
    /// It does not yield any more, because a change of its policy has failed.
    Never,
}

impl Mode {
    /// Whether the thread has the idle policy.
    fn yields(self) -> bool {
        matches!(self, Mode::Yields { .. } | Mode::Stuck(_))
    }
}

impl Look {
    fn new(number: i32, state: File, finished: Arc<AtomicU64>) -> Look {
        Look {
            number,
            state,
            finished,
            seen: 0,
            mode: Mode::Usual(None),
            pause: SHORT,
            waited: None,
        }
    }

    /// Whether it runs or is ready to.
    fn is_ready(&self) -> bool {
        let mut text = [0; 128];
        let n = self.state.read_at(&mut text, 0).unwrap_or(0);
        is_ready(&text[..n])
    }

    /// Sets the policy that a mode means. Returns the mode that it has then.
    fn set(&self, mode: Mode, now: Instant) -> Mode {
        let (policy, otherwise) = match mode {
            Mode::Yields { .. } => (Policy::Idle, Mode::Never),
            _ => (Policy::Other, Mode::Stuck(now + SHORT)),
        };
        match set_policy(self.number, policy) {
            Ok(()) => mode,
            Err(error) => {
                if !matches!(self.mode, Mode::Stuck(_)) {
                    let number = self.number;
                    tracing::warn!("thread {number} keeps its scheduling policy: {error}");
                }
                otherwise
            }
        }
    }

    /// Looks, and sets the policy. Returns whether the thread serves.
    fn again(&mut self, now: Instant) -> bool {
        let finished = self.finished.load(Ordering::Relaxed);
        let serves = finished != self.seen;
        self.seen = finished;
        let is_ready = matches!(self.mode, Mode::Yields { .. }) && !serves && self.is_ready();
        let mode = self.next(now, serves, is_ready);
        self.mode = match (self.mode.yields(), mode.yields()) {
            (false, false) | (true, true) => mode,
            _ => self.set(mode, now),
        };
        serves || self.mode.yields()
    }

    /// Returns the next mode of a thread that has finished a request since the last look, or is
    /// ready to run.
    fn next(&mut self, now: Instant, serves: bool, is_ready: bool) -> Mode {
        let (quiet, score) = match self.mode {
            Mode::Usual(Some(until)) if now < until => return self.mode,
            Mode::Usual(_) if serves => (0, 0),
            Mode::Usual(_) => return Mode::Usual(None),
            Mode::Stuck(until) if now < until => return self.mode,
            Mode::Stuck(_) | Mode::Never => return Mode::Never,
            Mode::Yields { quiet, score } => (quiet, score),
        };
        let (quiet, score) = match (serves, is_ready) {
            (_, true) => (0, score + READY),
            (true, false) => (0, score.saturating_sub(1)),
            (false, false) => (quiet + 1, score.saturating_sub(1)),
        };
        if score >= ENOUGH {
            let soon = self
                .waited
                .is_some_and(|waited| now - waited < self.pause + SHORT);
            self.pause = if soon {
                (self.pause * 2).min(LONG)
            } else {
                SHORT
            };
            self.waited = Some(now);
            return Mode::Usual(Some(now + self.pause));
        }
        match quiet {
            QUIET.. => Mode::Usual(None),
            _ => Mode::Yields { quiet, score },
        }
    }
}

/// Whether the beginning of `/proc/PID/stat` shows the state R, which follows the name.
fn is_ready(text: &[u8]) -> bool {
    let name_end = text.iter().rposition(|byte| *byte == b')');
    name_end.is_some_and(|end| text.get(end + 2) == Some(&b'R'))
}

/// The table of threads that may yield.
#[derive(Debug)]
pub(super) struct Yielding {
    permitted: bool,
    looks: Mutex<Vec<Look>>,
    /// The watcher looks.
    watched: AtomicBool,
    watcher: Mutex<Option<std::thread::Thread>>,
}

/// What a serving thread reports to. Dropped before the thread ends.
#[derive(Debug)]
pub(super) struct Reporter {
    all: Arc<Yielding>,
    number: i32,
    finished: Arc<AtomicU64>,
}

impl Reporter {
    /// Reports a request that has come.
    pub(super) fn begins(&self) {
        if !self.all.watched.load(Ordering::Relaxed) {
            self.all.wake_watcher();
        }
    }

    /// Reports that it is finished.
    pub(super) fn ends(&self) {
        self.finished.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        // What is left to do should not wait, nor should a lock that this takes. Once more when
        // the watcher knows the thread no longer.
        let usual = || set_policy(0, Policy::Other);
        let before = usual();
        self.all.looks().retain(|look| look.number != self.number);
        if let Err(error) = before.and_then(|()| usual()) {
            tracing::debug!("a thread ends with the idle policy: {error}");
        }
    }
}

impl Yielding {
    pub(super) fn new() -> Arc<Yielding> {
        Arc::new(Yielding {
            permitted: is_permitted(),
            looks: Mutex::default(),
            watched: AtomicBool::new(false),
            watcher: Mutex::default(),
        })
    }

    fn looks(&self) -> MutexGuard<'_, Vec<Look>> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the calling thread, which yields while it serves. Returns `None` if it could not
    /// stop to.
    pub(super) fn join(self: &Arc<Yielding>) -> Option<Reporter> {
        if !self.permitted {
            return None;
        }
        let number = thread_number();
        let state = File::open(format!("/proc/self/task/{number}/stat"))
            .inspect_err(|error| tracing::debug!("a thread does not yield: {error}"))
            .ok()?;
        let finished = Arc::new(AtomicU64::new(0));
        let look = Look::new(number, state, Arc::clone(&finished));
        self.looks().push(look);
        Some(Reporter {
            all: Arc::clone(self),
            number,
            finished,
        })
    }

    fn wake_watcher(&self) {
        if !self.watched.swap(true, Ordering::Relaxed) {
            let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(watcher) = &*watcher {
                watcher.unpark();
            }
        }
    }

    /// Starts the watcher. Without it, no thread yields.
    pub(super) fn watch(self: &Arc<Yielding>) -> Option<Watcher> {
        if !self.permitted {
            return None;
        }
        let (all, ended) = (Arc::clone(self), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::Builder::new().name("yielding".into()).spawn({
            let ended = Arc::clone(&ended);
            move || all.look_until(&ended)
        });
        match thread {
            Ok(thread) => {
                let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
                *watcher = Some(thread.thread().clone());
                Some(Watcher { thread, ended })
            }
            Err(error) => {
                tracing::warn!("the serving threads do not yield: {error}");
                None
            }
        }
    }

    fn look_until(&self, ended: &AtomicBool) {
        let mut quiet = QUIET;
        while !ended.load(Ordering::Relaxed) {
            // No thread yields by now.
            if quiet > QUIET {
                self.watched.store(false, Ordering::Relaxed);
                // A request that came meanwhile has woken this thread, or does so now.
                while !self.watched.load(Ordering::Relaxed) && !ended.load(Ordering::Relaxed) {
                    std::thread::park();
                }
                quiet = 0;
            }
            std::thread::sleep(TICK);
            let now = Instant::now();
            let mut serves = false;
            for look in &mut *self.looks() {
                serves |= look.again(now);
            }
            quiet = if serves { 0 } else { quiet + 1 };
        }
    }
}

/// Looks at the threads until it is told to end.
#[derive(Debug)]
pub(super) struct Watcher {
    thread: JoinHandle<()>,
    ended: Arc<AtomicBool>,
}

impl Watcher {
    /// Ends it, after the threads.
    pub(super) fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        if self.thread.join().is_err() {
            tracing::warn!("the thread that watches yielding threads panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_follows_the_name() {
        assert!(is_ready(b"12 (fuse-0) R 1 12"));
        assert!(is_ready(b"12 (a) S) R 1 12"));
        assert!(!is_ready(b"12 (fuse-0) S 1 12"));
        assert!(!is_ready(b""));
    }

    fn look() -> Look {
        let state = File::open("/dev/null").unwrap();
        Look::new(0, state, Arc::default())
    }

    /// Looks with these findings; returns the modes.
    fn modes(look: &mut Look, from: Instant, findings: &[(bool, bool)]) -> Vec<bool> {
        let mut now = from;
        let each = findings.iter().map(|(serves, is_ready)| {
            now += TICK;
            look.mode = look.next(now, *serves, *is_ready);
            matches!(look.mode, Mode::Yields { .. })
        });
        each.collect()
    }

    const SERVES: (bool, bool) = (true, false);
    const READY_ONLY: (bool, bool) = (false, true);
    const SLEEPS: (bool, bool) = (false, false);

    #[test]
    fn thread_yields_while_it_serves() {
        let (mut look, now) = (look(), Instant::now());
        assert_eq!(
            modes(&mut look, now, &[SLEEPS, SERVES, SERVES]),
            [false, true, true]
        );
        let mut quiet = vec![SLEEPS; QUIET as usize];
        let yields = modes(&mut look, now, &quiet);
        assert!(yields[..QUIET as usize - 1].iter().all(|yields| *yields));
        assert!(!yields[QUIET as usize - 1]);
        quiet.push(SERVES);
        assert_eq!(modes(&mut look, now, &quiet).last(), Some(&true));
    }

    #[test]
    fn thread_that_has_to_wait_stops_yielding_for_longer_each_time() {
        let (mut look, mut now) = (look(), Instant::now());
        for pause in [SHORT, SHORT * 2, SHORT * 4, SHORT * 8, LONG, LONG] {
            let found = [SERVES, READY_ONLY, READY_ONLY];
            assert_eq!(modes(&mut look, now, &found), [true, true, false]);
            now += 3 * TICK;
            assert_eq!(look.mode, Mode::Usual(Some(now + pause)));
            assert_eq!(modes(&mut look, now, &[SERVES]), [false]);
            now += pause;
        }
        // After a long time without a wait, it starts again with a short one.
        now += 2 * LONG;
        modes(&mut look, now, &[SERVES, READY_ONLY, READY_ONLY]);
        assert_eq!(look.mode, Mode::Usual(Some(now + 3 * TICK + SHORT)));
    }

    /// A thread whose policy cannot be set: there is none of this number.
    #[test]
    fn thread_whose_policy_cannot_be_set_is_left_alone() {
        let (mut look, mut now) = (look(), Instant::now());
        look.number = i32::MAX;
        look.finished.store(1, Ordering::Relaxed);
        assert!(look.again(now));
        assert_eq!(look.mode, Mode::Never);
        look.mode = Mode::Yields {
            quiet: QUIET,
            score: 0,
        };
        assert!(look.again(now), "it may have the idle policy");
        assert_eq!(look.mode, Mode::Stuck(now + SHORT));
        now += SHORT;
        assert!(look.again(now));
        assert_eq!(look.mode, Mode::Stuck(now + SHORT));
        look.number = 0;
        now += SHORT;
        assert!(!look.again(now));
        assert_eq!(look.mode, Mode::Never);
    }

    #[test]
    fn thread_that_often_waits_a_little_stops_yielding() {
        let (mut look, now) = (look(), Instant::now());
        let one_of = |n: usize| -> Vec<_> {
            let found = |i: usize| if i % n == 1 { READY_ONLY } else { SERVES };
            (0..1000).map(found).collect()
        };
        assert!(modes(&mut look, now, &one_of(4)).contains(&false));
        look.mode = Mode::Usual(None);
        assert!(!modes(&mut look, now, &one_of(16))[1..].contains(&false));
    }

    fn policy_of(number: i32) -> String {
        let text = std::fs::read_to_string(format!("/proc/self/task/{number}/stat")).unwrap();
        let after_name = text.rsplit_once(')').unwrap().1;
        // Field 41; the state after the name is field 3.
        let policy = after_name.split_whitespace().nth(41 - 3);
        policy.unwrap().to_owned()
    }

    /// A thread serves, then computes without finishing a request.
    #[test]
    fn watcher_sets_the_policies_of_a_thread() {
        let yielding = Yielding::new();
        if !yielding.permitted {
            return pramfs_tests::skip::skipped("needs CAP_SYS_NICE");
        }
        let (serves, stop) = (
            Arc::new(AtomicBool::new(true)),
            Arc::new(AtomicBool::new(false)),
        );
        let (number, has_number) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let (yielding, serves, stop) = (
                Arc::clone(&yielding),
                Arc::clone(&serves),
                Arc::clone(&stop),
            );
            move || {
                let reporter = yielding.join().unwrap();
                number.send(thread_number()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    reporter.begins();
                    if serves.load(Ordering::Relaxed) {
                        reporter.ends();
                    }
                }
            }
        });
        let number = has_number.recv().unwrap();
        let becomes = |policy: Policy| {
            let policy = policy.number().to_string();
            pramfs_tests::mounted::wait_until(|| policy_of(number) == policy)
        };
        assert!(becomes(Policy::Other));
        let watcher = yielding.watch().unwrap();
        let yielded = becomes(Policy::Idle);
        serves.store(false, Ordering::Relaxed);
        let stopped = becomes(Policy::Other);
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        assert!(yielding.looks().is_empty());
        watcher.end();
        assert!(yielded && stopped);
    }
}
