//! Ends a test that hangs.
//!
//! A deadlock would otherwise stop the whole run without a word. The watchdog
//! says what was going on, how to look at the threads, and aborts the process.
//!
//! Limits are those of an idle machine. On one that is busy the same work takes
//! longer by the clock, but no more time of the processor: so a test is ended when
//! it has used that up, or (what waits uses none) when `WAITING` times as long has
//! gone by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How many times longer than on an idle machine a test may take that waits.
const WAITING: u32 = 10;

/// Aborts the process unless it is dropped, or [`touch`](Watchdog::touch)ed,
/// in time.
#[derive(Debug)]
pub struct Watchdog {
    progress: Arc<AtomicU64>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the process has used of its processors.
fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

impl Watchdog {
    /// Watches over `what`: the process ends when nothing was reported for
    /// `timeout`.
    pub fn new(what: &str, timeout: Duration) -> Watchdog {
        let progress = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = channel::<()>();
        let (seen_by_thread, what) = (Arc::clone(&progress), what.to_owned());
        let thread = std::thread::spawn(move || {
            // Each processor counts on its own.
            let share = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
            let (mut seen, mut waited, mut since) = (0, 0, processor_time());
            while stopped.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
                let now = seen_by_thread.load(Ordering::Relaxed);
                if now != seen {
                    (seen, waited, since) = (now, 0, processor_time());
                    continue;
                }
                waited += 1;
                if waited >= WAITING || processor_time() - since >= timeout * share {
                    eprintln!(
                        "watchdog: {what}: nothing has happened for {:?} (a deadlock?).\n\
                         To see where the threads stand, run it again and, while it hangs:\n\
                         \x20 gdb -p PID -batch -ex 'thread apply all bt'",
                        timeout * waited
                    );
                    std::process::abort();
                }
            }
        });
        Watchdog {
            progress,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Reports progress.
    pub fn touch(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}
