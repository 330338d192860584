//! The serving threads of a transport.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Threads whose ends are awaited together. If one fails, the others cannot replace it: a
/// request that it had would never be answered.
pub(super) struct Threads {
    all: Vec<JoinHandle<()>>,
    report: Sender<Said>,
    reports: Receiver<Said>,
}

/// What a thread says to the one that waits.
enum Said {
    /// It has ended.
    Ended(io::Result<()>),
    /// It wants help, whose end is reported by this.
    Wanted(Arc<dyn Help>, Report),
}

/// What more threads do while there is much to do.
pub(super) trait Help: Send + Sync {
    /// Their name.
    fn name(&self) -> &'static str;

    /// Helps until there is nothing to do.
    fn help(&self);

    /// Does without a thread that cannot be started. The caller has other things to do.
    fn do_without(&self);
}

/// Asks for more threads. The thread that waits starts them, so that they get its processors and
/// policy, and not those of the one that asks.
pub(super) struct Starter(Sender<Said>);

impl Starter {
    /// Asks for one more.
    pub(super) fn start(&self, help: Arc<dyn Help>) {
        let report = Report(Some(self.0.clone()));
        // Nobody listens after the first failure.
        if let Err(mpsc::SendError(Said::Wanted(_, report))) =
            self.0.send(Said::Wanted(help, report))
        {
            report.cancel();
        }
    }
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

    /// Returns what asks for more of them.
    pub(super) fn starter(&self) -> Starter {
        Starter(self.report.clone())
    }

    /// Waits until all have ended, or one has failed; the others go on then, and the caller
    /// ends the process or the connection. Starts those that are asked for meanwhile.
    ///
    /// # Errors
    /// That of the first thread that fails.
    pub(super) fn wait(self) -> io::Result<()> {
        let Threads {
            mut all,
            report,
            reports,
        } = self;
        drop(report);
        for said in &reports {
            match said {
                Said::Ended(result) => result?,
                Said::Wanted(help, report) => {
                    // They come and go.
                    all.retain(|thread| !thread.is_finished());
                    all.extend(start_helper(help, report));
                }
            }
        }
        for thread in all {
            // It has reported, so it has not panicked.
            let _ended = thread.join();
        }
        Ok(())
    }
}

fn start_helper(help: Arc<dyn Help>, report: Report) -> Option<JoinHandle<()>> {
    // A closure that is not started is dropped, which must be no failure.
    let report = Arc::new(Mutex::new(Some(report)));
    let take = |report: &Mutex<Option<Report>>| {
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        report.take()
    };
    let started = Builder::new().name(help.name().to_owned()).spawn({
        let (help, report) = (Arc::clone(&help), Arc::clone(&report));
        move || {
            if let Some(report) = take(&report) {
                report.of(|| {
                    help.help();
                    Ok(())
                });
            }
        }
    });
    match started {
        Ok(thread) => Some(thread),
        Err(error) => {
            tracing::debug!("a helping thread cannot be started: {error}");
            if let Some(report) = take(&report) {
                report.cancel();
            }
            help.do_without();
            None
        }
    }
}

/// Reports the end of a thread. One that is dropped reports a failure.
pub(super) struct Report(Option<Sender<Said>>);

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
            let _unheard = report.send(Said::Ended(result));
        }
    }

    /// Reports nothing: there is no thread.
    fn cancel(mut self) {
        self.0 = None;
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
