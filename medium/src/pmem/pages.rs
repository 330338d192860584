//! Fences on media where only `msync` makes stores durable.
//!
//! Flushes are collected as one hull of addresses, and a fence is one `msync` of the hull.
//! The cost of an `msync` is the journal commit and the cache flush of the device below,
//! which a second call would repeat. The walk over clean pages in between costs little.
//!
//! Invariant: when [`PageSync::fence`] returns, every range that any thread had flushed
//! before the call is durable, or the failure is counted. This is more than a fence
//! promises, and lets concurrent fences share one `msync`.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::MsyncFlags;

use crate::sync::{Mutex, rank};

#[derive(Debug, Default)]
pub(super) struct PageSync {
    /// Flushed addresses that no fence has taken yet: start, end.
    hull: Mutex<Option<(usize, usize)>, rank::Leaf>,
    /// Held through an msync. If another fence took this fence's range, this fence waits
    /// for it.
    turn: Mutex<(), rank::PageSync>,
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

    /// Writes all flushed pages back.
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

    /// Returns the number of failed fences; their operations are not durable.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }
}

/// Writes back a page-aligned range of a shared mapping and waits.
fn msync(start: usize, len: usize) -> rustix::io::Result<()> {
    // SAFETY: the range was flushed, and so lies in the caller's mapping; a synchronous
    // write-back changes no memory.
    unsafe { rustix::mm::msync(start as *mut _, len, MsyncFlags::SYNC) }
}
