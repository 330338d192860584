//! The serving threads of a transport.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{Builder, JoinHandle};

/// Threads whose ends are awaited together. If one fails, the others cannot replace it: a
/// request that it had would never be answered.
#[derive(Debug)]
pub(super) struct Threads {
    all: Vec<JoinHandle<()>>,
    report: Sender<io::Result<()>>,
    reports: Receiver<io::Result<()>>,
}

impl Threads {
    pub(super) fn new() -> Threads {
        let (report, reports) = mpsc::channel();
        Threads {
            all: Vec::new(),
            report,
            reports,
        }
    }

    /// Starts one.
    ///
    /// # Errors
    /// The limit of threads.
    pub(super) fn start(
        &mut self,
        name: String,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let report = self.report();
        let thread = Builder::new().name(name).spawn(move || report.of(work))?;
        self.adopt(thread);
        Ok(())
    }

    /// Adds a thread that was started otherwise, and reports its end.
    pub(super) fn adopt(&mut self, thread: JoinHandle<()>) {
        self.all.push(thread);
    }

    /// Returns what such a thread reports by.
    pub(super) fn report(&self) -> Report {
        Report(Some(self.report.clone()))
    }

    /// Waits until all have ended, or one has failed; the others go on then, and the caller
    /// ends the process or the connection.
    ///
    /// # Errors
    /// That of the first thread that fails.
    pub(super) fn wait(self) -> io::Result<()> {
        drop(self.report);
        for result in &self.reports {
            result?;
        }
        for thread in self.all {
            // It has reported, so it has not panicked.
            let _ended = thread.join();
        }
        Ok(())
    }
}

/// Reports the end of a thread. One that is dropped reports a failure.
#[derive(Debug)]
pub(super) struct Report(Option<Sender<io::Result<()>>>);

impl Report {
    /// Works, and reports the result, or a panic.
    pub(super) fn of(mut self, work: impl FnOnce() -> io::Result<()>) {
        let ended = catch_unwind(AssertUnwindSafe(work));
        let panicked = |_| Err(io::Error::other("a serving thread panicked"));
        self.send(ended.unwrap_or_else(panicked));
    }

    fn send(&mut self, result: io::Result<()>) {
        if let Some(report) = self.0.take() {
            // Nobody listens after the first failure.
            let _unheard = report.send(result);
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.send(Err(io::Error::other(
            "a serving thread has ended too early",
        )));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_or_panicked_thread_ends_the_wait() {
        let (end, ended) = mpsc::channel::<()>();
        let mut threads = Threads::new();
        let waits = move || {
            let _closed = ended.recv();
            Ok(())
        };
        threads.start("waits".into(), waits).unwrap();
        threads
            .start("fails".into(), || Err(io::ErrorKind::NotFound.into()))
            .unwrap();
        assert_eq!(threads.wait().unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(end);
        let threads = Threads::new();
        drop(threads.report());
        assert!(
            threads
                .wait()
                .unwrap_err()
                .to_string()
                .contains("too early")
        );
        let mut threads = Threads::new();
        threads
            .start("panics".into(), || panic!("on purpose"))
            .unwrap();
        assert!(threads.wait().unwrap_err().to_string().contains("panicked"));
    }

    #[test]
    fn all_threads_have_ended_after_the_wait() {
        let ended = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let mut threads = Threads::new();
        for _ in 0..3 {
            let ended = std::sync::Arc::clone(&ended);
            let count = move || {
                ended.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                Ok(())
            };
            threads.start("counts".into(), count).unwrap();
        }
        threads.wait().unwrap();
        assert_eq!(ended.load(std::sync::atomic::Ordering::SeqCst), 3);
    }
}
