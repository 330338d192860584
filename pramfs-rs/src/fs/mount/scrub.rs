//! The scrub of a mount: one at a time, in a thread that ends before the mount does.

use std::time::Duration;

use crate::fs::Fs;
use crate::fs::scrub::task::ScrubTask;
use crate::fs::scrub::{ScrubFinding, ScrubOptions};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::media::scrub::status_of;
use pramfs_medium::pmem::ScrubStatus;

impl Fs {
    /// Starts to read everything in the region against its checksums, in a thread of its own.
    /// Programs work meanwhile. What it finds is logged, and is kept in the file system; nothing
    /// is repaired. The end of the mount interrupts it, and a later scrub may go on there.
    ///
    /// ```
    /// use pramfs::format::{FormatOptions, format};
    /// use pramfs::pmem::{HeapBackend, Region};
    /// use pramfs::{inode::{Fs, ScrubOptions}, MountOptions};
    /// use std::time::Duration;
    ///
    /// let region = Region::new("example", HeapBackend::boxed(4 << 20));
    /// format(&region, &FormatOptions::default())?;
    /// let fs = Fs::open(region, MountOptions::default())?;
    /// fs.start_scrub(ScrubOptions::default())?;
    /// while fs.wait_for_scrub(Duration::from_secs(1)).running {}
    /// assert_eq!(fs.scrub_status().findings, 0);
    /// fs.close()?;
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    ///
    /// # Errors
    /// EBUSY while a scrub runs; EIO on a file system that is closed or has failed.
    pub fn start_scrub(&self, options: ScrubOptions) -> Result<()> {
        if !self.is_up() {
            return Err(self.ended());
        }
        let mut task = self.scrub.lock();
        if task.as_ref().is_some_and(ScrubTask::is_running) {
            return Err(Error::Busy(
                "a scrub runs already; cancel it, or wait for its end".into(),
            ));
        }
        if let Some(ended) = task.take() {
            ended.stop();
        }
        *task = Some(ScrubTask::start(self.engine(), options)?);
        Ok(())
    }

    /// Returns how far the scrub is, or how the last one ended, and what was found.
    pub fn scrub_status(&self) -> ScrubStatus {
        let task = self.scrub.lock();
        let status = match &*task {
            Some(task) => task.status().unwrap_or_else(|| ScrubStatus {
                running: task.is_running(),
                ..ScrubStatus::default()
            }),
            None => self
                .scrub_record()
                .map_or_else(ScrubStatus::default, |record| ScrubStatus {
                    total: record.done,
                    ..status_of(&record)
                }),
        };
        ScrubStatus {
            kept: self.keeps_scrubs(),
            ..status
        }
    }

    /// As [`scrub_status`](Self::scrub_status), after the end of the scrub, or after `at_most`.
    /// May return early.
    pub fn wait_for_scrub(&self, at_most: Duration) -> ScrubStatus {
        let waiter = self.scrub.lock().as_ref().map(ScrubTask::waiter);
        if let Some(wait) = waiter {
            wait(at_most);
        }
        self.scrub_status()
    }

    /// Orders the scrub to stop. It stops soon. False if none runs.
    pub fn cancel_scrub(&self) -> bool {
        let task = self.scrub.lock();
        let running = task.as_ref().filter(|task| task.is_running());
        running.inspect(|task| task.cancel()).is_some()
    }

    /// Returns a finding of the scrub by its number, from 0. The first thousand of each scrub
    /// are kept in memory.
    pub fn scrub_finding(&self, number: usize) -> Option<ScrubFinding> {
        self.scrub.lock().as_ref()?.finding(number)
    }
}
