//! Ends a test that hangs.
//!
//! A deadlock would otherwise stop the whole run without a word. The watchdog
//! says what was going on, how to look at the threads, and aborts the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Aborts the process unless it is dropped, or [`touch`](Watchdog::touch)ed,
/// in time.
#[derive(Debug)]
pub struct Watchdog {
    progress: Arc<AtomicU64>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches over `what`: the process ends when nothing was reported for
    /// `patience`.
    pub fn new(what: &str, patience: Duration) -> Watchdog {
        let progress = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = channel::<()>();
        let (seen_by_thread, what) = (Arc::clone(&progress), what.to_owned());
        let thread = std::thread::spawn(move || {
            let mut seen = 0;
            while stopped.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                let now = seen_by_thread.load(Ordering::Relaxed);
                if now == seen {
                    eprintln!(
                        "watchdog: {what}: nothing has happened for {patience:?} (a deadlock?).\n\
                         To see where the threads stand, run it again and, while it hangs:\n\
                         \x20 gdb -p PID -batch -ex 'thread apply all bt'"
                    );
                    std::process::abort();
                }
                seen = now;
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
