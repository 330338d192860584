//! Threads that serve the requests of one guest, so that a long one does not delay the others.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use super::guest::{self, Job};
use crate::transport::dev::buffer::Buffer;

/// The threads. They end after the pool: no one waits for them, because one of them may be the
/// last to use the guest.
pub(super) struct Pool(SyncSender<Job>);

impl Pool {
    /// Starts the threads.
    ///
    /// # Errors
    /// No memory or thread.
    pub(super) fn new(threads: usize) -> io::Result<Pool> {
        // What waits here is small, and has an entry in a queue.
        let (jobs, taken) = sync_channel(threads);
        let taken = Arc::new(Mutex::new(taken));
        for number in 0..threads {
            let (taken, mut buffer) = (Arc::clone(&taken), guest::buffer()?);
            let name = format!("virtiofs-{number}");
            let thread = Builder::new().name(name);
            thread.spawn(move || work(&taken, &mut buffer))?;
        }
        Ok(Pool(jobs))
    }

    /// Has a request served. Waits if all threads are busy and as many requests wait.
    pub(super) fn take(&self, job: Job) {
        if self.0.send(job).is_err() {
            tracing::error!("no thread of the pool is left");
        }
    }
}

fn work(jobs: &Mutex<Receiver<Job>>, buffer: &mut Buffer) {
    loop {
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(job) => job.serve(buffer),
            Err(_) => return,
        }
    }
}
