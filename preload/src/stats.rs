//! Counts of the data calls, printed at the end if `PRAMFS_PRELOAD_STATS` is set.
//!
//! A data call reads, writes or maps a file of a mount. A call on another file counts
//! nowhere.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static ON: AtomicBool = AtomicBool::new(false);
static SERVED: AtomicU64 = AtomicU64::new(0);
static PASSED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn start() {
    // SAFETY: the name ends with a zero. At the start, no other thread changes variables.
    let set = unsafe { libc::getenv(c"PRAMFS_PRELOAD_STATS".as_ptr()) };
    ON.store(!set.is_null(), Ordering::Relaxed);
}

/// Notes a data call: served from memory, or passed to the mount.
#[inline]
pub(crate) fn note(served: bool) {
    if ON.load(Ordering::Relaxed) {
        let count = if served { &SERVED } else { &PASSED };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Starts anew, in a forked child.
pub(crate) fn reset() {
    SERVED.store(0, Ordering::Relaxed);
    PASSED.store(0, Ordering::Relaxed);
}

pub(crate) fn print() {
    if !ON.load(Ordering::Relaxed) {
        return;
    }
    let served = SERVED.load(Ordering::Relaxed);
    let all = served + PASSED.load(Ordering::Relaxed);
    if all == 0 {
        return;
    }
    let share = 100.0 * served as f64 / all as f64;
    let mut line = [0; 160];
    let mut rest = &mut line[..];
    let pid = crate::process::id();
    let written = writeln!(
        rest,
        "pramfs-preload: process {pid}: {served} of {all} data calls served ({share:.1} %)"
    );
    let left = rest.len();
    if written.is_ok() {
        let n = line.len() - left;
        // SAFETY: the first n bytes of the line. A failure changes nothing.
        let _ = unsafe { crate::real::write(2, line.as_ptr().cast(), n) };
    }
}
