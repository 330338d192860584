//! Fences on media where only `msync` makes stores durable.
//!
//! Flushes are collected as one hull of addresses, and a fence is one `msync`
//! of it: the cost of an `msync` is the journal commit and the cache flush of
//! the device below, which a second call would pay again, and not the walk
//! over clean pages in between.
//!
//! Invariant: when [`PageSync::fence`] returns, every range that any thread
//! had flushed before the call is durable, or the failure is counted. That is
//! more than a fence promises, and lets concurrent fences share one `msync`.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::MsyncFlags;

use crate::sync::Mutex;

#[derive(Debug, Default)]
pub(super) struct PageSync {
    /// Addresses flushed and not yet taken by a fence: start, end.
    hull: Mutex<Option<(usize, usize)>>,
    /// Held through an msync, so that a fence whose range another one took
    /// waits for that one.
    turn: Mutex<()>,
    failures: AtomicU64,
}

impl PageSync {
    /// Notes the pages of a range for the next fence.
    pub(super) fn flush(&self, ptr: *const u8, len: usize) {
        if len == 0 {
            return;
        }
        let page = rustix::param::page_size();
        let start = ptr as usize & !(page - 1);
        let end = (ptr as usize + len).next_multiple_of(page);
        let mut hull = self.hull.lock();
        *hull = Some(match *hull {
            None => (start, end),
            Some((s, e)) => (s.min(start), e.max(end)),
        });
    }

    /// Writes out what has been flushed.
    pub(super) fn fence(&self) {
        let _turn = self.turn.lock();
        let Some((start, end)) = self.hull.lock().take() else {
            return;
        };
        if let Err(e) = msync(start, end - start) {
            self.failures.fetch_add(1, Ordering::Release);
            super::fault::note_fault();
            tracing::error!("msync of {} bytes of the region failed: {e}", end - start);
        }
    }

    /// Fences that have failed: their operations are not durable.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }
}

/// Writes a page-aligned range of a shared mapping out and waits.
fn msync(start: usize, len: usize) -> rustix::io::Result<()> {
    // SAFETY: the range was flushed, and so lies in the caller's mapping; a
    // synchronous write-out changes no memory.
    unsafe { rustix::mm::msync(start as *mut _, len, MsyncFlags::SYNC) }
}
