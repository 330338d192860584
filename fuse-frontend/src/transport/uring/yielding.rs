//! Keeps a client on its processor while it waits for a reply.
//!
//! A reply wakes the client while the thread that sent it still runs. So the scheduler moves
//! the client to another processor that is idle, which costs an interrupt and a wake-up from
//! sleep, and the next request comes by that processor's queue. But a processor that runs only
//! threads with the policy `SCHED_IDLE` counts as idle: the client stays, and runs at once. On
//! two processors a request takes half as long ([`docs/architecture.md`], Threads).
//!
//! The price: such a thread has to wait if a program computes on its processor. So threads
//! yield only while requests come, and a watcher looks at them every [`TICK`]. One that is ready
//! to run, but has not finished a request since the last look, gets the usual policy for a
//! while. That is also right for a thread that works long on one request.
//!
//! [`docs/architecture.md`]: ../../../../docs/architecture.md

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pramfs_kernel_sys::scheduling::{Policy, set_policy, thread_number};
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

/// How often the watcher looks.
const TICK: Duration = Duration::from_millis(4);

/// The watcher sleeps after this many looks without a request.
const QUIET: u32 = 50;

/// How long a thread that had to wait keeps the usual policy: at first, and at most, if it has
/// to wait again and again.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(16);

/// The limit on niceness with which a thread without CAP_SYS_NICE may do that.
const NICE_0: u64 = 20;

/// Whether a thread of this process may return from `SCHED_IDLE` to the usual policy.
fn is_permitted() -> bool {
    let has_right = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
    has_right
        || getrlimit(Resource::Nice)
            .current
            .is_none_or(|limit| limit >= NICE_0)
}

/// A thread that yields.
#[derive(Debug)]
struct Server {
    number: i32,
    /// Shows whether it is ready to run.
    state: File,
    /// Requests that it has finished.
    finished: Arc<AtomicU64>,
}

/// The threads that yield.
#[derive(Debug, Default)]
pub(super) struct Yielding {
    servers: Mutex<Vec<Server>>,
    /// The watcher looks.
    watched: AtomicBool,
    watcher: Mutex<Option<std::thread::Thread>>,
}

/// What a serving thread reports to.
#[derive(Debug)]
pub(super) struct Reporter {
    all: Arc<Yielding>,
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

impl Yielding {
    /// Adds the calling thread, which yields from now on while requests come. Returns `None` if
    /// it could never stop to.
    pub(super) fn join(self: &Arc<Yielding>) -> Option<Reporter> {
        if !is_permitted() {
            return None;
        }
        let number = thread_number();
        let state = File::open(format!("/proc/self/task/{number}/stat"))
            .inspect_err(|error| tracing::debug!("a thread does not yield: {error}"))
            .ok()?;
        let finished = Arc::new(AtomicU64::new(0));
        self.servers().push(Server {
            number,
            state,
            finished: Arc::clone(&finished),
        });
        Some(Reporter {
            all: Arc::clone(self),
            finished,
        })
    }

    fn servers(&self) -> std::sync::MutexGuard<'_, Vec<Server>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
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
        let servers = std::mem::take(&mut *self.servers());
        if servers.is_empty() {
            return None;
        }
        let all = Arc::clone(self);
        let ended = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("yielding".into()).spawn({
            let ended = Arc::clone(&ended);
            move || all.look_until(&servers, &ended)
        });
        match thread {
            Ok(thread) => {
                *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(thread.thread().clone());
                Some(Watcher { thread, ended })
            }
            Err(error) => {
                tracing::warn!("the threads do not yield: {error}");
                None
            }
        }
    }

    fn look_until(&self, servers: &[Server], ended: &AtomicBool) {
        let mut looks: Vec<Look<'_>> = servers.iter().map(Look::new).collect();
        let mut quiet = QUIET;
        while !ended.load(Ordering::Relaxed) {
            if quiet >= QUIET {
                // Nobody looks: the first request must not wait.
                looks.iter_mut().for_each(Look::stop);
                self.watched.store(false, Ordering::Relaxed);
                // A request that came meanwhile has woken this thread, or does so now.
                while !self.watched.load(Ordering::Relaxed) && !ended.load(Ordering::Relaxed) {
                    std::thread::park();
                }
                looks.iter_mut().for_each(Look::begin);
                quiet = 0;
            }
            std::thread::sleep(TICK);
            let now = Instant::now();
            let mut is_quiet = true;
            for look in &mut looks {
                is_quiet &= look.again(now);
            }
            quiet = if is_quiet { quiet + 1 } else { 0 };
        }
        looks.iter_mut().for_each(Look::stop);
    }
}

fn set(number: i32, policy: Policy) {
    if let Err(error) = set_policy(number, policy) {
        tracing::debug!("thread {number} keeps its policy: {error}");
    }
}

/// Looks at the threads until it is told to end.
#[derive(Debug)]
pub(super) struct Watcher {
    thread: JoinHandle<()>,
    ended: Arc<AtomicBool>,
}

impl Watcher {
    /// Ends it.
    pub(super) fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        if self.thread.join().is_err() {
            tracing::warn!("the thread that watches yielding threads panicked");
        }
    }
}

/// What the watcher knows of a thread.
struct Look<'s> {
    server: &'s Server,
    finished: u64,
    /// It was ready to run at the last look, and had the same request.
    was_ready: bool,
    /// It has the usual policy until then.
    usual_until: Option<Instant>,
    pause: Duration,
    /// When it was made to yield again.
    since: Option<Instant>,
}

impl Look<'_> {
    fn new(server: &Server) -> Look<'_> {
        Look {
            server,
            finished: 0,
            was_ready: false,
            usual_until: None,
            pause: SHORT,
            since: None,
        }
    }

    /// Makes the thread yield.
    fn begin(&mut self) {
        set(self.server.number, Policy::Idle);
    }

    /// Makes it not yield.
    fn stop(&mut self) {
        set(self.server.number, Policy::Other);
        self.usual_until = None;
        self.was_ready = false;
    }

    /// Looks, and sets the policy. Returns whether nothing happens.
    fn again(&mut self, now: Instant) -> bool {
        let finished = self.server.finished.load(Ordering::Relaxed);
        let moves = finished != self.finished;
        self.finished = finished;
        if let Some(until) = self.usual_until {
            if now >= until {
                self.begin();
                self.usual_until = None;
                self.since = Some(now);
            }
            return !moves;
        }
        let is_ready = !moves && self.server.is_ready();
        let waits = is_ready && self.was_ready;
        self.was_ready = is_ready;
        if waits {
            set(self.server.number, Policy::Other);
            let soon = self.since.is_some_and(|since| now - since < SHORT);
            self.pause = if soon {
                (self.pause * 2).min(LONG)
            } else {
                SHORT
            };
            self.usual_until = Some(now + self.pause);
            self.was_ready = false;
        }
        !moves && !is_ready
    }
}

impl Server {
    /// Whether it runs or is ready to.
    fn is_ready(&self) -> bool {
        let mut text = [0; 128];
        let n = self.state.read_at(&mut text, 0).unwrap_or(0);
        is_ready(&text[..n])
    }
}

/// Whether the beginning of `/proc/PID/stat` shows the state R, which follows the name.
fn is_ready(text: &[u8]) -> bool {
    let name_end = text.iter().rposition(|byte| *byte == b')');
    name_end.is_some_and(|end| text.get(end + 2) == Some(&b'R'))
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

    fn policy_of(number: i32) -> String {
        let text = std::fs::read_to_string(format!("/proc/self/task/{number}/stat")).unwrap();
        let after_name = text.rsplit_once(')').unwrap().1;
        // Field 41; the state after the name is field 3.
        after_name
            .split_whitespace()
            .nth(41 - 3)
            .unwrap()
            .to_owned()
    }

    /// A thread that computes without finishing a request gets the usual policy.
    #[test]
    fn thread_that_does_not_finish_stops_yielding() {
        if !is_permitted() {
            return pramfs_tests::skip::skipped("needs CAP_SYS_NICE");
        }
        let yielding = Arc::new(Yielding::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (number, has_number) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let (yielding, stop) = (Arc::clone(&yielding), Arc::clone(&stop));
            move || {
                let reporter = yielding.join().unwrap();
                number.send(thread_number()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    reporter.begins();
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
        let stopped = becomes(Policy::Other);
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        watcher.end();
        assert!(yielded && stopped);
    }
}
