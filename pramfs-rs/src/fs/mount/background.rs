//! The background thread of a writable mount, called the timer.
//!
//! First it finishes the work that the last mount left: the removal of orphans, then
//! interrupted truncations. Then, twice a second, it:
//!
//! - notes the current time,
//! - frees forgotten orphans,
//! - writes lazy times,
//! - flushes the homes of idle lanes,
//! - gives the free blocks of leaves back that were to be vacated and are not any more,
//! - searches some of the files that the last mount has left marked, and sums files that were
//!   mapped for writing ([`marks`](crate::fs::steps::marks)),
//! - sets the times of files that holders of leases have stored to;
//! - ends the leases that no process holds any more.
//!
//! Invariant: durability does not depend on this thread, except for lazy times. Every step
//! is an operation of its own, in `steps` and `ops`. [`Background::stop`] waits for the
//! thread to end.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam::channel::{RecvTimeoutError, Sender, bounded};

use crate::fs::Engine;
use crate::fs::steps::marks::{LOOKED_AT, Summed};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::types::Ino;

/// Time between two ticks. The lazy mtime and ctime of an overwrite must reach the medium
/// within a second.
const PERIOD: Duration = Duration::from_millis(500);

/// Ticks without sums of marked files after one that found no room for them. An attempt reads
/// the bytes first.
const NO_ROOM: u32 = 20;

/// Inodes in the orphan table, with their slots. A read-only mount leaves them
/// there.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    /// Unlinked, and to be freed.
    pub orphans: Vec<(Ino, u32)>,
    /// Files with an unfinished truncation, with blocks past the end.
    pub cut: Vec<(Ino, u32)>,
}

impl Engine {
    /// Finishes the removals and the truncations that the last mount left, until `stop`
    /// returns true.
    pub(super) fn finish_work(&self, unfinished: Unfinished, stop: impl Fn() -> bool) {
        for (ino, slot) in unfinished.orphans {
            if stop() {
                return;
            }
            self.finish_orphan(ino, slot);
        }
        for (ino, _) in unfinished.cut {
            if stop() {
                return;
            }
            self.finish_truncated(ino);
        }
    }
}

/// The running timer thread.
#[derive(Debug)]
pub(crate) struct Background {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Background {
    /// Starts the thread.
    pub(crate) fn start(engine: &Arc<Engine>, unfinished: Unfinished) -> Result<Background> {
        let engine = engine.clone();
        let (stop, stopped) = bounded(1);
        let thread = std::thread::Builder::new()
            .name("pramfs-timer".into())
            .spawn(move || {
                engine.finish_work(unfinished, || !stopped.is_empty());
                let mut pause = 0;
                while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                    if !engine.open.is_open() {
                        return;
                    }
                    engine.note_time();
                    engine.free_forgotten();
                    if !engine.is_read_only()
                        && let Err(e) = engine.note_all_stores()
                    {
                        tracing::warn!(error = %e, "could not note direct stores in the times of files");
                    }
                    if let Err(e) = engine.write_lazy() {
                        tracing::warn!(error = %e, "could not write the times of changed files");
                    }
                    if !engine.is_read_only() {
                        engine.find_marked(LOOKED_AT, || !stopped.is_empty());
                    }
                    if pause > 0 {
                        pause -= 1;
                    } else if !engine.is_read_only()
                        && engine.sum_marked(|| !stopped.is_empty()) == Summed::NoRoom
                    {
                        pause = NO_ROOM;
                    }
                    if !engine.is_read_only()
                        && let Err(e) = engine.end_idle_hold()
                    {
                        tracing::warn!(error = %e, "could not free the blocks that were held for a defrag");
                    }
                    if let Err(e) = engine.settle() {
                        tracing::warn!(error = %e, "could not flush the last changes");
                    }
                    if !engine.is_read_only()
                        && let Err(e) = engine.end_released_leases()
                    {
                        tracing::warn!(error = %e, "could not end the leases of processes that are gone");
                    }
                }
            })
            .map_err(|e| Error::io_failed("cannot start the timer thread", e))?;
        Ok(Background { stop, thread })
    }

    /// Stops the thread and waits for its end.
    pub(crate) fn stop(self) {
        let Background { stop, thread } = self;
        let _ = stop.try_send(());
        if thread.join().is_err() {
            tracing::error!("the timer thread panicked");
        }
    }
}
