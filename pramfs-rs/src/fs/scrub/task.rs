//! The thread of a scrub.
//!
//! The thread keeps the policy and priority of its process: an idle thread that is preempted
//! while it holds the lock of a file would stop everybody who needs the file. The limit keeps it
//! small.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::fs::Engine;
use crate::fs::scrub::finding::ScrubFinding;
use crate::fs::scrub::run::{Order, Progress, ScrubHost, ScrubOptions};
use crate::fs::scrub::verify::Checksums;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::scrub::status_of;
use pramfs_medium::pmem::ScrubStatus;
use pramfs_medium::sync::{Condvar, Mutex, rank};

/// Findings that stay in memory, for the program that started the scrub.
const FINDINGS: usize = 1000;

/// What the thread and those who ask share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State, rank::Leaf>,
    /// The order or the end has changed.
    changed: Condvar,
    options: ScrubOptions,
    start: Instant,
}

#[derive(Debug, Default)]
struct State {
    order: Order,
    progress: Option<Progress>,
    findings: Vec<ScrubFinding>,
    /// The errno that ended it, 0 = none; `None`: it runs.
    ended: Option<i32>,
    took: Duration,
}

impl ScrubHost for Shared {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wait(&self, at_most: Option<Duration>) -> Order {
        let until = at_most.map(|time| Instant::now() + time);
        let mut state = self.state.lock();
        while let Some(rest) = until.and_then(|until| until.checked_duration_since(Instant::now()))
            && state.order == Order::GoOn
            && !rest.is_zero()
        {
            // After a spurious wakeup the rest is waited for.
            let _in_time = self.changed.wait_for(&mut state, rest);
        }
        state.order
    }

    fn show(&self, progress: &Progress, found: &[ScrubFinding]) {
        let mut state = self.state.lock();
        state.progress = Some(*progress);
        let room = FINDINGS.saturating_sub(state.findings.len());
        state.findings.extend(found.iter().take(room).cloned());
    }
}

/// A scrub in a thread of its own, running or ended.
#[derive(Debug)]
pub(crate) struct ScrubTask {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ScrubTask {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread.
    pub(crate) fn start(engine: &Arc<Engine>, options: ScrubOptions) -> Result<ScrubTask> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::default(),
            options,
            start: Instant::now(),
        });
        let (engine, of) = (engine.clone(), shared.clone());
        let work = move || {
            let ended = Ended(&of);
            let done = engine.run_scrub(options, &Checksums, &*of);
            // Before those who wait for the end may close the file system.
            drop(engine);
            let errno = done.as_ref().map_or_else(Error::errno, |_| 0);
            if let Err(e) = done {
                tracing::warn!(error = %e, "the scrub ended early");
            }
            ended.with(errno);
        };
        let thread = std::thread::Builder::new()
            .name("pramfs-scrub".into())
            .spawn(work)
            .map_err(|e| Error::io_failed("cannot start the thread of a scrub", e))?;
        Ok(ScrubTask {
            shared,
            thread: Some(thread),
        })
    }

    /// Whether it runs.
    pub(crate) fn is_running(&self) -> bool {
        self.shared.state.lock().ended.is_none()
    }

    fn order(&self, order: Order) {
        self.shared.state.lock().order = order;
        self.shared.changed.notify_all();
    }

    /// Orders it to stop. It stops soon.
    pub(crate) fn cancel(&self) {
        self.order(Order::Cancel);
    }

    /// Interrupts it, and waits for its end.
    pub(crate) fn stop(mut self) {
        if self.is_running() {
            self.order(Order::Interrupt);
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a scrub panicked");
        }
    }

    /// Returns something to wait for its end by, which does not hold the task.
    pub(crate) fn waiter(&self) -> impl FnOnce(Duration) + use<> {
        let shared = self.shared.clone();
        move |at_most| {
            let mut state = shared.state.lock();
            if state.ended.is_none() {
                // The caller looks again.
                let _in_time = shared.changed.wait_for(&mut state, at_most);
            }
        }
    }

    /// Returns a finding by its number.
    pub(crate) fn finding(&self, number: usize) -> Option<ScrubFinding> {
        self.shared.state.lock().findings.get(number).cloned()
    }

    /// Returns how far it is; `None` before its first step.
    pub(crate) fn status(&self) -> Option<ScrubStatus> {
        let state = self.shared.state.lock();
        let progress = state.progress?;
        let elapsed = match state.ended {
            Some(_) => state.took,
            None => self.shared.start.elapsed(),
        };
        Some(ScrubStatus {
            running: state.ended.is_none(),
            limit: self.shared.options.limit.unwrap_or(0),
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            run_done: progress.run_done,
            total: progress.total,
            errno: state.ended.unwrap_or(0).unsigned_abs(),
            ..status_of(&progress.record)
        })
    }
}

/// Notes the end of the thread, also if it panics.
struct Ended<'a>(&'a Shared);

impl Ended<'_> {
    fn with(self, errno: i32) {
        self.note(errno);
        std::mem::forget(self);
    }

    fn note(&self, errno: i32) {
        let mut state = self.0.state.lock();
        state.took = self.0.start.elapsed();
        state.ended = Some(errno);
        self.0.changed.notify_all();
    }
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.note(libc::EIO);
    }
}
