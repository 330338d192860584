//! The engine's own thread: lagging times, and what the last mount left.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam::channel::{RecvTimeoutError, Sender, bounded};

use crate::fs::Engine;
use pramfs_medium::error::{Error, Result};
use pramfs_medium::types::Ino;

/// mtime and ctime of overwrites are on the medium within a second.
const PERIOD: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Background {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Background {
    pub(crate) fn start(
        engine: &Arc<Engine>,
        orphans: Vec<(Ino, u32)>,
        cut: Vec<(Ino, u32)>,
    ) -> Result<Background> {
        let engine = engine.clone();
        let (stop, stopped) = bounded(1);
        let thread = std::thread::Builder::new()
            .name("pramfs-timer".into())
            .spawn(move || {
                for (ino, slot) in orphans {
                    if !stopped.is_empty() {
                        return;
                    }
                    engine.finish_orphan(ino, slot);
                }
                for (ino, _) in cut {
                    if !stopped.is_empty() {
                        return;
                    }
                    engine.finish_truncated(ino);
                }
                while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                    if !engine.open.is_open() {
                        return;
                    }
                    engine.note_time();
                    engine.free_forgotten();
                    if let Err(e) = engine.write_lazy() {
                        tracing::warn!(error = %e, "times of changed files were not written");
                    }
                    if let Err(e) = engine.settle() {
                        tracing::warn!(error = %e, "the last changes were not flushed");
                    }
                }
            })
            .map_err(|e| Error::Io(format!("cannot start the timer thread: {e}")))?;
        Ok(Background { stop, thread })
    }

    pub(crate) fn stop(self) {
        let Background { stop, thread } = self;
        let _ = stop.try_send(());
        if thread.join().is_err() {
            tracing::error!("the timer thread has panicked");
        }
    }
}
